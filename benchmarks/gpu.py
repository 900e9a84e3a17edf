"""Claim: on a GPU ours is as fast as its rivals, part by part.

Each part takes at most eight minutes on a large GPU:

- tests: all tests that are marked gpu;
- encode: BERT-base in bf16 to a store, against sentence-transformers' encode in bf16;
- search: exact search of 10 million vectors of 768 numbers, against the bare product with torch's
  topk, and against FAISS's flat index on the GPU where faiss-gpu is installed;
- coco: a step of COCO over 2,048 documents with gradient caching, and its memory, against the
  host's cached loss;
- idro: a step of iDRO on 64 triplets with 50 clusters, BERT-base, against ERM;
- mining: a refresh of hard negatives over a million documents, against encoding by the host and
  topk.

Nothing is downloaded: encoders of the right shape get random weights, and texts are made of their
tokenizer's words. Every figure is written to ``--results`` as soon as it is measured, and not
measured again by a run with the same sizes. ``--device cpu --tiny`` runs every part in seconds, to
see that it runs; its results go to ``--work``:

    python benchmarks/gpu.py [--only encode search ...]
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import idro
import torch
from gpu_bench import TINY, Bench, Report, Sizes
from harness.measure import seconds
from harness.script import ROOT, results_file

RESULTS = results_file("gpu")


def run_tests(bench: Bench) -> None:
    """Run every test that needs a GPU, as pytest counts them.

    Other files of tests are not imported, as they need hosts that may be absent.
    """

    def run() -> Any:
        files = [
            str(path.relative_to(ROOT))
            for path in sorted((ROOT / "tests").rglob("test_*.py"))
            if "pytest.mark.gpu" in path.read_text(encoding="utf-8")
        ]
        if bench.sizes == TINY:
            files = ["tests/retrieval/vectors/test_topk.py"]  # which imports torch and few others
        completed = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *files],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        lines = [line for line in completed.stdout.splitlines() if line.strip()]
        errors = completed.stderr.splitlines()
        return {
            "status": completed.returncode,
            "summary": lines[-2:] or errors[-1:],
            "failed": [line for line in lines if line.startswith("FAILED")],
        }

    bench.report.once("tests", "pytest", run)


def encode(bench: Bench) -> None:
    """Measure documents a second: ours to a store on disk, the host's to memory."""
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.retrieval.store.encode import encode_documents
    from beir_cocodr.retrieval.store.record import EncodeOptions

    sizes = bench.sizes
    once = bench.report.once
    folder = bench.collection("encode", sizes.documents, sizes.words)
    documents = load_collection(str(folder), labels="none").documents
    model = bench.model()
    texts = [document["text"] for document in documents.values()]
    options = EncodeOptions(
        backend="bf16",
        precision="fp16",
    )

    def ours() -> None:
        store = bench.work / f"store-{time.monotonic_ns()}"
        encode_documents(
            model,
            documents,
            store,
            options,
        )

    def host() -> None:
        bench.encode(model.encode_document, texts)

    our_seconds = median(once("encode", "ours_seconds", lambda: bench.seconds(ours, 2)))
    host_seconds = median(once("encode", "host_seconds", lambda: bench.seconds(host, 2)))
    parameters = model.transformers_model.encoder.parameters()
    weights = sum(weight.numel() for weight in parameters)
    tokens = len(texts) * min(sizes.tokens, sizes.words + 2)
    tflops = 2 * weights * tokens / our_seconds / 1e12
    once("encode", "documents_per_second", lambda: len(texts) / our_seconds)
    once("encode", "tflops", lambda: tflops)
    once("encode", "throughput_ours_to_host", lambda: host_seconds / our_seconds)


def search(bench: Bench) -> None:
    """Search vectors in fp16 on the device, in chunks, with scores in fp32."""
    from beir_cocodr.retrieval.vectors.topk import search_chunks

    sizes = bench.sizes
    once = bench.report.once
    generator = torch.Generator(bench.device).manual_seed(0)
    chunks = draw_chunks(bench, generator)
    shape = (sizes.queries, sizes.width)
    queries = torch.randn(
        shape,
        device=bench.device,
        generator=generator,
    )

    def ours() -> Any:
        return search_chunks(queries, chunks, sizes.top_k)

    def rival() -> Any:
        return search_by_topk(queries, chunks, sizes)

    our_seconds = median(once("search", "ours_seconds", lambda: bench.seconds(ours)))
    rival_seconds = median(once("search", "product_and_topk_seconds", lambda: bench.seconds(rival)))
    once("search", "ours_to_product_and_topk", lambda: our_seconds / rival_seconds)
    once("search", "same_rows", lambda: agreement(ours()[1], rival()[1]))
    faiss = once("search", "faiss_gpu_seconds", lambda: faiss_seconds(bench, chunks, queries))
    if isinstance(faiss, list):
        once("search", "ours_to_faiss_gpu", lambda: our_seconds / median(faiss))


