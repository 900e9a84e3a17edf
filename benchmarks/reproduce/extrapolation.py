"""Interpolation and extrapolation: Tables 3 to 9."""

from __future__ import annotations

from reproduce.shared import DEV, DL19, DL20, TRAIN, parts_of
from reproduce.specification import Cell, Paper, Step, Table, grid, mean, published

EXTRAPOLATION = published("extrapolation")

_ENCODER = "--encoder {model:ance}"

SIZES = {"14k": 14_000, "45k": 45_000, "200k": 200_000}

#: Row of the paper to our architecture.
_MODELS = {
    "bm25": "bm25",
    "reranker": "cross-encoder",
    "colbert": "late-interaction",
    "splade": "splade",
    "dr-base": "dense",
}

_ALL = "bm25,dense,splade,late-interaction,cross-encoder"

#: The paper's settings, hard negatives and teacher among them.
_BUDGET = "--preset extrapolation"

RESTRAIN, RESTTEST = "restrain", "resttest"

TESTS = f"--test {{data:{DL19}}} --test {{data:{DL20}}}"


def regimes(sets: str, architectures: str, start: str, measures: str, more: str = "") -> Step:
    """Architectures trained and judged on all sets of a resampling."""
    command = (
        f"resample evaluate --folder {{step:{sets}}} --architecture {architectures} --start {start}"
    )
    return Step(
        (f'{command} --output {{out}} --measures "{measures}" {_BUDGET}{more} --drop-models',)
    )


_DL, _MARCO = "nDCG@10 R@100", "RR@10 R@100"

_OOD = list(EXTRAPOLATION["table5"]["rows"])

#: Start of Table 9 to weights.
STARTS = {
    "rand": "{step:random-bert}",
    "roberta": "{model:roberta-base}",
    "bert": "{model:bert-base}",
    "ernie2.0": "{model:ernie-base}",
    "condenser": "{model:condenser-base}",
    "cocon-wiki": "{model:cocondenser-wiki}",
    "cocon-marco": "{model:cocondenser-base}",
}

_BERT = STARTS["bert"]

STEPS: dict[str, Step] = {
    "random-bert": Step(("make random-bert {out}",)),
    RESTRAIN: Step(
        (
            f"resample restrain --train {{data:{TRAIN}}} {TESTS} {_ENCODER} --output {{out}} "
            + " ".join(f"--size {size}" for size in SIZES.values()),
        )
    ),
    "restrain-45k": Step(
        (
            f"resample restrain --train {{data:{TRAIN}}} {TESTS} {_ENCODER} --output {{out}} --size {SIZES['45k']}",
        )
    ),
    RESTTEST: Step(
        (
            f"resample resttest --train {{data:{TRAIN}}} --test {{data:{DEV}}} {_ENCODER} --output {{out}}",
        )
    ),
    "restrain-all": regimes(RESTRAIN, _ALL, _BERT, _DL),
    "resttest-all": regimes(RESTTEST, _ALL, _BERT, _MARCO),
    "strategies-restrain": regimes("restrain-45k", "dense,dense-hard,dense-distilled", _BERT, _DL),
    "strategies-resttest": regimes(RESTTEST, "dense,dense-hard,dense-distilled", _BERT, _MARCO),
    "alignment": regimes(
        "restrain-45k",
        _ALL + ",dense-hard,dense-distilled",
        _BERT,
        _DL,
        " " + " ".join(f"--ood {{data:{part}}}" for name in _OOD for part in parts_of(name)),
    ),
}
for _start, _weights in STARTS.items():
    STEPS[f"start-{_start}-restrain"] = regimes("restrain-45k", "dense", _weights, _DL)
    STEPS[f"start-{_start}-resttest"] = regimes(RESTTEST, "dense", _weights, _MARCO)
for _data in (DL19, DL20):
    STEPS[f"overlap/{_data}"] = Step(
        (
            f"overlap --train {{data:{TRAIN}}} --test {{data:{_data}}} {_ENCODER} --output {{out}} --overwrite",
        )
    )

_NAMES = {"ndcg@10": "nDCG@10", "mrr@10": "RR@10", "recall@100": "R@100"}

_REGIMES = {
    "inter": ("interpolation", 1),
    "extra": ("extrapolation", 1),
    "change_percent": ("gap", 100),
}


def score(step: str, architecture: str, measure: str, kind: str, path: str, group: int = 0) -> Cell:
    """A score of a regime or the gap between both, of an architecture; ``group``: which size, from
    the smallest.
    """
    name, factor = _REGIMES[kind]
    read = f"regimes.json:rows[model={architecture}]#{group}|measures|{_NAMES[measure]}|{name}"
    return Cell(step, read, path, factor)


def columns(*measures: str) -> list[str]:
    return [f"{measure}, {kind}" for measure in measures for kind in _REGIMES]


