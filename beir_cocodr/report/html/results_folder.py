"""What a command has left in its output folder: records, trained models, scores of single queries,
and the collection that was judged, where it is at hand.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.sources import Labels
from beir_cocodr.errors import InputError, explained, listed
from beir_cocodr.evaluation.chains import BASE, Chain
from beir_cocodr.evaluation.compare import COMPARISON_FILE
from beir_cocodr.evaluation.evaluate import read_per_query
from beir_cocodr.evaluation.results import (
    AdaptationRecord,
    ComparisonRecord,
    EvaluationRecord,
    PairedTest,
)
from beir_cocodr.io import parse_json
from beir_cocodr.provenance import LOGGED, RECORD_FILE, TrainingRecord
from beir_cocodr.records import Record

log = logging.getLogger(__name__)

_CLUSTERS = "cluster_weights.jsonl"

#: Where rounds of one training lie.
_ROUNDS = ("episodes", "stages")

ADAPTATION, RESULTS, CURVES_FILE = "adapt.json", "results.json", "curves.json"


@dataclass(frozen=True)
class ClusterWeights(Record):
    """A line of cluster_weights.jsonl: the weight of every cluster at a step."""

    step: int
    weights: list[float]


@dataclass(frozen=True)
class CurvePoint:
    """What a target measures after a round."""

    model: str
    dataset: str
    measures: dict[str, float]


@dataclass(frozen=True)
class Trained:
    """A model that one of our commands has trained: its folder with the name, and the ``files``
    that were read.

    Attributes:
        record: its training.json.
        clusters: title to the lines of a cluster_weights.jsonl; one for each round that has one.
        curves: after every round, if targets were named.
        losses: title to (step, loss) of one round or of the whole, as they were logged.
    """

    name: str
    folder: Path
    record: TrainingRecord
    clusters: dict[str, list[ClusterWeights]]
    curves: list[CurvePoint]
    losses: dict[str, list[tuple[float, float]]]
    files: list[Path]


def trained_models(folder: Path) -> list[Trained]:
    """The model in ``folder`` itself and those in ``folder/models``, by name; an InputError where a
    training.json, cluster_weights.jsonl or curves.json cannot be read.
    """
    places = [folder, *sorted(path for path in (folder / "models").glob("*") if path.is_dir())]
    return [_trained(place) for place in places if (place / RECORD_FILE).is_file()]


def _trained(place: Path) -> Trained:
    record, name = TrainingRecord.read(place / RECORD_FILE), place.resolve().name
    logs: dict[str, Path] = {}
    for rounds in _ROUNDS:
        numbered = [path for path in (place / rounds).glob("*") if (path / _CLUSTERS).is_file()]
        for path in sorted(numbered, key=lambda path: (len(path.name), path.name)):
            logs[f"{name}, {rounds.removesuffix('s')} {path.name}"] = path / _CLUSTERS
    if not logs and (place / _CLUSTERS).is_file():  # after rounds, this is a copy of the last one's
        logs[name] = place / _CLUSTERS
    clusters = {title: lines for title, file in logs.items() if (lines := _lines(file))}
    curves = _curves(place / CURVES_FILE) if (place / CURVES_FILE).is_file() else []
    files = [place / RECORD_FILE, *logs.values(), *([place / CURVES_FILE] if curves else [])]
    return Trained(
        name, place, record, clusters, curves, _losses(record, place / RECORD_FILE), files
    )


def _losses(record: TrainingRecord, file: Path) -> dict[str, list[tuple[float, float]]]:
    """Of each round, where there are some, else of the whole."""
    details: Any = record.details
    what = f"{file}: {LOGGED} is no list of steps and losses"
    with explained(what, "train again", TypeError, ValueError, AttributeError):
        given = {
            f"{kind[:-1]} {n}": found
            for kind in _ROUNDS
            for n, found in enumerate(details.get(kind) or ())
        }
        logs = {title: found.get(LOGGED) for title, found in (given or {"loss": details}).items()}
        return {
            title: [(float(s), float(loss)) for s, loss in found]
            for title, found in logs.items()
            if found
        }


def _lines(file: Path) -> list[ClusterWeights]:
    lines: list[ClusterWeights] = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        with explained(
            f"{file}:{number}: no line of cluster weights", "take it away", ValueError, InputError
        ):
            line = ClusterWeights.from_json(parse_json(text), file)
            if not line.weights or len(line.weights) != len((lines or [line])[0].weights):
                raise ValueError("another number of clusters than in the line before")
        lines.append(line)
    return lines


def _curves(file: Path) -> list[CurvePoint]:
    what = f"{file} is not what training in rounds writes, a list of points"
    with explained(what, "train again", KeyError, ValueError, TypeError, AttributeError):
        points = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(points, list):
            raise TypeError("no list")
        return [CurvePoint(point.pop("model"), point.pop("dataset"), point) for point in points]


@dataclass(frozen=True)
class LabelledEvaluation:
    """What models were measured to be worth, whichever command did it.

    Attributes:
        results: the figures.
        reference: the label that the others are held against: the base of an adaptation, else the
        first.
    """

    results: EvaluationRecord
    reference: str

    @property
    def measure(self) -> str:
        """The measure that decides."""
        return self.results.measures[0]

    def test(
        self, a: str, b: str, measure: str | None = None, family: str | None = None
    ) -> PairedTest | None:
        """The paired test of b against a, turned round where it was made of a against b.

        Where several families have one, that of ``family`` is taken, else the first.
        """
        found = [
            test if test.b == b else test.turned()
            for test in self.results.comparisons
            if test.measure == (measure or self.measure) and {test.a, test.b} == {a, b}
        ]
        preferred = [test for test in found if test.family == family]
        return next(iter(preferred or found), None)

    def value(self, label: str) -> float:
        """A model's figure in the measure that decides."""
        return self.results.models[label].measures[self.measure]


