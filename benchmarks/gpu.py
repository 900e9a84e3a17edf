"""What only a GPU can tell, in parts of at most eight minutes on a large one, each against its
rival.

    python benchmarks/gpu.py [--only encode search ...]

- tests: all tests marked gpu;
- encode: BERT-base in bf16 to a store, against sentence-transformers' encode in bf16;
- search: exact search of 10 million vectors of 768 numbers, against the bare product with torch's
  topk, and FAISS's flat index on the GPU where faiss-gpu is installed;
- coco: a step of COCO over 2,048 documents with gradient caching and its memory, against the host's
  cached loss;
- idro: a step of iDRO on 64 triplets with 50 clusters, BERT-base, against ERM;
- mining: a refresh of hard negatives over a million documents, against encoding by the host and
  topk.

Nothing is downloaded: encoders of the right shape are drawn in place, texts are made of their
tokenizer's words. Every figure is written to --results as soon as there is one, and not measured
again by a run with the same sizes. ``--device cpu --tiny`` runs every part in seconds, to see that
it runs: its results go to --work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import idro
import numpy as np
import torch
from machine import ROOT, machine
from reproduce.make import shaped

from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions

RESULTS = Path(__file__).parent / "results" / "gpu.json"

#: No more repeats are begun when a part has taken so long.
SECONDS = 6 * 60


@dataclass(frozen=True)
class Sizes:
    """Of all parts; a full run's fit 80 GiB."""

    layers: int = 12
    width: int = 768
    documents: int = 100_000
    words: int = 110
    vectors: int = 10_000_000
    queries: int = 1_000
    top_k: int = 1_000
    chunk: int = 1_000_000
    batch: int = 2_048
    mini_batch: int = 256
    tokens: int = 128
    shape: str = "bert-base"
    triplets: int = 64
    mined: int = 1_000_000
    mined_words: int = 30
    mined_queries: int = 10_000
    repeats: int = 3


TINY = Sizes(2, 64, 64, 12, 2_000, 20, 10, 500, 4, 2, 16, "tiny", 8, 200, 8, 10, 1)


class Report:
    """The results file, written after every figure; figures of the same sizes and device are
    kept.
    """

    def __init__(self, path: Path, device: str, sizes: Sizes) -> None:
        self.path = path
        where = {"device": device, "sizes": asdict(sizes)}
        found = json.loads(path.read_text()) if path.is_file() else {}
        same = {name: found.get(name) for name in where} == where
        self.content: dict[str, Any] = found if same else where | {"parts": {}}
        self.content |= {"machine": machine(), "versions": versions()}
        if device.startswith("cuda"):
            memory = torch.cuda.get_device_properties(0).total_memory / 2**30
            self.content |= {"gpu": torch.cuda.get_device_name(), "gpu_gib": round(memory, 1)}

    def once(self, part: str, name: str, make: Callable[[], Any]) -> Any:
        """A figure, made if it is not there."""
        found = self.content["parts"].setdefault(part, {})
        if name not in found:
            found[name] = make()
            self.content["date"] = datetime.date.today().isoformat()
            write_text(self.path, json.dumps(self.content, indent=2) + "\n")
            print(f"{part}, {name}: {json.dumps(found[name])[:200]}", flush=True)
        return found[name]


