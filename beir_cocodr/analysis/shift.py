"""Distances of targets from a source, in the words of documents and in the types of queries."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beir_cocodr.analysis import Files, as_paths
from beir_cocodr.analysis.gains import ModelScores, read_scores, single_measure
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.arrays import Array, Ints
from beir_cocodr.data.collection import (
    Collection,
    Dataset,
    Datasets,
    load_collection,
    load_collections,
)
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import MeasureNames
from beir_cocodr.records import Report, versions

log = logging.getLogger(__name__)


def weighted_jaccard(source: Array, target: Array) -> float:
    """Compute Σ_k min(S_k, T_k) / Σ_k max(S_k, T_k) over relative frequencies.

    It is 1 for equal frequencies and 0 if nothing is common. Exchanging source and target gives the
    same number to the last bit.

    Counts are divided by their sum first. The paper writes "frequency" without its kind; but by raw
    counts 8.8 million passages and 5,183 abstracts would share hardly anything, and the paper's
    value for that pair is 0.23.

    Args:
        source: (K,) counts or shares of K things in any order, not all 0.
        target: (K,) of the same things, not all 0.

    Source: COCO-DR, appendix C.2; Ioffe, Improved Consistent Sampling, Weighted Minhash and L1
    Sketching, 2010.
    """
    source_shares = source / source.sum()
    target_shares = target / target.sum()
    # An exact sum does not depend on the order of its terms.
    common = math.fsum(np.minimum(source_shares, target_shares))
    return common / math.fsum(np.maximum(source_shares, target_shares))


_QUESTION_WORDS = ("what", "when", "who", "how", "where", "why", "which")

# The paper's list ends in "small", which opens no question; "shall" is nearest by letters.
_YES_NO_WORDS = frozenset(
    "is was are were do does did have has had should can could would am shall".split()
)
YES_NO = "yes/no"
DECLARATIVE = "declarative"

#: The nine types, in the order of the paper.
QUERY_TYPES = (*_QUESTION_WORDS, YES_NO, DECLARATIVE)
_FIRST_WORD = re.compile(r"[^\W_]+")


def query_type(query: str) -> str:
    """Return one of :data:`QUERY_TYPES`, by the first run of letters and digits, in any case.

    So "What's new?" is "what". The list decides and not grammar: "isn't it" and "may I" open with
    none of its words and are declarative, as is everything in another language than English.

    Source: COCO-DR, appendix C.1; Ren et al., A Thorough Examination on Zero-shot Dense Retrieval,
    2022.
    """
    match = _FIRST_WORD.search(query)
    word = match.group().lower() if match else ""
    if word in _QUESTION_WORDS:
        return word
    return YES_NO if word in _YES_NO_WORDS else DECLARATIVE


def query_type_counts(queries: Iterable[str]) -> dict[str, int]:
    """Count the queries of each of the nine types, in their order, unused types included."""
    counts = Counter(map(query_type, queries))
    return {name: counts[name] for name in QUERY_TYPES}


#: The text between two words: whatever is not a letter, a mark on a letter, a digit or an
#: underscore.
_BETWEEN_WORDS = r"[^\pL\pM\pN_]+"

#: Rows of counts that may wait for the next merge, or as many as there are words if that is more.
_WAITING_ROWS = 1 << 20


@dataclass(frozen=True)
class Unigrams:
    """The words of a corpus with their collection frequencies.

    A word is a run of letters, digits and underscores in a title or text, in lower case. The paper
    names neither stemming nor stop words, so there are none. Scripts without spaces between words
    are not split, so for them this means little.

    Attributes:
        words: (V,) Arrow strings, each once.
        counts: (V,) how often each occurs in the corpus.

    Source: COCO-DR, appendix C.2.
    """

    words: Any
    counts: Ints

    @classmethod
    def of(cls, documents: Documents, chunk_rows: int = 4096) -> "Unigrams":
        """Count the words of a corpus in one pass.

        Memory grows with the number of different words, not with documents: some 25 bytes each in
        the result and 250 at the peak.

        Args:
            documents: the corpus.
            chunk_rows: documents at a time, which changes no result.
        """
        merged = _merge([])
        waiting: list[Any] = []
        for start in range(0, len(documents), chunk_rows):
            part = documents.table.slice(start, chunk_rows)
            # Title and text are not joined, because no word crosses from one to the other.
            waiting.append(_count(part.column("title")))
            waiting.append(_count(part.column("text")))
            if sum(map(len, waiting)) > max(_WAITING_ROWS, len(merged)):
                merged = _merge([merged, *waiting])
                waiting = []
        merged = _merge([merged, *waiting])
        return cls(merged.column("word").combine_chunks(), merged.column("count").to_numpy())

    def aligned(self, other: "Unigrams") -> tuple[Ints, Ints]:
        """Return (C + 2,) counts of both sides, of the C common words and of all others together.

        The last two are the words of one side alone: against a count of 0, the sums of minima and
        maxima do not depend on how a count is divided among words.
        """
        positions = pc.index_in(self.words, value_set=other.words).fill_null(-1)
        rows = positions.to_numpy(zero_copy_only=False)
        is_common = rows >= 0
        here = self.counts[is_common]
        there = other.counts[rows[is_common]]
        only_here = self.counts.sum() - here.sum()
        only_there = other.counts.sum() - there.sum()
        return np.append(here, [only_here, 0]), np.append(there, [0, only_there])


def _count(texts: object) -> Any:
    words = pc.split_pattern_regex(pc.utf8_lower(texts), pattern=_BETWEEN_WORDS)
    counts = pc.value_counts(pc.list_flatten(words))
    return _table(counts.field("values"), counts.field("counts"))


def _merge(parts: list[object]) -> Any:
    if not parts:
        return _table(
            pa.array([], pa.large_string()),
            pa.array([], pa.int64()),
        )
    # One thread, so that the order of words, and thereby all else, does not depend on the machine.
    groups = pa.concat_tables(parts).group_by("word", use_threads=False)
    summed = groups.aggregate([("count", "sum")])
    return _table(summed.column("word"), summed.column("count_sum"))


def _table(words: Any, counts: Any) -> Any:
    table = pa.table({"word": words, "count": counts})
    # A text that starts or ends between words is split into an empty one as well.
    return table.filter(pc.not_equal(table.column("word"), ""))


#: The two similarities, and what reports and pictures call them.
SIMILARITIES = {
    "document_jaccard": "document similarity",
    "query_type_jaccard": "query type similarity",
}


@dataclass(frozen=True)
class CollectionRecord:
    """The counts of a collection.

    Attributes:
        split: of the queries, None for all of them.
        query_types: type to its share of the queries, None without queries.
    """

    dataset: str
    split: str | None
    documents: int
    corpus_sha256: str
    words: int
    different_words: int
    queries: int
    query_types: dict[str, float] | None


@dataclass(frozen=True)
class TargetSimilarity(CollectionRecord):
    """A target with its similarities, None where one side has no words, or no queries."""

    document_jaccard: float | None
    query_type_jaccard: float | None


@dataclass(frozen=True)
class SimilarityCorrelation(Coefficients):
    """The correlation of one similarity with a model's scores, over some targets."""

    similarity: str
    targets: int


