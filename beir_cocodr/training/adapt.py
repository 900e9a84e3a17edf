"""Adapt a base to a corpus: the stages in their right order, the ablation, and a recommendation.

Also the quickstart: the same on a collection that every installation can make for itself.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from beir_cocodr import io as files
from beir_cocodr import load_object
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import InputError, check_count, naming_full_disk
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.chains import ALONE, BASE, FEEDBACK, FUSED, RM3, Chain
from beir_cocodr.evaluation.compare import (
    CompareOptions,
    ComparisonTask,
    check_judgements_kept,
    compare_collection,
    uses_of,
)
from beir_cocodr.evaluation.evaluate import EvaluateOptions, EvaluationTask, evaluate_collection
from beir_cocodr.evaluation.label_free.choice import recommend_label_free
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.recommendation import ablation_families, recommend
from beir_cocodr.evaluation.results import AdaptationRecord
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.generation_record import read_generation
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.card import write_card
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions, ModelSpec, SearchOptions, check_device
from beir_cocodr.progress import step, steps
from beir_cocodr.provenance import RECORD_FILE, TrainingRecord, collection_provenance, read_record
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.dense import sharing_embeddings
from beir_cocodr.retrieval.fuse import fuse
from beir_cocodr.retrieval.resolve import resolve_models
from beir_cocodr.same_run import check_same_run
from beir_cocodr.training.adaptation_cost import JUDGEMENT, estimate
from beir_cocodr.training.distill import distill
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.objectives import OBJECTIVES
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions, TrainingOptions
from beir_cocodr.training.output_folder import figures_of
from beir_cocodr.training.presets import (
    ADAPT_STAGES,
    DEFAULT_STAGES,
    GPL_TEACHER,
    adapt_options,
    chosen_stages,
)
from beir_cocodr.training.pretrain import pretrain

log = logging.getLogger(__name__)
_PLAN_FILE = "plan.json"

# What precedes an encoder's name for each mode.
_MODE_PREFIXES = {ALONE: "", FEEDBACK: "feedback:", FUSED: "hybrid:", RM3: "rm3:"}


@dataclass(frozen=True)
class Data:
    """What the stages of one adaptation learn from.

    Args:
        corpus: the target.
        source, source_split: a labelled collection, for ``finetune``.
        queries: the folder of queries generated for the corpus, for the stages that need one.
        teacher: a cross-encoder, for ``gpl``.
        generator, generation: how queries are generated where none are given.
    """

    corpus: str
    source: str | None = None
    source_split: str = "train"
    queries: str | None = None
    teacher: str = GPL_TEACHER
    generator: str = "lexical"
    generation: GenerationOptions = field(default_factory=GenerationOptions)


@dataclass(frozen=True)
class StageRun:
    """One training of one stage: from the model ``start`` on ``data``, with options of the stage's
    own kind.
    """

    data: Data
    start: str
    output: Path
    options: Any
    resume: bool
    encoder: EncoderOptions


def pretrain_stage(run: StageRun) -> TrainingRecord:
    queries = [str(run.data.queries)] if OBJECTIVES[run.options.objective].on_queries else []
    return pretrain(
        [run.data.corpus], run.start, run.output, run.options, run.resume, queries, run.encoder
    )


def source_stage(run: StageRun) -> TrainingRecord:
    source, split = str(run.data.source), run.data.source_split
    return finetune(
        source, run.start, run.output, run.options, split, run.resume, encoder=run.encoder
    )


def qgen_stage(run: StageRun) -> TrainingRecord:
    queries = str(run.data.queries)
    return finetune(
        queries, run.start, run.output, run.options, resume=run.resume, encoder=run.encoder
    )


def gpl_stage(run: StageRun) -> TrainingRecord:
    return _distill(run, run.data.teacher)


def hybrid_stage(run: StageRun) -> TrainingRecord:
    return _distill(run, "feedback")


def fuse_stage(run: StageRun) -> TrainingRecord:
    return fuse(
        run.start,
        run.data.corpus,
        output=run.output,
        options=run.options,
        encoder=run.encoder,
        resume=run.resume,
    )


def _distill(run: StageRun, teacher: str) -> TrainingRecord:
    queries = str(run.data.queries)
    return distill(
        queries, run.start, teacher, run.output, run.options, resume=run.resume, encoder=run.encoder
    )


def adapt(
    corpus: str,
    source: str | None,
    base: str,
    output: Path,
    stages: Sequence[str] = DEFAULT_STAGES,
    split: str = "test",
    source_split: str = "train",
    measures: str = DEFAULT_MEASURES,
    options: Mapping[str, TrainingOptions] | None = None,
    generated: str | Path | None = None,
    generator: str = "lexical",
    generation: GenerationOptions | None = None,
    teacher: str = GPL_TEACHER,
    resume: bool = False,
    queries: int | None = None,
    samples: int = 300,
    search: SearchOptions = SearchOptions(),
    judgements: Path | None = None,
) -> AdaptationRecord:
    """Adapt ``base`` to ``corpus`` with labels from ``source``, judge whether it got better; what
    adapt.json holds. An InputError: an unknown stage, no source, no samples, a bad collection or
    model, or ``output`` is taken.

    Each stage is trained from the base alone, and all of them one after the other: ``coco`` and
    ``finetune`` make ``output/models/source``, ``output/models/coco`` and
    ``output/models/coco+source``. If the corpus has labels in ``split``, base and trained models
    are each evaluated alone, with hybrid feedback, fused with BM25 and with RM3, beside BM25
    itself; no label of the corpus is used in training. If it has none,
    :func:`~beir_cocodr.evaluation.compare.compare` compares the same methods without: what
    stands for judged queries is drawn with a seed that no stage used. The base is recommended
    unless the rule finds something better.

    Args:
        corpus: the target collection, with or without queries and labels.
        source: a labelled collection; needed by the stage ``finetune``.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for models, runs, adapt.json and results.json, or comparison.json and
            labels_wanted.tsv.
        stages: any of :data:`ADAPT_STAGES`, in any order.
        split, source_split: which labels to evaluate on, and which to train on.
        measures: the first one decides the recommendation.
        options: stage to its options; see :func:`adapt_options` for the others.
        generated: a folder of ``generate-queries`` for the corpus; by default ``output/queries`` is
            made where needed.
        generator, generation: how, as for ``generate-queries`` (model-free, 5 queries a passage).
        teacher: cross-encoder of the stage ``gpl``.
        resume: keep finished models and go on with interrupted ones.
        queries: evaluate only that many queries of the target, evenly spaced.
        samples: without labels: held-out crops, and generated queries, that models are compared on.
        search: how models search in the evaluation; ``search.encoder`` counts in training, too.
        judgements: a file of some judged queries of the corpus, which choose in place of its
            labels, among all that can be had of the base without training, too; see
            :func:`~beir_cocodr.evaluation.compare.compare`.
    """
    chosen = chosen_stages(stages)
    check_device(search.encoder.device)
    target = _check(chosen, corpus, source, split, measures, samples)
    if judgements is not None:
        load_judgements(judgements).of(target.queries)
        check_judgements_kept(output / LABELS_FILE, judgements)
    settings = {stage: adapt_options(stage) for stage in chosen} | dict(options or {})
    asks = any(ADAPT_STAGES[stage].needs_queries for stage in chosen)
    given = None if generated is None or not asks else str(generated)
    data = Data(
        corpus, source, source_split, given, teacher, generator, generation or GenerationOptions()
    )
    asked = _settings(target, chosen, settings, data)
    asked |= {
        "measures": measures,
        "queries": queries,
        "samples": samples,
        "search": search.describe(),
    }
    complete = naming_full_disk(output, lambda: _complete_models(output))
    with complete, _begun(output, AdaptationSettings(asked), resume):
        plan = AdaptationPlan(base, chosen, data, settings, output)
        cost = estimate(
            plan, load_encoder(base, search.encoder), target.documents, data.generation.per_passage
        )
        log.info("%s", cost)
        generating: dict[str, float | None] = {"queries": None} if asks else {}
        with steps({**generating, **cost.seconds}), sharing_embeddings(output):
            if asks:
                plan = replace(
                    plan, data=replace(data, queries=_queries(target, data, output, search.encoder))
                )
            models = train_models(plan, resume, search.encoder)
            step(JUDGEMENT)
            record = judge_models(
                plan, models, target, split, measures, queries, samples, search, judgements
            )
        for model in models.values():
            if (trained := read_record(model.path)) is not None:
                write_card(Path(model.path), trained, figures_of(record, model.chain))
        record.write(output / "adapt.json")
    return record


def _complete_models(output: Path) -> str:
    names = sorted(path.parent.name for path in (output / "models").glob(f"*/{RECORD_FILE}"))
    return f"complete models: {', '.join(names) or 'none'}; --resume keeps them"


@dataclass(frozen=True)
class AdaptationSettings(Record):
    """plan.json: what was asked for, collections and teacher by content; every stage's plan has the
    base's.
    """

    settings: Json


def _settings(
    target: Collection, stages: list[str], options: Mapping[str, TrainingOptions], data: Data
) -> Json:
    """What the models of an adaptation depend on, apart from their base."""
    content: Json = {
        "corpus": collection_provenance(target, queries=True).hashes,
        "stages": stages,
        "options": {stage: asdict(options[stage]) for stage in stages},
    }
    if "finetune" in stages:
        source = load_collection(str(data.source), data.source_split)
        content["source"] = collection_provenance(source, queries=True).hashes
    if "gpl" in stages:
        content["teacher"] = files.content_sha256(data.teacher) or data.teacher
    if any(ADAPT_STAGES[stage].needs_queries for stage in stages):
        file = None if data.queries is None else Path(data.queries) / "queries.jsonl"
        if file is None or not file.is_file():
            content |= {"generator": files.content_sha256(data.generator) or data.generator}
            content |= {"generation": asdict(data.generation)}
        else:
            content["generated"] = files.file_sha256(file)
    return content


@contextmanager
def _begun(output: Path, asked: AdaptationSettings, resume: bool) -> Iterator[None]:
    """Hold an output, tidied after a kill; InputError: held, begun with other settings, or files
    and no ``resume``.
    """
    with files.sole_writer(files.output_folder(output, utf8=True)):
        file = output / _PLAN_FILE
        held = files.files_below(output)
        if held and not resume:
            raise InputError(
                f"{output} is not empty; choose another --output, or --resume to go on with it"
            )
        if file.is_file():
            try:
                before = AdaptationSettings.read(file)
            except InputError as error:
                raise InputError(
                    f"{error}, or remove it to go on without it, or choose another --output"
                ) from error
            check_same_run(output, before.settings, asked.settings)
        elif held:
            log.warning(
                "%s was begun by an earlier version: whether settings are the same cannot be checked",
                output,
            )
        for folder in {path.parent for path in output.rglob("*") if files.is_incidental(path)}:
            files.remove_unfinished(folder)
        asked.write(file)
        try:
            yield
        except InputError:
            if not held and not any(
                path.is_file() for path in output.glob("*/**/*")
            ):  # nothing was made
                for path in (path for path in output.iterdir() if not files.is_incidental(path)):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise


@dataclass(frozen=True)
class AdaptationPlan:
    """What an adaptation trains.

    Attributes:
        base: what every stage alone starts from.
        stages: in their right order.
        settings: stage to its options.
    """

    base: str
    stages: list[str]
    data: Data
    settings: Mapping[str, TrainingOptions]
    output: Path

    def chains(self) -> list[list[str]]:
        """Each stage alone, the source first, then all of them one after the other; the base and
        each chain fused.
        """
        trained = [stage for stage in self.stages if stage != "fuse"]
        alone = sorted(trained, key=lambda stage: stage != "finetune")
        chains = [[stage] for stage in alone] + [
            trained[:length] for length in range(2, len(trained) + 1)
        ]
        return chains + [[*chain, "fuse"] for chain in [[], *chains] if "fuse" in self.stages]

    def chain(self, stages: Sequence[str]) -> Chain:
        """Return the chain of some stages, used alone."""
        return Chain(tuple(ADAPT_STAGES[stage].label for stage in stages))

    def label(self, stages: Sequence[str]) -> str:
        """Return the name of a chain in tables."""
        return self.chain(stages).label

    def folder(self, chain: Sequence[str]) -> Path:
        return self.output / "models" / "+".join(ADAPT_STAGES[stage].name for stage in chain)

    def unused_seed(self) -> int:
        """A seed that neither the stages nor the generation of queries used."""
        seeds = [options.seed for options in self.settings.values()]
        if self.data.queries is not None:
            settings = read_generation(Path(self.data.queries)).settings
            seeds.append(int(str(settings.get("seed", 0))))
        return 1 + max(seeds)


@dataclass(frozen=True)
class AdaptedModel:
    """A model that an adaptation trained: its chain, its folder, and how long it took."""

    chain: Chain
    path: str
    seconds: float | None


def train_models(
    plan: AdaptationPlan, resume: bool, encoder: EncoderOptions
) -> dict[str, AdaptedModel]:
    """Train every stage alone and all in their order; name of a model's folder to the model."""
    models: dict[str, AdaptedModel] = {}
    for chain in plan.chains():
        folder, label, options = plan.folder(chain), plan.label(chain), plan.settings[chain[-1]]
        start = str(plan.folder(chain[:-1])) if chain[:-1] else plan.base
        step(label)
        record = load_object(ADAPT_STAGES[chain[-1]].train)(
            StageRun(plan.data, start, folder, options, resume, encoder)
        )
        models[folder.name] = AdaptedModel(plan.chain(chain), str(folder), record.seconds)
    return models


