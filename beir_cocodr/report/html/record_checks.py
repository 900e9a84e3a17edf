"""The records of an output folder, and whether they agree with themselves."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import COMPARISON_FILE
from beir_cocodr.evaluation.gate_record import GATE_FILE, GateRecord
from beir_cocodr.evaluation.passage_sizes import PASSAGES_FILE, PassagesRecord
from beir_cocodr.evaluation.results import AdaptationRecord, ComparisonRecord, EvaluationRecord

ADAPTATION_FILE = "adapt.json"
PLAN_FILE = "plan.json"  # written at the start of an adaptation
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class Records:
    """The records of an output folder; those that it lacks are None."""

    adaptation: AdaptationRecord | None
    comparison: ComparisonRecord | None
    results: EvaluationRecord | None
    gate: GateRecord | None
    passages: PassagesRecord | None

    def files(self) -> list[str]:
        """Return the names of the files whose content the page shows.

        The record of an adaptation with labels has the content of results.json.
        """
        is_repeated = self.adaptation is not None and self.adaptation.results is not None
        by_file = {
            ADAPTATION_FILE: self.adaptation,
            COMPARISON_FILE: self.comparison,
            RESULTS_FILE: None if is_repeated else self.results,
            GATE_FILE: self.gate,
            PASSAGES_FILE: self.passages,
        }
        return [file for file, record in by_file.items() if record is not None]


def check_records(folder: Path, records: Records) -> None:
    """Check that each record has models, and speaks of no other models.

    Raises:
        InputError: a record has no results, no model, or names a model that it does not have.
    """
    adaptation = records.adaptation
    if adaptation is not None:
        file = folder / ADAPTATION_FILE
        if adaptation.results is None and adaptation.comparison is None:
            raise InputError(f"{file} has neither results nor a comparison; run adapt again")
        _check_adaptation(file, adaptation)
    if records.comparison is not None:
        _check_comparison(folder / COMPARISON_FILE, records.comparison)
    if records.results is not None:
        _check_evaluation(folder / RESULTS_FILE, records.results)


def _check_adaptation(file: Path, adaptation: AdaptationRecord) -> None:
    recommendation = adaptation.recommendation
    known = set(adaptation.candidates)
    if adaptation.results is not None:
        _check_evaluation(file, adaptation.results)
        known |= adaptation.results.models.keys()
    if adaptation.comparison is not None:
        _check_comparison(file, adaptation.comparison)
        _check_names(file, adaptation.candidates.values(), set(adaptation.comparison.models))
    _check_names(file, [recommendation.model, *recommendation.verdicts], known)


def _check_comparison(file: Path, comparison: ComparisonRecord) -> None:
    if comparison.evaluation is not None:
        _check_evaluation(file, comparison.evaluation)
    known = set(comparison.models)
    if not known:
        raise InputError(f"{file}: a comparison has no model; run the command again")
    _check_names(file, _compared_names(comparison), known)
    for name in comparison.models:
        if name not in comparison.ranking:
            raise InputError(f"{file}: the ranking lacks the model {name}; run the command again")


def _compared_names(comparison: ComparisonRecord) -> Iterator[str]:
    yield from comparison.ranking
    yield comparison.best.model
    yield from comparison.best.indistinguishable
    for pair in comparison.pairs:
        yield pair.a
        yield pair.b
    yield comparison.labels_wanted.a
    yield comparison.labels_wanted.b
    if comparison.judge is not None:
        for difference in comparison.judge.differences:
            yield difference.a
            yield difference.b


def _check_evaluation(file: Path, results: EvaluationRecord) -> None:
    if not results.models:
        raise InputError(f"{file.parent}: an evaluation has no model; run the command again")
    for test in results.comparisons:
        _check_names(file, (test.a, test.b), set(results.models))
    for label, result in results.models.items():
        missing = [name for name in results.measures if name not in result.measures]
        if missing:
            raise InputError(f"{file}: {label} has no {missing[0]}; run the command again")


def _check_names(file: Path, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(
                f"{file} names the model {name!r}, which is not one of {', '.join(sorted(known))}; "
                "run the command again"
            )
