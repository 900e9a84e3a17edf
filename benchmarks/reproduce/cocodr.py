"""COCO-DR: Tables 1, 2, 3, 6 and 7, and Figures 3 to 6."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from reproduce.lineage import Making
from reproduce.shared import COCODR, OTHERS, TASKS, TRAIN, Judgements, parts_of
from reproduce.specification import (
    Cell,
    Cells,
    Comparison,
    Paper,
    Step,
    Table,
    difference,
    grid,
    mean,
    task_of,
)

judgements = Judgements()

_CUT = "--set query_length=64 --set document_length=128"


def corpora(option: str, tasks: Iterable[str]) -> str:
    """Return an option for every collection of some tasks."""
    words = []
    for task in tasks:
        words += [f"{option} {{data:{part}}}" for part in parts_of(task)]
    return " ".join(words)


#: The tasks whose corpora COCO reads. Climate-FEVER has the documents of FEVER.
_CORPORA = [task for task in TASKS if task != "climate-fever"]


def pretrain(size: str) -> Step:
    """Return COCO on MS MARCO and the corpora of BEIR, each once."""
    command = f"pretrain --preset cocodr-{size} --dataset {{data:{TRAIN}}}"
    command += f" {corpora('--dataset', _CORPORA)} --model {{model:condenser-{size}}}"
    return Step((f"{command} --output {{out}} --resume",))


def finetune(
    start: str,
    size: str = "base",
    weighting: str = "idro",
    setting: str = "",
) -> Step:
    """Return the BM25 warm-up and three episodes on MS MARCO, by iDRO or a rival.

    Args:
        start: The pre-trained model.
        size: "base" or "large".
        weighting: The weighting.
        setting: NAME=VALUE of another setting than the preset's.
    """
    command = f"finetune --preset cocodr-{size} --weighting {weighting}"
    command += f" --dataset {{data:{TRAIN}}} --model {start}"
    changed = f" --set {setting}" if setting else ""
    return Step((f"{command} --output {{out}}{changed} --resume",))


def finetune_dpr() -> Step:
    """Return DPR's training with in-batch negatives."""
    command = f"finetune --dataset {{data:{TRAIN}}} --model {{model:bert-base}} --output {{out}}"
    command += " --loss infonce --epochs 3 --batch-size 128"
    return Step((f"{command} {_CUT} --resume",))


#: A trained model to its training.
TRAINED = {
    "coco-base": pretrain("base"),
    "coco-large": pretrain("large"),
    "coco-dr-base": finetune("{step:coco-base}"),
    "coco-dr-base-no-idro": finetune("{step:coco-base}", weighting="erm"),
    "coco-dr-base-no-coco": finetune("{model:cocondenser-base}"),
    "coco-dr-large": finetune("{step:coco-large}", "large"),
    "coco-dr-large-no-idro": finetune("{step:coco-large}", "large", "erm"),
    "coco-dr-large-no-coco": finetune("{model:cocondenser-large}", "large"),
    "cocondenser-base": finetune("{model:cocondenser-base}", weighting="erm"),
    "cocondenser-large": finetune("{model:cocondenser-large}", "large", "erm"),
    "condenser-base": finetune("{model:condenser-base}", weighting="erm"),
    "condenser-large": finetune("{model:condenser-large}", "large", "erm"),
    "groupdro": finetune("{step:coco-base}", weighting="groupdro"),
    "ance-bert": finetune("{model:bert-base}", weighting="erm"),
    "dpr": finetune_dpr(),
}

_COCO_BASE = Making("{model:condenser-base}", ("coco",))
_COCO_LARGE = Making("{model:condenser-large}", ("coco",))
_COCONDENSER_BASE = Making("{model:cocondenser-base}")
_COCONDENSER_LARGE = Making("{model:cocondenser-large}")
_ERM = "triplet+erm"
_IDRO = "triplet+idro"

#: A trained model to what it must be made of.
MADE = {
    "coco-dr-base": _COCO_BASE.then(_IDRO),
    "coco-dr-base-no-idro": _COCO_BASE.then(_ERM),
    "coco-dr-base-no-coco": _COCONDENSER_BASE.then(_IDRO),
    "coco-dr-large": _COCO_LARGE.then(_IDRO),
    "coco-dr-large-no-idro": _COCO_LARGE.then(_ERM),
    "coco-dr-large-no-coco": _COCONDENSER_LARGE.then(_IDRO),
    "cocondenser-base": _COCONDENSER_BASE.then(_ERM),
    "cocondenser-large": _COCONDENSER_LARGE.then(_ERM),
    "condenser-base": Making("{model:condenser-base}", (_ERM,)),
    "condenser-large": Making("{model:condenser-large}", (_ERM,)),
    "groupdro": _COCO_BASE.then("triplet+groupdro"),
    "ance-bert": Making("{model:bert-base}", (_ERM,)),
    "dpr": Making("{model:bert-base}", ("infonce+erm",)),
}

