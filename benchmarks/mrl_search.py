"""Claim: searching with means and variances (MRL) costs as much as searching with plain vectors.

The rivals are a plain vector of the same width and late interaction; search is exact or by HNSW.
The script measures storage, latency, recall, and what folding does for recall and for small storage
types. The corpus is real text: windows of equal length from the documentation of installed
packages. One pass of MiniLM gives both vectors of a window: the plain one is the normalised mean of
its hidden states, and MRL's comes from its head, which is untrained (a semi-orthogonal start)
unless ``--model`` names a trained MRL. Storage and latency do not depend on training; recall and
overlaps may. Late interaction is measured on ``--late`` windows and scaled. Vectors and indexes are
kept in ``--work`` and not computed again.

The script prints ratios with their aims, latencies and recalls, and writes
``benchmarks/results/mrl_search.json``:

    python benchmarks/mrl_search.py [--windows 100000] [--window-tokens 29] [--model FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import check_bound, describe_target, seconds
from harness.script import add_integers, add_work, option_parser, origin, write_results
from harness.texts import Windows, windows

SHARD = 5_000
BATCH = 64
#: Breadths of a search in a graph.
BREADTHS = (16, 32, 64, 128)
TIMED_BREADTH = 64

#: (N, d) vectors of both kinds: "plain" and "mrl".
Vectors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Kind:
    """One kind of index.

    Attributes:
        vectors: The vectors that it holds.
        kind: The kind of FAISS index.
        transform: What is done to the vectors first.
        by_distance: Link a graph by distance after the reduction, not by inner product.
    """

    vectors: str
    kind: str
    transform: str = "none"
    by_distance: bool = True


INDEXES = {
    "plain, flat": Kind("plain", "flat"),
    "MRL, flat": Kind("mrl", "flat", "folding"),
    "plain, HNSW": Kind("plain", "hnsw"),
    "plain, HNSW, centred": Kind("plain", "hnsw", "centring"),
    "plain, HNSW, inner product": Kind("plain", "hnsw", by_distance=False),
    "MRL, HNSW": Kind("mrl", "hnsw", "folding"),
    "MRL, HNSW, not folded": Kind("mrl", "hnsw"),
    "MRL, HNSW, inner product": Kind(
        "mrl",
        "hnsw",
        "folding",
        by_distance=False,
    ),
    "MRL, HNSW, inner product, not folded": Kind("mrl", "hnsw", by_distance=False),
}
#: Pairs of indexes whose latencies are divided.
PAIRS = (("MRL, flat", "plain, flat"), ("MRL, HNSW", "plain, HNSW"))
#: The most that the first of a pair may take, in parts of the second.
MOST = 1.05


def encode(
    texts: list[str],
    task: str,
    model: Any,
    folder: Path,
) -> Vectors:
    """Return both vectors of texts, from one pass; finished shards are kept.

    Args:
        texts: The N texts.
        task: "document" or "query".
        model: The MRL.
        folder: The folder of the shards.

    Returns:
        (N, 384) "plain" and (N, 383) "mrl" vectors.
    """
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    shards: list[Vectors] = []
    for start in range(0, len(texts), SHARD):
        path = folder / f"{task}-{start:07}.npz"
        if not path.is_file():
            part = texts[start : start + SHARD]
            draft = path.with_suffix(".draft.npz")
            np.savez(draft, **encode_part(part, task, model))
            draft.replace(path)
            print(f"{task}: {start + len(part)} of {len(texts)} encoded", file=sys.stderr)
        with np.load(path) as arrays:
            shards.append(dict(arrays))
    return join_vectors(shards)


def encode_part(
    texts: list[str],
    task: str,
    model: Any,
) -> Vectors:
    """Return both vectors of the texts of a shard."""
    batches = []
    for start in range(0, len(texts), BATCH):
        batches.append(encode_batch(texts[start : start + BATCH], task, model))
    return join_vectors(batches)


def join_vectors(parts: list[Vectors]) -> Vectors:
    """Concatenate vectors of both kinds."""
    return {name: np.concatenate([part[name] for part in parts]) for name in ("plain", "mrl")}


def encode_batch(
    texts: list[str],
    task: str,
    model: Any,
) -> Vectors:
    """Return both vectors of the texts of a batch."""
    import torch

    with torch.inference_mode():
        features = model[0](model.preprocess(texts, task=task))
        mask = features["attention_mask"].float()
        mask[:, 1] = 0  # The token [VAR] belongs to MRL alone.
        total = (features["token_embeddings"] * mask[:, :, None]).sum(dim=1)
        plain = torch.nn.functional.normalize(total, dim=-1)
        mrl = model.head(features, task=task)["sentence_embedding"]
        return {
            "plain": plain.numpy(),
            "mrl": mrl.numpy(),
        }


def build_index(
    name: str,
    documents: Vectors,
    queries: Vectors,
    folder: Path,
) -> tuple[Any, float]:
    """Return an index and the seconds that it took, from the folder if it has the index."""
    from beir_cocodr.retrieval.faiss.index import FaissIndex
    from beir_cocodr.retrieval.faiss.transform import FaissOptions

    path = index_folder(name, folder)
    if path.is_dir():
        index = FaissIndex.load(path)
        return index, float(index.record["key"]["seconds"])
    kind = INDEXES[name]
    options = FaissOptions(
        kind=kind.kind,
        transform=kind.transform,
        ef_search=TIMED_BREADTH,
        reduction=kind.by_distance,
        recall_queries=0,
    )
    # The folding takes its mean from other queries than those that are judged.
    sample = queries[kind.vectors][::2]
    started = time.perf_counter()
    index = FaissIndex.build(documents[kind.vectors], options, sample)
    taken = time.perf_counter() - started
    index.record["key"]["seconds"] = taken
    index.save(path)
    print(f"{name}: built in {taken:.0f} s", file=sys.stderr)
    return index, taken


def index_folder(name: str, folder: Path) -> Path:
    """Return the folder of an index."""
    return folder / name.lower().replace(", ", "-").replace(" ", "-")


def measure_recalls(
    indexes: dict[str, Any],
    documents: Vectors,
    queries: Vectors,
) -> dict[str, Any]:
    """Measure the recall of every graph at every breadth, over queries that no folding saw."""
    from beir_cocodr.retrieval.faiss.index import recall_against_exact

    recalls: dict[str, Any] = {}
    for name, index in indexes.items():
        kind = INDEXES[name]
        if kind.kind == "hnsw":
            tuned = {f"ef {breadth}": index.tuned(ef_search=breadth) for breadth in BREADTHS}
        else:
            tuned = {"exact": index}
        measure_recall = partial(
            recall_against_exact,
            queries=queries[kind.vectors][1::2],
            vectors=documents[kind.vectors],
            sample=500,
        )
        recalls[name] = {setting: measure_recall(one) for setting, one in tuned.items()}
    return recalls


def measure_latencies(
    indexes: dict[str, Any],
    queries: Vectors,
    options: argparse.Namespace,
) -> dict[str, list[float]]:
    """Return the milliseconds of one query, the median over queries, for each round.

    Query vectors are given. The indexes take turns, so that whatever else the machine does affects
    all of them.
    """
    latencies: dict[str, list[float]] = {name: [] for name in indexes}
    for repeat in range(options.repeats + 1):
        for name, index in indexes.items():
            search: Callable[[np.ndarray], Any] = partial(index.search, top_k=options.top_k)
            judged = queries[INDEXES[name].vectors][1::2]
            time.sleep(0.3)
            taken = []
            for query in judged[: options.timed_queries]:
                taken.append(seconds(partial(search, query[None])))
            if repeat > 0:  # The first round is a warm-up.
                latencies[name].append(1000 * statistics.median(taken))
        print(f"latency: round {repeat} of {options.repeats}", file=sys.stderr)
    return latencies


def measure_encoding(
    texts: list[str],
    model: Any,
    plain: Any,
) -> dict[str, float]:
    """Return the milliseconds to encode one query with both encoders, in turns."""
    encoders = {
        "plain": plain,
        "MRL": model,
    }
    taken: dict[str, list[float]] = {name: [] for name in encoders}
    for text in texts:
        for name, encoder in encoders.items():
            taken[name].append(1000 * seconds(partial(encoder.encode_query, [text])))
    return {name: statistics.median(times[5:]) for name, times in taken.items()}


def measure_late_interaction(
    texts: list[str],
    queries: list[str],
    count: int,
    repeats: int,
) -> dict[str, Any]:
    """Measure storage and exact MaxSim of late interaction over some windows, and scale both.

    Documents are padded once, beforehand; the host's ``similarity`` would pad them for every query.

    Args:
        texts: The windows.
        queries: The queries.
        count: The number of windows to which the figures are scaled.
        repeats: The rounds.
    """
    import torch
    from sentence_transformers import MultiVectorEncoder

    from beir_cocodr.models.checkpoints.loading import model_source

    # The host warns of a projection without training, which is intended here.
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    model = MultiVectorEncoder(model_source("minilm"), device="cpu")
    documents = model.encode_document(
        texts,
        batch_size=BATCH,
        show_progress_bar=False,
    )
    lengths = [len(document) for document in documents]
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    ones = [torch.ones(length, dtype=torch.bool) for length in lengths]
    mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
    encoded = model.encode_query(queries, show_progress_bar=False)

    def search(query: Any) -> Any:
        return model.similarity([query], padded, b_mask=mask).topk(10)

    rounds = []
    with torch.inference_mode():
        for _ in range(repeats):
            taken = [seconds(partial(search, query)) for query in encoded]
            rounds.append(1000 * statistics.median(taken))
    scale = count / len(texts)
    dimensions = padded.shape[2]
    size = sum(lengths) * dimensions * 4
    return {
        "windows": len(texts),
        "vectors_a_window": sum(lengths) / len(texts),
        "dimensions": dimensions,
        "bytes": size,
        "milliseconds": rounds,
        "scaled_to": count,
        "scaled_bytes": size * scale,
        "scaled_milliseconds": statistics.median(rounds) * scale,
    }


def measure_storage_types(documents: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Measure what fp16 and int8 do to the ranking of MRL vectors, folded and not.

    All numbers except the prior, γ or γ', are stored in the small type; int8 has one scale for the
    whole corpus. The folding's mean query is of other queries than those that are judged.

    Returns:
        Storage type to "folded" or not to the share of the exact top 10 that stays, and the error
        of scores.
    """
    from beir_cocodr.models.folding import Folding

    judged = queries[1::2][:500].astype(np.float64)
    wide = documents.astype(np.float64)
    exact = best_ten(judged @ wide.T)
    folding = Folding.fit(queries[::2], documents)
    folded_queries = folding.transform_queries(judged, np.float64)
    forms = {
        "not folded": (judged, wide),
        "folded": (folded_queries, folding.transform_documents(documents)),
    }
    overlaps: dict[str, Any] = {
        "fp16": {},
        "int8": {},
    }
    for form, (query_vectors, document_vectors) in forms.items():
        reference = query_vectors @ document_vectors.astype(np.float64).T
        prior = document_vectors[:, 0].astype(np.float32)
        for kind, stored in store_small(document_vectors[:, 1:]).items():
            scores = prior + query_vectors[:, 1:] @ stored.T
            overlaps[kind][form] = {
                "overlap_top_10": overlap(best_ten(scores), exact),
                "root_mean_square_error": float(np.sqrt(np.mean((scores - reference) ** 2))),
            }
    return overlaps


