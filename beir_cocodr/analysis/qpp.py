"""Query performance prediction: which predictors know beforehand how well a query will do.

The correlations are of use to the other analyses too.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beir_cocodr.analysis.gains import single_measure
from beir_cocodr.analysis.predictors import LEFT_OUT, PREDICTORS, TermStatistics
from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection, Dataset, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import (
    EvaluateOptions,
    evaluate,
    read_per_query,
    write_per_query,
)
from beir_cocodr.evaluation.measures import MeasureNames, correlate, holm
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.models.spec import ModelSpec, SearchOptions, check_device
from beir_cocodr.records import Report, versions
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.temporary import TemporaryFolder

log = logging.getLogger(__name__)

#: Values by query id.
Values = Mapping[str, float]

#: Values by query id or by collection; a point without one has None or NaN.
SomeValues = Mapping[str, float | None]

#: Values that differ only by the rounding of sums must be tied for Kendall's tau.
_DECIMALS = 12


@dataclass(frozen=True)
class QPPOptions:
    """Options of the measurement of query quality, which predictors are then correlated with.

    Args:
        measure: one measure, by name or as an object of ir-measures.
        split: of the queries.
        identical_ids: "keep" or "drop" documents with the id of the query, see
            :func:`~beir_cocodr.evaluation.runs.identical_ids`.
    """

    measure: MeasureNames = "nDCG@10"
    split: str = "test"
    identical_ids: str = "auto"


@dataclass(frozen=True)
class Coefficients:
    """Pearson's r and Kendall's tau-b, signed, with two-sided p-values.

    All are None where one side is constant or fewer than three points are left.

    Attributes:
        pearson, kendall: the coefficients.
        pearson_p, kendall_p: their p-values.
        pearson_p_holm, kendall_p_holm: the same after Holm's correction.
        left_out: points without a finite value.
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
    """The correlation of one predictor with the quality of some queries."""

    predictor: str
    queries: int


@dataclass(frozen=True)
class QPP(Report):
    """``qpp.json``: how predictors correlate with a model's per-query quality.

    Attributes:
        mean: of the quality.
        documents: of the corpus.
        terms: different terms of the corpus, as the ``analyzer`` finds them.
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
    """A record of correlations, and the values that they are of.

    Attributes:
        record: the correlations.
        values: predictor to query id to value.
        quality: query id to quality.
    """

    record: QPP
    values: dict[str, Values]
    quality: Values

    def write_values(self, path: Path) -> None:
        """Write quality and predictors as a table, one query a line."""
        columns = {self.record.measure: self.quality, **self.values}
        scores = {}
        for name, values in columns.items():
            scores[name] = [values.get(query, math.nan) for query in self.quality]
        write_per_query(path, list(self.quality), scores)


def qpp(
    model: Model,
    dataset: Dataset,
    *,
    output: str | Path | None = None,
    per_query: str | Path | Values | None = None,
    predictors: Mapping[str, Values] | None = None,
    options: QPPOptions = QPPOptions(),
    search: SearchOptions = SearchOptions(),
) -> Prediction:
    """Correlate pre-retrieval predictors with a model's per-query quality.

    Args:
        model: whose quality is predicted, as for :func:`~beir_cocodr.evaluation.evaluate.evaluate`.
            It is evaluated unless ``per_query`` is given.
        dataset: the collection, whose corpus gives the term statistics.
        output: a folder for the evaluation; without it, nothing is kept.
        per_query: the quality of every query, or a file NAME.per_query.tsv that ``evaluate`` wrote.
        predictors: further predictors, name to values by query id. A query without a finite value
            is left out of that predictor's correlation.
        options: measure, split, and what happens to documents with the id of a query.
        search: of the evaluation. Its analyzer and title separator are those of the term statistics
            too.

    Raises:
        InputError: The collection, the model, the measure or the values must be corrected.

    References:
        MRL, section 6 and Table 6.
    """
    further = dict(predictors or {})
    for name in further:
        if name in PREDICTORS:
            raise InputError(f"a predictor is called {name!r} already; give yours another name")
    measure = single_measure(options.measure)
    spec = resolve_model(model, argument="model")
    check_device(search.encoder.device, [spec])
    collection = load_collection(dataset, options.split, labels="optional")
    identical_ids(collection.name, options.identical_ids)
    if per_query is None:
        quality = _evaluated(
            spec,
            collection,
            output,
            measure,
            options,
            search,
        )
    elif isinstance(per_query, Mapping):
        quality = dict(per_query)
    else:
        quality = _read_quality(Path(per_query), measure)
    _check(quality, further, collection)

    log.info("counting the terms of %s", collection.name)
    statistics = TermStatistics(collection.documents, search.encoder.text_format, search.analyzer)
    terms: dict[str, Ints] = {}
    unknown_words = 0
    for query in quality:
        terms[query], unknown = statistics.terms(collection.queries[query])
        unknown_words += unknown
    values = _predicted(statistics, terms) | further
    record = QPP(
        dataset=collection.name,
        split=options.split,
        model=spec.name,
        measure=measure,
        mean=float(np.mean(list(quality.values()))),
        documents=statistics.documents,
        terms=len(statistics.df),
        analyzer=search.analyzer,
        queries=len(quality),
        queries_without_known_terms=sum(not len(known) for known in terms.values()),
        unknown_query_words=unknown_words,
        predictors=predictor_correlations(values, quality),
        predictors_left_out={name: why for name, why in LEFT_OUT.items() if name not in further},
        versions=versions(),
    )
    return Prediction(record, values, quality)


def _evaluated(
    model: ModelSpec,
    collection: Collection,
    output: str | Path | None,
    measure: str,
    options: QPPOptions,
    search: SearchOptions,
) -> dict[str, float]:
    # Only the file has the scores in full; the record rounds them.
    with TemporaryFolder() as temporary:
        folder = Path(output or temporary)
        record = evaluate(
            model,
            collection,
            measures=measure,
            split=options.split,
            output=folder,
            options=EvaluateOptions(identical_ids=options.identical_ids),
            search=search,
        )
        [result] = record.models.values()
        if result.per_query is not None:
            return _read_quality(folder / result.per_query, measure)
    # A run has no such file.
    scores = (result.scores or {})[measure]
    return dict(zip(collection.qrels, scores, strict=True))


def _predicted(statistics: TermStatistics, terms: Mapping[str, Ints]) -> dict[str, Values]:
    """Return predictor to query id to value, from the columns of the queries' known terms."""
    values: dict[str, Values] = {}
    for name, predictor in PREDICTORS.items():
        rounded = {}
        for query, known in terms.items():
            rounded[query] = round(predictor.compute(statistics, known), _DECIMALS)
        values[name] = rounded
    return values


