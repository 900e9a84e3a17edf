"""What MRL costs when it is searched: storage and query latency against a plain vector of the same
width and against late interaction, exact and by HNSW; and what folding does for recall and for
small storage types.

The corpus is real text, windows of equal length from the documentation of installed packages. One
pass of the backbone (MiniLM) gives both vectors of a window: the plain one is the normalised mean
of its hidden states, MRL's comes from the head, which is untrained (semi-orthogonal start) unless
--model names a trained MRL. Storage and latency do not depend on training; recall and overlaps may.
Late interaction is measured on --late windows and scaled. Vectors and indexes are kept in --output,
and not made again.

    python benchmarks/mrl_search.py [--windows 100000] [--window-tokens 29] [--late 5000] [--model
    FOLDER]

Writes benchmarks/results/mrl_search.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from late_interaction import late_interaction
from machine import machine
from stopwatch import seconds
from storage_types import storage_types
from windows import windows

RESULTS = Path(__file__).parent / "results" / "mrl_search.json"
SHARD, BATCH = 5_000, 64
EF = (16, 32, 64, 128)
TIMED_EF = 64
#: Index to (vectors, kind, transform). The links of a graph are by distance, after the reduction,
#: or by inner product.
INDEXES = {
    "plain, flat": ("plain", "flat", "none"),
    "MRL, flat": ("mrl", "flat", "folding"),
    "plain, HNSW": ("plain", "hnsw", "none"),
    "plain, HNSW, centred": ("plain", "hnsw", "centring"),
    "plain, HNSW, inner product": ("plain", "hnsw", "none"),
    "MRL, HNSW": ("mrl", "hnsw", "folding"),
    "MRL, HNSW, not folded": ("mrl", "hnsw", "none"),
    "MRL, HNSW, inner product": ("mrl", "hnsw", "folding"),
    "MRL, HNSW, inner product, not folded": ("mrl", "hnsw", "none"),
}
BY_INNER_PRODUCT = "inner product"
#: What is timed against what; the first may take at most this many times the second.
PAIRS = (("MRL, flat", "plain, flat"), ("MRL, HNSW", "plain, HNSW"))
MOST = 1.05

Vectors = dict[str, np.ndarray]


def encode(texts: list[str], task: str, model: Any, folder: Path) -> Vectors:
    """(N, 384) plain and (N, 383) MRL vectors of texts, from one pass; in shards that are kept when
    done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[Vectors] = []
    for start in range(0, len(texts), SHARD):
        path = folder / f"{task}-{start:07}.npz"
        if not path.is_file():
            part = texts[start : start + SHARD]
            batches = [
                both_vectors(part[at : at + BATCH], task, model)
                for at in range(0, len(part), BATCH)
            ]
            draft = path.with_suffix(".draft.npz")
            np.savez(
                draft,
                **{name: np.concatenate([b[name] for b in batches]) for name in ("plain", "mrl")},
            )
            draft.replace(path)
            print(f"{task}: {start + len(part)} of {len(texts)} encoded", file=sys.stderr)
        with np.load(path) as arrays:
            shards.append(dict(arrays))
    return {name: np.concatenate([shard[name] for shard in shards]) for name in ("plain", "mrl")}


def both_vectors(texts: list[str], task: str, model: Any) -> Vectors:
    import torch

    with torch.inference_mode():
        features = model[0](model.preprocess(texts, task=task))
        mask = features["attention_mask"].float()
        mask[:, 1] = 0  # [VAR] is MRL's alone
        total = (features["token_embeddings"] * mask[:, :, None]).sum(dim=1)
        plain = torch.nn.functional.normalize(total, dim=-1)
        return {
            "plain": plain.numpy(),
            "mrl": model.head(features, task=task)["sentence_embedding"].numpy(),
        }


