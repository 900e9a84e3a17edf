"""Adapt an encoder to a corpus: stages in the right order, an ablation, a recommendation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from beir_cocodr import io as files
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.data.sources import FileSource
from beir_cocodr.deprecation import former_signature
from beir_cocodr.errors import InputError, check_flag, check_options_type, naming_full_disk
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.chains import ALONE, BASE, FEEDBACK, FUSED, RM3, Chain
from beir_cocodr.evaluation.compare import (
    CompareOptions,
    ComparisonTask,
    compare_collection,
)
from beir_cocodr.evaluation.evaluate import EvaluateOptions, EvaluationTask, evaluate_collection
from beir_cocodr.evaluation.label_free.choice import label_pairs, recommend_label_free
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.pairs_to_label import check_judgements_kept
from beir_cocodr.evaluation.recommendation import ablation_families, recommend
from beir_cocodr.evaluation.results import AdaptationRecord, ComparisonRecord, EvaluationRecord
from beir_cocodr.generation.generate import generate_queries, language_of
from beir_cocodr.generation.generation_record import read_generation
from beir_cocodr.generation.generators import LEXICAL_GENERATOR
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.card import write_card
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.spec import (
    BM25,
    ModelSpec,
    Options,
    SearchOptions,
    check_device,
    option,
)
from beir_cocodr.progress import step, steps
from beir_cocodr.provenance import (
    RECORD_FILE,
    TrainingRecord,
    collection_provenance,
    read_record,
    write_record,
)
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.hybrid.fuse import check_dense
from beir_cocodr.retrieval.resolve import uses_of
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.vectors.dense import EmbeddingPool
from beir_cocodr.same_run import check_same_run
from beir_cocodr.training.adaptation_cost import JUDGEMENT, estimate
from beir_cocodr.training.adaptation_plan import QUERIES_FOLDER, AdaptationPlan
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.output_folder import check_unused, empty
from beir_cocodr.training.presets import (
    ADAPT_STAGES,
    BEST_RANKING,
    DEFAULT_STAGES,
    GPL_TEACHER,
    AdaptStage,
    StageOptions,
    chosen_options,
)
from beir_cocodr.training.shared_options import TrainingOptions
from beir_cocodr.training.stages import (
    StageData,
    StageRun,
    check_distillation,
    generation_for_distillation,
)
from beir_cocodr.training.start import ModelLike, SharedEncoders, Start

log = logging.getLogger(__name__)

#: The file of the settings of an adaptation, in its output folder.
PLAN_FILE = "plan.json"

# How a model's name says the way that it is used.
_PREFIXES = {ALONE: "", FEEDBACK: "feedback:", FUSED: "hybrid:", RM3: "rm3:"}

#: Options of a stage: of a training, or of ``fuse``.


@dataclass(frozen=True)
class AdaptOptions(Options):
    """Options of an adaptation.

    Args:
        stages: names of :data:`~beir_cocodr.training.presets.ADAPT_STAGES`, in any order.
        stage_options: stage to its options; see
            :func:`~beir_cocodr.training.presets.adapt_options` for those of the others.
        split: the split of the target's judgements, which only judge.
        source_split: the split of the source's judgements, which are trained on.
        measures: names of measures; the first one decides. None means nDCG@10 and R@100.
        queries: judge by only so many queries of the target, evenly spaced.
        samples: without labels, the held-out crops, and the generated queries, that judge.
        judgements: a file of some judged queries of the corpus, which choose in place of its
            labels, among all ways to use the base, too; see
            :func:`~beir_cocodr.evaluation.compare.compare`.
        generated: a folder of ``generate-queries`` for the corpus. None makes ``output/queries``
            if a stage needs it.
        generator: how queries are generated, as for ``generate-queries``.
        generation: options of the generation (5 queries a passage). The stage ``distill`` asks for
            all kinds that the generator has, unless ``query_kinds`` says which, and filters what a
            language model wrote, unless ``filter_retriever`` says how.
        teacher: the cross-encoder of the stages ``gpl`` and ``distill``. None means ms-marco-MiniLM
            for ``gpl``, and the best ranking without labels for ``distill``.
        search: how models search; ``search.encoder`` also loads encoders to be trained.
    """

    stages: Any = DEFAULT_STAGES
    stage_options: Mapping[str, StageOptions] = field(default_factory=dict)
    split: str = option("test")
    source_split: str = option("train")
    measures: Any = None
    queries: int | None = option(None, min=1)
    samples: int = option(300, min=1)
    judgements: Path | str | None = None
    generated: Path | str | None = None
    generator: str = option("lexical")
    generation: GenerationOptions = field(default_factory=GenerationOptions)
    teacher: str | None = None
    search: SearchOptions = SearchOptions()

    @property
    def chosen_measures(self) -> Any:
        """Return the measures, or the default ones."""
        return DEFAULT_MEASURES if self.measures is None else self.measures

    def chosen(self) -> dict[str, StageOptions]:
        """Return the chosen stages in the right order, with their options.

        Raises:
            InputError: No stage is named, one is unknown, or options are not those of their stage.
        """
        own_options = chosen_options(self.stages, self.stage_options)
        chosen: dict[str, StageOptions] = {}
        for stage, options in own_options.items():
            if isinstance(options, TrainingOptions):
                options = replace(options, encoder=self.search.encoder)
            chosen[stage] = options
        return chosen


@former_signature(
    order=("dataset", "source", "model", "output", "options.stages", "options.split"),
    corpus="dataset",
    base="model",
    source_split="options.source_split",
    measures="options.measures",
    generated="options.generated",
    generator="options.generator",
    generation="options.generation",
    teacher="options.teacher",
    queries="options.queries",
    samples="options.samples",
    search="options.search",
    judgements="options.judgements",
)
def adapt(
    model: ModelLike,
    dataset: object,
    *,
    source: object | None = None,
    output: str | Path,
    options: AdaptOptions = AdaptOptions(),
    resume: bool = False,
) -> AdaptationRecord:
    """Adapt an encoder to a corpus with labels from another one, and judge whether it got better.

    Each stage is trained from the base alone, and all of them one after the other: ``coco`` and
    ``finetune`` make ``output/models/source``, ``output/models/coco`` and
    ``output/models/coco+source``. If the corpus has labels in ``split``, base and trained models
    are each evaluated alone, with hybrid feedback, fused with BM25 and with RM3, beside BM25
    itself; no label of the corpus is used in training. Without labels,
    :func:`~beir_cocodr.evaluation.compare.compare` compares the same methods by
    pseudo-queries, drawn with a seed that no stage used. The base is recommended unless the rule
    finds something better.

    Args:
        model: the base: a name, a folder, or a loaded encoder, which stays as it is.
        dataset: the target, with or without queries and labels, as
            :func:`~beir_cocodr.data.collection.load_collection` takes it.
        source: a labelled collection; the stage ``finetune`` needs it.
        output: folder for models, runs, adapt.json and results.json, or comparison.json and
            labels_wanted.tsv.
        options: stages, judging and search.
        resume: keep finished models, and go on with interrupted ones.

    Returns:
        The content of adapt.json.

    Raises:
        InputError: A stage is unknown, the source is missing, a collection or model cannot be
            read, or ``output`` is taken.

    Example:
        >>> from beir_cocodr import AdaptOptions, PretrainOptions, adapt
        >>> coco = PretrainOptions(max_steps=1, batch_size=2)  # leave it out for the paper's
        >>> options = AdaptOptions(stages="coco", stage_options={"coco": coco}, queries=20)
        >>> record = adapt("minilm", "apidocs/numpy", output="adapted", options=options)
        >>> list(record.models)
        ['base', 'coco']
    """
    if isinstance(options, Mapping):  # the former meaning of the name
        options = AdaptOptions(stage_options=options)
    check_options_type(options, AdaptOptions)
    check_flag("resume", resume)
    output = files.output_path(output)
    encoder = options.search.encoder
    check_device(encoder.device)
    plan = _planned(model, dataset, source, output, options)
    complete = naming_full_disk(output, lambda: _complete_models(output))
    begun = _begun(output, AdaptationSettings(_settings(plan)), resume)
    with complete, begun, ExitStack() as stack:
        first = next(iter(plan.settings.values()))
        pool = stack.enter_context(EmbeddingPool.temporary(output))
        encoders = SharedEncoders(encoder, int(first.seed), pool)
        base = encoders.get(model)
        _check_base(base, plan)
        wanted_queries = plan.wanted_queries()
        cost = estimate(plan.trainings(), base.model, plan.target.documents, wanted_queries)
        expected: dict[str, float | None] = {} if wanted_queries is None else {"queries": None}
        if cost is None:
            log.info("all models are trained, and the vectors encoded so far are kept")
            expected[JUDGEMENT] = None
        else:
            log.info("%s", cost)
            expected |= cost.seconds
        with steps(expected):
            if plan.needs_queries:
                plan = replace(plan, queries_folder=_queries_folder(plan))
            models = train_models(plan, base, encoders, resume)
            step(JUDGEMENT)
            record = _Judgement(plan, base, models, encoders).record()
        for trained in models:
            training = read_record(trained.path)
            if training is not None:
                write_card(Path(trained.path), training, figures_of(record, trained.chain))
        record.write(output / "adapt.json")
    return record


def _planned(
    model: ModelLike, dataset: object, source: object | None, output: Path, options: AdaptOptions
) -> AdaptationPlan:
    """Return the plan, once everything that can be checked before the base is loaded is."""
    settings = options.chosen()
    if options.teacher is not None and not options.teacher.strip():
        raise InputError("the teacher has no name; give a cross-encoder or a ranking")
    _check_used(settings, source, options)
    for stage, own_options in settings.items():
        if ADAPT_STAGES[stage].needs_kinds:
            generation = generation_for_distillation(
                options.generation, options.generator, model, options.search
            )
            options = replace(options, generation=generation)
            check_distillation(
                own_options, options.teacher, options.generated, options.generator, generation
            )
    needs_source = any(ADAPT_STAGES[stage].needs_source for stage in settings)
    if needs_source and source is None:
        raise InputError(
            "the stage finetune needs a labelled collection: name it with --source (apidocs/numpy "
            "needs no network), or leave the stage out"
        )
    parse_measures(options.chosen_measures)
    target = load_collection(dataset, options.split, labels="optional")
    if not target.qrels and isinstance(target.source, FileSource) and target.source.splits():
        target.in_split(options.split)  # refused, by the names of the splits that have labels
    if options.judgements is not None:
        judgements = Path(options.judgements)
        load_judgements(judgements).of(target.queries)
        check_judgements_kept(output / LABELS_FILE, judgements)
    labelled = load_collection(source, options.source_split) if needs_source else None
    return AdaptationPlan(target, labelled, settings, options, output)


def _check_used(
    settings: Mapping[str, StageOptions], source: object | None, options: AdaptOptions
) -> None:
    """Raise an InputError if something was given that no stage reads."""
    rows = [ADAPT_STAGES[stage] for stage in settings]
    names = ", ".join(settings)
    if source is not None and not any(row.needs_source for row in rows):
        raise InputError(
            f"the source is read by the stage finetune, and the stages are {names}; leave it out"
        )
    asked = options.generator != LEXICAL_GENERATOR or options.generation != GenerationOptions()
    if asked and options.generated is not None:
        raise InputError(
            f"the queries are taken from {options.generated}, so none are generated; leave the "
            "generator and the options of generation out"
        )
    if (asked or options.generated is not None) and not any(row.needs_queries for row in rows):
        raise InputError(
            f"no stage of {names} needs generated queries; leave the queries, the generator and "
            "the options of generation out"
        )
    if options.teacher is not None and not any(row.options is DistillOptions for row in rows):
        raise InputError(
            f"the teacher is read by the stages gpl and distill, and the stages are {names}; leave "
            "it out"
        )


def _check_base(base: Start, plan: AdaptationPlan) -> None:
    """Raise an InputError if the base cannot be used in all ways that are judged."""
    if isinstance(base.model, HybridEncoder):
        raise InputError(
            f"{base.name} is a hybrid encoder, which already includes BM25, and the adapted models "
            "are judged alone and fused with BM25; name the encoder that it was fused from, and "
            "the stage fuse to fuse what was trained"
        )
    if "fuse" in plan.settings:
        check_dense(base.model, base.name)


def _complete_models(output: Path) -> str:
    names = sorted(path.parent.name for path in (output / "models").glob(f"*/{RECORD_FILE}"))
    return f"complete models: {', '.join(names) or 'none'}; --resume keeps them"


@dataclass(frozen=True)
class AdaptationSettings(Record):
    """The content of plan.json.

    Attributes:
        settings: what was asked for, collections and teacher by content. The base is in the plan
            of every stage.
    """

    settings: Json


def _settings(plan: AdaptationPlan) -> Json:
    """Return what makes two adaptations the same, apart from their base."""
    options = plan.options
    recorded = {
        stage: own_options.recorded()
        if isinstance(own_options, TrainingOptions)
        else asdict(own_options)
        for stage, own_options in plan.settings.items()
    }
    settings: Json = {
        "corpus": collection_provenance(plan.target, queries=True).hashes,
        "stages": plan.stages,
        "options": recorded,
        "measures": str(options.chosen_measures),
        "queries": options.queries,
        "samples": options.samples,
        "search": options.search.describe(),
    }
    if plan.source is not None:
        settings["source"] = collection_provenance(plan.source, queries=True).hashes
    if "gpl" in plan.settings or "distill" in plan.settings:
        default = GPL_TEACHER if "gpl" in plan.settings else BEST_RANKING
        teacher = options.teacher or default
        settings["teacher"] = files.content_sha256(teacher) or teacher
    if not plan.needs_queries:
        return settings
    file = None
    if options.generated is not None:
        file = Path(options.generated) / "queries.jsonl"
    if file is not None and file.is_file():
        settings["generated"] = files.file_sha256(file)
    else:
        settings["generator"] = files.content_sha256(options.generator) or options.generator
        language = language_of(options.generation, plan.target.documents)
        settings["generation"] = asdict(replace(options.generation, language=language))
    return settings


@contextmanager
def _begun(output: Path, settings: AdaptationSettings, resume: bool) -> Iterator[None]:
    """Hold an output, tidied after a kill.

    Raises:
        InputError: Another run holds it, it was begun with other settings, or it has files and
            ``resume`` is off.
    """
    with files.sole_writer(files.output_folder(output, utf8=True)):
        check_unused(output, resume)
        has_files = bool(files.files_below(output))
        file = output / PLAN_FILE
        if file.is_file():
            _check_settings(file, settings)
        elif has_files:
            log.warning(
                "%s was begun by an earlier version: whether settings are the same cannot be "
                "checked",
                output,
            )
        for folder in {path.parent for path in output.rglob("*") if files.is_incidental(path)}:
            files.remove_unfinished(folder)
        settings.write(file)
        try:
            yield
        except InputError:
            nothing_made = not any(path.is_file() for path in output.glob("*/**/*"))
            if not has_files and nothing_made:
                empty(output)
            raise


def _check_settings(file: Path, settings: AdaptationSettings) -> None:
    try:
        before = AdaptationSettings.read(file)
    except InputError as error:
        raise InputError(
            f"{error}, or remove it to continue without it, or choose another --output"
        ) from error
    check_same_run(file.parent, before.settings, settings.settings)


def _queries_folder(plan: AdaptationPlan) -> Path:
    """Return the folder of queries generated for the target; made if none is named."""
    options = plan.options
    if options.generated is None:
        folder = plan.output / QUERIES_FOLDER
        device = options.search.encoder.device
        generate_queries(plan.target, options.generator, folder, options.generation, device=device)
        return folder
    folder = Path(options.generated)
    corpus = read_generation(folder).dataset.corpus_sha256
    if corpus != plan.target.documents.content_hash:
        raise InputError(
            f"the queries of {folder} were generated for another corpus than {plan.target.name}; "
            "generate queries for this one, or leave the folder out"
        )
    return folder


@dataclass(frozen=True)
class AdaptedModel:
    """A model that an adaptation trained.

    Attributes:
        chain: the stages that trained it.
        path: its folder.
        seconds: how long its last stage took.
    """

    chain: Chain
    path: str
    seconds: float | None

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return Path(self.path).name


def train_models(
    plan: AdaptationPlan, base: Start, encoders: SharedEncoders, resume: bool
) -> list[AdaptedModel]:
    """Train every stage alone, and all in their order."""
    queries = None
    if plan.queries_folder is not None:
        queries = load_collection(str(plan.queries_folder), "train")
    data = StageData(
        target=plan.target,
        source=plan.source,
        queries=queries,
        queries_folder=plan.queries_folder,
        teacher=plan.options.teacher,
    )
    models = []
    for stages in plan.chains():
        chain = plan.chain(stages)
        folder = plan.folder(stages)
        before = stages[:-1]
        start = base
        if before:
            start = encoders.get(str(plan.folder(before)))
        row = ADAPT_STAGES[stages[-1]]
        step(chain.label)
        options = plan.settings[stages[-1]]
        run = StageRun(
            data=data,
            start=start,
            output=folder,
            options=options,
            resume=resume,
            encoder=plan.options.search.encoder,
        )
        record = complete_record(folder, row, row.load()(run))
        models.append(AdaptedModel(chain, str(folder), record.seconds))
    return models


def complete_record(
    folder: Path,
    row: AdaptStage,
    record: TrainingRecord,
) -> TrainingRecord:
    """Add the facts of a stage's row to the record of its training."""
    rehearsed = tuple(dict.fromkeys((*record.rehearsed, *row.rehearses)))
    citations = tuple(dict.fromkeys((*record.citations, *row.citations)))
    completed = replace(record, rehearsed=rehearsed, citations=citations)
    if completed == record:
        return record
    return write_record(folder, completed)


