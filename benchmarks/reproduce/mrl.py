"""Multivariate representations: Tables 2 to 6."""

from __future__ import annotations

from reproduce.shared import DEV, DL19, DL20, OTHERS, TRAIN, Judgements
from reproduce.specification import Cell, Paper, Step, Table, grid, published

MRL = published("mrl")

judgements = Judgements("RR@10 AP nDCG@10", "fp32")

_SETS = {"msmarco": DEV, "trec-dl-2019": DL19, "trec-dl-2020": DL20}

_MEASURES = {"mrr@10": "RR@10", "map": "AP", "ndcg@10": "nDCG@10"}

#: The paper does not say how texts are cut; passages of MS MARCO have rarely more tokens.
_TOKENS = (64, 256)


def distill(beta: str = "") -> Step:
    """MRL from TAS-B, taught by a cross-encoder."""
    command = f"distill --preset mrl --dataset {{data:{TRAIN}}} --model {{model:tas-b}} --teacher {{model:teacher}}"
    return Step(
        (
            f"{command} --output {{out}} --max-steps 50000{f' --set beta={beta}' if beta else ''} --resume",
        )
    )


BETAS = list(MRL["table4"]["rows"])

TRAINED = {"mrl": distill()} | {f"mrl-beta-{beta}": distill(beta) for beta in BETAS}

_HUB = {"ance": "ance", "contriever-ft": "contriever"}
_HUB |= {name: name for name in ("tct-colbert", "margin-mse", "tas-b")}

QUOTED = {
    "adore": "quoted: its weights are given away as a bare archive that no host loads",
    "rocketqa": "quoted: its weights are ERNIE's, for PaddlePaddle",
    "cldrd": "quoted: its weights were never given away, and its curriculum is not built here",
    "deepct": OTHERS,
    "doct5query": "quoted: expansion of documents is not built here",
}


def judged(method: str, data: str, measure: str, path: str) -> Cell:
    if method in QUOTED:
        return Cell(published=path, why=QUOTED[method])
    if method == "bm25":
        model = "bm25"
    elif method == "colbertv2":
        model = "colbert:{model:colbertv2}"
    else:
        model = f"{{model:{_HUB[method]}}}" if method in _HUB else f"{{step:{method}}}"
    return judgements.cell(method, model, data, measure, path, tokens=_TOKENS)


def passages(table: str, methods: list[str], title: str) -> Table:
    """Methods by the columns of MS MARCO's three test sets."""

    def cell(row: str, column: str) -> Cell:
        name, measure = column.split(", ")
        method = f"mrl-beta-{row}" if row in BETAS else row
        return judged(
            method, _SETS[name], _MEASURES[measure], f"{table}|rows|{row}|{name}|{measure}"
        )

    columns = [
        f"{name}, {measure}"
        for name, found in MRL[table]["rows"][methods[0]].items()
        if name in _SETS
        for measure in found
    ]
    return Table(f"mrl-{table}", title, "mrl", grid(methods, columns, cell), (f"{table}|rows",))


def table3() -> Table:
    """Storage and latency of one vector a passage, in fp32 as there, and of many."""
    store = f"encode --dataset {{data:{DEV}}} --model {{step:mrl}} --output {{out}}/store --precision fp32"
    judge = f"evaluate --dataset {{data:{DEV}}} --model {{step:mrl}} --store {{out}}/store --output {{out}}/judged"
    steps["storage"] = Step(
        (f"{store} --processes {{gpus}}", f"{judge} --measures RR@10 --overwrite")
    )
    path = "table3|rows|{}|{}"
    size = tuple(
        Cell("storage", f"store/store.json:{key}", factor=f)
        for key, f in (("documents", 4e-9), _WIDTH)
    )
    many = judgements.cell(
        "colbertv2-indexed", "colbert@tokens:{model:colbertv2}", DEV, "RR@10", tokens=_TOKENS
    )
    late = "the disk that an index of token vectors takes is in no record; benchmarks/late_interaction.py measures it"
    seconds = "judged/results.json:models|*|search_seconds"
    cells = {
        ("single", "gigabytes"): Cell(
            combine="product", parts=size, published=path.format("single", "gigabytes")
        ),
        ("single", "milliseconds"): Cell(
            "storage", seconds, path.format("single", "milliseconds"), 1000 / 6980
        ),
        ("multi", "gigabytes"): Cell(published=path.format("multi", "gigabytes"), why=late),
        ("multi", "milliseconds"): Cell(
            many.step, seconds, path.format("multi", "milliseconds"), 1000 / 6980
        ),
    }
    return Table(
        "mrl-table3",
        "Storage and latency of one and of many vectors",
        "mrl",
        cells,
        ("table3|rows",),
        0,
    )


_WIDTH = ("dimensions", 1.0)


def table5() -> Table:
    rows, data = MRL["table5"]["rows"], MRL["table5"]["datasets"]
    cells = grid(
        rows,
        data,
        lambda method, name: judged(method, name, "nDCG@10", f"table5|rows|{method}|{name}"),
    )
    return Table(
        "mrl-table5", "Without training on the target, nDCG@10", "mrl", cells, ("table5|rows",)
    )


_PREDICTORS = {
    "max-var": "MaxVAR",
    "max-scq": "MaxSCQ",
    "avg-idf": "AvgIDF",
    "scs": "SCS",
    "max-pmi": "MaxPMI",
}
_PREDICTORS |= {"p-clarity": "P_clarity", "max-dc": "MaxDC", "mrl-sigma-norm": "‖σ²‖"}


def table6() -> Table:
    """Prediction of query performance."""
    for data in (DL19, DL20):
        command = f"qpp --dataset {{data:{data}}} --model {{step:mrl}} --output {{out}} --word-vectors --overwrite"
        steps[f"qpp/{data}"] = Step((command,))

    def cell(row: str, column: str) -> Cell:
        data, kind = column.split(", ")
        path = f"qpp.json:predictors[predictor={_PREDICTORS[row]}]|{kind}"
        return Cell(f"qpp/{data}", path, f"table6|rows|{row}|{data}|{kind}")

    columns = [f"{data}, {kind}" for data in (DL19, DL20) for kind in ("pearson", "kendall")]
    cells = grid(MRL["table6"]["rows"], columns, cell)
    return Table(
        "mrl-table6", "Correlation of predictors with nDCG@10", "mrl", cells, ("table6|rows",)
    )


steps: dict[str, Step] = {}

TABLES = [
    passages("table2", list(MRL["table2"]["rows"]), "Passage retrieval"),
    table3(),
    passages("table4", BETAS, "Sensitivity to beta"),
    table5(),
    table6(),
]

PAPER = Paper("mrl", "Multivariate representations", TRAINED | steps | judgements.steps, TABLES)