def draw_chunks(bench: Bench, generator: torch.Generator) -> list[torch.Tensor]:
    """Draw vectors in fp16; a CPU draws none, and rounds what it drew."""
    sizes = bench.sizes
    dtype = torch.float16 if bench.device.startswith("cuda") else torch.float32
    chunks = []
    for start in range(0, sizes.vectors, sizes.chunk):
        shape = (min(sizes.chunk, sizes.vectors - start), sizes.width)
        chunk = torch.randn(
            shape,
            dtype=dtype,
            device=bench.device,
            generator=generator,
        )
        chunks.append(chunk.half())
    return chunks


def search_by_topk(
    queries: torch.Tensor,
    chunks: list[torch.Tensor],
    sizes: Sizes,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Search by the product and the host library's selection: no checks, and ties in any order."""
    shape = (len(queries), sizes.top_k)
    best = torch.full(shape, -torch.inf, device=queries.device)
    rows = torch.zeros(
        shape,
        dtype=torch.int64,
        device=queries.device,
    )
    start = 0
    for chunk in chunks:
        product = queries @ chunk.float().T
        scores, positions = product.topk(min(sizes.top_k, len(chunk)), dim=1)
        candidates = torch.cat([best, scores], 1)
        candidate_rows = torch.cat([rows, positions + start], 1)
        best, order = candidates.topk(sizes.top_k, dim=1)
        rows = candidate_rows.gather(1, order)
        start += len(chunk)
    return best, rows


def agreement(rows: torch.Tensor, others: torch.Tensor) -> float:
    """Return the mean share of rows that two rankings of a query have in common."""
    shares = []
    for row, other in zip(rows.tolist(), others.tolist(), strict=True):
        shares.append(len(set(row) & set(other)) / len(row))
    return sum(shares) / len(shares)


def faiss_seconds(
    bench: Bench,
    chunks: list[torch.Tensor],
    queries: torch.Tensor,
) -> Any:
    """Return the seconds of FAISS's flat index in fp16 on the GPU, or why there are none."""
    try:
        import faiss
    except ImportError:
        return "faiss is not installed"
    if not hasattr(faiss, "StandardGpuResources"):
        return "faiss-gpu is not installed"
    if not bench.device.startswith("cuda"):
        return "no GPU"
    options = faiss.GpuIndexFlatConfig()
    options.useFloat16 = True
    index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), bench.sizes.width, options)
    for chunk in chunks:
        index.add(chunk.float().cpu().numpy())
    vectors = queries.cpu().numpy()
    return bench.seconds(lambda: index.search(vectors, bench.sizes.top_k))


COCO_KINDS = ("coco", "host", "coco with language-model losses")


def coco(bench: Bench) -> None:
    """Measure a step, forward and backward in bf16 without dropout, and its memory."""
    once = bench.report.once
    times = {}
    for kind in COCO_KINDS:
        figures = once("coco", kind, lambda kind=kind: measure_coco(bench, kind))
        times[kind] = median(figures["seconds"])
    documents_per_second = bench.sizes.batch / times["coco with language-model losses"]
    once("coco", "throughput_ours_to_host", lambda: times["host"] / times["coco"])
    once("coco", "documents_per_second", lambda: documents_per_second)


def measure_coco(bench: Bench, kind: str) -> dict[str, Any]:
    """Measure the step of one loss."""
    from beir_cocodr.losses.coco import COCOLoss, infonce
    from beir_cocodr.training.options import PretrainOptions
    from beir_cocodr.training.pretraining.pretrain import attach_head
    from beir_cocodr.training.start import Start

    is_masked = kind.endswith("losses")
    model = bench.model()
    if is_masked:
        folder = str(bench.encoder_folder)
        attach_head(Start(folder, folder, model), PretrainOptions())
        model.to(bench.device)
    model.eval()
    make_loss = infonce if kind == "host" else COCOLoss
    loss = make_loss(model, mini_batch_size=bench.sizes.mini_batch)
    batch = draw_spans(bench, is_masked)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with bench.autocast():
            columns = [dict(column) for column in batch]
            loss(columns, None).backward()  # The backward pass embeds again.

    idro.reset_peak(bench.device)
    return {
        "seconds": bench.seconds(step),
        "peak_mib": idro.peak_mib(bench.device),
    }


def draw_spans(bench: Bench, is_masked: bool) -> list[dict[str, torch.Tensor]]:
    """Draw two columns of spans of full length."""
    generator = torch.Generator().manual_seed(0)
    shape = (bench.sizes.batch, bench.sizes.tokens)
    columns = []
    for _ in range(2):
        ids = torch.randint(
            1_000,
            30_000,
            shape,
            generator=generator,
        )
        is_kept = torch.rand(shape, generator=generator) > 0.15
        column = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "token_type_ids": torch.zeros_like(ids),
        }
        if is_masked:
            column["mlm_labels"] = ids.masked_fill(is_kept, -100)
        columns.append({name: value.to(bench.device) for name, value in column.items()})
    return columns


