"""Single queries on the page: the choice of queries, with the rankings of all models."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from beir_cocodr.data.analyzers import Analyzer, snippet
from beir_cocodr.data.collection import Collection
from beir_cocodr.evaluation.runs import run_tops
from beir_cocodr.records import Json
from beir_cocodr.report.html.results_folder import Scores

log = logging.getLogger(__name__)

#: Documents of a ranking that are shown.
SHOWN = 10

#: Ranks down to which the place of a document is known.
KNOWN = 100

#: Characters of a snippet, a title and a query.
_SNIPPET = 180
_TITLE = 140
_QUERY = 400

#: Characters of one document's text on the page, and of all texts together.
_TEXT = 20_000
_TEXTS = 3_000_000


@dataclass(frozen=True)
class QueryRankings:
    """The rankings of all models, and what is known about the queries.

    Attributes:
        runs: label to its run file; models without one are left out.
        scores: scores of single queries, empty without labels.
        measures: the measures of the scores; the first one decides.
        names: label to the name that the page shows.
        collection: the collection, for texts and judgements, if it is at hand.
    """

    runs: Mapping[str, Path]
    scores: Scores
    measures: Sequence[str]
    names: Mapping[str, str]
    collection: Collection | None

    @property
    def labels(self) -> list[str]:
        """Return the labels of the models with a run."""
        return [label for label in self.names if label in self.runs]


@dataclass(frozen=True)
class DrillDown:
    """The queries that are shown.

    Attributes:
        data: the input of the page's script.
        included: number of queries that are shown.
        queries: number of all queries.
    """

    data: Json
    included: int
    queries: int


def drill_down(rankings: QueryRankings, pair: tuple[str, str], most: int) -> DrillDown | None:
    """Choose queries, and collect their rankings.

    Args:
        rankings: the rankings of all models.
        pair: labels of the two models that are shown first.
        most: the most queries that are shown.

    Returns:
        The queries, or None without a run of both models.
    """
    labels = rankings.labels
    if not set(pair) <= set(labels):
        return None
    spread = _spread(rankings, pair[0])
    chosen = chosen_queries(spread, most)
    if not chosen:
        return None
    shown_queries = set(chosen)
    tops = {label: run_tops(rankings.runs[label], KNOWN, shown_queries) for label in labels}
    _warn_of_missing_queries(rankings, tops, chosen)
    lists = {}
    ids: dict[str, None] = {}
    for query in chosen:
        lists[query] = [tops[label].get(query, ()) for label in labels]
        best_ids = _best(lists[query])
        ids.update(dict.fromkeys(best_ids))
    documents = _documents(list(ids), rankings.collection)
    queries = []
    for query in chosen:
        content = _query(
            query,
            lists[query],
            documents,
            rankings.collection,
        )
        content["scores"] = _scores(query, rankings)
        queries.append(content)
    data = _script_data(rankings, pair, queries, documents)
    return DrillDown(data, len(chosen), len(spread))


def _script_data(
    rankings: QueryRankings,
    pair: tuple[str, str],
    queries: list[Json],
    documents: Mapping[str, list[str]],
) -> Json:
    """Return the input of the page's script."""
    labels = rankings.labels
    collection = rankings.collection
    return {
        "measures": list(rankings.measures),
        "models": [rankings.names[label] for label in labels],
        "pair": [labels.index(label) for label in pair],
        "queries": queries,
        "documents": list(documents.values()),
        "shown": SHOWN,
        "known": KNOWN,
        "judged": collection is not None and bool(collection.qrels),
    }


def _scores(query: str, rankings: QueryRankings) -> list[list[float] | None]:
    """Return the scores of each model for a query, None for a model without scores."""
    scores: list[list[float] | None] = []
    for label in rankings.labels:
        values = rankings.scores.get(label, {}).get(query)
        rounded = None
        if values is not None:
            rounded = [round(value, 4) for value in values]
        scores.append(rounded)
    return scores


def _spread(rankings: QueryRankings, first: str) -> dict[str, float]:
    """Return query id to how much the models differ from the first one."""
    others = [label for label in rankings.labels if label != first]
    labels = [first, *others]
    if all(label in rankings.scores for label in labels):
        scores = [rankings.scores[label] for label in labels]
        return score_spread(scores)
    tops = [run_tops(rankings.runs[label], SHOWN) for label in labels]
    return list_spread(tops, SHOWN)


