"""The comparison of passage sizes, as the page shows it."""

from beir_cocodr.evaluation.passage_sizes import PassagesRecord
from beir_cocodr.report.html.headline_record import CANNOT_TELL, Headline
from beir_cocodr.report.html.tables import (
    HtmlTable,
    TableCell,
    TableColumn,
    number_cell,
    text_cell,
    text_columns,
)
from beir_cocodr.report.wording import signed, span

# The record orders sizes by their chances, and decides nothing.
_BETTER_BET = "better bet"


def passages_headline(record: PassagesRecord) -> Headline:
    """Return the better bet for the first model; the other sentences follow as notes."""
    sentence, *notes = record.describe()
    facts = []
    for model, size in record.best.items():
        words = "no size" if size is None else f"{size:,}"
        facts.append(("Words of a passage", f"{words} for {model}"))
    first = next(iter(record.best.values()), None)
    word = CANNOT_TELL if first is None else _BETTER_BET
    return Headline(word, sentence, facts, notes=notes)


def passages_tables(record: PassagesRecord) -> list[HtmlTable]:
    """Return the figures of each size, and the differences between sizes."""
    kinds = list(record.questions)
    columns = [*text_columns("Model"), TableColumn("Words"), TableColumn("Passages")]
    columns += [TableColumn(f"nDCG@10, {kind}") for kind in kinds]
    columns.append(TableColumn("By span", meaning="how early the place of the answer is read"))
    rows = []
    for figures in record.figures:
        row = [
            text_cell(figures.model),
            number_cell(figures.words, ","),
            number_cell(figures.passages, ","),
        ]
        row += [number_cell(figures.by_file.get(kind), ".3f") for kind in kinds]
        row.append(number_cell(figures.by_span, ".3f"))
        rows.append(row)
    return [HtmlTable("Sizes of passages", columns, rows), _pair_table(record)]


def _pair_table(record: PassagesRecord) -> HtmlTable:
    columns = [
        *text_columns("Model"),
        TableColumn("Words"),
        TableColumn("Compared with"),
        TableColumn("Difference", meaning="in nDCG@10 by file, with its 90% interval"),
        TableColumn("Chance", meaning="that the size is better"),
    ]
    rows = []
    for pair in record.pairs:
        difference = TableCell(signed(pair.difference), pair.difference, span(pair.interval))
        rows.append(
            [
                text_cell(pair.model),
                number_cell(pair.b, ","),
                number_cell(pair.a, ","),
                difference,
                number_cell(pair.probability),
            ]
        )
    return HtmlTable("Differences between sizes", columns, rows)
