"""Query-as-context pre-training: Tables 1 to 4."""

from __future__ import annotations

from dataclasses import replace

from reproduce.lineage import Making
from reproduce.shared import DEV, DL19, DL20, TASKS, TRAIN, Judgements
from reproduce.specification import (
    Cell,
    Cells,
    Comparison,
    Paper,
    Step,
    Table,
    difference,
    grid,
    published,
)

QC = published("query_as_context")

judgements = Judgements("RR@10 R@50 R@1000 nDCG@10")

_TOKENS = (32, 144)

_CORPUS = "msmarco-documents"

#: C, the queries of a passage, in Table 3.
COUNTS = (1, 5, 10, 20)

#: Passages whose queries are generated at a time. By the plan's estimate 20 queries of each take
#: 38 GiB together; those of 128 passages take 75 GiB, which leaves a GPU of 80 GiB no room.
_PASSAGES_AT_ONCE = 64


def generate(count: int) -> Step:
    """Return queries for passages of MS MARCO's documents."""
    command = f"generate-queries --dataset {{data:{_CORPUS}}} --generator {{model:doc2query}}"
    command += f" --output {{out}} --per-passage {count} --passage-tokens 144"
    return Step((f"{command} --batch-size {_PASSAGES_AT_ONCE}",))


def pretrain(
    kind: str,
    mix: str = "",
    count: int = 5,
) -> Step:
    """Return pre-training on passages with their queries.

    Args:
        kind: "cocondenser" or "cotmae".
        mix: An option that changes what a passage meets.
        count: C, the queries of a passage.
    """
    preset = "cotmae" if kind == "cotmae" else "qc"
    start = "bert-base" if kind == "cotmae" else "condenser-base"
    command = f"pretrain --preset {preset} --dataset {{data:{_CORPUS}}} --queries {{step:queries}}"
    command += f" --model {{model:{start}}} --output {{out}}{mix} --per-passage {count}"
    return Step((f"{command} --resume",))


def finetune(start: str, kind: str) -> Step:
    """Return the training of both retrievers, the first one in the folder stages/1."""
    preset = "cotmae" if kind == "cotmae" else "qc"
    command = f"finetune --preset {preset} --dataset {{data:{TRAIN}}} --model {{step:{start}}}"
    return Step((f"{command} --output {{out}} --resume",))


#: A passage meets another passage of its document (the baselines), a query, or either with equal
#: chance.
_MIXES = {
    "": " --mix 1",
    "-qc": "",
    "-mixed": " --mix 0.5",
}

_BOTH = ("cocondenser", "cotmae")


def trainings() -> dict[str, Step]:
    """Return the steps of all variants: pre-trained, and fine-tuned."""
    steps = {"queries": generate(max(COUNTS))}
    for kind in _BOTH:
        variants = {f"{kind}{suffix}": pretrain(kind, mix) for suffix, mix in _MIXES.items()}
        for count in COUNTS:
            if count != 5:
                variants[f"{kind}-qc-C{count}"] = pretrain(kind, "", count)
        for name, step in variants.items():
            steps[f"pretrained/{name}"] = step
            steps[name] = finetune(f"pretrained/{name}", kind)
    return steps


TRAINED = trainings()

_COLUMNS = {
    "msmarco, mrr@10": (DEV, "RR@10"),
    "msmarco, recall@50": (DEV, "R@50"),
    "msmarco, recall@1000": (DEV, "R@1000"),
    "trec-dl-2019, ndcg@10": (DL19, "nDCG@10"),
    "trec-dl-2020, ndcg@10": (DL20, "nDCG@10"),
}


def judged(
    name: str,
    column: str,
    path: str = "",
    retriever: int = 2,
) -> Cell:
    """Return the cell of a fine-tuned model, in percent as the paper prints."""
    data, measure = _COLUMNS[column]
    folder = "/stages/1" if retriever == 1 else ""
    model = f"{{step:{name}}}{folder}"
    label = f"{name}-retriever{retriever}"
    return judgements.cell(
        label,
        model,
        data,
        measure,
        path,
        100,
        _TOKENS,
        replace(made_of(name), round=0 if retriever == 1 else None),
    )


def pretraining_of(name: str) -> Making:
    """Return what the pre-trained model of a variant must be made of."""
    kind, _, variant = name.partition("-")
    count = 5.0
    mix = {"": 1.0, "mixed": 0.5}.get(variant, 0.0)
    if "-C" in name:
        count = float(name.rpartition("-C")[2])
    objective, start = ("cotmae", "bert-base") if kind == "cotmae" else ("qc", "condenser-base")
    return Making(
        f"{{model:{start}}}",
        (objective,),
        (f"{{data:{_CORPUS}}}",),
        settings=(("mix", mix), ("per_passage", count)),
    )


def made_of(name: str) -> Making:
    """Return what retriever 2 of a variant must be made of."""
    return pretraining_of(name).then(
        "infonce+erm",
        data=(f"{{data:{TRAIN}}}",),
        settings={"stages": 2},
    )


def table1() -> Table:
    """Return the table of passage retrieval."""
    cells = {}
    for group, rows in QC["table1"].items():
        for row in rows:
            for column in _COLUMNS:
                path = f"table1|{group}|{row}|{column.replace(', ', '|')}"
                cells[row, column] = _cell_of_table1(row, column, path)
    title = "Passage retrieval after pre-training with queries, percent"
    name = "query-as-context-table1"
    return Table(
        name,
        title,
        "query_as_context",
        cells,
        of=("table1",),
        digits=1,
        comparison=over_baselines(),
    )


