"""COCO-DR: Figures 3 to 6. They are plots, whose values the paper does not print."""

from __future__ import annotations

from dataclasses import replace

from reproduce.cocodr_models import (
    IDRO_SETTINGS,
    MADE,
    MARCO,
    PRETRAINED,
    corpora,
    finetune,
    judged,
    judgements,
    per_task,
)
from reproduce.lineage import Making
from reproduce.shared import TASKS, TRAIN, parts_of
from reproduce.specification import (
    AgainstZero,
    Cell,
    Cells,
    Comparison,
    Step,
    Table,
    difference,
    grid,
    mean,
)

#: The numbers of clusters, and the temperatures, of Figure 3. The figure is a plot whose axes the
#: text does not print. A temperature τ is K/ρ in the released code, with K = 50.
CLUSTERS = (25, 50, 100, 250)
TEMPERATURES = (200, 500, 1000, 2000)


def figure3() -> Table:
    """Return nDCG@10 by the number of clusters and by the temperature of iDRO.

    The rows of K = 50 and τ = 1,000 are the same model: that of the preset, and of the other
    tables. The paper makes no test. Each row is tested against the preset's value.
    """
    rows = {f"K = {clusters}": varied("clusters", clusters) for clusters in CLUSTERS}
    of_clusters = list(rows)
    for temperature in TEMPERATURES:
        rows[f"τ = {temperature:,}"] = varied("rho", 50 / temperature, f"tau{temperature}")
    cells: Cells = {}
    for row, (step, making) in rows.items():
        of_tasks = [
            judgements.cell(step, f"{{step:{step}}}", task, making=making) for task in TASKS
        ]
        for task, cell in zip(TASKS, of_tasks, strict=True):
            cells[row, task] = cell
        cells[row, "avg"] = mean(of_tasks)
    against = {}
    for row in rows:
        preset = "K = 50" if row in of_clusters else "τ = 1,000"
        if row != preset:
            against[row] = {preset: "†"}
    return Table(
        "coco-dr-figure3",
        "nDCG@10 on BEIR by the number of clusters and the temperature of iDRO",
        "cocodr",
        cells,
        comparison=Comparison(against, level=0.01, in_rows=True, of_paper=False),
    )


def varied(
    setting: str,
    value: float,
    suffix: str = "",
) -> tuple[str, Making]:
    """Return the step that trains by iDRO with another setting, and what its model is made of.

    Args:
        setting: The name of the setting.
        value: Its value; the preset's own gives the model of the other tables.
        suffix: The end of the step's name. Default: K with the value.
    """
    preset = MADE["coco-dr-base"]
    if IDRO_SETTINGS[setting] == value:
        return "coco-dr-base", preset
    step = f"coco-dr-base-{suffix or f'K{value:g}'}"
    per_task[step] = finetune("{step:coco-base}", setting=f"{setting}={value:g}")
    return step, preset.then(settings={setting: value})


#: A variant of Figures 4 and 6 to its step.
_VARIANTS = {
    "COCO-DR": "coco-dr-base",
    "without iDRO": "coco-dr-base-no-idro",
    "without COCO": "coco-dr-base-no-coco",
    "without both": "cocondenser-base",
}

#: The marks of gains over the other variants, as in Table 2.
_VARIANT_MARKS = {"without iDRO": "†", "without COCO": "‡", "without both": "♭"}


def episodes(figure: int, tasks: list[str]) -> Table:
    """Return nDCG@10 after every episode. The paper makes no test; here COCO-DR is tested.

    Args:
        figure: The figure's number.
        tasks: Its tasks.
    """

    def cell(row: str, column: str) -> Cell:
        task, variant = row.split(", ")
        number = int(column.removeprefix("Epi-")) - 1
        step = _VARIANTS[variant]
        *earlier, last = MADE[step].trainings
        trainings = (*earlier, *[last] * (number + 1))  # an episode is a training
        return judgements.cell(
            f"{step}-{column}",
            f"{{step:{step}}}/episodes/{number}",
            task,
            making=replace(MADE[step], trainings=trainings, round=number),
        )

    rows = [f"{task}, {variant}" for task in tasks for variant in _VARIANTS]
    cells = grid(rows, [f"Epi-{number}" for number in range(1, 5)], cell)
    against = {}
    for task in tasks:
        others = {f"{task}, {variant}": mark for variant, mark in _VARIANT_MARKS.items()}
        against[f"{task}, COCO-DR"] = others
    return Table(
        f"coco-dr-figure{figure}",
        "nDCG@10 by episode of fine-tuning",
        "cocodr",
        cells,
        comparison=Comparison(against, level=0.01, in_rows=True, of_paper=False),
    )


