"""The query-document pairs whose labels would move a comparison most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.files import atomic_writer
from beir_cocodr.retrieval.ranking import Results

#: Ranks that the measure sees.
DEPTH = 10
#: Where they are written.
LABELS_FILE = "labels_wanted.tsv"
COLUMNS = ("query_id", "document_id", "weight", "rank_a", "rank_b", "query", "document")
_TEXT = 300


def labels_wanted(
    first: Results,
    second: Results,
    judged: Mapping[str, Mapping[str, int]] | None = None,
    count: int = 50,
) -> list[dict[str, Any]]:
    """The unjudged pairs that two rankings place most differently.

    The weight of a pair is by how much the difference of the two models' DCG@10 changes if its document turns
    out to be relevant: |1 / log2(1 + rank_a) − 1 / log2(1 + rank_b)|, 0 beyond rank 10. Among equal weights
    the queries come first on which the lists differ most, by the sum of their weights.

    Args:
        first, second: results of models a and b for the same queries.
        judged: qrels; pairs in them are left out.
        count: the most pairs.

    Returns:
        rows with ``query_id``, ``document_id``, ``weight``, ``rank_a``, ``rank_b`` (None beyond rank 10),
        the heaviest first.
    """
    rows: list[tuple[float, float, dict[str, Any]]] = []
    for query in dict.fromkeys([*first, *second]):
        ranks = [
            {document: rank for rank, (document, _) in enumerate(found.get(query, [])[:DEPTH], 1)}
            for found in (first, second)
        ]
        known = (judged or {}).get(query, {})
        weights = {
            document: abs(_discount(ranks[0].get(document)) - _discount(ranks[1].get(document)))
            for document in {**ranks[0], **ranks[1]}
            if document not in known
        }
        total = sum(weights.values())
        for document, weight in weights.items():
            if weight > 0:
                pair = {"query_id": query, "document_id": document, "weight": weight}
                pair |= {"rank_a": ranks[0].get(document), "rank_b": ranks[1].get(document)}
                rows.append((weight, total, pair))
    # Sums are rounded, as their last bits depend on the order of their terms.
    rows.sort(key=lambda row: (-row[0], -round(row[1], 12), row[2]["query_id"], row[2]["document_id"]))
    return [pair for _, _, pair in rows[:count]]


def with_texts(
    rows: list[dict[str, Any]], queries: Mapping[str, str], documents: Documents
) -> list[dict[str, Any]]:
    """The rows with the query and the beginning of the document, for whoever labels them."""
    found = documents.rows([row["document_id"] for row in rows])
    texts = {int(row): documents.take([int(row)])[0] for row in np.unique(found) if row >= 0}
    told = []
    for row, place in zip(rows, found.tolist(), strict=True):
        document = texts.get(place, {"title": "", "text": ""})
        text = f"{document['title']} {document['text']}".strip()
        told.append(row | {"query": queries.get(row["query_id"], ""), "document": text[:_TEXT]})
    return told


def write_labels_wanted(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows as TSV with a header; tabs and line ends in texts become spaces."""
    with atomic_writer(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        for row in rows:
            cells = ["" if row[name] is None else str(row[name]) for name in COLUMNS]
            file.write("\t".join(" ".join(cell.split()) for cell in cells) + "\n")


def _discount(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / float(np.log2(1 + rank))
