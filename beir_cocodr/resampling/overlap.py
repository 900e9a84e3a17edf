"""What a training set gives away of a test set: shared labels, repeated queries, similar
queries.
"""

import functools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection as Container
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import Stemmer
from bm25s.tokenization import Tokenizer
from scipy import sparse

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_writer, text_cell
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import Report, versions
from beir_cocodr.resampling.manifest import (
    EncoderRecord,
    LabelOverlap,
    OverlapSummary,
    SimilaritySummary,
)

log = logging.getLogger(__name__)
Qrels = Mapping[str, Mapping[str, int]]

#: Test query id to the ids of training queries, in their order.
Pairs = dict[str, list[str]]

#: (n, V) ones of n texts over V words, see `word_sets`.
WordSets: TypeAlias = Any  # scipy has no types

# Test queries whose overlaps with all training queries are held at a time.
_BLOCK = 64


@dataclass(frozen=True)
class TrainTest:
    """A training set and a test set with judged queries each, usually two splits of one collection.

    ``tests``: the names of what was joined to one test set.
    """

    train: Collection
    test: Collection
    tests: tuple[str, ...]

    @classmethod
    def load(
        cls,
        train: str,
        test: str | Sequence[str],
        train_split: str = "train",
        test_split: str = "test",
    ) -> "TrainTest":
        """Load datasets by name, judged, else an InputError; several test sets over one corpus
        count as one. A warning is logged where training and test corpus differ.
        """
        tests = (test,) if isinstance(test, str) else tuple(dict.fromkeys(test))
        loaded = [load_collection(name, test_split) for name in tests]
        pair = cls(load_collection(train, train_split), functools.reduce(_joined, loaded), tests)
        if not pair.same_corpus:
            log.warning(
                "%s and %s have different corpora; labels are compared by the ids of documents",
                train,
                pair.test.name,
            )
        return pair

    @property
    def same_corpus(self) -> bool:
        """Whether both have the same documents, whatever they are called."""
        return self.train.documents.content_hash == self.test.documents.content_hash

    @cached_property
    def duplicates(self) -> "QueryDuplicates":
        """Test queries that training queries repeat."""
        return duplicate_queries(self.train.queries, self.test.queries, *self.words)

    @cached_property
    def words(self) -> tuple[WordSets, WordSets]:
        """The word sets of training and test queries."""
        train, test = word_sets(self.train.queries.values(), self.test.queries.values())
        return train, test

    def check_usable(self) -> None:
        """InputError: more test than training queries; or, where both go into one folder, an id
        with two texts.
        """
        queries, tests = self.train.queries, self.test.queries
        if len(tests) > len(queries):
            raise InputError(
                f"the test set is larger than the training set: {len(tests)} queries of {self.test.name} and "
                f"{len(queries)} of {self.train.name}; training queries are chosen among, so give the larger "
                "set as --train"
            )
        for query, text in tests.items() if self.same_corpus else ():
            if queries.get(query, text) != text:
                raise InputError(
                    f"the id {query!r} has one text in {self.train.name} and another in {self.test.name}: "
                    "rename it in one of them"
                )


def _joined(one: Collection, other: Collection) -> Collection:
    """Two test sets as one."""
    if one.documents.content_hash != other.documents.content_hash:
        raise InputError(
            f"{one.name} and {other.name} have different corpora; test sets that count as one share theirs: resample "
            "for each of them"
        )
    for query in one.queries.keys() & other.queries.keys():
        if one.queries[query] != other.queries[query] or one.qrels[query] != other.qrels[query]:
            raise InputError(
                f"the id {query!r} has other texts or judgements in {one.name} than in {other.name}: rename it in one "
                "of them"
            )
    return replace(
        one,
        name=f"{one.name}, {other.name}",
        queries=one.queries | other.queries,
        qrels=one.qrels | other.qrels,
        counts=dict(Counter(one.counts) + Counter(other.counts)),
    )