def build(name: str, documents: Vectors, queries: Vectors, folder: Path) -> tuple[Any, float]:
    """An index and the seconds it took, kept in ``folder``."""
    from beir_cocodr.retrieval.faiss.index import FaissIndex
    from beir_cocodr.retrieval.faiss.transform import FaissOptions

    vectors, kind, transform = INDEXES[name]
    path = place(name, folder)
    if path.is_dir():
        index = FaissIndex.load(path)
        return index, float(index.record["key"]["seconds"])
    # The folding takes its mean from other queries than those that are judged.
    options = FaissOptions(
        kind=kind,
        transform=transform,
        ef_search=TIMED_EF,
        reduction=BY_INNER_PRODUCT not in name,
        recall_queries=0,
    )
    started = time.perf_counter()
    index = FaissIndex.build(documents[vectors], options, queries[vectors][::2])
    seconds = time.perf_counter() - started
    index.record["key"]["seconds"] = seconds
    index.save(path)
    print(f"{name}: built in {seconds:.0f} s", file=sys.stderr)
    return index, seconds


def recalls(indexes: dict[str, Any], documents: Vectors, queries: Vectors) -> dict[str, Any]:
    """Recall of every graph at every breadth of search, over the queries that no folding has
    seen.
    """
    from beir_cocodr.retrieval.faiss.index import recall_against_exact

    found: dict[str, Any] = {}
    for name, index in indexes.items():
        vectors, kind, _ = INDEXES[name]
        judged = queries[vectors][1::2]
        measure = partial(
            recall_against_exact, queries=judged, vectors=documents[vectors], sample=500
        )
        tuned = (
            {f"ef {ef}": index.tuned(ef_search=ef) for ef in EF}
            if kind == "hnsw"
            else {"exact": index}
        )
        found[name] = {setting: measure(changed) for setting, changed in tuned.items()}
    return found


