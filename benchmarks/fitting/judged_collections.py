"""Searched collections as labelled pairs: what is fitted, and what is counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from collecting.searched import Searched

from beir_cocodr.evaluation.label_free.estimates import LEXICAL, MIDDLE
from beir_cocodr.evaluation.label_free.estimators import (
    CROPS,
    GENERATED,
    LIKELIHOOD,
    MADE,
    MATCHED,
    SPECIFICITY,
    TITLES,
    WRITTEN,
)
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.likeness import figures_of
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    GIVEN_QUERIES,
    READ_QUERIES,
)
from fitting.labelled_pairs import LabelledPairs, pairs_of

REGIMES = (GIVEN_QUERIES, READ_QUERIES, CORPUS_ALONE)

#: The features of the calibration's models.
FEATURES = {
    GIVEN_QUERIES: (MADE, SPECIFICITY),
    READ_QUERIES: (MADE, LIKELIHOOD, SPECIFICITY),
    CORPUS_ALONE: (MADE,),
}

#: Evidence to the features that it gives; the fits without some show what each adds.
EVIDENCE: dict[str, tuple[str, ...]] = {
    "what usually wins alone": (),
    "crops": (CROPS,),
    "crops as long as real queries": (MATCHED,),
    "titles": (TITLES,),
    "generated queries": (GENERATED,),
    "written questions": (WRITTEN,),
    "agreement with BM25": (LEXICAL, MIDDLE),
    "query likelihood": (LIKELIHOOD,),
    "specificity": (SPECIFICITY,),
    "crops and titles at the margins of real queries": (MADE,),
    "these and written questions": (MADE, WRITTEN),
    "these and query likelihood": (MADE, LIKELIHOOD),
    "these, query likelihood and written questions": (MADE, LIKELIHOOD, WRITTEN),
    "these and specificity": (MADE, SPECIFICITY),
    "these, specificity and query likelihood": (MADE, SPECIFICITY, LIKELIHOOD),
}

#: Uses of an encoder that are counted, and further ones that take part in the fit.
COUNTED = ("bm25", "dense", "hybrid@0.5", "rm3", "vector", "feedback")
FITTED = (*COUNTED, "hybrid@0.2", "hybrid@1", "rrf")

#: Uses of models of a kind to which nothing is fitted.
NEW = ("splade", "colbert", "rerank")

#: The use of an encoder with which picks are compared.
FUSED = "hybrid@0.5"

# On a collection where BM25 reaches this, systems hardly differ.
_EASY = 0.9

# Documents and queries whose words are counted.
_LOOKED_AT = 500

#: Returns true for a pair of systems that is compared.
IsCompared = Callable[[str, str], bool]


@dataclass(frozen=True)
class JudgedCollection:
    """A labelled collection with all pairs of systems that were searched on it.

    Attributes:
        searched: What was searched.
        pairs: Regime to the pairs of undamaged systems.
        defects: Regime to the pairs of a system and the same with a defect.
    """

    searched: Searched
    pairs: dict[str, LabelledPairs]
    defects: dict[str, LabelledPairs]

    @classmethod
    def of(cls, searched: Searched) -> JudgedCollection:
        """Return the pairs of a collection."""
        undamaged = is_undamaged(searched)
        damaged = is_defect_of(searched)
        pairs = {}
        defects = {}
        for regime in REGIMES:
            evidence = searched.alone if regime == CORPUS_ALONE else searched.with_queries
            pairs[regime] = _pairs(searched, evidence, undamaged)
            defects[regime] = _pairs(searched, evidence, damaged)
        return cls(searched, pairs, defects)

    def of_new_kinds(self) -> LabelledPairs:
        """Return the pairs of a model of :data:`NEW` and a counted one, with queries."""
        return _pairs(self.searched, self.searched.with_queries, is_with_new_kind(self.searched))

    @property
    def name(self) -> str:
        """Return the collection's name."""
        return self.searched.name

    @property
    def is_easy(self) -> bool:
        """Return true if BM25 alone finds nearly everything."""
        return float(self.searched.scores["bm25"].mean()) >= _EASY

    def fitted(self, regime: str) -> LabelledPairs:
        """Return the pairs of the fit, with the features of the calibration."""
        return with_features(self.pairs[regime], FEATURES[regime])

    def counted(self, regime: str) -> LabelledPairs:
        """Return the pairs that are counted, with all features."""
        pairs = self.pairs[regime]
        uses = {name: use_of(self.searched, name) for name in self.searched.systems}
        rows = [uses[a] in COUNTED and uses[b] in COUNTED for a, b in pairs.models]
        return pairs.take(np.array(rows, bool))


def use_of(searched: Searched, name: str) -> str:
    """Return how a system uses its encoder, with BM25's weight in a fusion."""
    system = searched.systems[name]
    if system.use == "hybrid":
        return f"hybrid@{system.weight:g}"
    return system.use


def is_undamaged(searched: Searched) -> IsCompared:
    """Return the pairs of systems without a defect, of one encoder or of one use."""
    systems = searched.systems

    def is_compared(a: str, b: str) -> bool:
        if systems[a].is_defect or systems[b].is_defect:
            return False
        uses = {use_of(searched, a), use_of(searched, b)}
        if not uses <= set(FITTED):
            return False
        encoders = {systems[a].encoder, systems[b].encoder} - {""}
        return len(encoders) < 2 or len(uses) == 1

    return is_compared


def is_with_new_kind(searched: Searched) -> IsCompared:
    """Return the pairs of a model of :data:`NEW` and a counted one without a defect."""
    systems = searched.systems

    def is_compared(a: str, b: str) -> bool:
        if systems[a].is_defect or systems[b].is_defect:
            return False
        uses = {use_of(searched, a), use_of(searched, b)}
        return len(uses & set(NEW)) == 1 and bool(uses & set(COUNTED))

    return is_compared


def is_defect_of(searched: Searched) -> IsCompared:
    """Return the pairs of a system and the same system with a defect."""
    systems = searched.systems

    def is_compared(a: str, b: str) -> bool:
        if systems[a].is_defect == systems[b].is_defect:
            return False
        same_encoder = systems[a].encoder == systems[b].encoder
        return same_encoder and use_of(searched, a) == use_of(searched, b)

    return is_compared


def with_features(pairs: LabelledPairs, names: Sequence[str]) -> LabelledPairs:
    """Return the pairs with some of their features."""
    features = []
    for values in pairs.features:
        features.append({name: values[name] for name in names if name in values})
    return replace(pairs, features=features)


def _pairs(searched: Searched, evidence: Evidence, is_compared: IsCompared) -> LabelledPairs:
    texts = searched.documents[:_LOOKED_AT]
    queries = list(evidence.queries.values()) if evidence.real else []
    figures = figures_of(len(searched.documents), texts, queries[:_LOOKED_AT], evidence)
    chosen = []
    for a, b in itertools.combinations(searched.systems, 2):
        if is_compared(a, b):
            chosen.append((a, b))
    return pairs_of(
        searched.name,
        searched.family,
        evidence,
        searched.scores,
        figures,
        chosen,
    )
