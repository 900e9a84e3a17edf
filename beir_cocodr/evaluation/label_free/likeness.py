"""Likeness of a collection to those that the label-free rule was calibrated on."""

from collections.abc import Mapping, Sequence

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import words
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.results import Interval, Likeness
from beir_cocodr.models.spec import BM25

# The most documents, and queries, whose words are counted.
_LOOKED_AT = 500

# How far a figure may lie beyond its range over the calibration: counts by a factor, shares by a
# difference. The number of documents matters least.
_FACTORS = {
    "documents": 10.0,
    "words a document": 1.5,
    "words a query": 1.5,
}
_SHARE_MARGIN = 0.05


def collection_figures(documents: Documents, evidence: Evidence) -> dict[str, float]:
    """Return the figures of a collection that may make a rule wrong elsewhere.

    They are sizes, the script, and how much exact words help. Words of queries are those of the
    collection's own queries, and left out if it has none.
    """
    sample = documents.take(spaced_rows(len(documents), _LOOKED_AT))
    texts = [f"{document['title']} {document['text']}" for document in sample]
    queries = []
    if evidence.real:
        queries = [evidence.queries[query] for query in spaced(evidence.queries, _LOOKED_AT)]
    figures = text_figures(len(documents), texts, queries)
    scores = {
        "held-out crops": evidence.crops[BM25],
        "generated queries": evidence.generated[BM25],
    }
    for name, values in scores.items():
        if len(values):
            figures[f"BM25's nDCG@10 on {name}"] = float(values.mean())
    return figures


def text_figures(
    documents: int,
    texts: Sequence[str],
    queries: Sequence[str],
) -> dict[str, float]:
    """Return sizes and script, from texts of documents and queries."""
    letters = [character for text in texts for character in text if character.isalpha()]
    plain = sum(map(str.isascii, letters))
    figures = {
        "documents": float(documents),
        "words a document": _mean_words(texts),
        "share of plain Latin letters": plain / max(1, len(letters)),
    }
    if queries:
        figures["words a query"] = _mean_words(queries)
    return figures


def _mean_words(texts: Sequence[str]) -> float:
    return sum(len(words(text)) for text in texts) / max(1, len(texts))


def compare_figures(figures: Mapping[str, float], ranges: Mapping[str, Interval]) -> Likeness:
    """Compare a collection's figures with their ranges over the calibration, with some margin."""
    remarks = []
    for name, value in figures.items():
        if name not in ranges:
            continue
        low, high = ranges[name]
        if name in _FACTORS:
            least = low / _FACTORS[name]
            most = high * _FACTORS[name]
        else:
            least = low - _SHARE_MARGIN
            most = high + _SHARE_MARGIN
        if not least <= value <= most:
            remarks.append(f"{name} {value:,.3g}, there {low:,.3g} to {high:,.3g}")
    return Likeness(dict(figures), remarks)
