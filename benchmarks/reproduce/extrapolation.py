"""Interpolation and extrapolation: Tables 3 to 9, and Figure 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from reproduce.shared import DEV, DL19, DL20, TRAIN, parts_of
from reproduce.specification import (
    AgainstZero,
    Cell,
    Cells,
    Comparison,
    Paper,
    Step,
    Table,
    grid,
    mean,
    published,
)

if TYPE_CHECKING:
    from beir_cocodr.resampling.regimes.cells import Cell as EvaluatedModel

EXTRAPOLATION = published("extrapolation")

_ENCODER = "--encoder {model:ance}"

SIZES = {
    "14k": 14_000,
    "45k": 45_000,
    "200k": 200_000,
}

#: A row of the paper to our architecture.
_MODELS = {
    "bm25": "bm25",
    "reranker": "cross-encoder",
    "colbert": "late-interaction",
    "splade": "splade",
    "dr-base": "dense",
}

_ALL = "bm25,dense,splade,late-interaction,cross-encoder"

#: The dense models that Table 5 correlates over: BERT with three ways to train it, and five further
#: pre-trained models with random negatives, each on three sizes.
POPULATION = (
    "dense",
    "dense-hard",
    "dense-distilled",
    "dense@roberta",
    "dense@ernie2.0",
    "dense@condenser",
    "dense@cocon-wiki",
    "dense@cocon-marco",
)

#: The paper's settings, with its hard negatives and its teacher.
_BUDGET = "--preset extrapolation"

RESTRAIN = "restrain"
RESTRAIN_45K = "restrain-45k"
RESTTEST = "resttest"

TESTS = f"--test {{data:{DL19}}} --test {{data:{DL20}}}"


def regimes(
    sets: str,
    architectures: str,
    start: str,
    measures: str,
    more: str = "",
) -> Step:
    """Return the step that trains and judges architectures on all sets of a resampling.

    Args:
        sets: The step that resamples.
        architectures: The architectures, separated by commas.
        start: The weights to start from.
        measures: The measures.
        more: Further options.
    """
    command = f"resample evaluate --folder {{step:{sets}}} --architecture {architectures}"
    command += f' --start {start} --output {{out}} --measures "{measures}" {_BUDGET}{more}'
    return Step((f"{command} --drop-models",))


def resample(command: str, *options: str) -> Step:
    """Return the step that resamples the training queries."""
    words = f"resample {command} --train {{data:{TRAIN}}}"
    return Step((" ".join([words, *options]),))


_DL = "nDCG@10 R@100"
_MARCO = "RR@10 R@100"

_OOD = list(EXTRAPOLATION["table5"]["rows"])

#: A start of Table 9 to its weights.
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
_STRATEGIES = "dense,dense-hard,dense-distilled"


def resampling_steps() -> dict[str, Step]:
    """Return the steps that resample, and those that measure the overlap."""
    sizes = " ".join(f"--size {size}" for size in SIZES.values())
    size_45k = f"--size {SIZES['45k']}"
    out = "--output {out}"
    dev = f"--test {{data:{DEV}}}"
    steps = {
        "random-bert": Step(("make random-bert {out}",)),
        RESTRAIN: resample("restrain", TESTS, _ENCODER, out, sizes),
        RESTRAIN_45K: resample("restrain", TESTS, _ENCODER, out, size_45k),
        RESTTEST: resample("resttest", dev, _ENCODER, out),
    }
    for data in (DL19, DL20):
        command = f"overlap --train {{data:{TRAIN}}} --test {{data:{data}}} {_ENCODER}"
        steps[f"overlap/{data}"] = Step((f"{command} --output {{out}} --overwrite",))
    return steps


def regime_steps() -> dict[str, Step]:
    """Return the steps that train and judge."""
    collections = []
    for name in _OOD:
        collections += [f"--ood {{data:{part}}}" for part in parts_of(name)]
    ood = f" {' '.join(collections)}"
    others = ""
    for name in POPULATION:
        _, _, start = name.partition("@")
        if start:
            others += f" --other-start {start}={STARTS[start]}"
    population = ",".join(POPULATION)
    steps = {
        "restrain-all": regimes(RESTRAIN, _ALL, _BERT, _DL),
        "resttest-all": regimes(RESTTEST, _ALL, _BERT, _MARCO),
        "strategies-restrain": regimes(RESTRAIN_45K, _STRATEGIES, _BERT, _DL),
        "strategies-resttest": regimes(RESTTEST, _STRATEGIES, _BERT, _MARCO),
        "alignment": regimes(RESTRAIN, population, _BERT, _DL, others + ood),
    }
    for start, weights in STARTS.items():
        steps[f"start-{start}-restrain"] = regimes(RESTRAIN_45K, "dense", weights, _DL)
        steps[f"start-{start}-resttest"] = regimes(RESTTEST, "dense", weights, _MARCO)
    return steps


STEPS = resampling_steps() | regime_steps()

_NAMES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "RR@10",
    "recall@100": "R@100",
}

_REGIMES = {
    "inter": ("interpolation", 1),
    "extra": ("extrapolation", 1),
    "change_percent": ("gap", 100),
}


@dataclass(frozen=True)
class RegimeQueries:
    """Reads the scores of queries behind a figure: a query's mean over the models it is put to.

    Attributes:
        architecture: The architecture.
        group: The size of the training set, counted from the smallest.
        measure: The measure.
        regime: The regime.
    """

    architecture: str
    group: int
    measure: str
    regime: str

    def __call__(self, folder: Path) -> dict[str, float]:
        """Return query id to score, in the folder of ``resample evaluate``."""
        scores: dict[str, list[float]] = {}
        for model in self._models(folder):
            for query, score in model.scores[self.regime][self.measure].items():
                scores.setdefault(query, []).append(score)
        return {query: fmean(values) for query, values in scores.items()}

    def _models(self, folder: Path) -> Iterator[EvaluatedModel]:
        """Read the models of all seeds and sets that the regime evaluates."""
        # Plans are printed without these modules, which import torch.
        from beir_cocodr.resampling.regimes.cells import Cell as EvaluatedModel
        from beir_cocodr.resampling.regimes.regimes import RESULTS_FILE, Regimes

        regimes = Regimes.read(folder / RESULTS_FILE)
        row = [row for row in regimes.rows if row.model == self.architecture][self.group]
        for trained in regimes.sets:
            if trained.group == row.group and self.regime in trained.regimes:
                for seed in row.seeds:
                    name = f"{row.model}-{seed}.json"
                    yield EvaluatedModel.read(folder / "cells" / trained.name / name)


#: What FILE:PATH in a step's folder must be.
Expected = tuple[tuple[str, str], ...]


def trained_on(sets: str, start: str) -> Expected:
    """Return what must stand in the results of models that were trained on resampled sets.

    Args:
        sets: The step that resampled.
        start: The weights that the models started from.
    """
    is_restrain = sets in (RESTRAIN, RESTRAIN_45K)
    tests = f"{{data:{DL19}}}, {{data:{DL20}}}" if is_restrain else f"{{data:{DEV}}}"
    return (
        ("regimes.json:folder", f"{{step:{sets}}}"),
        ("regimes.json:method", "restrain" if is_restrain else "resttest"),
        ("regimes.json:train|dataset", f"{{data:{TRAIN}}}"),
        ("regimes.json:test|dataset", tests),
        ("regimes.json:recipe|start", start),
    )


def of_size(record: str, sets: str, group: int) -> Expected:
    """Return which training set a row or point must be of; all buckets of ReSTTest are one.

    Args:
        record: FILE:PATH of the row or point.
        sets: The step that resampled.
        group: The size of the training set, counted from the smallest.
    """
    if sets == RESTTEST:
        return ()
    size = SIZES["45k"] if sets == RESTRAIN_45K else list(SIZES.values())[group]
    return ((f"{record}|group", f"size-{{size:{size}}}"),)


def score(
    step: str,
    architecture: str,
    column: str,
    path: str,
    sets: str,
    group: int = 0,
    start: str = STARTS["bert"],
) -> Cell:
    """Return a score of a regime, or the gap between both.

    Args:
        step: The step that judges.
        architecture: The architecture.
        column: The measure and the kind of score, separated by a comma.
        path: The path of the paper's figure, without measure and kind.
        sets: The step whose resampled sets the models must have been trained on.
        group: The size of the training set, counted from the smallest.
        start: The weights that the step must have started from.
    """
    measure, kind = column.split(", ")
    name, factor = _REGIMES[kind]
    row = f"regimes.json:rows[model={architecture}]#{group}"
    address = f"{row}|measures|{_NAMES[measure]}|{name}"
    queries = None
    if kind != "change_percent":
        queries = RegimeQueries(architecture, group, _NAMES[measure], name)
    return Cell(
        step,
        address,
        f"{path}|{measure}|{kind}",
        factor,
        expects=trained_on(sets, start) + of_size(row, sets, group),
        queries=queries,
    )


def over(reference: str, rows: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the comparison of rows with a reference row, as of ``Comparison.against``."""
    return {row: {reference: "†"} for row in rows if row != reference}


