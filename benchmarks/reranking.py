"""Claim: a small reranker gains nothing by reading documents in pieces instead of cutting them.

A small cross-encoder is trained from MiniLM on the training queries of SciFact and NFCorpus against
negatives of BM25. On collections of other corpora with long documents, it reranks the best
documents of the fusion of MiniLM and BM25: by what it reads of a document (``rerank:``), and by the
best one of the document's pieces (MaxP). Differences in nDCG@10 are tested by a paired t-test over
queries with Holm's correction.

The script prints what was measured, and writes ``benchmarks/results/reranking.json`` and the table
of ``docs/adaptation.md``. Training takes an hour of one core, and goes on where a killed run ended:

    python benchmarks/reranking.py --collections DIR --work DIR
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness.page import Marks, markdown_table
from harness.script import (
    add_beir_folders,
    add_work,
    option_parser,
    origin,
    results_file,
    settings_of,
    write_results,
)
from scipy import stats

from beir_cocodr import evaluate, load_collection
from beir_cocodr.arrays import Floats
from beir_cocodr.data.collection import Collection
from beir_cocodr.evaluation.measures import holm
from beir_cocodr.io import write_jsonl, write_qrels
from beir_cocodr.models.chunk_pooling import DocumentPieces
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.host_architectures import CrossEncoderReranker
from beir_cocodr.retrieval.hosted import Reranking
from beir_cocodr.retrieval.resources import Resources

MODEL = "minilm"
MEASURE = "nDCG@10"
SEED = 42

#: Tasks with a training split, on which the cross-encoder is trained.
TRAINED_ON = ("scifact", "nfcorpus")

#: English collections with long documents, on which nothing was trained.
COLLECTIONS = (
    "time",
    "liveqa-medquad",
    "financebench-pages",
    "anthropic-docs",
    "aila-statutes",
)

FIRST_STAGE = f"hybrid:{MODEL}"

# Relevant documents of a training query that are used: NFCorpus has 43 on average.
_RELEVANT = 3


class MaxPassageReranking(Reranking):
    """Reranking by the best piece of each document.

    A document that the cross-encoder would cut is read in pieces that fit beside the query. The
    first piece is what it reads anyway, so a document that is not cut keeps its score.

    Source: MaxP (Dai and Callan, 2019).
    """

    def score_texts(self, query: str, texts: list[str]) -> Floats:
        """Return (n,) float32 scores of texts for a query, each that of its best piece."""
        pieces = DocumentPieces.of(texts, self.model.tokenizer, self._length_beside(query))
        scores = super().score_texts(query, pieces.texts)
        starts = np.cumsum([0, *pieces.counts[:-1]])
        best: Floats = np.maximum.reduceat(scores, starts)
        return best

    def _length_beside(self, query: str) -> int:
        """Return how many tokens of a document are read beside a query, with its special tokens.

        The longer one of the two is cut first, so a document keeps at least a half.
        """
        tokenizer = self.model.tokenizer
        in_query = len(tokenizer(query, add_special_tokens=False, verbose=False)["input_ids"])
        room = self.model.max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
        read = max(room - in_query, room // 2)
        return int(read + tokenizer.num_special_tokens_to_add())


FIRST = "fusion"
CUT = "cut"
PIECES = "pieces"
RERANKERS: Mapping[str, type[Reranking]] = {CUT: Reranking, PIECES: MaxPassageReranking}

MARKS = Marks("<!-- reranking -->", "<!-- end of reranking -->")
PAGE = Path(__file__).parents[1] / "docs" / "adaptation.md"

Scores = Mapping[str, npt.NDArray[np.float64]]


def join_training_sets(folders: Sequence[Path], output: Path) -> Path:
    """Write the training queries of several collections as one BEIR folder, and return it."""
    if (output / "qrels" / "train.tsv").is_file():
        return output
    collections = {folder.name: load_collection(str(folder), "train") for folder in folders}
    (output / "qrels").mkdir(parents=True, exist_ok=True)
    write_jsonl(output / "corpus.jsonl", _documents(collections))
    queries = (
        {"_id": f"{name}-{query}", "text": text}
        for name, collection in collections.items()
        for query, text in collection.queries.items()
    )
    write_jsonl(output / "queries.jsonl", queries)
    write_qrels(output / "qrels" / "train.tsv", _judgements(collections))
    return output


def _documents(collections: Mapping[str, Collection]) -> Iterator[dict[str, str]]:
    for name, collection in collections.items():
        for key, document in collection.documents.items():
            yield {"_id": f"{name}-{key}", **document}


def _judgements(collections: Mapping[str, Collection]) -> Iterator[tuple[str, str, int]]:
    draw = random.Random(SEED)
    for name, collection in collections.items():
        for query, grades in collection.qrels.items():
            relevant = sorted(document for document, grade in grades.items() if grade > 0)
            for document in draw.sample(relevant, min(_RELEVANT, len(relevant))):
                yield f"{name}-{query}", f"{name}-{document}", 1


def train(options: argparse.Namespace) -> Path:
    """Train the cross-encoder, unless it is there, and return its folder."""
    training_set = join_training_sets(
        [options.collections / name for name in TRAINED_ON], options.work / "training-set"
    )
    recipe = Recipe(
        start=MODEL,
        max_steps=options.steps,
        batch_size=16,
        learning_rate=3e-5,
        precision=options.precision,
        negatives=3,
        query_length=64,
        document_length=192,
    )
    architecture = CrossEncoderReranker("cross-encoder")
    # A model of other settings is another one.
    output = options.work / f"cross-encoder-{options.steps}-{options.precision}"
    return architecture.train(str(training_set), output, recipe, SEED, options.work)


def measure(folder: Path, model: Path, depth: int) -> tuple[dict[str, Any], Scores]:
    """Judge all ways of reranking on one collection.

    Args:
        folder: The collection.
        model: The cross-encoder.
        depth: Documents that it reads for each query.

    Returns:
        Its figures, and way to the (Q,) nDCG@10 of its queries.
    """
    collection = load_collection(str(folder))
    search = SearchOptions(bf16=True)
    seconds = {}
    with Resources.temporary(collection.documents, search) as resources:
        first = resources.ranker(FIRST_STAGE)
        runs = {FIRST: _run(first.search(collection.queries, depth), collection)}
        for way, kind in RERANKERS.items():
            started = time.perf_counter()
            ranker = kind(str(model), collection.documents, search, first, depth)
            runs[way] = _run(ranker.search(collection.queries, depth), collection)
            seconds[way] = round(time.perf_counter() - started, 1)
    record = evaluate(runs, str(folder), measures=MEASURE)
    scores = {way: np.array(result.scores[MEASURE]) for way, result in record.models.items()}
    figures = {
        "queries": len(collection.queries),
        "seconds": seconds,
        "means": {way: round(float(values.mean()), 4) for way, values in scores.items()},
    }
    return figures, scores


def _run(ranking: Any, collection: Collection) -> dict[str, dict[str, float]]:
    """Return a ranking as a run, which may hold fewer documents than are ranked by default."""
    results = ranking.results(collection.documents)
    return {query: dict(hits) for query, hits in results.items()}


def tests_of(scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Return the differences between both rerankers, with p after Holm's correction over all.

    Args:
        scores: Collection to way to the (Q,) nDCG@10 of its queries.
    """
    rows: list[dict[str, Any]] = []
    for name, ways in scores.items():
        differences = ways[PIECES] - ways[CUT]
        p = 1.0
        if differences.any():
            p = float(stats.ttest_rel(ways[PIECES], ways[CUT]).pvalue)
        difference = round(float(differences.mean()), 4)
        rows.append({"collection": name, "difference": difference, "p": p})
    corrected = holm([row["p"] for row in rows])
    return [row | {"p": value} for row, value in zip(rows, corrected, strict=True)]


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table of ways of reranking; a star marks a significant difference."""
    stars = {test["collection"] for test in results["tests"] if test["p"] < 0.05}
    header = ["collection", "fusion", "reranked, cut", "reranked, pieces"]
    rows = []
    for name, figures in results["collections"].items():
        means = figures["means"]
        star = " *" if name in stars else ""
        row = [name, f"{means[FIRST]:.3f}", f"{means[CUT]:.3f}", f"{means[PIECES]:.3f}{star}"]
        rows.append(row)
    return markdown_table(header, rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "reranking")
    add_work(parser)
    add_beir_folders(parser)
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(COLLECTIONS),
        help="Measure these collections. Default: those with long documents.",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=250,
        help="Train the cross-encoder for so many steps. Default: 250.",
    )
    parser.add_argument(
        "--depth",
        type=int,
        default=10,
        help="Rerank so many documents of a query. Default: 10, a tenth of the package's default.",
    )
    parser.add_argument(
        "--precision", default="bfloat16", help="Train in this precision. Default: bfloat16."
    )
    return parser.parse_args()


def main() -> None:
    """Train the cross-encoder, and measure all collections."""
    options = parse_options()
    model = train(options)
    collections = {}
    scores = {}
    for name in options.only:
        folder = options.collections / name
        collections[name], scores[name] = measure(folder, model, options.depth)
        print(name, collections[name], flush=True)
    results = (
        origin()
        | {"settings": settings_of(options)}
        | {"collections": collections, "tests": tests_of(scores)}
    )
    write_results(options.results, results)
    if options.results == results_file("reranking"):
        MARKS.write(PAGE, markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