@dataclass(frozen=True)
class Bench:
    """What every part has: where it runs, with which sizes, its files, and its results."""

    device: str
    sizes: Sizes
    work: Path
    report: Report

    def seconds(self, call: Callable[[], Any], repeats: int | None = None) -> list[float]:
        """Of some calls after one that warms up, fewer where they are slow."""
        began, found = time.perf_counter(), []
        for number in range(1 + (self.sizes.repeats if repeats is None else repeats)):
            if number > 1 and time.perf_counter() - began > SECONDS / 2:
                break
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            if number:
                found.append(time.perf_counter() - started)
        return found

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def model(self) -> Any:
        """A random encoder of the sizes' shape."""
        from beir_cocodr.models.loading import load_encoder

        folder = self.work / f"encoder-{self.sizes.layers}-{self.sizes.width}"
        if not folder.is_dir():
            draft = folder.with_suffix(".draft")
            shaped(draft, self.sizes.layers, self.sizes.width)
            draft.rename(folder)
        options = EncoderOptions(self.sizes.tokens, self.sizes.tokens, device=self.device)
        return load_encoder(str(folder), options)

    def weights(self, model: Any) -> int:
        """Of the layers, which are what a token costs."""
        return sum(weight.numel() for weight in model.transformers_model.encoder.parameters())

    def collection(self, name: str, documents: int, words: int, queries: int = 0) -> Path:
        """A BEIR folder of drawn words; a query is part of its relevant document."""
        folder = self.work / f"{name}-{documents}"
        if (folder / "qrels" / "train.tsv").is_file():
            return folder
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        with (
            (folder / "corpus.jsonl").open("w") as file,
            (folder / "queries.jsonl").open("w") as asked,
        ):
            for start in range(0, documents, 10_000):
                drawn = random.integers(0, 30_000, (min(10_000, documents - start), words))
                for number, row in enumerate(drawn, start):
                    text = " ".join(f"w{word}" for word in row)
                    file.write(f'{{"_id": "{number}", "title": "", "text": "{text}"}}\n')
                    if number < queries:
                        asked.write(
                            f'{{"_id": "q{number}", "text": "{text[:40].rpartition(" ")[0]}"}}\n'
                        )
        qrels = "".join(f"q{number}\t{number}\t1\n" for number in range(queries))
        write_text(folder / "qrels" / "train.tsv", f"query-id\tcorpus-id\tscore\n{qrels}")
        return folder


def tests(bench: Bench) -> None:
    """Every test that needs a GPU, as pytest counts them."""

    def run() -> Any:
        which = (
            ["tests/retrieval/store/test_store_gpu.py"]
            if bench.sizes == TINY
            else ["-m", "gpu", "tests"]
        )
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=480, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        return {
            "status": done.returncode,
            "summary": lines[-2:],
            "failed": [x for x in lines if x.startswith("FAILED")],
        }

    bench.report.once("tests", "pytest", run)


def encode(bench: Bench) -> None:
    """Documents a second, ours to a store on disk, the host's to memory."""
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.retrieval.store.encode import encode_documents
    from beir_cocodr.retrieval.store.record import EncodeOptions

    sizes, once = bench.sizes, bench.report.once
    folder = bench.collection("encode", sizes.documents, sizes.words)
    documents, model = load_collection(str(folder), labels="none").documents, bench.model()
    texts = [document["text"] for document in documents.values()]

    def ours() -> None:
        place = bench.work / f"store-{time.monotonic_ns()}"
        encode_documents(model, documents, place, EncodeOptions(backend="bf16", precision="fp16"))

    def host() -> None:
        with (
            torch.autocast(bench.device.partition(":")[0], dtype=torch.bfloat16),
            torch.inference_mode(),
        ):
            model.encode_document(texts, batch_size=256, show_progress_bar=False)

    tokens = len(texts) * min(sizes.tokens, sizes.words + 2)
    mine = once("encode", "ours_seconds", lambda: bench.seconds(ours, 2))
    theirs = once("encode", "host_seconds", lambda: bench.seconds(host, 2))
    once("encode", "documents_per_second", lambda: len(texts) / median(mine))
    once("encode", "tflops", lambda: 2 * bench.weights(model) * tokens / median(mine) / 1e12)
    once("encode", "throughput_ours_to_host", lambda: median(theirs) / median(mine))


