"""The choice of query-document pairs whose labels would best separate two models."""

import math
from collections.abc import (
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.judgements import AnnotationCandidate
from beir_cocodr.io import text_sha256
from beir_cocodr.retrieval.ranking import Results

#: Ranks that the measure sees.
DEPTH = 10

#: The file that candidates are written to.
LABELS_FILE = "labels_wanted.tsv"

#: Pairs that are drawn for a query.
PER_QUERY = 10

# Characters of a document that an annotator is shown.
_BEGINNING = 300

# Added to the weight of every document before it is drawn, because the ideal ranking depends on
# the documents of all rankings.
_EVEN = 0.05

#: Document to the least and the greatest discount that a model gives it.
Pool = Mapping[str, tuple[float, float]]


def annotation_candidates(
    first: Results,
    second: Results,
    judged: Mapping[str, Mapping[str, int]] | None = None,
    count: int = 50,
) -> list[AnnotationCandidate]:
    """Return the unjudged pairs that two rankings place most differently, without their texts.

    The weight of a pair is by how much the difference of the two models' DCG@10 changes if its
    document turns out to be relevant: |1 / log2(1 + rank_a) - 1 / log2(1 + rank_b)|, and 0 beyond
    rank 10. Pairs of equal weight are ordered by their queries: those on which the rankings differ
    most come first, by the sum of their weights.

    Args:
        first: Results of model a.
        second: Results of model b for the same queries.
        judged: Judgements, whose pairs are left out.
        count: The most pairs.

    Returns:
        The pairs, the heaviest first.
    """
    weighted: list[tuple[float, AnnotationCandidate]] = []
    for query in dict.fromkeys([*first, *second]):
        known = (judged or {}).get(query, {})
        pairs = [
            pair
            for pair in _compared(query, _ranks(first, query), _ranks(second, query))
            if pair.document_id not in known
        ]
        total = sum(pair.weight for pair in pairs)
        weighted += [(total, pair) for pair in pairs if pair.weight > 0]
    weighted.sort(key=_by_weight)
    return [pair for _, pair in weighted[:count]]


def _by_weight(weighted: tuple[float, AnnotationCandidate]) -> tuple[float, float, str, str]:
    total, pair = weighted
    # Rounded, because the last bits of a sum depend on the order of its terms.
    return -pair.weight, -round(total, 12), pair.query_id, pair.document_id


def _compared(
    query: str,
    first: Mapping[str, int],
    second: Mapping[str, int],
) -> list[AnnotationCandidate]:
    """Return a pair for each document that one of two models ranks."""
    documents = {**first, **second}
    return [
        _pair(query, document, first.get(document), second.get(document)) for document in documents
    ]


def _pair(
    query: str,
    document: str,
    rank_a: int | None,
    rank_b: int | None,
) -> AnnotationCandidate:
    return AnnotationCandidate(
        query_id=query,
        document_id=document,
        judgement=None,
        weight=abs(_discount(rank_a) - _discount(rank_b)),
        rank_a=rank_a,
        rank_b=rank_b,
    )


def draw_candidates(
    results: Mapping[str, Results],
    a: str,
    b: str,
    judged: Container[str] = (),
    count: int = 50,
    seed: int = 42,
) -> list[AnnotationCandidate]:
    """Draw pairs to judge with known probabilities, more of them where the models differ.

    A query is drawn half evenly and half in proportion to how much the models' rankings differ for
    it: the range of a document's discount over the models, summed over documents. Ten documents are
    drawn from those that any model ranks among its ten best, in proportion to that range. A query
    comes with all its pairs, and every query and document keeps its random number: a later draw
    continues the same sample.

    Args:
        results: Results of all models. A query that a run of the two lacks is not drawn.
        a: The model whose ranks are written first.
        b: The model whose ranks are written second.
        judged: Queries that are judged already.
        count: The most pairs.
        seed: Seed of the random numbers.

    Returns:
        The pairs by query, in the order in which they were drawn; none if all rankings are equal.

    References:
        Ohlsson, 1998 (sequential Poisson sampling of queries, with permanent random numbers);
        Madow, 1949 (systematic sampling of documents, in proportion to size and exact in its
        probabilities).
    """
    queries = [query for query in results[a] if query in results[b]]
    pools = {query: _pool(results.values(), query) for query in queries}
    sizes = {query: _size(pool) for query, pool in pools.items()}
    total = sum(sizes.values())
    if not total:
        return []
    chances: dict[str, float] = {}
    for query, size in sizes.items():
        chances[query] = 0.5 / len(queries) + 0.5 * size / total
    left = [query for query in queries if query not in judged and pools[query]]
    left.sort(key=lambda query: (_uniform(seed, query) / chances[query], query))
    pairs: list[AnnotationCandidate] = []
    for query in left:
        drawn = _draw(pools[query], min(PER_QUERY, count), seed, query)
        if len(pairs) + len(drawn) > count:
            break
        ranks_a = _ranks(results[a], query)
        ranks_b = _ranks(results[b], query)
        for document, chance in drawn.items():
            pair = _pair(
                query,
                document,
                ranks_a.get(document),
                ranks_b.get(document),
            )
            pairs.append(
                replace(
                    pair,
                    query_probability=round(chances[query], 9),
                    document_probability=round(chance, 9),
                )
            )
    return pairs


def _pool(results: Iterable[Results], query: str) -> Pool:
    """Return the documents among some model's ten best, with their discounts' range."""
    runs = list(results)
    discounts: dict[str, list[float]] = {}
    for run in runs:
        for document, rank in _ranks(run, query).items():
            discounts.setdefault(document, []).append(_discount(rank))
    pool = {}
    for document, values in discounts.items():
        least = 0.0
        if len(values) == len(runs):
            least = min(values)
        pool[document] = (least, max(values))
    return pool


def _size(pool: Pool) -> float:
    return sum(high - low for low, high in pool.values())


def _draw(
    pool: Pool,
    count: int,
    seed: int,
    query: str,
) -> dict[str, float]:
    """Draw documents of a pool, and return the probability with which each was drawn."""
    chances = _inclusion_probabilities(pool, count)
    order = sorted(
        chances,
        key=lambda document: (_uniform(seed, query, document), document),
    )
    start = _uniform(seed, query, "")
    ends = np.cumsum([chances[document] for document in order]) + start
    places = np.concatenate([[start], ends])
    crossed = np.diff(np.floor(places + 1e-9))
    drawn = []
    for document, is_crossed in zip(order, crossed, strict=True):
        if is_crossed:
            drawn.append(document)
    drawn.sort(key=lambda document: -chances[document])
    return {document: chances[document] for document in drawn}


def _inclusion_probabilities(pool: Pool, count: int) -> dict[str, float]:
    """Return for each document the probability that it is among ``count`` drawn ones."""
    left: dict[str, float] = {}
    for document, (low, high) in pool.items():
        left[document] = high - low + _EVEN
    chances: dict[str, float] = {}
    while left:
        # Documents that are drawn in any case leave fewer places to the others.
        free = count - len(chances)
        scale = free / sum(left.values())
        scaled = {document: size * scale for document, size in left.items()}
        certain = [document for document, chance in scaled.items() if chance >= 1]
        if free >= len(left):
            certain = list(left)
        if certain:
            chances |= dict.fromkeys(certain, 1.0)
        else:
            chances |= scaled
        left = {document: size for document, size in left.items() if document not in chances}
    return chances


def _uniform(seed: int, *names: str) -> float:
    """Return a number between 0 and 1 that belongs to names permanently."""
    digits = text_sha256(str(seed), *names)[:13]
    return (int(digits, 16) + 0.5) / 16**13


def with_texts(
    pairs: Sequence[AnnotationCandidate],
    queries: Mapping[str, str],
    documents: Documents,
) -> list[AnnotationCandidate]:
    """Add the query and the beginning of the document to pairs, for whoever labels them."""
    rows = documents.rows([pair.document_id for pair in pairs])
    beginnings = {}
    for row in np.unique(rows).tolist():
        if row >= 0:
            document = documents.take([row])[0]
            text = f"{document['title']} {document['text']}".strip()
            beginnings[row] = text[:_BEGINNING]
    return [
        replace(
            pair,
            query=queries.get(pair.query_id, ""),
            document=beginnings.get(row, ""),
        )
        for pair, row in zip(pairs, rows.tolist(), strict=True)
    ]


def _ranks(results: Results, query: str) -> dict[str, int]:
    """Return the ranks of a query's ten best documents."""
    ranked = results.get(query, [])[:DEPTH]
    return {document: rank for rank, (document, _) in enumerate(ranked, 1)}


def _discount(rank: int | None) -> float:
    """Return the discount of DCG at a rank; 0 for a document that is not ranked."""
    if rank is None:
        return 0.0
    return 1 / math.log2(1 + rank)
