"""COCO and its rivals: pre-training on target corpora, without labels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from beir_cocodr.data.collection import Collection
from beir_cocodr.deprecation import former_signature
from beir_cocodr.distributed import join_processes, on_main
from beir_cocodr.errors import InputError, check_flag, check_options_type, check_type
from beir_cocodr.generation.generation_record import read_generation
from beir_cocodr.io import file_sha256, output_path
from beir_cocodr.models.heads.condenser import HEAD_FOLDER, CondenserHead, build_head
from beir_cocodr.models.heads.cotmae_decoder import DECODER_FOLDER, CoTMAEDecoder, build_decoder
from beir_cocodr.models.spec import check_device
from beir_cocodr.provenance import TrainingPlan, TrainingRecord, collection_provenance
from beir_cocodr.records import CollectionProvenance, Json
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.output_folder import lock_output, training_plan
from beir_cocodr.training.pretraining.context_views import ContextViews
from beir_cocodr.training.pretraining.document_views import DocumentViews
from beir_cocodr.training.pretraining.objectives import OBJECTIVES, CoTMAEOptions, HeadOptions
from beir_cocodr.training.pretraining.views import Views
from beir_cocodr.training.start import ModelLike, Start, load_collections, load_start
from beir_cocodr.training.trainer import Stage, run_stage


def context_provenance(
    folders: Sequence[str | Path], collections: Sequence[Collection]
) -> list[CollectionProvenance]:
    """Return the provenance of folders of ``generate-queries``, by hashes and counts.

    Args:
        folders: finished folders.
        collections: the corpora that are trained on.

    Raises:
        InputError: A folder is not finished or has the queries of another corpus, or a corpus has
            no queries.
    """
    corpora = {corpus.documents.content_hash: corpus.name for corpus in collections}
    parts = [_folder_provenance(Path(folder), corpora) for folder in folders]
    covered = {part.corpus_sha256 for part in parts}
    missing = [name for sha256, name in corpora.items() if sha256 not in covered]
    if folders and missing:
        raise InputError(
            f"there are no queries for {', '.join(missing)}: name their folder with --queries, or "
            "leave the corpus out"
        )
    return parts


def _folder_provenance(folder: Path, corpora: dict[str, str]) -> CollectionProvenance:
    record = read_generation(folder)
    corpus = record.dataset.corpus_sha256
    if corpus not in corpora:
        raise InputError(
            f"{folder}: its queries were generated from another corpus than "
            f"{', '.join(corpora.values())}; generate queries from that, or name their own corpus "
            "with --dataset"
        )
    file = folder / "queries.jsonl"
    if not file.is_file():
        raise InputError(f"{file}: no such file; generate the queries again")
    return CollectionProvenance(
        str(folder),
        corpus_sha256=corpus,
        queries_sha256=on_main(partial(file_sha256, file)),
        generation={"settings": record.settings, "counts": record.counts},
    )


@former_signature(
    order=("dataset", "model", "output", "options", "resume", "queries"),
    corpora="dataset",
    base="model",
    encoder="options.encoder",
)
def pretrain(
    model: ModelLike,
    dataset: object,
    *,
    output: str | Path,
    options: PretrainOptions = PretrainOptions(),
    queries: str | Path | Sequence[str | Path] = (),
    resume: bool = False,
) -> TrainingRecord:
    """Adapt an encoder to one or more corpora without labels, and save it to ``output``.

    Args:
        model: a name, a folder, or a loaded encoder, which stays as it is.
        dataset: the corpus, as :func:`~beir_cocodr.data.collection.load_collection` takes it, or a
            list of several; only documents are read.
        output: folder for the model.
        options: how it is trained; their ``objective`` names the method, COCO by default.
        queries: for the objectives qc and cotmae, folders that ``generate-queries`` made of these
            corpora.
        resume: go on from the last checkpoint; a finished output is kept.

    Returns:
        The content of training.json.

    Raises:
        InputError: No document has enough text, queries are missing or of another corpus, the
            objective cannot train this encoder, or ``output`` is taken.
        NonFiniteTraining: A loss or gradient is NaN or infinite.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from beir_cocodr import PretrainOptions, pretrain
        >>> options = PretrainOptions(max_steps=1, batch_size=2)  # leave both out for the paper's
        >>> record = pretrain("minilm", "apidocs/numpy", output="adapted", options=options)
        >>> SentenceTransformer("adapted").encode_document(["Return a sorted copy."]).shape
        (1, 384)

    References:
        COCO-DR, section 4.1 and Table 3; query-as-context pre-training, section 3.1.
    """
    check_options_type(options, PretrainOptions)
    check_flag("resume", resume)
    check_device(options.encoder.device)
    join_processes(options.encoder.device)
    check_type("queries", queries, (str, Path, list, tuple), "a folder, or a list of folders")
    folders = [queries] if isinstance(queries, str | Path) else list(queries)
    for folder in folders:
        check_type("a folder of queries", folder, (str, Path), "the path of a folder")
    _check_queries(options, folders)
    collections = load_collections(dataset, labels="none")
    output = output_path(output)
    start = load_start(model, options.encoder, options.seed)
    seen = [collection_provenance(corpus, queries=False) for corpus in collections]
    seen += context_provenance(folders, collections)
    plan = training_plan(options.objective, start, options, seen)
    with lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        views: Views
        if options.row("objective").on_queries:
            views = ContextViews([str(folder) for folder in folders], start.model, options)
        else:
            views = DocumentViews(collections, start.model, options)
        stage = _stage(plan, start, views, options)
        with _encoder_dropout(start.model, options.keeps_dropout):
            return run_stage(stage, options, output, resume)


def _check_queries(options: PretrainOptions, folders: Sequence[str | Path]) -> None:
    needs_queries = options.row("objective").on_queries
    if needs_queries and not folders:
        raise InputError(
            f"the objective {options.objective} needs generated queries: make them with "
            "beir-cocodr generate-queries, and name their folder with --queries"
        )
    if folders and not needs_queries:
        on_queries = [name for name, row in OBJECTIVES.items() if row.on_queries]
        raise InputError(
            f"the objective {options.objective} learns from documents alone: leave --queries out, "
            f"or choose one of {', '.join(on_queries)}"
        )


def build_loss(model: Any, options: PretrainOptions) -> nn.Module:
    """Build the objective's loss, with gradient caching if a process's batch needs it."""
    loss: nn.Module = options.row("objective").load()(model, options, options.cached_mini_batch())
    return loss


def attach_head(start: Start, options: PretrainOptions) -> str:
    """Append the language-model head to the model, and return where its weights come from."""
    model = start.model
    own_options = options.objective_options
    if isinstance(own_options, HeadOptions):
        head, origin = build_head(
            model=model,
            source=start.source,
            n_head_layers=own_options.n_head_layers,
            skip_from=own_options.skip_from,
            late_mlm=own_options.late_mlm,
        )
    else:  # the late loss alone
        head, origin = build_head(
            model=model,
            source=start.source,
            n_head_layers=0,
            skip_from=None,
            late_mlm=True,
        )
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    return origin


def attach_decoder(start: Start, options: PretrainOptions) -> str:
    """Append CoT-MAE's decoder behind the head, and return where its weights come from."""
    model = start.model
    own_options = options.objective_options
    assert isinstance(own_options, CoTMAEOptions)
    decoder, origin = build_decoder(
        model=model,
        head=model[-1],
        source=start.source,
        decoder=own_options.decoder,
        n_layers=own_options.decoder_layers,
        window=own_options.decoder_window,
    )
    model.append(decoder)
    return origin