#: Columns that nobody can run here, and why.
QUOTED = {
    "cpt-l": "quoted: a model behind an API that is no longer served",
    "cpt-xl": "quoted: a model behind an API that is no longer served",
    "colbert": (
        "quoted: the checkpoint of BEIR's authors (ColBERT v1) is on no hub; --model colbert:M "
        "adds another"
    ),
    "cocondenser-base-2022": "quoted by the paper from Gao and Callan (2022), too",
    "udalm": OTHERS,
    "modir": OTHERS,
}

per_task: dict[str, Step] = {}


#: Kinds of models that are adapted to one collection, to their starts.
ADAPTED = {
    "genq": "{model:tas-b}",
    "qgen": "{model:gpl-start}",
    "gpl": "{model:gpl-start}",
    "gpl-tsdae": "",
}
#: Kinds that are trained on generated queries by their own loss, and not by GPL.
_QUERY_TRAINED = ("genq", "qgen")

#: Objectives of pre-training on one target.
TARGET_OBJECTIVES = ("simcse", "ict", "mlm", "tsdae", "condenser-2021", "condenser-ours")


def adapt_to(kind: str, data: str) -> str:
    """Add the step that adapts a model to one collection, and return its name.

    Queries are generated, and the model is trained as QGen or GPL does.
    """
    name = f"{kind}/{data}"
    start = ADAPTED[kind]
    if kind == "gpl-tsdae":
        start = f"{{step:{pretrain_on_target('tsdae', data)}}}/model"
    generate = f"generate-queries --dataset {{data:{data}}} --generator {{model:beir-generator}}"
    generate += " --output {out}/queries --per-passage 5 --max-passages 100000"
    if kind in _QUERY_TRAINED:
        train = f"finetune --dataset {{out}}/queries --model {start} --output {{out}}/model"
        train += " --loss infonce --negatives 0 --batch-size 75 --epochs 1 --resume"
    else:
        train = f"distill --preset gpl --dataset {{out}}/queries --model {start}"
        train += " --teacher {model:reranker} --output {out}/model --resume"
    per_task[name] = Step((generate, train))
    return name


def adapted_model(name: str) -> str:
    """Return the folder of an adapted model in its step."""
    return f"{{step:{name}}}/model"


def pretrain_on_target(objective: str, data: str) -> str:
    """Add the step that pre-trains on one target, and return its name.

    The model is then distilled on MS MARCO from a cross-encoder (as Wang et al., 2022).
    """
    name = f"target/{objective}/{data}"
    task = task_of(data)
    start = "{model:condenser-base}" if objective == "condenser-ours" else "{model:distilbert}"
    kind = "condenser" if objective.startswith("condenser") else objective
    pretraining = f"pretrain --objective {kind} {corpora('--dataset', [task])} --model {start}"
    pretraining += " --output {out}/pretrained --max-steps 100000 --batch-size 64"
    pretraining += " --learning-rate 5e-5 --resume"
    distillation = "distill --loss margin_mse --set positives=1"
    distillation += f" --dataset {{data:{TRAIN}}} --teacher {{model:reranker}}"
    distillation += " --model {out}/pretrained --output {out}/model --max-steps 70000"
    distillation += " --batch-size 75 --learning-rate 2e-5 --resume"
    per_task[name] = Step((pretraining, distillation))
    return name


def judged(
    method: str,
    task: str,
    published: str,
) -> Cell:
    """Return the cell of a method of any table on a task."""
    if method in QUOTED:
        return Cell(
            published=published,
            why=QUOTED[method],
        )
    if method == "bm25":
        return judgements.cell(
            method,
            method,
            task,
            published=published,
        )
    if method == "cross-encoder-bm25":
        return judgements.cell(
            method,
            "rerank:{model:reranker}@bm25",
            task,
            published=published,
        )
    kind = {
        "gpl-distilbert": "gpl",
        "cross-encoder-tsdae-gpl": "gpl-tsdae",
    }.get(method, method)
    if kind in ADAPTED:
        return judged_adapted(
            method,
            kind,
            task,
            published,
        )
    if method in TARGET_OBJECTIVES:
        model = f"{{step:{pretrain_on_target(method, task)}}}/model"
        return judgements.cell(
            f"target-{method}",
            model,
            task,
            published=published,
            making=made_on_target(method, task),
        )
    model = f"{{step:{method}}}" if method in TRAINED else f"{{model:{method}}}"
    return judgements.cell(
        method,
        model,
        task,
        published=published,
        making=MADE.get(method),
    )


def made_on_target(objective: str, task: str) -> Making:
    """Return what a model that is pre-trained on one target must be made of."""
    start = "{model:condenser-base}" if objective == "condenser-ours" else "{model:distilbert}"
    kind = "condenser" if objective.startswith("condenser") else objective
    data = f"{{data:{parts_of(task)[0]}}}"
    return Making(start, (kind, "dot+margin_mse"), data)


