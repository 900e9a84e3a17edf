"""BM25: texts read by bm25s, its weights held in memory, or made by all processes of a run and mapped from the disk."""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from bm25s.tokenization import Tokenizer

from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.io import draft_folder, filling_cache, json_sha256
from beir_cocodr.records import Json
from beir_cocodr.retrieval.postings import Block, Postings
from beir_cocodr.retrieval.ranking import Parts, Ranking

# Documents counted at a time, the seconds that takes, and the version of what is kept on the disk.
_BLOCK, _BLOCK_SECONDS, _FORMAT = 10_000, 0.5, 1


class BM25:
    """A BM25 index over title and text of a corpus.

    Args:
        documents: the corpus; its texts are streamed, its postings are held in memory, or see :meth:`keep`.
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
        self._postings: Postings | None = None
        #: What others derived from this index and may want again, by name.
        self.derived: dict[str, Any] = {}

    @property
    def postings(self) -> Postings:
        """The index, built if need be."""
        if self._postings is None:
            counting = _Counting(self.documents, self.text_format, self.analyzer)
            blocks = [counting.block(number) for number in range(counting.blocks)]
            self._use(Postings.build(lambda: blocks, self.k1, self.b))
        assert self._postings is not None
        return self._postings

    def prepare(self) -> None:
        """Build the index; a second call costs nothing."""
        _ = self.postings

    def grid(self, k1: Iterable[float], b: Iterable[float]) -> Iterator[Self]:
        """The same index with each pair of parameters; texts are read once."""
        counting = _Counting(self.documents, self.text_format, self.analyzer)
        blocks = [counting.block(number) for number in range(counting.blocks)]
        for one, other in itertools.product(k1, b):
            made = copy.copy(self)
            made.k1, made.b, made.derived = one, other, {}
            made._use(Postings.build(lambda: blocks, one, other))
            yield made

    def keep(self, root: Path) -> Path:
        """Build the index in a folder of ``root``, named by what it depends on, unless it is there, and map it into
        memory; gives the folder. All processes of a run call this, and share the work, also with their other cores.

        Memory holds a block of documents in each process; what a killed run counted is not counted again.
        """
        from beir_cocodr.distributed import on_main  # BM25 alone does not load torch
        from beir_cocodr.retrieval.pool import share_over_ranks

        key = json_sha256({"corpus": self.documents.content_hash, "format": _FORMAT, **self.describe()})[:32]
        folder, parts = root / key, root / f"{key}.parts"
        if on_main(lambda: not folder.is_dir()):
            counting = _Counting(self.documents, self.text_format, self.analyzer, parts)
            tasks = range(counting.blocks)
            with filling_cache(root):
                parts.mkdir(exist_ok=True)
                share_over_ranks(tasks, counting.start, lambda n: counting.file(n).is_file(), _BLOCK_SECONDS)
                on_main(partial(self._merge, folder, counting))
                if not folder.is_dir():  # of a process with a disk of its own
                    self._merge(folder, counting)
        self._use(Postings.open(folder))
        return folder

    def _merge(self, folder: Path, counting: "_Counting") -> None:
        with draft_folder(folder, replace=True) as draft:
            Postings.build(counting.read, self.k1, self.b, draft)
            np.save(draft / TIES, self.documents.tie_ranks())
        rmtree(counting.folder or draft, ignore_errors=True)

    def _use(self, postings: Postings) -> None:
        self._postings, words = postings, postings.vocabulary
        self._empty = words.get("")
        self._tokenizer.stem_to_sid = words
        self._tokenizer.word_to_id = {} if self._tokenizer.stemmer else words

    def terms(self, texts: list[str]) -> list[list[int]]:
        """The terms of texts as numbers, in order and as often as they stand there; unknown ones are left out."""
        self.prepare()
        found = self._tokenizer.tokenize(texts, update_vocab=False, show_progress=False)
        return [[token for token in ids if token != self._empty] for ids in found]

    def scores(self, query: str) -> np.ndarray:
        """(N,) float32 scores of all documents for one query, 0 where no term is shared."""
        return self.postings.scores(self.terms([query])[0])

    def term_counts(self, texts: list[str]) -> list[Counter[int]]:
        """How often each term of the index stands in each text, terms as numbers; others are left out."""
        return [Counter(terms) for terms in self.terms(texts)]

    def term_scores(self, weights: Mapping[int, float], first: int = 0, last: int | None = None) -> np.ndarray:
        """(n,) float32 scores of consecutive documents, by default of all, for a query of weighted terms, which have
        the numbers of :meth:`term_counts`.
        """
        last = len(self.documents) if last is None else last
        scores = np.zeros(last - first, np.float32)
        for term, weight in weights.items():
            rows, of_term = self.postings.of(term)
            here = slice(*np.searchsorted(rows, np.array((first, last), rows.dtype)))
            scores[rows[here] - first] += np.float32(weight) * of_term[here]
        return scores

    def weights(self) -> sp.csr_matrix:
        """(N, T) BM25's weight of each term in each document: a score is the sum over the terms of the query."""
        found = self.postings
        columns = (found.weights, found.rows, found.starts)
        return sp.csc_matrix(columns, (len(self.documents), len(found.most))).tocsr()

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
        ties = self.documents.tie_ranks()
        found = self.postings.search(self.terms(list(queries.values())), min(top_k, len(ties)), ties)
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


#: The file of an index that is kept, with the tie ranks of its documents.
TIES = "ties.npy"


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

    def block(self, number: int) -> Block:
        rows = np.arange(number * _BLOCK, min(len(self.documents), (number + 1) * _BLOCK))
        texts, numbers = (self.text_format.document(d) for d in self.documents.take(rows)), _Numbers(self.analyzer)
        # As bm25s does, a text without terms has one of its own.
        ids = [[n for n in map(numbers.__getitem__, numbers.split(text.lower())) if n >= 0] or [0] for text in texts]
        return Block.counted(ids, list(numbers.terms))

    def start(self, device: str) -> Callable[[int], None]:
        return lambda number: self.block(number).save(self.file(number))

    def read(self) -> Iterator[Block]:
        return (Block.read(self.file(number)) for number in range(self.blocks))


class _Numbers(dict[str, int]):
    """Word to the number of its term, -1 for a stop word: what bm25s's tokenizer does word by word."""

    def __init__(self, analyzer: str) -> None:
        super().__init__()
        read = Analyzer(analyzer)
        self.split, self._stop_words, self._stemmer = read.split, read.stop_words, read.stemmer
        self.terms = {"": 0}

    def __missing__(self, word: str) -> int:
        term = word if self._stemmer is None else self._stemmer.stemWord(word)
        number = self[word] = -1 if word in self._stop_words else self.terms.setdefault(term, len(self.terms))
        return number