@dataclass(frozen=True)
class QueryDuplicates:
    """Test queries that training queries repeat.

    Attributes:
        exact: the same text, but for case and white space.
        near: another text of the same words, after stop words and punctuation are taken out and the
            rest is stemmed, in any order and number; a query without such words has none.
    """

    exact: Pairs
    near: Pairs

    def among(self, train: Iterable[str], test: Container[str]) -> dict[str, int]:
        """How many of the given test queries the given training queries repeat."""
        return {
            name: sum(
                query in test and not set(found).isdisjoint(train) for query, found in pairs.items()
            )
            for name, pairs in (("exact_duplicates", self.exact), ("near_duplicates", self.near))
        }


def duplicate_queries(
    train: Mapping[str, str], test: Mapping[str, str], train_words: WordSets, test_words: WordSets
) -> QueryDuplicates:
    """Find test queries that stand in the training set as well, by id to text, and by the rows of
    `word_sets`.

    Source: after Zhan et al., 2022, Table 4, whose duplicates differ in stop words and in the order
    of words.
    """
    by_text: defaultdict[str, list[str]] = defaultdict(list)
    by_words: defaultdict[bytes, list[str]] = defaultdict(list)
    for row, (query, text) in enumerate(train.items()):
        by_text[_folded(text)].append(query)
        by_words[_words(train_words, row)].append(query)
    exact, near = {}, {}
    for row, (query, text) in enumerate(test.items()):
        if same_text := by_text.get(_folded(text), []):
            exact[query] = same_text
        words, apart = _words(test_words, row), set(same_text)
        if same_words := [
            other for other in by_words.get(words, []) if words and other not in apart
        ]:
            near[query] = same_words
    return QueryDuplicates(exact, near)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _words(matrix: WordSets, row: int) -> bytes:
    """The words of a row as something that can be looked up; b"" where there are none."""
    found: bytes = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tobytes()
    return found


def word_sets(*groups: Iterable[str]) -> list[WordSets]:
    """Texts to sets of stems without English stop words, as in our BM25, but with single characters
    and so numbers.

    Each group of texts gives one (n, V) int32 sparse matrix of ones, rows in order, a row's columns
    ascending.
    """
    tokenizer: Any = Tokenizer(
        splitter=r"\w+", stopwords="english", stemmer=Stemmer.Stemmer("english")
    )
    # Without allow_empty the host gives a text without words a word of its own, "".
    tokens = [
        tokenizer.tokenize(texts, update_vocab=True, show_progress=False, allow_empty=False)
        if texts
        else []
        for texts in map(list, groups)
    ]
    return [_matrix(ids, len(tokenizer.get_vocab_dict())) for ids in tokens]


def _matrix(ids: list[list[int]], width: int) -> WordSets:
    words = [sorted(set(found)) for found in ids]
    starts = np.cumsum([0, *map(len, words)], dtype=np.int64)
    columns = np.fromiter((word for found in words for word in found), np.int64, int(starts[-1]))
    return sparse.csr_array(
        (np.ones(len(columns), np.int32), columns, starts), shape=(len(words), width)
    )


def nearest_by_words(train: WordSets, test: WordSets) -> tuple[Floats, Ints]:
    """The training query of highest Jaccard similarity for every test query, the first of equal
    ones: (T,) scores in 0..1 and (T,) rows; where no training query shares a word, 0 and -1.
    ``train``, ``test``: (N, V) and (T, V).
    """
    scores, rows = np.zeros(test.shape[0], np.float32), np.full(test.shape[0], -1, np.int64)
    by_word = train.T.tocsr()
    train_sizes, test_sizes = np.diff(train.indptr), np.diff(test.indptr)
    for start in range(0, test.shape[0], _BLOCK):
        common = (test[start : start + _BLOCK] @ by_word).tocsr()
        for i in range(common.shape[0]):
            part = slice(common.indptr[i], common.indptr[i + 1])
            columns, shared = common.indices[part], common.data[part]
            if not len(columns):
                continue
            jaccard = shared / (test_sizes[start + i] + train_sizes[columns] - shared)
            scores[start + i] = jaccard.max()
            rows[start + i] = columns[jaccard == jaccard.max()].min()
    return scores, rows