def made_by_adaptation(kind: str, part: str) -> Making:
    """Return what a model that is adapted to one collection must be made of."""
    data = f"{{data:{part}}}"
    if kind in _QUERY_TRAINED:
        return Making(ADAPTED[kind], ("infonce+erm",), data)
    if kind == "gpl-tsdae":
        return made_on_target("tsdae", part).then("dot+margin_mse")
    return Making(ADAPTED[kind], ("dot+margin_mse",), data)


def judged_adapted(
    method: str,
    kind: str,
    task: str,
    published: str,
) -> Cell:
    """Return the cell of a method with a model for each collection of the task."""
    is_reranked = method.startswith("cross-encoder")
    label = method if is_reranked else kind
    cells = []
    for part in parts_of(task):
        model = adapted_model(adapt_to(kind, part))
        if is_reranked:
            model = "rerank:{model:reranker}@" + model
        making = made_by_adaptation(kind, part)
        cells.append(judgements.cell(label, model, part, making=making))
    if len(cells) == 1:
        return replace(cells[0], published=published)
    return mean(cells, published)


def further(model: str, task: str) -> Cell:
    """Return the cell of a model that the command line names."""
    label = model.replace("/", "--").replace(":", "-")
    return judgements.cell(label, model, task)


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
    """Return the similarities of MS MARCO and BEIR, and ANCE less BM25."""
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
            cells.append(Cell("shift", f"shift.json:targets[dataset={{data:{part}}}]|{key}"))
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
    )


_VARIANTS = {
    "COCO-DR": "coco-dr-base",
    "without iDRO": "coco-dr-base-no-idro",
    "without COCO": "coco-dr-base-no-coco",
    "without both": "cocondenser-base",
}


def episodes(figure: int, tasks: list[str]) -> Table:
    """Return nDCG@10 after every episode: a plot, whose values the paper does not print."""

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
            making=replace(MADE[step], trainings=trainings),
        )

    rows = [f"{task}, {variant}" for task in tasks for variant in _VARIANTS]
    cells = grid(rows, [f"Epi-{number}" for number in range(1, 5)], cell)
    return Table(
        f"coco-dr-figure{figure}",
        "nDCG@10 by episode of fine-tuning",
        "cocodr",
        cells,
    )


#: The numbers of clusters, and the temperatures, of Figure 3. The figure is a plot whose axes the
#: text does not print. A temperature τ is K/ρ in the released code, with K = 50.
CLUSTERS = (25, 50, 100, 250)
TEMPERATURES = (200, 500, 1000, 2000)


def figure3() -> Table:
    """Return nDCG@10 by the number of clusters and by the temperature of iDRO."""
    preset = MADE["coco-dr-base"]
    rows: dict[str, tuple[str, Making]] = {}
    for clusters in CLUSTERS:
        step = f"coco-dr-base-K{clusters}"
        per_task[step] = finetune("{step:coco-base}", setting=f"clusters={clusters}")
        rows[f"K = {clusters}"] = (step, preset)
    for temperature in TEMPERATURES:
        step = f"coco-dr-base-tau{temperature}"
        rho = 50 / temperature
        per_task[step] = finetune("{step:coco-base}", setting=f"rho={rho:g}")
        rows[f"τ = {temperature:,}"] = (step, replace(preset, settings=(("rho", rho),)))
    cells: Cells = {}
    for row, (step, making) in rows.items():
        of_tasks = [
            judgements.cell(step, f"{{step:{step}}}", task, making=making) for task in TASKS
        ]
        for task, cell in zip(TASKS, of_tasks, strict=True):
            cells[row, task] = cell
        cells[row, "avg"] = mean(of_tasks)
    title = "nDCG@10 on BEIR by the number of clusters and the temperature of iDRO"
    return Table("coco-dr-figure3", title, "cocodr", cells)


_SPANS = ("alignment", "uniformity")
_LOSS_OF_COCO = "left: reduction of COCO's loss"
_LOSS_OF_CLUSTER = "right: reduction of the nearest cluster's loss"
#: Columns of gains, each to the model and the model that it is compared with.
_GAINS = {
    "left: gain": ("coco-dr-base-no-idro", "cocondenser-base"),
    "right: gain": ("coco-dr-base", "coco-dr-base-no-idro"),
}


def figure5() -> Table:
    """Return gains, the losses of pre-training and of clusters, alignment and uniformity."""
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
        cells = []
        for part in parts_of(task):
            path = f"source_clusters.json:targets|{{data:{part}}}|reduction"
            cells.append(Cell("source-clusters", path))
        return mean(cells)
    kind, model = column.removeprefix("middle: ").split(" of ")
    start = "condenser-base" if model == "Condenser" else "cocondenser-base"
    name = "{step:coco-base}" if model == "COCO" else f"{{model:{start}}}"
    return of_spans(start, f"models|{name}|{kind}", task)


def of_spans(
    start: str,
    path: str,
    task: str,
) -> Cell:
    """Return the mean of a figure of representations over the collections of a task."""
    cells = []
    for part in parts_of(task):
        address = f"representation.json:datasets|{{data:{part}}}|{path}"
        cells.append(Cell(f"representation/{start}", address))
    return mean(cells)


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
