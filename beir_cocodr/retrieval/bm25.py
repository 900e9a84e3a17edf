"""BM25 by bm25s."""

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import bm25s
import numpy as np
import scipy.sparse as sp
from bm25s.tokenization import Tokenizer

from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Parts, Ranking


class BM25:
    """A BM25 index over title and text of a corpus.

    Args:
        documents: the corpus; its texts are streamed, its postings are held in memory.
        text_format: joins titles and texts; prompts and lengths play no part.
        analyzer: how texts are read, see :class:`~beir_cocodr.data.analyzers.Analyzer`.
        k1, b: as in Anserini's BEIR baselines, 0.9 and 0.4.

    Source: Robertson et al., 1994, in the variant of Lucene, as bm25s computes it.

    Example:
        >>> from beir_cocodr import load_collection
        >>> from beir_cocodr.retrieval.bm25 import BM25
        >>> documents = load_collection("apidocs/numpy").documents
        >>> ranking = BM25(documents).search({"q": "return a sorted copy of an array"}, top_k=3)
        >>> ranking.rows.shape
        (1, 3)
        >>> [(document, score), *others] = ranking.results(documents)["q"]  # best first
        >>> "sort" in documents[document]["text"]
        True
    """

    def __init__(
        self,
        documents: Documents,
        text_format: TextFormat | None = None,
        analyzer: str = "english",
        k1: float = 0.9,
        b: float = 0.4,
    ) -> None:
        self.documents, self.text_format = documents, text_format or TextFormat()
        self.analyzer, self.k1, self.b = analyzer, k1, b
        read = Analyzer(analyzer)
        self._tokenizer = Tokenizer(splitter=read.split, stopwords=list(read.stop_words), stemmer=read.stemmer)
        self._empty: int | None = None
        self._index: Any = None
        #: What others derived from this index and may want again, by name.
        self.derived: dict[str, Any] = {}

    def prepare(self) -> None:
        """Build the index; a second call costs nothing."""
        if self._index is None:
            self._build(*self._read())

    def grid(self, k1: Iterable[float], b: Iterable[float]) -> Iterator[Self]:
        """The same index with each pair of parameters; texts are read once."""
        ids, vocabulary = self._read()
        self._build(ids, vocabulary)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        terms = np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(lengths.sum()))
        rows = np.repeat(np.arange(len(ids), dtype=np.int32), lengths)
        shape = len(ids), len(self._index.scores["indptr"]) - 1
        counts = sp.csc_matrix((np.ones(len(terms), np.float32), (rows, terms)), shape)
        df = np.diff(counts.indptr)
        idf = np.repeat(np.log(1 + (len(ids) - df + 0.5) / (df + 0.5)), df)  # Lucene's, for each posting
        for one, other in itertools.product(k1, b):
            saturation = (one * (1 - other + other * lengths / lengths.mean()))[counts.indices]
            weights = (idf * counts.data / (counts.data + saturation)).astype(np.float32)
            made = copy.copy(self)
            made.k1, made.b, made.derived, made._index = one, other, {}, copy.copy(self._index)
            arrays = {"data": weights, "indices": counts.indices, "indptr": counts.indptr}
            made._index.scores = self._index.scores | arrays
            yield made

    def _build(self, ids: list[list[int]], vocabulary: dict[str, int]) -> None:
        index = bm25s.BM25(k1=self.k1, b=self.b)
        index.index((ids, vocabulary), show_progress=False)
        self._index = index

    def _read(self) -> tuple[list[list[int]], dict[str, int]]:
        """The terms of all documents by their numbers in the vocabulary."""
        ids: list[list[int]] = []
        for chunk in self.documents.chunks(10_000):
            texts = [self.text_format.document(document) for document in chunk]
            ids += self._tokenizer.tokenize(texts, update_vocab=True, show_progress=False)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab_dict()
        self._empty = vocabulary.get("")
        return ids, vocabulary

    def scores(self, query: str) -> np.ndarray:
        """(N,) float32 scores of all documents for one query, 0 where no term is shared."""
        self.prepare()
        [ids] = self._tokenizer.tokenize([query], update_vocab=False, show_progress=False)
        known = [token for token in ids if token != self._empty]
        if not known:
            return np.zeros(len(self.documents), np.float32)
        scores: np.ndarray = self._index.get_scores(known)
        return scores.astype(np.float32, copy=False)

    def term_counts(self, texts: list[str]) -> list[Counter[int]]:
        """How often each term of the index stands in each text, terms as numbers; others are left out."""
        self.prepare()
        found = self._tokenizer.tokenize(texts, update_vocab=False, show_progress=False)
        return [Counter(token for token in ids if token != self._empty) for ids in found]

    def term_scores(self, weights: Mapping[int, float], first: int = 0, last: int | None = None) -> np.ndarray:
        """(n,) float32 scores of consecutive documents, by default of all, for a query of weighted terms, which have
        the numbers of :meth:`term_counts`.
        """
        self.prepare()
        last = len(self.documents) if last is None else last
        postings, scores = self._index.scores, np.zeros(last - first, np.float32)
        for term, weight in weights.items():
            begin, end = postings["indptr"][term : term + 2]
            rows = postings["indices"][begin:end]
            here = slice(*np.searchsorted(rows, np.array((first, last), rows.dtype)))
            scores[rows[here] - first] += np.float32(weight) * postings["data"][begin:end][here]
        return scores

    def weights(self) -> sp.csr_matrix:
        """(N, T) BM25's weight of each term in each document: a score is the sum over the terms of the query."""
        self.prepare()
        found = self._index.scores
        terms = len(found["indptr"]) - 1
        columns = (found["data"], found["indices"], found["indptr"])
        return sp.csc_matrix(columns, (len(self.documents), terms)).tocsr()

    def components(self, count: int) -> np.ndarray:
        """(T, r) float32 axes of the truncated SVD of :meth:`weights`, largest first; r is at most the rank allows."""
        if "weights" not in self.derived:
            self.derived["weights"] = self.weights()
        weights = self.derived["weights"]
        count = min(count, *weights.shape)
        if self.derived.get("components", np.zeros((0, 0))).shape[1] < count:
            from sklearn.utils.extmath import randomized_svd  # BM25 alone does not pay for it

            axes = randomized_svd(weights, count, n_iter=4, random_state=42)[2]
            self.derived["components"] = np.ascontiguousarray(axes.T, dtype=np.float32)
        found: np.ndarray = self.derived["components"][:, :count]
        return found

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """The documents that share a term with the query, at most ``top_k`` a query."""
        found = map(self.scores, queries.values())
        matching = ((rows := np.flatnonzero(scores > 0), scores[rows]) for scores in found)
        return Ranking.of_best(queries, matching, self.documents.tie_ranks(), top_k)

    def parts(self, query: str, rows: np.ndarray, scores: np.ndarray) -> Parts:
        """All of a score is lexical."""
        return Parts(lexical=scores)

    def describe(self) -> Json:
        return {
            "model": "BM25",
            "analyzer": self.analyzer,
            "k1": self.k1,
            "b": self.b,
            "similarity": "bm25",
            "text_format": {"title_separator": self.text_format.title_separator},
        }
