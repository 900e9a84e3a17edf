"""COCO-DR: the trainings, what each model must be made of, and the cells that judge the models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from reproduce.lineage import Making
from reproduce.shared import OTHERS, TASKS, TRAIN, Judgements, parts_of
from reproduce.specification import Cell, Step, mean, task_of

judgements = Judgements()

_CUT = "--set query_length=64 --set document_length=128"


#: What fine-tuning is given.
MARCO = f"{{data:{TRAIN}}}"


def corpora_of(tasks: Iterable[str]) -> tuple[str, ...]:
    """Return every collection of some tasks."""
    collections: list[str] = []
    for task in tasks:
        collections += [f"{{data:{part}}}" for part in parts_of(task)]
    return tuple(collections)


def corpora(option: str, tasks: Iterable[str]) -> str:
    """Return an option for every collection of some tasks."""
    return " ".join(f"{option} {data}" for data in corpora_of(tasks))


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

_COCO_DATA = (MARCO, *corpora_of(_CORPORA))

#: A pre-trained model to what it must be made of.
PRETRAINED = {
    f"coco-{size}": Making(f"{{model:condenser-{size}}}", ("coco",), _COCO_DATA)
    for size in ("base", "large")
}

#: The clusters and the ρ of iDRO in the presets: τ = 50 / 0.05 = 1,000.
IDRO_SETTINGS = MappingProxyType({"clusters": 50, "rho": 0.05})


def tuned(start: str, weighting: str) -> Making:
    """Return what a fine-tuned model must be made of.

    Args:
        start: A key of :data:`PRETRAINED`, or published weights.
        weighting: The weighting.
    """
    making = PRETRAINED.get(start, Making(f"{{model:{start}}}"))
    settings: Mapping[str, float] = IDRO_SETTINGS if weighting == "idro" else {}
    return making.then(f"triplet+{weighting}", data=(MARCO,), settings=settings)


#: A trained model to what it must be made of.
MADE = {
    "coco-dr-base": tuned("coco-base", "idro"),
    "coco-dr-base-no-idro": tuned("coco-base", "erm"),
    "coco-dr-base-no-coco": tuned("cocondenser-base", "idro"),
    "coco-dr-large": tuned("coco-large", "idro"),
    "coco-dr-large-no-idro": tuned("coco-large", "erm"),
    "coco-dr-large-no-coco": tuned("cocondenser-large", "idro"),
    "cocondenser-base": tuned("cocondenser-base", "erm"),
    "cocondenser-large": tuned("cocondenser-large", "erm"),
    "condenser-base": tuned("condenser-base", "erm"),
    "condenser-large": tuned("condenser-large", "erm"),
    "groupdro": tuned("coco-base", "groupdro"),
    "ance-bert": tuned("bert-base", "erm"),
    "dpr": Making("{model:bert-base}", ("infonce+erm",), (MARCO,), round=0),
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

per_task: dict[str, Step] = {
    "distilbert-as-bert": Step(("make bert-from-distilbert {out} --base {model:distilbert}",)),
}


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

#: Objectives to their starts, where that is not DistilBERT. For TSDAE it is DistilBERT saved as a
#: BERT, because transformers loads no decoder from it otherwise.
_TARGET_STARTS = {
    "condenser-ours": "{model:condenser-base}",
    "tsdae": "{step:distilbert-as-bert}",
}


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
    start = _TARGET_STARTS.get(objective, "{model:distilbert}")
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
    start = _TARGET_STARTS.get(objective, "{model:distilbert}")
    kind = "condenser" if objective.startswith("condenser") else objective
    return Making(start, (kind, "dot+margin_mse"), (*corpora_of([task_of(task)]), MARCO))


def made_by_adaptation(kind: str, part: str) -> Making:
    """Return what a model that is adapted to one collection must be made of."""
    data = (f"{{data:{part}}}",)
    if kind in _QUERY_TRAINED:
        return Making(ADAPTED[kind], ("infonce+erm",), data, round=0)
    if kind == "gpl-tsdae":
        return made_on_target("tsdae", part).then("dot+margin_mse", data=data)
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