@dataclass(frozen=True)
class ResultsFolder:
    """The files of an output folder, read.

    Attributes:
        adaptation, comparison, results: adapt.json, comparison.json, results.json; None where there
            is none. Of an adaptation without labels the comparison is its own.
        trained: models with a training.json, in the folder itself or in ``models/``.
        files: what was read, as paths below the folder.
    """

    folder: Path
    adaptation: AdaptationRecord | None
    comparison: ComparisonRecord | None
    results: EvaluationRecord | None
    trained: list[Trained]
    files: list[Path]

    @property
    def candidates(self) -> dict[str, str]:
        """Label to model name, of an adaptation without labels; else nothing."""
        return self.adaptation.candidates if self.adaptation and self.adaptation.comparison else {}

    @property
    def chains(self) -> dict[str, Chain]:
        """Return label to chain of an adaptation without labels; else nothing."""
        return self.adaptation.chains if self.adaptation and self.adaptation.comparison else {}

    @cached_property
    def evaluation(self) -> LabelledEvaluation | None:
        """The evaluation: adapt's, else compare's, else evaluate's; None without labels."""
        results = self.results if self.adaptation is None and self.comparison is None else None
        if self.adaptation is not None and self.adaptation.results is not None:
            results = self.adaptation.results
        elif self.comparison is not None:
            results = self.comparison.evaluation
        if results is None:
            return None
        adapted = self.adaptation is not None and BASE in results.models
        return LabelledEvaluation(results, BASE if adapted else next(iter(results.models)))

    @property
    def judged(self) -> EvaluationRecord | ComparisonRecord | None:
        """The record of what was compared, with labels or without."""
        return self.comparison if self.evaluation is None else self.evaluation.results


