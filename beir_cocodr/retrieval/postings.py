"""BM25's weights by term: counted in blocks of documents, by any process, held in memory or mapped from a folder, and
searched for the best documents without a look at those that cannot be among them.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from scipy.sparse._sparsetools import csc_matvec

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.io import atomic_path, write_text
from beir_cocodr.retrieval.ranking import best_rows

Rows = npt.NDArray[np.int32]
_VOCABULARY, _ARRAYS = "vocabulary.json", ("starts", "rows", "weights", "most")

# Of the grid that the best are looked for in: lines for each that is wanted, and the fewest documents of one.
_GRID, _NARROWEST = 32, 64
_TINY, _ONE = np.finfo(np.float32).tiny, np.ones(1, np.float32)


class Block(NamedTuple):
    """How often terms stand in consecutive documents.

    Args:
        terms: of the block, in the order in which they first stand there.
        sizes: (t,) in how many documents each stands.
        rows, counts: (p,) the documents of the first term, ascending from 0, then of the next; how often it stands.
        lengths: (n,) terms of each document.
    """

    terms: list[str]
    sizes: Ints
    rows: Rows
    counts: Rows
    lengths: Rows

    @classmethod
    def counted(cls, ids: Sequence[Sequence[int]], terms: list[str]) -> Self:
        """Documents as numbers of ``terms``."""
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
        keys, counts = np.unique(flat * len(ids) + np.repeat(np.arange(len(ids)), lengths), return_counts=True)
        sizes = np.bincount(keys // len(ids), minlength=len(terms))
        return cls(terms, sizes, (keys % len(ids)).astype(np.int32), counts.astype(np.int32), lengths)

    def save(self, file: Path) -> None:
        arrays: dict[str, Any] = self._asdict() | {"terms": np.frombuffer("\n".join(self.terms).encode(), np.uint8)}
        with atomic_path(file) as temporary, temporary.open("wb") as out:
            np.savez(out, **arrays)

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

    def __init__(self, vocabulary: dict[str, int], documents: int, *arrays: npt.NDArray[Any]) -> None:
        self.vocabulary, self.documents = vocabulary, documents
        self.starts, self.rows, self.weights, self.most = arrays

    @classmethod
    def build(cls, blocks: Callable[[], Iterable[Block]], k1: float, b: float, folder: Path | None = None) -> Self:
        """From blocks in corpus order, which are asked for twice; in memory, or, a block at a time, in a folder."""
        vocabulary: dict[str, int] = {}
        sizes, lengths = np.zeros(0, np.int64), [np.zeros(0, np.int32)]
        for block in blocks():
            known = [vocabulary.setdefault(term, len(vocabulary)) for term in block.terms]
            sizes = np.pad(sizes, (0, len(vocabulary) - len(sizes)))
            sizes[known] += block.sizes
            lengths.append(block.lengths)
        documents, terms = sum(map(len, lengths)), len(vocabulary)
        mean = np.concatenate(lengths).mean() if documents else 0.0
        starts = np.concatenate([[0], np.cumsum(sizes)])
        shapes: list[tuple[str, int, Any]] = [("starts", terms + 1, np.int64), ("rows", int(starts[-1]), np.int32)]
        shapes += [("weights", int(starts[-1]), np.float32), ("most", terms, np.float32)]
        arrays = [
            np.empty(size, kind) if folder is None or not size else
            open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(size,))
            for name, size, kind in shapes
        ]  # fmt: skip
        made = cls(vocabulary, documents, *arrays)
        made.starts[:] = starts
        made.most[:] = 0
        idf = np.array([math.log(1 + (documents - df + 0.5) / (df + 0.5)) for df in sizes.tolist()], np.float32)
        free, first = starts[:-1].copy(), 0
        for block in blocks():
            numbers = np.array([vocabulary[term] for term in block.terms], np.int64)
            of_term = np.repeat(np.arange(len(numbers)), block.sizes)
            begins = np.cumsum(block.sizes) - block.sizes
            places = free[numbers][of_term] + np.arange(len(of_term)) - begins[of_term]
            norm = k1 * ((1 - b) + b * block.lengths / (mean or 1.0))
            tf = block.counts.astype(np.float32)
            weights = (idf[numbers][of_term] * (tf / (norm[block.rows] + tf))).astype(np.float32)
            made.rows[places], made.weights[places] = block.rows + np.int32(first), weights
            np.maximum.at(made.most, numbers[of_term], weights)
            free[numbers] += block.sizes
            first += len(block.lengths)
        if folder is not None:
            for array in arrays:
                array.flush() if isinstance(array, np.memmap) else None
            write_text(folder / _VOCABULARY, json.dumps([documents, list(vocabulary)], ensure_ascii=False))
        return made

    @classmethod
    def open(cls, folder: Path, words: bool = True) -> Self:
        """What :meth:`build` wrote, mapped into memory; without ``words``, the vocabulary is left out."""
        documents, terms = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
        # Plain arrays over the map: slices of a memmap cost microseconds each.
        arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS]
        return cls({term: number for number, term in enumerate(terms)} if words else {}, documents, *arrays)

    def of(self, term: int) -> tuple[Rows, Floats]:
        """The documents of a term and its weights there."""
        held = slice(*self.starts[term : term + 2])
        return self.rows[held], self.weights[held]

    def scores(self, terms: Iterable[int], scores: Floats | None = None) -> Floats:
        """(N,) float32 scores of all documents for a query of terms, term after term; added to ``scores`` if given."""
        scores = np.zeros(self.documents, np.float32) if scores is None else scores
        for term in terms:
            rows, weights = self.of(term)
            # Twice as fast as np.add.at. The public product of scipy's sparse arrays makes (N,) zeros for each term.
            csc_matvec(len(scores), 1, np.array([0, len(rows)], np.int32), rows, weights, _ONE, scores)
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

    def search(self, queries: Iterable[Sequence[int]], depth: int, ties: Ints) -> Iterator[tuple[Ints, Floats]]:
        """The best documents, at most ``depth``, of queries of terms, and their scores, best first; those of one score
        by ascending (N,) ``ties``.

        Documents stand in rows of a grid. As many rows as documents are wanted have one of at least the depth-th
        largest of the rows' maxima, so that nothing below it is looked at again.
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
            part = grid[lines]
            line, column = np.nonzero(part >= least)
            rows, scores = lines[line] * width + column, part[line, column]
            best = best_rows(scores, ties[rows], depth)
            yield rows[best], scores[best]
