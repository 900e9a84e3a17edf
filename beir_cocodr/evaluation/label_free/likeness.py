"""Whether a collection is like those that the label-free rule was calibrated on."""

from collections.abc import Mapping, Sequence

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import words
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.label_free.evidence import BM25, Evidence
from beir_cocodr.evaluation.records import Interval, Likeness

#: The most documents, and queries, whose words are counted.
_LOOKED_AT = 500

#: Figures beyond which confidence is not carried, as factors (of counts) or as differences (of shares) from the
#: calibration's own least and greatest. How many documents there are matters least.
_FACTORS = {"documents": 10.0, "words a document": 1.5, "words a query": 1.5}
_SHARES = 0.05


def collection_figures(documents: Documents, evidence: Evidence) -> dict[str, float]:
    """What may make a rule wrong elsewhere: sizes, the script, and how much exact words tell.

    Words of queries are those of given ones; without queries they are left out.
    """
    texts = [f"{found['title']} {found['text']}" for found in documents.take(spaced_rows(len(documents), _LOOKED_AT))]
    queries = [evidence.queries[query] for query in spaced(evidence.queries, _LOOKED_AT)] if evidence.real else []
    scores = {"held-out crops": evidence.crops[BM25], "generated queries": evidence.generated[BM25]}
    return figures(len(documents), texts, queries) | {
        f"BM25's nDCG@10 on {name}": float(found.mean()) for name, found in scores.items() if len(found)
    }


def figures(documents: int, texts: Sequence[str], queries: Sequence[str]) -> dict[str, float]:
    """Sizes and script, from texts of documents and queries."""
    letters = [character for text in texts for character in text if character.isalpha()]
    found = {
        "documents": float(documents),
        "words a document": _mean_words(texts),
        "share of plain Latin letters": sum(map(str.isascii, letters)) / max(1, len(letters)),
    }
    return found | ({"words a query": _mean_words(queries)} if queries else {})


def _mean_words(texts: Sequence[str]) -> float:
    return sum(len(words(text)) for text in texts) / max(1, len(texts))


def compare_figures(found: Mapping[str, float], ranges: Mapping[str, Interval]) -> Likeness:
    """Hold a collection's figures against their ranges over the calibration, with some leeway."""
    remarks = []
    for name, value in found.items():
        if name not in ranges:
            continue
        low, high = ranges[name]
        least, most = low - _SHARES, high + _SHARES
        if name in _FACTORS:
            least, most = low / _FACTORS[name], high * _FACTORS[name]
        if not least <= value <= most:
            remarks.append(f"{name} {value:,.3g}, there {low:,.3g} to {high:,.3g}")
    return Likeness(dict(found), remarks)
