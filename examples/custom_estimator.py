"""An estimator of your own: how far a model's best document stands out from the others.

An estimator is a class with a row of ESTIMATORS. Its estimate is then part of every comparison
without labels. It counts in the verdict after a refit, benchmarks/label_free_fitting.py:

python examples/custom_estimator.py --dataset apidocs/numpy --output runs/estimated
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from beir_cocodr import CompareOptions, compare
from beir_cocodr.arrays import Doubles
from beir_cocodr.evaluation.label_free.estimators import ESTIMATORS, Estimator, EstimatorRow
from beir_cocodr.evaluation.label_free.evidence import Evidence


class ScoreGap(Estimator):
    """How far a model's best document stands out from its tenth, in deviations of its scores."""

    def scores(self, evidence: Evidence, a: str, b: str) -> tuple[Doubles, Doubles]:
        """Return the (Q,) gaps of both models."""
        return self._gaps(evidence, a), self._gaps(evidence, b)

    def _gaps(self, evidence: Evidence, model: str) -> Doubles:
        scores = evidence.rankings[model].scores.astype(np.float64)  # (Q, k)
        deviations = scores.std(axis=1)
        tenth = min(9, scores.shape[1] - 1)
        gaps = scores[:, 0] - scores[:, tenth]
        safe = np.where(deviations > 0, deviations, 1.0)
        return np.where(deviations > 0, gaps / safe, 0.0)

    def objection(self, evidence: Evidence, a: str, b: str) -> str:
        """Return why models of different kinds cannot be compared: their scores differ in shape."""
        if evidence.kinds[a] == evidence.kinds[b]:
            return ""
        return "scores of models of different kinds are distributed differently"


def register() -> None:
    """Add the row."""
    ESTIMATORS["score gap"] = EstimatorRow(
        build=f"{__name__}:{ScoreGap.__name__}",
        help="How far the best document's score stands out from the tenth's.",
    )


def main() -> None:
    """Compare models without labels, and print what is said about each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="apidocs/numpy", help="a collection")
    parser.add_argument("--model", default="minilm", help="a dense encoder")
    parser.add_argument("--samples", type=int, default=300, help="crops, and generated queries")
    parser.add_argument("--output", type=Path, required=True, help="folder for comparison.json")
    options = parser.parse_args()
    register()
    record = compare(
        ["bm25", options.model],
        options.dataset,
        output=options.output,
        options=CompareOptions(labels=False, samples=options.samples),
    )
    for pair in record.estimated:
        print(f"{pair.b} against {pair.a}: {pair.verdict}; {pair.reason}")
        for estimate in pair.estimates:
            print(f"  {estimate.estimator}: {estimate.difference} {estimate.remark}")


if __name__ == "__main__":
    main()
