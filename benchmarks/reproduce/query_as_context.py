"""Query-as-context pre-training: Tables 1 to 4."""

from __future__ import annotations

from reproduce.shared import DEV, DL19, DL20, TASKS, TRAIN, Judgements
from reproduce.specification import Cell, Paper, Step, Table, difference, grid, published

QC = published("query_as_context")

judgements = Judgements("RR@10 R@50 R@1000 nDCG@10")

_TOKENS = (32, 144)

_CORPUS = "msmarco-documents"

#: Tables 3: C, queries of a passage.
COUNTS = (1, 5, 10, 20)


def generate(count: int) -> Step:
    """Queries for passages of MS MARCO's documents; a part of a GPU each, so that eight work side
    by side.
    """
    command = f"generate-queries --dataset {{data:{_CORPUS}}} --generator {{model:doc2query}} --output {{out}}"
    return Step((f"{command} --per-passage {count} --passage-tokens 144 --batch-size 256",))


def pretrain(kind: str, more: str = "", count: int = 5) -> Step:
    """On passages with their queries; ``more`` changes what meets what."""
    preset, start = ("cotmae", "bert-base") if kind == "cotmae" else ("qc", "condenser-base")
    command = f"pretrain --preset {preset} --dataset {{data:{_CORPUS}}} --queries {{step:queries}}"
    command += f" --model {{model:{start}}} --output {{out}}{more} --per-passage {count}"
    return Step((f"{command} --resume",))


def finetune(start: str, kind: str) -> Step:
    """Both retrievers: the first is in the folder stages/1."""
    preset = "cotmae" if kind == "cotmae" else "qc"
    command = f"finetune --preset {preset} --dataset {{data:{TRAIN}}} --model {{step:{start}}} --output {{out}}"
    return Step((f"{command} --resume",))


#: A passage meets another passage of its document (the baselines), a query, or either with equal
#: chance.
_MIXES = {"": " --mix 1", "-qc": "", "-mixed": " --mix 0.5"}

TRAINED: dict[str, Step] = {"queries": generate(max(COUNTS))}
for _kind in ("cocondenser", "cotmae"):
    _variants = {f"{_kind}{suffix}": pretrain(_kind, more) for suffix, more in _MIXES.items()}
    _variants |= {
        f"{_kind}-qc-C{count}": pretrain(_kind, "", count) for count in COUNTS if count != 5
    }
    for _name, _step in _variants.items():
        TRAINED |= {f"pretrained/{_name}": _step, _name: finetune(f"pretrained/{_name}", _kind)}

_COLUMNS = {
    "msmarco, mrr@10": (DEV, "RR@10"),
    "msmarco, recall@50": (DEV, "R@50"),
    "msmarco, recall@1000": (DEV, "R@1000"),
    "trec-dl-2019, ndcg@10": (DL19, "nDCG@10"),
    "trec-dl-2020, ndcg@10": (DL20, "nDCG@10"),
}


def judged(name: str, column: str, path: str = "", retriever: int = 2) -> Cell:
    """A fine-tuned model, in percent as the paper prints."""
    data, measure = _COLUMNS[column]
    model = f"{{step:{name}}}{'/stages/1' if retriever == 1 else ''}"
    return judgements.cell(f"{name}-retriever{retriever}", model, data, measure, path, 100, _TOKENS)


def table1() -> Table:
    cells = {}
    for group, rows in QC["table1"].items():
        for row in rows:
            for column in _COLUMNS:
                path = f"table1|{group}|{row}|{column.replace(', ', '|')}"
                if row.endswith("-paper"):
                    cells[row, column] = Cell(
                        published=path, why="quoted by the paper from its forerunner, too"
                    )
                else:
                    name, number = row.rsplit("-retriever", 1)
                    name = name.removesuffix("-120k").removesuffix("-50k")
                    cells[row, column] = judged(name, column, path, int(number))
    title = "Passage retrieval after pre-training with queries, percent"
    return Table("query-as-context-table1", title, "query_as_context", cells, ("table1",), 1)


#: BEIR's tasks that can be had by everybody.
_PUBLIC = [task for task in TASKS if task not in ("bioasq", "signal1m", "trec-news", "robust04")]


def table2() -> Table:
    """BEIR; the figures by task are not to be had, how many improved is."""
    kinds = ("cocondenser", "cotmae")

    def cell(task: str, name: str) -> Cell:
        return judgements.cell(f"{name}-retriever2", f"{{step:{name}}}", task, factor=100)

    cells = grid(_PUBLIC, [f"{kind}{suffix}" for kind in kinds for suffix in ("", "-qc")], cell)
    for kind in kinds:
        gains = tuple(difference(cells[task, f"{kind}-qc"], cells[task, kind]) for task in _PUBLIC)
        path = f"table2|datasets_improved|{kind}"
        cells["tasks improved", f"{kind}-qc"] = Cell(
            combine="improved", parts=gains, published=path
        )
    of = ("table2|datasets_improved",)
    return Table(
        "query-as-context-table2", "BEIR, nDCG@10 in percent", "query_as_context", cells, of, 1
    )


def variants(number: int, title: str, rows: dict[str, str]) -> Table:
    """Rows of pre-training's variants; the figures are not to be had, what they showed is."""
    cells = grid(rows, _COLUMNS, lambda row, column: judged(rows[row], column))
    return Table(f"query-as-context-table{number}", title, "query_as_context", cells, (), 1)


_BOTH = ("cocondenser", "cotmae")

TABLES = [
    table1(),
    table2(),
    variants(
        3,
        "Queries of a passage, percent",
        {f"{k}, C {c}": f"{k}-qc{'' if c == 5 else f'-C{c}'}" for k in _BOTH for c in COUNTS},
    ),
    variants(
        4,
        "Passages that meet queries, passages or both, percent",
        {
            f"{k}, {what}": f"{k}{s}"
            for k in _BOTH
            for s, what in (("-qc", "queries"), ("-mixed", "both"))
        },
    ),
]

PAPER = Paper("query-as-context", "Query-as-context", TRAINED | judgements.steps, TABLES)
