"""Claim: questions without labels tell which size of passages is better, within a known error.

Documents of labelled collections are cut to several sizes, and searched by BM25, by static word
vectors (``gate_changes.py``), by MiniLM, and by its fusion with BM25. The difference between two
sizes by held-out spans and generated queries is compared with that by the labels, which judge
documents. The error that the package counts is the deviation between both beyond the sampling of
the labelled queries; intervals are checked with the error of the other collections.

The script prints the differences, and writes ``benchmarks/results/passages.json``:

    python benchmarks/passages.py --folder DIR [--bf16]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from gate_changes import Encoder
from harness.script import option_parser, origin, settings_of, write_results

from beir_cocodr import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.passage_sizes import LABELLED, PassageOptions, compare_passages
from beir_cocodr.models.spec import SearchOptions

COLLECTIONS = ("time", "financebench-pages", "anthropic-docs", "aila-statutes")
SIZES = (60, 120, 240, 480)
#: Uses of an encoder that cuts a text after 256 tokens.
TRANSFORMERS = ("minilm", "hybrid:minilm")

# Deviation of a labelled query's difference in nDCG@10 between two sizes.
_DEVIATION = 0.125
_QUANTILE = 1.645


class StaticVectors:
    """Static word vectors as an object that encodes."""

    similarity_fn_name = "cosine"

    def __init__(self, texts: Sequence[str]) -> None:
        self.encoder = Encoder("static")
        self.encoder.encode(texts, 10**6)

    def encode(self, sentences: Sequence[str], **settings: object) -> np.ndarray:
        """Return (N, d) unit vectors."""
        return self.encoder.encode(list(sentences), 10**6)["mean6"]


def measure(
    folder: Path,
    samples: int,
    *,
    bf16: bool,
) -> list[dict[str, Any]]:
    """Compare the sizes on one collection; return each pair with its difference by labels."""
    documents = load_collection(str(folder)).documents
    texts = [TextFormat().document(document) for document in documents.values()]
    models: dict[str, Any] = {"bm25": "bm25", "static vectors": StaticVectors(texts)}
    models |= {name: name for name in TRANSFORMERS}
    record = compare_passages(
        models,
        str(folder),
        SIZES,
        options=PassageOptions(samples=samples),
        search=SearchOptions(bf16=bf16),
    )
    by_labels = {
        (figures.model, figures.words): figures.by_file[LABELLED] for figures in record.figures
    }
    rows = []
    for pair in record.pairs:
        true = by_labels[pair.model, pair.b] - by_labels[pair.model, pair.a]
        rows.append(
            {
                "collection": folder.name,
                **asdict(pair),
                "by_labels": round(true, 4),
                "labelled_queries": record.questions[LABELLED],
            }
        )
        print(folder.name, pair.model, pair.a, pair.b, round(pair.difference, 3), round(true, 3))
    return rows


def error_of(rows: Sequence[dict[str, Any]]) -> float:
    """Return the deviation of differences by questions beyond the sampling of labelled queries."""
    excess = []
    for row in rows:
        sampling = _DEVIATION**2 / row["labelled_queries"]
        excess.append((row["difference"] - row["by_labels"]) ** 2 - sampling)
    return math.sqrt(max(float(np.mean(excess)), 0.0001))


def main() -> None:
    """Measure all collections, and the error with each left out."""
    parser = option_parser(__doc__, "passages")
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        metavar="DIR",
        help="Read the labelled collections, BEIR folders, from this folder.",
    )
    parser.add_argument("--samples", type=int, default=200, help="Questions of each kind.")
    parser.add_argument("--bf16", action="store_true", help="Encode in bfloat16.")
    options = parser.parse_args()
    rows = []
    for name in COLLECTIONS:
        rows += measure(options.folder / name, options.samples, bf16=options.bf16)
    results = {**origin(threads=1), "settings": settings_of(options), **summary(rows)}
    print({name: results[name] for name in ("error", "held", "pairs", "apart", "sign_right")})
    print(results["best"])
    write_results(options.results, results)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the error, and how often intervals held and signs were right."""
    held = []
    for row in rows:
        error = error_of([other for other in rows if other["collection"] != row["collection"]])
        noise = _DEVIATION**2 / row["labelled_queries"]
        distance = abs(row["difference"] - row["by_labels"])
        held.append(distance <= _QUANTILE * math.sqrt(error**2 + noise))
    apart = [row for row in rows if abs(row["by_labels"]) > 0.02]
    signs = [row["difference"] * row["by_labels"] > 0 for row in apart]
    return {
        "sizes": list(SIZES),
        "error": round(error_of(rows), 4),
        "held": round(float(np.mean(held)), 3),
        "pairs": len(rows),
        "apart": len(apart),
        "sign_right": round(float(np.mean(signs)), 3),
        "best": _best(rows),
        "rows": list(rows),
    }


def _best(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the size by questions and by labels, and what the choice loses by the labels."""
    choices = []
    keys = dict.fromkeys((row["collection"], row["model"]) for row in rows)
    for collection, model in keys:
        first = SIZES[0]
        of_model = {
            row["b"]: row
            for row in rows
            if (row["collection"], row["model"], row["a"]) == (collection, model, first)
        }
        by_questions = {first: 0.0} | {b: row["difference"] for b, row in of_model.items()}
        by_labels = {first: 0.0} | {b: row["by_labels"] for b, row in of_model.items()}
        chosen = max(by_questions, key=by_questions.__getitem__)
        best = max(by_labels, key=by_labels.__getitem__)
        lost = by_labels[best] - by_labels[chosen]
        mean = float(np.mean(list(by_labels.values())))
        choices.append(
            {
                "collection": collection,
                "model": model,
                "chosen": chosen,
                "best": best,
                "lost": round(lost, 4),
                "lost_by_chance": round(by_labels[best] - mean, 4),
            }
        )
    return choices


if __name__ == "__main__":
    main()
