"""Multivariate representations: Tables 2 to 6."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from reproduce.lineage import Making
from reproduce.shared import DEV, DL19, DL20, OTHERS, TRAIN, Judgements
from reproduce.specification import (
    AgainstZero,
    Cell,
    Comparison,
    Paper,
    Step,
    Table,
    grid,
    published,
)

MRL = published("mrl")

judgements = Judgements("RR@10 AP nDCG@10", "fp32")

_SETS = {
    "msmarco": DEV,
    "trec-dl-2019": DL19,
    "trec-dl-2020": DL20,
}

_MEASURES = {
    "mrr@10": "RR@10",
    "map": "AP",
    "ndcg@10": "nDCG@10",
}

#: The most tokens of queries and passages. The paper does not say how it cuts texts; passages of MS
#: MARCO rarely have more.
_TOKENS = (64, 256)


def distill(beta: str = "") -> Step:
    """Return the training of an MRL from TAS-B, which a cross-encoder teaches."""
    command = f"distill --preset mrl --dataset {{data:{TRAIN}}} --model {{model:tas-b}}"
    command += " --teacher {model:teacher} --output {out} --max-steps 50000"
    if beta:
        command += f" --set beta={beta}"
    return Step((f"{command} --resume",))


BETAS = list(MRL["table4"]["rows"])

TRAINED = {"mrl": distill()} | {f"mrl-beta-{beta}": distill(beta) for beta in BETAS}

#: β is left to the student's default.
_MADE = Making(
    "{model:tas-b}",
    ("mrl+lambdarank",),
    (f"{{data:{TRAIN}}}",),
    settings=(("beta", None),),
)

#: A trained model to what it must be made of.
MADE = {"mrl": _MADE} | {
    f"mrl-beta-{beta}": _MADE.then(settings={"beta": float(beta)}) for beta in BETAS
}

#: Methods to the names of their published weights.
_HUB = {
    "ance": "ance",
    "contriever-ft": "contriever",
    "tct-colbert": "tct-colbert",
    "margin-mse": "margin-mse",
    "tas-b": "tas-b",
}

QUOTED = {
    "adore": "quoted: its weights are published as a bare archive that no host loads",
    "rocketqa": "quoted: its weights are ERNIE's, for PaddlePaddle",
    "cldrd": "quoted: its weights were never published, and its curriculum is not built here",
    "deepct": OTHERS,
    "doct5query": "quoted: expansion of documents is not built here",
}


def judged(
    method: str,
    data: str,
    measure: str,
    path: str,
) -> Cell:
    """Return the cell of a method on a collection."""
    if method in QUOTED:
        return Cell(
            published=path,
            why=QUOTED[method],
        )
    if method == "bm25":
        model = "bm25"
    elif method == "colbertv2":
        model = "colbert:{model:colbertv2}"
    elif method in _HUB:
        model = f"{{model:{_HUB[method]}}}"
    else:
        model = f"{{step:{method}}}"
    return judgements.cell(
        method,
        model,
        data,
        measure,
        path,
        tokens=_TOKENS,
        making=MADE.get(method),
    )


def passages(
    table: str,
    methods: list[str],
    title: str,
) -> Table:
    """Return a table of methods by the columns of MS MARCO's three test sets."""

    def cell(row: str, column: str) -> Cell:
        name, measure = column.split(", ")
        method = f"mrl-beta-{row}" if row in BETAS else row
        path = f"{table}|rows|{row}|{name}|{measure}"
        return judged(
            method,
            _SETS[name],
            _MEASURES[measure],
            path,
        )

    columns = []
    for name, figures in MRL[table]["rows"][methods[0]].items():
        if name in _SETS:
            columns += [f"{name}, {measure}" for measure in figures]
    cells = grid(methods, columns, cell)
    return Table(
        f"mrl-{table}",
        title,
        "mrl",
        cells,
        of=(f"{table}|rows",),
        comparison=over_all(methods) if "mrl" in methods else over_small_betas(),
    )


def over_all(methods: Iterable[str]) -> Comparison:
    """Return the tests of MRL against all models with one vector or none.

    The paper stars gains over "all the baselines", and stars two figures that are lower than
    ColBERTv2's, so that this one cannot count.
    """
    others = {method: "*" for method in methods if method not in ("mrl", "colbertv2")}
    return Comparison({"mrl": others}, level=0.05, all_at_once=True, in_rows=True)


def over_small_betas() -> Comparison:
    """Return the tests of each β against those up to 0.25, which the paper makes no test of.

    The paper says that MRL is sensitive to β only there.
    """
    small = {"0.1": "†", "0.25": "‡"}
    against = {beta: small for beta in BETAS if beta not in small}
    return Comparison(against, level=0.05, in_rows=True, of_paper=False)


_SECONDS = "judged/results.json:models|*|search_seconds"
#: Milliseconds a query of the dev set, from the seconds of all.
_A_QUERY = 1000 / 6980


