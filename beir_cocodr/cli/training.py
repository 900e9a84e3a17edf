"""The commands that train, and the one that generates queries to train on."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import ENCODING, Preset, ShowConfig, gives, plain, takes, trains
from beir_cocodr.cli.guide import UNFINISHED_GENERATION, Ending
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.errors import InputError
from beir_cocodr.generation.query_kinds import QUERY_KINDS
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.io import output_path
from beir_cocodr.models.spec import BM25_WEIGHT, EncoderOptions, FuseOptions, SearchOptions
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import Json
from beir_cocodr.report.terminal import print_json, print_record, print_training
from beir_cocodr.training import presets
from beir_cocodr.training.distillation.teacher_rows import TEACHERS
from beir_cocodr.training.finetuning.weightings import WEIGHTINGS
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
from beir_cocodr.training.rows import choices

_Start = Annotated[str, plain("Start from this encoder.")]

_TrainSplit = Annotated[str, Option(help="Train on this split of the qrels.")]

_TEACHERS = [kind.help for kind in TEACHERS.values()]


@names_models
@trains(
    "pretrain",
    "objective",
    "decoder",
    "mix",
    "per_passage",
    "span_tokens",
    "single_spans",
    "max_length",
    "mlm_weight",
    "skip_from",
    "encoder_dropout",
    "device",
)
def pretrain(
    *,
    dataset: Annotated[list[str], plain("Adapt to this corpus; repeat for several.")],
    model: _Start,
    output: parameters.Output,
    queries: Annotated[
        list[str] | None,
        Option(
            help="Read the queries for qc and cotmae from this folder of generate-queries; "
            "repeat for several corpora."
        ),
    ] = None,
    settings: PretrainOptions,
    resume: parameters.Resume = False,
) -> None:
    """Pre-train an encoder on corpora without labels.

    The objective is COCO, one of its rivals, or query-as-context.
    """
    from beir_cocodr.training.pretraining.pretrain import pretrain as run

    record = run(
        model,
        dataset,
        output=output,
        options=settings,
        queries=queries or (),
        resume=resume,
    )
    print_training(record)


@names_models
@trains(
    "finetune",
    "weighting",
    "clusters",
    "loss",
    "negatives",
    "hard_negatives",
    "episodes",
    "stages",
    "stage2_negatives",
    "device",
)
def finetune(
    *,
    dataset: parameters.Dataset,
    model: _Start,
    output: parameters.Output,
    split: _TrainSplit = "train",
    target: Annotated[
        list[str] | None,
        Option(
            help="Evaluate every episode or stage on this labelled collection; repeat for several."
        ),
    ] = None,
    measures: parameters.Measures = "nDCG@10 R@100",
    settings: FinetuneOptions,
    resume: parameters.Resume = False,
) -> None:
    """Fine-tune an encoder on labelled queries.

    Queries have equal weights or those of a robust weighting such as iDRO. Negatives come from
    BM25, or are mined in episodes or in two stages.
    """
    from beir_cocodr.training.finetuning.finetune import finetune as run

    settings = replace(settings, targets=tuple(target or ()), measures=measures)
    record = run(model, dataset, output=output, options=settings, split=split, resume=resume)
    print_training(record)


@names_models
@trains("distill", "student", "loss", "device")
def distill(
    *,
    dataset: parameters.Dataset,
    model: _Start,
    teacher: Annotated[
        str, plain(f"Learn from this teacher: {', '.join(_TEACHERS[:-1])}, or {_TEACHERS[-1]}.")
    ],
    output: parameters.Output,
    split: _TrainSplit = "train",
    settings: DistillOptions,
    resume: parameters.Resume = False,
) -> None:
    """Train an encoder to rank as a teacher does."""
    from beir_cocodr.training.distillation.distill import distill as run

    record = run(
        model,
        dataset,
        teacher=teacher,
        output=output,
        options=settings,
        split=split,
        resume=resume,
    )
    print_training(record)


@names_models
@takes(
    "settings",
    *(
        "bm25_weight",
        "weight_by_length",
        "bytes_per_document",
        "lexical",
        "analyzer",
        "sample",
        "max_terms",
        "seed",
    ),
)
@takes("encoder", *ENCODING)
def fuse(
    *,
    dataset: parameters.Dataset,
    model: Annotated[str, plain("Fuse this dense encoder: minilm, a folder or a hub name.")],
    output: Annotated[Path, plain("Write the hybrid encoder to this folder.")],
    settings: FuseOptions,
    store: Annotated[
        list[Path] | None,
        Option(
            help="Take the vectors from this store, which encode wrote with this encoder, "
            "instead of encoding; repeat for several."
        ),
    ] = None,
    weight_by_estimate: Annotated[
        bool,
        Option(
            "--weight-by-estimate",
            help="Give BM25 the weight 0.2 where compare's estimate without labels expects the "
            "fusion to lose, and 0.5 elsewhere. Some documents are encoded again for it.",
        ),
    ] = False,
    resume: parameters.Resume = False,
    encoder: EncoderOptions,
    as_json: parameters.Json = False,
) -> None:
    """Fuse an encoder with BM25 over a corpus, without labels.

    The result is one encoder whose dot product is the fused score.
    """
    from beir_cocodr.distributed import rank
    from beir_cocodr.report.evaluation_tables import fusion_table
    from beir_cocodr.retrieval.hybrid.fuse import finished_fusion
    from beir_cocodr.retrieval.hybrid.fuse import fuse as run

    if weight_by_estimate:
        finished = finished_fusion(output_path(output), resume)
        if finished is None:
            settings = _with_estimated_weight(settings, dataset, model, encoder, store or [])
        else:
            settings = _with_weight_of(finished, output, settings)
    record = run(
        model,
        dataset,
        output=output,
        options=settings,
        encoder=encoder,
        stores=store or (),
        resume=resume,
    )
    if rank() == 0:
        print_record(record, as_json, lambda record: [fusion_table(record)])


def _with_estimated_weight(
    settings: FuseOptions,
    dataset: str,
    model: str,
    encoder: EncoderOptions,
    stores: list[Path],
) -> FuseOptions:
    """Return the options of a fusion with the weight that the estimate chooses."""
    from beir_cocodr.evaluation.fusion_weight import choose_weight
    from beir_cocodr.retrieval.store.store import EmbeddingStore
    from beir_cocodr.retrieval.store.store_choice import check_not_sharpened

    _check_weight_is_open(settings)
    check_not_sharpened(map(EmbeddingStore.open, stores))
    search = SearchOptions(encoder=encoder, analyzer=settings.analyzer, stores=tuple(stores))
    return choose_weight(model, dataset, search, seed=settings.seed).applied_to(settings)


def _with_weight_of(finished: TrainingRecord, output: Path, settings: FuseOptions) -> FuseOptions:
    """Return the options of a fusion with the weight that an estimate chose for a finished one."""
    _check_weight_is_open(settings)
    reason = finished.options.get("weight_reason")
    weight = finished.options["bm25_weight"]
    if not isinstance(reason, str):
        raise InputError(
            f"{output} was fused without --weight-by-estimate; leave it out, or choose another "
            "folder"
        )
    assert isinstance(weight, float)
    return replace(settings, bm25_weight=weight, weight_reason=reason)


def _check_weight_is_open(settings: FuseOptions) -> None:
    """Raise an InputError if BM25's weight is given, which an estimate is to choose."""
    if settings.weight_by_length or settings.bm25_weight != BM25_WEIGHT:
        raise InputError(
            "--weight-by-estimate chooses BM25's weight; leave --bm25-weight and "
            "--weight-by-length out"
        )


