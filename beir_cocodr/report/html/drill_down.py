"""Single queries with the rankings of all models, as the page's script takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection
from beir_cocodr.report.html.chosen_queries import chosen_queries, list_spread, score_spread
from beir_cocodr.report.html.per_query import Scores
from beir_cocodr.report.html.run_tops import KNOWN, run_tops

#: Documents that are shown of a ranking.
SHOWN = 10
_TEXT, _TITLE, _QUERY = 180, 140, 400


@dataclass(frozen=True)
class DrillDown:
    """Attributes: data: for the script; shown, queries: how many of how many queries."""

    data: dict[str, Any]
    shown: int
    queries: int


def drill_down(
    runs: Mapping[str, Path],
    scores: Scores,
    measures: Sequence[str],
    pair: tuple[str, str],
    names: Mapping[str, str],
    collection: Collection | None,
    most: int,
) -> DrillDown | None:
    """Choose queries, and put their rankings together.

    Args:
        runs: label to the run file; models without one are left out.
        scores: of single queries; {} where nothing was judged.
        measures: of the scores, the first one decides.
        pair: (a, b), the models that are shown first.
        names: label to the name that is shown.
        collection: for texts and judgements, where it is at hand.
        most: queries that are shown.

    Returns:
        None without a run of both models of the pair.
    """
    labels = [label for label in names if label in runs]
    if not set(pair) <= set(labels):
        return None
    ordered = [pair[0], *(label for label in labels if label != pair[0])]
    if all(label in scores for label in ordered):
        spread = score_spread([scores[label] for label in ordered])
        chosen = chosen_queries(spread, most)
        tops = {label: run_tops(runs[label], set(chosen)) for label in labels}
    else:
        whole = {label: run_tops(runs[label], depth=SHOWN) for label in ordered}
        spread = list_spread([whole[label] for label in ordered], SHOWN)
        chosen = chosen_queries(spread, most)
        tops = {label: run_tops(runs[label], set(chosen)) for label in labels}
    if not chosen:
        return None
    documents: dict[str, int] = {}
    queries = [_query(query, labels, tops, scores, documents, collection) for query in chosen]
    data = {
        "measures": list(measures),
        "models": [names[label] for label in labels],
        "pair": [labels.index(label) for label in pair],
        "queries": queries,
        "documents": _documents(list(documents), collection),
        "shown": SHOWN,
        "known": KNOWN,
        "judged": collection is not None and bool(collection.qrels),
    }
    return DrillDown(data, len(chosen), len(spread))


def _query(
    query: str,
    labels: Sequence[str],
    tops: Mapping[str, Mapping[str, Sequence[str]]],
    scores: Scores,
    documents: dict[str, int],
    collection: Collection | None,
) -> dict[str, Any]:
    shown = dict.fromkeys(document for label in labels for document in tops[label].get(query, ())[:SHOWN])
    ranks = []
    for label in labels:
        place = {document: rank for rank, document in enumerate(tops[label].get(query, ()), 1)}
        ranks.append([place.get(document, 0) for document in shown])
    grades = collection.qrels.get(query, {}) if collection is not None else {}
    text = collection.queries.get(query, "") if collection is not None else ""
    return {
        "id": query,
        "text": _cut(text, _QUERY),
        "documents": [documents.setdefault(document, len(documents)) for document in shown],
        "ranks": ranks,
        "grades": [grades.get(document) for document in shown],
        "relevant": sum(grade > 0 for grade in grades.values()),
        "scores": [_rounded(scores.get(label, {}).get(query)) for label in labels],
    }


def _documents(ids: list[str], collection: Collection | None) -> list[list[str]]:
    """(id, title, beginning of the text) of each."""
    if collection is None or not ids:
        return [[id, "", ""] for id in ids]
    rows = collection.documents.rows(ids)
    found = collection.documents.take(rows[rows >= 0])
    texts = {document["_id"]: (document["title"], document["text"]) for document in found}
    return [
        [id, _cut(texts[id][0], _TITLE), _cut(texts[id][1], _TEXT)] if id in texts else [id, "", ""]
        for id in ids
    ]


def _cut(text: str, most: int) -> str:
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [round(value, 4) for value in values]