def table3() -> Table:
    """Return storage and latency of one vector a passage, in fp32, and of many.

    Sizes and seconds are measured once for a whole collection: there are no scores of queries to
    test.
    """
    encode = f"encode --dataset {{data:{DEV}}} --model {{step:mrl}} --output {{out}}/store"
    encode += " --precision fp32 --processes {gpus}"
    evaluate = f"evaluate --dataset {{data:{DEV}}} --model {{step:mrl}} --store {{out}}/store"
    evaluate += " --output {out}/judged --measures RR@10 --overwrite"
    steps["storage"] = Step((encode, evaluate))
    tokens = "make token-storage {out} --model {model:colbertv2}"
    steps["token-storage"] = Step((f"{tokens} --dataset {{data:{DEV}}}",), discard=("tokens",))
    documents = stored("store/store.json:documents", factor=4e-9)
    dimensions = stored("store/store.json:dimensions")
    model = "colbert@tokens:{model:colbertv2}"
    many = judgements.cell(
        "colbertv2-indexed",
        model,
        DEV,
        "RR@10",
        tokens=_TOKENS,
    )
    path = "table3|rows"
    cells = {
        ("single", "gigabytes"): Cell(
            combine="product",
            parts=(documents, dimensions),
            published=f"{path}|single|gigabytes",
        ),
        ("single", "milliseconds"): stored(_SECONDS, f"{path}|single|milliseconds", _A_QUERY),
        ("multi", "gigabytes"): Cell(
            "token-storage",
            "storage.json:bytes",
            f"{path}|multi|gigabytes",
            1e-9,
            expects=(
                ("storage.json:model", "{model:colbertv2}"),
                ("storage.json:dataset", f"{{data:{DEV}}}"),
            ),
        ),
        ("multi", "milliseconds"): replace(
            many,
            read=_SECONDS,
            published=f"{path}|multi|milliseconds",
            factor=_A_QUERY,
        ),
    }
    title = "Storage and latency of one and of many vectors"
    return Table(
        "mrl-table3",
        title,
        "mrl",
        cells,
        of=("table3|rows",),
        digits=0,
    )


def stored(
    address: str,
    path: str = "",
    factor: float = 1.0,
) -> Cell:
    """Return a cell of the store of MRL's vectors, or of the search in it.

    Args:
        address: FILE:PATH of the figure.
        path: The path of the paper's figure.
        factor: A factor of the figure.
    """
    return Cell(
        "storage",
        address,
        path,
        factor,
        model="{step:mrl}",
        making=_MADE,
        expects=(
            ("store/store.json:model|name", "{step:mrl}"),
            ("judged/results.json:models|?", "{step:mrl}"),
            ("judged/results.json:dataset", f"{{data:{DEV}}}"),
        ),
    )


def table5() -> Table:
    """Return the table of retrieval without training on the target."""

    def cell(method: str, name: str) -> Cell:
        return judged(
            method,
            name,
            "nDCG@10",
            f"table5|rows|{method}|{name}",
        )

    cells = grid(MRL["table5"]["rows"], MRL["table5"]["datasets"], cell)
    title = "Without training on the target, nDCG@10"
    return Table(
        "mrl-table5",
        title,
        "mrl",
        cells,
        of=("table5|rows",),
        comparison=over_all(MRL["table5"]["rows"]),
    )


_PREDICTORS = {
    "max-var": "MaxVAR",
    "max-scq": "MaxSCQ",
    "avg-idf": "AvgIDF",
    "scs": "SCS",
    "max-pmi": "MaxPMI",
    "p-clarity": "P_clarity",
    "max-dc": "MaxDC",
    "mrl-sigma-norm": "‖σ²‖",
}


def table6() -> Table:
    """Return the table of predictors of query performance.

    The paper marks the correlations of MRL that differ significantly from zero.
    """
    columns = []
    for data in (DL19, DL20):
        columns += [f"{data}, {kind}" for kind in ("pearson", "kendall")]
        command = f"qpp --dataset {{data:{data}}} --model {{step:mrl}} --output {{out}}"
        steps[f"qpp/{data}"] = Step((f"{command} --word-vectors --overwrite",))

    def cell(row: str, column: str) -> Cell:
        data, kind = column.split(", ")
        path = f"qpp.json:predictors[predictor={_PREDICTORS[row]}]|{kind}"
        return Cell(
            f"qpp/{data}",
            path,
            f"table6|rows|{row}|{data}|{kind}",
            model="{step:mrl}",
            making=_MADE,
            expects=(
                ("qpp.json:model", "{step:mrl}"),
                ("qpp.json:dataset", f"{{data:{data}}}"),
            ),
            p_value=f"{path}_p",
        )

    cells = grid(MRL["table6"]["rows"], columns, cell)
    title = "Correlation of predictors with nDCG@10"
    return Table(
        "mrl-table6",
        title,
        "mrl",
        cells,
        of=("table6|rows",),
        against_zero=AgainstZero(level=0.05, rows=("mrl-sigma-norm",)),
    )


steps: dict[str, Step] = {}

TABLES = [
    passages("table2", list(MRL["table2"]["rows"]), "Passage retrieval"),
    table3(),
    passages("table4", BETAS, "Sensitivity to beta"),
    table5(),
    table6(),
]

PAPER = Paper(
    "mrl",
    "Multivariate representations",
    TRAINED | steps | judgements.steps,
    TABLES,
)
