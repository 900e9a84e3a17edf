"""What a command has left in its output folder.

Trained models below an output folder, with what their training has left.

An evaluation with labels, whichever command made it.

The scores of single queries.

The first documents of every query of a run, without holding the whole run.

The collection that was judged, for the texts and judgements of the drill-down.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.recommendation import BASE

_RECORD, _CLUSTERS = "training.json", "cluster_weights.jsonl"

#: Where rounds of one training lie.
_ROUNDS = ("episodes", "stages")


@dataclass(frozen=True)
class Trained:
    """A model that one of our commands has trained.

    Attributes:
        name: of its folder.
        folder: where it is.
        record: its training.json.
        clusters: title to the lines of a cluster_weights.jsonl; one for each round that has one.
        files: what was read.
    """

    name: str
    folder: Path
    record: dict[str, Any]
    clusters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def trained_models(folder: Path) -> list[Trained]:
    """The model in ``folder`` itself and those in ``folder/models``, by name.

    Raises:
        InputError: a training.json or cluster_weights.jsonl that cannot be read.
    """
    places = [folder, *sorted(path for path in (folder / "models").glob("*") if path.is_dir())]
    return [_trained(place) for place in places if (place / _RECORD).is_file()]


def _trained(place: Path) -> Trained:
    try:
        record = json.loads((place / _RECORD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{place / _RECORD} cannot be read ({error}); train again, or take it away"
        ) from error
    if not isinstance(record, dict) or "stage" not in record:
        raise InputError(f"{place / _RECORD} is no record of a training: it has no stage")
    name = place.resolve().name
    logs: dict[str, Path] = {}
    for rounds in _ROUNDS:
        numbered = [path for path in (place / rounds).glob("*") if (path / _CLUSTERS).is_file()]
        for path in sorted(numbered, key=lambda path: (len(path.name), path.name)):
            logs[f"{name}, {rounds.removesuffix('s')} {path.name}"] = path / _CLUSTERS
    if not logs and (place / _CLUSTERS).is_file():  # after rounds, this is a copy of the last one's
        logs[name] = place / _CLUSTERS
    clusters = {title: lines for title, file in logs.items() if (lines := _lines(file))}
    return Trained(name, place, record, clusters, [place / _RECORD, *logs.values()])


def _lines(file: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            if not line["weights"] or len(line["weights"]) != len((lines or [line])[0]["weights"]):
                raise ValueError("another number of clusters than in the line before")
            lines.append({"step": int(line["step"]), "weights": [float(w) for w in line["weights"]]})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file}:{number}: no line of cluster weights ({error}); take it away"
            ) from error
    return lines


ADAPTATION, COMPARISON, RESULTS, CURVES = "adapt.json", "comparison.json", "results.json", "curves.json"

_KEYS = {
    ADAPTATION: ("recommendation", "models", "results"),
    COMPARISON: ("dataset", "labels", "pairs", "ranking", "best", "models"),
    RESULTS: ("dataset", "documents", "queries", "models", "comparisons"),
}

_COMMANDS = {ADAPTATION: "adapt", COMPARISON: "compare", RESULTS: "evaluate"}


@dataclass(frozen=True)
class Found:
    """The files of an output folder, read.

    Attributes:
        folder: the output folder.
        adaptation, comparison, results: content of adapt.json, comparison.json, results.json; None where
            there is none. Of an adaptation without labels the comparison is its own.
        trained: models with a training.json, in the folder itself or in ``models/``.
        curves: name of a model to the points of its curves.json.
        files: what was read, as paths below the folder.
    """

    folder: Path
    adaptation: dict[str, Any] | None
    comparison: dict[str, Any] | None
    results: dict[str, Any] | None
    trained: list[Trained]
    curves: dict[str, list[dict[str, Any]]]
    files: list[Path] = field(default_factory=list)


def find_files(folder: Path) -> Found:
    """Read what is there.

    Raises:
        InputError: no such folder, nothing of ours in it, or a file that cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; name the --output folder of a command")
    contents = {name: _content(folder / name, keys) for name, keys in _KEYS.items()}
    trained = trained_models(folder)
    curves = {
        model.name: points for model in trained if (points := _curves(model.folder / CURVES)) is not None
    }
    if not trained and not any(contents.values()):
        raise InputError(f"{folder} {_lack(folder)}")
    files = [Path(name) for name, content in contents.items() if content is not None]
    # An adaptation to a corpus without labels holds a comparison of its own.
    comparison = (contents[ADAPTATION] or {}).get("comparison") or contents[COMPARISON]
    for model in trained:
        files += [file.relative_to(folder) for file in model.files]
        if model.name in curves:
            files.append((model.folder / CURVES).relative_to(folder))
    return Found(folder, contents[ADAPTATION], comparison, contents[RESULTS], trained, curves, files)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        InputError: it is none.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); write it again, or take it away") from error