def find_files(folder: Path) -> ResultsFolder:
    """Read what is there. An InputError: no such folder, nothing of ours in it, or a file that
    cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; name the --output folder of a command")
    adaptation = AdaptationRecord.read(file) if (file := folder / ADAPTATION).is_file() else None
    comparison = (
        ComparisonRecord.read(file) if (file := folder / COMPARISON_FILE).is_file() else None
    )
    results = EvaluationRecord.read(file) if (file := folder / RESULTS).is_file() else None
    evaluated = [adaptation and adaptation.results, comparison and comparison.evaluation, results]
    if any(record is not None and not record.models for record in evaluated):
        raise InputError(f"{folder}: an evaluation has no model; run the command again")
    if adaptation is not None and adaptation.results is None and adaptation.comparison is None:
        raise InputError(
            f"{folder / ADAPTATION}: has neither results nor a comparison; run adapt again"
        )
    trained = trained_models(folder)
    records = {ADAPTATION: adaptation, COMPARISON_FILE: comparison, RESULTS: results}
    files = [Path(name) for name, record in records.items() if record is not None]
    if not trained and not files:
        raise InputError(f"{folder} {_lack(folder)}")
    for model in trained:
        files += [file.relative_to(folder) for file in model.files]
    return ResultsFolder(
        folder,
        adaptation,
        (adaptation and adaptation.comparison) or comparison,
        results,
        trained,
        files,
    )


def _lack(folder: Path) -> str:
    if any(folder.glob("*.run")):
        return (
            f"holds runs but no {RESULTS}: judge them first, with "
            "beir-cocodr compare A.run B.run --dataset D --output O, and report O"
        )
    what = "is empty" if not any(folder.iterdir()) else "holds nothing that this command knows"
    return f"{what}; name the --output folder of evaluate, compare, adapt, quickstart or of a training command"


#: Label to query id to its scores, in the order of the measures.
Scores = dict[str, dict[str, list[float]]]


def per_query_scores(found: ResultsFolder, queries: Sequence[str] | None) -> Scores:
    """Read the scores of all models that have some left. An InputError: a file that is none of
    evaluate's, or two of different query sets.

    Those of run files are in the order of the collection, whose judged ``queries`` are given where
    it is at hand.
    """
    if found.evaluation is None:
        return {}
    scores: Scores = {}
    measures = found.evaluation.results.measures
    for label, result in found.evaluation.results.models.items():
        if result.per_query is not None:
            if (file := found.folder / result.per_query).is_file():
                scores[label] = read_per_query(file, measures)
            else:
                log.warning(
                    "%s is not there; the page has no scores of single queries by %s", file, label
                )
        elif result.scores is not None and queries is not None:
            values = [result.scores[measure] for measure in measures]
            if all(
                len(column) == len(queries) for column in values
            ):  # else the collection had others then
                scores[label] = dict(
                    zip(queries, map(list, zip(*values, strict=True)), strict=True)
                )
    for (label, first), (other, second) in pairwise(scores.items()):
        if differ := sorted(first.keys() ^ second.keys()):
            raise InputError(
                f"{found.folder}: {label} and {other} have scores of different queries ({listed(differ)}); "
                "evaluate them together"
            )
    return scores


def collection_texts(
    found: ResultsFolder, named: str | None, named_split: str | None
) -> tuple[Collection | None, str]:
    """Load the collection that a report is about, if it is here as it was then; else why it is not
    at hand. An InputError: a named collection or split cannot be loaded, or is another one than was
    judged.

    A collection on record is loaded if it is a local folder or file, or made from installed
    packages; what would have to come from elsewhere only if it is named, with its split, instead.
    """
    record = found.comparison or found.judged
    if record is None:
        return None, ""
    dataset, sha256 = named or record.dataset, record.corpus_sha256
    try:
        if named is None and not (dataset.startswith("apidocs/") or Path(dataset).exists()):
            raise InputError(f"name the collection with --dataset {dataset}")
        labels: Labels = "required" if named_split else "optional"
        collection = load_collection(dataset, named_split or record.split or "test", labels=labels)
        if sha256 is not None and (own := collection.documents.content_hash) != sha256:
            raise InputError(
                f"{dataset} is not the collection on record, or has changed since it was judged: its documents have "
                f"the hash {own[:12]}, on record is {sha256[:12]}"
            )
    except InputError as error:
        if named is not None or named_split is not None:
            raise
        return None, f"Titles and texts are left out: {error}."
    return collection, ""
