"""The pairs of a query and a document that a comparison asks labels for, and their table."""

from collections.abc import Mapping
from pathlib import Path

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.judgements import (
    Judgements,
    load_judgements,
    write_annotation_candidates,
)
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.annotation import (
    LABELS_FILE,
    annotation_candidates,
    draw_candidates,
    with_texts,
)
from beir_cocodr.evaluation.label_free.gatherer import ProposedQueries
from beir_cocodr.evaluation.results import AnnotationCandidates
from beir_cocodr.retrieval.ranking import Results


def choose_pairs(
    models: tuple[str, str],
    results: Mapping[str, Results],
    collection: Collection,
    count: int,
    *,
    labels: bool,
    judged: Judgements | None = None,
    proposed: ProposedQueries | None = None,
) -> AnnotationCandidates:
    """Choose pairs of a query and a document to label, which tell two models apart.

    With labels, these are the unjudged pairs that the models place most differently. Without labels
    they are drawn by chance, after those that a table of judgements left blank; for a collection
    without queries they are drawn from proposed ones.

    Args:
        models: the labels of the two models.
        results: label to the results of a model.
        collection: the collection that was searched.
        count: the most pairs.
        labels: whether the labels of the collection judge the models.
        judged: judgements of a file.
        proposed: queries for a collection without any, with the models' results.
    """
    a, b = models
    texts = dict(collection.queries)
    if proposed is not None and {a, b} <= proposed.results.keys():
        texts |= proposed.queries
        results = _joined_results(results, proposed.results)
    if not results:
        return AnnotationCandidates(a, b, [], "the collection has no queries: write some first")
    if labels:
        pairs = annotation_candidates(results[a], results[b], collection.qrels, count)
    else:
        pairs = []
        begun: set[str] = set()
        if judged is not None:
            blank = [pair for pair in judged.rows if pair.judgement is None]
            pairs = blank[:count]
            begun = {pair.query_id for pair in pairs} | judged.queries.keys()
            texts |= {id: query.text for id, query in judged.queries.items()}
        pairs += draw_candidates(results, a, b, begun, count - len(pairs))
    remark = ""
    if not pairs:
        remark = "the two rank the same documents at the same ranks, or all are judged"
    elif proposed is not None:
        remark = (
            f"the collection has no queries, so these are {proposed.kind}; queries that people ask "
            "would tell more"
        )
    return AnnotationCandidates(a, b, with_texts(pairs, texts, collection.documents), remark)


def _joined_results(
    results: Mapping[str, Results],
    proposed: Mapping[str, Results],
) -> dict[str, Results]:
    """Return results for real and for proposed queries, of the models that have both."""
    return {model: {**results.get(model, {}), **proposed[model]} for model in proposed}


def write_pairs(
    folder: Path,
    wanted: AnnotationCandidates,
    judged: Judgements | None,
) -> None:
    """Write the table of pairs to label, with those that are judged already before them."""
    rows = [] if judged is None else judged.rows
    filled = [pair for pair in rows if pair.judgement is not None]
    write_annotation_candidates(folder / LABELS_FILE, [*filled, *wanted.pairs])


def check_judgements_kept(table: Path, judgements: str | Path | None) -> None:
    """Check that a table that will be written over holds no judgement that is not read first.

    Raises:
        InputError: If it does.
    """
    if not table.is_file() or (judgements is not None and table.samefile(judgements)):
        return
    try:
        held = load_judgements(table).queries
    except InputError:  # An earlier version wrote tables without such a column.
        return
    read = {}
    if judgements is not None:
        read = load_judgements(Path(judgements)).qrels
    lost = []
    for id, query in held.items():
        read_grades = read.get(id, {})
        if not query.grades.keys() <= read_grades.keys():
            lost.append(id)
    if lost:
        raise InputError(
            f"{table} contains judgements of {len(lost)} queries, and would be overwritten: name "
            "it with --judgements, or move it away"
        )
