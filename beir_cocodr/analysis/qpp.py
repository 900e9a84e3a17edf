"""Which predictors know beforehand how well a query will do; their correlations serve the other
analyses too.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from beir_cocodr.analysis.predictors import LEFT_OUT, PREDICTORS, TermStatistics
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate, read_per_query, write_per_query
from beir_cocodr.evaluation.measures import correlate, holm, parse_measures
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import Report, versions

log = logging.getLogger(__name__)
C = TypeVar("C", bound="Coefficients")

#: Values by query id.
Values = Mapping[str, float]

#: The same, None or NaN where a query has none.
SomeValues = Mapping[str, float | None]

#: What only the rounding of sums sets apart is a tie to Kendall's tau.
_DECIMALS = 12


@dataclass(frozen=True)
class Coefficients:
    """Pearson's r and Kendall's tau-b, signed, with two-sided p and the same after Holm's
    correction; None where one side is constant or under three points are left. ``left_out``: points
    without a finite value.
    """

    pearson: float | None
    pearson_p: float | None
    pearson_p_holm: float | None
    kendall: float | None
    kendall_p: float | None
    kendall_p_holm: float | None
    left_out: int


@dataclass(frozen=True)
class Correlation(Coefficients):
    """Of one predictor with the quality of so many queries."""

    predictor: str
    queries: int


@dataclass(frozen=True)
class QPP(Report):
    """``qpp.json``: how predictors correlate with a model's per-query quality.

    Attributes:
        mean: of the quality.
        documents, terms: of the corpus; ``analyzer`` found the terms.
        predictors_left_out: name to reason.
        values: the file with the values of all queries.
    """

    dataset: str
    split: str
    model: str
    measure: str
    mean: float
    documents: int
    terms: int
    analyzer: str
    queries: int
    queries_without_known_terms: int
    unknown_query_words: int
    predictors: list[Correlation]
    predictors_left_out: dict[str, str]
    values: str = "predictors.tsv"


@dataclass(frozen=True)
class Prediction:
    """The record, and what it was made of: predictor to query id to value, and query id to
    quality.
    """

    record: QPP
    values: dict[str, Values]
    quality: Values

    def write_values(self, path: Path) -> None:
        """Write quality and predictors as a table, one query a line."""
        columns = {self.record.measure: self.quality, **self.values}
        scores = {
            name: [found.get(query, math.nan) for query in self.quality]
            for name, found in columns.items()
        }
        write_per_query(path, list(self.quality), scores)


def qpp(
    dataset: str,
    model: str,
    output: Path,
    per_query: Path | Values | None = None,
    measure: str = "nDCG@10",
    split: str = "test",
    extra: Mapping[str, Values] | None = None,
    policy: str = "auto",
    search: SearchOptions = SearchOptions(),
    overwrite: bool = False,
) -> Prediction:
    """Correlate pre-retrieval predictors with a model's per-query quality. An InputError names what
    has to be corrected in the collection, the model, the measure or the values.

    Args:
        dataset, split: the collection; its corpus gives the term statistics.
        model: whose quality is predicted; evaluated here, into ``output``, if ``per_query`` is not
            given.
        per_query: the quality of every query, or a NAME.per_query.tsv of ours that has it.
        measure: one measure of quality.
        extra: further predictors, name to values by query id. A query without a finite value is
            left out of that predictor's correlation.
        policy: of the evaluation, for documents whose id is the query's.
        search: of the evaluation; its analyzer and title separator are those of the term
            statistics, too.
        overwrite: replace the results of another run in ``output``.

    References:
        MRL, section 6 and Table 6.
    """
    extra = dict(extra or {})
    if taken := [name for name in extra if name in PREDICTORS]:
        raise InputError(f"a predictor is called {taken[0]!r} already; give yours another name")
    measures = parse_measures(measure)
    if len(measures) > 1:
        raise InputError(f"one measure at a time is predicted, not {measure!r}")
    measure = str(measures[0])
    check_device(search.encoder.device, [model])
    identical_ids(dataset, policy)
    if per_query is None:
        evaluated = evaluate(
            dataset, [model], output, measure, split, policy, search=search, overwrite=overwrite
        )
        per_query = output / str(evaluated.models[model].per_query)
    if isinstance(per_query, Path):
        quality = {query: score for query, [score] in read_per_query(per_query, [measure]).items()}
    else:
        quality = dict(per_query)
    collection = load_collection(dataset, split, labels="optional")
    _check(quality, extra, collection.queries, dataset)

    log.info("term statistics of %s", dataset)
    statistics = TermStatistics(collection.documents, search.encoder.text_format, search.analyzer)
    terms = {query: statistics.terms(collection.queries[query]) for query in quality}
    values: dict[str, Values] = {
        name: {
            query: round(predict(statistics, known), _DECIMALS)
            for query, (known, _) in terms.items()
        }
        for name, predict in PREDICTORS.items()
    }
    values |= extra
    record = QPP(
        dataset=dataset,
        split=split,
        model=model,
        measure=measure,
        mean=float(np.mean(list(quality.values()))),
        documents=statistics.documents,
        terms=len(statistics.df),
        analyzer=search.analyzer,
        queries=len(quality),
        queries_without_known_terms=sum(not len(known) for known, _ in terms.values()),
        unknown_query_words=sum(unknown for _, unknown in terms.values()),
        predictors=correlations(values, quality, Correlation),
        predictors_left_out={name: why for name, why in LEFT_OUT.items() if name not in extra},
        versions=versions(),
    )
    return Prediction(record, values, quality)


def correlations(
    values: Mapping[str, SomeValues], quality: SomeValues, kind: Callable[..., C]
) -> list[C]:
    """Pearson's r and Kendall's tau-b of every predictor with the quality of queries, one row a
    predictor, each of a ``kind`` of :class:`Coefficients` that has behind these the predictor's
    name and the number of queries.
    """
    y = np.array([value for value in quality.values() if value is not None], np.float64)
    known = [query for query, value in quality.items() if value is not None]
    used, found = [], []
    for predicted in values.values():
        x = np.array([predicted.get(query) for query in known], np.float64)  # NaN for None
        finite = np.isfinite(x)
        used.append(int(finite.sum()))
        found.append(correlate(x[finite], y[finite]))
    corrected = [holm([row[column] for row in found]) for column in (1, 3)]
    return [
        kind(r, r_p, r_holm, tau, tau_p, tau_holm, len(y) - count, name, count)
        for name, count, (r, r_p, tau, tau_p), r_holm, tau_holm in zip(
            values, used, found, *corrected, strict=True
        )
    ]


def _check(
    quality: Values, extra: Mapping[str, Values], queries: Mapping[str, str], dataset: str
) -> None:
    if not quality:
        raise InputError("the quality of no query is given; nothing can be predicted")
    for query, value in quality.items():
        if query not in queries:
            raise InputError(
                f"query {query!r} is not in {dataset}; give the split that it was evaluated in"
            )
        if not math.isfinite(value):
            raise InputError(f"the quality of query {query!r} is {value}, not a finite number")
    for name, values in extra.items():
        if not values.keys() & quality.keys():
            raise InputError(
                f"predictor {name!r} has a value for none of the {len(quality)} queries"
            )