def _content(path: Path, keys: Sequence[str]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = read_json(path)
    lacking = [key for key in keys if key not in content] if isinstance(content, dict) else list(keys)
    if lacking:
        command = _COMMANDS[path.name]
        raise InputError(f"{path} is not what {command} writes: it lacks {', '.join(lacking)}; run it again")
    evaluated = content.get("evaluation") or content.get("results") or content
    if path.name != ADAPTATION and isinstance(evaluated.get("models"), dict) and not evaluated["models"]:
        raise InputError(f"{path} has no model; run {_COMMANDS[path.name]} again")
    found: dict[str, Any] = content
    return found


def _curves(path: Path) -> list[dict[str, Any]] | None:
    """The points, or None where no target was named."""
    points = read_json(path) if path.is_file() else None
    if points is not None and not (
        isinstance(points, list) and all(isinstance(point, dict) and "model" in point for point in points)
    ):
        raise InputError(f"{path} is not what training in rounds writes: a list of points")
    return points or None


def _lack(folder: Path) -> str:
    if any(folder.glob("*.run")):
        return (
            f"holds runs but no {RESULTS}: judge them first, with "
            "beir-cocodr compare A.run B.run --dataset D --output O, and report O"
        )
    what = "is empty" if not any(folder.iterdir()) else "holds nothing that this command knows"
    return (
        f"{what}; name the --output folder of evaluate, compare, adapt, quickstart or of a training command"
    )


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


#: Label to query id to its scores, in the order of the measures.
Scores = dict[str, dict[str, list[float]]]


def per_query_scores(judged: Judgement, folder: Path, queries: Sequence[str] | None) -> Scores:
    """Read the scores of all models that have some left.

    Args:
        judged: the evaluation.
        folder: where its files are.
        queries: ids of the judged queries, in the order of the collection, where that is at hand; scores of
            run files are kept in this order.

    Raises:
        InputError: a file that is none of evaluate's, or two of different query sets.
    """
    scores: Scores = {}
    for label, record in judged.models.items():
        if record.get("per_query"):
            file = folder / record["per_query"]
            if file.is_file():
                scores[label] = _read(file, judged.measures)
        elif record.get("scores") and queries is not None:
            found = _listed(record["scores"], judged.measures, queries)
            if found is not None:
                scores[label] = found
    for (label, first), (other, second) in zip(scores.items(), list(scores.items())[1:], strict=False):
        if differ := sorted(first.keys() ^ second.keys()):
            shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
            raise InputError(
                f"{folder}: {label} and {other} have scores of different queries ({shown}); evaluate them "
                "together"
            )
    return scores


def _read(file: Path, measures: Sequence[str]) -> dict[str, list[float]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t") if lines else []
    if header[:1] != ["query_id"] or not set(measures) <= set(header):
        raise InputError(f"{file}: the header is not query_id and {', '.join(measures)}; evaluate again")
    columns = [header.index(measure) for measure in measures]
    scores = {}
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        try:
            scores[cells[0]] = [float(cells[column]) for column in columns]
        except (ValueError, IndexError) as error:
            raise InputError(f"{file}:{number}: not a query and {len(header) - 1} scores") from error
    return scores


def _listed(
    scores: dict[str, list[Any]], measures: Sequence[str], queries: Sequence[str]
) -> dict[str, list[float]] | None:
    """By query id; None where the collection has another number of queries than then."""
    values = [scores[measure] for measure in measures]
    if any(len(column) != len(queries) for column in values):
        return None
    return dict(zip(queries, ([float(v) for v in row] for row in zip(*values, strict=True)), strict=True))


#: How far down the place of a document is known.
KNOWN = 100


def run_tops(path: Path, queries: Container[str] | None = None, depth: int = KNOWN) -> dict[str, list[str]]:
    """Query id to its best documents, by descending score and then id as in trec_eval.

    Args:
        path: a TREC run.
        queries: the only ones that matter; all by default.
        depth: documents a query.

    Raises:
        InputError: a line that is none of a run.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            columns = line.split()
            if not columns or (queries is not None and columns[0] not in queries):
                continue
            hits = found.setdefault(columns[0], [])
            hits.append(_hit(columns, path, number))
            if len(hits) > 4 * depth:
                hits.sort(reverse=True)
                del hits[depth:]
    return {
        query: [document for _, document in sorted(hits, reverse=True)[:depth]]
        for query, hits in found.items()
    }


def _hit(columns: list[str], path: Path, number: int) -> tuple[float, str]:
    try:
        score = float(columns[4])
    except (IndexError, ValueError):
        score = math.nan
    if len(columns) != 6 or not math.isfinite(score):
        raise InputError(f"{path}:{number}: no line of a TREC run, query Q0 document rank score tag")
    return score, columns[2]


@dataclass(frozen=True)
class Texts:
    """The collection, or why it is not at hand."""

    collection: Collection | None
    remark: str


def collection_texts(
    recorded: str, split: str | None, corpus_sha256: str | None, named: str | None, named_split: str | None
) -> Texts:
    """Load the collection that a report is about, if it is here as it was then.

    A collection on record is loaded if it is a local folder or file, or made from installed packages; what
    would have to come from elsewhere only if it is named.

    Args:
        recorded, split: on record.
        corpus_sha256: content hash on record, None where there is none.
        named, named_split: what the caller says instead.

    Raises:
        InputError: a named collection cannot be loaded, or is another one than was judged.
    """
    dataset = named or recorded
    local = dataset.startswith("apidocs/") or Path(dataset).exists()
    if named is None and not local:
        return Texts(None, f"Titles and texts are left out: name the collection with --dataset {recorded}.")
    try:
        collection = load_collection(dataset, named_split or split or "test", labels="optional")
    except InputError as error:
        if named is not None:
            raise
        return Texts(None, f"Titles and texts are left out: {error}.")
    changed = corpus_sha256 is not None and collection.documents.content_hash != corpus_sha256
    if changed and named is not None:
        raise InputError(
            f"{named} is not the collection that was judged: its documents have the hash "
            f"{collection.documents.content_hash[:12]}, on record is {corpus_sha256[:12]}"  # type: ignore[index]
        )
    if changed:
        return Texts(None, f"Titles and texts are left out: {recorded} has changed since it was judged.")
    return Texts(collection, "")