def comparing(against: dict[str, dict[str, str]]) -> Comparison:
    """Return tests between rows, which the paper does not make."""
    return Comparison(against, level=0.05, in_rows=True, of_paper=False)


def columns(*measures: str) -> list[str]:
    """Return the columns of measures by regime."""
    names = []
    for measure in measures:
        names += [f"{measure}, {kind}" for kind in _REGIMES]
    return names


def make_table(
    number: int,
    title: str,
    cells: Cells,
    digits: int = 3,
    comparison: Comparison | None = None,
    against_zero: AgainstZero | None = None,
) -> Table:
    """Return a table whose figures the paper prints."""
    of = (f"table{number}|rows",)
    name = f"extrapolation-table{number}"
    return Table(
        name,
        title,
        "extrapolation",
        cells,
        of=of,
        digits=digits,
        comparison=comparison,
        against_zero=against_zero,
    )


_GRADES = {
    "perfectly-relevant": 3,
    "highly-relevant": 2,
    "somewhat-relevant": 1,
}


def overlap_of(data: str, encoder: str = "") -> Expected:
    """Return what must stand in the results of an overlap.

    Args:
        data: The collection of the test queries.
        encoder: The encoder of the queries, where the figure depends on it.
    """
    expected = (
        ("overlap.json:train|dataset", f"{{data:{TRAIN}}}"),
        ("overlap.json:test|dataset", f"{{data:{data}}}"),
    )
    return (*expected, ("overlap.json:nearest|encoder|name", encoder)) if encoder else expected


