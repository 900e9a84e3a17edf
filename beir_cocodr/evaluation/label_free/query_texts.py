"""Which queries people asked, and how their texts differ from those of documents."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set

import numpy as np

from beir_cocodr.arrays import Ints, spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.judgement_log import TYPED_PREFIX
from beir_cocodr.evaluation.label_free.estimators import FEWEST_QUERIES
from beir_cocodr.evaluation.label_free.pseudo_queries import share_of_words

log = logging.getLogger(__name__)

# Queries whose words are looked for, and their best documents that are looked at.
_SEARCHED = 100
_BEST = 3

# Documents and queries whose characters are counted, and the characters of each.
_COUNTED = 500
_CHARACTERS = 2_000


def asked_by_people(
    queries: Mapping[str, str],
    proposed: Set[str],
    proposed_texts: Set[str],
) -> dict[str, str]:
    """Return the queries that people asked; none if they are fewer than ten.

    From fewer nothing is concluded about what people ask.

    Args:
        queries: Id to text.
        proposed: Ids of queries that were drawn from proposed ones.
        proposed_texts: Texts that were proposed. A typed query with such a text was clicked.
    """
    asked = {}
    for id, text in queries.items():
        is_clicked = id.startswith(TYPED_PREFIX) and text in proposed_texts
        if id not in proposed and not is_clicked:
            asked[id] = text
    if len(asked) >= FEWEST_QUERIES:
        return asked
    if asked:
        log.info(
            "people asked %d queries; from fewer than %d nothing is concluded, so the evidence is "
            "that of the corpus alone",
            len(asked),
            FEWEST_QUERIES,
        )
    return {}


def held_words(
    queries: Sequence[str],
    rows: Ints,
    documents: Documents,
) -> float:
    """Return the mean share of a query's words that its three best documents hold.

    Args:
        queries: Q queries; at most 100 of them are looked at, evenly spaced.
        rows: (Q, k) rows of the documents, best first, -1 for no result.
        documents: The corpus.
    """
    shares = []
    for number in spaced_rows(len(queries), _SEARCHED).tolist():
        best = rows[number, :_BEST]
        for document in documents.take(best[best >= 0]):
            text = f"{document['title']} {document['text']}"
            share = share_of_words(queries[number], text)
            if share is not None:
                shares.append(share)
    return float(np.mean(shares)) if shares else 0.0


def nonletter_excess(queries: Sequence[str], documents: Documents) -> float:
    """Return by how much the share of characters that are no letters is larger in documents.

    Documents of code, tables or numbers have many digits and signs, which questions in prose do not
    repeat. What is cut out of such documents is found by its signs, and does not imitate questions.
    White space is not counted.

    Args:
        queries: The collection's own queries; at most 500 of them are looked at, evenly spaced.
        documents: The corpus; at most 500 documents are looked at.

    Returns:
        The mean share of the documents less that of the queries, between -1 and 1.
    """
    sample = documents.take(spaced_rows(len(documents), _COUNTED))
    in_documents = [_nonletters(f"{document['title']} {document['text']}") for document in sample]
    rows = spaced_rows(len(queries), _COUNTED).tolist()
    in_queries = [_nonletters(queries[row]) for row in rows]
    if not (in_documents and in_queries):
        return 0.0
    return float(np.mean(in_documents) - np.mean(in_queries))


def _nonletters(text: str) -> float:
    """Return the share of the characters of a text that are no letters, 0 for an empty one."""
    characters = "".join(text[:_CHARACTERS].split())
    if not characters:
        return 0.0
    return 1 - sum(map(str.isalpha, characters)) / len(characters)
