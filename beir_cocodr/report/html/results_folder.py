"""The output folder of a command, read: records, trained models, scores of single queries."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.sources import Labels
from beir_cocodr.errors import InputError, explained, listed
from beir_cocodr.evaluation.chains import BASE, Chain
from beir_cocodr.evaluation.compare import COMPARISON_FILE
from beir_cocodr.evaluation.evaluate import read_per_query
from beir_cocodr.evaluation.gate_record import GATE_FILE, GateRecord
from beir_cocodr.evaluation.passage_sizes import PASSAGES_FILE, PassagesRecord
from beir_cocodr.evaluation.results import (
    AdaptationRecord,
    ComparisonRecord,
    EvaluationRecord,
    PairedTest,
)
from beir_cocodr.io import parse_json
from beir_cocodr.provenance import RECORD_FILE, TrainingRecord
from beir_cocodr.records import Record
from beir_cocodr.report.html.record_checks import (
    ADAPTATION_FILE,
    PLAN_FILE,
    RESULTS_FILE,
    Records,
    check_records,
)
from beir_cocodr.report.wording import without_settings

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)

CURVES_FILE = "curves.json"

_CLUSTERS_FILE = "cluster_weights.jsonl"

#: Folders of the rounds of a training, with the word for one round.
_ROUNDS = {"episodes": "episode", "stages": "stage"}

#: A series of (step, loss).
Losses = list[tuple[float, float]]


@dataclass(frozen=True)
class ClusterWeights(Record):
    """A line of cluster_weights.jsonl: the weight of every cluster at a step."""

    step: int
    weights: list[float]


@dataclass(frozen=True)
class LoggedRound:
    """A round in the details of a training.json: its logged losses."""

    logged_loss: Losses | None = None


@dataclass(frozen=True)
class LoggedTraining(Record):
    """The logged losses in the details of a training.json, of rounds or of the whole training."""

    logged_loss: Losses | None = None
    episodes: list[LoggedRound] | None = None
    stages: list[LoggedRound] | None = None


@dataclass(frozen=True)
class CurvePoint:
    """The measures of one target after a round."""

    model: str
    dataset: str
    measures: dict[str, float]


@dataclass(frozen=True)
class Trained:
    """A model that one of our commands trained.

    Attributes:
        name: name of its folder.
        folder: its folder.
        record: its training.json.
        clusters: title to the lines of a cluster_weights.jsonl; one for each round that has one.
        curves: measures after every round, if targets were named.
        losses: title to the logged losses, of each round or of the whole training.
        files: files that were read.
    """

    name: str
    folder: Path
    record: TrainingRecord
    clusters: dict[str, list[ClusterWeights]]
    curves: list[CurvePoint]
    losses: dict[str, Losses]
    files: list[Path]


def trained_models(folder: Path) -> list[Trained]:
    """Read the model in ``folder`` itself and those in ``folder/models``, by name.

    Raises:
        InputError: training.json, cluster_weights.jsonl or curves.json is damaged.
    """
    models = folder / "models"
    subfolders = sorted(path for path in models.glob("*") if path.is_dir())
    trained = []
    for path in (folder, *subfolders):
        record_file = path / RECORD_FILE
        if record_file.is_file():
            trained.append(_trained(path))
    return trained


def _trained(folder: Path) -> Trained:
    name = folder.resolve().name
    record_file = folder / RECORD_FILE
    record = TrainingRecord.read(record_file)
    files = [record_file]
    clusters = {}
    for title, file in _cluster_files(folder, name).items():
        files.append(file)
        lines = _cluster_weights(file)
        if lines:
            clusters[title] = lines
    curves = []
    curves_file = folder / CURVES_FILE
    if curves_file.is_file():
        curves = _curves(curves_file)
        if curves:
            files.append(curves_file)
    losses = _losses(record, record_file)
    return Trained(name, folder, record, clusters, curves, losses, files)


def _cluster_files(folder: Path, name: str) -> dict[str, Path]:
    """Return title to each file of cluster weights, of all rounds or of the whole training."""
    files: dict[str, Path] = {}
    for rounds, word in _ROUNDS.items():
        logs = (folder / rounds).glob(f"*/{_CLUSTERS_FILE}")
        # Numbers have no leading zeros: shorter ones come first.
        for file in sorted(
            logs,
            key=lambda file: (len(file.parent.name), file.parent.name),
        ):
            files[f"{name}, {word} {file.parent.name}"] = file
    # After rounds, the folder's own file is a copy of the last round's.
    if not files and (folder / _CLUSTERS_FILE).is_file():
        files[name] = folder / _CLUSTERS_FILE
    return files


def _cluster_weights(file: Path) -> list[ClusterWeights]:
    lines: list[ClusterWeights] = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        problem = f"{file}:{number}: the line has no cluster weights"
        with explained(problem, "delete the line", ValueError, InputError):
            line = ClusterWeights.from_json(parse_json(text), file)
            first = lines[0] if lines else line
            if not line.weights or len(line.weights) != len(first.weights):
                raise ValueError("the number of clusters is not that of the line before")
        lines.append(line)
    return lines


def _losses(record: TrainingRecord, file: Path) -> dict[str, Losses]:
    """Return title to the logged losses, of each round, else of the whole training."""
    details = LoggedTraining.from_json(record.details, file)
    logs: dict[str, Losses | None] = {}
    for word, rounds in (("episode", details.episodes), ("stage", details.stages)):
        for number, logged in enumerate(rounds or ()):
            logs[f"{word} {number}"] = logged.logged_loss
    if not logs:
        logs["loss"] = details.logged_loss
    return {title: points for title, points in logs.items() if points}


def _curves(file: Path) -> list[CurvePoint]:
    problem = f"{file} is not the list of points that training in rounds writes"
    with explained(problem, "train again", KeyError, ValueError, TypeError, AttributeError):
        points = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(points, list):
            raise TypeError("it contains no list")
        return [CurvePoint(point.pop("model"), point.pop("dataset"), point) for point in points]


@dataclass(frozen=True)
class LabelledEvaluation:
    """Models measured with labels, by any command.

    Attributes:
        results: the figures.
        reference: label of the model that the others are compared with: the base of an adaptation,
            else the first model.
    """

    results: EvaluationRecord
    reference: str

    @property
    def measure(self) -> str:
        """Return the measure that decides."""
        return self.results.measures[0]

    def test(
        self,
        a: str,
        b: str,
        measure: str | None = None,
        family: str | None = None,
    ) -> PairedTest | None:
        """Return the paired test of b against a, also if it was made of a against b.

        Args:
            a: label of a model.
            b: label of another model.
            measure: the measure. Default: the one that decides.
            family: the family of tests to prefer, if several have this test.
        """
        tests = []
        for test in self.results.comparisons:
            if test.measure == (measure or self.measure) and {test.a, test.b} == {a, b}:
                tests.append(test if test.b == b else test.turned())
        preferred = [test for test in tests if test.family == family]
        return next(iter(preferred or tests), None)

    def value(self, label: str) -> float:
        """Return a model's figure in the measure that decides."""
        return self.results.models[label].measures[self.measure]


