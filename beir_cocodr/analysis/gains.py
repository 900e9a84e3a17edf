"""Scores of models on several collections, from what `evaluate` wrote, and what one scores above
another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import read_per_query
from beir_cocodr.evaluation.results import EvaluationRecord


@dataclass(frozen=True)
class ModelScores:
    """One measure of models on collections.

    Attributes:
        scores: label of a model -> collection as the caller named it -> value.
        labels: name that a model was loaded by -> its label.
        per_query: label -> collection -> the file with its per-query scores, whether it is there or
        not.
    """

    measure: str
    scores: dict[str, dict[str, float]]
    labels: dict[str, str]
    per_query: dict[str, dict[str, Path]]

    def label(self, model: str) -> str:
        """The label of a model, given that or the name it was loaded by; ``InputError`` where it is
        in no file.
        """
        label = model if model in self.scores else self.labels.get(model)
        if label is None:
            raise InputError(f"no results file has {model!r}; they have {', '.join(self.scores)}")
        return label


def read_scores(files: Sequence[Path], datasets: Sequence[str], measure: str) -> ModelScores:
    """Read results.json files, one or more a collection; an InputError where one cannot be read or
    is none, is of another collection, lacks the measure, or has a model that an earlier file has on
    the same collection.

    Args:
        datasets: the collections; each file has to be of one of them. A folder may be named in
            another way.
        measure: as it stands in the files, such as nDCG@10.
    """
    scores: dict[str, dict[str, float]] = {}
    labels: dict[str, str] = {}
    per_query: dict[str, dict[str, Path]] = {}
    for file in files:
        try:
            report = EvaluationRecord.read(file)
        except InputError as error:
            raise InputError(
                f"{file} cannot be read, or is no results.json of evaluate: {error}"
            ) from error
        dataset = next((name for name in datasets if _same(name, report.dataset)), None)
        if dataset is None:
            raise InputError(
                f"{file} is of {report.dataset!r}, which is none of {', '.join(datasets)}; leave it out, "
                "or name that collection too"
            )
        for label, record in report.models.items():
            if measure not in record.measures:
                raise InputError(
                    f"{file} has no measure {measure} of {label!r}, only {', '.join(record.measures)}"
                )
            if dataset in scores.setdefault(label, {}):
                raise InputError(f"{file}: {label!r} on {dataset!r} is in an earlier file too")
            scores[label][dataset] = record.measures[measure]
            labels.setdefault(record.model, label)
            per_query.setdefault(label, {})[dataset] = file.parent / str(record.per_query)
    return ModelScores(measure, scores, labels, per_query)


def _same(name: str, other: str) -> bool:
    return name == other or (
        Path(name).exists() and Path(other).exists() and Path(name).samefile(other)
    )


class Gains:
    """Differences of a second model to a first one, by label or loaded name; an InputError where
    ``results`` lack one. Without results no gain is known; all else is as for :func:`read_scores`.
    """

    def __init__(
        self,
        results: Sequence[Path],
        datasets: Sequence[str],
        measure: str,
        before: str,
        after: str,
    ) -> None:
        self.scores = read_scores(results, datasets, measure)
        self.labels = [self.scores.label(model) for model in (before, after)] if results else []

    def of(self, dataset: str) -> float | None:
        """The gain in the measure's mean; None unless both models are evaluated on the
        collection.
        """
        found = [
            scores[dataset]
            for label in self.labels
            if dataset in (scores := self.scores.scores[label])
        ]
        return found[1] - found[0] if len(found) == 2 else None

    def by_query(self, dataset: str) -> dict[str, float]:
        """The gain of every query that both models are evaluated on, from the files that `evaluate`
        wrote.
        """
        if self.of(dataset) is None:
            return {}
        files = [self.scores.per_query[label][dataset] for label in self.labels]
        first, second = (read_per_query(file, [self.scores.measure]) for file in files)
        return {
            query: second[query][0] - value for query, [value] in first.items() if query in second
        }
