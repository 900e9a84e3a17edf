"""Rankings for several kinds of queries at once, and the parts of each kind."""

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.evaluation.label_free.pseudo_queries import PseudoQueries
from beir_cocodr.evaluation.runs import RunRanker
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranker, Ranking

log = logging.getLogger(__name__)


def numbered_queries(
    sets: Mapping[str, PseudoQueries],
    apart_from: Iterable[str] = (),
) -> dict[str, str]:
    """Return the queries of several kinds by ids that differ.

    Args:
        sets: Kind to its queries.
        apart_from: Ids of real queries that are searched for with them; by default none. No id of
            these begins as those that are returned.
    """
    prefix = "made "
    real_ids = list(apart_from)
    while any(id.startswith(prefix) for id in real_ids):
        prefix = f"_{prefix}"
    numbered = {}
    for kind, queries in sets.items():
        for query, text in queries.queries.items():
            numbered[f"{prefix}{kind} {query}"] = text
    return numbered


def parts_of(
    ranking: Ranking,
    sets: Mapping[str, PseudoQueries],
    start: int,
) -> dict[str, Ranking]:
    """Return the ranking of each kind from the one of all queries, which begin at a number."""
    parts = {}
    for kind, queries in sets.items():
        parts[kind] = part_of(ranking, list(queries.queries), start)
        start += len(queries.texts)
    return parts


def part_of(
    ranking: Ranking,
    queries: list[str],
    start: int,
) -> Ranking:
    """Return the part of a ranking that begins at a number."""
    rows = slice(start, start + len(queries))
    return Ranking(queries, ranking.scores[rows], ranking.rows[rows])


def rank(
    ranker: Ranker,
    queries: dict[str, str],
    top_k: int,
) -> Ranking:
    """Return the ranking for some queries, which may be none."""
    if not queries:
        no_rows = np.full((0, top_k), -1, np.int64)
        return Ranking([], np.zeros((0, top_k), np.float32), no_rows)
    return ranker.search(queries, top_k)


def best_rows(
    ranking: Ranking,
    documents: Documents,
    depth: int,
    *,
    drop_identical_ids: bool,
) -> Ints:
    """Return the (Q, depth) best rows, without the document that has the query's id if dropped."""
    if not drop_identical_ids:
        return ranking.rows[:, :depth]
    identical = ranking.rows == documents.rows(ranking.queries)[:, None]
    rows = np.where(identical, -1, ranking.rows)
    order = np.argsort(rows < 0, axis=1, kind="stable")  # the others move up
    return np.take_along_axis(rows, order, axis=1)[:, :depth]


def no_results(queries: Mapping[str, str]) -> Ranking:
    """Return the ranking of a model that finds nothing for any query."""
    shape = (len(queries), 1)
    return Ranking(list(queries), np.zeros(shape, np.float32), np.full(shape, -1))


def describe_search(
    name: str,
    ranker: Ranker,
    ranking: Ranking,
    *,
    is_black_box: bool,
) -> Json:
    """Return the description of a ranker; for a black box with the queries that it did not answer.

    A warning says if it answered none. A run counts for itself what it lacks.

    Args:
        name: The model.
        ranker: Its ranker.
        ranking: Its ranking for the real queries, which may be none.
        is_black_box: True for a system of the user's own.
    """
    described = ranker.describe()
    count = len(ranking.queries)
    if not (is_black_box and count) or isinstance(ranker, RunRanker):
        return described
    lacking = int((ranking.rows < 0).all(axis=1).sum())
    if lacking == count:
        log.warning(
            "%s has no results for any of the %d queries that are searched for, such as %r: it "
            "counts as one that finds nothing; check that it answers these ids and texts",
            name,
            count,
            ranking.queries[0],
        )
    return described | {"queries_without_results": lacking}
