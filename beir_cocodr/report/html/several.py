"""One page about several runs: their verdicts, and all their figures in a table with filters."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.results import ComparisonRecord, Interval, PairedTest
from beir_cocodr.io import atomic_output, real_path, text_sha256, write_text
from beir_cocodr.report.html.gate_section import side_names
from beir_cocodr.report.html.headline import headline_of, label_free_reference
from beir_cocodr.report.html.headline_record import Headline
from beir_cocodr.report.html.page import (
    WrittenPage,
    check_output_file,
    model_names,
    models_of,
    page,
    title_of,
)
from beir_cocodr.report.html.results_folder import LabelledEvaluation, ResultsFolder, read_folder
from beir_cocodr.report.html.tables import (
    HtmlTable,
    TableCell,
    TableColumn,
    difference_cell,
    number_cell,
    text_cell,
    text_columns,
)
from beir_cocodr.report.wording import interval_or_words, span

#: What a difference without labels is a difference in.
_ESTIMATED = "nDCG@10, estimated"


@dataclass(frozen=True)
class Run:
    """An output folder with its verdict.

    Attributes:
        name: what tells the folder from the others.
        collection: name of the collection.
        headline: its verdict.
        output: what it holds.
        names: label to the name that the page shows.
    """

    name: str
    collection: str
    headline: Headline
    output: ResultsFolder
    names: dict[str, str]


@dataclass(frozen=True)
class Figure:
    """A figure of a model on a collection.

    Attributes:
        model: name of the model.
        measure: the measure.
        verdict: of the model against ``against``, "" if it is against none.
        mean: the model's mean; None where only a difference is known.
        mean_interval: the interval of the mean.
        against: name of the model that it is compared with, "" for that model itself.
        difference: from that model.
        interval: of the difference, "" where it says nothing.
    """

    model: str
    measure: str
    verdict: str = ""
    mean: float | None = None
    mean_interval: Interval | None = None
    against: str = ""
    difference: float | None = None
    interval: str = ""


def write_joint_report(folders: Sequence[Path], output: Path, overwrite: bool) -> WrittenPage:
    """Write one page about the outputs of several commands.

    Args:
        folders: the outputs, at least two.
        output: the page.
        overwrite: replace the report of other runs.

    Raises:
        InputError: a folder is named twice or cannot be read, or ``output`` is not a report of
            ours.
    """
    paths = [real_path(folder) for folder in folders]
    if len(set(paths)) < len(paths):
        raise InputError("an output folder is named twice; name each folder once")
    source = text_sha256(*map(str, paths))
    check_output_file(output, source, overwrite)
    runs = [
        _run(read_folder(folder), name) for folder, name in zip(folders, _short(paths), strict=True)
    ]
    table = figure_table(runs)
    sentence = _sentence(runs, table)
    parts = {
        "source": source,
        "title": f"{len(runs)} runs",
        "sentence": sentence,
        "runs": runs,
        "figures": table,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    with atomic_output(output) as temporary:
        write_text(temporary, page(parts, "several.html"))
    return WrittenPage(str(output), "several runs", sentence, 0, 0)


def _run(output: ResultsFolder, name: str) -> Run:
    names = model_names(output, models_of(output))
    return Run(name, title_of(output), headline_of(output, names), output, names)


def _short(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest):
        ends = [str(Path(*path.parts[-count:])) for path in paths]
        if len(set(ends)) == len(ends):
            return ends
    return [str(path) for path in paths]


def _sentence(runs: Sequence[Run], table: HtmlTable) -> str:
    collections = {run.collection for run in runs}
    models = {row[2].text for row in table.rows}
    of_collections = "1 collection" if len(collections) == 1 else f"{len(collections)} collections"
    return f"{len(runs)} runs on {of_collections}, with {len(models)} models."


def figure_table(runs: Sequence[Run]) -> HtmlTable:
    """Return every figure of all runs, to be filtered by collection, model, measure and verdict."""
    columns = [
        TableColumn("Collection", number=False, filters=True),
        *text_columns("Run"),
        TableColumn("Model", number=False, filters=True),
        TableColumn("Measure", number=False, filters=True),
        TableColumn("Mean", meaning="over queries, with its bootstrap 95% interval"),
        *text_columns("Compared with"),
        TableColumn("Difference", meaning="with its interval: 95% with labels, and 90% without"),
        TableColumn("Verdict", number=False, filters=True),
    ]
    rows = []
    for run in runs:
        for figure in _figures(run):
            rows.append(_row(run, figure))
    return HtmlTable("All figures", columns, rows)


def _row(run: Run, figure: Figure) -> list[TableCell]:
    difference = TableCell("–")
    if figure.difference is not None:
        difference = difference_cell(figure.difference, figure.interval, figure.verdict)
    return [
        text_cell(run.collection),
        text_cell(run.name),
        text_cell(figure.model),
        text_cell(figure.measure),
        number_cell(figure.mean, ".3f", span(figure.mean_interval, sign="", none="")),
        text_cell(figure.against or "–"),
        difference,
        text_cell(figure.verdict or "–"),
    ]


def _figures(run: Run) -> Iterator[Figure]:
    output = run.output
    if output.gate is not None:
        record = output.gate
        old, new = side_names(record)
        yield Figure(
            new,
            _ESTIMATED,
            record.decision,
            against=old,
            difference=record.estimate,
            interval=span(record.interval),
        )
    if output.passages is not None:
        for size in output.passages.figures:
            for kind, value in size.by_file.items():
                yield Figure(
                    f"{size.model}, {size.words} words",
                    f"nDCG@10, {kind}",
                    mean=value,
                )
    if output.evaluation is not None:
        yield from _labelled_figures(output.evaluation, run.names)
    elif output.comparison is not None:
        yield from _estimated_figures(output.comparison, output, run.names)


def _labelled_figures(evaluation: LabelledEvaluation, names: dict[str, str]) -> Iterator[Figure]:
    for label, result in evaluation.results.models.items():
        for measure, mean in result.measures.items():
            alone = Figure(
                names[label],
                measure,
                mean=mean,
                mean_interval=result.intervals.get(measure),
            )
            test = evaluation.test(evaluation.reference, label, measure)
            yield alone if test is None else _compared(alone, test, names[evaluation.reference])


def _compared(figure: Figure, test: PairedTest, against: str) -> Figure:
    return replace(
        figure,
        verdict=test.verdict,
        against=against,
        difference=test.difference,
        interval=interval_or_words(test),
    )


def _estimated_figures(
    comparison: ComparisonRecord, output: ResultsFolder, names: dict[str, str]
) -> Iterator[Figure]:
    reference = label_free_reference(comparison, output.candidates)
    for pair in comparison.estimated:
        if reference not in (pair.a, pair.b):
            continue
        turned = pair if pair.a == reference else pair.turned()
        yield Figure(
            names[turned.b],
            _ESTIMATED,
            turned.verdict,
            against=names[turned.a],
            difference=turned.estimate,
            interval=span(turned.interval),
        )
