"""Tables of the page that can be sorted: models, tests, verdicts, pairs to label, trainings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from beir_cocodr.evaluation.chains import Chain
from beir_cocodr.evaluation.judge.findings import JudgeFindings
from beir_cocodr.evaluation.label_free.choice import training_pairs
from beir_cocodr.evaluation.recommendation import USE
from beir_cocodr.evaluation.results import (
    LEVEL,
    AnnotationCandidates,
    ComparisonRecord,
    Estimate,
    EvaluationRecord,
    PairedTest,
    PairVerdict,
)
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import CollectionProvenance
from beir_cocodr.report.html.results_folder import CurvePoint, LabelledEvaluation, Trained
from beir_cocodr.report.judge_tables import judge_cells, judge_titles
from beir_cocodr.report.wording import (
    COUNTED,
    capitalized,
    counted,
    describe_likeness,
    describe_pseudo_queries,
    describe_specificity,
    estimators_of,
    format_number,
    interval_or_words,
    meaning,
    p_value,
    signed,
    span,
)


@dataclass(frozen=True)
class TableCell:
    """One cell.

    Attributes:
        text: its text.
        value: the value that it is sorted by; None is sorted last.
        sub: a smaller text below.
        mark: a class of the style sheet, such as "better".
    """

    text: str
    value: float | str | None = None
    sub: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        title: its header.
        number: whether it contains numbers.
        meaning: explanation of the header.
        filters: offer its values above the table, to show the rows of one of them.
    """

    title: str
    number: bool = True
    meaning: str = ""
    filters: bool = False


@dataclass(frozen=True)
class HtmlTable:
    """A table of the page.

    Attributes:
        caption: line above it.
        columns: its columns.
        rows: a cell for every column; the first cell names the row.
        groups: title and number of columns of each group of columns.
        notes: sentences below it.
    """

    caption: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = field(default_factory=list)


def text_columns(*titles: str) -> list[TableColumn]:
    """Return columns that contain no numbers."""
    return [TableColumn(title, number=False) for title in titles]


def text_cell(text: str, sub: str = "", mark: str = "") -> TableCell:
    """Return a cell that is sorted by its text."""
    return TableCell(text, text.casefold(), sub, mark)


def number_cell(value: float | None, form: str = ".2f", sub: str = "") -> TableCell:
    """Return a cell with a number in Python's format language, a dash for None."""
    return TableCell(format_number(value, form), value, sub)


_DASH = TableCell("–")

_MEAN = TableColumn("Mean", meaning="mean over queries, with its bootstrap 95% interval")

_DIFFERENCE = TableColumn(
    "Difference", meaning="mean of the paired differences, with its bootstrap 95% interval"
)

_COUNTS = TableColumn(
    "Won / tied / lost", meaning="queries won, tied and lost; sorted by won minus lost"
)


