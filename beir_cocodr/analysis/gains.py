"""Scores that ``evaluate`` wrote of several models and collections, and gains between models."""

from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.analysis import Files, as_paths
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import read_per_query
from beir_cocodr.evaluation.measures import MeasureNames, parse_measures
from beir_cocodr.evaluation.results import EvaluationRecord


@dataclass(frozen=True)
class ModelScores:
    """One measure of models on collections.

    Attributes:
        measure: its name.
        scores: label of a model to collection, as the caller named it, to value.
        labels: the name that a model was loaded by, to its label.
        per_query: label to collection to the file of its per-query scores, which need not exist.
    """

    measure: str
    scores: dict[str, dict[str, float]]
    labels: dict[str, str]
    per_query: dict[str, dict[str, Path]]

    def label(self, model: str, role: str = "model") -> str:
        """Return the label of a model, from that label or the name that it was loaded by.

        Args:
            model: the label or the name.
            role: what the model is, for the message.

        Raises:
            InputError: No file has the model.
        """
        if model in self.scores:
            return model
        if model not in self.labels:
            raise InputError(
                f"{role} {model!r} is in no results file; they have {', '.join(self.scores)}"
            )
        return self.labels[model]

    def add(
        self,
        file: Path,
        dataset: str,
        report: EvaluationRecord,
    ) -> None:
        """Add the scores of a results.json.

        Raises:
            InputError: The file lacks the measure, or has a model that an earlier file has on the
                same collection.
        """
        for label, result in report.models.items():
            if self.measure not in result.measures:
                raise InputError(
                    f"{file} has no measure {self.measure} of {label!r}, only "
                    f"{', '.join(result.measures)}; evaluate again with that measure"
                )
            scores = self.scores.setdefault(label, {})
            if dataset in scores:
                raise InputError(
                    f"{file}: {label!r} on {dataset!r} is in an earlier file too; leave one out"
                )
            scores[dataset] = result.measures[self.measure]
            self.labels.setdefault(result.model, label)
            files = self.per_query.setdefault(label, {})
            files[dataset] = file.parent / str(result.per_query)


def single_measure(measure: MeasureNames) -> str:
    """Return the name of one measure, which may be an object of ir-measures.

    Raises:
        InputError: The measure is unknown, or there are several.
    """
    measures = parse_measures(measure)
    if len(measures) > 1:
        raise InputError(f"give one measure at a time, not {measure!r}; name one of them")
    return str(measures[0])


def read_scores(files: Files, datasets: list[str], measure: str) -> ModelScores:
    """Read one or several results.json files for each collection.

    Args:
        files: the files.
        datasets: the names of the collections; each file must be of one of them. A folder may be
            named in another way.
        measure: as the files have it, such as nDCG@10.

    Raises:
        InputError: A file cannot be read, is of another collection or lacks the measure, or two
            files have the same model and collection.
    """
    scores = ModelScores(measure, {}, {}, {})
    for file in as_paths(files):
        try:
            report = EvaluationRecord.read(file)
        except InputError as error:
            raise InputError(
                f"{file} cannot be read as a results.json of evaluate: {error}"
            ) from error
        dataset = next((name for name in datasets if _is_same(name, report.dataset)), None)
        if dataset is None:
            raise InputError(
                f"{file} is of {report.dataset!r}, which is not one of {', '.join(datasets)}; "
                "leave it out, or name that collection too"
            )
        scores.add(file, dataset, report)
    return scores


def _is_same(name: str, other: str) -> bool:
    if name == other:
        return True
    path = Path(name)
    return path.exists() and Path(other).exists() and path.samefile(other)


class Gains:
    """Differences in a measure between two models, by label or by the name they were loaded by.

    Without results no gain is known.

    Args:
        results: as for :func:`read_scores`.
        datasets: as for :func:`read_scores`.
        measure: as for :func:`read_scores`.
        before: the first model.
        after: the second model.

    Raises:
        InputError: The results lack one of the models; and as for :func:`read_scores`.
    """

    def __init__(
        self,
        results: Files,
        datasets: list[str],
        measure: str,
        before: str,
        after: str,
    ) -> None:
        """Read the results."""
        files = as_paths(results)
        self.scores = read_scores(files, datasets, measure)
        self.labels: list[str] = []
        if files:
            self.labels = [self.scores.label(before), self.scores.label(after)]

    def of(self, dataset: str) -> float | None:
        """Return the gain in the mean, None unless both models were evaluated on the collection."""
        values = [self.scores.scores[label].get(dataset) for label in self.labels]
        known = [value for value in values if value is not None]
        if len(known) < 2:
            return None
        before, after = known
        return after - before

    def of_all(self, datasets: list[str]) -> dict[str, float]:
        """Return the gains that are known, by collection."""
        gains = {dataset: self.of(dataset) for dataset in datasets}
        return {dataset: gain for dataset, gain in gains.items() if gain is not None}

    def by_query(self, dataset: str) -> dict[str, float]:
        """Return the gain of every query that both models were evaluated on."""
        if self.of(dataset) is None:
            return {}
        before, after = [self._query_scores(label, dataset) for label in self.labels]
        return {query: after[query] - before[query] for query in before if query in after}

    def _query_scores(self, label: str, dataset: str) -> dict[str, float]:
        file = self.scores.per_query[label][dataset]
        rows = read_per_query(file, [self.scores.measure])
        return {query: score for query, [score] in rows.items()}