def over_baselines() -> Comparison:
    """Return the tests of each model against the same one without queries, at p < 0.05."""
    against = {}
    for kind, steps in (("cocondenser", "120k"), ("cotmae", "50k")):
        for retriever in ("retriever1", "retriever2"):
            baseline = f"{kind}-{steps}-{retriever}"
            against[f"{kind}-qc-{steps}-{retriever}"] = {baseline: "*"}
    return Comparison(against, level=0.05, in_rows=True)


def _cell_of_table1(
    row: str,
    column: str,
    path: str,
) -> Cell:
    if row.endswith("-paper"):
        why = "quoted by the paper from its forerunner, too"
        return Cell(
            published=path,
            why=why,
        )
    name, number = row.rsplit("-retriever", 1)
    name = name.removesuffix("-120k").removesuffix("-50k")
    return judged(
        name,
        column,
        path,
        int(number),
    )


#: BEIR's tasks that everybody can download.
_PUBLIC = [task for task in TASKS if task not in ("bioasq", "signal1m", "trec-news", "robust04")]


def table2() -> Table:
    """Return BEIR: the paper's figures by task are not available, the number that improved is.

    Each task is tested, which the text does not say of the paper.
    """

    def cell(task: str, name: str) -> Cell:
        return judgements.cell(
            f"{name}-retriever2",
            f"{{step:{name}}}",
            task,
            factor=100,
            making=made_of(name),
        )

    columns = []
    for kind in _BOTH:
        columns += [kind, f"{kind}-qc"]
    cells = grid(_PUBLIC, columns, cell)
    for kind in _BOTH:
        gains = [difference(cells[task, f"{kind}-qc"], cells[task, kind]) for task in _PUBLIC]
        path = f"table2|datasets_improved|{kind}"
        improved = Cell(
            combine="improved",
            parts=tuple(gains),
            published=path,
        )
        cells["tasks improved", f"{kind}-qc"] = improved
    name = "query-as-context-table2"
    of = ("table2|datasets_improved",)
    return Table(
        name,
        "BEIR, nDCG@10 in percent",
        "query_as_context",
        cells,
        of=of,
        digits=1,
        comparison=Comparison(
            {f"{kind}-qc": {kind: "*"} for kind in _BOTH},
            level=0.05,
            of_paper=False,
        ),
    )


def variants(
    number: int,
    title: str,
    rows: dict[str, str],
    against: dict[str, dict[str, str]],
) -> Table:
    """Return a table of variants, whose figures the text of the paper does not have.

    Args:
        number: The table's number.
        title: Its title.
        rows: Its rows, each to a trained model.
        against: The rows that are tested, each to the others and their marks.
    """
    cells = grid(rows, _COLUMNS, lambda row, column: judged(rows[row], column))
    return Table(
        f"query-as-context-table{number}",
        title,
        "query_as_context",
        cells,
        digits=1,
        comparison=Comparison(against, level=0.05, in_rows=True, of_paper=False),
    )


def rows_by_count() -> dict[str, str]:
    """Return the rows of Table 3."""
    rows = {}
    for kind in _BOTH:
        for count in COUNTS:
            suffix = "" if count == 5 else f"-C{count}"
            rows[f"{kind}, C {count}"] = f"{kind}-qc{suffix}"
    return rows


#: The marks of C = 5, which the paper finds best, over the other C of Table 3.
_MARKS_BY_COUNT = {1: "a", 10: "b", 20: "c"}


def over_counts() -> dict[str, dict[str, str]]:
    """Return the tests of Table 3: C = 5 against all other C."""
    against = {}
    for kind in _BOTH:
        others = {f"{kind}, C {count}": mark for count, mark in _MARKS_BY_COUNT.items()}
        against[f"{kind}, C 5"] = others
    return against


def rows_by_mix() -> dict[str, str]:
    """Return the rows of Table 4."""
    rows = {}
    for kind in _BOTH:
        rows[f"{kind}, queries"] = f"{kind}-qc"
        rows[f"{kind}, both"] = f"{kind}-mixed"
    return rows


def over_both() -> dict[str, dict[str, str]]:
    """Return the tests of Table 4: queries alone, which the paper finds better, against both."""
    return {f"{kind}, queries": {f"{kind}, both": "*"} for kind in _BOTH}


def speed() -> Table:
    """Return the seconds of a step of pre-training, on passage pairs and on queries.

    The paper says that queries speed pre-training up and prints no figure. Seconds are measured
    once for a whole training: there are no scores to test.
    """
    cells: Cells = {}
    for kind in _BOTH:
        seconds = {}
        for row, name in (("passages", kind), ("queries", f"{kind}-qc")):
            seconds[row] = seconds_a_step(name)
            cells[f"{kind}, {row}", "seconds a step"] = seconds[row]
        share = Cell(combine="ratio", parts=(seconds["queries"], seconds["passages"]))
        cells[f"{kind}, queries / passages", "seconds a step"] = share
    title = "Seconds of a step of pre-training"
    return Table("query-as-context-speed", title, "query_as_context", cells)


def seconds_a_step(name: str) -> Cell:
    """Return the cell of a pre-training's seconds, in each of its steps."""
    cells = []
    for value in ("seconds", "steps"):
        cells.append(
            Cell(
                f"pretrained/{name}",
                f"training.json:{value}",
                model=f"{{step:pretrained/{name}}}",
                making=pretraining_of(name),
            )
        )
    return Cell(combine="ratio", parts=tuple(cells))


TABLES = [
    table1(),
    table2(),
    variants(3, "Queries of a passage, percent", rows_by_count(), over_counts()),
    variants(
        4,
        "Passages that meet queries, passages or both, percent",
        rows_by_mix(),
        over_both(),
    ),
    speed(),
]

PAPER = Paper(
    "query-as-context",
    "Query-as-context",
    TRAINED | judgements.steps,
    TABLES,
)
