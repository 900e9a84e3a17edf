"""The postings of BM25: the weight of each term in each document, built from blocks of counts.

Postings are held in memory, or mapped from a folder. A search scores all documents, and takes a
second look at few of them.
"""

import json
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numpy.lib.format import open_memmap
from scipy.sparse._sparsetools import csc_matvec

from beir_cocodr.arrays import Array, Floats, Ints
from beir_cocodr.checksums import checked_path
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.io import write_text
from beir_cocodr.models.term_weights import inverse_document_frequencies, length_norms
from beir_cocodr.retrieval.ranking import best_rows

Rows = npt.NDArray[np.int32]

# Files of a folder of postings.
_VOCABULARY = "vocabulary.json"
_ARRAYS = (
    "starts",
    "rows",
    "weights",
    "most",
)

#: The files of a folder of postings.
POSTINGS_FILES = (_VOCABULARY, *(f"{name}.npy" for name in _ARRAYS))

# Rows of the grid of documents, for each document that is wanted.
_GRID = 32

# The fewest documents of a row of the grid.
_NARROWEST = 64

_TINY = np.finfo(np.float32).tiny
_ONE = np.ones(1, np.float32)


class Block(NamedTuple):
    """Frequencies of terms in consecutive documents.

    Attributes:
        terms: Terms of the block, in the order of their first occurrences.
        sizes: (t,) numbers of documents with each term.
        rows: (p,) documents of the first term, ascending from 0, then of the next.
        counts: (p,) how often the term occurs there.
        lengths: (n,) terms of each document.
    """

    terms: list[str]
    sizes: Ints
    rows: Rows
    counts: Rows
    lengths: Rows

    @classmethod
    def counted(cls, texts: Sequence[str], analyzer: Analyzer) -> Self:
        """Count texts as bm25s's tokenizer reads them; a text without terms has the term ""."""
        words = analyzer.split_all(texts)
        distinct = words.flatten().dictionary_encode()
        terms = {"": 0}
        term_of_word = [
            -1 if term is None else terms.setdefault(term, len(terms))
            for term in analyzer.read(distinct.dictionary.to_pylist())
        ]
        columns = np.array(term_of_word, np.int32)[np.from_dlpack(distinct.indices)]
        is_term = columns >= 0
        document_of = np.repeat(
            np.arange(len(texts), dtype=np.int32),
            np.diff(np.from_dlpack(words.offsets)),
        )
        rows = document_of[is_term]
        lengths = np.bincount(rows, minlength=len(texts))
        empty = np.flatnonzero(lengths == 0)
        all_rows = np.append(empty, rows)
        all_columns = np.append(np.zeros_like(empty), columns[is_term])
        ones = np.ones(len(all_rows), np.int32)
        shape = (len(texts), len(terms))
        table = sp.coo_matrix((ones, (all_rows, all_columns)), shape).tocsc()
        table.sum_duplicates()
        return cls(
            terms=list(terms),
            sizes=np.diff(table.indptr).astype(np.int64),
            rows=table.indices.astype(np.int32),
            counts=table.data,
            lengths=np.maximum(lengths, 1).astype(np.int32),
        )

    def save(self, file: Path) -> None:
        """Write the block to a file, which appears when it is complete."""
        terms = np.frombuffer("\n".join(self.terms).encode(), np.uint8)
        with checked_path(file) as temporary, temporary.open("wb") as out:
            np.savez(out, **self._asdict() | {"terms": terms})

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a block that :meth:`save` wrote."""
        with np.load(file) as arrays:
            terms = arrays["terms"].tobytes().decode().split("\n")
            return cls(terms, *(arrays[name] for name in cls._fields[1:]))


@dataclass(frozen=True)
class _Vocabulary:
    """The terms of all blocks.

    Attributes:
        numbers: Term to its number, in the order of first occurrences in the corpus.
        of_blocks: (t,) numbers of the terms of each block.
        sizes: (T,) numbers of documents with each term.
        lengths: (N,) terms of each document.
    """

    numbers: dict[str, int]
    of_blocks: list[Rows]
    sizes: Ints
    lengths: Rows

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Self:
        numbers: dict[str, int] = {}
        of_blocks: list[Rows] = []
        sizes = np.zeros(0, np.int64)
        lengths = [np.zeros(0, np.int32)]
        for block in blocks:
            new = [term for term in block.terms if term not in numbers]
            last = len(numbers) + len(new)
            numbers.update(zip(new, range(len(numbers), last), strict=True))
            of_terms = map(numbers.__getitem__, block.terms)
            of_block = np.fromiter(of_terms, np.int32, len(block.terms))
            sizes = np.pad(sizes, (0, len(numbers) - len(sizes)))
            sizes[of_block] += block.sizes
            of_blocks.append(of_block)
            lengths.append(block.lengths)
        return cls(numbers, of_blocks, sizes, np.concatenate(lengths))


class Postings:
    """The weight of each term in each document that it occurs in, by Lucene's variant of BM25.

    Attributes:
        vocabulary: Term to its number, in the order of first occurrences in the corpus.
        documents: The number of documents, N.
        starts: (T + 1,) where each term begins in ``rows`` and ``weights``.
        rows: (P,) documents of each term, ascending.
        weights: (P,) its weights there.
        most: (T,) the largest weight of each term.
    """

    def __init__(
        self,
        vocabulary: dict[str, int],
        documents: int,
        starts: Ints,
        rows: Rows,
        weights: Floats,
        most: Floats,
    ) -> None:
        """Take the arrays, see the attributes."""
        self.vocabulary = vocabulary
        self.documents = documents
        self.starts = starts
        self.rows = rows
        self.weights = weights
        self.most = most

    @classmethod
    def build(
        cls,
        blocks: Callable[[], Iterable[Block]],
        k1: float,
        b: float,
        folder: Path | None = None,
    ) -> Self:
        """Build postings from blocks in corpus order.

        Args:
            blocks: Returns the blocks; it is called twice.
            k1: See :func:`~beir_cocodr.models.term_weights.length_norms`.
            b: See :func:`~beir_cocodr.models.term_weights.length_norms`.
            folder: Where the postings are written, a block at a time; without it they are held in
                memory.
        """
        vocabulary = _Vocabulary.of(blocks())
        documents = len(vocabulary.lengths)
        starts = np.concatenate([[0], np.cumsum(vocabulary.sizes)])
        terms = len(vocabulary.numbers)
        size = int(starts[-1])
        postings = cls(
            vocabulary=vocabulary.numbers,
            documents=documents,
            starts=_new_array(folder, "starts", terms + 1, np.int64),
            rows=_new_array(folder, "rows", size, np.int32),
            weights=_new_array(folder, "weights", size, np.float32),
            most=_new_array(folder, "most", terms, np.float32),
        )
        postings.starts[:] = starts
        postings.most[:] = 0
        wide_idf = inverse_document_frequencies(vocabulary.sizes, documents)
        idf = wide_idf.astype(np.float32)
        mean_length = 1.0
        if documents:
            mean_length = float(vocabulary.lengths.mean())
        free = starts[:-1].copy()
        first = 0
        for block, numbers in zip(blocks(), vocabulary.of_blocks, strict=True):
            norms = length_norms(block.lengths, mean_length, k1, b)
            tf = block.counts.astype(np.float32)
            saturated = tf / (norms[block.rows] + tf)
            idf_of_counts = np.repeat(idf[numbers], block.sizes)
            weights = (idf_of_counts * saturated).astype(np.float32)
            postings._add(block, numbers, weights, free, first)
            first += len(block.lengths)
        if folder is not None:
            postings._flush(folder)
        return postings

    def _add(
        self,
        block: Block,
        numbers: Rows,
        weights: Floats,
        free: Ints,
        first: int,
    ) -> None:
        """Add a block.

        Args:
            block: The block.
            numbers: (t,) numbers of its terms.
            weights: (p,) weights of its counts.
            free: (T,) the first free place of each term, which is moved.
            first: Row of the block's first document.
        """
        begins = np.cumsum(block.sizes) - block.sizes
        moves = free[numbers] - begins
        places = np.arange(block.sizes.sum())
        places += np.repeat(moves, block.sizes)
        self.rows[places] = block.rows + np.int32(first)
        self.weights[places] = weights
        occurs = block.sizes > 0
        present = numbers[occurs]
        largest = np.maximum.reduceat(weights, begins[occurs])
        self.most[present] = np.maximum(self.most[present], largest)
        free[numbers] += block.sizes

    def _flush(self, folder: Path) -> None:
        for name in _ARRAYS:
            array = getattr(self, name)
            if isinstance(array, np.memmap):
                array.flush()
        content = json.dumps(
            [self.documents, list(self.vocabulary)],
            ensure_ascii=False,
        )
        write_text(folder / _VOCABULARY, content)

    @classmethod
    def open(cls, folder: Path, words: bool = True) -> Self:
        """Map what :meth:`build` wrote into memory.

        Args:
            folder: Where it was written.
            words: Read the vocabulary too.
        """
        content = (folder / _VOCABULARY).read_text(encoding="utf-8")
        documents, terms = json.loads(content)
        vocabulary = {}
        if words:
            vocabulary = {term: number for number, term in enumerate(terms)}
        arrays = []
        for name in _ARRAYS:
            mapped = np.load(folder / f"{name}.npy", mmap_mode="r")
            # Plain arrays over the map: slices of a memmap cost microseconds each.
            arrays.append(np.asarray(mapped))
        return cls(vocabulary, documents, *arrays)

    def of(self, term: int) -> tuple[Rows, Floats]:
        """Return the documents of a term and its weights there."""
        held = slice(*self.starts[term : term + 2])
        return self.rows[held], self.weights[held]

    def scores(self, terms: Iterable[int], scores: Floats | None = None) -> Floats:
        """Return the (N,) float32 scores of all documents for a query of terms, term after term.

        Args:
            terms: The query.
            scores: What the scores are added to, in place.
        """
        if scores is None:
            scores = np.zeros(self.documents, np.float32)
        for term in terms:
            rows, weights = self.of(term)
            bounds = np.array((0, len(rows)), np.int32)
            # Twice as fast as np.add.at. The public product of scipy's sparse arrays makes (N,)
            # zeros for each term.
            csc_matvec(len(scores), 1, bounds, rows, weights, _ONE, scores)
        return scores

    def scores_of(self, terms: Iterable[int], rows: Ints) -> Floats:
        """Return the (m,) scores of some documents, as :meth:`scores` gives them."""
        scores = np.zeros(len(rows), np.float32)
        for term in terms:
            held, weights = self.of(term)
            if len(held):
                places = held.searchsorted(rows.astype(np.int32))
                places = np.minimum(places, len(held) - 1)
                has_term = held[places] == rows
                scores += np.where(has_term, weights[places], np.float32(0))
        return scores

    def search(
        self,
        queries: Iterable[Sequence[int]],
        depth: int,
        ties: Ints,
    ) -> Iterator[tuple[Ints, Floats]]:
        """Yield the rows and scores of the best documents of each query, best first.

        Documents form the rows of a grid. As many rows as documents are wanted have a document of
        at least the depth-th largest of the rows' maxima, so that nothing below it is looked at
        again.

        Args:
            queries: Queries of terms.
            depth: The most documents of a query.
            ties: (N,) tie ranks; among equal scores the smaller one comes first.
        """
        width = max(_NARROWEST, self.documents // (_GRID * depth))
        height = self.documents // width + 1
        grid = np.zeros((height, width), np.float32)
        for terms in queries:
            grid.fill(0)
            self.scores(terms, grid.reshape(-1))
            rows, scores = _candidates(grid, depth)
            best = best_rows(scores, ties[rows], depth)
            yield rows[best], scores[best]


def _candidates(grid: Floats, depth: int) -> tuple[Ints, Floats]:
    """Return the documents of a grid that may be among the best, and their scores."""
    width = grid.shape[1]
    most = grid.max(axis=1)
    least = _TINY
    if len(most) > depth:
        partitioned = np.partition(most, len(most) - depth)
        least = max(least, partitioned[-depth])
    lines = np.flatnonzero(most >= least)
    scores = grid[lines].reshape(-1)
    places = np.flatnonzero(scores >= least)
    line, column = np.divmod(places, width)
    rows = lines[line] * width + column
    return rows, scores[places]


def _new_array(
    folder: Path | None,
    name: str,
    size: int,
    kind: type,
) -> Array:
    """Return an array in memory, or, if it is not empty, mapped to a file of a folder."""
    if folder is None or not size:
        return np.empty(size, kind)
    mapped: Array = open_memmap(
        folder / f"{name}.npy",
        mode="w+",
        dtype=kind,
        shape=(size,),
    )
    return mapped
