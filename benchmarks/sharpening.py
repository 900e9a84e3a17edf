"""Claim: queries that are generated for documents sharpen their vectors little.

Queries are generated for every document of labelled collections: without a model, a salient
sentence ("claims") and a draw of terms ("keywords") of each passage, or with ``--generator`` by a
language model, in four kinds, which a filter selects. The vector of a document moves towards the
mean of its queries, as ``encode --sharpen`` moves it. All queries take part, or those of one kind,
or only contrastive ones: those that find their own document before all others. Labels measure
nDCG@10 by the vectors alone and fused with BM25.

Generated queries and vectors are kept in ``--work``. The script prints its table, and adds to
``benchmarks/results/sharpening.json`` and a table of ``docs/results.md`` what these lack:

    OMP_NUM_THREADS=1 python benchmarks/sharpening.py --collections DIR --work DIR
    OMP_NUM_THREADS=1 python benchmarks/sharpening.py --collections DIR --work DIR \
        --generator hf:MODEL --only anthropic-docs --passages 500
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from collecting.parents import KNOWN
from collecting.systems import Vectors, dense_ranker
from harness.page import PAGE, Marks, markdown_table
from harness.script import (
    add_beir_folders,
    add_work,
    machine,
    option_parser,
    origin,
    read_json,
    results_file,
    write_results,
)
from scipy import stats

from beir_cocodr import load_collection
from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.data.analyzers import Language
from beir_cocodr.evaluation.measures import holm, parse_measures, score_queries
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.sharpening import sharpened

MODEL = "minilm"
COLLECTIONS = ("time", "cranfield", "cisi", "scifact")
COLLECTIONS += ("anthropic-docs", "aila-statutes", "financebench-pages", "legalquad-de")
#: Kinds of queries without a model, one of each for a passage.
LEXICAL_KINDS = ("claims", "keywords")
MODEL_KINDS = ("questions", "claims", "keywords", "titles")
#: The weights of the queries' mean.
WEIGHTS = (0.1, 0.25, 0.5, 1.0)
TOP_K = 100

#: How vectors are used: alone, or fused with BM25.
ALONE = "alone"
FUSED = "fused"

#: The table of ``docs/results.md``.
MARKS = Marks("<!-- sharpening -->", "<!-- end of sharpening -->")
LEVEL = 0.05

[_NDCG] = parse_measures("nDCG@10")


@dataclass(frozen=True)
class GeneratedVectors:
    """Vectors of the queries that were generated for documents.

    Attributes:
        rows: (S,) row of the document of each query.
        kinds: (S,) its kind.
        vectors: (S, d).
    """

    rows: Ints
    kinds: np.ndarray
    vectors: Floats

    def sharpened(self, documents: Floats, chosen: Bools, weight: float) -> Floats:
        """Return (N, d) document vectors moved towards the mean of their chosen queries."""
        return sharpened(documents, self.rows[chosen], self.vectors[chosen], weight)

    def contrastive(self, documents: Floats) -> Bools:
        """Return which queries are closer to their document than to any other."""
        best = [int(np.argmax(documents @ vector)) for vector in self.vectors]
        return np.asarray(np.array(best, np.int64) == self.rows)


class Study:
    """One collection, its vectors, and the queries that are generated for it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        """Generate the queries, and encode documents and queries, unless that is done."""
        self.collection = load_collection(folder)
        self.options = options
        self.model = load_encoder(MODEL)
        self.work = options.work / f"{folder.name}-{options.generator_kind}"
        self.queries = {query: self.collection.queries[query] for query in self.collection.qrels}
        language = Language.parse(KNOWN[folder.name].language)
        self.bm25 = BM25(self.collection.documents, analyzer=language.analyzer)
        self.generation = self.generate(folder)
        self.documents = self.kept("documents", self.encode_documents)
        self.asked = self.kept("queries", lambda: self.encode(list(self.queries.values())))

    def generate(self, folder: Path) -> Path:
        """Generate queries without a model, or by a language model, whose queries are filtered."""
        output: Path = self.work / "generated"
        options = GenerationOptions(
            tokenizer=MODEL,
            language=KNOWN[folder.name].language,
            query_kinds=",".join(LEXICAL_KINDS),
            per_passage=len(LEXICAL_KINDS),
            seed=self.options.seed,
        )
        if self.options.generator_kind != "lexical":
            options = replace(
                options,
                query_kinds=",".join(MODEL_KINDS),
                per_passage=len(MODEL_KINDS),
                max_passages=self.options.passages,
                bf16=True,
                filter_retriever=f"hybrid:{MODEL}",
                filter_top=10,
                near_duplicates=0.8,
                shard_documents=10,
            )
        generate_queries(str(folder), self.options.generator, output, options)
        return output

    def kept(self, name: str, make: Any) -> Floats:
        """Return the vectors of a file, which is written first if it is not there."""
        file = self.work / f"{name}.npy"
        if not file.is_file():
            np.save(file, make())
        vectors: Floats = np.load(file)
        return vectors

    def encode(self, texts: list[str]) -> Floats:
        """Return the vectors of queries."""
        return np.asarray(self.model.query_vectors(texts, 64), np.float32)

    def encode_documents(self) -> Floats:
        """Return the (N, d) vectors of the corpus."""
        backend: Any = "bf16" if self.options.bf16 else "fp32"
        encoder = CorpusEncoder(self.model, self.collection.documents, backend=backend)
        return encoder.encode(np.arange(len(self.collection.documents)))

    def generated_vectors(self) -> GeneratedVectors:
        """Return the vectors of the generated queries."""
        lines = (self.generation / "queries.jsonl").read_text(encoding="utf-8").splitlines()
        queries = [json.loads(line) for line in lines]
        names = [query["metadata"]["document"] for query in queries]
        kinds = np.array([query["metadata"]["kind"] for query in queries])
        texts = [query["text"] for query in queries]
        vectors = self.kept("generated", lambda: self.encode(texts))
        return GeneratedVectors(self.collection.documents.rows(names), kinds, vectors)

    def scores(self, documents: Floats) -> dict[str, Floats]:
        """Return (Q,) nDCG@10 by document vectors alone and fused with BM25."""
        vectors = Vectors(similarity="cosine", documents=documents, queries=self.asked)
        corpus = self.collection.documents
        dense = dense_ranker(corpus, vectors, list(self.queries.values()))
        scores = {}
        for use, ranker in {ALONE: dense, FUSED: Hybrid(dense, self.bm25, 0.5)}.items():
            ranker.prepare()
            results = ranker.search(self.queries, TOP_K).results(corpus, False, 10)
            scores[use] = score_queries([_NDCG], self.collection.qrels, results)[str(_NDCG)]
        return scores


