"""How far targets are from a source, in the words of documents and in the kinds of queries."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beir_cocodr.analysis.gains import ModelScores, read_scores
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.arrays import Array, Ints
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, check_names
from beir_cocodr.records import Report, versions

log = logging.getLogger(__name__)


def weighted_jaccard(source: Array, target: Array) -> float:
    """Σ_k min(S_k, T_k) / Σ_k max(S_k, T_k) over relative frequencies: 1 for equals, 0 for nothing
    in common. ``source``, ``target``: (K,) counts or shares of the same K things, in any order,
    neither all 0. Exchanging the two gives the same number to the last bit.

    Counts are divided by their sum first. The paper writes "frequency" without its kind; but by raw
    counts 8.8 million passages and 5,183 abstracts would share hardly anything, and the paper's
    value for that pair is 0.23.

    Source: COCO-DR, appendix C.2; Ioffe, Improved Consistent Sampling, Weighted Minhash and L1
    Sketching, 2010.
    """
    s, t = source / source.sum(), target / target.sum()
    # An exact sum does not depend on the order of its terms.
    return math.fsum(np.minimum(s, t)) / math.fsum(np.maximum(s, t))


_QUESTION_WORDS = ("what", "when", "who", "how", "where", "why", "which")

# The paper's list ends in "small", which opens no question; "shall" is nearest by letters.
_YES_NO_WORDS = frozenset(
    "is was are were do does did have has had should can could would am shall".split()
)
YES_NO, DECLARATIVE = "yes/no", "declarative"

#: The nine types, in the order of the paper.
QUERY_TYPES = (*_QUESTION_WORDS, YES_NO, DECLARATIVE)
_FIRST_WORD = re.compile(r"[^\W_]+")


def query_type(query: str) -> str:
    """One of :data:`QUERY_TYPES`, by the first run of letters and digits, in any case.

    So "What's new?" is "what". The list decides and not grammar: "isn't it" and "may I" open with
    none of its words and are declarative, as is everything in another language than English.

    Source: COCO-DR, appendix C.1; Ren et al., A Thorough Examination on Zero-shot Dense Retrieval,
    2022.
    """
    found = _FIRST_WORD.search(query)
    word = found.group().lower() if found else ""
    if word in _QUESTION_WORDS:
        return word
    return YES_NO if word in _YES_NO_WORDS else DECLARATIVE


def query_type_counts(queries: Iterable[str]) -> dict[str, int]:
    """How many queries are of each of the nine types, in their order, with those that no query is
    of.
    """
    counts = Counter(map(query_type, queries))
    return {name: counts[name] for name in QUERY_TYPES}


#: Everything between two words: whatever is not a letter, a mark on a letter, a digit or an
#: underscore.
_BETWEEN_WORDS = r"[^\pL\pM\pN_]+"

#: Rows of counts that may wait for the next merge, beside as many as there are words already.
_WAITING_ROWS = 1 << 20


@dataclass(frozen=True)
class Unigrams:
    """The words of a corpus with their collection frequencies.

    A word is a run of letters, digits and underscores of title or text, in lower case. The paper
    names neither stemming nor stop words, so there are none. Scripts without spaces between words
    are not cut: there this means little.

    Attributes:
        words: (V,) Arrow strings, each once.
        counts: (V,) int64, how often each stands in the corpus.

    Source: COCO-DR, appendix C.2.
    """

    words: Any
    counts: Ints

    @classmethod
    def of(cls, documents: Documents, chunk_rows: int = 4096) -> "Unigrams":
        """Count the words of a corpus in one pass, ``chunk_rows`` documents at a time, which
        changes no result. Memory grows with the number of different words, some 25 bytes each in
        the result and 250 at the peak, not documents.
        """
        merged = _merge([])
        waiting: list[Any] = []
        for start in range(0, len(documents), chunk_rows):
            part = documents.table.slice(start, chunk_rows)
            # Apart rather than joined: what stands between title and text belongs to no word.
            waiting += [_count(part.column(name)) for name in ("title", "text")]
            if sum(map(len, waiting)) > max(_WAITING_ROWS, len(merged)):
                merged, waiting = _merge([merged, *waiting]), []
        merged = _merge([merged, *waiting])
        return cls(merged.column("word").combine_chunks(), merged.column("count").to_numpy())

    def aligned(self, other: "Unigrams") -> tuple[Ints, Ints]:
        """(C + 2,) counts here and there: of the C words that both have, and summed up, of the
        words of one side alone.

        Against a count of 0, the sums of minima and maxima do not depend on how a count is divided
        among words.
        """
        places = (
            pc.index_in(self.words, value_set=other.words)
            .fill_null(-1)
            .to_numpy(zero_copy_only=False)
        )
        common = places >= 0
        here, there = self.counts[common], other.counts[places[common]]
        alone_here, alone_there = self.counts.sum() - here.sum(), other.counts.sum() - there.sum()
        return np.append(here, [alone_here, 0]), np.append(there, [0, alone_there])


def _count(texts: Any) -> Any:
    found = pc.value_counts(
        pc.list_flatten(pc.split_pattern_regex(pc.utf8_lower(texts), pattern=_BETWEEN_WORDS))
    )
    return _table(found.field("values"), found.field("counts"))


def _merge(parts: list[Any]) -> Any:
    if not parts:
        return _table(pa.array([], pa.large_string()), pa.array([], pa.int64()))
    # One thread: the order of words, and with it nothing else either, may depend on the machine.
    grouped = (
        pa.concat_tables(parts).group_by("word", use_threads=False).aggregate([("count", "sum")])
    )
    return _table(grouped.column("word"), grouped.column("count_sum"))


def _table(words: Any, counts: Any) -> Any:
    table = pa.table({"word": words, "count": counts})
    # A text that starts or ends between words is split off an empty one.
    return table.filter(pc.not_equal(table.column("word"), ""))


#: The two similarities, as report and picture call them.
SIMILARITIES = {
    "document_jaccard": "document similarity",
    "query_type_jaccard": "query type similarity",
}


@dataclass(frozen=True)
class CollectionRecord:
    """What was counted in a collection.

    Attributes:
        split: of the queries, None for all of them.
        query_types: type to its share of the queries, None where there are none.
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
    """A target with its similarities; None where one side has no words, or no queries."""

    document_jaccard: float | None
    query_type_jaccard: float | None