def model_table(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> HtmlTable:
    """Return every model in every measure, beside its difference from the reference."""
    results = evaluation.results
    is_alone = len(results.models) == 1
    columns = text_columns("Model")
    groups = [("", 1)]
    for measure in results.measures:
        of_measure = [_MEAN]
        if not is_alone:
            p_column = TableColumn("p", meaning=meaning("p after Holm"))
            of_measure += [_DIFFERENCE, p_column, _COUNTS]
        columns += of_measure
        groups.append((measure, len(of_measure)))
    rows = []
    for label, result in results.models.items():
        row = [text_cell(names[label], _model_behind(result.model, names[label]))]
        for measure, interval in result.intervals.items():
            interval_text = span(interval, sign="", none="")
            row.append(number_cell(result.measures[measure], ".3f", interval_text))
            if not is_alone:
                test = evaluation.test(evaluation.reference, label, measure, USE)
                row += _test_cells(test)
        rows.append(row)
    caption = "Means"
    if not is_alone:
        caption = f"Means, and differences from {names[evaluation.reference]}"
    return HtmlTable(caption, columns, rows, groups, list(_notes(results, names)))


def _test_cells(test: PairedTest | None) -> list[TableCell]:
    """Return difference, p and counts of a test, dashes for the reference itself."""
    if test is None:
        return [_DASH, _DASH, _DASH]
    return [_difference_of(test), _p_cell(test.t_p_holm), _counts_cell(test)]


def _model_behind(model: str, name: str) -> str:
    """Return the model behind a name, "" if the name shows it.

    A path is shortened to its last part, or to its last two if the name is the last one.
    """
    spec = ModelSpec.parse(model)
    parts = spec.encoder.rstrip("/").split("/")
    longer = spec.encoder
    if len(parts) > 2:
        longer = f"…/{'/'.join(parts[-2:])}"
    for ending in (parts[-1], longer):
        if spec.prefix + ending != name:
            return spec.prefix + ending
    return ""


def test_table(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> HtmlTable:
    """Return every paired test that was made, b against a."""
    columns = [
        *text_columns("Model", "Compared with", "Question", "Measure"),
        _DIFFERENCE,
        TableColumn("p, t-test", meaning=meaning("p after Holm")),
        TableColumn(
            "p, randomisation",
            meaning="the same by 10,000 random changes of sign, after Holm's correction",
        ),
        _COUNTS,
    ]
    rows = []
    for test in evaluation.results.comparisons:
        texts = (names[test.b], names[test.a], test.family, test.measure)
        rows.append(
            [
                *map(text_cell, texts),
                _difference_of(test),
                _p_cell(test.t_p_holm),
                _p_cell(test.randomization_p_holm),
                _counts_cell(test),
            ]
        )
    return HtmlTable("All paired tests", columns, rows)


def _p_cell(p: float | None) -> TableCell:
    return TableCell(p_value(p), p)


def _difference_of(test: PairedTest) -> TableCell:
    return difference_cell(test.difference, interval_or_words(test), test.verdict)


def difference_cell(value: float, sub: str, verdict: str) -> TableCell:
    """Return a cell with a signed number, coloured if the verdict is "better" or "worse"."""
    return TableCell(signed(value), value, sub, _mark(verdict))


def _mark(verdict: str) -> str:
    if verdict in ("better", "worse"):
        return verdict
    return ""


def _counts_cell(test: PairedTest) -> TableCell:
    counts = f"{test.wins:,} / {test.ties:,} / {test.losses:,}"
    return TableCell(counts, test.wins - test.losses)


def _notes(results: EvaluationRecord, names: Mapping[str, str]) -> Iterator[str]:
    if len(results.models) > 1:
        is_ablation = any(test.family == USE for test in results.comparisons)
        family = f"“{USE}”" if is_ablation else "all pairs of models"
        yield (
            f"p: two-tailed paired t-test over queries, after Holm's correction over {family} in a "
            f"measure. Coloured: p < {LEVEL}."
        )
    truncated: dict[str, list[str]] = {}
    for label, result in results.models.items():
        if result.truncation:
            truncated.setdefault(result.truncation, []).append(names[label])
    for truncation, models in truncated.items():
        yield f"{truncation}: {'; '.join(models)}."
    for label, result in results.models.items():
        count = result.queries_without_results
        if count:
            queries = "1 query" if count == 1 else f"{count:,} queries"
            yield f"{names[label]}: {queries} without results, scored 0."
    for label, result in results.models.items():
        reason = result.retrieval.get("weight_reason")
        if reason:
            yield f"{names[label]}: {reason}."


#: Verdicts to the numbers that they are sorted by.
_VERDICTS = {"better": 1, "no difference": 0.25, "cannot tell": 0, "worse": -1}


def verdict_table(
    comparison: ComparisonRecord,
    names: Mapping[str, str],
    pairs: Sequence[PairVerdict],
    caption: str,
) -> HtmlTable:
    """Return pairs of a comparison without labels: verdict and estimates of b − a."""
    estimators = estimators_of(pairs)
    columns = [
        *text_columns("Model", "Compared with"),
        TableColumn("Verdict", meaning="on the model, by the rule; sorted from better to worse"),
        TableColumn("Expected", meaning=f"difference in nDCG@10: {meaning('Estimated nDCG@10')}"),
        TableColumn("Chance", meaning=f"to be better: {meaning('Chance to be better')}"),
    ]
    for name in map(capitalized, estimators):
        columns.append(
            TableColumn(name, meaning=f"difference, with its 95% interval: {meaning(name)}")
        )
    rows = []
    for pair in pairs:
        estimates = {estimate.estimator: estimate for estimate in pair.estimates}
        rows.append(
            [
                text_cell(names[pair.b]),
                text_cell(names[pair.a]),
                TableCell(
                    pair.verdict,
                    _VERDICTS.get(pair.verdict),
                    mark=_mark(pair.verdict),
                ),
                _expected_cell(pair),
                number_cell(pair.probability),
                *(_estimate_cell(pair, estimates.get(name)) for name in estimators),
            ]
        )
    return HtmlTable(caption, columns, rows, notes=_verdict_notes(comparison, pairs))


def _verdict_notes(comparison: ComparisonRecord, pairs: Sequence[PairVerdict]) -> list[str]:
    notes = []
    if len(pairs) == 1:
        notes.append(f"The rule: {pairs[0].reason}.")
    remarks: dict[str, None] = {}
    for pair in pairs:
        for estimate in pair.estimates:
            if estimate.remark:
                name = capitalized(estimate.estimator)
                remarks[f"{name}, where it is no evidence: {estimate.remark}."] = None
    if any(counted(pair, estimate) is not None for pair in pairs for estimate in pair.estimates):
        notes.append(f"“Counts as”: the difference {COUNTED}, which the verdict rests on.")
    notes += remarks
    notes += dict.fromkeys(pair.trust for pair in pairs)
    notes += describe_likeness(comparison.likeness)
    described = describe_pseudo_queries(comparison.pseudo_queries)
    for text in [*described, *describe_specificity(pairs)]:
        notes.append(f"{capitalized(text)}.")
    return notes


def _expected_cell(pair: PairVerdict) -> TableCell:
    return difference_cell(pair.estimate, span(pair.interval, none=""), pair.verdict)


#: Marks of an estimate by the side of 0 on which its interval lies.
_SIGNS = {1: "better", -1: "worse"}


def _estimate_cell(pair: PairVerdict, estimate: Estimate | None) -> TableCell:
    if estimate is None or estimate.difference is None:
        return _DASH
    sub = "no evidence"
    if estimate.applies:
        sub = span(estimate.interval, none="")
        value = counted(pair, estimate)
        if value is not None:
            sub += f"; counts as {signed(value)}"
    return difference_cell(estimate.difference, sub, _SIGNS.get(estimate.sign, ""))


def pairs_to_show(
    comparison: ComparisonRecord,
    reference: str,
    candidates: Mapping[str, str],
    chains: Mapping[str, Chain],
) -> list[PairVerdict]:
    """Return the pairs with the reference, and of an encoder with the base in the same use.

    Args:
        comparison: a comparison without labels.
        reference: the name of the model that the others are compared with.
        candidates: label to model name of an adaptation; empty without one.
        chains: label to chain of an adaptation; empty without one.
    """
    same_use = {(candidates[a], candidates[b]) for a, b in training_pairs(chains.values())}
    pairs = []
    for pair in comparison.estimated:
        models = (pair.a, pair.b)
        if reference in models or models in same_use:
            pairs.append(pair)
    return pairs


#: Characters of a document that a pair to label shows.
_DOCUMENT = 160


def annotation_table(wanted: AnnotationCandidates, names: Mapping[str, str]) -> HtmlTable:
    """Return the query-document pairs whose labels would decide most."""
    a = names[wanted.a]
    b = names[wanted.b]
    columns = [
        *text_columns("Query", "Document"),
        TableColumn(
            "Weight",
            meaning="by how much the difference in DCG@10 changes if the document is relevant",
        ),
        TableColumn(f"Rank by {a}"),
        TableColumn(f"Rank by {b}"),
    ]
    rows = []
    for pair in wanted.pairs:
        document = pair.document[:_DOCUMENT]
        rows.append(
            [
                text_cell(pair.query or pair.query_id, pair.query_id),
                text_cell(document or pair.document_id, pair.document_id),
                number_cell(pair.weight, ".3f"),
                number_cell(pair.rank_a, "d"),
                number_cell(pair.rank_b, "d"),
            ]
        )
    return HtmlTable(f"Labels that would decide most between {a} and {b}", columns, rows)


#: Scores of single queries that a page may hold.
_MOST_SCORES = 20_000


def query_table(
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    pair: tuple[str, str],
    names: Mapping[str, str],
    measure: str,
    texts: Mapping[str, str],
) -> HtmlTable | None:
    """Return every judged query with the score of each model, or of the pair if it is too many.

    Args:
        scores: label to query id to its scores.
        pair: labels of the two models that are compared.
        names: label to the name that the page shows.
        measure: the measure of the first score.
        texts: query id to text.

    Returns:
        The table, or None without scores of the pair.
    """
    label_a, label_b = pair
    a = scores.get(label_a)
    b = scores.get(label_b)
    if not a or not b:
        return None
    labels = list(scores)
    if len(labels) * len(a) > _MOST_SCORES:
        labels = list(pair)
    difference = f"{names[label_b]} minus {names[label_a]}"
    columns = text_columns("Query")
    columns.append(TableColumn("Difference", meaning=difference))
    columns += [TableColumn(names[label], meaning=measure) for label in labels]
    rows = []
    for query in a:
        row = [text_cell(query, "")]
        if texts.get(query):
            row = [text_cell(texts[query], query)]
        change = b[query][0] - a[query][0]
        row.append(
            TableCell(
                signed(change),
                round(change, 4),
                mark=_change_mark(change),
            )
        )
        for label in labels:
            score = scores[label][query][0]
            row.append(number_cell(score, ".3f"))
        rows.append(row)
    return HtmlTable(f"All queries, {measure}", columns, rows)


def _change_mark(change: float) -> str:
    if change > 0:
        return "better"
    return "worse" if change < 0 else ""


def training_table(trained: Sequence[Trained]) -> HtmlTable:
    """Return a row for every training, with the trainings that a model was made from below it."""
    columns = [
        *text_columns("Model", "Stage"),
        TableColumn("Collections", number=False, meaning="the collections that it was trained on"),
        TableColumn("Steps"),
        TableColumn("Seed"),
        TableColumn("Loss"),
        TableColumn("Seconds"),
    ]
    rows = []
    for model in trained:
        for record in reversed(model.record.lineage()):
            name = model.name
            if record is not model.record:
                name = f"{model.name}, before"
            rows.append(_training_row(name, record))
    return HtmlTable("Trainings", columns, rows)


def _training_row(name: str, record: TrainingRecord) -> list[TableCell]:
    collections = [
        f"{seen.dataset} ({describe_sizes(seen)})"
        for seen in record.seen
        if seen.documents is not None
    ]
    seed = record.options.get("seed")
    return [
        text_cell(name, f"from {record.base or '?'}"),
        text_cell(record.stage),
        text_cell(", ".join(collections) or "–"),
        number_cell(record.steps, ","),
        number_cell(seed if isinstance(seed, int) else None, "d"),
        number_cell(record.training_loss, ".4g"),
        number_cell(record.seconds, ",.0f"),
    ]


def describe_sizes(seen: CollectionProvenance) -> str:
    """Return the numbers of documents and queries of a collection that training has seen."""
    documents = f"{format_number(seen.documents, ',')} documents"
    if seen.queries is None:
        return documents
    return f"{documents}, {seen.queries:,} queries"


def settings_table(model: Trained) -> HtmlTable:
    """Return every setting of a training."""
    rows = []
    for key, value in {**model.record.options, **model.record.encoder}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        rows.append([text_cell(key), text_cell(text)])
    return HtmlTable(f"Settings of {model.name}", text_columns("Setting", "Value"), rows)


def curve_table(name: str, points: Sequence[CurvePoint]) -> HtmlTable:
    """Return the measures after each round."""
    measures = list(points[0].measures)
    rows = []
    for point in points:
        numbers = [number_cell(point.measures.get(measure), ".3f") for measure in measures]
        rows.append([text_cell(point.model), text_cell(point.dataset), *numbers])
    columns = [*text_columns("Round", "Target"), *map(TableColumn, measures)]
    return HtmlTable(f"After every round of {name}", columns, rows)


def judge_table(judge: JudgeFindings, names: Mapping[str, str]) -> HtmlTable:
    """Return the differences by a judge alone, and by labels and judge together."""
    columns = text_columns("Model", "Compared with")
    columns += [TableColumn(capitalized(title)) for title in judge_titles(judge)]
    rows = []
    for difference in judge.differences:
        row = [text_cell(names[difference.b]), text_cell(names[difference.a])]
        row += [TableCell(text, value) for text, value in judge_cells(difference)]
        rows.append(row)
    return HtmlTable(
        capitalized(judge.title),
        columns,
        rows,
        notes=list(judge.describe()),
    )