def search(bench: Bench) -> None:
    """Vectors in fp16 on the device, searched in chunks, scores in fp32."""
    from beir_cocodr.retrieval.topk import search_chunks

    sizes, once = bench.sizes, bench.report.once
    generator = torch.Generator(bench.device).manual_seed(0)
    shape = {"device": bench.device, "generator": generator}
    chunks = [
        torch.randn(
            min(sizes.chunk, sizes.vectors - start), sizes.width, dtype=torch.float16, **shape
        )
        if bench.device.startswith("cuda")
        else torch.randn(min(sizes.chunk, sizes.vectors - start), sizes.width, **shape).half()
        for start in range(0, sizes.vectors, sizes.chunk)
    ]
    queries = torch.randn(sizes.queries, sizes.width, **shape)

    def bare() -> tuple[torch.Tensor, torch.Tensor]:
        """The product and the host library's selection, nothing checked and ties as they fall."""
        best = torch.full((sizes.queries, sizes.top_k), -torch.inf, device=bench.device)
        rows = torch.zeros(sizes.queries, sizes.top_k, dtype=torch.int64, device=bench.device)
        for start, chunk in zip(range(0, sizes.vectors, sizes.chunk), chunks, strict=True):
            found, at = (queries @ chunk.float().T).topk(min(sizes.top_k, len(chunk)), dim=1)
            both, ids = torch.cat([best, found], 1), torch.cat([rows, at + start], 1)
            best, order = both.topk(sizes.top_k, dim=1)
            rows = ids.gather(1, order)
        return best, rows

    ours = once(
        "search",
        "ours_seconds",
        lambda: bench.seconds(lambda: search_chunks(queries, chunks, sizes.top_k)),
    )
    theirs = once("search", "product_and_topk_seconds", lambda: bench.seconds(bare))
    once("search", "ours_to_product_and_topk", lambda: median(ours) / median(theirs))
    once(
        "search",
        "same_rows",
        lambda: agreement(search_chunks(queries, chunks, sizes.top_k)[1], bare()[1]),
    )
    flat = once("search", "faiss_gpu_seconds", lambda: faiss_seconds(bench, chunks, queries))
    if isinstance(flat, list):
        once("search", "ours_to_faiss_gpu", lambda: median(ours) / median(flat))


def agreement(rows: torch.Tensor, others: torch.Tensor) -> float:
    """Mean share of documents that both lists of a query have."""
    same = [
        len(set(a) & set(b)) / len(a) for a, b in zip(rows.tolist(), others.tolist(), strict=True)
    ]
    return sum(same) / len(same)


def faiss_seconds(bench: Bench, chunks: list[torch.Tensor], queries: torch.Tensor) -> Any:
    """Of FAISS's flat index in fp16 on the GPU, or why there is none."""
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
    asked = queries.cpu().numpy()
    return bench.seconds(lambda: index.search(asked, bench.sizes.top_k))


def coco(bench: Bench) -> None:
    """A step, forward and backward in bf16, and the most memory that it takes; dropout off."""
    from beir_cocodr.losses.coco import COCOLoss, infonce
    from beir_cocodr.training.options import PretrainOptions
    from beir_cocodr.training.pretrain import attach_head

    sizes, once = bench.sizes, bench.report.once

    def columns(masked: bool) -> list[dict[str, torch.Tensor]]:
        generator, found = torch.Generator().manual_seed(0), []
        for _ in range(2):
            ids = torch.randint(1_000, 30_000, (sizes.batch, sizes.tokens), generator=generator)
            labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) > 0.15, -100)
            column = {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "token_type_ids": torch.zeros_like(ids),
            }
            found.append(column | ({"mlm_labels": labels} if masked else {}))
        return [
            {name: value.to(bench.device) for name, value in column.items()} for column in found
        ]

    def step(kind: str) -> dict[str, Any]:
        model = bench.model()
        if kind == "coco with language-model losses":
            attach_head(
                model, str(bench.work / f"encoder-{sizes.layers}-{sizes.width}"), PretrainOptions()
            )
            model.to(bench.device)
        model.eval()
        make = infonce if kind == "host" else COCOLoss
        loss, batch = (
            make(model, mini_batch_size=sizes.mini_batch),
            columns(kind.endswith("losses")),
        )

        def run() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(bench.device.partition(":")[0], dtype=torch.bfloat16):
                loss([dict(column) for column in batch], None).backward()  # which embeds again

        idro.forget_peak(bench.device)
        return {"seconds": bench.seconds(run), "peak_mib": idro.peak(bench.device)}

    kinds = ("coco", "host", "coco with language-model losses")
    found = {kind: once("coco", kind, lambda kind=kind: step(kind)) for kind in kinds}
    seconds = {kind: median(one["seconds"]) for kind, one in found.items()}
    once("coco", "throughput_ours_to_host", lambda: seconds["host"] / seconds["coco"])
    once(
        "coco",
        "documents_per_second",
        lambda: sizes.batch / seconds["coco with language-model losses"],
    )


