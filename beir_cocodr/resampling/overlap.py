"""The overlap of a training set with a test set: shared labels, repeated and similar queries."""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection as Container
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import Stemmer
from scipy import sparse

from beir_cocodr.arrays import Array, Doubles, Floats, Ints
from beir_cocodr.data.analyzers import bm25s_tokenizer
from beir_cocodr.data.collection import (
    Collection,
    Dataset,
    Datasets,
    load_collection,
    load_collections,
)
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
from beir_cocodr.retrieval.resolve import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)
Qrels = Mapping[str, Mapping[str, int]]

#: Test query id to the ids of training queries, in their order.
Pairs = dict[str, list[str]]

#: (n, V) ones of n texts over V words, see :func:`word_sets`; scipy has no types.
WordSets: TypeAlias = Any

#: Test queries whose overlaps with all training queries are in memory at a time.
_BLOCK = 64


@dataclass(frozen=True)
class TrainTest:
    """A training set and a test set with judged queries each, usually two splits of one collection.

    Attributes:
        test: one collection, or several that were joined.
        test_sets: how many were joined.
    """

    train: Collection
    test: Collection
    test_sets: int

    @classmethod
    def load(
        cls,
        train: Dataset,
        test: Datasets,
        train_split: str = "train",
        test_split: str = "test",
    ) -> TrainTest:
        """Load judged collections; several test sets over one corpus count as one.

        A warning is logged if training and test corpus differ.

        Args:
            train: the collection of the training queries.
            test: one or several collections of the test queries.
            train_split: of the training queries.
            test_split: of the test queries.

        Raises:
            InputError: A collection cannot be loaded or has no judgements, or test sets do not fit
                together.
        """
        tests = load_collections(test, test_split, kind="test")
        train_collection = load_collection(train, train_split)
        pair = cls(train_collection, functools.reduce(_joined, tests), len(tests))
        if not pair.same_corpus:
            log.warning(
                "%s and %s have different corpora; labels are compared by the ids of documents",
                pair.train.name,
                pair.test.name,
            )
        return pair

    @property
    def same_corpus(self) -> bool:
        """Return true if both have the same documents, whatever their names."""
        return self.train.documents.content_hash == self.test.documents.content_hash

    @cached_property
    def duplicates(self) -> QueryDuplicates:
        """Return the test queries that training queries repeat."""
        train_words, test_words = self.words
        return duplicate_queries(self.train.queries, self.test.queries, train_words, test_words)

    @cached_property
    def words(self) -> tuple[WordSets, WordSets]:
        """Return the word sets of training and test queries."""
        train, test = word_sets(self.train.queries.values(), self.test.queries.values())
        return train, test

    def check_usable(self) -> None:
        """Check that training queries can be chosen for the test queries.

        Raises:
            InputError: There are more test than training queries; or an id has two texts, where
                both sets go into one folder.
        """
        train = self.train
        test = self.test
        if len(test.queries) > len(train.queries):
            raise InputError(
                f"the test set is larger than the training set: {len(test.queries)} queries of "
                f"{test.name} and {len(train.queries)} of {train.name}; training queries are "
                "chosen, so give the larger set as --train"
            )
        if not self.same_corpus:
            return
        for query, text in test.queries.items():
            if train.queries.get(query, text) != text:
                raise InputError(
                    f"the id {query!r} has one text in {train.name} and another in {test.name}: "
                    "rename it in one of them"
                )