def table3() -> Table:
    grades = {"perfectly-relevant": 3, "highly-relevant": 2, "somewhat-relevant": 1}

    def cell(row: str, data: str) -> Cell:
        path = f"overlap.json:label_overlap[grade={grades[row]},minimum=1]|share"
        return Cell(f"overlap/{data}", path, f"table3|rows|{row}|{data}", 100)

    title = "Test queries that share a relevant passage with a training query, percent"
    cells = grid(grades, [DL19, DL20], cell)
    return Table("extrapolation-table3", title, "extrapolation", cells, ("table3|rows",), 0)


def table4() -> Table:
    """Duplicates: of each test set the first queries and their nearest training queries, as
    texts.
    """

    def cell(row: str, column: str) -> Cell:
        data, number = row.split(", ")
        return Cell(f"overlap/{data}", f"overlap.json:nearest|queries[]#{int(number) - 1}|{column}")

    rows = [f"{data}, {number}" for data in (DL20, DL19) for number in (1, 2, 3)]
    cells = grid(rows, ["text", "training_text", "similarity"], cell)
    return Table(
        "extrapolation-table4", "Test queries and nearest training queries", "extrapolation", cells
    )


def table5() -> Table:
    def cell(row: str, column: str) -> Cell:
        kind, regime = column.split(", ")
        name = _REGIMES[regime][0]
        read = [
            f"regimes.json:alignment[collection={{data:{part}}},regime={name}]|{kind}"
            for part in parts_of(row)
        ]
        return mean(
            (Cell("alignment", path) for path in read), f"table5|rows|{row}|{kind}|{regime}"
        )

    both = [
        f"{kind}, {regime}" for kind in ("spearman", "kendall") for regime in ("inter", "extra")
    ]
    title = "Rank correlation of either regime with collections outside the distribution"
    return Table(
        "extrapolation-table5", title, "extrapolation", grid(_OOD, both, cell), ("table5|rows",)
    )


def table6() -> Table:
    def cell(row: str, column: str) -> Cell:
        size, model = row.split(", ")
        measure, kind = column.split(", ")
        path = f"table6|rows|{size}|{model}|{measure}|{kind}"
        return score("restrain-all", _MODELS[model], measure, kind, path, list(SIZES).index(size))

    rows = [
        f"{size}, {model}"
        for size, found in EXTRAPOLATION["table6"]["rows"].items()
        for model in found
    ]
    cells = grid(rows, columns("ndcg@10", "recall@100"), cell)
    return Table(
        "extrapolation-table6",
        "ReSTrain on TREC DL 2019 and 2020",
        "extrapolation",
        cells,
        ("table6|rows",),
    )


def table7() -> Table:
    def cell(model: str, column: str) -> Cell:
        measure, kind = column.split(", ")
        return score(
            "resttest-all", _MODELS[model], measure, kind, f"table7|rows|{model}|{measure}|{kind}"
        )

    cells = grid(_MODELS, columns("mrr@10", "recall@100"), cell)
    return Table(
        "extrapolation-table7", "ReSTTest on MS MARCO dev", "extrapolation", cells, ("table7|rows",)
    )


_SETS = {"trec-dl-2019+2020": "restrain", "msmarco": "resttest"}


def by_sets(
    number: int, title: str, found: dict[str, tuple[str, str]], measures: dict[str, list[str]]
) -> Table:
    """Rows, each a step's name without its set and an architecture, by both sets."""

    def cell(row: str, column: str) -> Cell:
        data, measure, kind = column.split(", ")
        step, architecture = found[row]
        path = f"table{number}|rows|{row}|{data}|{measure}|{kind}"
        return score(f"{step}-{_SETS[data]}", architecture, measure, kind, path)

    every = [f"{data}, {column}" for data, names in measures.items() for column in columns(*names)]
    name, of = f"extrapolation-table{number}", (f"table{number}|rows",)
    return Table(name, title, "extrapolation", grid(found, every, cell), of)


TABLES = [
    table3(),
    table4(),
    table5(),
    table6(),
    table7(),
    by_sets(
        8,
        "Strategies of training dense retrieval",
        {
            "dr-base": ("strategies", "dense"),
            "dr-hardneg": ("strategies", "dense-hard"),
            "dr-distill": ("strategies", "dense-distilled"),
            "dr-cocon-marco": ("start-cocon-marco", "dense"),
        },
        {"trec-dl-2019+2020": ["ndcg@10", "recall@100"], "msmarco": ["mrr@10", "recall@100"]},
    ),
    by_sets(
        9,
        "Starts of dense retrieval",
        {name: (f"start-{name}", "dense") for name in STARTS},
        {"trec-dl-2019+2020": ["recall@100"], "msmarco": ["recall@100"]},
    ),
]

PAPER = Paper("extrapolation", "Interpolation and extrapolation", STEPS, TABLES)
