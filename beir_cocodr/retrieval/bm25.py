"""BM25: its weights by term, counted in blocks of documents by any process, held in memory or
mapped from a folder; and searched with a second look at few documents alone.
"""

import copy
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from bm25s.tokenization import Tokenizer
from numpy.lib.format import open_memmap
from scipy.sparse._sparsetools import csc_matvec

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import on_main
from beir_cocodr.io import (
    atomic_path,
    draft_folder,
    filling_cache,
    json_sha256,
    save_array,
    write_text,
)
from beir_cocodr.records import Json
from beir_cocodr.retrieval.pool import share_over_ranks
from beir_cocodr.retrieval.ranking import Parts, Ranking, best_rows

Rows = npt.NDArray[np.int32]
_VOCABULARY, _ARRAYS = "vocabulary.json", ("starts", "rows", "weights", "most")

# Of the grid that the best are looked for in: lines for each that is wanted, and the fewest
# documents of one.
_GRID, _NARROWEST = 32, 64
_TINY, _ONE = np.finfo(np.float32).tiny, np.ones(1, np.float32)


#: Parameters of Anserini's BEIR baselines.
K1 = 0.9
B = 0.4


def inverse_document_frequencies(frequencies: Doubles, documents: int) -> Doubles:
    """Return the (T,) inverse document frequencies of terms, as Lucene has them.

    Args:
        frequencies: (T,) documents with each term.
        documents: The number of all documents.
    """
    odds = (documents - frequencies + 0.5) / (frequencies + 0.5)
    return np.array([math.log(1 + one) for one in odds.tolist()])


class Block(NamedTuple):
    """How often terms stand in consecutive documents.

    Args:
        terms: of the block, in the order in which they first stand there.
        sizes: (t,) in how many documents each stands.
        rows, counts: (p,) the documents of the first term, ascending from 0, then of the next; how
            often it stands.
        lengths: (n,) terms of each document.
    """

    terms: list[str]
    sizes: Ints
    rows: Rows
    counts: Rows
    lengths: Rows

    @classmethod
    def counted(cls, texts: Sequence[str], analyzer: Analyzer) -> Self:
        """Documents as bm25s's tokenizer reads them one by one; one without terms has "" as its
        own.
        """
        words = analyzer.split_all(texts)
        of_word = (distinct := words.flatten().dictionary_encode()).indices.to_numpy()
        terms = {"": 0}
        read = analyzer.read(distinct.dictionary.to_pylist())
        numbers = np.array(
            [-1 if term is None else terms.setdefault(term, len(terms)) for term in read], np.int32
        )
        term_of = numbers[of_word]
        there = term_of >= 0
        row_of = np.repeat(
            np.arange(len(texts), dtype=np.int32), np.diff(words.offsets.to_numpy())
        )[there]
        counts = np.bincount(row_of, minlength=len(texts))
        empty = np.flatnonzero(counts == 0)
        places = np.append(empty, row_of), np.append(np.zeros_like(empty), term_of[there])
        shape = (len(texts), len(terms))
        table = sp.coo_matrix((np.ones(len(places[0]), np.int32), places), shape).tocsc()
        table.sum_duplicates()
        sizes, lengths = (
            np.diff(table.indptr).astype(np.int64),
            np.maximum(counts, 1).astype(np.int32),
        )
        return cls(list(terms), sizes, table.indices.astype(np.int32), table.data, lengths)

    def save(self, file: Path) -> None:
        terms = np.frombuffer("\n".join(self.terms).encode(), np.uint8)
        with atomic_path(file) as temporary, temporary.open("wb") as out:
            np.savez(out, **self._asdict() | {"terms": terms})

    @classmethod
    def read(cls, file: Path) -> Self:
        with np.load(file) as found:
            terms = found["terms"].tobytes().decode().split("\n")
            return cls(terms, *(found[name] for name in cls._fields[1:]))


