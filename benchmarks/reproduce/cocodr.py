"""COCO-DR: Tables 1, 2, 3, 6 and 7, Figures 4 to 6."""

from __future__ import annotations

from collections.abc import Iterable

from reproduce.shared import COCODR, OTHERS, TASKS, TRAIN, Judgements, parts_of
from reproduce.specification import Cell, Paper, Step, Table, difference, grid, mean

judgements = Judgements()

_CUT = "--set query_length=64 --set document_length=128"


def corpora(option: str, tasks: Iterable[str]) -> str:
    """An option for every collection of some tasks."""
    return " ".join(f"{option} {{data:{part}}}" for task in tasks for part in parts_of(task))


def pretrain(size: str) -> Step:
    """COCO on MS MARCO and the corpora of BEIR."""
    command = (
        f"pretrain --preset cocodr-{size} --dataset {{data:{TRAIN}}} {corpora('--dataset', TASKS)}"
    )
    return Step((f"{command} --model {{model:condenser-{size}}} --output {{out}} --resume",))


def finetune(start: str, size: str = "base", weighting: str = "idro") -> Step:
    """BM25 warm-up and three episodes on MS MARCO, by iDRO or a rival in its place."""
    command = f"finetune --preset cocodr-{size} --weighting {weighting} --dataset {{data:{TRAIN}}} --model {start}"
    return Step((f"{command} --output {{out}} {_CUT} --resume",))


_DPR = f"finetune --dataset {{data:{TRAIN}}} --model {{model:bert-base}} --output {{out}} --loss infonce --epochs 3"

#: Trained model to its training.
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
    "dpr": Step((f"{_DPR} --batch-size 128 {_CUT} --resume",)),
}

#: Columns that are nobody's to run here, and why.
QUOTED = {
    "cpt-l": "quoted: a model behind an API that is no longer served",
    "cpt-xl": "quoted: a model behind an API that is no longer served",
    "colbert": "quoted: the checkpoint of BEIR's authors (ColBERT v1) is on no hub; --model colbert:M adds another",
    "cocondenser-base-2022": "quoted by the paper from Gao and Callan (2022), too",
    "udalm": OTHERS,
    "modir": OTHERS,
}

per_task: dict[str, Step] = {}


def adapted(kind: str, data: str) -> str:
    """The name of a model that is made for one collection: generated queries, and QGen's or GPL's
    training.
    """
    name = f"{kind}/{data}"
    made = f"generate-queries --dataset {{data:{data}}} --generator {{model:beir-generator}} --output {{out}}/queries"
    made += " --per-passage 5 --max-passages 100000"
    start = {"genq": "{model:tas-b}", "qgen": "{model:gpl-start}", "gpl": "{model:gpl-start}"}.get(
        kind
    )
    if kind == "gpl-tsdae":
        start = f"{{step:{target_pretrained('tsdae', data)}}}/model"
    if kind in ("genq", "qgen"):
        train = f"finetune --dataset {{out}}/queries --model {start} --output {{out}}/model --loss infonce"
        per_task[name] = Step((made, f"{train} --negatives 0 --batch-size 75 --epochs 1 --resume"))
    else:
        train = (
            f"adapt --dataset {{data:{data}}} --base {start} --stages gpl --queries {{out}}/queries"
        )
        train += " --teacher {model:reranker} --output {out}/adapted --resume"
        per_task[name] = Step((made, train))
    return name


def model_of(kind: str, name: str) -> str:
    return f"{{step:{name}}}/{'model' if kind in ('genq', 'qgen') else 'adapted/models/gpl'}"


def target_pretrained(objective: str, data: str) -> str:
    """The name of a model that is pre-trained on one target, then distilled on MS MARCO from a
    cross-encoder (as Wang et al., 2022).
    """
    name, task = f"target/{objective}/{data}", data.split("/")[0]
    start = "{model:condenser-base}" if objective == "condenser-ours" else "{model:distilbert}"
    kind = "condenser" if objective.startswith("condenser") else objective
    first = f"pretrain --objective {kind} {corpora('--dataset', [task])} --model {start} --output {{out}}/pretrained"
    first += " --max-steps 100000 --batch-size 64 --learning-rate 5e-5 --resume"
    second = f"distill --loss margin_mse --set positives=1 --dataset {{data:{TRAIN}}} --teacher {{model:reranker}} --model"
    second += " {out}/pretrained --output {out}/model --max-steps 70000 --batch-size 75 --learning-rate 2e-5 --resume"
    per_task[name] = Step((first, second))
    return name