@dataclass(frozen=True)
class ResultsFolder:
    """The files of an output folder, read.

    Attributes:
        folder: the folder.
        adaptation: adapt.json.
        comparison: comparison.json, or the comparison of an adaptation without labels.
        results: results.json.
        gate: gate.json.
        passages: passages.json.
        trained: models with a training.json, in the folder itself or in ``models/``.
        files: files that were read, as paths below the folder.
    """

    folder: Path
    adaptation: AdaptationRecord | None
    comparison: ComparisonRecord | None
    results: EvaluationRecord | None
    gate: GateRecord | None
    passages: PassagesRecord | None
    trained: list[Trained]
    files: list[Path]

    @property
    def candidates(self) -> dict[str, str]:
        """Return label to model name, of an adaptation without labels; else nothing."""
        if self.adaptation is None or self.adaptation.comparison is None:
            return {}
        return self.adaptation.candidates

    @property
    def chains(self) -> dict[str, Chain]:
        """Return label to chain, of an adaptation without labels; else nothing."""
        if self.adaptation is None or self.adaptation.comparison is None:
            return {}
        return self.adaptation.chains

    @cached_property
    def evaluation(self) -> LabelledEvaluation | None:
        """Return the evaluation with labels, by adapt, else by compare, else by evaluate."""
        if self.adaptation is not None and self.adaptation.results is not None:
            results = self.adaptation.results
            reference = BASE
            if BASE not in results.models:
                reference = next(iter(results.models))
            return LabelledEvaluation(results, reference)
        compared = self.results
        if self.comparison is not None:
            compared = self.comparison.evaluation
        if compared is None:
            return None
        return LabelledEvaluation(compared, next(iter(compared.models)))

    @property
    def judged(self) -> EvaluationRecord | ComparisonRecord | None:
        """Return the record of everything that was compared, with labels or without."""
        if self.evaluation is None:
            return self.comparison
        return self.evaluation.results

    @property
    def dataset(self) -> str | None:
        """Return the name of the collection, None for a training alone."""
        records = (self.judged, self.gate, self.passages)
        return next((record.dataset for record in records if record is not None), None)


