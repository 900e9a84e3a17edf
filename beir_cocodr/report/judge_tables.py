"""The figures of a judge as a table of the terminal."""

from rich.table import Table

from beir_cocodr.evaluation.judge.findings import JudgedDifference, JudgeFindings
from beir_cocodr.evaluation.judge.prediction_powered import Ends
from beir_cocodr.report.terminal import make_table
from beir_cocodr.report.wording import format_number, signed, span

#: Titles of the columns of numbers: of the judge alone, and of labels and judge together.
OPINION = ("the judge's b − a", "90%")
JOINED = (
    "labels alone",
    "90%",
    "together",
    "90%",
    "however often one looks",
    "correlation",
    "worth in labelled queries",
)


def judge_titles(judge: JudgeFindings) -> list[str]:
    """Return the titles of the columns of numbers."""
    if judge.labelled:
        return [*OPINION, *JOINED]
    return list(OPINION)


def judge_cells(difference: JudgedDifference) -> list[tuple[str, float | None]]:
    """Return text and value of each cell below :func:`judge_titles`; an interval's is its end."""
    cells = [_number(difference.opinion), _ends(difference.opinion_interval)]
    joined = difference.joined
    if joined is None:
        return cells
    return [
        *cells,
        _number(joined.labels_alone),
        _ends(joined.alone_interval),
        _number(joined.difference),
        _ends(joined.interval),
        _ends(joined.sequence),
        (format_number(joined.correlation), joined.correlation),
        (format_number(joined.worth, ".0f"), joined.worth),
    ]


def _number(value: float) -> tuple[str, float]:
    return signed(value), value


def _ends(interval: Ends | None) -> tuple[str, float | None]:
    return span(interval), None if interval is None else interval[0]


def judge_table(judge: JudgeFindings) -> Table:
    """Return the differences by a judge alone, and by labels and judge together."""
    rows = []
    for difference in judge.differences:
        texts = [text for text, _ in judge_cells(difference)]
        rows.append([difference.a, difference.b, *texts])
    notes = list(judge.describe())
    return make_table(
        judge.title,
        ["a", "b"],
        judge_titles(judge),
        rows,
        notes,
    )
