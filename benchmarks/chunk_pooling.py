"""Claim: one vector of a whole document is better than that of its beginning, where many are cut.

Documents of labelled collections are encoded by MiniLM, which reads their first 256 tokens, and in
pieces whose vectors are averaged (``mean``), or whose average is averaged with the vector of the
first piece (``first+mean``). Queries search the vectors alone and fused with BM25. A collection
takes part if enough of its documents are longer than 256 tokens. Differences from the first piece
are tested by a paired t-test over queries with Holm's correction.

The script prints what was measured, and writes ``benchmarks/results/chunk_pooling.json`` and the
table of ``docs/adaptation.md``:

    python benchmarks/chunk_pooling.py --collections DIR

With ``--devised`` it measures the collections on which chunk pooling was devised, and writes
``benchmarks/results/chunk_pooling_devised.json`` and another table. With ``--mpnet`` it measures
all-mpnet-base-v2, which reads 384 tokens, and writes
``benchmarks/results/chunk_pooling_mpnet.json`` and a third one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from collecting.parents import KNOWN
from harness.page import Marks, markdown_table
from harness.script import (
    add_beir_folders,
    option_parser,
    origin,
    results_file,
    settings_of,
    write_results,
)
from scipy import stats

from beir_cocodr import evaluate, load_collection
from beir_cocodr.data.analyzers import Language
from beir_cocodr.evaluation.measures import holm
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.chunk_pooling import CHUNK_POOLINGS, FIRST, DocumentPieces
from beir_cocodr.models.spec import EncoderOptions, SearchOptions

MODEL = "minilm"
MEASURE = "nDCG@10"
ALONE = "alone"
FUSED = "fused"
USES = (ALONE, FUSED)

#: Collections with long documents, which had no part in any choice.
COLLECTIONS = (
    "aila-statutes",
    "anthropic-docs",
    "financebench-pages",
    "legalquad-de",
    "liveqa-medquad",
    "nfcorpus",
    "scifact",
)

#: Collections on which chunk pooling was devised.
DEVISED = ("time", "cranfield", "cisi", "med")

MARKS = Marks("<!-- chunk pooling -->", "<!-- end of chunk pooling -->")
DEVISED_MARKS = Marks("<!-- devised -->", "<!-- end of devised -->")
MPNET_MARKS = Marks("<!-- chunk pooling with mpnet -->", "<!-- end of chunk pooling with mpnet -->")
PAGE = Path(__file__).parents[1] / "docs" / "adaptation.md"

Scores = Mapping[str, Mapping[str, npt.NDArray[np.float64]]]


def pieces_of(folder: Path, name: str) -> list[int]:
    """Return in how many pieces an encoder reads each document of a collection."""
    model = load_encoder(name)
    documents = load_collection(str(folder)).documents
    texts = list(map(model.text_format.document, documents.values()))
    return DocumentPieces.of(texts, model.tokenizer, model.max_seq_length).counts


def measure(folder: Path, model: str, bf16: bool) -> tuple[dict[str, Any], Scores]:
    """Judge all ways of chunk pooling on one collection.

    Args:
        folder: The collection.
        model: The encoder.
        bf16: Encode documents in bfloat16.

    Returns:
        Its figures, and way to use to the (Q,) nDCG@10 of its queries.
    """
    pieces = pieces_of(folder, model)
    models = {ALONE: model, FUSED: f"hybrid:{model}"}
    analyzer = Language.parse(KNOWN[folder.name].language).analyzer
    scores: dict[str, dict[str, npt.NDArray[np.float64]]] = {}
    seconds = {}
    for way in CHUNK_POOLINGS:
        started = time.perf_counter()
        encoder = EncoderOptions(chunk_pooling=way)
        search = SearchOptions(encoder, analyzer, bf16=bf16)
        record = evaluate(models, str(folder), measures=MEASURE, search=search)
        seconds[way] = round(time.perf_counter() - started, 1)
        scores[way] = {}
        for use, result in record.models.items():
            scores[way][use] = np.array(result.scores[MEASURE])
    figures = {
        "documents": len(pieces),
        "cut": round(float(np.mean([count > 1 for count in pieces])), 3),
        "pieces": sum(pieces),
        "queries": len(scores[FIRST][ALONE]),
        "seconds": seconds,
        "means": {way: _means(of_way) for way, of_way in scores.items()},
    }
    return figures, scores


def _means(of_way: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    return {use: round(float(values.mean()), 4) for use, values in of_way.items()}


def tests_of(scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Return the differences from the first piece, with p after Holm's correction over all.

    Args:
        scores: Collection to way to use to the (Q,) nDCG@10 of its queries.
    """
    rows: list[dict[str, Any]] = []
    for name, of_collection in scores.items():
        for way in CHUNK_POOLINGS[1:]:
            for use in USES:
                first = of_collection[FIRST][use]
                pooled = of_collection[way][use]
                rows.append(
                    {
                        "collection": name,
                        "way": way,
                        "use": use,
                        "difference": round(float((pooled - first).mean()), 4),
                        "p": _p_value(first, pooled),
                    }
                )
    corrected = holm([row["p"] for row in rows])
    return [row | {"p": value} for row, value in zip(rows, corrected, strict=True)]