def label_overlap(train_qrels: Qrels, test_qrels: Qrels) -> list[LabelOverlap]:
    """Test queries of which enough relevant passages are relevant to training queries: by either
    rule a row for every positive grade of the test judgements, the highest first. ``minimum`` 1,
    "any of its passages", is the paper's rule; 2, "more than one", its published script's.

    Args:
        train_qrels, test_qrels: query id to {document id: grade}, relevant to a training query from
            grade 1 on; all test queries are counted, also those without a passage of the grade.

    Source: Zhan et al., 2022, section 3.2 and Table 3.
    """
    relevant = {
        document
        for grades in train_qrels.values()
        for document, grade in grades.items()
        if grade > 0
    }
    grades = sorted(
        {grade for judged in test_qrels.values() for grade in judged.values() if grade > 0},
        reverse=True,
    )
    shared = [
        [grade for document, grade in judged.items() if document in relevant]
        for judged in test_qrels.values()
    ]
    rows, queries = [], len(test_qrels)
    for minimum in (1, 2):
        for least in grades:
            found = sum(sum(grade >= least for grade in grades) >= minimum for grades in shared)
            rows.append(LabelOverlap(least, minimum, found, queries, found / queries))
    return rows


def overlap_summary(
    pair: TrainTest,
    train: Container[str],
    test: Container[str],
    similarities: npt.NDArray[np.floating[Any]],
) -> OverlapSummary:
    """Label overlap by both rules, repeated queries, and similarity to the nearest training query.

    Args:
        pair: the full sets.
        train, test: ids of the queries that are looked at; sets are fast.
        similarities: (t,) of those test queries to their nearest of those training queries.
    """
    train_qrels = {query: grades for query, grades in pair.train.qrels.items() if query in train}
    test_qrels = {query: grades for query, grades in pair.test.qrels.items() if query in test}
    return OverlapSummary(
        training_queries=len(train_qrels),
        test_queries=len(test_qrels),
        label_overlap=label_overlap(train_qrels, test_qrels),
        **pair.duplicates.among(train, test),
        nearest_similarity=similarity_summary(similarities),
    )


def similarity_summary(similarities: npt.NDArray[np.floating[Any]]) -> SimilaritySummary:
    """Mean, median and range; the last bits, which depend on the processor, are cut off."""
    found = np.asarray(similarities, np.float64)
    numbers = found.mean(), np.median(found), found.min(), found.max()
    return SimilaritySummary(*(round(float(number), 5) for number in numbers))


_BIN = 0.05


@dataclass(frozen=True)
class SideRecord:
    """One of the two sets that are compared."""

    dataset: str
    split: str | None
    queries: int


@dataclass(frozen=True)
class RepeatedQueries:
    """How many test queries are repeated, their share of all, and by which training queries."""

    queries: int
    share: float
    pairs: Pairs


@dataclass(frozen=True)
class NearestQuery:
    """A test query and the training query most similar to it, None where none shares a word."""

    query: str
    text: str
    training_query: str | None
    training_text: str | None
    similarity: float