def store_small(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Return vectors as they are read back from fp16 and from int8."""
    scale = float(np.abs(vectors).max()) / 127
    integers = np.round(vectors / scale).astype(np.int8)
    return {
        "fp16": vectors.astype(np.float16).astype(np.float64),
        "int8": integers.astype(np.float64) * scale,
    }


def best_ten(scores: np.ndarray) -> np.ndarray:
    """Return the rows of the ten best documents of each query."""
    return np.argsort(
        -scores,
        axis=1,
        kind="stable",
    )[:, :10]


def overlap(rows: np.ndarray, exact: np.ndarray) -> float:
    """Return the mean share of rows that two top tens have in common."""
    shares = []
    for row, exact_row in zip(rows, exact, strict=True):
        shares.append(len(np.intersect1d(row, exact_row)) / 10)
    return float(np.mean(shares))


def ratio(above: float, below: float) -> dict[str, Any]:
    """Divide, and check the aim."""
    value = above / below
    return {
        "ratio": value,
        **check_bound(value, at_most=MOST),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    import torch

    from beir_cocodr.models.checkpoints.loading import load_encoder, model_source
    from beir_cocodr.models.mrl import MRL

    torch.set_num_threads(options.threads)
    model = MRL.load(options.model) if options.model else MRL(model_source("minilm"))
    corpus = windows(
        options.windows,
        options.window_tokens,
        model.tokenizer,
        options.work,
    )
    asked = corpus.queries[: options.queries]
    identity = f"{options.model or 'untrained'} {'|'.join(corpus.texts + asked)}"
    folder = options.work / hashlib.sha256(identity.encode()).hexdigest()[:12]
    documents = encode(
        corpus.texts,
        "document",
        model,
        folder / "vectors",
    )
    queries = encode(
        asked,
        "query",
        model,
        folder / "vectors",
    )
    late = measure_late_interaction(
        corpus.texts[: options.late],
        asked[1::2][: options.timed_queries],
        options.windows,
        options.repeats,
    )
    figures = measure_indexes(
        documents,
        queries,
        folder,
        options,
    )
    plain_bytes = documents["plain"].nbytes
    figures["storage"]["late_interaction_times_plain"] = late["scaled_bytes"] / plain_bytes
    return {
        "what": describe_setup(
            options,
            corpus,
            documents,
            len(asked),
        ),
        **figures,
        "encoding_milliseconds_a_query": measure_encoding(
            asked[:105], model, load_encoder("minilm")
        ),
        "late_interaction": late,
        "storage_types": measure_storage_types(documents["mrl"], queries["mrl"]),
    }


def describe_setup(
    options: argparse.Namespace,
    corpus: Windows,
    documents: Vectors,
    queries: int,
) -> dict[str, Any]:
    """Say what was searched."""
    return {
        "windows": options.windows,
        "tokens_a_window": options.window_tokens,
        "windows_by_source": corpus.sources,
        "queries": queries,
        "model": options.model or "MiniLM with an untrained head",
        "dimensions": {name: vectors.shape[1] for name, vectors in documents.items()},
        "threads": options.threads,
        "top_k": options.top_k,
        "ef_search_timed": TIMED_BREADTH,
    }


def measure_indexes(
    documents: Vectors,
    queries: Vectors,
    folder: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure storage, latency and recall of all indexes."""
    indexes = {}
    build_seconds = {}
    sizes: dict[str, Any] = {}
    for name in INDEXES:
        indexes[name], build_seconds[name] = build_index(
            name,
            documents,
            queries,
            folder,
        )
        sizes[name] = folder_size(index_folder(name, folder))
    paired = {name: indexes[name] for pair in PAIRS for name in pair}
    latencies = measure_latencies(paired, queries, options)
    size_ratios = {}
    latency_ratios = {}
    for above, below in PAIRS:
        size_ratios[f"{above} / {below}"] = ratio(sizes[above], sizes[below])
        median_above = statistics.median(latencies[above])
        median_below = statistics.median(latencies[below])
        latency_ratios[f"{above} / {below}"] = ratio(median_above, median_below)
    mrl_bytes = documents["mrl"].nbytes
    plain_bytes = documents["plain"].nbytes
    vectors_ratio = ratio(mrl_bytes, plain_bytes)
    return {
        "storage": {
            "vectors_bytes": {
                "MRL": mrl_bytes,
                "plain": plain_bytes,
                **vectors_ratio,
            },
            "index_bytes": sizes | size_ratios,
        },
        "milliseconds_a_query": latencies,
        "latency": latency_ratios,
        "build_seconds": build_seconds,
        "recall": measure_recalls(indexes, documents, queries),
    }


def folder_size(folder: Path) -> int:
    """Return the bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    targets = {
        "storage": results["storage"]["index_bytes"],
        "latency": results["latency"],
    }
    for aim, ratios in targets.items():
        for name, values in ratios.items():
            if isinstance(values, dict):
                lines.append(describe_target(f"{aim}: {name}", values["ratio"], values))
    for name, rounds in results["milliseconds_a_query"].items():
        lines.append(f"{name}: {statistics.median(rounds):.2f} ms a query")
    late = results["late_interaction"]
    times = results["storage"]["late_interaction_times_plain"]
    lines.append(
        f"late interaction: {late['scaled_milliseconds']:.0f} ms a query (scaled), "
        f"{times:.1f} times the plain vector's bytes"
    )
    for name, settings in results["recall"].items():
        shares = [f"{setting} {one['recall@10']:.3f}" for setting, one in settings.items()]
        lines.append(f"recall@10 of {name}: {', '.join(shares)}")
    for kind, forms in results["storage_types"].items():
        overlaps = [f"{form} {values['overlap_top_10']:.3f}" for form, values in forms.items()]
        lines.append(f"{kind}: {', '.join(overlaps)}")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "mrl_search")
    add_work(parser, "runs/benchmark-mrl-search")
    integers = {
        "--windows": (100_000, "Windows of the corpus."),
        "--window-tokens": (29, "Tokens of a window beside [CLS], [VAR] and [SEP]."),
        "--queries": (1_000, "Queries: half for the folding, half judged."),
        "--timed-queries": (100, "Queries that are timed."),
        "--late": (5_000, "Windows for late interaction."),
        "--top-k": (10, "Documents of a ranking."),
        "--repeats": (7, "Timed rounds after a warm-up."),
        "--threads": (2, "Threads of every rival."),
    }
    add_integers(parser, integers)
    parser.add_argument("--model", help="A trained MRL. Default: MiniLM with an untrained head.")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    import faiss

    faiss.omp_set_num_threads(options.threads)
    results = origin("faiss-cpu") | measure(options)
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