def _p_value(first: npt.NDArray[np.float64], pooled: npt.NDArray[np.float64]) -> float:
    """Return p of a paired t-test; 1 where nothing differs."""
    if np.array_equal(first, pooled):
        return 1.0
    return float(stats.ttest_rel(first, pooled).pvalue)


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table of ways of chunk pooling; a star marks a significant difference."""
    stars = {
        (test["collection"], test["way"], test["use"])
        for test in results["tests"]
        if test["p"] < 0.05
    }
    header = ["collection", "documents cut"]
    for use in USES:
        header += [f"{way}, {use}" for way in CHUNK_POOLINGS]
    rows = []
    for name, figures in results["collections"].items():
        row = [name, f"{figures['cut']:.0%}"]
        for use in USES:
            for way in CHUNK_POOLINGS:
                star = " *" if (name, way, use) in stars else ""
                row.append(f"{figures['means'][way][use]:.3f}{star}")
        rows.append(row)
    return markdown_table(header, rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "chunk_pooling")
    add_beir_folders(parser)
    parser.add_argument(
        "--only",
        nargs="+",
        help="Measure these collections. Default: those with long documents.",
    )
    parser.add_argument(
        "--devised",
        action="store_true",
        help="Measure the collections on which chunk pooling was devised.",
    )
    parser.add_argument(
        "--mpnet",
        type=Path,
        metavar="DIR",
        help="Measure all-mpnet-base-v2 in this folder instead of MiniLM.",
    )
    parser.add_argument(
        "--least-cut",
        type=float,
        default=0.1,
        help="Leave out collections of which a smaller share of documents is cut. Default: 0.1.",
    )
    parser.add_argument(
        "--bf16",
        action="store_true",
        help="Encode documents in bfloat16, which is faster on a processor with units for it.",
    )
    options = parser.parse_args()
    if options.devised and options.results == results_file("chunk_pooling"):
        options.results = results_file("chunk_pooling_devised")
    if options.mpnet and options.results == results_file("chunk_pooling"):
        options.results = results_file("chunk_pooling_mpnet")
    if options.only is None:
        options.only = list(DEVISED if options.devised else COLLECTIONS)
    return options


def measure_all(folders: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all collections, and the tests."""
    collections = {}
    scores = {}
    model = str(options.mpnet or MODEL)
    for folder in folders:
        cut = float(np.mean([count > 1 for count in pieces_of(folder, model)]))
        if cut < options.least_cut:
            print(f"{folder.name}: left out, as {cut:.0%} of its documents are cut", flush=True)
            continue
        collections[folder.name], scores[folder.name] = measure(folder, model, options.bf16)
        print(folder.name, collections[folder.name], flush=True)
    return {"collections": collections, "tests": tests_of(scores)}


def main() -> None:
    """Measure all collections."""
    options = parse_options()
    folders = [options.collections / name for name in options.only]
    results = origin() | {"settings": settings_of(options)} | measure_all(folders, options)
    write_results(options.results, results)
    if options.results == results_file("chunk_pooling"):
        MARKS.write(PAGE, markdown(results))
    if options.results == results_file("chunk_pooling_devised"):
        DEVISED_MARKS.write(PAGE, markdown(results))
    if options.results == results_file("chunk_pooling_mpnet"):
        MPNET_MARKS.write(PAGE, markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
