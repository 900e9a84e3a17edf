"""The gate for continuous integration: is NEW worse than OLD by more than a margin?

OLD and NEW are mostly versions of one system, so that their lists are close. The gate asks both the
same queries, counts what NEW no longer finds, and estimates the difference in nDCG@10 by the rule
of :mod:`~beir_cocodr.evaluation.gate_rule`, whose error rates are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.collection import Collection, Dataset, check_apart, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.judgements import Judgements, judgements_file, load_judgements
from beir_cocodr.data.sources import Labels
from beir_cocodr.errors import SEED_MAX, InputError, check_name, check_options_type
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.few_labels import judged_scores, query_weights
from beir_cocodr.evaluation.gate_record import GATE_FILE, GateRecord
from beir_cocodr.evaluation.gate_rule import (
    CANNOT_TELL,
    GENERATED,
    JUDGED,
    LABELLED,
    NOT_WORSE,
    REAL,
    SPANS,
    WORSE,
    GateEvidence,
    assess,
    measured_rates,
)
from beir_cocodr.evaluation.gate_sides import (
    DEPTH,
    UNKNOWN,
    RunSide,
    Side,
    best_ten,
    open_side,
    with_settings,
)
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.contamination import Contamination, find_contamination
from beir_cocodr.evaluation.label_free.held_out_queries import hold_out_crops
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    IsKnown,
    PseudoQueries,
    lexical_queries,
)
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.io import file_sha256, output_path
from beir_cocodr.models.spec import EncoderOptions, Options, SearchOptions, check_device, option
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resolve import Model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.run_folder import results_folder

#: The exit status of each decision; 2 is bad input.
EXIT_STATUS = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}

#: The default margin in nDCG@10. It is half of 0.02, the loss that the rule was built to notice:
#: a loss of 0.02 is then as far from the margin as no loss at all.
MARGIN = 0.01

# Queries of the collection without labels that are asked; more add nothing to the distance.
_MOST_QUERIES = 1_000

_MEASURE = "nDCG@10"

# If more of a side's results are documents that the collection does not have, another corpus was
# searched, or passages of another size, and documents cannot be matched by their ids.
_MOST_UNKNOWN = 0.5

# The id of a document that the collection does not have; no id has a space.
_NOWHERE = "unknown document {}"


@dataclass(frozen=True)
class GateOptions(Options):
    """Options of a gate.

    Args:
        split: the split of the labels.
        labels: True insists on labels, False leaves those that exist aside; by default they are
            used where the split has some.
        judgements: a file of some judged queries, see
            :func:`~beir_cocodr.data.judgements.load_judgements`; the labels of the split are then
            not used.
        identical_ids: see :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        old: how the encoder of OLD alone is loaded; None fields are those of ``search``.
        new: how the encoder of NEW alone is loaded.
        overwrite: replace the results of another run in the output folder.
    """

    margin: float = option(
        MARGIN,
        "Fail if NEW is worse than OLD by more than this, in nDCG@10.",
        min=0,
        max=1,
    )
    samples: int = option(
        200, "Query both with this many spans of documents and as many generated queries.", min=10
    )
    seed: int = option(42, "Seed the choice of the queries with this number.", min=0, max=SEED_MAX)
    split: str = "test"
    labels: bool | None = None
    judgements: str | Path | None = None
    identical_ids: str = "auto"
    old: EncoderOptions = EncoderOptions()
    new: EncoderOptions = EncoderOptions()
    overwrite: bool = False


def gate(
    old: Model,
    new: Model,
    dataset: Dataset,
    *,
    output: str | Path | None = None,
    options: GateOptions = GateOptions(),
    search: SearchOptions = SearchOptions(),
) -> GateRecord:
    """Decide whether NEW is worse than OLD by more than a margin.

    Both are asked for spans of documents, for queries generated from documents, and for the
    collection's own queries. Documents stay as they are, so that stores and engines can be judged
    as they stand.

    Args:
        old: a store that ``encode`` wrote, the folder of an index in it, a run, or a model as for
            :func:`~beir_cocodr.evaluation.evaluate.evaluate`, such as a search engine over HTTP or
            an object with ``search``.
        new: the same; it need not be of the same kind.
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`, with or without
            labels.
        output: folder for gate.json; nothing is written without it.
        options: margin, number and seed of queries, labels, and settings of one side's encoder.
        search: how models that are named by strings are loaded and search.

    Returns:
        The decision with its evidence and the measured error rates of the rule.

    Raises:
        InputError: If the collection or a side must be corrected, two sides have no query in
            common, OLD returns nothing, a side returns mostly documents that the collection lacks,
            or ``output`` holds the results of another run.

    Example:
        >>> from beir_cocodr import GateOptions, gate
        >>> twenty = GateOptions(samples=20)
        >>> gate("minilm", "minilm", "apidocs/numpy", options=twenty).decision
        'not worse'
    """
    check_options_type(options, GateOptions)
    check_apart(output, dataset)
    check_options_type(search, SearchOptions, "search")
    for name, model in {"old": old, "new": new}.items():
        if isinstance(model, str | Path):
            check_name(name, model)
    if options.judgements is not None and options.labels:
        raise InputError(
            "a gate uses the labels of the split or the judgements of a file, not both: leave one "
            "out"
        )
    check_device(search.encoder.device)
    needs_labels: Labels = "required" if options.labels else "optional"
    collection = load_collection(dataset, options.split, labels=needs_labels)
    with ExitStack() as stack:
        folder = None
        if output is not None:
            run = _settings(old, new, collection, options, search)
            folder = stack.enter_context(
                results_folder(output_path(output), run, options.overwrite)
            )
        sides = _open_sides(old, new, collection.documents, options, search, stack)
        record = _decide(sides, collection, options)
        if folder is not None:
            record.write(folder / GATE_FILE)
    return record


@dataclass(frozen=True)
class _Sides:
    """Both sides, and a folder for intermediate files."""

    old: Side
    new: Side
    folder: Path

    @property
    def are_comparable(self) -> bool:
        """Return false if BM25 takes part in one side alone, which queries of documents favour."""
        both = {self.old.matches_words, self.new.matches_words}
        return both != {True, False}

    def search(
        self,
        queries: Mapping[str, str],
        documents: Documents,
        drop: bool,
    ) -> tuple[Ints, Ints]:
        """Return the (Q, 10) rows of the best documents of OLD, and of NEW."""
        ids = list(queries)
        of_old = best_ten(self.old.search(queries), ids, documents, drop)
        of_new = best_ten(self.new.search(queries), ids, documents, drop)
        return of_old, of_new


def _settings(
    old: Model,
    new: Model,
    collection: Collection,
    options: GateOptions,
    search: SearchOptions,
) -> Json:
    """Return what makes two gates the same run."""
    settings: Json = {"command": "gate", "dataset": collection.name, "search": search.describe()}
    settings |= {name: value for name, value in vars(options).items() if name != "overwrite"}
    settings |= {"old": str(old), "new": str(new)}
    settings |= {"set_old": options.old.describe(), "set_new": options.new.describe()}
    if options.judgements is not None:
        settings["judgements"] = file_sha256(judgements_file(options.judgements))
    return settings


def _open_sides(
    old: Model,
    new: Model,
    documents: Documents,
    options: GateOptions,
    search: SearchOptions,
    stack: ExitStack,
) -> _Sides:
    """Open both sides; they share encoders and embeddings if their settings are the same."""
    old_search = with_settings(search, options.old)
    new_search = with_settings(search, options.new)
    of_old = stack.enter_context(Resources.temporary(documents, old_search))
    of_new = of_old
    if new_search != old_search:
        of_new = stack.enter_context(Resources.temporary(documents, new_search))
    first = open_side(old, "OLD", of_old, options.old)
    second = open_side(new, "NEW", of_new, options.new, other=first)
    return _Sides(first, second, of_old.folder)


def _contamination(sides: _Sides, collection: Collection) -> Contamination:
    """Return what the encoders of both sides have seen of the corpus."""
    sharpened = {"old": sides.old.sharpened, "new": sides.new.sharpened}
    return find_contamination(
        {"old": sides.old.encoder, "new": sides.new.encoder},
        collection.documents.content_hash,
        collection.name,
        {side: folder for side, folder in sharpened.items() if folder},
    )


def _decide(sides: _Sides, collection: Collection, options: GateOptions) -> GateRecord:
    """Ask both sides, and decide."""
    documents = collection.documents
    drop = identical_ids(collection.name, options.identical_ids) == "drop"
    queries = _own_queries(sides, collection, options)
    contamination = _contamination(sides, collection)
    known = _known_queries(sides, documents, options, contamination.has)
    if not queries.texts and not known:
        raise InputError(_nothing_to_ask(sides, collection.name))
    evidence = []
    ranked = []
    for kind, pseudo in known.items():
        lists = sides.search(pseudo.queries, documents, drop)
        ranked.append(lists)
        evidence.append(_known_figures(sides, kind, pseudo, lists, contamination))
    unanswered = {}
    if queries.texts:
        of_old, of_new = sides.search(queries.texts, documents, drop)
        ranked.append((of_old, of_new))
        unanswered = {"old": _unanswered(of_old), "new": _unanswered(of_new)}
        distances = rank_distance(of_old, of_new)
        figures = queries.figures(distances, of_old, of_new, documents)
        evidence.append(figures)
    lists_of_old = [of_old for of_old, _ in ranked]
    _check_results(lists_of_old, sides.old)
    unknown = {
        "old": _unknown_share(lists_of_old),
        "new": _unknown_share([of_new for _, of_new in ranked]),
    }
    _check_known(unknown, sides, collection.name)
    missing = {"old": sides.old.missing, "new": sides.new.missing}
    lacks_documents = (missing["new"] or 0) > (missing["old"] or 0)
    assessment = assess(
        evidence,
        options.margin,
        lacks_documents=lacks_documents,
        is_cut=_are_cut(ranked),
    )
    decision = assessment.decide()
    return GateRecord(
        dataset=collection.name,
        split=options.split,
        documents=len(documents),
        old=sides.old.label,
        new=sides.new.label,
        margin=options.margin,
        decision=decision,
        exit_status=EXIT_STATUS[decision],
        estimate=assessment.estimate,
        interval=assessment.interval,
        probability_worse=assessment.probability_worse,
        loses_documents=assessment.loses_documents,
        evidence=evidence,
        missing=missing,
        unknown=unknown,
        labels=queries.are_judged,
        left_out=queries.left_out,
        unanswered=unanswered,
        is_unchanged=assessment.is_unchanged,
        loses_unasked_documents=assessment.loses_unasked_documents,
        rates=measured_rates(evidence),
    )


def _known_figures(
    sides: _Sides,
    kind: str,
    pseudo: PseudoQueries,
    lists: tuple[Ints, Ints],
    contamination: Contamination,
) -> GateEvidence:
    """Return the figures of queries whose document is known, with scores if these are fair."""
    of_old, of_new = lists
    distances = rank_distance(of_old, of_new)
    if not sides.are_comparable:
        return GateEvidence.of(kind, distances)
    scores = (pseudo.score(of_old), pseudo.score(of_new))
    remark = _rehearsed(kind, *scores, contamination)
    return GateEvidence.of(kind, distances, None if remark else scores, remark=remark)


def _are_cut(ranked: Sequence[tuple[Ints, Ints]]) -> bool:
    """Return true if the lists of NEW are those of OLD, and some of them end earlier."""
    is_same = all(bool(((of_new == of_old) | (of_new == -1)).all()) for of_old, of_new in ranked)
    return is_same and any(bool((of_new != of_old).any()) for of_old, of_new in ranked)


def _unanswered(rows: Ints) -> int:
    """Return for how many queries there is no result, of (Q, 10) rows."""
    return int((rows == -1).all(axis=1).sum())


def _check_results(lists: Sequence[Ints], old: Side) -> None:
    """Check that OLD returned something.

    Raises:
        InputError: It returned no document, and nothing can be lost against it.
    """
    if any((rows != -1).any() for rows in lists):
        return
    queries = sum(len(rows) for rows in lists)
    raise InputError(
        f"OLD ({old.label}) returned no document for any of {queries:,} queries, so NEW cannot be "
        "worse: check that its index holds documents, and where an engine's answers have their ids"
    )


def _unknown_share(lists: Sequence[Ints]) -> float:
    """Return the share of results that the collection does not have."""
    results = sum(int((rows != -1).sum()) for rows in lists)
    unknown = sum(int((rows == UNKNOWN).sum()) for rows in lists)
    return unknown / results if results else 0.0


def _check_known(unknown: Mapping[str, float], sides: _Sides, dataset: str) -> None:
    """Check that the collection has most of the documents that both sides return.

    Raises:
        InputError: A side searches another corpus, or passages of another size.
    """
    for role, label in (("old", sides.old.label), ("new", sides.new.label)):
        if unknown[role] > _MOST_UNKNOWN:
            raise InputError(
                f"{unknown[role]:.0%} of the results of {role.upper()} ({label}) are documents "
                f"that {dataset} does not have, and a gate matches documents by their ids: name "
                "the collection that both sides search, let an engine return its ids instead of "
                "its own numbers, or compare sizes of passages with compare --passages"
            )


def _known_queries(
    sides: _Sides, documents: Documents, options: GateOptions, is_known: IsKnown
) -> dict[str, PseudoQueries]:
    """Return queries whose document is known, by their kind; a run cannot be asked any.

    Args:
        sides: both sides.
        documents: the corpus.
        options: the number of queries and their seed.
        is_known: tells of a text whether a side was trained on it as a query.
    """
    if not (sides.old.answers_any and sides.new.answers_any):
        return {}
    drawn: dict[str, PseudoQueries] = {}
    for kind, draw in ((SPANS, _draw_spans), (GENERATED, lexical_queries)):
        folder = Path(mkdtemp(dir=sides.folder))
        pseudo = draw(documents, folder, options.samples, options.seed, is_known)
        if pseudo.texts:
            drawn[kind] = pseudo
    return drawn


def _rehearsed(
    kind: str,
    old_scores: Doubles,
    new_scores: Doubles,
    contamination: Contamination,
) -> str:
    """Return why a lead on queries of a kind is no evidence: one side alone was trained for them.

    To be behind in spite of such training is evidence.

    Args:
        kind: spans or generated queries.
        old_scores: (Q,) scores of OLD.
        new_scores: (Q,) scores of NEW.
        contamination: what "old" and "new" were trained on.
    """
    practised = contamination.practised_generated
    if kind == SPANS:
        practised = contamination.practised_spans
    lead = float((new_scores - old_scores).mean())
    leader, other = ("NEW", "OLD") if lead > 0 else ("OLD", "NEW")
    for practice, models in practised.items():
        if lead and leader.lower() in models and other.lower() not in models:
            return f"{leader} was {practice}, and {other} was not"
    return ""


def _draw_spans(
    documents: Documents,
    folder: Path,
    samples: int,
    seed: int,
    is_known: IsKnown,
) -> PseudoQueries:
    """Draw spans, which stay in their documents."""
    spans, _ = hold_out_crops(documents, folder, samples, seed, is_known)
    return spans


@dataclass(frozen=True)
class _OwnQueries:
    """Queries of the collection, and what judges them.

    Attributes:
        texts: query id to text.
        qrels: query id to document id to grade; empty without labels.
        judged: the judgements of a file, None without.
        left_out: queries that OLD, a run, does not have.
    """

    texts: dict[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    judged: Judgements | None
    left_out: int

    @property
    def are_judged(self) -> bool:
        """Return true if labels or judgements count."""
        return bool(self.qrels) or self.judged is not None

    def figures(
        self,
        distances: Doubles,
        of_old: Ints,
        of_new: Ints,
        documents: Documents,
    ) -> GateEvidence:
        """Return the figures of the queries, with scores if they are judged."""
        if not self.are_judged:
            return GateEvidence.of(REAL, distances)
        first = _results(of_old, self.texts, documents)
        second = _results(of_new, self.texts, documents)
        if self.judged is not None:
            scores = judged_scores(self.judged, [first, second])
            weights = query_weights(self.judged)
            return GateEvidence.of(
                JUDGED,
                distances,
                (scores[:, 0], scores[:, 1]),
                weights,
            )
        measures = parse_measures(_MEASURE)
        old_scores = score_queries(measures, self.qrels, first)[_MEASURE]
        new_scores = score_queries(measures, self.qrels, second)[_MEASURE]
        return GateEvidence.of(LABELLED, distances, (old_scores, new_scores))


def _results(rows: Ints, queries: Iterable[str], documents: Documents) -> Results:
    """Return query id to ranked documents; an unknown document has an id of its own."""
    known = sorted(set(rows[rows >= 0].tolist()))
    ids = dict(zip(known, documents.ids(known), strict=True))
    results: Results = {}
    for query, ranked in zip(queries, rows, strict=True):
        hits = []
        for rank, row in enumerate(ranked.tolist()):
            if row != -1:
                document = _NOWHERE.format(rank) if row == UNKNOWN else ids[row]
                hits.append((document, float(DEPTH - rank)))
        results[query] = hits
    return results


def _own_queries(sides: _Sides, collection: Collection, options: GateOptions) -> _OwnQueries:
    """Return the judged queries, or those of the collection, that both sides are asked."""
    if options.judgements is not None:
        judgements = load_judgements(Path(options.judgements))
        judged = judgements.of(collection.queries, collection.documents)
        ids = _asked(sides, judged.queries, f"judged queries of {options.judgements}")
        kept = {id: judged.queries[id] for id in ids}
        texts = {id: query.text or collection.queries[id] for id, query in kept.items()}
        left_out = len(judged.queries) - len(kept)
        return _OwnQueries(texts, {}, replace(judged, queries=kept), left_out)
    use_labels = bool(collection.qrels) and options.labels is not False
    candidates = collection.qrels if use_labels else collection.queries
    kind = LABELLED if use_labels else "queries"
    ids = _asked(sides, candidates, f"{kind} of {collection.name}")
    left_out = len(candidates) - len(ids)
    if not use_labels and len(ids) > _MOST_QUERIES:
        ids = spaced(ids, _MOST_QUERIES)
    texts = {id: collection.queries[id] for id in ids}
    qrels = {}
    if use_labels:
        qrels = {id: collection.qrels[id] for id in ids}
    return _OwnQueries(texts, qrels, None, left_out)


def _asked(sides: _Sides, queries: Iterable[str], kind: str) -> list[str]:
    """Return those of some queries that both sides are asked: where OLD is a run, those in it.

    A query that a run of NEW lacks is asked, and counts as one without results.

    Args:
        sides: both sides.
        queries: ids of queries.
        kind: what the queries are, for messages.

    Raises:
        InputError: There are queries, but a run answers none of them: it is one of other queries.
    """
    asked = list(queries)
    for role, side in (("OLD", sides.old), ("NEW", sides.new)):
        if not asked or not isinstance(side, RunSide):
            continue
        answered = [query for query in asked if query in side.results]
        if not answered:
            raise InputError(
                f"{role} ({side.label}) answers none of the {len(asked):,} {kind} that it would "
                "be asked: name a run of these queries, or the collection whose queries it answers"
            )
        if side is sides.old:
            asked = answered
    return asked


def _nothing_to_ask(sides: _Sides, dataset: str) -> str:
    """Return the message about a collection without queries of any kind."""
    nothing = f"there is no query to ask OLD and NEW: {dataset} has none"
    if sides.old.answers_any and sides.new.answers_any:
        return f"{nothing}, and its documents are too short to make queries of; add queries"
    return (
        f"{nothing}, and a run cannot answer generated ones; name the models or stores that made "
        "the runs"
    )