def judged(method: str, task: str, published: str) -> Cell:
    """A method of any table on a task."""
    if method in QUOTED:
        return Cell(published=published, why=QUOTED[method])
    if method == "bm25":
        return judgements.cell(method, method, task, published=published)
    if method == "cross-encoder-bm25":
        return judgements.cell(method, "rerank:{model:reranker}@bm25", task, published=published)
    made = {"gpl-distilbert": "gpl", "cross-encoder-tsdae-gpl": "gpl-tsdae"}.get(method, method)
    before = "rerank:{model:reranker}@" if method.startswith("cross-encoder") else ""
    if made in ("genq", "qgen", "gpl", "gpl-tsdae"):
        models = [(part, before + model_of(made, adapted(made, part))) for part in parts_of(task)]
        cells = [judgements.cell(method if before else made, model, part) for part, model in models]
        found = cells[0] if len(cells) == 1 else mean(cells)
        return Cell(found.step, found.read, published, combine=found.combine, parts=found.parts)
    if method in ("simcse", "ict", "mlm", "tsdae", "condenser-2021", "condenser-ours"):
        model = f"{{step:{target_pretrained(method, task)}}}/model"
        return judgements.cell(f"target-{method}", model, task, published=published)
    model = f"{{step:{method}}}" if method in TRAINED else f"{{model:{method}}}"
    return judgements.cell(method, model, task, published=published)


def further(model: str, task: str) -> Cell:
    """A model that the command line names."""
    return judgements.cell(model.replace("/", "--").replace(":", "-"), model, task)


def averages(
    table: str, cells: dict[tuple[str, str], Cell], kinds: dict[str, list[str]]
) -> dict[tuple[str, str], Cell]:
    columns = dict.fromkeys(column for _, column in cells)
    return {
        (kind, column): mean(
            (cells[task, column] for task in tasks), f"{table}|averages|{kind}|{column}"
        )
        for kind, tasks in kinds.items()
        for column in columns
    }


def by_task(number: int, title: str, tasks: list[str], kinds: dict[str, list[str]]) -> Table:
    """Tasks by methods, and averages."""
    name, methods = f"table{number}", COCODR[f"table{number}"]["methods"]
    cells = grid(
        tasks, methods, lambda task, method: judged(method, task, f"{name}|scores|{task}|{method}")
    )
    of = (f"{name}|scores", f"{name}|averages")
    return Table(
        f"coco-dr-{name}", title, "cocodr", cells | averages(name, cells, kinds), of, judged=further
    )


_AVERAGES = {"avg": TASKS, "avg_cpt_sub": COCODR["table1"]["avg_cpt_sub_datasets"]}


def table3() -> Table:
    data, rows = COCODR["table3"]["datasets"], COCODR["table3"]["rows"]
    cells = grid(
        rows, data, lambda method, task: judged(method, task, f"table3|rows|{method}|{task}")
    )
    for method in rows:
        cells[method, "avg"] = mean(
            (cells[method, task] for task in data), f"table3|rows|{method}|avg"
        )
    return Table(
        "coco-dr-table3",
        "Domain adaptation on five tasks, nDCG@10",
        "cocodr",
        cells,
        ("table3|rows",),
    )


def table6() -> Table:
    """Similarities of MS MARCO and BEIR, and ANCE less BM25."""
    step = Step(
        (
            f"shift --source {{data:{TRAIN}}} {corpora('--target', TASKS)} --output {{out}} --overwrite",
        )
    )
    per_task["shift"] = step
    keys = {
        "query_intent_similarity": "query_type_jaccard",
        "document_lexical_similarity": "document_jaccard",
    }
    rivals = {
        "ance_bert_minus_bm25": "ance-bert",
        "ance_cocondenser_minus_bm25": "cocondenser-base",
    }

    def cell(task: str, column: str) -> Cell:
        published = f"table6|rows|{task}|{column}"
        if column in rivals:
            return difference(judged(rivals[column], task, ""), judged("bm25", task, ""), published)
        parts = [
            Cell("shift", f"shift.json:targets[dataset={{data:{p}}}]|{keys[column]}")
            for p in parts_of(task)
        ]
        return mean(parts, published)

    cells = grid(TASKS, COCODR["table6"]["columns"], cell)
    title = "Distance of MS MARCO from BEIR, and what ANCE gains over BM25"
    return Table("coco-dr-table6", title, "cocodr", cells, ("table6|rows",), digits=4)


