"""Likeness of a collection to those that the label-free rule was calibrated on."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import words
from beir_cocodr.evaluation.calibration import DifferenceModel, Spread
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.results import Likeness
from beir_cocodr.models.spec import BM25

# The most documents, and queries, whose words are counted.
_LOOKED_AT = 500

# Figures that are compared by their logarithms; the others are shares.
_COUNTS = ("documents", "words a document", "words a query")

# A figure beyond so many deviations from the mean is named.
_UNUSUAL = 2.0

# No figure is taken for known to less than this, so that one script is not infinitely far away.
_LEAST_DEVIATION = 0.1


def collection_figures(documents: Documents, evidence: Evidence) -> dict[str, float]:
    """Return the figures of a collection that may make a rule wrong elsewhere.

    They are sizes, the script, and how much exact words help. Words of queries are those of the
    collection's own queries, and left out if it has none.
    """
    count = len(documents)
    sample = documents.take(spaced_rows(count, _LOOKED_AT))
    texts = [f"{document['title']} {document['text']}" for document in sample]
    queries = []
    if evidence.real:
        sampled_ids = spaced(evidence.queries, _LOOKED_AT)
        queries = [evidence.queries[id] for id in sampled_ids]
    return figures_of(count, texts, queries, evidence)


def figures_of(
    documents: int,
    texts: Sequence[str],
    queries: Sequence[str],
    evidence: Evidence,
) -> dict[str, float]:
    """Return the figures of a collection from parts of its texts.

    Args:
        documents: The number of documents.
        texts: Texts of some documents.
        queries: Texts of some of the collection's own queries, none if it has none.
        evidence: What was seen of BM25.
    """
    figures = text_figures(documents, texts, queries)
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
    total = sum(len(words(text)) for text in texts)
    return total / max(1, len(texts))


def spread_figures(
    collections: Sequence[Mapping[str, float]],
    weights: Sequence[float],
) -> dict[str, Spread]:
    """Return the weighted mean and deviation of each figure over collections, where they have it.

    Counts are taken as logarithms. A deviation is at least :data:`_LEAST_DEVIATION`.
    """
    names = dict.fromkeys(name for figures in collections for name in figures)
    spreads = {}
    for name in names:
        values = []
        shares = []
        for figures, weight in zip(collections, weights, strict=True):
            if name in figures:
                values.append(_position(name, figures[name]))
                shares.append(weight)
        mean = float(np.average(values, weights=shares))
        squares = np.square(np.array(values) - mean)
        variance = float(np.average(squares, weights=shares))
        deviation = math.sqrt(variance)
        spreads[name] = Spread(mean, max(deviation, _LEAST_DEVIATION))
    return spreads


def _position(name: str, value: float) -> float:
    if name in _COUNTS:
        return math.log(max(value, 1.0))
    return value


def unlikeness(figures: Mapping[str, float], spreads: Mapping[str, Spread]) -> float:
    """Return the distance of a collection from those of the calibration.

    It is the root mean square of the figures in deviations from their mean, so that it is about 1
    for a collection of the calibration, and 0 without figures.
    """
    squares = [_deviations(name, value, spreads) ** 2 for name, value in figures.items()]
    mean = sum(squares) / max(1, len(squares))
    return math.sqrt(mean)


def _deviations(name: str, value: float, spreads: Mapping[str, Spread]) -> float:
    if name not in spreads:
        return 0.0
    spread = spreads[name]
    return (_position(name, value) - spread.mean) / spread.deviation


def compare_figures(figures: Mapping[str, float], spreads: Mapping[str, Spread]) -> Likeness:
    """Compare a collection's figures with those of the calibration, and name the unusual ones."""
    remarks = []
    for name, value in figures.items():
        deviations = _deviations(name, value, spreads)
        if abs(deviations) > _UNUSUAL:
            low, high = _usual_range(name, spreads[name])
            usual = f"there mostly {low:,.3g} to {high:,.3g}"
            remarks.append(f"{name} {value:,.3g}, {usual}")
    return Likeness(dict(figures), remarks, unlikeness(figures, spreads))


def describe_doubts(evidence: Evidence, model: DifferenceModel) -> list[str]:
    """Return why evidence of crops and titles counts for less on a corpus; none if it does not.

    Args:
        evidence: What was seen of the corpus.
        model: What its pairs are judged by.
    """
    if not model.doubt:
        return []
    doubts = []
    if evidence.lost_words > model.usual_loss:
        doubts.append(
            f"BM25's best documents contain {_fewer(evidence.lost_words)} fewer words of the "
            f"queries than of crops (usually at most {_fewer(model.usual_loss)})"
        )
    if evidence.nonletter_excess > model.usual_nonletters:
        doubts.append(
            "the share of digits and signs is larger in documents than in queries by "
            f"{evidence.nonletter_excess:.2f} (usually by at most {model.usual_nonletters:.2f})"
        )
    return doubts


def _fewer(log_ratio: float) -> str:
    return f"{1 - math.exp(-log_ratio):.0%}"


def _usual_range(name: str, spread: Spread) -> tuple[float, float]:
    low = spread.mean - _UNUSUAL * spread.deviation
    high = spread.mean + _UNUSUAL * spread.deviation
    if name in _COUNTS:
        return math.exp(low), math.exp(high)
    return max(low, 0.0), min(high, 1.0)