@dataclass(frozen=True)
class Histogram:
    """(B + 1,) ascending edges of B bins, and (B,) what is in them."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class NearestQueries(SimilaritySummary):
    """Every test query's nearest training query.

    Attributes:
        similarity: "words" (Jaccard similarity) or "cosine".
        encoder: of the cosines, None for words.
    """

    similarity: str
    encoder: EncoderRecord | None
    histogram: Histogram
    queries: list[NearestQuery]


@dataclass(frozen=True)
class Overlap(Report):
    """``overlap.json``: what a training set gives away of a test set.

    Attributes:
        same_corpus: whether they have the same documents.
        label_overlap: a row for every grade and rule (``minimum`` 1: any of the passages of that
            grade or more is relevant to a training query; 2: more than one).
        exact_duplicates, near_duplicates: see `QueryDuplicates`.
        nearest: the most similar training query of every test query.
    """

    train: SideRecord
    test: SideRecord
    same_corpus: bool
    label_overlap: list[LabelOverlap]
    exact_duplicates: RepeatedQueries
    near_duplicates: RepeatedQueries
    nearest: NearestQueries

    def write_nearest(self, path: Path) -> None:
        """Write the nearest training queries as a table, one test query a line."""
        columns = ("query", "training_query", "similarity", "text", "training_text")
        with atomic_writer(path) as file:
            print(*columns, sep="\t", file=file)
            for row in self.nearest.queries:
                values = {
                    name: "" if (value := getattr(row, name)) is None else str(value)
                    for name in columns
                }
                values |= {name: text_cell(values[name]) for name in ("text", "training_text")}
                print(*values.values(), sep="\t", file=file)


def overlap(
    train: str,
    test: str | Sequence[str],
    *,
    train_split: str = "train",
    test_split: str = "test",
    encoder: str | None = None,
    search: SearchOptions = SearchOptions(),
) -> Overlap:
    """Compare the labels and the queries of a training set with those of a test set. An InputError
    names what has to be corrected in a collection or the encoder.

    Args:
        train, test: datasets as the command line names them, with the splits of their judgements;
            several test sets over one corpus count as one.
        encoder: its query embeddings decide by cosine which training query is nearest; without one
            it is the Jaccard similarity of stemmed words, stop words taken out.
        search: how queries are encoded.

    Source: Zhan et al., 2022, section 3.2, Tables 3 and 4.
    """
    if encoder is not None:
        check_device(search.encoder.device)
    pair = TrainTest.load(train, test, train_split, test_split)
    scores, rows, described = _nearest(pair, encoder, search)
    exact, near = (
        RepeatedQueries(len(pairs), len(pairs) / len(pair.test.queries), pairs)
        for pairs in (pair.duplicates.exact, pair.duplicates.near)
    )
    return Overlap(
        train=SideRecord(train, pair.train.split, len(pair.train.queries)),
        test=SideRecord(pair.test.name, pair.test.split, len(pair.test.queries)),
        same_corpus=pair.same_corpus,
        label_overlap=label_overlap(pair.train.qrels, pair.test.qrels),
        exact_duplicates=exact,
        near_duplicates=near,
        nearest=NearestQueries(
            **vars(similarity_summary(scores)),
            similarity="words" if encoder is None else "cosine",
            encoder=described,
            histogram=_histogram(scores),
            queries=_nearest_queries(pair, scores, rows),
        ),
        versions=versions(),
    )


def _nearest(
    pair: TrainTest, encoder: str | None, search: SearchOptions
) -> tuple[Doubles, Ints, EncoderRecord | None]:
    """Similarity and row of the nearest training query of every test query, (T,) each."""
    if encoder is None:
        scores, rows = nearest_by_words(*pair.words)
        return scores.astype(np.float64), rows, None
    # Imported here because a comparison of words must not wait six seconds for torch.
    from beir_cocodr.resampling.similarity import QueryEncoder, nearest, query_embeddings

    model = QueryEncoder(encoder, search)
    test = query_embeddings(model, pair.test.queries).load().numpy()
    found = nearest(query_embeddings(model, pair.train.queries), test, 1)
    return found.scores[:, 0].astype(np.float64), found.rows[:, 0], model.describe()


def _histogram(scores: Doubles) -> Histogram:
    # Cosines may be negative, and by rounding a little more than 1.
    least = min(0.0, math.floor(float(scores.min()) / _BIN) * _BIN)
    edges = np.linspace(least, 1.0, round((1.0 - least) / _BIN) + 1)
    counts, _ = np.histogram(scores.clip(least, 1.0), edges)
    return Histogram([round(edge, 2) for edge in edges.tolist()], counts.tolist())


def _nearest_queries(pair: TrainTest, scores: Doubles, rows: Ints) -> list[NearestQuery]:
    # The last one is that of row -1.
    train: list[tuple[str | None, str | None]] = [*pair.train.queries.items(), (None, None)]
    return [
        NearestQuery(query, text, other, other_text, round(score, 5))
        for (query, text), score, row in zip(
            pair.test.queries.items(), scores.tolist(), rows.tolist(), strict=True
        )
        for other, other_text in [train[row]]
    ]
