"""Which predictors know, before anything is searched, how well a query will do."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from beir_cocodr.analysis.predictors import LEFT_OUT, PREDICTORS
from beir_cocodr.analysis.term_statistics import TermStatistics
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import parse_measures
from beir_cocodr.evaluation.protocol import evaluate
from beir_cocodr.evaluation.significance import holm
from beir_cocodr.files import atomic_writer, output_folder, write_text
from beir_cocodr.report.scatter import has_matplotlib, require_matplotlib, write_scatter
from beir_cocodr.versions import versions

log = logging.getLogger(__name__)

#: Values by query id.
Values = Mapping[str, float]

#: Two points always lie on a line: a correlation says something from three on.
_FEWEST_QUERIES = 3

#: What only the rounding of sums sets apart is a tie to Kendall's tau.
_DECIMALS = 12


def qpp(
    dataset: str,
    model: str,
    output: Path,
    per_query: Path | Values | None = None,
    measure: str = "nDCG@10",
    split: str = "test",
    extra: Mapping[str, Values] | None = None,
    picture: bool | None = None,
    analyzer: str = "english",
    title_separator: str | None = None,
    **evaluation: Any,
) -> dict[str, Any]:
    """Correlate pre-retrieval predictors with a model's per-query quality.

    Args:
        dataset, split: the collection; its corpus gives the term statistics.
        model: whose quality is predicted; evaluated here if ``per_query`` is not given.
        output: folder for qpp.json, predictors.tsv, qpp.png, and what the evaluation writes.
        per_query: the quality of every query, or a NAME.per_query.tsv of ours that has it.
        measure: one measure of quality that ir-measures knows.
        extra: further predictors, such as ones that a model gives, name to values by query id. A query
            without a value, or with one that is not finite, is left out of that predictor's correlation.
        picture: draw a scatter picture; by default where matplotlib is there.
        analyzer: of the term statistics and of BM25.
        title_separator: of the term statistics and of the model; default: one space, the model's own.
        **evaluation: passed on to :func:`evaluate`.

    Returns:
        The content of qpp.json: under "predictors", per predictor, Pearson's r and Kendall's tau-b, signed,
        their two-sided p, the same after Holm's correction over the predictors, and how many queries were
        used and left out. A coefficient is None where one side is constant or under three queries are left.

    Raises:
        InputError: what has to be corrected in the collection, the model, the measure or the values.

    References:
        MRL, section 6 and Table 6.
    """
    picture = _can_draw(picture)  # better known before hours of encoding
    extra = dict(extra or {})
    taken = [name for name in extra if name in PREDICTORS]
    if taken:
        raise InputError(f"a predictor is called {taken[0]!r} already; give yours another name")
    measure = _one_measure(measure)
    output_folder(output)
    if per_query is None:
        evaluation |= {"analyzer": analyzer, "title_separator": title_separator}
        report = evaluate(dataset, [model], output, measure, split, **evaluation)
        per_query = output / report["models"][model]["per_query"]
    quality = read_per_query(per_query, measure) if isinstance(per_query, Path) else dict(per_query)
    collection = load_collection(dataset, split, labels="optional")
    _check(quality, extra, collection.queries, dataset)

    log.info("term statistics of %s", dataset)
    text_format = TextFormat() if title_separator is None else TextFormat(title_separator=title_separator)
    statistics = TermStatistics(collection.documents, text_format, analyzer)
    terms = {query: statistics.terms(collection.queries[query]) for query in quality}
    values: dict[str, Values] = {
        name: {query: round(predict(statistics, found.known), _DECIMALS) for query, found in terms.items()}
        for name, predict in PREDICTORS.items()
    }
    values |= extra
    rows = correlations(values, quality)
    if picture:
        write_scatter(output / "qpp.png", values, quality, rows, f"{model} on {dataset}", measure)
    _write_values(output / "predictors.tsv", values, quality, measure)
    result = {
        "dataset": dataset,
        "split": split,
        "model": model,
        "measure": measure,
        "mean": float(np.mean(list(quality.values()))),
        "documents": statistics.documents,
        "terms": len(statistics.df),
        "analyzer": analyzer,
        "queries": len(quality),
        "queries_without_known_terms": sum(not len(found.known) for found in terms.values()),
        "unknown_query_words": sum(found.unknown for found in terms.values()),
        "predictors": rows,
        "predictors_left_out": LEFT_OUT,
        "values": "predictors.tsv",
        "picture": "qpp.png" if picture else None,
        "versions": versions(),
    }
    write_text(output / "qpp.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return result


def correlations(values: Mapping[str, Values], quality: Values) -> list[dict[str, Any]]:
    """Pearson's r and Kendall's tau-b of every predictor with the quality of queries, one row a predictor."""
    rows = [{"predictor": name, **_correlate(found, quality)} for name, found in values.items()]
    for coefficient in ("pearson", "kendall"):
        corrected = holm([row[f"{coefficient}_p"] for row in rows])
        for row, p in zip(rows, corrected, strict=True):
            row[f"{coefficient}_p_holm"] = p
    return rows


def read_per_query(path: Path, measure: str) -> dict[str, float]:
    """Query id to one measure, from a NAME.per_query.tsv that `evaluate` wrote.

    Raises:
        InputError: the file cannot be read, has no such measure, or has a line that does not fit.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give a per_query.tsv of evaluate") from error
    header = lines[0].split("\t")
    if header[0] != "query_id" or measure not in header:
        raise InputError(f"{path} has no {measure}, only {', '.join(header[1:]) or 'nothing'}")
    column = header.index(measure)
    quality: dict[str, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise InputError(f"{path}:{number}: {len(cells)} columns, not {len(header)}")
        if cells[0] in quality:
            raise InputError(f"{path}:{number}: query {cells[0]!r} a second time")
        try:
            quality[cells[0]] = float(cells[column])
        except ValueError:
            raise InputError(f"{path}:{number}: {cells[column]!r} is not a number") from None
    return quality


def _correlate(values: Values, quality: Values) -> dict[str, Any]:
    used = [query for query in quality if math.isfinite(values.get(query, math.nan))]
    x = np.array([values[query] for query in used], np.float64)
    y = np.array([quality[query] for query in used], np.float64)
    row: dict[str, Any] = dict.fromkeys(("pearson", "pearson_p", "kendall", "kendall_p"))
    if len(used) >= _FEWEST_QUERIES and np.ptp(x) > 0 and np.ptp(y) > 0:
        pearson, kendall = stats.pearsonr(x, y), stats.kendalltau(x, y)
        row["pearson"], row["pearson_p"] = float(pearson.statistic), float(pearson.pvalue)
        row["kendall"], row["kendall_p"] = float(kendall.statistic), float(kendall.pvalue)
    return row | {"queries": len(used), "left_out": len(quality) - len(used)}


def _can_draw(picture: bool | None) -> bool:
    if picture:
        require_matplotlib()
    elif picture is None and not has_matplotlib():
        log.info("no picture: matplotlib is not there; pip install 'beir-cocodr[report]'")
        return False
    return picture is not False


def _one_measure(text: str) -> str:
    measures = parse_measures(text)
    if len(measures) > 1:
        raise InputError(f"one measure at a time is predicted, not {text!r}")
    return str(measures[0])


def _check(quality: Values, extra: Mapping[str, Values], queries: Mapping[str, str], dataset: str) -> None:
    if not quality:
        raise InputError("the quality of no query is given; nothing can be predicted")
    for query, value in quality.items():
        if query not in queries:
            raise InputError(f"query {query!r} is not in {dataset}; give the split that it was judged in")
        if not math.isfinite(value):
            raise InputError(f"the quality of query {query!r} is {value}, not a finite number")
    for name, values in extra.items():
        if not values.keys() & quality.keys():
            raise InputError(f"predictor {name!r} has a value for none of the {len(quality)} queries")


def _write_values(path: Path, values: Mapping[str, Values], quality: Values, measure: str) -> None:
    with atomic_writer(path) as file:
        file.write("\t".join(["query_id", measure, *values]) + "\n")
        for query, found in quality.items():
            cells = [found, *(predicted.get(query, math.nan) for predicted in values.values())]
            file.write("\t".join([query, *(repr(float(cell)) for cell in cells)]) + "\n")
