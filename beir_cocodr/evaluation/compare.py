"""Comparison of models on a collection, with labels or without."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from beir_cocodr.data.asked_queries import asked_dataset, load_asked, without_texts_of
from beir_cocodr.data.collection import (
    Collection,
    Dataset,
    check_apart,
    is_dataset,
    load_collection,
)
from beir_cocodr.data.judgements import Judgements, judgements_file, load_judgements
from beir_cocodr.data.sources import Labels
from beir_cocodr.deprecation import former_signature
from beir_cocodr.errors import SEED_MAX, InputError, check_options_type
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.calibration import Calibration
from beir_cocodr.evaluation.evaluate import (
    EvaluateOptions,
    EvaluationTask,
    evaluate_into,
)
from beir_cocodr.evaluation.judge.assessment import assess
from beir_cocodr.evaluation.judge.findings import JudgeFindings
from beir_cocodr.evaluation.judge.graders import Grader, load_grader
from beir_cocodr.evaluation.judge.material import (
    Searched,
    material_of_queries,
    material_of_split,
)
from beir_cocodr.evaluation.judge.settlement import settle
from beir_cocodr.evaluation.label_free.estimators import FEWEST_QUERIES
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.verdict import compare_label_free
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, MeasureNames
from beir_cocodr.evaluation.pairs_to_label import (
    check_judgements_kept,
    choose_pairs,
    write_pairs,
)
from beir_cocodr.evaluation.results import (
    AnnotationCandidates,
    Best,
    ComparisonRecord,
    Findings,
    indistinguishable,
)
from beir_cocodr.evaluation.runs import identical_ids, identity_of_model, warn_of_unanswered
from beir_cocodr.generation.generators import LEXICAL_GENERATOR, LOCAL_PREFIX
from beir_cocodr.io import file_sha256, json_sha256, output_path
from beir_cocodr.models.spec import (
    BM25,
    RUN,
    ModelSpec,
    Options,
    SearchOptions,
    check_device,
    option,
)
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.records import ContaminationStatement, Json, versions
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resolve import Models, resolve_models, uses_of
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.run_folder import results_folder

log = logging.getLogger(__name__)
COMPARISON_FILE = "comparison.json"


@dataclass(frozen=True)
class CompareOptions(Options):
    """Options of a comparison of models.

    Args:
        labels: True insists on labels, False leaves those that exist aside; by default they are
            used where the split has some.
        identical_ids: "keep" or "drop" documents whose id is the query's; "auto" drops them on
            ArguAna and Quora, see :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        queries: look at only this many queries of the collection, evenly spaced.
        samples: held-out crops, and generated queries, of a comparison without labels.
        seed: of both.
        wanted: pairs of a query and a document to ask labels for.
        against: the model to tell from the best of the others by these pairs; by default they tell
            the two best models apart.
        generator: a language model that writes questions about documents, as another kind of
            evidence: ``hf:MODEL``, a hub name, a folder, or ``URL#MODEL``; "lexical" for none. A
            causal ``hf:MODEL`` also scores the documents that models rank first for real queries.
            Both are shown; they count with a calibration that was fitted with them.
        questions: the most questions that it writes; 0 leaves them out.
        asked: the folder of a session in which queries were kept, see
            :func:`~beir_cocodr.data.asked_queries.load_asked`; without labels they count as the
            collection's own, and those that it has already count once.
        judgements: a file of some judged queries, see
            :func:`~beir_cocodr.data.judgements.load_judgements`; estimates without labels are
            joined with them, and the labels of the split are not used.
        calibration: a calibration file for verdicts without labels, such as
            ``benchmarks/label_free_fitting.py`` writes; by default that of the package.
        overwrite: replace the results of another run in the output folder, see
            :func:`~beir_cocodr.io.results_folder`.
        judge: a language model that grades the pooled documents of queries: ``URL#MODEL``,
            ``hf:MODEL``, or a :class:`~beir_cocodr.evaluation.judge.graders.Grader`. It sharpens
            what labels say, and decides nothing without them.
        judge_queries: the most queries that it judges; labelled ones come first.
    """

    labels: bool | None = None
    identical_ids: str = "auto"
    queries: int | None = option(None, min=1)
    samples: int = option(300, min=1)
    seed: int = option(42, min=0, max=SEED_MAX)
    wanted: int = option(100, min=0)
    against: str | None = None
    generator: str = LEXICAL_GENERATOR
    questions: int = option(100, min=0)
    asked: str | Path | None = None
    judgements: str | Path | None = None
    calibration: str | Path | None = None
    overwrite: bool = False
    judge: str | Grader | None = None
    judge_queries: int = option(300, min=1)


@former_signature(
    order=(
        "models",
        "dataset",
        "output",
        "split",
        "measures",
        "options.labels",
        "options.identical_ids",
        "options.queries",
        "options.samples",
        "options.seed",
        "options.wanted",
        "options.against",
        "search",
        "options.overwrite",
        "options.judgements",
    ),
    swapped=lambda first, second: is_dataset(first) and not is_dataset(second),
    policy="options.identical_ids",
)
def compare(
    models: Models,
    dataset: Dataset,
    *,
    measures: MeasureNames = DEFAULT_MEASURES,
    split: str = "test",
    output: str | Path | None = None,
    options: CompareOptions = CompareOptions(),
    search: SearchOptions = SearchOptions(),
) -> ComparisonRecord:
    """Compare two or more models and give a verdict on each pair, b against a.

    With labels, "better" and "worse" need a two-tailed paired t-test with p < 0.05 after Holm's
    correction over all pairs. Without labels, the difference in nDCG@10 is estimated with a 90%
    interval, by a model that was fitted to labelled collections: from what usually wins, and from
    how well each model finds documents by crops and titles that were taken from them. If a language
    model reads what is found for real queries, it also counts how probable these queries are then.
    The interval widens with the distance from the collections of the fit. The verdict is "no
    difference" where it lies within 0.01, and "cannot tell" where it does not decide.

    Args:
        models: models as for :func:`~beir_cocodr.evaluation.evaluate.evaluate`; with judgements
            also a single encoder, whose uses without training are compared
            (:func:`~beir_cocodr.models.spec.ways_to_use`). Without labels, a run is judged on
            the queries of the collection that it answers.
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`.
        measures: with labels, names that ir-measures knows, or its measures; the first one decides.
        split: the split of the labels.
        output: folder for comparison.json, labels_wanted.tsv, runs and, with labels, the results of
            ``evaluate``; nothing is written without it.
        options: labels or none, samples, judgements of a file, pairs to label.
        search: how models that are named by strings are loaded and search.

    Returns:
        The ranking of the models and a verdict on each pair. It shows as a table in notebooks;
        ``to_frame()`` gives a pandas frame.

    Raises:
        InputError: If there are fewer than two models, one is named twice, the collection, a model,
            a run or a measure must be corrected, or ``output`` holds the results of another run.

    Example:
        >>> from beir_cocodr import CompareOptions, compare
        >>> comparison = compare(
        ...     ["bm25", "minilm"], "apidocs/numpy", options=CompareOptions(queries=20)
        ... )
        >>> comparison.pairs[0].verdict in ("better", "worse", "no difference", "cannot tell")
        True
    """
    check_options_type(options, CompareOptions)
    check_apart(output, dataset)
    check_options_type(search, SearchOptions, "search")
    if options.judgements is not None and options.labels:
        raise InputError(
            "models are judged by the labels of the split or by the judgements of a "
            "file, not by both: leave one out"
        )
    specs = resolve_models(models)
    task = ComparisonTask.of(measures, split, options)
    if len(specs) > 1 or options.judgements is None:
        _check_models(specs, options.against)
    check_device(search.encoder.device, specs.values())
    labels: Labels = "required" if options.labels else "optional"
    collection = load_collection(dataset, split, labels=labels)
    return compare_collection(specs, collection, task, output, search)


@dataclass(frozen=True)
class ComparisonTask:
    """The task of a comparison, apart from its models and its collection.

    Attributes:
        evaluation: measures, split, identical ids and number of queries.
        options: see :class:`CompareOptions`.
    """

    evaluation: EvaluationTask
    options: CompareOptions = CompareOptions()

    @classmethod
    def of(
        cls,
        measures: MeasureNames = DEFAULT_MEASURES,
        split: str = "test",
        options: CompareOptions = CompareOptions(),
    ) -> "ComparisonTask":
        """Return the task of unparsed measures."""
        evaluation = EvaluateOptions(identical_ids=options.identical_ids, queries=options.queries)
        return cls(EvaluationTask.of(measures, split, evaluation), options)

    @property
    def split(self) -> str:
        """Return the split that was asked for."""
        return self.evaluation.split


def _check_models(specs: Mapping[str, ModelSpec], against: str | None) -> None:
    if len(specs) < 2:
        raise InputError(f"a comparison needs two models, not {len(specs)}; name another")
    if against is not None and against not in specs:
        raise InputError(f"{against} is not one of the models {', '.join(specs)}")


def compare_collection(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: ComparisonTask,
    output: str | Path | None = None,
    search: SearchOptions = SearchOptions(),
    resources: Resources | None = None,
    gatherer: Gatherer | None = None,
) -> ComparisonRecord:
    """Compare resolved models on a loaded collection.

    Args:
        specs: label to model.
        collection: with or without labels.
        task: measures and options.
        output: folder for the results, None to write nothing.
        search: how models search, if there are no resources.
        resources: what the models share with other stages of a run.
        gatherer: of the same corpus, models and settings, where it is asked more than once.

    Returns:
        What comparison.json holds.
    """
    options = task.options
    search = search if resources is None else resources.options
    judged = _judged_queries(options, collection)
    if judged is not None and len(specs) == 1:
        [encoder] = specs.values()
        specs = uses_of(encoder, len(collection.documents))
        options = replace(options, against=options.against or encoder.name)
    _check_models(specs, options.against)
    labelled = bool(collection.qrels) and options.labels is not False and judged is None
    options = replace(options, labels=labelled)
    collection = with_asked(collection, options)
    grader = _grader(options, collection, judged, search)
    if output is not None:
        check_judgements_kept(output_path(output) / LABELS_FILE, options.judgements)
    calibration = _read_calibration(options)
    if not labelled:
        _check_label_free(specs, collection, task, judged)
    task = replace(task, options=options)
    with ExitStack() as stack:
        folder = None
        if output is not None:
            run = _settings(specs, collection, task, search)
            written = results_folder(output_path(output), run, options.overwrite)
            folder = stack.enter_context(written)
        if resources is None and gatherer is None:
            temporary = Resources.temporary(collection.documents, search, folder)
            resources = stack.enter_context(temporary)
        if resources is not None and labelled:
            findings, results = _compare_labelled(
                folder, specs, collection, task.evaluation, resources
            )
        else:
            gatherer = gatherer or _gatherer(specs, collection, options, resources)
            findings, results = _compare_label_free(
                gatherer, collection, folder, options, judged, calibration
            )
        searched = Searched(specs, collection, results, resources)
        findings, judge = _with_judge(findings, grader, searched, options, judged)
        candidates = _candidates(findings, results, collection, options, judged, gatherer)
        record = _record(
            findings, specs, collection, task, candidates, _shared(resources, gatherer), judge
        )
        if folder is not None:
            write_pairs(folder, candidates, judged)
            record.write(folder / COMPARISON_FILE)
    return record


def _read_calibration(options: CompareOptions) -> Calibration | None:
    """Read the user's calibration; None means the one of the package.

    Raises:
        InputError: labels judge, and there is a calibration or a generator, which are for verdicts
            without labels; the generator is a server and writes no questions; or the calibration
            cannot be read.
    """
    if options.labels and options.generator != LEXICAL_GENERATOR:
        raise InputError(
            f"generator {options.generator}: its questions are for verdicts without labels, and "
            "the models are judged by labels; add --no-labels, or leave the generator out"
        )
    is_local = options.generator.startswith(LOCAL_PREFIX)
    if options.questions == 0 and options.generator != LEXICAL_GENERATOR and not is_local:
        raise InputError(
            f"generator {options.generator}: without questions a server has nothing to do; raise "
            "--questions, or name a model that is loaded here, as hf:MODEL"
        )
    if options.calibration is None:
        return None
    if options.labels:
        raise InputError(
            f"{options.calibration}: a calibration is for verdicts without labels, and the models "
            "are judged by labels; add --no-labels, or leave the calibration out"
        )
    return Calibration.read(Path(options.calibration))


def _judged_queries(options: CompareOptions, collection: Collection) -> Judgements | None:
    """Return the judged queries of a file, None if none is named."""
    if options.judgements is None:
        return None
    judgements = load_judgements(Path(options.judgements))
    return judgements.of(collection.queries, collection.documents)


def best_rival(model: str, findings: Findings) -> str:
    """Return the best model whose difference from another one labels would tell."""
    others = [other for other in findings.ranking if other != model]
    verdicts = {}
    for pair in findings.pairs:
        if model in (pair.a, pair.b):
            verdicts[pair.b if pair.a == model else pair.a] = pair.verdict
    by_verdict = sorted(
        others,
        key=lambda other: (
            verdicts.get(other) != "cannot tell",
            verdicts.get(other) == "no difference",
        ),
    )
    return by_verdict[0]


def _candidates(
    findings: Findings,
    results: Mapping[str, Results],
    collection: Collection,
    options: CompareOptions,
    judged: Judgements | None,
    gatherer: Gatherer | None,
) -> AnnotationCandidates:
    """Choose pairs to label for the best model, or the reference, and its best open rival.

    A rival is open if no verdict sets it apart. If none is, it is the best other model that is not
    known to be as good. For a collection without queries, some are proposed.
    """
    a = options.against or findings.ranking[0]
    b = best_rival(a, findings)
    proposed = None
    if gatherer is not None and not collection.queries:
        proposed = gatherer.propose()
    return choose_pairs(
        (a, b),
        results,
        collection,
        options.wanted,
        labels=bool(options.labels),
        judged=judged,
        proposed=proposed,
    )


def with_asked(collection: Collection, options: CompareOptions) -> Collection:
    """Return the collection with the queries that people asked on the page.

    A query that the collection has already, by its text, is left out: it would count twice.
    """
    if options.asked is None:
        return collection
    if options.labels:
        raise InputError(
            f"{options.asked}: queries that were asked are for verdicts without labels, and the "
            "models are judged by labels; add --no-labels, or leave --asked out"
        )
    kept = load_asked(Path(options.asked))
    dataset = asked_dataset(Path(options.asked))
    if dataset is not None and Path(dataset).name != Path(collection.name).name:
        log.warning(
            "%s: the queries were asked of %s, and count as queries of %s",
            options.asked,
            dataset,
            collection.name,
        )
    asked = without_texts_of(collection.queries, kept)
    if len(asked) < len(kept):
        log.info(
            "%s: %d of the %d queries that were asked there are queries of %s already",
            options.asked,
            len(kept) - len(asked),
            len(kept),
            collection.name,
        )
    if len(asked) < FEWEST_QUERIES and not collection.queries:
        log.warning(
            "%s: %d queries were asked there; they count only when there are %d",
            options.asked,
            len(asked),
            FEWEST_QUERIES,
        )
        return collection
    log.info(
        "%s: %d queries that were asked there count as queries of %s",
        options.asked,
        len(asked),
        collection.name,
    )
    return replace(collection, queries=dict(collection.queries) | asked)


def _record(
    findings: Findings,
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: ComparisonTask,
    candidates: AnnotationCandidates,
    resources: Resources | None,
    judge: JudgeFindings | None,
) -> ComparisonRecord:
    searched = {label: spec for label, spec in specs.items() if spec.kind != RUN}
    by_name = contamination_statement(list(searched.values()), collection)
    statements = {label: by_name[spec.name] for label, spec in searched.items()}
    sharpened = {} if resources is None else resources.sharpened(searched)
    return ComparisonRecord(
        **vars(findings),
        dataset=collection.name,
        split=task.split,
        labels=bool(task.options.labels),
        documents=len(collection.documents),
        queries=len(collection.queries),
        corpus_sha256=collection.documents.content_hash,
        identical_ids=identical_ids(collection.name, task.options.identical_ids),
        models=list(specs),
        labels_wanted=candidates,
        seen=statements | _with_sharpening(statements, sharpened),
        versions=versions(),
        left_out=list(collection.documents.facts.left_out) or None,
        judge=judge,
    )


def _with_sharpening(
    statements: Mapping[str, ContaminationStatement],
    folders: Mapping[str, str],
) -> dict[str, ContaminationStatement]:
    """Return the statements of sharpened models, which also name the queries that moved vectors."""
    extended = {}
    for label, folder in folders.items():
        statement = statements[label]
        sentence = f"Its document vectors were sharpened by the generated queries of {folder}."
        extended[label] = replace(statement, sentences=[*statement.sentences, sentence])
    return extended


def _shared(resources: Resources | None, gatherer: Gatherer | None) -> Resources | None:
    """Return what the models share, which a gatherer that exists already has chosen."""
    return resources if gatherer is None else gatherer.resources


def _gatherer(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    options: CompareOptions,
    resources: Resources | None,
) -> Gatherer:
    assert resources is not None
    policy = identical_ids(collection.name, options.identical_ids)
    resources.name_specs(specs)
    return Gatherer(
        resources,
        list(specs),
        samples=options.samples,
        seed=options.seed,
        drop_identical_ids=policy == "drop",
        collection=collection,
        questions=_questions(options, resources.options),
    )


def _questions(options: CompareOptions, search: SearchOptions) -> QuestionOptions | None:
    """Return how a language model writes questions, None if none does."""
    if options.generator == LEXICAL_GENERATOR:
        return None
    return QuestionOptions(options.generator, options.questions, search.encoder.device)


def _check_label_free(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: ComparisonTask,
    judged: Judgements | None,
) -> None:
    """Check that models can be compared without labels; say so where labels were expected."""
    if judged is not None:
        warn_of_unanswered(specs.values(), judged.queries)
    for label, spec in specs.items():
        if spec.kind == RUN and not collection.queries and judged is None:
            raise InputError(
                f"{label} is a run, and {collection.name} has no queries that it could answer; "
                "give the collection its queries, or name a model"
            )
        if label == BM25 and spec.kind != BM25:
            raise InputError(
                "without labels, the label bm25 is that of BM25, with which models are compared; "
                "choose another label"
            )
        if spec.is_black_box:
            log.warning(
                "%s cannot search a changed corpus, so held-out crops do not count for it",
                label,
            )
    if task.options.labels is None and judged is None:
        log.warning(
            "%s has no judgements of split %r: the verdict is an estimate without labels",
            collection.name,
            task.split,
        )


def _grader(
    options: CompareOptions,
    collection: Collection,
    judged: Judgements | None,
    search: SearchOptions,
) -> Grader | None:
    """Return the judge, None if none is asked for; it needs queries to judge documents for."""
    if options.judge is None:
        return None
    if not collection.queries and judged is None:
        raise InputError(
            f"{collection.name} has no queries, and a judge grades documents for queries: write "
            "queries.jsonl, or judge some queries with beir-cocodr serve and give --judgements"
        )
    return load_grader(options.judge, search.encoder.device)


def _with_judge(
    findings: Findings,
    grader: Grader | None,
    searched: Searched,
    options: CompareOptions,
    judged: Judgements | None,
) -> tuple[Findings, JudgeFindings | None]:
    """Let a judge grade what the models found, and settle what it settles beside the labels."""
    if grader is None:
        return findings, None
    policy = identical_ids(searched.collection.name, options.identical_ids)
    if judged is None and options.labels:
        material = material_of_split(searched, options.judge_queries, policy == "drop")
    else:
        material = material_of_queries(searched, judged, options.judge_queries)
    judge = assess(grader, material)
    return settle(findings, judge), judge


def _settings(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: ComparisonTask,
    search: SearchOptions,
) -> Json:
    """Return what makes two comparisons the same run."""
    options = task.options
    settings: Json = {
        "command": "compare",
        "dataset": collection.name,
        "split": task.split,
        "models": [identity_of_model(spec) for spec in specs.values()],
        "measures": task.evaluation.measure_text,
        "labels": options.labels,
        "samples": options.samples,
        "seed": options.seed,
        "wanted": options.wanted,
        "against": options.against,
        "generator": options.generator,
        "questions": options.questions,
        "queries": options.queries,
        "identical_ids": identical_ids(collection.name, options.identical_ids),
        "search": search.describe(),
    }
    if options.judgements is not None:
        settings["judgements"] = file_sha256(judgements_file(options.judgements))
    if options.asked is not None:
        settings["asked"] = json_sha256(load_asked(Path(options.asked)))
    if options.calibration is not None:
        settings["calibration"] = file_sha256(Path(options.calibration))
    if options.judge is not None:
        judge = options.judge
        settings["judge"] = judge if isinstance(judge, str) else judge.identity
        settings["judge_queries"] = options.judge_queries
    return settings


def _compare_label_free(
    gatherer: Gatherer,
    collection: Collection,
    folder: Path | None,
    options: CompareOptions,
    judged: Judgements | None,
    calibration: Calibration | None,
) -> tuple[Findings, dict[str, Results]]:
    """Compare models by what the corpus tells, and by judged queries if there are some."""
    return compare_label_free(
        gatherer,
        collection,
        folder,
        options.queries,
        judged,
        options.against,
        calibration,
    )


def _compare_labelled(
    folder: Path | None,
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: EvaluationTask,
    resources: Resources,
) -> tuple[Findings, dict[str, Results]]:
    """Evaluate all models and rank them by the first measure.

    Returns:
        The findings, and label to the results of its run.
    """
    record, results = evaluate_into(folder, specs, collection, task, resources)
    measure = record.measures[0]
    value = {label: record.models[label].measures[measure] for label in specs}
    ranking = sorted(specs, key=lambda label: -value[label])
    best = ranking[0]
    tests = [test for test in record.comparisons if test.measure == measure]
    open_models = indistinguishable(best, tests)
    certainty = ", significantly."
    if open_models:
        certainty = f", but cannot be distinguished from {', '.join(open_models)}."
    reason = f"{best} has the highest {measure}, {value[best]:.4f}{certainty}"
    findings = Findings(
        ranking=ranking,
        best=Best(best, reason, open_models),
        measure=measure,
        evaluation=record,
        pairs=record.comparisons,
    )
    return findings, results