def _joined(one: Collection, other: Collection) -> Collection:
    """Return two test sets as one."""
    if one.documents.content_hash != other.documents.content_hash:
        raise InputError(
            f"{one.name} and {other.name} have different corpora; test sets that count as one "
            "share theirs: resample for each of them"
        )
    for query in one.queries.keys() & other.queries.keys():
        same_text = one.queries[query] == other.queries[query]
        if not same_text or one.qrels[query] != other.qrels[query]:
            raise InputError(
                f"the id {query!r} has other texts or judgements in {one.name} than in "
                f"{other.name}: rename it in one of them"
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
        exact: the same text, except for case and white space.
        near: another text of the same words, in any order and number, after stop words and
            punctuation are removed and the rest is stemmed. A query without such words has none.
    """

    exact: Pairs
    near: Pairs

    def among(self, train: Iterable[str], test: Container[str]) -> tuple[int, int]:
        """Count the exact and the near duplicates among some training and test queries."""
        train_ids = set(train)
        exact = _repeated(self.exact, train_ids, test)
        near = _repeated(self.near, train_ids, test)
        return exact, near


def _repeated(pairs: Pairs, train: set[str], test: Container[str]) -> int:
    count = 0
    for query, training_queries in pairs.items():
        if query in test and not train.isdisjoint(training_queries):
            count += 1
    return count


def duplicate_queries(
    train: Mapping[str, str],
    test: Mapping[str, str],
    train_words: WordSets,
    test_words: WordSets,
) -> QueryDuplicates:
    """Find the test queries that the training set has as well.

    Args:
        train: id to text.
        test: id to text.
        train_words: of :func:`word_sets`, in the same order.
        test_words: of :func:`word_sets`, in the same order.

    Source: after Zhan et al., 2022, Table 4, whose duplicates differ in stop words and in the order
    of words.
    """
    by_text: defaultdict[str, list[str]] = defaultdict(list)
    by_words: defaultdict[bytes, list[str]] = defaultdict(list)
    for row, (query, text) in enumerate(train.items()):
        by_text[_folded(text)].append(query)
        by_words[_words(train_words, row)].append(query)
    exact: Pairs = {}
    near: Pairs = {}
    for row, (query, text) in enumerate(test.items()):
        same_text = by_text.get(_folded(text), [])
        if same_text:
            exact[query] = same_text
        words = _words(test_words, row)
        same_words = by_words.get(words, []) if words else []
        others = [other for other in same_words if other not in same_text]
        if others:
            near[query] = others
    return QueryDuplicates(exact, near)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _words(matrix: WordSets, row: int) -> bytes:
    """Return the words of a row as a key, b"" if it has none."""
    start, end = matrix.indptr[row : row + 2]
    words: bytes = matrix.indices[start:end].tobytes()
    return words


def word_sets(*groups: Iterable[str]) -> list[WordSets]:
    """Convert texts to sets of stems without English stop words.

    They are the terms of our BM25, and also single characters and so numbers.

    Args:
        *groups: texts.

    Returns:
        For each group one (n, V) int32 sparse matrix of ones, with rows in order, and columns
        ascending in a row.
    """
    tokenizer: PreTrainedTokenizerBase = bm25s_tokenizer()(
        splitter=r"\w+", stopwords="english", stemmer=Stemmer.Stemmer("english")
    )
    tokens = []
    for group in groups:
        texts = list(group)
        ids: list[list[int]] = []
        if texts:
            # With allow_empty, the host gives a text without words the word "".
            ids = tokenizer.tokenize(
                texts, update_vocab=True, show_progress=False, allow_empty=False
            )
        tokens.append(ids)
    width = len(tokenizer.get_vocab_dict())
    return [_matrix(ids, width) for ids in tokens]


def _matrix(ids: list[list[int]], width: int) -> WordSets:
    columns: list[int] = []
    starts = [0]
    for text_ids in ids:
        columns += sorted(set(text_ids))
        starts.append(len(columns))
    ones = np.ones(len(columns), np.int32)
    indices = np.array(columns, np.int64)
    pointers = np.array(starts, np.int64)
    return sparse.csr_array((ones, indices, pointers), shape=(len(ids), width))


def nearest_by_words(train: WordSets, test: WordSets) -> tuple[Floats, Ints]:
    """Find the training query of highest Jaccard similarity for every test query.

    Args:
        train: (N, V) word sets.
        test: (T, V) word sets.

    Returns:
        (T,) scores in 0..1 and (T,) rows, the first among equal ones; 0 and -1 where no training
        query shares a word.
    """
    count = test.shape[0]
    scores = np.zeros(count, np.float32)
    rows = np.full(count, -1, np.int64)
    by_word = train.T.tocsr()
    train_sizes = np.diff(train.indptr)
    test_sizes = np.diff(test.indptr)
    for start in range(0, count, _BLOCK):
        common = (test[start : start + _BLOCK] @ by_word).tocsr()
        for i in range(common.shape[0]):
            first = common.indptr[i]
            part = slice(first, common.indptr[i + 1])
            columns = common.indices[part]
            shared = common.data[part]
            if not len(columns):
                continue
            sizes = test_sizes[start + i] + train_sizes[columns]
            jaccard = shared / (sizes - shared)
            largest = jaccard.max()
            nearest = columns[jaccard == largest]
            scores[start + i] = largest
            rows[start + i] = nearest.min()
    return scores, rows


def label_overlap(train_qrels: Qrels, test_qrels: Qrels) -> list[LabelOverlap]:
    """Count the test queries whose relevant passages are relevant to training queries.

    Each of two rules gives a row for every positive grade of the test judgements, the highest
    first. ``minimum`` 1, "any of its passages", is the paper's rule; 2, "more than one", is that of
    its published script.

    Args:
        train_qrels: query id to {document id: grade}; documents are relevant from grade 1 on.
        test_qrels: query id to {document id: grade}; all queries are counted, also those without a
            passage of the grade.

    Source: Zhan et al., 2022, section 3.2 and Table 3.
    """
    relevant: set[str] = set()
    for judged in train_qrels.values():
        relevant.update(document for document, grade in judged.items() if grade > 0)
    grades: set[int] = set()
    shared_grades = []
    for judged in test_qrels.values():
        grades.update(grade for grade in judged.values() if grade > 0)
        shared = [grade for document, grade in judged.items() if document in relevant]
        shared_grades.append(shared)
    queries = len(test_qrels)
    rows = []
    for minimum in (1, 2):
        for least in sorted(grades, reverse=True):
            overlapping = 0
            for query_grades in shared_grades:
                passages = sum(grade >= least for grade in query_grades)
                if passages >= minimum:
                    overlapping += 1
            row = LabelOverlap(
                grade=least,
                minimum=minimum,
                overlapping=overlapping,
                queries=queries,
                share=overlapping / queries,
            )
            rows.append(row)
    return rows


def overlap_summary(
    pair: TrainTest,
    train: Container[str],
    test: Container[str],
    similarities: Array,
) -> OverlapSummary:
    """Summarise label overlap, repeated queries, and similarity to the nearest training query.

    Args:
        pair: the full sets.
        train: ids of some training queries; a set is fast.
        test: ids of some test queries; a set is fast.
        similarities: (t,) of these test queries to their nearest of these training queries.
    """
    train_qrels = {query: grades for query, grades in pair.train.qrels.items() if query in train}
    test_qrels = {query: grades for query, grades in pair.test.qrels.items() if query in test}
    exact, near = pair.duplicates.among(train, test)
    return OverlapSummary(
        training_queries=len(train_qrels),
        test_queries=len(test_qrels),
        label_overlap=label_overlap(train_qrels, test_qrels),
        exact_duplicates=exact,
        near_duplicates=near,
        nearest_similarity=similarity_summary(similarities),
    )


def similarity_summary(similarities: Array) -> SimilaritySummary:
    """Return mean, median and range, without the last bits, which depend on the processor."""
    values = np.asarray(similarities, np.float64)
    return SimilaritySummary(
        mean=_rounded(values.mean()),
        median=_rounded(np.median(values)),
        least=_rounded(values.min()),
        most=_rounded(values.max()),
    )


def _rounded(number: Any) -> float:
    return round(float(number), 5)


#: Width of a bar of the histogram.
_BIN = 0.05


@dataclass(frozen=True)
class SideRecord:
    """One of the two sets that are compared."""

    dataset: str
    split: str | None
    queries: int


@dataclass(frozen=True)
class RepeatedQueries:
    """Counts of repeated test queries, their share, and the training queries that repeat them."""

    queries: int
    share: float
    pairs: Pairs


@dataclass(frozen=True)
class NearestQuery:
    """A test query and the training query most similar to it, None if none shares a word."""

    query: str
    text: str
    training_query: str | None
    training_text: str | None
    similarity: float


@dataclass(frozen=True)
class Histogram:
    """(B + 1,) ascending edges of B bins, and (B,) counts."""

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
    """``overlap.json``: what a training set reveals of a test set.

    Attributes:
        same_corpus: whether they have the same documents.
        label_overlap: a row for every grade and rule (``minimum`` 1: any of the passages of that
            grade or more is relevant to a training query; 2: more than one).
        exact_duplicates, near_duplicates: see :class:`QueryDuplicates`.
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
        with atomic_writer(path) as file:
            print("query\ttraining_query\tsimilarity\ttext\ttraining_text", file=file)
            for row in self.nearest.queries:
                cells = [
                    row.query,
                    row.training_query or "",
                    str(row.similarity),
                    text_cell(row.text),
                    text_cell(row.training_text or ""),
                ]
                print("\t".join(cells), file=file)


def overlap(
    train: Dataset,
    test: Datasets,
    *,
    model: Model | None = None,
    train_split: str = "train",
    test_split: str = "test",
    search: SearchOptions = SearchOptions(),
) -> Overlap:
    """Compare the labels and the queries of a training set with those of a test set.

    Args:
        train: the collection of the training queries.
        test: the collection of the test queries; several over one corpus count as one.
        model: an encoder; the cosine of its query embeddings decides which training query is
            nearest. By default it is the Jaccard similarity of stemmed words without stop words.
        train_split: of the training queries.
        test_split: of the test queries.
        search: how queries are encoded.

    Raises:
        InputError: A collection or the encoder must be corrected.

    Source: Zhan et al., 2022, section 3.2, Tables 3 and 4.
    """
    if model is not None:
        check_device(search.encoder.device)
    pair = TrainTest.load(train, test, train_split, test_split)
    return Overlap(
        train=_side(pair.train),
        test=_side(pair.test),
        same_corpus=pair.same_corpus,
        label_overlap=label_overlap(pair.train.qrels, pair.test.qrels),
        exact_duplicates=_repeated_queries(pair.duplicates.exact, pair),
        near_duplicates=_repeated_queries(pair.duplicates.near, pair),
        nearest=_nearest_queries(pair, model, search),
        versions=versions(),
    )


def _side(collection: Collection) -> SideRecord:
    return SideRecord(collection.name, collection.split, len(collection.queries))


def _repeated_queries(pairs: Pairs, pair: TrainTest) -> RepeatedQueries:
    return RepeatedQueries(len(pairs), len(pairs) / len(pair.test.queries), pairs)


def _nearest_queries(
    pair: TrainTest,
    model: Model | None,
    search: SearchOptions,
) -> NearestQueries:
    scores, rows, encoder = _nearest(pair, model, search)
    return NearestQueries(
        **asdict(similarity_summary(scores)),
        similarity="words" if model is None else "cosine",
        encoder=encoder,
        histogram=_histogram(scores),
        queries=_nearest_pairs(pair, scores, rows),
    )


def _nearest(
    pair: TrainTest, model: Model | None, search: SearchOptions
) -> tuple[Doubles, Ints, EncoderRecord | None]:
    """Return (T,) similarities and (T,) rows of the nearest training query of every test query."""
    if model is None:
        train_words, test_words = pair.words
        scores, rows = nearest_by_words(train_words, test_words)
        return scores.astype(np.float64), rows, None
    # Imported here because a comparison of words must not wait six seconds for torch.
    from beir_cocodr.resampling.similarity import QueryEncoder, nearest, query_embeddings

    encoder = QueryEncoder(model, search)
    test = query_embeddings(encoder, pair.test.queries).load().numpy()
    neighbours = nearest(query_embeddings(encoder, pair.train.queries), test, 1)
    similarities = neighbours.scores[:, 0].astype(np.float64)
    return similarities, neighbours.rows[:, 0], encoder.describe()


def _histogram(scores: Doubles) -> Histogram:
    # Cosines may be negative, and by rounding a little more than 1.
    lowest_bin = math.floor(float(scores.min()) / _BIN)
    least = min(0.0, lowest_bin * _BIN)
    bins = round((1.0 - least) / _BIN)
    edges = np.linspace(least, 1.0, bins + 1)
    counts, _ = np.histogram(scores.clip(least, 1.0), edges)
    return Histogram([round(edge, 2) for edge in edges.tolist()], counts.tolist())


def _nearest_pairs(pair: TrainTest, scores: Doubles, rows: Ints) -> list[NearestQuery]:
    train_ids = list(pair.train.queries)
    pairs = []
    for i, (query, text) in enumerate(pair.test.queries.items()):
        training_query = None
        if rows[i] >= 0:
            training_query = train_ids[rows[i]]
        training_text = None
        if training_query is not None:
            training_text = pair.train.queries[training_query]
        similarity = round(float(scores[i]), 5)
        pairs.append(
            NearestQuery(
                query,
                text,
                training_query,
                training_text,
                similarity,
            )
        )
    return pairs
