"""The table of a comparison of passage sizes."""

from rich.table import Table

from beir_cocodr.evaluation.passage_sizes import PassagesRecord, lines
from beir_cocodr.report.terminal import make_table


def passage_tables(record: PassagesRecord) -> list[Table]:
    """Return models and sizes by their figures, with the better bets below."""
    kinds = list(record.questions)
    rows = []
    for figures in record.figures:
        cells = [figures.model, str(figures.words), f"{figures.passages:,}"]
        cells += [f"{figures.by_file[kind]:.3f}" for kind in kinds]
        by_span = ""
        if figures.by_span is not None:
            by_span = f"{figures.by_span:.3f}"
        cells.append(by_span)
        rows.append(cells)
    columns = ["words", "passages", *[f"nDCG@10, {kind}" for kind in kinds], "by span"]
    title = f"{record.dataset}: passages of several sizes"
    return [make_table(title, ["model"], columns, rows, lines(record))]