_DEFAULT_STAGES = ",".join(presets.DEFAULT_STAGES)

_Stages = Annotated[
    str,
    Option(
        help="Run these stages, separated by commas: any of "
        f"{','.join(presets.ADAPT_STAGES)}. They run in the right order, each alone and "
        "all in sequence, and every model is judged."
    ),
]

_Queries = Annotated[
    Path | None,
    Option(
        help="Read queries from this folder of generate-queries. Default: generate them if a "
        "stage needs them."
    ),
]

_Generator = Annotated[
    str,
    Option(
        help="Generate queries with this generator: lexical, or a seq2seq or causal language model."
    ),
]

_Teacher = Annotated[
    str | None,
    Option(
        help="Score with this cross-encoder in the stages gpl and distill. Default: for gpl the "
        "one that GPL uses, from the hub; for distill the best ranking without labels."
    ),
]

_QueryKinds = Annotated[
    str | None,
    Option(
        help="Generate queries of these kinds alternately, separated by commas: any of "
        f"{','.join(QUERY_KINDS)}. Default: with the stage distill, all that the generator has."
    ),
]

_Samples = Annotated[
    int,
    Option(
        help="Judge a target without labels with this many held-out crops and as many generated "
        "queries."
    ),
]

_SourceSplit = Annotated[str, Option(help="Train on this split of the source's qrels.")]

_Weighting = Annotated[
    str | None,
    Option(help=f"Weight the source's queries by {choices(WEIGHTINGS, 'default', 'or')}."),
]


def _check_weighting(weighting: str | None, stages: Sequence[str]) -> None:
    """Raise an InputError if a weighting is given that no stage reads."""
    if weighting is not None and "finetune" not in stages:
        raise InputError(
            f"--weighting is read by the stage finetune, and the stages are {', '.join(stages)}; "
            "leave it out"
        )


