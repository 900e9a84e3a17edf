"""An evaluation with labels, whichever command made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from beir_cocodr.evaluation.recommendation import BASE
from beir_cocodr.report.html.found_files import Found


@dataclass(frozen=True)
class Judgement:
    """What models were measured to be worth.

    Attributes:
        dataset, split: the collection.
        models: label to its record in results.json.
        tests: the paired tests, b against a.
        reference: the label that the others are held against: the base of an adaptation, else the first.
        measures: their names; the first one decides.
        results: the content of results.json.
    """

    dataset: str
    split: str | None
    models: dict[str, dict[str, Any]]
    tests: list[dict[str, Any]]
    reference: str
    measures: list[str]
    results: dict[str, Any]

    @property
    def measure(self) -> str:
        """The measure that decides."""
        return self.measures[0]

    def test(
        self, a: str, b: str, measure: str | None = None, family: str | None = None
    ) -> dict[str, Any] | None:
        """The paired test of b against a, turned round where it was made of a against b.

        Where several families have one, that of ``family`` is taken, else the first.
        """
        measure = measure or self.measure
        found = [
            test if test["b"] == b else _turned(test)
            for test in self.tests
            if test["measure"] == measure and {test["a"], test["b"]} == {a, b}
        ]
        preferred = [test for test in found if test["family"] == family]
        return next(iter(preferred or found), None)

    def value(self, label: str) -> float:
        """A model's figure in the measure that decides."""
        return float(self.models[label]["measures"][self.measure])


def judgement(found: Found) -> Judgement | None:
    """The evaluation of an output folder: adapt's, else compare's, else evaluate's; None without labels."""
    results = (found.adaptation or {}).get("results") or (found.comparison or {}).get("evaluation")
    if results is None and found.adaptation is None and found.comparison is None:
        results = found.results
    if results is None:
        return None
    models = results["models"]
    reference = BASE if found.adaptation is not None and BASE in models else next(iter(models))
    return Judgement(
        results["dataset"],
        results.get("split"),
        models,
        results["comparisons"],
        reference,
        list(models[reference]["measures"]),
        results,
    )


def _turned(test: dict[str, Any]) -> dict[str, Any]:
    interval = test["interval"]
    return test | {
        "a": test["b"],
        "b": test["a"],
        "difference": -test["difference"],
        "interval": None if interval is None else [-interval[1], -interval[0]],
        "wins": test["losses"],
        "losses": test["wins"],
    }
