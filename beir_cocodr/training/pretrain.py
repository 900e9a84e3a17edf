"""COCO and its rivals: pre-training on target corpora, without labels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import set_seed

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.distributed import join_processes, on_main
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generation_record import read_generation
from beir_cocodr.io import file_sha256
from beir_cocodr.models.condenser import HEAD_FOLDER, CondenserHead, build_head
from beir_cocodr.models.cotmae_decoder import DECODER_FOLDER, CoTMAEDecoder, build_decoder
from beir_cocodr.models.loading import load_encoder, model_source
from beir_cocodr.models.spec import EncoderOptions, check_device
from beir_cocodr.provenance import SPANS, TrainingPlan, TrainingRecord, collection_provenance
from beir_cocodr.records import CollectionProvenance, Json
from beir_cocodr.training.objectives import OBJECTIVES
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.output_folder import lock_output, training_plan
from beir_cocodr.training.pretrain_data import ContextViews, DocumentViews
from beir_cocodr.training.trainer import Stage, run_stage


def context_provenance(
    folders: Sequence[str], collections: Sequence[Collection]
) -> list[CollectionProvenance]:
    """The records of folders that ``generate-queries`` made, by hashes and counts; an InputError
    where a folder is not finished or has the queries of another corpus, or one of ``collections``
    has none.
    """
    corpora = {collection.documents.content_hash: collection.name for collection in collections}
    found = []
    for folder in folders:
        record = read_generation(Path(folder))
        corpus = record.dataset.corpus_sha256
        if corpus not in corpora:
            raise InputError(
                f"{folder}: its queries were generated from another corpus than {', '.join(corpora.values())}; "
                "generate queries from that, or name their own corpus with --dataset"
            )
        file = Path(folder) / "queries.jsonl"
        if not file.is_file():
            raise InputError(f"{file}: no such file; generate the queries again")
        found.append(
            CollectionProvenance(
                str(folder),
                corpus_sha256=corpus,
                queries_sha256=on_main(partial(file_sha256, file)),
                generation={"settings": record.settings, "counts": record.counts},
            )
        )
    asked = {given.corpus_sha256 for given in found}
    if folders and (missing := [name for sha256, name in corpora.items() if sha256 not in asked]):
        names = ", ".join(missing)
        raise InputError(
            f"there are no queries for {names}: name their folder with --queries, or leave the corpus out"
        )
    return found


def pretrain(
    corpora: Sequence[str],
    base: str,
    output: Path,
    options: PretrainOptions | None = None,
    resume: bool = False,
    queries: Sequence[str] = (),
    encoder: EncoderOptions = EncoderOptions(),
) -> TrainingRecord:
    """Adapt ``base`` to one or more corpora and save the encoder to ``output``. An InputError: no
    document has enough text, queries are missing or another corpus's, the objective cannot train
    this encoder, or ``output`` is taken.

    Args:
        corpora: datasets as the command line names them; only their documents are read.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for the model.
        options: see :class:`PretrainOptions`; its ``objective`` names the method, COCO by default.
        resume: go on from the last checkpoint; a finished output is left as it is.
        queries: for the objectives qc and cotmae, folders that ``generate-queries`` made of these
            corpora.
        encoder: how ``base`` is loaded.

    Source: COCO-DR, section 4.1 and Table 3; query-as-context pre-training, section 3.1.

    Example:
        >>> from pathlib import Path
        >>> from sentence_transformers import SentenceTransformer
        >>> from beir_cocodr import PretrainOptions, pretrain
        >>> options = PretrainOptions(max_steps=1, batch_size=2)  # leave both out for the paper's
        >>> record = pretrain(["apidocs/numpy"], "minilm", Path("adapted"), options)
        >>> SentenceTransformer("adapted").encode_document(["Return a sorted copy."]).shape
        (1, 384)
    """
    check_device(encoder.device)
    join_processes(encoder.device)
    options = options or PretrainOptions()
    _check_queries(options, queries)
    collections = [load_collection(name, labels="none") for name in corpora]
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, encoder)
    given = [collection_provenance(found, queries=False) for found in collections]
    given += context_provenance(queries, collections)
    plan = training_plan(options.objective, base, model, encoder, options, given)
    with lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        on_queries = OBJECTIVES[options.objective].on_queries
        views = (
            ContextViews(queries, model, options)
            if on_queries
            else DocumentViews(collections, model, options)
        )
        stage = _stage(plan, model, base, views, options)
        with _encoder_dropout(model, options.keeps_dropout):
            return run_stage(stage, options, output, resume)


def _check_queries(options: PretrainOptions, queries: Sequence[str]) -> None:
    needed = OBJECTIVES[options.objective].on_queries
    if needed and not queries:
        raise InputError(
            f"the objective {options.objective} needs generated queries: make them with beir-cocodr "
            "generate-queries, and name their folder with --queries"
        )
    if queries and not needed:
        raise InputError(
            f"the objective {options.objective} learns from documents alone: leave --queries out, or take "
            f"one of {', '.join(name for name, found in OBJECTIVES.items() if found.on_queries)}"
        )


def rehearsed_by(options: PretrainOptions) -> tuple[str, ...]:
    """Return what an objective practises; passages of ``qc`` find their neighbours if mixed."""
    if options.objective == "qc" and options.mix:
        return (SPANS,)
    return OBJECTIVES[options.objective].rehearses


def build_loss(model: Any, options: PretrainOptions) -> nn.Module:
    """The objective's loss, with gradient caching where a process's batch is larger than its
    mini-batch.
    """
    return OBJECTIVES[options.objective].loss(model, options, options.cached_mini_batch())


def attach_head(model: Any, base: str, options: PretrainOptions) -> str:
    """Append the language-model head to ``model``; returns where its weights come from."""
    layers, skip_from, late = options.n_head_layers, options.skip_from, options.late_mlm
    if OBJECTIVES[options.objective].late_head:
        layers, skip_from, late = 0, None, True
    head, origin = build_head(model, model_source(base), layers, skip_from, late)
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    return origin


def attach_decoder(model: Any, base: str, options: PretrainOptions) -> str:
    """Append CoT-MAE's decoder to a model that has its head; returns where its weights come
    from.
    """
    shape = (options.decoder, options.decoder_layers, options.decoder_window)
    decoder, origin = build_decoder(model, model[-1], model_source(base), *shape)
    model.append(decoder)
    return origin


def _stage(
    plan: TrainingPlan,
    model: Any,
    base: str,
    views: DocumentViews | ContextViews,
    options: PretrainOptions,
) -> Stage:
    origins = {"language_model_head": attach_head(model, base, options) if options.masked else None}
    if OBJECTIVES[options.objective].decoder:
        origins["decoder"] = attach_decoder(model, base, options)
    return Stage(
        plan=plan,
        model=model,
        loss=build_loss(model, options),
        dataset=views.dataset(),
        collator=views.collator(),
        column_tasks=views.columns,
        callbacks=[views.clock],
        batch_keys=views.batch_keys,
        names=views.names,
        finish=lambda folder: _detach_heads(model, folder),
        details={**views.counts(), **origins},
        rehearsed=rehearsed_by(options),
    )


def _detach_heads(model: Any, folder: Path) -> Json:
    """Take decoder and head off, so that stock modules remain, and keep them beside it for going
    on.
    """
    for kind, name in ((CoTMAEDecoder, DECODER_FOLDER), (CondenserHead, HEAD_FOLDER)):
        if isinstance(model[-1], kind):
            (folder / name).mkdir(parents=True, exist_ok=True)
            model[-1].save(str(folder / name))
            del model[-1]
            model.transformers_model.config.output_hidden_states = False
    return {}


@contextmanager
def _encoder_dropout(model: Any, keep: bool) -> Iterator[None]:
    """Hold the backbone in evaluation mode at every forward pass, while the head trains with
    dropout.
    """
    if keep:
        yield
        return

    def hold(module: Any, inputs: Any) -> None:
        model.transformers_model.eval()

    # The hook stands at the first module because that one calls the backbone's forward method
    # directly.
    hook = model[0].register_forward_pre_hook(hold)
    try:
        yield
    finally:
        hook.remove()