def _read_quality(file: Path, measure: str) -> dict[str, float]:
    return {query: score for query, [score] in read_per_query(file, [measure]).items()}


def predictor_correlations(values: Mapping[str, Values], quality: Values) -> list[Correlation]:
    """Correlate every predictor, name to value by query, with the quality of queries."""
    rows = []
    for name, (coefficients, points) in correlations(values, quality).items():
        rows.append(Correlation(**vars(coefficients), predictor=name, queries=points))
    return rows


def correlations(
    values: Mapping[str, SomeValues], quality: SomeValues
) -> dict[str, tuple[Coefficients, int]]:
    """Correlate every predictor with quality.

    Args:
        values: predictor to value by query, or by collection.
        quality: quality by query, or by collection.

    Returns:
        Predictor to its coefficients and the number of points that have both values.
    """
    known = {query: value for query, value in quality.items() if value is not None}
    y = np.array(list(known.values()), np.float64)
    points = []
    rows = []
    for predicted in values.values():
        x = np.array([predicted.get(query) for query in known], np.float64)  # None becomes NaN
        finite = np.isfinite(x)
        points.append(int(finite.sum()))
        rows.append(correlate(x[finite], y[finite]))
    pearson_holm = holm([pearson_p for _, pearson_p, _, _ in rows])
    kendall_holm = holm([kendall_p for _, _, _, kendall_p in rows])
    correlated = {}
    for i, name in enumerate(values):
        pearson, pearson_p, kendall, kendall_p = rows[i]
        coefficients = Coefficients(
            pearson=pearson,
            pearson_p=pearson_p,
            pearson_p_holm=pearson_holm[i],
            kendall=kendall,
            kendall_p=kendall_p,
            kendall_p_holm=kendall_holm[i],
            left_out=len(y) - points[i],
        )
        correlated[name] = (coefficients, points[i])
    return correlated


def _check(quality: Values, predictors: Mapping[str, Values], collection: Collection) -> None:
    if not quality:
        raise InputError("no query has a quality; give that of at least one")
    for query, value in quality.items():
        if query not in collection.queries:
            raise InputError(
                f"query {query!r} is not in {collection.name}; give the split that it was "
                "evaluated in"
            )
        if not math.isfinite(value):
            raise InputError(
                f"the quality of query {query!r} is {value}, not a finite number; evaluate again"
            )
    for name, values in predictors.items():
        if not values.keys() & quality.keys():
            raise InputError(
                f"predictor {name!r} has no value for any of the {len(quality)} queries; give its "
                "values under the same query ids"
            )