def latencies(
    indexes: dict[str, Any], queries: Vectors, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Milliseconds of one query, its vector given, as the median over queries; one number for each
    round.

    The indexes take turns, so that whatever else the machine does falls on all of them.
    """
    searches: dict[str, Callable[[np.ndarray], Any]] = {
        name: partial(index.search, top_k=options.top_k) for name, index in indexes.items()
    }
    found: dict[str, list[float]] = {name: [] for name in searches}
    for repeat in range(options.repeats + 1):
        for name, search in searches.items():
            vectors = queries[INDEXES[name][0]][1::2][: options.timed_queries]
            time.sleep(0.3)
            taken = [seconds(partial(search, query[None])) for query in vectors]
            if repeat:  # the first round warms up
                found[name].append(1000 * statistics.median(taken))
        print(f"latency: round {repeat} of {options.repeats}", file=sys.stderr)
    return found


def encoding(texts: list[str], model: Any, plain: Any) -> dict[str, float]:
    """Milliseconds to encode one query, by turns."""
    found: dict[str, list[float]] = {"plain": [], "MRL": []}
    for text in texts:
        for name, encoder in (("plain", plain), ("MRL", model)):
            found[name].append(1000 * seconds(partial(encoder.encode_query, [text])))
    return {name: statistics.median(taken[5:]) for name, taken in found.items()}


def place(name: str, folder: Path) -> Path:
    return folder / name.lower().replace(", ", "-").replace(" ", "-")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def ratio(above: float, below: float) -> dict[str, Any]:
    return {"ratio": above / below, "at_most": MOST, "met": above <= MOST * below}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from beir_cocodr.models.loading import load_encoder, model_source
    from beir_cocodr.models.mrl import MRL

    torch.set_num_threads(options.threads)
    model = MRL.load(options.model) if options.model else MRL(model_source("minilm"))
    made = windows(options.windows, options.window_tokens, model.tokenizer, options.output)
    asked = made.queries[: options.queries]
    name = f"{options.model or 'untrained'} {'|'.join(made.texts + asked)}"
    folder = options.output / hashlib.sha256(name.encode()).hexdigest()[:12]
    documents = encode(made.texts, "document", model, folder / "vectors")
    queries = encode(asked, "query", model, folder / "vectors")
    built = {name: build(name, documents, queries, folder) for name in INDEXES}
    indexes = {name: index for name, (index, _) in built.items()}
    taken = latencies({name: indexes[name] for pair in PAIRS for name in pair}, queries, options)
    bytes_ = {name: size(place(name, folder)) for name in INDEXES}
    one, other = (documents[name].nbytes for name in ("mrl", "plain"))
    late = late_interaction(
        made.texts[: options.late],
        asked[1::2][: options.timed_queries],
        options.windows,
        options.repeats,
    )
    return {
        "what": {
            "windows": options.windows,
            "tokens_a_window": options.window_tokens,
            "windows_by_source": made.sources,
            "queries": len(asked),
            "model": options.model or "MiniLM with an untrained head",
            "dimensions": {name: vectors.shape[1] for name, vectors in documents.items()},
            "threads": options.threads,
            "top_k": options.top_k,
            "ef_search_timed": TIMED_EF,
        },
        "storage": {
            "vectors_bytes": {"MRL": one, "plain": other, **ratio(one, other)},
            "index_bytes": bytes_ | {f"{a} / {b}": ratio(bytes_[a], bytes_[b]) for a, b in PAIRS},
            "late_interaction_times_plain": late["scaled_bytes"] / other,
        },
        "milliseconds_a_query": taken,
        "latency": {
            f"{a} / {b}": ratio(statistics.median(taken[a]), statistics.median(taken[b]))
            for a, b in PAIRS
        },
        "encoding_milliseconds_a_query": encoding(asked[:105], model, load_encoder("minilm")),
        "late_interaction": late,
        "build_seconds": {name: seconds for name, (_, seconds) in built.items()},
        "recall": recalls(indexes, documents, queries),
        "storage_types": storage_types(documents["mrl"], queries["mrl"]),
    }


def show(report: dict[str, Any]) -> None:
    for what, ratios in (
        ("storage", report["storage"]["index_bytes"]),
        ("latency", report["latency"]),
    ):
        for name, values in ratios.items():
            if isinstance(values, dict):
                verdict = "met" if values["met"] else "MISSED"
                print(
                    f"{what}: {name} {values['ratio']:.3f}, at most {values['at_most']}: {verdict}"
                )
    for name, rounds in report["milliseconds_a_query"].items():
        print(f"{name}: {statistics.median(rounds):.2f} ms a query")
    late = report["late_interaction"]
    print(
        f"late interaction: {late['scaled_milliseconds']:.0f} ms a query (scaled), "
        f"{report['storage']['late_interaction_times_plain']:.1f} times the plain vector's bytes"
    )
    for name, settings in report["recall"].items():
        shares = ", ".join(
            f"{setting} {found['recall@10']:.3f}" for setting, found in settings.items()
        )
        print(f"recall@10 of {name}: {shares}")
    for kind, found in report["storage_types"].items():
        print(
            f"{kind}:",
            *(f"{name} {values['overlap_top_10']:.3f}" for name, values in found.items()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--windows", type=int, default=100_000)
    parser.add_argument(
        "--window-tokens", type=int, default=29, help="beside [CLS], [VAR] and [SEP]"
    )
    parser.add_argument(
        "--queries", type=int, default=1_000, help="half for the folding, half judged"
    )
    parser.add_argument("--timed-queries", type=int, default=100)
    parser.add_argument("--late", type=int, default=5_000, help="windows for late interaction")
    parser.add_argument("--model", help="a trained MRL; default MiniLM with an untrained head")
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument(
        "--repeats", type=int, default=7, help="timed rounds, after one that warms up"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-mrl-search"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    import faiss

    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    faiss.omp_set_num_threads(options.threads)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "faiss": version("faiss-cpu")}
        | versions(),
        **measure(options),
    }
    show(report)
    write_text(options.results, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