def judge_models(
    plan: AdaptationPlan,
    models: Mapping[str, AdaptedModel],
    target: Collection,
    split: str,
    measures: str,
    queries: int | None,
    samples: int,
    search: SearchOptions,
    judgements: Path | None = None,
) -> AdaptationRecord:
    """Base and trained models in every use, by the target's labels or estimates; by judged queries
    all of the base.
    """
    corpus, output = plan.data.corpus, plan.output
    encoders = {Chain(): plan.base} | {model.chain: model.path for model in models.values()}
    chains = [encoder.used(mode) for encoder in encoders for mode in encoder.modes]
    candidates = {"bm25": "bm25"}
    candidates |= {
        chain.label: _MODE_PREFIXES[chain.mode] + encoders[chain.encoder] for chain in chains
    }
    results = comparison = None
    if judgements is not None:
        further = _further_uses(plan.base, candidates, search.bm25_weight, len(target.documents))
        chains += further
        candidates |= {chain.label: name for chain, name in further.items()}
    by_label = {chain.label: chain for chain in chains}
    if target.qrels and judgements is None:
        families = ablation_families(list(encoders))
        task = EvaluationTask.of(measures, split, EvaluateOptions(queries=queries), families)
        results = evaluate_collection(resolve_models(candidates), target, task, output, search)
        recommendation = recommend(results, list(encoders))
    else:
        # BM25 last: what is asked of a pair is then b against a for all of them.
        names = [
            candidates[label] for label in sorted(candidates, key=lambda label: label == "bm25")
        ]
        options = CompareOptions(
            labels=False,
            against=candidates[BASE],
            queries=queries,
            samples=samples,
            seed=plan.unused_seed(),
            judgements=judgements,
        )
        task = ComparisonTask.of(DEFAULT_MEASURES, split, options)
        comparison = compare_collection(resolve_models(names), target, task, output, search)
        recommendation = recommend_label_free(comparison, candidates, by_label)
    return AdaptationRecord(
        corpus=corpus,
        source=plan.data.source,
        base=plan.base,
        stages=plan.stages,
        models={BASE: plan.base} | {name: model.path for name, model in models.items()},
        generated_queries=plan.data.queries,
        seconds={name: model.seconds for name, model in models.items()},
        results=results,
        candidates={} if results is not None else candidates,
        chains=by_label,
        comparison=comparison,
        recommendation=recommendation,
        path=candidates[recommendation.model],
    )


