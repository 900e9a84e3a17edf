"""Tables of the page that can be sorted: models, paired tests, verdicts and estimates without
labels, pairs to label, trainings with their rounds, and the papers' figures beside ours on
collections that they report.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from beir_cocodr.errors import explained
from beir_cocodr.evaluation import results as records
from beir_cocodr.evaluation.chains import Chain
from beir_cocodr.evaluation.label_free.choice import training_pairs
from beir_cocodr.evaluation.recommendation import USE
from beir_cocodr.io import parse_json
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.records import CollectionProvenance
from beir_cocodr.report.html.results_folder import CurvePoint, LabelledEvaluation, Trained
from beir_cocodr.report.wording import (
    UNLIKE,
    capitalized,
    describe_likeness,
    describe_pseudo_queries,
    format_number,
    meaning,
    p_value,
    signed,
    span,
)


@dataclass(frozen=True)
class TableCell:
    """One cell: its text with a smaller one below, what it is sorted by (None sorts last), and a
    class of the style sheet, such as "better".
    """

    text: str
    value: float | str | None = None
    sub: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TableColumn:
    """One column: its header, whether it holds numbers, and what it means."""

    title: str
    number: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class HtmlTable:
    """A table with a caption above, notes below, and ``groups`` of (title, number of columns) over
    the columns.

    Each row has a cell for every column; the first cell names the row.
    """

    caption: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = field(default_factory=list)


def text_columns(*titles: str) -> list[TableColumn]:
    """Columns that hold no numbers."""
    return [TableColumn(title, number=False) for title in titles]


def text_cell(text: str, sub: str = "", mark: str = "") -> TableCell:
    """A cell that is sorted by its text."""
    return TableCell(text, text.casefold(), sub, mark)


def number_cell(value: float | None, form: str = ".2f", sub: str = "") -> TableCell:
    """A cell with a number in Python's format language, a dash where there is none; sorted by
    it.
    """
    return TableCell(format_number(value, form), value, sub)


#: Scores of single queries that a page holds.
_MOST_SCORES = 20_000

_MEAN = "mean of the paired differences, with its bootstrap 95% interval"

_ONLY_DASHES = [TableCell("–")] * 3


def model_table(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> HtmlTable:
    """Every model in every measure, beside its difference to the reference."""
    models, reference = evaluation.results.models, evaluation.reference
    alone = len(models) == 1
    columns, groups = text_columns("Model"), [("", 1)]
    for measure in evaluation.results.measures:
        columns.append(
            TableColumn("Mean", meaning="mean over queries, with its bootstrap 95% interval")
        )
        if not alone:
            columns += [
                TableColumn("Difference", meaning=_MEAN),
                TableColumn("p", meaning=meaning("p after Holm")),
                TableColumn(
                    "Won / tied / lost",
                    meaning="queries won, tied and lost; sorted by won less lost",
                ),
            ]
        groups.append((measure, 1 if alone else 4))
    rows = []
    for label, result in models.items():
        rows.append([text_cell(names[label], _model(result.model, names[label]))])
        for measure, interval in result.intervals.items():
            within = span(interval, sign="", none="")
            rows[-1].append(number_cell(result.measures[measure], ".3f", within))
            if not alone:
                test = evaluation.test(reference, label, measure, USE)
                rows[-1] += (
                    _ONLY_DASHES
                    if test is None
                    else [_difference(test), _p(test.t_p_holm), _queries(test)]
                )
    caption = "Means" if alone else f"Means, and differences to {names[reference]}"
    return HtmlTable(caption, columns, rows, groups, list(_notes(evaluation.results, names)))


def test_table(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> HtmlTable:
    """Every paired test that was made, b against a."""
    columns = [
        *text_columns("Model", "Compared with", "Question", "Measure"),
        TableColumn("Difference", meaning=_MEAN),
        TableColumn("p, t-test", meaning=meaning("p after Holm")),
        TableColumn(
            "p, randomisation",
            meaning="the same by 10,000 random changes of sign, after Holm's correction",
        ),
        TableColumn(
            "Won / tied / lost", meaning="queries won, tied and lost; sorted by won less lost"
        ),
    ]
    rows = []
    for test in evaluation.results.comparisons:
        texts = map(text_cell, (names[test.b], names[test.a], test.family, test.measure))
        rows.append(
            [
                *texts,
                _difference(test),
                _p(test.t_p_holm),
                _p(test.randomization_p_holm),
                _queries(test),
            ]
        )
    return HtmlTable("All paired tests", columns, rows)


def _p(p: float | None) -> TableCell:
    return TableCell(p_value(p), p)


def _difference(test: records.PairedTest) -> TableCell:
    return _difference_cell(test.difference, span(test.interval, none=""), test.verdict)


def _difference_cell(value: float, below: str, verdict: str) -> TableCell:
    return TableCell(signed(value), value, below, _mark(verdict))


def _mark(verdict: str) -> str:
    return verdict if verdict in ("better", "worse") else ""


def _queries(test: records.PairedTest) -> TableCell:
    return TableCell(f"{test.wins:,} / {test.ties:,} / {test.losses:,}", test.wins - test.losses)


def _model(model: str, name: str) -> str:
    """The model behind a name, where that does not show it; of a path the last part, or two if need
    be.
    """
    spec = ModelSpec.parse(model)
    encoder = spec.encoder
    parts = encoder.rstrip("/").split("/")
    ends = [parts[-1], f"…/{'/'.join(parts[-2:])}" if len(parts) > 2 else encoder]
    return next((spec.prefix + end for end in ends if spec.prefix + end != name), "")


def _notes(results: records.EvaluationRecord, names: Mapping[str, str]) -> Iterator[str]:
    if len(results.models) > 1:
        over = (
            f"“{USE}”"
            if any(test.family == USE for test in results.comparisons)
            else "all pairs of models"
        )
        yield (
            f"p: two-tailed paired t-test over queries, after Holm's correction over {over} in a measure. "
            f"Coloured: p < {records.LEVEL}."
        )
    for truncation in dict.fromkeys(
        result.truncation for result in results.models.values() if result.truncation
    ):
        cut = (
            names[label]
            for label, result in results.models.items()
            if result.truncation == truncation
        )
        yield f"{truncation}: {'; '.join(cut)}."
    for label, result in results.models.items():
        if result.queries_without_results:
            yield f"{names[label]}: {result.queries_without_results:,} queries without results, scored 0."


_VERDICTS = {"better": 1, "no difference": 0.25, "cannot tell": 0, "worse": -1}


def verdict_table(
    comparison: records.ComparisonRecord,
    names: Mapping[str, str],
    pairs: Sequence[records.PairVerdict],
    caption: str,
) -> HtmlTable:
    """Pairs of a comparison without labels: the rule's verdict, and each estimate of b − a with its
    interval.
    """
    estimators = list(dict.fromkeys(found.estimator for pair in pairs for found in pair.estimates))
    columns = [
        *text_columns("Model", "Compared with"),
        TableColumn("Verdict", meaning="on the model, by the rule; sorted from better to worse"),
        TableColumn("Expected", meaning=f"difference in nDCG@10, {meaning('Estimated nDCG@10')}"),
        TableColumn("Chance", meaning=f"to be better, {meaning('Chance to be better')}"),
        *(
            TableColumn(name, meaning=f"difference, 95% interval: {meaning(name)}")
            for name in map(capitalized, estimators)
        ),
    ]
    rows = []
    for pair in pairs:
        estimates = {estimate.estimator: estimate for estimate in pair.estimates}
        rows.append(
            [
                *(text_cell(names[pair.b]), text_cell(names[pair.a])),
                TableCell(pair.verdict, _VERDICTS.get(pair.verdict), mark=_mark(pair.verdict)),
                *(_expected(pair), number_cell(pair.probability)),
                *(_estimate(estimates.get(name)) for name in estimators),
            ]
        )
    notes = [f"The rule: {pairs[0].reason}."] if len(pairs) == 1 else []
    notes += dict.fromkeys(
        f"{capitalized(found.estimator)}, where not counted: {found.remark}."
        for pair in pairs
        for found in pair.estimates
        if found.remark
    )
    notes += dict.fromkeys(pair.trust for pair in pairs)
    notes += describe_likeness(comparison.likeness)
    notes += [
        f"{capitalized(text)}." for text in describe_pseudo_queries(comparison.pseudo_queries)
    ]
    return HtmlTable(caption, columns, rows, notes=notes)


def shown_pairs(
    comparison: records.ComparisonRecord,
    reference: str,
    candidates: Mapping[str, str],
    chains: Mapping[str, Chain],
) -> list[records.PairVerdict]:
    """Return the pairs with the reference, and of an encoder with the base in the same use.

    Args:
        comparison: A comparison without labels.
        reference: The name of the model that the others are compared with.
        candidates: Label to model name of an adaptation; empty without one.
        chains: Label to chain of an adaptation; empty without one.
    """
    same_use = training_pairs(chains.values())
    alike = {(candidates[a], candidates[b]) for a, b in same_use}
    return [
        pair
        for pair in comparison.estimated
        if reference in (pair.a, pair.b) or (pair.a, pair.b) in alike
    ]


def annotation_table(wanted: records.AnnotationCandidates, names: Mapping[str, str]) -> HtmlTable:
    """The query-document pairs whose labels would move the comparison most."""
    a, b = names[wanted.a], names[wanted.b]
    columns = [
        *text_columns("Query", "Document"),
        TableColumn(
            "Weight",
            meaning="by how much the difference in DCG@10 changes if the document is relevant",
        ),
        *(TableColumn(f"Rank by {name}") for name in (a, b)),
    ]
    rows = [
        [
            text_cell(pair.query or pair.query_id, pair.query_id),
            text_cell(pair.document[:160] or pair.document_id, pair.document_id),
            *(
                number_cell(pair.weight, ".3f"),
                number_cell(pair.rank_a, "d"),
                number_cell(pair.rank_b, "d"),
            ),
        ]
        for pair in wanted.pairs
    ]
    return HtmlTable(f"Labels that would tell most between {a} and {b}", columns, rows)


def query_table(
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    pair: tuple[str, str],
    names: Mapping[str, str],
    measure: str,
    texts: Mapping[str, str],
) -> HtmlTable | None:
    """Every judged query with each model's score; of many, that of the pair alone. None without
    scores of the pair.
    """
    a, b = (scores.get(label) for label in pair)
    if not a or not b:
        return None
    shown = list(scores) if len(scores) * len(a) <= _MOST_SCORES else list(pair)
    columns = [
        *text_columns("Query"),
        TableColumn("Difference", meaning=f"{names[pair[1]]} less {names[pair[0]]}"),
    ]
    columns += [TableColumn(names[label], meaning=measure) for label in shown]
    rows = []
    for query in a:
        change = b[query][0] - a[query][0]
        mark = "better" if change > 0 else "worse" if change < 0 else ""
        cells = (number_cell(scores[label][query][0], ".3f") for label in shown)
        text = texts.get(query, "")
        named = text_cell(text or query, query if text else "")
        rows.append([named, TableCell(signed(change), round(change, 4), mark=mark), *cells])
    return HtmlTable(f"All queries, {measure}", columns, rows)


def _expected(pair: records.PairVerdict) -> TableCell:
    below = "not counted" if pair.rule == UNLIKE else span(pair.interval, none="")
    return _difference_cell(pair.estimate, below, pair.verdict)


def _estimate(estimate: records.Estimate | None) -> TableCell:
    if estimate is None or estimate.difference is None:
        return TableCell("–")
    below = span(estimate.interval, none="") if estimate.applies else "not counted"
    return _difference_cell(
        estimate.difference, below, {1: "better", -1: "worse"}.get(estimate.sign, "")
    )


def training_table(trained: Sequence[Trained]) -> HtmlTable:
    """A row for every training, those that a model was made from below it."""
    columns = [
        *text_columns("Model", "Stage"),
        TableColumn("Given", number=False, meaning="the collections that training was given"),
        *(TableColumn(title) for title in ("Steps", "Seed", "Loss", "Seconds")),
    ]
    rows = []
    for model in trained:
        for record in reversed(model.record.lineage()):
            name = model.name if record is model.record else f"{model.name}, before"
            counted = [shown for shown in record.seen if shown.documents is not None]
            given = ", ".join(f"{shown.dataset} ({describe_sizes(shown)})" for shown in counted)
            seed = record.options.get("seed")
            rows.append(
                [
                    *(
                        text_cell(name, f"from {record.base or '?'}"),
                        text_cell(record.stage),
                        text_cell(given or "–"),
                    ),
                    *(
                        number_cell(record.steps, ","),
                        number_cell(seed if isinstance(seed, int) else None, "d"),
                    ),
                    *(
                        number_cell(record.training_loss, ".4g"),
                        number_cell(record.seconds, ",.0f"),
                    ),
                ]
            )
    return HtmlTable("Trainings", columns, rows)


def describe_sizes(shown: CollectionProvenance) -> str:
    """What training was given of a collection: so many documents, and queries where there were
    some.
    """
    queries = "" if shown.queries is None else f", {shown.queries:,} queries"
    return f"{format_number(shown.documents, ',')} documents{queries}"


def settings_table(model: Trained) -> HtmlTable:
    """Every setting of a training."""
    rows = [
        [text_cell(key), text_cell(value if isinstance(value, str) else json.dumps(value))]
        for key, value in {**model.record.options, **model.record.encoder}.items()
    ]
    return HtmlTable(f"Settings of {model.name}", text_columns("Setting", "Value"), rows)


def curve_table(name: str, points: Sequence[CurvePoint]) -> HtmlTable:
    """The measures after each round."""
    measures = list(points[0].measures)
    rows = [
        [
            *(text_cell(point.model), text_cell(point.dataset)),
            *(number_cell(point.measures.get(measure), ".3f") for measure in measures),
        ]
        for point in points
    ]
    columns = [*text_columns("Round", "Target"), *map(TableColumn, measures)]
    return HtmlTable(f"After every round of {name}", columns, rows)


#: Where the figures lie in an installation: benchmarks/published of the source tree.
PACKAGE = "beir_cocodr.published"

_MEASURE = "nDCG@10"


def published_table(
    results: records.EvaluationRecord, names: Mapping[str, str], files: Sequence[Path] = ()
) -> HtmlTable | None:
    """Our models among the published ones; None where the collection, or nDCG@10, is in no paper.

    Args:
        results, names: our evaluation, and label to the name that is shown.
        files: JSON files in the form of benchmarks/published, instead of the packaged ones.

    Source: COCO-DR, table 1; MRL, table 5.
    """
    if _MEASURE not in results.measures:
        return None
    papers = [_paper(file) for file in files or _packaged()]
    task = _task(results.dataset, papers)
    if task is None:
        return None
    models = results.models.items()
    found = [
        (names[label], "this evaluation", one.measures[_MEASURE], "ours") for label, one in models
    ]
    for paper in papers:
        scored = paper.scores.get(task, {}).items()
        found += [(name, paper.authors, value, "") for name, value in scored if value is not None]
    found.sort(key=lambda row: -row[2])
    rows = [
        [text_cell(name, mark=m), text_cell(source), number_cell(value, ".3f")]
        for name, source, value, m in found
    ]
    columns = [*text_columns("Model", "Source"), TableColumn(_MEASURE)]
    notes = ["Published figures are as printed: not measured here, and not tested against ours."]
    here = results.documents, results.queries
    notes += [
        f"Another version or a part: {here[0]:,} documents and {here[1]:,} queries here, "
        f"{paper.sizes[task][0]:,} and {paper.sizes[task][1]:,} published."
        for paper in papers
        if paper.sizes.get(task, here) != here
    ]
    return HtmlTable(f"Published figures on {task}", columns, rows, notes=notes)


@dataclass(frozen=True)
class _Paper:
    """Task to method to nDCG@10, and task to its numbers of documents and of queries."""

    authors: str
    scores: dict[str, dict[str, float | None]]
    sizes: dict[str, tuple[int, int]]


def _paper(file: Path | Traversable) -> _Paper:
    kinds = OSError, ValueError, KeyError, TypeError, AttributeError
    with explained(f"{file} cannot be read", "write it again, or take it away", *kinds):
        content = parse_json(file.read_text(encoding="utf-8"))
        first, fifth = content.get("table1", {}), content.get("table5", {})
        rows = fifth.get("rows", {})
        scores = (
            {task: dict(row) for task, row in first["scores"].items()}
            if first.get("metric") == "ndcg@10"
            else {}
        )
        if fifth.get("metric") == "ndcg@10":
            scores |= {
                task: {m: row.get(task) for m, row in rows.items()} for task in fifth["datasets"]
            }
        sized = {task: size for task, size in rows.items() if "test_queries" in size}
        sizes = {
            task: (int(size["documents"]), int(size["test_queries"]))
            for task, size in sized.items()
        }
        if not all(
            isinstance(value, float | int | None)
            for row in scores.values()
            for value in row.values()
        ):
            raise TypeError("a score is no number")
    return _Paper(str(content.get("paper", "")).split(",")[0], scores, sizes)


def _packaged() -> list[Traversable]:
    try:
        files = resources.files(PACKAGE).iterdir()
        return sorted(
            (file for file in files if file.name.endswith(".json")), key=lambda file: file.name
        )
    except ModuleNotFoundError:
        return []


def _task(dataset: str, papers: Sequence[_Paper]) -> str | None:
    """What BEIR calls a collection, if a paper reports it; a single forum of cqadupstack is not the
    task.
    """
    parts = [
        part for part in re.split(r"[/:\\]", dataset.lower()) if part not in ("test", "v2", "")
    ]
    last = parts[-1] if parts else ""
    return last if any(last in paper.scores for paper in papers) else None
