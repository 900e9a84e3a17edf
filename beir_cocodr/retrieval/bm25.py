"""BM25 over a corpus: counted in blocks of documents by any process, and searched.

The tokenizer is that of bm25s; weights and search are our own, in Lucene's variant.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Self

import numpy as np
import scipy.sparse as sp

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.checksums import add_checksums, is_kept, is_sound, save_array
from beir_cocodr.data.analyzers import Analyzer, bm25s_tokenizer
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import on_main
from beir_cocodr.io import (
    draft_folder,
    filling_cache,
    json_sha256,
)
from beir_cocodr.models.term_weights import K1, B
from beir_cocodr.records import Json
from beir_cocodr.retrieval.postings import POSTINGS_FILES, Block, Postings, Rows
from beir_cocodr.retrieval.ranking import Parts, Ranking
from beir_cocodr.retrieval.vectors.pool import share_over_ranks

if TYPE_CHECKING:
    from bm25s.tokenization import Tokenizer

# Documents that are counted at a time, and the seconds that takes on one core.
_BLOCK = 10_000
_BLOCK_SECONDS = 0.5

# Version of what is kept on the disk.
_FORMAT = 2

# The file of a kept index with the tie ranks of its documents.
_TIES = "ties.npy"


def _tokenizer(analyzer: str) -> Tokenizer:
    """Return bm25s's tokenizer of an analyzer's words."""
    reader = Analyzer(analyzer)
    return bm25s_tokenizer()(
        splitter=reader.split,
        stopwords=list(reader.stop_words),
        stemmer=reader.stemmer,
    )


class BM25:
    """A BM25 index over title and text of a corpus.

    References:
        Robertson et al., 1994, in Lucene's variant.

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
        k1: float = K1,
        b: float = B,
    ) -> None:
        """Describe an index, which is built when it is first needed.

        Args:
            documents: The corpus. Its texts are streamed, its postings are held in memory, unless
                :meth:`keep` maps them from a folder.
            text_format: Joins titles and texts; prompts and lengths are ignored.
            analyzer: How texts are read, see :class:`~beir_cocodr.data.analyzers.Analyzer`.
            k1: Saturation of term counts; 0.9 as in Anserini's BEIR baselines.
            b: Weight of the length; 0.4 as in Anserini's BEIR baselines.
        """
        self.documents = documents
        self.text_format = text_format or TextFormat()
        self.analyzer = analyzer
        self.k1 = k1
        self.b = b
        self._tokenizer = _tokenizer(analyzer)
        self._empty: int | None = None
        self._postings: Postings | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy needs; PyStemmer's stemmers cannot be copied."""
        state = dict(self.__dict__)
        del state["_tokenizer"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take the state of another index, and make a tokenizer like its own."""
        self.__dict__.update(state)
        self._tokenizer = _tokenizer(self.analyzer)
        if self._postings is not None:
            self._use(self._postings)

    @property
    def postings(self) -> Postings:
        """Return the index, which is built if need be."""
        if self._postings is None:
            blocks = self._counting().all()
            self._use(Postings.build(lambda: blocks, self.k1, self.b))
        assert self._postings is not None
        return self._postings

    def prepare(self) -> None:
        """Build the index; a second call costs nothing."""
        _ = self.postings

    def _counting(self, folder: Path | None = None) -> _Counting:
        return _Counting(
            self.documents,
            self.text_format,
            self.analyzer,
            folder,
        )

    def grid(self, k1: Iterable[float], b: Iterable[float]) -> Iterator[Self]:
        """Yield the index with each pair of parameters; texts are read once."""
        blocks = self._counting().all()
        for k1_value, b_value in itertools.product(k1, b):
            index = copy.copy(self)
            index.k1 = k1_value
            index.b = b_value
            index._use(Postings.build(lambda: blocks, k1_value, b_value))
            yield index

    def keep(self, root: Path) -> Path:
        """Build the index in a folder below ``root`` unless it exists, and map it into memory.

        The folder is named by what the index depends on. All processes of a run call this, and
        share the work, also with their other cores. Memory holds a block of documents in each
        process; what a killed run counted is not counted again.

        Returns:
            The folder.
        """
        identity = {
            "corpus": self.documents.content_hash,
            "format": _FORMAT,
            **self.describe(),
        }
        key = json_sha256(identity)[:32]
        folder = root / key
        if on_main(lambda: not _is_kept(folder)):
            counting = self._counting(root / f"{key}.parts")
            with filling_cache(root):
                self._count_together(counting, folder)
        self._use(Postings.open(folder))
        return folder

    def _count_together(self, counting: _Counting, folder: Path) -> None:
        assert counting.folder is not None
        counting.folder.mkdir(exist_ok=True)
        share_over_ranks(
            range(counting.blocks),
            counting.start,
            lambda number: is_kept(counting.file(number)),
            _BLOCK_SECONDS,
        )
        on_main(partial(self._merge, folder, counting))
        if not folder.is_dir():  # a process that does not share its disk with the first
            self._merge(folder, counting)

    def _merge(self, folder: Path, counting: _Counting) -> None:
        with draft_folder(folder, replace=True) as draft:
            Postings.build(counting.read, self.k1, self.b, draft)
            np.save(draft / _TIES, self.documents.tie_ranks())
            add_checksums(draft, (*POSTINGS_FILES, _TIES))
        assert counting.folder is not None
        rmtree(counting.folder, ignore_errors=True)

    def _use(self, postings: Postings) -> None:
        self._postings = postings
        vocabulary = postings.vocabulary
        self._empty = vocabulary.get("")
        self._tokenizer.stem_to_sid = vocabulary
        self._tokenizer.word_to_id = {} if self._tokenizer.stemmer else vocabulary

    def terms(self, texts: list[str]) -> list[list[int]]:
        """Return the terms of texts as numbers, in order; unknown ones are left out."""
        self.prepare()
        numbers = self._tokenizer.tokenize(
            texts,
            update_vocab=False,
            show_progress=False,
        )
        return [[term for term in of_text if term != self._empty] for of_text in numbers]

    def scores(self, query: str) -> Floats:
        """Return the (N,) float32 scores of all documents, 0 where no term is shared."""
        return self.postings.scores(self.terms([query])[0])

    def term_counts(self, texts: list[str]) -> list[Counter[int]]:
        """Count the terms of texts, by number; unknown ones are left out."""
        return [Counter(terms) for terms in self.terms(texts)]

    def term_scores(
        self,
        weights: Mapping[int, float],
        first: int = 0,
        last: int | None = None,
    ) -> Floats:
        """Return the (n,) float32 scores of consecutive documents for a query of weighted terms.

        Args:
            weights: Term, numbered as in :meth:`term_counts`, to its weight.
            first: The first document.
            last: One after the last document; by default the end of the corpus.
        """
        last = len(self.documents) if last is None else last
        scores = np.zeros(last - first, np.float32)
        for term, weight in weights.items():
            rows, of_term = self.postings.of(term)
            begin, end = np.searchsorted(
                rows,
                np.array((first, last), rows.dtype),
            )
            scores[rows[begin:end] - first] += np.float32(weight) * of_term[begin:end]
        return scores

    def term_scores_of(self, weights: Mapping[int, float], rows: Ints) -> Floats:
        """Return the (m,) scores of some documents, as :meth:`term_scores` gives them."""
        scores = np.zeros(len(rows), np.float32)
        for term, weight in weights.items():
            scores += np.float32(weight) * self.postings.scores_of([term], rows)
        return scores

    def weights(self) -> sp.csr_matrix:
        """Return the (N, T) weights; a score is the sum over the terms of the query."""
        postings = self.postings
        columns = (
            postings.weights,
            postings.rows,
            postings.starts,
        )
        shape = (len(self.documents), len(postings.most))
        return sp.csc_matrix(columns, shape).tocsr()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the documents that share a term with a query, at most ``top_k`` of them."""
        ties = self.documents.tie_ranks()
        terms = self.terms(list(queries.values()))
        best = self.postings.search(terms, min(top_k, len(ties)), ties)
        return Ranking.of_best(queries, best, ties, top_k)

    def parts(
        self,
        query: str,
        rows: Ints,
        scores: Floats,
    ) -> Parts:
        """Return all of a score as lexical."""
        return Parts(lexical=scores)

    def describe(self) -> Json:
        """Describe the index for the record of a search."""
        return {
            "model": "BM25",
            "analyzer": self.analyzer,
            "k1": self.k1,
            "b": self.b,
            "similarity": "bm25",
            "text_format": {"title_separator": self.text_format.title_separator},
        }


def _is_kept(folder: Path) -> bool:
    """Return whether a folder holds an index that is as it was written."""
    files = [folder / name for name in (*POSTINGS_FILES, _TIES)]
    return folder.is_dir() and is_sound(*files)


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Queries of terms whose best documents go to a file.

    Attributes:
        file: For (n, depth) int32 rows, -1 behind the last result.
        terms: The queries.
        excluded: Rows that each query leaves out.
        depth: Documents wanted.
    """

    file: Path
    terms: list[list[int]]
    excluded: list[Ints]
    depth: int

    @staticmethod
    def start(index: Path, device: str) -> Callable[[QueryBlock], None]:
        """Return what a process, here or elsewhere, searches a block with.

        Args:
            index: Folder of a kept index, see :meth:`BM25.keep`.
            device: Ignored: BM25 runs on the CPU.
        """
        postings = Postings.open(index, words=False)
        ties = np.asarray(np.load(index / _TIES, mmap_mode="r"))

        def search(block: QueryBlock) -> None:
            save_array(block.file, block.best_rows(postings, ties))

        return search

    def best_rows(self, postings: Postings, ties: Ints) -> Rows:
        """Return the (n, depth) int32 rows of the best documents that are not excluded."""
        best_rows = np.full((len(self.terms), self.depth), -1, np.int32)
        most_excluded = max(map(len, self.excluded))
        depth = min(self.depth + most_excluded, len(ties))
        best = postings.search(self.terms, depth, ties)
        for line, excluded, (rows, _) in zip(best_rows, self.excluded, best, strict=True):
            left_out = set(excluded.tolist())
            kept = [row for row in rows.tolist() if row not in left_out][: self.depth]
            line[: len(kept)] = kept
        return best_rows


@dataclass(frozen=True)
class _Counting:
    """The blocks of a corpus, counted here, or in other processes into files of a folder."""

    documents: Documents
    text_format: TextFormat
    analyzer: str
    folder: Path | None = None

    @property
    def blocks(self) -> int:
        return -(-len(self.documents) // _BLOCK)

    def file(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"block-{number:05}.npz"

    def all(self) -> list[Block]:
        analyzer = Analyzer(self.analyzer)
        return [self.block(number, analyzer) for number in range(self.blocks)]

    def block(self, number: int, analyzer: Analyzer) -> Block:
        first = number * _BLOCK
        last = min(len(self.documents), first + _BLOCK)
        documents = self.documents.take(np.arange(first, last))
        texts = [self.text_format.document(document) for document in documents]
        return Block.counted(texts, analyzer)

    def start(self, device: str) -> Callable[[int], None]:
        analyzer = Analyzer(self.analyzer)
        return lambda number: self.block(number, analyzer).save(self.file(number))

    def read(self) -> Iterator[Block]:
        return (Block.read(self.file(number)) for number in range(self.blocks))