class Postings:
    """The weight of each term in each document that it stands in, by Lucene's variant of BM25.

    Attributes:
        vocabulary: term to its number, in the order in which they first stand in the corpus.
        documents: N.
        starts: (T + 1,) where each term begins in ``rows`` and ``weights``.
        rows, weights: (P,) documents of each term, ascending, and its weights there.
        most: (T,) the largest weight of each term.
    """

    def __init__(
        self, vocabulary: dict[str, int], documents: int, *arrays: npt.NDArray[Any]
    ) -> None:
        self.vocabulary, self.documents = vocabulary, documents
        self.starts, self.rows, self.weights, self.most = arrays

    @classmethod
    def build(
        cls, blocks: Callable[[], Iterable[Block]], k1: float, b: float, folder: Path | None = None
    ) -> Self:
        """From blocks in corpus order, which are asked for twice; in memory, or, a block at a time,
        in a folder.
        """
        vocabulary: dict[str, int] = {}
        numbered: list[Ints] = []  # of each block, the numbers of its terms
        sizes, lengths = np.zeros(0, np.int64), [np.zeros(0, np.int32)]
        for block in blocks():
            new = [term for term in block.terms if term not in vocabulary]
            vocabulary.update(
                zip(new, range(len(vocabulary), len(vocabulary) + len(new)), strict=True)
            )
            sizes = np.pad(sizes, (0, len(new)))
            numbered.append(
                np.fromiter(map(vocabulary.__getitem__, block.terms), np.int32, len(block.terms))
            )
            sizes[numbered[-1]] += block.sizes
            lengths.append(block.lengths)
        documents, terms = sum(map(len, lengths)), len(vocabulary)
        mean = np.concatenate(lengths).mean() if documents else 0.0
        starts = np.concatenate([[0], np.cumsum(sizes)])
        shapes: list[tuple[str, int, Any]] = [
            ("starts", terms + 1, np.int64),
            ("rows", int(starts[-1]), np.int32),
        ]
        shapes += [("weights", int(starts[-1]), np.float32), ("most", terms, np.float32)]
        arrays = [
            np.empty(size, kind) if folder is None or not size else
            open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(size,))
            for name, size, kind in shapes
        ]  # fmt: skip
        made = cls(vocabulary, documents, *arrays)
        made.starts[:] = starts
        made.most[:] = 0
        idf = inverse_document_frequencies(sizes.astype(float), documents).astype(np.float32)
        free, first = starts[:-1].copy(), 0
        for block, numbers in zip(blocks(), numbered, strict=True):
            begins = np.cumsum(block.sizes) - block.sizes
            places = np.repeat(free[numbers] - begins, block.sizes) + np.arange(block.sizes.sum())
            norm = k1 * ((1 - b) + b * block.lengths / (mean or 1.0))
            tf = block.counts.astype(np.float32)
            weights = (
                np.repeat(idf[numbers], block.sizes) * (tf / (norm[block.rows] + tf))
            ).astype(np.float32)
            made.rows[places], made.weights[places] = block.rows + np.int32(first), weights
            there = block.sizes > 0
            made.most[numbers[there]] = np.maximum(
                made.most[numbers[there]], np.maximum.reduceat(weights, begins[there])
            )
            free[numbers] += block.sizes
            first += len(block.lengths)
        if folder is not None:
            for array in arrays:
                array.flush() if isinstance(array, np.memmap) else None
            write_text(
                folder / _VOCABULARY, json.dumps([documents, list(vocabulary)], ensure_ascii=False)
            )
        return made

    @classmethod
    def open(cls, folder: Path, words: bool = True) -> Self:
        """What :meth:`build` wrote, mapped into memory; without ``words``, the vocabulary is left
        out.
        """
        documents, terms = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
        # Plain arrays over the map: slices of a memmap cost microseconds each.
        arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS]
        return cls(
            {term: number for number, term in enumerate(terms)} if words else {}, documents, *arrays
        )

    def of(self, term: int) -> tuple[Rows, Floats]:
        """The documents of a term and its weights there."""
        held = slice(*self.starts[term : term + 2])
        return self.rows[held], self.weights[held]

    def scores(self, terms: Iterable[int], scores: Floats | None = None) -> Floats:
        """(N,) float32 scores of all documents for a query of terms, term after term; added to
        ``scores`` if given.
        """
        scores = np.zeros(self.documents, np.float32) if scores is None else scores
        for term in terms:
            rows, weights = self.of(term)
            # Twice as fast as np.add.at. The public product of scipy's sparse arrays makes (N,)
            # zeros for each term.
            csc_matvec(
                len(scores), 1, np.array([0, len(rows)], np.int32), rows, weights, _ONE, scores
            )
        return scores

    def scores_of(self, terms: Iterable[int], rows: Ints) -> Floats:
        """(m,) of :meth:`scores`, of some documents alone."""
        scores = np.zeros(len(rows), np.float32)
        for term in terms:
            held, weights = self.of(term)
            if len(held):
                places = np.minimum(held.searchsorted(rows.astype(np.int32)), len(held) - 1)
                scores += np.where(held[places] == rows, weights[places], np.float32(0))
        return scores

    def search(
        self, queries: Iterable[Sequence[int]], depth: int, ties: Ints
    ) -> Iterator[tuple[Ints, Floats]]:
        """The best documents, at most ``depth``, of queries of terms, and their scores, best first;
        those of one score by ascending (N,) ``ties``.

        Documents stand in rows of a grid. As many rows as documents are wanted have one of at least
        the depth-th largest of the rows' maxima, so that nothing below it is looked at again.
        """
        width = max(_NARROWEST, self.documents // (_GRID * depth))
        grid = np.zeros((self.documents // width + 1, width), np.float32)
        for terms in queries:
            grid.fill(0)
            self.scores(terms, grid.reshape(-1))
            most, least = grid.max(axis=1), _TINY
            if len(most) > depth:
                least = max(least, np.partition(most, len(most) - depth)[-depth])
            lines = np.flatnonzero(most >= least)
            part = grid[lines].reshape(-1)
            line, column = np.divmod(places := np.flatnonzero(part >= least), width)
            rows, scores = lines[line] * width + column, part[places]
            best = best_rows(scores, ties[rows], depth)
            yield rows[best], scores[best]


# Documents counted at a time, the seconds that takes, and the version of what is kept on the disk.
_BLOCK, _BLOCK_SECONDS, _FORMAT = 10_000, 0.5, 1


class BM25:
    """A BM25 index over title and text of a corpus.

    Args:
        documents: the corpus; its texts are streamed, its postings are held in memory, or see
            :meth:`keep`.
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
        k1: float = K1,
        b: float = B,
    ) -> None:
        self.documents, self.text_format = documents, text_format or TextFormat()
        self.analyzer, self.k1, self.b = analyzer, k1, b
        read = Analyzer(analyzer)
        self._tokenizer = Tokenizer(
            splitter=read.split, stopwords=list(read.stop_words), stemmer=read.stemmer
        )
        self._empty: int | None = None
        self._postings: Postings | None = None

    @property
    def postings(self) -> Postings:
        """The index, built if need be."""
        if self._postings is None:
            counting = _Counting(self.documents, self.text_format, self.analyzer)
            blocks = counting.all()
            self._use(Postings.build(lambda: blocks, self.k1, self.b))
        assert self._postings is not None
        return self._postings

    def prepare(self) -> None:
        """Build the index; a second call costs nothing."""
        _ = self.postings

    def grid(self, k1: Iterable[float], b: Iterable[float]) -> Iterator[Self]:
        """The same index with each pair of parameters; texts are read once."""
        counting = _Counting(self.documents, self.text_format, self.analyzer)
        blocks = counting.all()
        for one, other in itertools.product(k1, b):
            made = copy.copy(self)
            made.k1, made.b = one, other
            made._use(Postings.build(lambda: blocks, one, other))
            yield made

    def keep(self, root: Path) -> Path:
        """Build the index in a folder of ``root``, named by what it depends on, unless it is there,
        and map it into memory; gives the folder. All processes of a run call this, and share the
        work, also with their other cores.

        Memory holds a block of documents in each process; what a killed run counted is not counted
        again.
        """
        key = json_sha256(
            {"corpus": self.documents.content_hash, "format": _FORMAT, **self.describe()}
        )[:32]
        folder, parts = root / key, root / f"{key}.parts"
        if on_main(lambda: not folder.is_dir()):
            counting = _Counting(self.documents, self.text_format, self.analyzer, parts)
            tasks = range(counting.blocks)
            with filling_cache(root):
                parts.mkdir(exist_ok=True)
                share_over_ranks(
                    tasks, counting.start, lambda n: counting.file(n).is_file(), _BLOCK_SECONDS
                )
                on_main(partial(self._merge, folder, counting))
                if not folder.is_dir():  # of a process with a disk of its own
                    self._merge(folder, counting)
        self._use(Postings.open(folder))
        return folder

    def _merge(self, folder: Path, counting: "_Counting") -> None:
        with draft_folder(folder, replace=True) as draft:
            Postings.build(counting.read, self.k1, self.b, draft)
            np.save(draft / _TIES, self.documents.tie_ranks())
        rmtree(counting.folder or draft, ignore_errors=True)

    def _use(self, postings: Postings) -> None:
        self._postings, words = postings, postings.vocabulary
        self._empty = words.get("")
        self._tokenizer.stem_to_sid = words
        self._tokenizer.word_to_id = {} if self._tokenizer.stemmer else words

    def terms(self, texts: list[str]) -> list[list[int]]:
        """The terms of texts as numbers, in order and as often as they stand there; unknown ones
        are left out.
        """
        self.prepare()
        found = self._tokenizer.tokenize(texts, update_vocab=False, show_progress=False)
        return [[token for token in ids if token != self._empty] for ids in found]

    def scores(self, query: str) -> np.ndarray:
        """(N,) float32 scores of all documents for one query, 0 where no term is shared."""
        return self.postings.scores(self.terms([query])[0])

    def term_counts(self, texts: list[str]) -> list[Counter[int]]:
        """How often each term of the index stands in each text, terms as numbers; others are left
        out.
        """
        return [Counter(terms) for terms in self.terms(texts)]

    def term_scores(
        self, weights: Mapping[int, float], first: int = 0, last: int | None = None
    ) -> np.ndarray:
        """(n,) float32 scores of consecutive documents, by default of all, for a query of weighted
        terms, which have the numbers of :meth:`term_counts`.
        """
        last = len(self.documents) if last is None else last
        scores = np.zeros(last - first, np.float32)
        for term, weight in weights.items():
            rows, of_term = self.postings.of(term)
            here = slice(*np.searchsorted(rows, np.array((first, last), rows.dtype)))
            scores[rows[here] - first] += np.float32(weight) * of_term[here]
        return scores

    def weights(self) -> sp.csr_matrix:
        """(N, T) BM25's weight of each term in each document: a score is the sum over the terms of
        the query.
        """
        found = self.postings
        columns = (found.weights, found.rows, found.starts)
        return sp.csc_matrix(columns, (len(self.documents), len(found.most))).tocsr()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """The documents that share a term with the query, at most ``top_k`` a query."""
        ties = self.documents.tie_ranks()
        found = self.postings.search(
            self.terms(list(queries.values())), min(top_k, len(ties)), ties
        )
        return Ranking.of_best(queries, found, ties, top_k)

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


# The file of an index that is kept, with the tie ranks of its documents.
_TIES = "ties.npy"


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Queries of terms whose best documents go to a file of (n, depth) int32 rows, -1 behind.

    Args:
        excluded: of each query, the rows that are left out.
    """

    file: Path
    terms: list[list[int]]
    excluded: list[Ints]
    depth: int

    @staticmethod
    def start(index: Path, device: str) -> Callable[["QueryBlock"], None]:
        """What a process, here or elsewhere, searches a block with, of the folder of an index
        (:meth:`BM25.keep`).
        """
        postings, ties = (
            Postings.open(index, words=False),
            np.asarray(np.load(index / _TIES, mmap_mode="r")),
        )

        def search(asked: QueryBlock) -> None:
            rows = np.full((len(asked.terms), asked.depth), -1, np.int32)
            deepest = min(asked.depth + max(map(len, asked.excluded)), len(ties))
            found = postings.search(asked.terms, deepest, ties)
            for line, excluded, (best, _) in zip(rows, asked.excluded, found, strict=True):
                left_out = set(excluded.tolist())
                kept = [row for row in best.tolist() if row not in left_out][: asked.depth]
                line[: len(kept)] = kept
            save_array(asked.file, rows)

        return search


@dataclass(frozen=True)
class _Counting:
    """The blocks of a corpus, counted here or in other processes, into files of a folder."""

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
        rows = np.arange(number * _BLOCK, min(len(self.documents), (number + 1) * _BLOCK))
        texts = [self.text_format.document(document) for document in self.documents.take(rows)]
        return Block.counted(texts, analyzer)

    def start(self, device: str) -> Callable[[int], None]:
        analyzer = Analyzer(self.analyzer)
        return lambda number: self.block(number, analyzer).save(self.file(number))

    def read(self) -> Iterator[Block]:
        return (Block.read(self.file(number)) for number in range(self.blocks))