def idro_step(bench: Bench) -> None:
    """ERM, one backward, the sketch and K calls in turns."""
    sizes = bench.sizes
    bench.report.once(
        "idro",
        "steps",
        lambda: idro.measure(sizes.shape, sizes.triplets, sizes.repeats, bench.device),
    )
    found = bench.report.content["parts"]["idro"]["steps"]
    bench.report.once("idro", "one_backward_to_erm", lambda: found["one_backward_to_erm"])


def mining(bench: Bench) -> None:
    """A refresh: the corpus encoded, queries searched to a depth of 200, 30 drawn; the host on a
    tenth, scaled.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.training.mining import MiningDraw, mine_negatives
    from beir_cocodr.training.options import FinetuneOptions

    sizes, once = bench.sizes, bench.report.once
    folder = bench.collection("mining", sizes.mined, sizes.mined_words, sizes.mined_queries)
    collection, model = load_collection(str(folder), "train"), bench.model()
    depth = min(200, sizes.mined // 2)

    def ours() -> float:
        started = time.perf_counter()
        options = FinetuneOptions.of(mining_depth=depth, mining_keep=min(30, depth))
        mine_negatives(
            collection,
            model,
            bench.work / f"mined-{time.monotonic_ns()}",
            options.mining,
            MiningDraw(options.seed, 0),
        )
        return time.perf_counter() - started

    def host() -> float:
        few = [
            document["text"]
            for document in collection.documents.take(list(range(sizes.mined // 10)))
        ]
        started = time.perf_counter()
        with (
            torch.autocast(bench.device.partition(":")[0], dtype=torch.bfloat16),
            torch.inference_mode(),
        ):
            vectors = model.encode_document(
                few, batch_size=256, show_progress_bar=False, convert_to_tensor=True
            )
        bench.wait()
        encoded = time.perf_counter() - started
        started = time.perf_counter()
        asked = list(collection.queries.values())
        queries = model.encode_query(
            asked, batch_size=256, show_progress_bar=False, convert_to_tensor=True
        )
        bench.wait()
        asking = time.perf_counter() - started
        started = time.perf_counter()
        for start in range(0, len(queries), 1_000):
            (queries[start : start + 1_000].float() @ vectors.float().T).topk(
                min(depth, len(vectors))
            )
        bench.wait()
        return asking + 10 * (
            encoded + time.perf_counter() - started
        )  # all queries were asked, of a tenth

    mine = once("mining", "ours_seconds", ours)
    theirs = once("mining", "host_seconds_scaled_from_a_tenth", host)
    once("mining", "throughput_ours_to_host", lambda: theirs / mine)
    once("mining", "hours_for_8.8_million", lambda: mine * 8.8e6 / sizes.mined / 3600)


#: Part to what it runs; each is independent of the others.
PARTS: dict[str, Callable[[Bench], None]] = {
    "encode": encode,
    "search": search,
    "coco": coco,
    "idro": idro_step,
    "mining": mining,
    "tests": tests,
}


def run(names: list[str], bench: Bench) -> Iterator[str]:
    """Run parts; gives those that fail, and goes on with the next."""
    for name in names:
        started = time.perf_counter()
        try:
            PARTS[name](bench)
        except Exception as error:  # a part that fails stops no other
            logging.exception("%s failed", name)
            yield f"{name}: {type(error).__name__}: {error}"
        if bench.device.startswith("cuda"):
            torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=", ".join(PARTS),
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes of seconds, to see that it runs")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/gpu"), help="encoders, texts and stores"
    )
    parser.add_argument(
        "--results", type=Path, help="default: benchmarks/results/gpu.json, with --tiny in --work"
    )
    given = parser.parse_args(arguments)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu --tiny shows that the parts run")
    if given.device == "cpu" and not given.tiny:
        parser.error("on a CPU only --tiny ends in our lifetime")
    given.work.mkdir(parents=True, exist_ok=True)
    sizes = TINY if given.tiny else Sizes()
    results = given.results or (given.work / "gpu.json" if given.tiny else RESULTS)
    bench = Bench(given.device, sizes, given.work, Report(results, given.device, sizes))
    if failed := list(run(given.only, bench)):
        parser.error("; ".join(failed))


if __name__ == "__main__":
    main()