@dataclass(frozen=True)
class _Judgement:
    """The comparison of base and trained models in every use."""

    plan: AdaptationPlan
    base: Start
    models: Sequence[AdaptedModel]
    encoders: SharedEncoders

    def record(self) -> AdaptationRecord:
        """Judge by the target's labels or by estimates, and recommend a model."""
        plan = self.plan
        chains = self._chains()
        candidates = {"bm25": "bm25"}
        candidates |= {label: self._name(chain) for label, chain in chains.items()}
        if plan.options.judgements is not None:
            further = self._further_uses(candidates)
            chains |= {chain.label: chain for chain in further}
            candidates |= {chain.label: name for chain, name in further.items()}
        results = comparison = None
        if plan.target.qrels and plan.options.judgements is None:
            results = self._evaluate(candidates)
            recommendation = recommend(results, list(self._encoders()))
        else:
            comparison = self._compare(candidates)
            recommendation = recommend_label_free(comparison, candidates, chains)
        return AdaptationRecord(
            corpus=plan.target.name,
            source=None if plan.source is None else plan.source.name,
            base=self.base.name,
            stages=plan.stages,
            models={BASE: self.base.name} | {model.name: model.path for model in self.models},
            generated_queries=_text(plan.queries_folder),
            seconds={model.name: model.seconds for model in self.models},
            chains=chains,
            results=results,
            candidates={} if results is not None else candidates,
            comparison=comparison,
            recommendation=recommendation,
            path=candidates[recommendation.model],
        )

    def _encoders(self) -> dict[Chain, str]:
        """Return the base and the trained encoders, to their names."""
        return {Chain(): self.base.name} | {model.chain: model.path for model in self.models}

    def _chains(self) -> dict[str, Chain]:
        """Return label to chain, of every encoder in every use."""
        uses = [encoder.used(mode) for encoder in self._encoders() for mode in encoder.modes]
        return {use.label: use for use in uses}

    def _name(self, chain: Chain) -> str:
        return _PREFIXES[chain.mode] + self._encoders()[chain.encoder]

    def _spec(self, name: str) -> ModelSpec:
        """Return the model of a name, with the encoder that the adaptation has loaded for it."""
        spec = ModelSpec.parse(name)
        if spec.kind == BM25:
            return spec
        return replace(spec, loaded=self.encoders.get(spec.encoder).model)

    def _evaluate(self, candidates: Mapping[str, str]) -> EvaluationRecord:
        options = self.plan.options
        task = EvaluationTask.of(
            options.chosen_measures,
            options.split,
            EvaluateOptions(queries=options.queries),
            ablation_families(list(self._encoders())),
        )
        specs = {label: self._spec(name) for label, name in candidates.items()}
        with self._resources() as resources:
            return evaluate_collection(
                specs, self.plan.target, task, self.plan.output, resources=resources
            )

    def _resources(self) -> AbstractContextManager[Resources]:
        """Return what the judged models share over the target."""
        documents = self.plan.target.documents
        pool = self.encoders.pool
        parent = None if pool is None else pool.folder
        return Resources.temporary(documents, self.plan.options.search, parent, pool)

    def _compare(self, candidates: Mapping[str, str]) -> ComparisonRecord:
        options = self.plan.options
        # BM25 last: a pair then asks for b against a for all of them.
        labels = sorted(candidates, key=lambda label: label == BM25)
        specs = {candidates[label]: self._spec(candidates[label]) for label in labels}
        comparing = CompareOptions(
            labels=False,
            against=candidates[Chain().label],
            queries=options.queries,
            samples=options.samples,
            seed=self.plan.unused_seed(),
            judgements=options.judgements,
        )
        task = ComparisonTask.of(DEFAULT_MEASURES, options.split, comparing)
        with self._resources() as resources:
            return compare_collection(
                specs, self.plan.target, task, self.plan.output, resources=resources
            )

    def _further_uses(self, candidates: Mapping[str, str]) -> dict[Chain, str]:
        """Return the ways to use the base that are no candidates yet, to their names."""
        default_weight = self.plan.options.search.bm25_weight
        used = {_use(ModelSpec.parse(name), default_weight) for name in candidates.values()}
        further: dict[Chain, str] = {}
        uses = uses_of(self.base.name, len(self.plan.target.documents))
        for name, spec in uses.items():
            if _use(spec, default_weight) not in used:
                further[Chain(mode=spec.prefix.removesuffix(":"))] = name
        return further


def _use(spec: ModelSpec, default_weight: float) -> tuple[str, str, float]:
    """Return what tells two ways to use an encoder apart."""
    return spec.kind, spec.encoder, spec.bm25_weight or default_weight


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    return str(path)


def figures_of(record: AdaptationRecord, chain: Chain) -> Json:
    """Return what an adaptation measured of a trained encoder, for its card.

    Each use is compared with the same use of the base.
    """
    pairs: Mapping[tuple[str, str], object] = {}
    if record.results is not None:
        measure = record.results.measures[0]
        tests = [test for test in record.results.comparisons if test.measure == measure]
        pairs = {(test.a, test.b): test for test in tests}
    elif record.comparison is not None:
        pairs = label_pairs(record.comparison, record.candidates)
    uses: dict[str, object] = {}
    for mode in chain.modes:
        pair = (Chain(mode=mode).label, chain.used(mode).label)
        if pair in pairs:
            uses[mode] = pairs[pair]
    return {"adapted": record, "chain": chain, "uses": uses}
