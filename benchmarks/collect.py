"""Search labelled collections by many systems, and keep everything that a calibration may need.

Collections are those of ``--collections``, a folder of BEIR folders, and domains of apidocs. Each
is cut to ``--documents``. Queries are its own, crops of its documents, crops as long as its
queries, generated queries, and titles; systems are BM25, encoders, their fusions, and known
defects. A killed run continues where it stopped; ``collecting.searched.load_searched`` reads the
results:

    python benchmarks/collect.py --collections DIR --work runs/collect --encoders minilm
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from collecting.encoder_table import ENCODERS, load_encoder
from collecting.encoders import DOCUMENT, QUERY, Encoder, VectorFolder
from collecting.parents import Limits, Parent, cut_parent, folder_name, has_pools
from collecting.query_sets import QUERIES, SETS, QuerySet, query_sets
from collecting.searched import LIST_DEPTH, Ranked, results_file, write_results
from collecting.systems import (
    DEFECT_USES,
    DERIVED,
    HeldBM25,
    System,
    Vectors,
    dense_ranker,
    ranker,
)
from harness.script import add_integers, add_work

from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.retrieval.ranking import Ranker, Ranking

DOMAINS = ("stdlib", "numpy", "pandas", "torch", "scipy", "sklearn")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Corpus:
    """A corpus in which some sets of queries are searched for, and BM25 over it."""

    documents: Documents
    bm25: HeldBM25


class Collecting:
    """The searches of one collection.

    Args:
        parent: The collection.
        limits: Its limits.
        work: The working folder.
        folder: A folder for changed corpora, which the caller removes.
        names: The sets of queries that encoders search for; BM25 searches for all.
    """

    def __init__(
        self,
        parent: Parent,
        limits: Limits,
        work: Path,
        folder: Path,
        names: Sequence[str] = SETS,
    ) -> None:
        """Read the collection and its queries."""
        self.parent = parent
        self.work = work
        self.collection = parent.load()
        self.sets = query_sets(parent, limits)
        self.names = [name for name in self.sets if name in names]
        analyzer = Language.parse(parent.facts.language).analyzer
        as_it_is = Corpus(self.collection.documents, HeldBM25(self.collection.documents, analyzer))
        self.corpora = {}
        for name, queries in self.sets.items():
            if queries.changed:
                changed = queries.corpus(self.collection.documents, folder)
                self.corpora[name] = Corpus(changed, HeldBM25(changed, analyzer))
            else:
                self.corpora[name] = as_it_is

    @cached_property
    def texts(self) -> list[str]:
        """Return the texts of the documents."""
        return list(map(TextFormat().document, self.collection.documents.values()))

    def search_bm25(self) -> None:
        """Search by BM25, unless there are results."""
        file = results_file(self.work, self.parent.name, "bm25")
        if not file.is_file():
            system = System.parse("bm25")
            results = {}
            for name in self.sets:
                results[system.name, name] = self._ranked(name, self.corpora[name].bm25)
            write_results(file, results)

    def search(self, encoder: Encoder) -> None:
        """Search by the systems of an encoder, unless there are results."""
        row = ENCODERS[encoder.name]
        file = results_file(self.work, self.parent.name, encoder.name)
        if file.is_file():
            return
        folder = self.work / "vectors" / folder_name(self.parent.name) / folder_name(encoder.name)
        vectors = VectorFolder(folder, encoder)
        documents = vectors.vectors("documents", self.texts, DOCUMENT)
        results: dict[tuple[str, str], Ranked] = {}
        for name in self.names:
            for variant, stored in self._stored(name, vectors, documents).items():
                if variant:
                    label = f"{row.base or encoder.name}/{variant}"
                    results |= self._uses(name, label, stored, DEFECT_USES)
                else:
                    results |= self._uses(name, encoder.name, stored, row.uses)
        write_results(file, results)

    def _stored(
        self,
        name: str,
        vectors: VectorFolder,
        documents: Mapping[str, Floats],
    ) -> dict[str, Vectors]:
        """Return variant and defect to the vectors with which one set of queries is searched for.

        Args:
            name: The set of queries.
            vectors: The vectors of the encoder.
            documents: Variant to the vectors of the corpus as it is.
        """
        queries = self.sets[name]
        changed = self._changed(vectors, queries)
        asked = vectors.vectors(f"{name}-asked", queries.texts, QUERY)
        similarity = vectors.encoder.similarity
        stored = {}
        for variant, of_documents in documents.items():
            held_out = of_documents
            if changed:
                held_out = of_documents.copy()
                held_out[queries.rows] = changed[variant]
            stored[variant] = Vectors(similarity, held_out, asked[variant])
        if ENCODERS[vectors.encoder.name].derives:
            stored |= {defect: stored[""].derive(defect) for defect in DERIVED}
        return stored

    def _changed(self, vectors: VectorFolder, queries: QuerySet) -> dict[str, Floats]:
        """Return variant to the vectors of the documents that lost their queries."""
        if not queries.changed:
            return {}
        texts = list(map(TextFormat().document, queries.changed))
        return vectors.vectors(f"{queries.name}-changed", texts, DOCUMENT)

    def _uses(
        self,
        name: str,
        label: str,
        vectors: Vectors,
        uses: Sequence[str],
    ) -> dict[tuple[str, str], Ranked]:
        """Search one set of queries by uses of an encoder or of a defect."""
        corpus = self.corpora[name]
        dense = dense_ranker(corpus.documents, vectors, self.sets[name].texts)
        results = {}
        for use in uses:
            system = System.parse(use + label)
            results[system.name, name] = self._ranked(name, ranker(system, dense, corpus.bm25))
        return results

    def _ranked(self, name: str, searcher: Ranker) -> Ranked:
        """Search one set of queries, within their pools where they have some."""
        queries = self.sets[name]
        is_pooled = self.parent.facts.pooled and name == QUERIES
        depth = len(self.collection.documents) if is_pooled else LIST_DEPTH
        ranking = searcher.search(queries.queries, depth)
        if is_pooled:
            ranking = self._within_pools(ranking)
        if name == QUERIES:
            [measure] = parse_measures("nDCG@10")
            qrels = {query: self.collection.qrels[query] for query in queries.ids}
            results = ranking.results(self.collection.documents, False, 10)
            ndcg = score_queries([measure], qrels, results)[str(measure)]
        else:
            ndcg = queries.pseudo().score(ranking.rows)
        return Ranked(ranking.rows, ranking.scores, ndcg)

    def _within_pools(self, ranking: Ranking) -> Ranking:
        """Keep the documents that are judged for a query; the others move up."""
        documents = self.collection.documents
        is_judged = np.zeros(ranking.rows.shape, bool)
        for number, query in enumerate(ranking.queries):
            pool = documents.rows(list(self.collection.qrels[query]))
            is_judged[number] = np.isin(ranking.rows[number], pool)
        order = np.argsort(~is_judged, axis=1, kind="stable")[:, :LIST_DEPTH]
        rows = np.where(is_judged, ranking.rows, -1)
        return Ranking(
            ranking.queries,
            np.take_along_axis(ranking.scores, order, axis=1),
            np.take_along_axis(rows, order, axis=1),
        )


def sources(options: argparse.Namespace) -> dict[str, str]:
    """Return the sources of the collections by name, in the order in which they are searched."""
    names = {f"apidocs/{domain}": f"apidocs/{domain}" for domain in options.domains}
    if options.collections is not None:
        for file in sorted(options.collections.glob("*/corpus.jsonl")):
            names[file.parent.name] = str(file.parent)
    if options.only:
        names = {name: names[name] for name in options.only if name in names}
    return {name: source for name, source in names.items() if name not in options.leave_out}


def report(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def tell_cost(collecting: Collecting, encoder: Encoder, work: Path) -> float:
    """Print what a collection costs an encoder, by its speed on 32 of the documents.

    Returns:
        The hours.
    """
    texts = len(collecting.texts)
    words = sum(len(text.split()) for text in collecting.texts)
    for queries in (collecting.sets[name] for name in collecting.names):
        texts += len(queries.texts) + len(queries.changed)
    sample = collecting.texts[:: max(1, len(collecting.texts) // 16)][:16]
    start = time.perf_counter()
    encoder.encode(sample, DOCUMENT)
    speed = len(sample) / (time.perf_counter() - start)
    hours = texts / speed / 3600
    report(
        f"{collecting.parent.name}, {encoder.name}: {len(collecting.texts)} documents of "
        f"{words / len(collecting.texts):.0f} words, {texts} texts at most, {speed:.1f} a second, "
        f"{hours:.2f} hours"
    )
    return hours


def collect(name: str, source: str, encoders: Sequence[Encoder], options: Any) -> None:
    """Search one collection by all encoders that have no results on it yet."""
    limits = Limits(
        options.documents,
        options.characters,
        options.queries,
        options.samples,
        options.seed,
    )
    parent = cut_parent(name, source, options.work, limits)
    if parent.facts.pooled and not has_pools(parent):
        report(f"{name}: left out, because its judgements hold no pools")
        return
    missing = [
        encoder
        for encoder in encoders
        if not results_file(options.work, name, encoder.name).is_file()
    ]
    if not missing and results_file(options.work, name, "bm25").is_file():
        return
    with tempfile.TemporaryDirectory() as folder:
        collecting = Collecting(parent, limits, options.work, Path(folder), options.sets)
        collecting.search_bm25()
        for encoder in missing:
            start = time.perf_counter()
            if not options.fast:
                tell_cost(collecting, encoder, options.work)
            collecting.search(encoder)
            report(f"{name}, {encoder.name}: {time.perf_counter() - start:.0f} seconds")


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_work(parser, "runs/benchmark-collect")
    parser.add_argument(
        "--collections",
        type=Path,
        metavar="DIR",
        help="Search the BEIR folders of this folder.",
    )
    parser.add_argument(
        "--domains",
        nargs="*",
        default=DOMAINS,
        help="Also search these domains of apidocs. Default: all six.",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="Search these collections, in this order. Default: all.",
    )
    parser.add_argument(
        "--leave-out",
        nargs="*",
        default=[],
        help="Leave out these collections.",
    )
    parser.add_argument(
        "--encoders",
        nargs="*",
        default=["minilm"],
        choices=list(ENCODERS),
        help="Search by these encoders. Default: minilm.",
    )
    parser.add_argument(
        "--sets",
        nargs="*",
        default=list(SETS),
        choices=SETS,
        help="Search by encoders for these sets of queries; fewer cost less. Default: all.",
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=Path("models"),
        metavar="DIR",
        help="Read the weights of encoders from this folder. Default: models.",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="Measure no speeds before collections are encoded.",
    )
    integers = {
        "--documents": (3000, "The most documents of a collection."),
        "--characters": (1_200_000, "The most characters of more than 1,000 documents."),
        "--queries": (300, "The most queries of a collection."),
        "--samples": (150, "Queries of each kind that are made of documents."),
        "--seed": (42, "The seed of every choice."),
    }
    add_integers(parser, integers)
    return parser.parse_args()


def available_encoders(names: Sequence[str], models: Path) -> list[Encoder]:
    """Load the encoders whose weights exist, and print which ones are left out."""
    encoders = []
    for name in names:
        try:
            encoders.append(load_encoder(name, models))
        except InputError as error:
            report(f"{error}")
    return encoders


def main() -> None:
    """Search all collections by all encoders."""
    import torch

    torch.set_num_threads(1)
    options = parse_options()
    encoders = available_encoders(options.encoders, options.models)
    for name, source in sources(options).items():
        try:
            collect(name, source, encoders, options)
        except InputError as error:
            report(f"{name}: left out, because {error}")


if __name__ == "__main__":
    main()