def table3() -> Table:
    """Return the overlap of test and training queries.

    It is a statistic of judgements. No model makes it, so that only the collections are checked,
    and there are no scores to test.
    """

    def cell(row: str, data: str) -> Cell:
        path = f"overlap.json:label_overlap[grade={_GRADES[row]},minimum=1]|share"
        return Cell(
            f"overlap/{data}",
            path,
            f"table3|rows|{row}|{data}",
            100,
            expects=overlap_of(data),
        )

    title = "Test queries that share a relevant passage with a training query, percent"
    return make_table(
        3,
        title,
        grid(_GRADES, [DL19, DL20], cell),
        digits=0,
    )


def table4() -> Table:
    """Return near duplicates: the first test queries and their nearest training queries.

    These are texts, without scores to test.
    """

    def cell(row: str, column: str) -> Cell:
        data, number = row.split(", ")
        address = f"overlap.json:nearest|queries[]#{int(number) - 1}|{column}"
        return Cell(f"overlap/{data}", address, expects=overlap_of(data, "{model:ance}"))

    rows = []
    for data in (DL20, DL19):
        rows += [f"{data}, {number}" for number in (1, 2, 3)]
    cells = grid(rows, ["text", "training_text", "similarity"], cell)
    title = "Test queries and nearest training queries"
    return Table(
        "extrapolation-table4",
        title,
        "extrapolation",
        cells,
    )


def of_population() -> Expected:
    """Return what must stand in the results of the models of Table 5, which have several starts."""
    starts = []
    for name in POPULATION:
        _, _, start = name.partition("@")
        if start:
            starts.append((f"settings.json:other_starts|{start}[]#0", STARTS[start]))
    return (*trained_on(RESTRAIN, _BERT), *starts)


def table5() -> Table:
    """Return the correlation of regimes with collections outside the distribution.

    Each correlation is tested against zero over the models. The paper makes no test.
    """

    def cell(row: str, column: str) -> Cell:
        kind, regime = column.split(", ")
        name = _REGIMES[regime][0]
        parts = []
        for part in parts_of(row):
            record = f"alignment[collection={{data:{part}}},regime={name}]"
            address = f"regimes.json:{record}|{kind}"
            parts.append(
                Cell(
                    "alignment",
                    address,
                    expects=of_population(),
                    p_value=f"{address}_p",
                )
            )
        return mean(parts, f"table5|rows|{row}|{kind}|{regime}")

    names = []
    for kind in ("spearman", "kendall"):
        names += [f"{kind}, {regime}" for regime in ("inter", "extra")]
    title = "Rank correlation of either regime with collections outside the distribution"
    against_zero = AgainstZero(level=0.05, of_paper=False)
    return make_table(5, title, grid(_OOD, names, cell), against_zero=against_zero)