_SPANS = ("alignment", "uniformity")
_LOSS_OF_COCO = "left: reduction of COCO's loss"
_LOSS_OF_CLUSTER = "right: reduction of the nearest cluster's loss"
#: Columns of gains, each to the model and the model that it is compared with.
_GAINS = {
    "left: gain": ("coco-dr-base-no-idro", "cocondenser-base"),
    "right: gain": ("coco-dr-base", "coco-dr-base-no-idro"),
}


def figure5() -> Table:
    """Return gains, the losses of pre-training and of clusters, alignment and uniformity.

    Gains are tested over their queries, without a test in the paper. The other columns are figures
    of whole samples, without scores of queries, so that there is nothing to test.
    """
    add_analyses()
    columns = [_LOSS_OF_COCO, "left: gain"]
    for model in ("Condenser", "coCondenser", "COCO"):
        columns += [f"middle: {kind} of {model}" for kind in _SPANS]
    columns += [_LOSS_OF_CLUSTER, "right: gain"]
    cells = grid(TASKS, columns, analysis_cell)
    title = "What COCO and iDRO change, beside their gains"
    return Table(
        "coco-dr-figure5",
        title,
        "cocodr",
        cells,
        against_zero=AgainstZero(level=0.01, of_paper=False),
    )


def add_analyses() -> None:
    """Add the steps that analyse representations and source clusters."""
    datasets = corpora("--dataset", TASKS)
    for start in ("condenser-base", "cocondenser-base"):
        command = f"representation {datasets} --model {{model:{start}}} --model {{step:coco-base}}"
        per_task[f"representation/{start}"] = Step((f"{command} --output {{out}} --overwrite",))
    command = f"source-clusters --source {{data:{TRAIN}}} {corpora('--target', TASKS)}"
    command += " --before {step:coco-dr-base-no-idro} --after {step:coco-dr-base}"
    per_task["source-clusters"] = Step((f"{command} --output {{out}} --overwrite",))


def analysis_cell(task: str, column: str) -> Cell:
    """Return a cell of Figure 5."""
    if column in _GAINS:
        better, base = _GAINS[column]
        return difference(judged(better, task, ""), judged(base, task, ""))
    if column == _LOSS_OF_COCO:
        return of_spans("cocondenser-base", "change|contrastive_loss_reduction", task)
    if column == _LOSS_OF_CLUSTER:
        return mean(of_clusters(part) for part in parts_of(task))
    kind, model = column.removeprefix("middle: ").split(" of ")
    start = "condenser-base" if model == "Condenser" else "cocondenser-base"
    name = "{step:coco-base}" if model == "COCO" else f"{{model:{start}}}"
    return of_spans(start, f"models|{name}|{kind}", task)


def of_clusters(part: str) -> Cell:
    """Return the loss that iDRO takes from the source cluster nearest to a collection."""
    before = "coco-dr-base-no-idro"
    after = "coco-dr-base"
    file = "source_clusters.json"
    return Cell(
        "source-clusters",
        f"{file}:targets|{{data:{part}}}|reduction",
        model=f"{{step:{after}}}",
        making=MADE[after],
        others=((f"{{step:{before}}}", MADE[before]),),
        expects=(
            (f"{file}:source", MARCO),
            (f"{file}:before", f"{{step:{before}}}"),
            (f"{file}:after", f"{{step:{after}}}"),
        ),
    )


def of_spans(
    start: str,
    path: str,
    task: str,
) -> Cell:
    """Return the mean of a figure of representations over the collections of a task."""
    file = "representation.json"
    cells = []
    for part in parts_of(task):
        cells.append(
            Cell(
                f"representation/{start}",
                f"{file}:datasets|{{data:{part}}}|{path}",
                model="{step:coco-base}",
                making=PRETRAINED["coco-base"],
                expects=((f"{file}:models|?", f"{{model:{start}}}, {{step:coco-base}}"),),
            )
        )
    return mean(cells)
