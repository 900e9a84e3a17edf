"""COCO-DR: Tables 1, 2, 3, 6 and 7, and Figures 3 to 6."""

from __future__ import annotations

from reproduce.cocodr_figures import episodes, figure3, figure5
from reproduce.cocodr_models import (
    MARCO,
    TRAINED,
    corpora,
    further,
    judged,
    judgements,
    per_task,
)
from reproduce.shared import COCODR, TASKS, TRAIN, parts_of
from reproduce.specification import (
    AgainstZero,
    Cell,
    Cells,
    Comparison,
    Paper,
    Step,
    Table,
    difference,
    grid,
    mean,
)


def averages(
    table: str,
    cells: Cells,
    kinds: dict[str, list[str]],
) -> Cells:
    """Return the averages of every column, by kind of average."""
    columns = list(dict.fromkeys(column for _, column in cells))

    def cell(kind: str, column: str) -> Cell:
        path = f"{table}|averages|{kind}|{column}"
        return mean((cells[task, column] for task in kinds[kind]), path)

    return grid(kinds, columns, cell)


def by_task(
    number: int,
    title: str,
    tasks: list[str],
    kinds: dict[str, list[str]],
    comparison: Comparison | None = None,
) -> Table:
    """Return a table of tasks by methods, with averages.

    Args:
        number: The table's number.
        title: Its title.
        tasks: Its rows.
        kinds: Rows of averages, each to the tasks that it averages.
        comparison: The tests of significance.
    """
    name = f"table{number}"

    def cell(task: str, method: str) -> Cell:
        return judged(method, task, f"{name}|scores|{task}|{method}")

    cells = grid(tasks, COCODR[name]["methods"], cell)
    return Table(
        f"coco-dr-{name}",
        title,
        "cocodr",
        cells | averages(name, cells, kinds),
        of=(f"{name}|scores", f"{name}|averages"),
        comparison=comparison,
        judged=further,
    )


_AVERAGES = {
    "avg": TASKS,
    "avg_cpt_sub": COCODR["table1"]["avg_cpt_sub_datasets"],
}


def table3() -> Table:
    """Return the table of domain adaptation."""
    tasks = COCODR["table3"]["datasets"]

    def cell(method: str, task: str) -> Cell:
        return judged(method, task, f"table3|rows|{method}|{task}")

    cells = grid(COCODR["table3"]["rows"], tasks, cell)
    for method in COCODR["table3"]["rows"]:
        of_tasks = [cells[method, task] for task in tasks]
        cells[method, "avg"] = mean(of_tasks, f"table3|rows|{method}|avg")
    title = "Domain adaptation on five tasks, nDCG@10"
    return Table(
        "coco-dr-table3",
        title,
        "cocodr",
        cells,
        of=("table3|rows",),
        comparison=Comparison(
            {
                "coco-dr-base-no-idro": {"gpl-tsdae": "†"},
                "coco-dr-base": {"gpl-tsdae": "†"},
                "coco-dr-large": {"gpl-tsdae": "†"},
            },
            level=0.01,
            in_rows=True,
        ),
    )


_SIMILARITIES = {
    "query_intent_similarity": "query_type_jaccard",
    "document_lexical_similarity": "document_jaccard",
}
_RIVALS = {
    "ance_bert_minus_bm25": "ance-bert",
    "ance_cocondenser_minus_bm25": "cocondenser-base",
}


def table6() -> Table:
    """Return the similarities of MS MARCO and BEIR, and ANCE less BM25.

    The similarities are statistics of texts. No model makes them, so that only the collections are
    checked, and they have no scores of queries to test. What ANCE gains is tested over the queries;
    the paper makes no test.
    """
    targets = corpora("--target", TASKS)
    shift = f"shift --source {{data:{TRAIN}}} {targets} --output {{out}} --overwrite"
    per_task["shift"] = Step((shift,))

    def cell(task: str, column: str) -> Cell:
        published = f"table6|rows|{task}|{column}"
        if column in _RIVALS:
            rival = judged(_RIVALS[column], task, "")
            return difference(rival, judged("bm25", task, ""), published)
        key = _SIMILARITIES[column]
        cells = []
        for part in parts_of(task):
            cells.append(
                Cell(
                    "shift",
                    f"shift.json:targets[dataset={{data:{part}}}]|{key}",
                    expects=(("shift.json:source|dataset", MARCO),),
                )
            )
        return mean(cells, published)

    cells = grid(TASKS, COCODR["table6"]["columns"], cell)
    title = "Distance of MS MARCO from BEIR, and what ANCE gains over BM25"
    return Table(
        "coco-dr-table6",
        title,
        "cocodr",
        cells,
        of=("table6|rows",),
        digits=4,
        against_zero=AgainstZero(level=0.01, of_paper=False),
    )


#: The tasks of Wang et al. (2022), as the text names them.
_SIX = ["trec-covid", "scifact", "bioasq", "fiqa", "cqadupstack", "robust04"]

#: The marks of Table 2; those of the large model are over large ones.
_MARKS = {
    "coco-dr-{size}-no-idro": "†",
    "coco-dr-{size}-no-coco": "‡",
    "cocondenser-{size}": "♭",
    "condenser-{size}": "♮",
}


def over_ablations() -> Comparison:
    """Return the tests of Table 2: each model against the ablations of its size."""
    against = {}
    for size in ("base", "large"):
        others = {name.format(size=size): mark for name, mark in _MARKS.items()}
        against[f"coco-dr-{size}"] = others
    return Comparison(against, level=0.01)


#: Tests that the paper does not make: of Table 1 against the models of about the same size that
#: can be run, and of Table 7.
_OVER_RIVALS = Comparison(
    {
        "coco-dr-base": {"bm25": "b", "ance": "a", "contriever": "c", "genq": "q", "gpl": "g"},
        "coco-dr-large": {"bm25": "b", "coco-dr-base": "s", "gtr-xl": "x"},
    },
    level=0.01,
    of_paper=False,
)
_OVER_GROUPDRO = Comparison({"coco-dr-base": {"groupdro": "d"}}, level=0.01, of_paper=False)


TABLES = [
    by_task(
        1,
        "nDCG@10 on BEIR",
        ["msmarco", *TASKS],
        _AVERAGES,
        _OVER_RIVALS,
    ),
    by_task(
        2,
        "COCO and iDRO taken away, nDCG@10",
        TASKS,
        {"avg": TASKS},
        over_ablations(),
    ),
    table3(),
    table6(),
    by_task(
        7,
        "GroupDRO in iDRO's place, nDCG@10",
        TASKS,
        {"avg": TASKS},
        _OVER_GROUPDRO,
    ),
    figure3(),
    episodes(4, ["trec-covid", "scifact"]),
    figure5(),
    episodes(6, _SIX),
]

PAPER = Paper(
    "coco-dr",
    "COCO-DR",
    TRAINED | per_task | judgements.steps,
    TABLES,
)