@dataclass(frozen=True)
class Shift(Report):
    """``shift.json``.

    Attributes:
        document_jaccard, query_type_jaccard: a number for one target, and target to number for
            several; None where one side has no words, or no queries.
        scores: model to target to score in ``measure``, less that of the ``baseline`` if there is
            one.
        correlations: model to the correlations of its scores with both similarities.
    """

    document_jaccard: float | dict[str, float | None] | None
    query_type_jaccard: float | dict[str, float | None] | None
    source: CollectionRecord
    targets: list[TargetSimilarity]
    measure: str | None = None
    baseline: str | None = None
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    correlations: dict[str, list[SimilarityCorrelation]] = field(default_factory=dict)


def similarities(targets: Iterable[TargetSimilarity]) -> dict[str, dict[str, float | None]]:
    """Return similarity to target to value."""
    values: dict[str, dict[str, float | None]] = {name: {} for name in SIMILARITIES}
    for target in targets:
        values["document_jaccard"][target.dataset] = target.document_jaccard
        values["query_type_jaccard"][target.dataset] = target.query_type_jaccard
    return values


def shift(
    datasets: Datasets,
    *,
    source: Dataset,
    split: str | None = None,
    source_split: str | None = None,
    results: Files = (),
    measure: MeasureNames = "nDCG@10",
    baseline: str | None = None,
) -> Shift:
    """Compare the words of documents and the types of queries of targets with those of a source.

    The words and counts of the source and of one target are in memory.

    Args:
        datasets: the targets, one or several; queries are optional.
        source: the collection that they are compared with; queries are optional.
        split: the split of the targets' judged queries. By default test, or all queries if there is
            no such split, which is logged; a split that is named must exist.
        source_split: the same for the source; by default train.
        results: results.json files of ``evaluate`` over targets. With them, the scores of every
            model are correlated with the similarities.
        measure: of the results.
        baseline: a model in the results; scores are then differences from its own, as in Figure 2
            (where it is BM25).

    Raises:
        InputError: A collection, a split or the results must be corrected.

    Source: COCO-DR, section 3.2, appendices C and D.
    """
    targets = load_collections(
        datasets, "test" if split is None else split, labels="optional", kind="target"
    )
    names = [target.name for target in targets]
    files = as_paths(results)
    measure_name = single_measure(measure)
    scores = read_scores(files, names, measure_name)
    if not files:
        baseline = None
    if baseline is not None:
        scores = _differences(scores, baseline)

    source_collection = load_collection(
        source, "train" if source_split is None else source_split, labels="optional"
    )
    source_record, source_words = _counted(source_collection, source_split, "train")
    records = []
    for target in targets:
        record, words = _counted(target, split, "test")
        records.append(_compared(source_record, source_words, record, words))
    values = similarities(records)
    is_single = len(names) == 1
    documents = values["document_jaccard"]
    query_types = values["query_type_jaccard"]
    return Shift(
        document_jaccard=documents[names[0]] if is_single else documents,
        query_type_jaccard=query_types[names[0]] if is_single else query_types,
        source=source_record,
        targets=records,
        measure=measure_name if files else None,
        baseline=baseline,
        scores=scores.scores,
        correlations={
            label: _correlations(values, target_scores)
            for label, target_scores in scores.scores.items()
        },
        versions=versions(),
    )