def read_folder(folder: Path) -> ResultsFolder:
    """Read the output folder of a command.

    Raises:
        InputError: the folder does not exist, has no file of ours, or has a damaged one.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the --output folder of a command")
    records = Records(
        adaptation=_read(AdaptationRecord, folder / ADAPTATION_FILE),
        comparison=_read(ComparisonRecord, folder / COMPARISON_FILE),
        results=_read(EvaluationRecord, folder / RESULTS_FILE),
        gate=_read(GateRecord, folder / GATE_FILE),
        passages=_read(PassagesRecord, folder / PASSAGES_FILE),
    )
    check_records(folder, records)
    if records.adaptation is None and (folder / PLAN_FILE).is_file():
        log.warning(
            "%s has the %s of an adaptation but no %s: the adaptation has not ended (the same "
            "command with --resume ends it), or the file was removed; the page recommends nothing",
            folder,
            PLAN_FILE,
            ADAPTATION_FILE,
        )
    trained = trained_models(folder)
    files = [Path(file) for file in records.files()]
    if not trained and not files:
        raise InputError(f"{folder} {_lack(folder)}")
    for model in trained:
        files += [file.relative_to(folder) for file in model.files]
    comparison = records.comparison
    if records.adaptation is not None and records.adaptation.comparison is not None:
        comparison = records.adaptation.comparison
    return ResultsFolder(
        folder=folder,
        adaptation=records.adaptation,
        comparison=comparison,
        results=records.results,
        gate=records.gate,
        passages=records.passages,
        trained=trained,
        files=files,
    )


def _read(kind: type[R], file: Path) -> R | None:
    if file.is_file():
        return kind.read(file)
    return None


def _lack(folder: Path) -> str:
    """Return the end of the sentence that says why a folder cannot be reported."""
    if any(folder.glob("*.run")):
        return (
            f"contains runs but no {RESULTS_FILE}: judge them first, with "
            "beir-cocodr compare A.run B.run --dataset D --output O, and report O"
        )
    lack = "contains no results of a command" if any(folder.iterdir()) else "is empty"
    return (
        f"{lack}; name the --output folder of evaluate, compare, gate, adapt, quickstart or a "
        "training command"
    )


#: Label to query id to its scores, in the order of the measures.
Scores = dict[str, dict[str, list[float]]]


def per_query_scores(output: ResultsFolder, queries: Sequence[str] | None) -> Scores:
    """Read the scores of single queries, of all models that have some.

    Args:
        output: the output folder of a command.
        queries: the judged queries of the collection in its order, in which the scores of run files
            are recorded; None if the collection is not at hand.

    Raises:
        InputError: a file is not one of evaluate's, or two are about different queries.
    """
    if output.evaluation is None:
        return {}
    results = output.evaluation.results
    scores: Scores = {}
    for label, result in results.models.items():
        if result.per_query is not None:
            file = output.folder / result.per_query
            if file.is_file():
                scores[label] = read_per_query(file, results.measures)
            else:
                log.warning("%s is missing: the page shows no single queries of %s", file, label)
        elif result.scores is not None and queries is not None:
            columns = [result.scores[measure] for measure in results.measures]
            # Other lengths mean that the collection had other queries when it was judged.
            if all(len(column) == len(queries) for column in columns):
                rows = map(list, zip(*columns, strict=True))
                scores[label] = dict(zip(queries, rows, strict=True))
    for (label, first), (other, second) in pairwise(scores.items()):
        differing = sorted(first.keys() ^ second.keys())
        if differing:
            raise InputError(
                f"{output.folder}: {label} and {other} have scores of different queries "
                f"({listed(differing)}); evaluate them together"
            )
    return scores


def collection_texts(
    output: ResultsFolder, dataset: str | None, split: str | None
) -> tuple[Collection | None, str]:
    """Load the collection that a report is about, if it is at hand and unchanged.

    A recorded collection is loaded if it is a local folder or file, or made of installed packages.
    One that would have to be downloaded is loaded only if it is named.

    Args:
        output: the output folder of a command.
        dataset: a collection to use instead of the recorded one.
        split: a split to use instead of the recorded one.

    Returns:
        The collection, or None with the reason.

    Raises:
        InputError: the named collection or split cannot be loaded, or differs from the judged one.
    """
    record = output.comparison or output.judged
    if record is None:
        return None, ""
    name = dataset or record.dataset
    labels: Labels = "optional" if split is None else "required"
    try:
        if dataset is None and not _is_at_hand(name):
            raise InputError(f"name the collection with --dataset {name}")
        read_split = record.split or "test" if split is None else split
        collection = load_collection(name, read_split, labels=labels)
        _check_unchanged(name, collection, record.corpus_sha256)
    except InputError as error:
        if dataset is not None or split is not None:
            raise
        log.warning("the report leaves out titles and texts: %s", error)
        return None, f"Titles and texts are left out: {error}."
    return collection, ""


def _is_at_hand(dataset: str) -> bool:
    return dataset.startswith("apidocs/") or Path(without_settings(dataset)).exists()


def _check_unchanged(dataset: str, collection: Collection, sha256: str | None) -> None:
    if sha256 is None:
        return
    present = collection.documents.content_hash
    if present != sha256:
        raise InputError(
            f"{dataset} is not the recorded collection, or has changed since it was judged: its "
            f"documents have the hash {present[:12]}, and {sha256[:12]} is recorded"
        )