def score_spread(scores: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return query id to the largest difference of a model from the first, in the first measure."""
    first, *others = scores
    spread = {}
    for query, values in first.items():
        differences = [abs(other[query][0] - values[0]) for other in others]
        spread[query] = max(differences, default=0.0)
    return spread


def list_spread(tops: Sequence[Mapping[str, Sequence[str]]], depth: int) -> dict[str, float]:
    """Return query id to the largest share of the first model's best that another one misses.

    Args:
        tops: query id to the best documents, for each model.
        depth: documents of a list that count.
    """
    spread = {}
    queries = dict.fromkeys(chain.from_iterable(tops))
    for query in queries:
        best = [lists.get(query, ())[:depth] for lists in tops]
        first, *others = map(set, best)
        shared = [len(first & other) / depth for other in others]
        missing = [1 - share for share in shared]
        spread[query] = max(missing, default=0.0)
    return spread


def chosen_queries(spread: Mapping[str, float], most: int) -> list[str]:
    """Choose queries, half with the largest spread, half evenly spaced among the rest.

    Args:
        spread: query id to how much models differ, in the order of the collection.
        most: the most queries.

    Returns:
        The query ids, in the order of the collection.
    """
    queries = list(spread)
    if len(queries) <= most:
        return queries
    by_spread = sorted(queries, key=lambda query: -spread[query])
    half = (most + 1) // 2
    chosen = set(by_spread[:half])
    rest = [query for query in queries if query not in chosen]
    wanted = most - len(chosen)
    places = np.linspace(0, len(rest) - 1, wanted).round()
    for row in places.astype(int).tolist():
        chosen.add(rest[row])
    return [query for query in queries if query in chosen]


def _warn_of_missing_queries(
    rankings: QueryRankings, tops: Mapping[str, Mapping[str, object]], chosen: Sequence[str]
) -> None:
    """Warn of runs that lack queries which have a score above 0."""
    for label, of_model in tops.items():
        scores = rankings.scores.get(label, {})
        missing = []
        for query in chosen:
            has_score = any(scores.get(query, ()))
            if query not in of_model and has_score:
                missing.append(query)
        if missing:
            log.warning(
                "%s is not complete: it has no document for %d of the shown queries that score "
                "above 0, such as %r",
                rankings.runs[label],
                len(missing),
                missing[0],
            )


def _best(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the documents of a query that are shown, of all models, each once."""
    shown_ids = chain.from_iterable(ranking[:SHOWN] for ranking in lists)
    return list(dict.fromkeys(shown_ids))


def _query(
    query: str,
    lists: Sequence[Sequence[str]],
    documents: Mapping[str, list[str]],
    collection: Collection | None,
) -> Json:
    """Return a query with its documents, for the page's script.

    Args:
        query: its id.
        lists: the ranking of each model.
        documents: id to the content of each document on the page.
        collection: the collection, if it is at hand.

    Returns:
        The query. With a collection, ``snippets`` has the best part of each document and
        ``matches`` the places of the query's words in its whole text: the first character of each
        word and the one behind it, alternating.
    """
    numbers = {id: number for number, id in enumerate(documents)}
    best_ids = _best(lists)
    ranks = []
    for ranking in lists:
        rank_of = {id: rank for rank, id in enumerate(ranking, 1)}
        ranks.append([rank_of.get(id, 0) for id in best_ids])
    grades: Mapping[str, int] = {}
    text = ""
    if collection is not None:
        grades = collection.qrels.get(query, {})
        text = _cut(collection.queries.get(query, ""), _QUERY)
    content: Json = {
        "id": query,
        "text": text,
        "documents": [numbers[id] for id in best_ids],
        "ranks": ranks,
        "grades": [grades.get(id) for id in best_ids],
        "relevant": sum(grade > 0 for grade in grades.values()),
    }
    if collection is not None:
        texts = [documents[id][2] for id in best_ids]
        _add_matches(content, text, texts)
    return content


def _add_matches(content: Json, query: str, texts: Sequence[str]) -> None:
    """Add the snippets of documents, and the places of a query's words, to the query's content."""
    analyzer = Analyzer("english")
    terms = analyzer(query)
    snippets = []
    matches = []
    for text in texts:
        best = snippet(text, query, analyzer, _SNIPPET)
        places_in_snippet = list(chain.from_iterable(best.matches))
        snippets.append([best.text, places_in_snippet])
        ends_of_words = [match[:2] for match in analyzer.matches(text, terms)]
        places_in_text = list(chain.from_iterable(ends_of_words))
        matches.append(places_in_text)
    content["snippets"] = snippets
    content["matches"] = matches


def _documents(ids: list[str], collection: Collection | None) -> dict[str, list[str]]:
    """Return id to [id, title, text] of each document; long texts are cut."""
    contents = {id: [id, "", ""] for id in ids}
    if collection is None or not ids:
        return contents
    even_share = _TEXTS // len(ids)
    most = max(_SNIPPET, min(_TEXT, even_share))
    rows = collection.documents.rows(ids)
    known_rows = rows[rows >= 0]
    for document in collection.documents.take(known_rows):
        id = document["_id"]
        title = _cut(document["title"], _TITLE)
        text = _cut(document["text"], most)
        contents[id] = [id, title, text]
    return contents


def _cut(text: str, most: int) -> str:
    """Return the beginning of a text on one line."""
    words = text[: 4 * most].split()
    line = " ".join(words)
    if len(line) <= most:
        return line
    beginning = line[: most - 1].rstrip()
    return f"{beginning}…"