def _correlations(
    values: dict[str, dict[str, float | None]], scores: dict[str, float]
) -> list[SimilarityCorrelation]:
    return [
        SimilarityCorrelation(**vars(coefficients), similarity=name, targets=points)
        for name, (coefficients, points) in correlations(values, scores).items()
    ]


def _counted(
    collection: Collection, split: str | None, default: str
) -> tuple[CollectionRecord, Unigrams]:
    """Count the words and query types of a collection, by the split that was named or by all."""
    name = collection.name
    queries = len(collection.queries)
    if not queries:
        log.info("%s has no queries: their types cannot be compared", name)
    elif collection.split is None and split is not None:
        raise InputError(
            f"{name} has no split {split!r}; choose one that it has, or none for all queries"
        )
    elif collection.split is None:
        log.info("%s has no split %s: all its %d queries are counted", name, default, queries)
    log.info("counting the words of %s", name)
    unigrams = Unigrams.of(collection.documents)
    query_types = None
    if queries:
        counts = query_type_counts(collection.queries.values())
        query_types = {kind: count / queries for kind, count in counts.items()}
    record = CollectionRecord(
        dataset=name,
        split=collection.split,
        documents=len(collection.documents),
        corpus_sha256=collection.documents.content_hash,
        words=int(unigrams.counts.sum()),
        different_words=len(unigrams.counts),
        queries=queries,
        query_types=query_types,
    )
    return record, unigrams


def _compared(
    source: CollectionRecord,
    source_words: Unigrams,
    target: CollectionRecord,
    target_words: Unigrams,
) -> TargetSimilarity:
    documents = None
    if source.words and target.words:
        documents = weighted_jaccard(*source_words.aligned(target_words))
    else:
        log.warning(
            "%s: one side has no words, so the similarity of documents is not computed",
            target.dataset,
        )
    query_types = None
    if source.query_types and target.query_types:
        source_shares = np.array(list(source.query_types.values()))
        target_shares = np.array(list(target.query_types.values()))
        query_types = weighted_jaccard(source_shares, target_shares)
    return TargetSimilarity(
        **vars(target), document_jaccard=documents, query_type_jaccard=query_types
    )


def _differences(scores: ModelScores, baseline: str) -> ModelScores:
    """Subtract the baseline's scores from those of every other model on the same target."""
    baseline_label = scores.label(baseline, "baseline")
    baseline_scores = scores.scores[baseline_label]
    differences: dict[str, dict[str, float]] = {}
    for label, target_scores in scores.scores.items():
        if label == baseline_label:
            continue
        differences[label] = {}
        for target, score in target_scores.items():
            if target not in baseline_scores:
                raise InputError(
                    f"the results have {label!r} on {target!r}, but not the baseline "
                    f"{baseline!r}; evaluate it there too"
                )
            differences[label][target] = score - baseline_scores[target]
    if not differences:
        raise InputError(
            f"the results have only the baseline {baseline!r}; add those of another model"
        )
    return replace(scores, scores=differences)