def measure(study: Study) -> dict[str, Any]:
    """Return the differences of every choice of queries and every weight."""
    queries = study.generated_vectors()
    before = study.scores(study.documents)
    choices = {
        "all": np.ones(len(queries.rows), bool),
        "contrastive": queries.contrastive(study.documents),
    }
    for kind in sorted(set(queries.kinds.tolist())):
        choices[kind] = queries.kinds == kind
    measured: dict[str, Any] = {}
    for use, values in before.items():
        measured[use] = {"before": round(float(values.mean()), 4)}
    for name, chosen in choices.items():
        for weight in WEIGHTS:
            after = study.scores(queries.sharpened(study.documents, chosen, weight))
            for use, values in before.items():
                differences = after[use] - values
                measured[use][f"{name}, {weight}"] = {
                    "difference": round(float(differences.mean()), 4),
                    "p": p_value(differences),
                }
    return measured | {
        "documents": len(study.documents),
        "with queries": len(np.unique(queries.rows)),
        "queries": len(queries.rows),
        "contrastive": int(choices["contrastive"].sum()),
    }


def p_value(differences: Floats) -> float:
    """Return p of a paired t-test on (Q,) differences; 1 where nothing differs."""
    return float(stats.ttest_1samp(differences, 0).pvalue) if differences.any() else 1.0


def table(collections: Mapping[str, Any], use: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Return choice and weight to collection to the difference and its corrected p.

    Args:
        collections: What was measured.
        use: :data:`ALONE` or :data:`FUSED`.

    Returns:
        p is corrected by Holm over the collections.
    """
    choices: dict[str, None] = {}
    for one in collections.values():
        choices |= dict.fromkeys(choice for choice in one[use] if choice != "before")
    rows = {}
    for choice in choices:
        figures = {
            name: one[use][choice] for name, one in collections.items() if choice in one[use]
        }
        corrected = holm([one["p"] for one in figures.values()])
        differences = [one["difference"] for one in figures.values()]
        pairs = zip(differences, corrected, strict=True)
        rows[choice] = dict(zip(figures, pairs, strict=True))
    return rows


def markdown(collections: Mapping[str, Any]) -> str:
    """Return the table of the page, of all queries; a star marks a significant difference."""
    header = ["collection", "queries"]
    for use in (ALONE, FUSED):
        header += [f"{use}, before", *map(str, WEIGHTS)]
    of_use = {use: table(collections, use) for use in (ALONE, FUSED)}
    rows = []
    for name, one in collections.items():
        row = [name, f"{one['queries']:,}"]
        for use, choices in of_use.items():
            row.append(f"{one[use]['before']:.3f}")
            for weight in WEIGHTS:
                difference, p = choices[f"all, {weight}"][name]
                row.append(f"{difference:+.3f}{' *' if p < LEVEL else ''}")
        rows.append(row)
    return markdown_table(header, rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = option_parser(__doc__, "sharpening")
    add_work(parser)
    add_beir_folders(parser)
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(COLLECTIONS),
        help=f"Measure these collections. Default: {' '.join(COLLECTIONS)}.",
    )
    parser.add_argument(
        "--generator",
        default="lexical",
        help="Generate queries with this, as generate-queries does. Default: lexical.",
    )
    parser.add_argument(
        "--passages",
        type=int,
        help="Let a language model write for this many passages. Default: all.",
    )
    parser.add_argument(
        "--seed", type=int, default=13, help="Generate with this seed. Default: 13."
    )
    parser.add_argument(
        "--bf16",
        action="store_true",
        help="Encode documents in bfloat16, which is faster on a processor with units for it.",
    )
    options = parser.parse_args()
    is_lexical = options.generator == "lexical"
    options.generator_kind = "lexical" if is_lexical else "language model"
    return options


def main() -> None:
    """Measure what is missing."""
    options = parse_options()
    kept = read_json(options.results) if options.results.is_file() else {}
    collections = dict(kept.get("collections", {}))
    for name in options.only:
        label = name if options.generator == "lexical" else f"{name}, language model"
        if label in collections:
            print(f"{label} is measured already", flush=True)
            continue
        started = time.process_time()
        figures = measure(Study(options.collections / name, options))
        seconds = round(time.process_time() - started, 1)
        collections[label] = figures | {"processor_seconds": seconds, "machine": machine()}
        settings = {"model": MODEL, "weights": WEIGHTS, "seed": options.seed}
        content = origin() | {"settings": settings, "collections": collections}
        write_results(options.results, content)
    print(markdown(collections))
    if options.results == results_file("sharpening"):
        MARKS.write(PAGE, markdown(collections))


if __name__ == "__main__":
    main()
