"""Overlap of the labels of training and test queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from beir_cocodr.errors import InputError

Qrels = Mapping[str, Mapping[str, int]]


class LabelOverlap(NamedTuple):
    """How many test queries share relevant passages with training queries.

    Attributes:
        grade: passages of the test query count from this grade on.
        minimum: so many of them must be relevant to a training query.
        overlapping: test queries for which that holds.
        queries: all test queries.
    """

    grade: int
    minimum: int
    overlapping: int
    queries: int

    @property
    def share(self) -> float:
        """Of all test queries, in 0..1."""
        return self.overlapping / self.queries if self.queries else 0.0


def label_overlap(train_qrels: Qrels, test_qrels: Qrels, minimum: int = 1) -> list[LabelOverlap]:
    """Test queries of which enough relevant passages are relevant to training queries, at every grade.

    A passage is relevant to a training query from grade 1 on.

    Args:
        train_qrels: training query id to {document id: grade}.
        test_qrels: test query id to {document id: grade}; all of them are counted, also those without a
            passage of the grade.
        minimum: 1, "any of its passages", is the rule that the paper states; 2, "more than one", the one
            that its published script applies.

    Returns:
        One row for every positive grade of the test judgements, the highest first.

    Raises:
        InputError: ``minimum`` below 1.

    Source: Zhan et al., 2022, section 3.2 and Table 3.
    """
    if minimum < 1:
        raise InputError(f"minimum is {minimum}: an overlap has at least one passage")
    seen = {document for grades in train_qrels.values() for document, grade in grades.items() if grade > 0}
    grades = sorted({grade for judged in test_qrels.values() for grade in judged.values() if grade > 0})
    shared = [
        [grade for document, grade in judged.items() if document in seen] for judged in test_qrels.values()
    ]
    return [
        LabelOverlap(
            least,
            minimum,
            sum(sum(grade >= least for grade in found) >= minimum for found in shared),
            len(test_qrels),
        )
        for least in reversed(grades)
    ]