def _further_uses(
    base: str, candidates: Mapping[str, str], weight: float, documents: int
) -> dict[Chain, str]:
    """Return the uses of the base that are no candidates yet, such as "base, hybrid@0.3"."""
    known = [ModelSpec.parse(name) for name in candidates.values()]
    taken = {(spec.kind, spec.encoder, spec.bm25_weight or weight) for spec in known}
    found: dict[Chain, str] = {}
    for name in uses_of(base, documents):
        spec = ModelSpec.parse(name)
        if (spec.kind, spec.encoder, spec.bm25_weight or weight) not in taken:
            found[Chain(mode=spec.prefix.removesuffix(":"))] = name
    return found


def _check(
    stages: list[str], corpus: str, source: str | None, split: str, measures: str, samples: int
) -> Collection:
    """The target, once everything that can be checked before training is."""
    if "finetune" in stages and source is None:
        raise InputError(
            "the stage finetune needs a labelled collection: name it with --source (apidocs/numpy needs no network), "
            "or leave the stage out"
        )
    check_count("samples", samples)
    parse_measures(measures)
    target = load_collection(corpus, split, labels="optional")
    if not target.qrels and any((Path(corpus) / "qrels").glob("*")):
        load_collection(
            corpus, split
        )  # it has labels, but not these: the message names those there are
    return target


