"""The searches of one collection: BM25, and every use and defect of an encoder, for all queries.

Rankings are made by the package's own searches over stored vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.evidence import LIST_DEPTH
from beir_cocodr.evaluation.label_free.pooled_relevance import PoolReader, read_pools
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.retrieval.ranking import Ranker, Ranking
from collecting.encoder_table import ENCODERS
from collecting.encoders import DOCUMENT, QUERY, Encoder, Transformer, VectorFolder
from collecting.late_interaction import TokenEncoder
from collecting.parents import Limits, Parent, folder_name
from collecting.query_sets import QUERIES, SETS, query_sets
from collecting.reranker import Reranker
from collecting.searched import (
    Ranked,
    Results,
    missing_sets,
    pools_file,
    results_file,
    write_pooled,
    write_results,
)
from collecting.systems import (
    DEFECT_USES,
    DERIVED,
    READ_USES,
    HeldBM25,
    System,
    Vectors,
    dense_ranker,
    fitting_ranker,
    ranker,
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Corpus:
    """A corpus in which some sets of queries are searched for.

    Attributes:
        label: Its name.
        documents: Its documents.
        bm25: BM25 over them.
    """

    label: str
    documents: Documents
    bm25: HeldBM25


class CollectionSearch:
    """Searches of one collection, whose results are written to the working folder.

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
        documents = self.collection.documents
        as_it_is = Corpus("as it is", documents, HeldBM25(documents, analyzer))
        self.corpora = {}
        for name, queries in self.sets.items():
            self.corpora[name] = as_it_is
            if queries.changed:
                changed = queries.corpus(documents, folder)
                self.corpora[name] = Corpus(name, changed, HeldBM25(changed, analyzer))

    @cached_property
    def texts(self) -> list[str]:
        """Return the texts of the documents."""
        return list(map(TextFormat().document, self.collection.documents.values()))

    def search_bm25(self) -> None:
        """Search by BM25 for the sets that have no results."""
        file = results_file(self.work, self.parent.name, "bm25")
        system = System.parse("bm25")
        results = {}
        for name in missing_sets(file, self.sets):
            results[system.name, name] = self._ranked(name, self.corpora[name].bm25)
        if results:
            write_results(file, results)

    def search(self, encoder: Encoder) -> None:
        """Search by the systems of an encoder for the sets that have no results."""
        row = ENCODERS[encoder.name]
        file = results_file(self.work, self.parent.name, encoder.name)
        missing = missing_sets(file, self.names)
        if not missing:
            return
        vectors = self._vector_folder(encoder)
        documents = vectors.vectors("documents", self.texts, DOCUMENT)
        results: dict[tuple[str, str], Ranked] = {}
        for name in missing:
            for variant, stored in self._stored(name, vectors, documents).items():
                if variant:
                    label = f"{row.base or encoder.name}/{variant}"
                    results |= self._uses(name, label, stored, DEFECT_USES)
                else:
                    results |= self._uses(name, encoder.name, stored, row.uses)
        write_results(file, results)

    def search_tokens(self, encoder: TokenEncoder) -> None:
        """Search by late interaction for the sets that have no results."""
        file = results_file(self.work, self.parent.name, encoder.name)
        [use] = ENCODERS[encoder.name].uses
        system = System.parse(use + encoder.name)
        results = {}
        for name in missing_sets(file, self.names):
            corpus = self.corpora[name]
            late = encoder.ranker(corpus.documents, corpus.bm25)
            results[system.name, name] = self._ranked(name, late)
        encoder.forget()
        if results:
            write_results(file, results)

    def search_reranked(self, reranker: Reranker) -> None:
        """Rerank what a system of another encoder ranked first, for the sets without results.

        Raises:
            InputError: The other encoder has not searched.
        """
        file = results_file(self.work, self.parent.name, reranker.name)
        first = results_file(self.work, self.parent.name, reranker.encoder)
        if missing_sets(first, self.names):
            raise InputError(f"{reranker.name} reranks {reranker.first}: search by it first")
        results = {}
        for name in missing_sets(file, self.names):
            ranked = Results(first).ranked(reranker.first, name)
            again = reranker.ranker(self.corpora[name].documents, ranked)
            results[reranker.system, name] = self._ranked(name, again)
        if results:
            write_results(file, results)

    def search_fitted(self, encoder: Transformer) -> None:
        """Search by the hybrid encoder that is fitted to each corpus, where there are no results.

        The encoder's vectors are those of :meth:`search`. Where queries are cut out of documents,
        the fit sees the corpus without them.
        """
        file = results_file(self.work, self.parent.name, f"{encoder.name}-fitted")
        missing = missing_sets(file, self.names)
        if not missing:
            return
        vectors = self._vector_folder(encoder)
        documents = vectors.vectors("documents", self.texts, DOCUMENT)
        system = System.parse(f"vector:{encoder.name}")
        rankers: dict[str, Ranker] = {}
        results: dict[tuple[str, str], Ranked] = {}
        for name in missing:
            corpus = self.corpora[name]
            if corpus.label not in rankers:
                held_out = self._held_out(name, vectors, documents)[""]
                dense = fitting_ranker(corpus.documents, encoder.model, held_out)
                rankers[corpus.label] = ranker(system, dense, corpus.bm25)
            results[system.name, name] = self._ranked(name, rankers[corpus.label])
        write_results(file, results)

    def read_pools(self, reader: PoolReader, encoder: str) -> None:
        """Let a language model score what BM25 and an encoder's systems rank first, unless it has.

        Args:
            reader: The language model.
            encoder: The name of the encoder.
        """
        file = pools_file(self.work, self.parent.name)
        if file.is_file():
            return
        results = Results(results_file(self.work, self.parent.name, encoder))
        bm25 = Results(results_file(self.work, self.parent.name, "bm25"))
        rankings = [bm25.ranked("bm25", QUERIES).rows]
        for use in READ_USES:
            rankings.append(results.ranked(use + encoder, QUERIES).rows)
        texts = self.sets[QUERIES].texts
        write_pooled(file, read_pools(reader, texts, rankings, self.collection.documents))

    def _vector_folder(self, encoder: Encoder) -> VectorFolder:
        folders = self.work / "vectors" / folder_name(self.parent.name)
        return VectorFolder(folders / folder_name(encoder.name), encoder)

    def _held_out(
        self,
        name: str,
        vectors: VectorFolder,
        documents: Mapping[str, Floats],
    ) -> dict[str, Floats]:
        """Return variant to the vectors of the corpus in which one set of queries is searched for.

        Args:
            name: The set of queries.
            vectors: The vectors of the encoder.
            documents: Variant to the vectors of the corpus as it is.
        """
        queries = self.sets[name]
        if not queries.changed:
            return dict(documents)
        texts = list(map(TextFormat().document, queries.changed))
        changed = vectors.vectors(f"{name}-changed", texts, DOCUMENT)
        held_out = {}
        for variant, as_it_is in documents.items():
            held_out[variant] = as_it_is.copy()
            held_out[variant][queries.rows] = changed[variant]
        return held_out

    def _stored(
        self,
        name: str,
        vectors: VectorFolder,
        documents: Mapping[str, Floats],
    ) -> dict[str, Vectors]:
        """Return variant and defect to the vectors with which one set of queries is searched for.

        The arguments are those of :meth:`_held_out`.
        """
        asked = vectors.vectors(f"{name}-asked", self.sets[name].texts, QUERY)
        encoder = vectors.encoder
        stored = {}
        for variant, held_out in self._held_out(name, vectors, documents).items():
            stored[variant] = Vectors(encoder.similarity, held_out, asked[variant])
        if ENCODERS[encoder.name].derives:
            stored |= {defect: stored[""].derive(defect) for defect in DERIVED}
        return stored

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
