"""Estimates of how two models differ, from what was seen of them without labels, and whether a
collection is like those that the label-free rule was calibrated on.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Doubles, spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import words
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.label_free.evidence import Evidence, reciprocal_rank_fusion
from beir_cocodr.evaluation.measures import interval
from beir_cocodr.evaluation.results import Estimate, Interval, Likeness
from beir_cocodr.models.spec import BM25, ModelSpec
from beir_cocodr.retrieval.ranking import overlap

CROPS, GENERATED = "held-out crops", "generated queries"
WITH_BM25, WITH_FUSION = "agreement with BM25", "agreement with the fusion"
ESTIMATORS = (CROPS, GENERATED, WITH_BM25, WITH_FUSION)

#: From fewer queries nothing is concluded.
FEWEST_QUERIES = 10

# Beyond two standard deviations a larger effect says no more; one without any variance is infinite.
_LARGEST_EFFECT = 2.0


def kind(model: str) -> str:
    """How a model ranks: "bm25", "hybrid" (any other fusion and a hybrid encoder, too), "feedback"
    or "dense".
    """
    found = ModelSpec.parse(model).kind
    modules = Path(model) / "modules.json"
    if found == "dense" and modules.is_file() and _HYBRID_HEAD in modules.read_bytes():
        return "hybrid"
    return "hybrid" if found in ("rrf", "rm3", "vector") else found


# As in models/hybrid_encoder.py, which imports torch.
_HYBRID_HEAD = b"models.hybrid_encoder.HybridHead"


#: Kinds of models whose usual advantage over a dense encoder a calibration learns.
KINDS = ("bm25", "hybrid", "feedback")


def is_calibrated(model: str) -> bool:
    """Whether a calibration has models of this one's kind; of rerankers, SPLADE and ColBERT it has
    none.
    """
    return kind(model) in ("dense", *KINDS)


LEXICAL, MIDDLE = WITH_BM25, "between BM25 and none of it"


def features(evidence: Evidence, a: str, b: str) -> dict[str, float]:
    """What the difference of two models is estimated from; exchanging a and b changes every sign.

    The leads on held-out crops and generated queries (0 where they are no evidence, see
    :func:`estimate_pair`); the difference of s and of 4 s (1 − s), s a model's agreement with BM25,
    as crops and generated queries share words with their documents and flatter what matches words;
    and of each kind 1 if b is of it, −1 if a is.
    """
    spans, queries = _rehearsals(evidence, a, b)
    shares = [overlap(evidence.lists[m], evidence.lists[BM25]) for m in (a, b)]
    agreement = [float(found.mean()) if len(found) else 0.0 for found in shares]
    middle = [4 * share * (1 - share) for share in agreement]
    found = {
        CROPS: _lead(evidence.crops, a, b, spans),
        GENERATED: _lead(evidence.generated, a, b, queries),
        LEXICAL: agreement[1] - agreement[0],
        MIDDLE: middle[1] - middle[0],
    }
    return found | {f"is {name}": float(kind(b) == name) - float(kind(a) == name) for name in KINDS}


def _lead(scores: Mapping[str, Doubles], a: str, b: str, remark: str) -> float:
    enough = not remark and len(scores[a]) >= FEWEST_QUERIES
    return float((scores[b] - scores[a]).mean()) if enough else 0.0


def estimate_pair(evidence: Evidence, a: str, b: str) -> list[Estimate]:
    """All estimators for one pair of models; exchanging a and b changes the signs and nothing else.

    The fusion is that of BM25's list and both models' own, by reciprocal ranks, so that no other
    model has a part in it. Agreement with BM25 is no evidence between models of different kinds:
    one that has BM25 inside agrees with it in any case. Where just one of the two was trained to
    find documents of this corpus by spans, or on queries generated from it, its lead on crops, or
    on generated queries, is none either; to be behind is.
    """
    lists = evidence.lists
    reference = reciprocal_rank_fusion([lists[name] for name in sorted({a, b, BM25})])
    alike = kind(a) == kind(b)
    bm25 = (
        "" if alike else "one of the two is made of BM25, or they are made of it in different ways"
    )
    spans, queries = _rehearsals(evidence, a, b)
    return [
        _estimate(CROPS, evidence.crops[a], evidence.crops[b], spans),
        _estimate(GENERATED, evidence.generated[a], evidence.generated[b], queries),
        _estimate(WITH_BM25, overlap(lists[a], lists[BM25]), overlap(lists[b], lists[BM25]), bm25),
        _estimate(WITH_FUSION, overlap(lists[a], reference), overlap(lists[b], reference)),
    ]


def _rehearsals(evidence: Evidence, a: str, b: str) -> tuple[str, str]:
    """Why leads on held-out crops, and on generated queries, are no evidence; "" where they are."""
    known = evidence.contamination
    return (
        _rehearsed(evidence.crops, known.spans, "to find documents of this corpus by spans", a, b),
        _rehearsed(
            evidence.generated, known.generated, "on queries generated from this corpus", a, b
        ),
    )


def _rehearsed(
    scores: Mapping[str, Doubles], trained: Collection[str], how: str, a: str, b: str
) -> str:
    """Why a lead is no evidence, if it is that of the one model that was trained for it."""
    if (a in trained) == (b in trained) or not len(scores[a]):
        return ""
    lead = float((scores[b] - scores[a]).mean()) * (1 if b in trained else -1)
    return f"the one in front was trained {how}, the other was not" if lead > 0 else ""


def _estimate(estimator: str, first: Doubles, second: Doubles, remark: str = "") -> Estimate:
    count = len(first)
    if count < FEWEST_QUERIES:
        remark = remark or f"only {count} queries, and {FEWEST_QUERIES} are needed"
    difference = second - first
    return Estimate(
        estimator=estimator,
        a=float(first.mean()) if count else None,
        b=float(second.mean()) if count else None,
        difference=float(difference.mean()) if count else None,
        interval=interval(difference),
        effect=0.0 if remark else _effect(difference),
        wins=int((difference > 0).sum()),
        ties=int((difference == 0).sum()),
        losses=int((difference < 0).sum()),
        queries=count,
        applies=not remark,
        remark=remark,
    )


def _effect(difference: Doubles) -> float:
    mean, deviation = float(difference.mean()), float(difference.std(ddof=1))
    if mean == 0:
        return 0.0
    with np.errstate(divide="ignore"):
        return float(np.clip(np.float64(mean) / deviation, -_LARGEST_EFFECT, _LARGEST_EFFECT))


#: The most documents, and queries, whose words are counted.
_LOOKED_AT = 500

#: Figures beyond which confidence is not carried, as factors (of counts) or as differences (of
#: shares) from the calibration's own least and greatest. How many documents there are matters
#: least.
_FACTORS = {"documents": 10.0, "words a document": 1.5, "words a query": 1.5}
_SHARES = 0.05


def collection_figures(documents: Documents, evidence: Evidence) -> dict[str, float]:
    """What may make a rule wrong elsewhere: sizes, the script, and how much exact words tell.

    Words of queries are those of given ones; without queries they are left out.
    """
    texts = [
        f"{found['title']} {found['text']}"
        for found in documents.take(spaced_rows(len(documents), _LOOKED_AT))
    ]
    queries = (
        [evidence.queries[query] for query in spaced(evidence.queries, _LOOKED_AT)]
        if evidence.real
        else []
    )
    scores = {"held-out crops": evidence.crops[BM25], "generated queries": evidence.generated[BM25]}
    return figures(len(documents), texts, queries) | {
        f"BM25's nDCG@10 on {name}": float(found.mean())
        for name, found in scores.items()
        if len(found)
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
