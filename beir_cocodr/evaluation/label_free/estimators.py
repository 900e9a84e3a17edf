"""The table of estimators, which tell the better model without labels.

An estimator is a class with a row of :data:`ESTIMATORS`. A row of your own takes part in every
comparison without labels: its estimate is reported, and it counts in the verdict once the
calibration is fitted again with its features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beir_cocodr.arrays import Doubles
    from beir_cocodr.evaluation.label_free.evidence import Evidence

#: From fewer queries nothing is concluded.
FEWEST_QUERIES = 10

#: Names of estimators, under which the calibration knows their features.
CROPS = "held-out crops"
GENERATED = "generated queries"
MATCHED = "matched crops"
TITLES = "titles"
WRITTEN = "written questions"
MADE = "crops and titles"
LIKELIHOOD = "query likelihood"
SPECIFICITY = "specificity"
WITH_BM25 = "agreement with BM25"
WITH_FUSION = "agreement with the fusion"

#: Estimators whose feature rests on the queries of others: name to the names of these.
PARTS = {MADE: (CROPS, MATCHED, TITLES)}


class Estimator(ABC):
    """A way to tell, without labels, which of two models is better.

    A subclass says how it scores two models, and :meth:`objection` when that is no evidence.
    """

    def __init__(self, name: str) -> None:
        """Take the name of its row, which records and tables show."""
        self.name = name

    @abstractmethod
    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the (Q,) scores of models a and b for the same queries, higher for better."""

    def is_available(self, evidence: Evidence) -> bool:
        """Return false if the evidence has no queries of this estimator's kind at all."""
        return True

    def objection(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> str:
        """Return why the scores are no evidence for a pair of models, or "" if they are."""
        return ""

    def features(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> dict[str, float]:
        """Return what the calibration predicts a difference from; exchanging a and b negates it.

        By default this is the lead of b, and nothing where it is no evidence.
        """
        first, second = self.scores(evidence, a, b)
        if len(first) < FEWEST_QUERIES or self.objection(evidence, a, b):
            return {}
        return {self.name: float((second - first).mean())}


@dataclass(frozen=True)
class EstimatorRow:
    """An estimator with its facts: a row of :data:`ESTIMATORS`.

    Args:
        build: The ``module:object`` of a class or function that takes the name and returns an
            :class:`Estimator`.
        help: What it measures, one sentence for the documentation.
        citation: A BibTeX key of ``models/papers.bib``, a BibTeX entry, or "" for none.
    """

    build: str
    help: str
    citation: str = ""


_ESTIMATES = "beir_cocodr.evaluation.label_free.estimates"

#: The estimators of a comparison without labels, by name. Add a row of your own from a script.
ESTIMATORS: dict[str, EstimatorRow] = {
    CROPS: EstimatorRow(
        build=f"{_ESTIMATES}:held_out_crops",
        help="How well a model finds the documents that random spans were cut out of.",
        citation="lee2019ict",
    ),
    GENERATED: EstimatorRow(
        build=f"{_ESTIMATES}:generated_queries",
        help="How well a model finds the documents that queries were generated from.",
        citation="ma2021qgen",
    ),
    MATCHED: EstimatorRow(
        build=f"{_ESTIMATES}:matched_crops",
        help="How well a model finds the documents of crops that are as long as real queries.",
        citation="lee2019ict",
    ),
    TITLES: EstimatorRow(
        build=f"{_ESTIMATES}:titles",
        help="How well a model finds documents by their titles or headings, which they lose.",
    ),
    MADE: EstimatorRow(
        build="beir_cocodr.evaluation.label_free.made_queries:MadeQueries",
        help="How well a model finds the documents of all crops and titles, at the margins between "
        "first and tenth score that it has on real queries.",
    ),
    WRITTEN: EstimatorRow(
        build=f"{_ESTIMATES}:written_questions",
        help="How well a model finds the documents that a language model wrote questions about.",
        citation="dai2022promptagator",
    ),
    LIKELIHOOD: EstimatorRow(
        build=f"{_ESTIMATES}:QueryLikelihood",
        help="How relevant a model's first documents are to real queries, by how likely a language "
        "model finds the query after them.",
        citation="sachan2022upr",
    ),
    SPECIFICITY: EstimatorRow(
        build="beir_cocodr.evaluation.label_free.hubs:Specificity",
        help="How rarely what a model finds for a real query is also found for other queries.",
        citation="radovanovic2010hubs",
    ),
    WITH_BM25: EstimatorRow(
        build=f"{_ESTIMATES}:AgreementWithBM25",
        help="The share of BM25's ten best documents that a model finds.",
        citation="robertson2009bm25",
    ),
    WITH_FUSION: EstimatorRow(
        build=f"{_ESTIMATES}:AgreementWithFusion",
        help="The share of the ten best documents of a fusion of both models and BM25 that a "
        "model finds.",
        citation="cormack2009rrf",
    ),
}