def _stage(
    plan: TrainingPlan,
    start: Start,
    views: Views,
    options: PretrainOptions,
) -> Stage:
    objective = options.row("objective")
    origins: Json = {"language_model_head": attach_head(start, options) if options.masked else None}
    if objective.decoder:
        origins["decoder"] = attach_decoder(start, options)
    return Stage(
        plan=plan,
        model=start.model,
        loss=build_loss(start.model, options),
        dataset=views.dataset(),
        collator=views.collator(),
        column_tasks=views.columns,
        callbacks=[views.clock],
        batch_keys=views.batch_keys,
        names=views.names,
        finish=lambda folder: _detach_heads(start.model, folder),
        ends_step=True,
        details=views.counts() | origins,
        rehearsed=objective.rehearsed(options.objective_options),
        citations=objective.citations,
    )


def _detach_heads(model: Any, folder: Path) -> Json:
    """Take decoder and head off, so that stock modules remain, and keep them for a resumed run."""
    for kind, name in ((CoTMAEDecoder, DECODER_FOLDER), (CondenserHead, HEAD_FOLDER)):
        if isinstance(model[-1], kind):
            (folder / name).mkdir(parents=True, exist_ok=True)
            model[-1].save(str(folder / name))
            del model[-1]
            model.transformers_model.config.output_hidden_states = False
    return {}


@contextmanager
def _encoder_dropout(model: Any, keep: bool) -> Iterator[None]:
    """Hold the backbone in evaluation mode at every forward, while the head trains with dropout."""
    if keep:
        yield
        return

    def hold(module: Any, inputs: object) -> None:
        model.transformers_model.eval()

    # The first module has the hook, because it calls the backbone's forward method directly.
    hook = model[0].register_forward_pre_hook(hold)
    try:
        yield
    finally:
        hook.remove()