@dataclass(frozen=True)
class SimilarityCorrelation(Coefficients):
    """Of one similarity with a model's scores, over so many targets."""

    similarity: str
    targets: int


@dataclass(frozen=True)
class Shift(Report):
    """``shift.json``.

    Attributes:
        document_jaccard, query_type_jaccard: a number where there is one target, and target to
            number where there are several. None where one side has no words, or no queries.
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
    """Similarity to target to value."""
    return {
        name: {target.dataset: getattr(target, name) for target in targets} for name in SIMILARITIES
    }


def shift(
    source: str,
    targets: Sequence[str],
    split: str | None = None,
    source_split: str | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    baseline: str | None = None,
) -> Shift:
    """Compare the unigrams of documents and the types of queries of targets with those of a source.
    An InputError names what has to be corrected in a collection, a split or the results.

    In memory are the words and counts of the source and of one target.

    Args:
        source, targets: datasets as the command line names them; queries are optional.
        split: of the targets' judged queries. By default test, or all queries where there is no
            such split, which is logged; a split that was asked for has to be there.
        source_split: the same for the source; by default train.
        results: results.json files of `evaluate` over targets: then every model's scores stand
            against the similarities, with correlations.
        baseline: a model in the results; scores are then differences to its own, as in Figure 2
            (BM25 there).

    Source: COCO-DR, section 3.2, appendices C and D.
    """
    check_names("target", targets)
    scores = read_scores(results, targets, measure)
    if results and baseline is not None:
        scores = _differences(scores, baseline)

    home = _counted(source, source_split, "train")
    records = [_compared(*home, *_counted(target, split, "test")) for target in targets]
    values = similarities(records)
    documents, queries = (of if len(targets) > 1 else of[targets[0]] for of in values.values())
    return Shift(
        document_jaccard=documents,
        query_type_jaccard=queries,
        source=home[0],
        targets=records,
        measure=measure if results else None,
        baseline=baseline if results else None,
        scores=scores.scores,
        correlations={
            label: correlations(values, own, SimilarityCorrelation)
            for label, own in scores.scores.items()
        },
        versions=versions(),
    )


def _counted(dataset: str, split: str | None, default: str) -> tuple[CollectionRecord, Unigrams]:
    collection = load_collection(dataset, split or default, labels="optional")
    queries = len(collection.queries)
    if not queries:
        log.info("%s has no queries: their types cannot be compared", collection.name)
    elif collection.split is None and split is not None:
        raise InputError(
            f"{collection.name} has no split {split!r}; choose one that it has, or none for all queries"
        )
    elif collection.split is None:
        log.info(
            "%s has no split %s: all its %d queries are counted", collection.name, default, queries
        )
    log.info("words of %s", dataset)
    unigrams = Unigrams.of(collection.documents)
    counts = query_type_counts(collection.queries.values())
    record = CollectionRecord(
        dataset=dataset,
        split=collection.split,
        documents=len(collection.documents),
        corpus_sha256=collection.documents.content_hash,
        words=int(unigrams.counts.sum()),
        different_words=len(unigrams.counts),
        queries=queries,
        query_types={name: count / queries for name, count in counts.items()} if queries else None,
    )
    return record, unigrams


def _compared(
    source: CollectionRecord, home: Unigrams, target: CollectionRecord, there: Unigrams
) -> TargetSimilarity:
    documents = queries = None
    if source.words and target.words:
        documents = weighted_jaccard(*home.aligned(there))
    else:
        log.warning("%s: one side has no words, so no similarity of documents", target.dataset)
    if source.query_types and target.query_types:
        queries = weighted_jaccard(
            *(np.array([*kinds.values()]) for kinds in (source.query_types, target.query_types))
        )
    return TargetSimilarity(**vars(target), document_jaccard=documents, query_type_jaccard=queries)


def _differences(scores: ModelScores, baseline: str) -> ModelScores:
    """Every other model's scores less the baseline's on the same target."""
    base = scores.scores[scores.label(baseline)]
    others = {label: found for label, found in scores.scores.items() if found is not base}
    for label, found in others.items():
        for target in (target for target in found if target not in base):
            raise InputError(
                f"the results have {label!r} on {target!r}, but not the baseline {baseline!r}"
            )
    differences = {
        label: {t: value - base[t] for t, value in found.items()} for label, found in others.items()
    }
    if not differences:
        raise InputError(f"the results have nothing but the baseline {baseline!r}")
    return replace(scores, scores=differences)