def idro_step(bench: Bench) -> None:
    """Measure ERM, one backward pass, the sketch and K calls in turns."""
    sizes = bench.sizes

    def measure() -> Any:
        return idro.measure(
            sizes.shape,
            sizes.triplets,
            sizes.repeats,
            bench.device,
        )

    figures = bench.report.once("idro", "steps", measure)
    bench.report.once("idro", "one_backward_to_erm", lambda: figures["one_backward_to_erm"])


def mining(bench: Bench) -> None:
    """Measure a refresh: encode the corpus, search to a depth of 200, and draw 30 negatives.

    The host encodes a tenth of the corpus, and its time is scaled.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.training.hard_negatives.mined_negatives import MiningDraw, mine_negatives
    from beir_cocodr.training.options import FinetuneOptions

    sizes = bench.sizes
    once = bench.report.once
    folder = bench.collection(
        "mining",
        sizes.mined,
        sizes.mined_words,
        sizes.mined_queries,
    )
    collection = load_collection(str(folder), "train")
    model = bench.model()
    depth = min(200, sizes.mined // 2)
    options = FinetuneOptions.of(
        mining_depth=depth,
        mining_keep=min(30, depth),
    )
    draw = MiningDraw(options.seed)

    def ours() -> float:
        output = bench.work / f"mined-{time.monotonic_ns()}"
        return seconds(
            lambda: mine_negatives(
                collection,
                model,
                output,
                options.mining,
                draw,
            )
        )

    our_seconds = once("mining", "ours_seconds", ours)
    host_seconds = once(
        "mining",
        "host_seconds_scaled_from_a_tenth",
        lambda: host_mining_seconds(
            bench,
            model,
            collection,
            depth,
        ),
    )
    hours = our_seconds * 8.8e6 / sizes.mined / 3600
    once("mining", "throughput_ours_to_host", lambda: host_seconds / our_seconds)
    once("mining", "hours_for_8.8_million", lambda: hours)


def host_mining_seconds(
    bench: Bench,
    model: Any,
    collection: Any,
    depth: int,
) -> float:
    """Return the seconds of the host for all queries and a tenth of the corpus, scaled to all."""
    rows = list(range(bench.sizes.mined // 10))
    texts = [document["text"] for document in collection.documents.take(rows)]
    vectors: dict[str, torch.Tensor] = {}

    def encode_documents() -> None:
        encoded = bench.encode(model.encode_document, texts, convert_to_tensor=True)
        vectors["documents"] = encoded.float()
        bench.wait()

    def encode_queries() -> None:
        queries = list(collection.queries.values())
        encoded = model.encode_query(
            queries,
            batch_size=256,
            show_progress_bar=False,
            convert_to_tensor=True,
        )
        vectors["queries"] = encoded.float()
        bench.wait()

    def search_all() -> None:
        documents = vectors["documents"]
        for queries in torch.split(vectors["queries"], 1_000):
            (queries @ documents.T).topk(min(depth, len(documents)))
        bench.wait()

    of_the_corpus = seconds(encode_documents)
    of_queries = seconds(encode_queries)
    of_the_corpus += seconds(search_all)
    return of_queries + 10 * of_the_corpus


#: A part to what it runs; each is independent of the others.
PARTS: dict[str, Callable[[Bench], None]] = {
    "encode": encode,
    "search": search,
    "coco": coco,
    "idro": idro_step,
    "mining": mining,
    "tests": run_tests,
}


def run(names: list[str], bench: Bench) -> Iterator[str]:
    """Run parts, and yield those that fail; a part that fails stops no other."""
    for name in names:
        started = time.perf_counter()
        try:
            PARTS[name](bench)
        except Exception as error:
            logging.exception("%s failed", name)
            yield f"{name}: {type(error).__name__}: {error}"
        if bench.device.startswith("cuda"):
            torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


def option_parser() -> argparse.ArgumentParser:
    """Create the parser of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=f"Run these parts only: {', '.join(PARTS)}.",
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="Take seconds, to see that the parts run.",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs/gpu"),
        help="Keep encoders, texts and stores here.",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="Write the results here. Default: benchmarks/results/gpu.json; with --tiny in --work.",
    )
    return parser


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser()
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu --tiny shows that the parts run")
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu would take days; add --tiny")
    options.work.mkdir(
        parents=True,
        exist_ok=True,
    )
    sizes = TINY if options.tiny else Sizes()
    default = options.work / "gpu.json" if options.tiny else RESULTS
    report = Report(options.results or default, options.device, sizes)
    bench = Bench(
        options.device,
        sizes,
        options.work,
        report,
    )
    failed = list(run(options.only, bench))
    if failed:
        parser.error("; ".join(failed))


if __name__ == "__main__":
    main()