@names_models
@gives(
    "shared",
    FinetuneOptions,
    *("max_steps", "epochs", "batch_size", "learning_rate", "precision", "seed", "report_to"),
)
@takes("search", "bm25_weight", "device")
def adapt(
    *,
    dataset: parameters.Dataset,
    model: _Start,
    output: parameters.Output,
    source: Annotated[str | None, Option(help="Fine-tune on this labelled collection.")] = None,
    stages: _Stages = _DEFAULT_STAGES,
    queries: _Queries = None,
    generator: _Generator = "lexical",
    query_kinds: _QueryKinds = None,
    teacher: _Teacher = None,
    split: Annotated[str, Option(help="Judge with this split of the target's qrels.")] = "test",
    samples: _Samples = 300,
    source_split: _SourceSplit = "train",
    measures: parameters.Measures = "nDCG@10 R@100",
    judgements: parameters.Judgements = None,
    weighting: _Weighting = None,
    shared: Json,
    preset: Preset = None,
    resume: parameters.Resume = False,
    show_config: ShowConfig = False,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Adapt an encoder to a corpus and judge the result.

    The labels of the dataset are used only to judge. Without labels, the verdict is an estimate,
    and the command prints how often such estimates were right; labels_wanted.tsv then lists the
    query-document pairs whose labels would decide most.
    """
    chosen = presets.chosen_stages([stage.strip() for stage in stages.split(",") if stage.strip()])
    presets.check_preset(preset, chosen)
    _check_weighting(weighting, chosen)
    of_stage: dict[str, Json] = {
        "finetune": {"weighting": weighting},
        "fuse": {"bm25_weight": search.bm25_weight},
    }
    settings = {}
    for stage in chosen:
        extra = of_stage.get(stage, {})
        settings[stage] = presets.adapt_options(stage, preset, **shared, **extra)
    if show_config:
        print_json({stage: asdict(options) for stage, options in settings.items()})
        return
    from beir_cocodr.report.evaluation_tables import print_adaptation
    from beir_cocodr.training.adapt import AdaptOptions
    from beir_cocodr.training.adapt import adapt as run

    options = AdaptOptions(
        stages=tuple(chosen),
        stage_options=settings,
        split=split,
        source_split=source_split,
        measures=measures,
        samples=samples,
        judgements=judgements,
        generated=queries,
        generator=generator,
        generation=GenerationOptions(query_kinds=query_kinds),
        teacher=teacher,
        search=search,
    )
    record = run(model, dataset, source=source, output=output, options=options, resume=resume)
    print_adaptation(record, as_json)


@takes("encoder", "device")
@takes(
    "settings",
    *(
        "per_passage",
        "passage_tokens",
        "tokenizer",
        "language",
        "prefix",
        "prompt",
        "query_kinds",
        "max_length",
        "top_p",
    ),
    *(
        "top_k",
        "batch_size",
        "bf16",
        "max_passages",
        "shard_documents",
        "dedupe",
        "near_duplicates",
        "filter_retriever",
        "filter_top",
    ),
    *("analyzer", "bm25_weight", "title_separator", "seed"),
)
def generate_queries(
    dataset: parameters.Dataset,
    output: parameters.Output,
    generator: Annotated[
        str,
        Option(
            help="Use this generator: lexical (no model, any language), a language model by its "
            "hub name, folder or GGUF file, or URL#MODEL of a server with OpenAI's protocol."
        ),
    ] = "lexical",
    *,
    settings: GenerationOptions,
    shard: Annotated[
        str,
        Option(help="With i/n, write every n-th shard, starting with the i-th; i counts from 1."),
    ] = "1/1",
    encoder: EncoderOptions,
) -> Ending | None:
    """Generate queries for the passages of a corpus.

    The output is a BEIR folder to train on. To resume a killed run, run the same command again.
    Under torchrun, each process generates its part on its own GPU.
    """
    from beir_cocodr.distributed import rank
    from beir_cocodr.generation.generate import UnfinishedGeneration
    from beir_cocodr.generation.generate import generate_queries as run

    record = run(dataset, generator, output, settings, _part(shard), encoder.device, progress=True)
    if rank() == 0:
        print_json(record.to_json())
    return UNFINISHED_GENERATION if isinstance(record, UnfinishedGeneration) else None


def _part(shard: str) -> tuple[int, int]:
    number, slash, parts = shard.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal()):
        raise InputError(f"--shard {shard}: give i/n, such as 1/4")
    return int(number), int(parts)


@takes("search", "analyzer", "bm25_weight", "title_separator", "device")
def export(
    dataset: parameters.Dataset,
    output: parameters.Output,
    form: Annotated[
        str, Option(help="Write files for gpl, tevatron or sentence-transformers.")
    ] = "gpl",
    model: Annotated[
        list[str], Option(help="Mine hard negatives with this model; repeat for several.")
    ] = ["bm25"],  # noqa: B006
    split: parameters.Split = "train",
    negatives: Annotated[
        int, Option(help="Write this many hard negatives for each query.", min=1)
    ] = 30,
    *,
    search: SearchOptions,
) -> None:
    """Write labelled queries with hard negatives to files.

    GPL, Tevatron and sentence-transformers can read them.
    """
    from beir_cocodr.training.finetuning.exchange import ExportOptions
    from beir_cocodr.training.finetuning.exchange import export as run

    options = ExportOptions(form, split, negatives)
    print_json(run(dataset, output, model, options, search).to_json())