def _queries(target: Collection, data: Data, output: Path, encoder: EncoderOptions) -> str:
    """The folder of queries generated for the target; made where none is given."""
    if data.queries is None:
        folder = output / "queries"
        generate_queries(
            data.corpus, data.generator, folder, data.generation, device=encoder.device
        )
        return str(folder)
    if read_generation(Path(data.queries)).dataset.corpus_sha256 != target.documents.content_hash:
        raise InputError(
            f"the queries of {data.queries} were generated for another corpus than {data.corpus}; generate queries "
            "for this one, or leave the folder out"
        )
    return data.queries


def quickstart(
    output: Path, fast: bool = False, seed: int = 42, resume: bool = False
) -> AdaptationRecord:
    """:func:`adapt` the packaged MiniLM to API documentation: sources stdlib, numpy, pandas and
    torch, targets scipy and scikit-learn; ``fast`` takes smaller collections and fewer steps.
    """
    corpus, source = "apidocs/scipy+sklearn", "apidocs/stdlib+numpy+pandas+torch"
    if fast:
        corpus, source = "apidocs/sklearn", "apidocs/pandas"
    # Few steps, so that all is done in ten minutes at the model's own length.
    steps, batch = (5, 16) if fast else (20, 32)
    pretraining = PretrainOptions(max_steps=steps, batch_size=batch, learning_rate=2e-5, seed=seed)
    finetuning = FinetuneOptions(
        max_steps=steps, batch_size=batch, learning_rate=2e-5, seed=seed, negatives=0
    )
    return adapt(
        corpus,
        source,
        "minilm",
        output,
        options={"coco": pretraining, "finetune": finetuning},
        resume=resume,
        queries=100 if fast else 300,
        search=SearchOptions(progress=True),
    )