def figure2() -> Table:
    """Return the scores that Figure 2 plots: either regime beside TREC-COVID, of every model.

    The scores on TREC DL are tested against those of the base model of the same size, without a
    test in the paper. Of TREC-COVID only means are kept, so that there is nothing to test; Table 5
    has the tests of the correlations.
    """

    def cell(row: str, column: str) -> Cell:
        size, model = row.split(", ")
        regime, collection = column.split(", ")
        group = list(SIZES).index(size)
        point = f"regimes.json:points[model={model}]#{group}"
        path = f"ood|{{data:{collection}}}|nDCG@10|{regime}"
        queries = None
        if collection == "trec-dl":
            path = f"measures|nDCG@10|{regime}"
            queries = RegimeQueries(model, group, "nDCG@10", regime)
        return Cell(
            "alignment",
            f"{point}|{path}",
            expects=of_population() + of_size(point, RESTRAIN, group),
            queries=queries,
        )

    names = []
    for regime in ("interpolation", "extrapolation"):
        names += [f"{regime}, {collection}" for collection in ("trec-dl", "trec-covid")]
    rows = []
    against = {}
    for size in SIZES:
        of_one_size = [f"{size}, {model}" for model in POPULATION]
        rows += of_one_size
        against |= over(f"{size}, dense", of_one_size)
    title = "Either regime beside TREC-COVID, nDCG@10 of every model of Table 5"
    return Table(
        "extrapolation-figure2",
        title,
        "extrapolation",
        grid(rows, names, cell),
        comparison=comparing(against),
    )


def table6() -> Table:
    """Return ReSTrain by size of the training set and model."""

    def cell(row: str, column: str) -> Cell:
        size, model = row.split(", ")
        group = list(SIZES).index(size)
        path = f"table6|rows|{size}|{model}"
        return score(
            "restrain-all",
            _MODELS[model],
            column,
            path,
            RESTRAIN,
            group,
        )

    rows = []
    against = {}
    for size, models in EXTRAPOLATION["table6"]["rows"].items():
        of_size = [f"{size}, {model}" for model in models]
        rows += of_size
        against |= over(f"{size}, dr-base", of_size)
    cells = grid(rows, columns("ndcg@10", "recall@100"), cell)
    title = "ReSTrain on TREC DL 2019 and 2020"
    return make_table(6, title, cells, comparison=comparing(against))


def table7() -> Table:
    """Return ReSTTest by model."""

    def cell(model: str, column: str) -> Cell:
        return score(
            "resttest-all",
            _MODELS[model],
            column,
            f"table7|rows|{model}",
            RESTTEST,
        )

    cells = grid(_MODELS, columns("mrr@10", "recall@100"), cell)
    comparison = comparing(over("dr-base", _MODELS))
    return make_table(7, "ReSTTest on MS MARCO dev", cells, comparison=comparison)


#: The test queries of Tables 8 and 9 to the end of a step's name, and to the step that resamples.
_SETS = {
    "trec-dl-2019+2020": ("restrain", RESTRAIN_45K),
    "msmarco": ("resttest", RESTTEST),
}

#: A row to the name of a step without its set, an architecture, and its start.
Rows = dict[str, tuple[str, str, str]]


def by_sets(
    number: int,
    title: str,
    rows: Rows,
    measures: dict[str, list[str]],
    reference: str,
) -> Table:
    """Return a table of models by both sets.

    Args:
        number: The table's number.
        title: Its title.
        rows: Its rows.
        measures: The measures of each set.
        reference: The row with which the others are compared.
    """

    def cell(row: str, column: str) -> Cell:
        data, _, kind = column.partition(", ")
        step, architecture, start = rows[row]
        ending, sets = _SETS[data]
        return score(
            f"{step}-{ending}",
            architecture,
            kind,
            f"table{number}|rows|{row}|{data}",
            sets,
            start=STARTS[start],
        )

    names = []
    for data, of_data in measures.items():
        names += [f"{data}, {column}" for column in columns(*of_data)]
    comparison = comparing(over(reference, rows))
    return make_table(number, title, grid(rows, names, cell), comparison=comparison)


TABLES = [
    table3(),
    table4(),
    table5(),
    figure2(),
    table6(),
    table7(),
    by_sets(
        8,
        "Strategies of training dense retrieval",
        {
            "dr-base": ("strategies", "dense", "bert"),
            "dr-hardneg": ("strategies", "dense-hard", "bert"),
            "dr-distill": ("strategies", "dense-distilled", "bert"),
            "dr-cocon-marco": ("start-cocon-marco", "dense", "cocon-marco"),
        },
        {
            "trec-dl-2019+2020": ["ndcg@10", "recall@100"],
            "msmarco": ["mrr@10", "recall@100"],
        },
        reference="dr-base",
    ),
    by_sets(
        9,
        "Starts of dense retrieval",
        {name: (f"start-{name}", "dense", name) for name in STARTS},
        {
            "trec-dl-2019+2020": ["recall@100"],
            "msmarco": ["recall@100"],
        },
        reference="bert",
    ),
]

PAPER = Paper(
    "extrapolation",
    "Interpolation and extrapolation",
    STEPS,
    TABLES,
)