_VARIANTS = {
    "COCO-DR": "coco-dr-base",
    "without iDRO": "coco-dr-base-no-idro",
    "without COCO": "coco-dr-base-no-coco",
    "without both": "cocondenser-base",
}


def episodes(figure: int, tasks: list[str]) -> Table:
    """nDCG@10 after every episode: a plot, whose values the paper does not print."""

    def cell(row: str, column: str) -> Cell:
        task, variant = row.split(", ")
        number = int(column.removeprefix("Epi-")) - 1
        step = _VARIANTS[variant]
        return judgements.cell(f"{step}-{column}", f"{{step:{step}}}/episodes/{number}", task)

    rows = [f"{task}, {variant}" for task in tasks for variant in _VARIANTS]
    cells = grid(rows, [f"Epi-{number}" for number in range(1, 5)], cell)
    return Table(f"coco-dr-figure{figure}", "nDCG@10 by episode of fine-tuning", "cocodr", cells)


def figure5() -> Table:
    """Gains beside the losses of pre-training and of source clusters, and alignment and
    uniformity.
    """
    of, before, after = (
        corpora("--dataset", TASKS),
        "{step:coco-dr-base-no-idro}",
        "{step:coco-dr-base}",
    )
    for start in ("condenser-base", "cocondenser-base"):
        compared = f"representation {of} --model {{model:{start}}} --model {{step:coco-base}}"
        per_task[f"representation/{start}"] = Step((f"{compared} --output {{out}} --overwrite",))
    near = f"source-clusters --source {{data:{TRAIN}}} {corpora('--target', TASKS)} --before {before} --after {after}"
    per_task["source-clusters"] = Step((f"{near} --output {{out}} --overwrite",))

    def spans(start: str, what: str, task: str) -> Cell:
        read = [f"representation.json:datasets|{{data:{part}}}|{what}" for part in parts_of(task)]
        return mean(Cell(f"representation/{start}", path) for path in read)

    def cell(task: str, column: str) -> Cell:
        match column:
            case "left: reduction of COCO's loss":
                return spans("cocondenser-base", "change|contrastive_loss_reduction", task)
            case "left: gain":
                return difference(
                    judged("coco-dr-base-no-idro", task, ""), judged("cocondenser-base", task, "")
                )
            case "right: reduction of the nearest cluster's loss":
                read = [
                    f"source_clusters.json:targets|{{data:{part}}}|reduction"
                    for part in parts_of(task)
                ]
                return mean(Cell("source-clusters", path) for path in read)
            case "right: gain":
                return difference(
                    judged("coco-dr-base", task, ""), judged("coco-dr-base-no-idro", task, "")
                )
        kind, model = column.removeprefix("middle: ").split(" of ")
        start = "condenser-base" if model == "Condenser" else "cocondenser-base"
        name = "{step:coco-base}" if model == "COCO" else f"{{model:{start}}}"
        return spans(start, f"models|{name}|{kind}", task)

    middle = [
        f"middle: {kind} of {m}" for m in ("Condenser", "coCondenser", "COCO") for kind in _SPANS
    ]
    left = ["left: reduction of COCO's loss", "left: gain"]
    cells = grid(
        TASKS,
        [*left, *middle, "right: reduction of the nearest cluster's loss", "right: gain"],
        cell,
    )
    return Table(
        "coco-dr-figure5", "What COCO and iDRO change, beside their gains", "cocodr", cells
    )


_SPANS = ("alignment", "uniformity")

#: Those of Wang et al. (2022), as the text has it.
_SIX = ["trec-covid", "scifact", "bioasq", "fiqa", "cqadupstack", "robust04"]

TABLES = [
    by_task(1, "nDCG@10 on BEIR", ["msmarco", *TASKS], _AVERAGES),
    by_task(2, "COCO and iDRO taken away, nDCG@10", TASKS, {"avg": TASKS}),
    table3(),
    table6(),
    by_task(7, "GroupDRO in iDRO's place, nDCG@10", TASKS, {"avg": TASKS}),
    episodes(4, ["trec-covid", "scifact"]),
    figure5(),
    episodes(6, _SIX),
]

PAPER = Paper("coco-dr", "COCO-DR", TRAINED | per_task | judgements.steps, TABLES)
