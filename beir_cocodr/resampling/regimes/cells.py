"""One model of one training set is a cell: trained or given, evaluated once, and kept.

Under ``torchrun`` all processes train a model together; then each searches with another model.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from beir_cocodr import io as files
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.distributed import do_each, on_main, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import depth, parse_measures, score_queries
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.progress import step
from beir_cocodr.records import Json, Record
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import TEACHER, Candidate, load_retriever, model_folder
from beir_cocodr.resampling.regimes.host_training import TrainingUnit

#: Measure to query id to score.
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Cell(Record):
    """One model of one training set, evaluated.

    Attributes:
        given, given_sha256: the path of a given model, and its content if it is here; None for a trained one.
        scores: regime to measure to query id to score.
        retrieval: the retriever's description of itself.
        training_seconds, search_seconds: the first is next to nothing for what was there already.
        ood: collection outside the distribution to measure to mean.
    """

    model: str
    given: str | None
    seed: int
    set: str
    scores: dict[str, Scores]
    retrieval: Json
    training_seconds: float
    search_seconds: float
    ood: dict[str, dict[str, float]] = field(default_factory=dict)
    given_sha256: str | None = None


#: (group, model, seed) to the cells of all sets of the group.
CellsByModel = Mapping[tuple[str, str, int], Sequence[Cell]]


def label(candidate: Candidate, unit: TrainingUnit, seed: int) -> str:
    """A cell's name as a step of the command."""
    return f"{candidate.name}, seed {seed}, trained on {unit.name}"


@dataclass(frozen=True)
class Cells:
    """Evaluates models and keeps what it finds in ``output/cells/SET/NAME-SEED.json``.

    Attributes:
        output, recipe, measures, ood, progress: as for `evaluate_regimes`.
        policy: for documents whose id is the query's, of the resampled test set.
        known: means by model and collection outside: a model of several sets is evaluated there once.
    """

    output: Path
    recipe: Recipe
    measures: str
    policy: str
    ood: Sequence[str]
    progress: bool
    known: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def evaluate(
        self, candidates: Sequence[Candidate], units: Sequence[TrainingUnit], keep_models: bool
    ) -> CellsByModel:
        """All cells, made or completed; InputError: no model can be had, or a cell was made with another one."""
        found: dict[tuple[str, str, int], list[Cell]] = {}
        for unit in units:
            for seed in dict.fromkeys(seed for candidate in candidates for seed in candidate.seeds):
                own = [candidate for candidate in candidates if seed in candidate.seeds]
                for candidate, cell in zip(own, self._of_set(own, unit, seed), strict=True):
                    found.setdefault((unit.group, candidate.name, seed), []).append(cell)
                if not keep_models:  # only now, as one may have been another's teacher
                    on_main(partial(self._drop, own, unit, seed))
        if not keep_models:
            on_main(self._drop_empty)
        return found

    def _of_set(self, candidates: Sequence[Candidate], unit: TrainingUnit, seed: int) -> list[Cell]:
        """The cells of one set and seed, as many at a time as there are processes."""
        begun = [on_main(partial(self._begun, candidate, unit, seed)) for candidate in candidates]
        found = {n: cell for n, cell in enumerate(begun) if cell is not None}
        for n, cell in found.items():
            self._know(candidates[n], unit, seed, cell)
        left = [n for n in range(len(begun)) if n not in found or any(name not in found[n].ood for name in self.ood)]
        for start in range(0, len(left), world_size()):
            some = left[start : start + world_size()]
            models = []
            for n in some:
                step(label(candidates[n], unit, seed))
                before = time.perf_counter()
                models.append((candidates[n].model(unit, seed), time.perf_counter() - before))

            def search(some: list[int] = some, models: list[tuple[str, float]] = models) -> Cell | None:
                if rank() >= len(some):
                    return None
                n, own = some[rank()], models[rank()]
                return self._complete(found.get(n), candidates[n], unit, seed, *own)

            for n, made in zip(some, do_each(search), strict=False):
                assert made is not None
                found[n] = made
                self._know(candidates[n], unit, seed, made)
        return [found[n] for n in range(len(begun))]

    def _know(self, candidate: Candidate, unit: TrainingUnit, seed: int, cell: Cell) -> None:
        if cell.given is not None:
            model = candidate.model(unit, seed)
            self.known.update({(model, name): means for name, means in cell.ood.items()})

    def _file(self, candidate: Candidate, unit: TrainingUnit, seed: int) -> Path:
        return self.output / "cells" / unit.name / f"{candidate.name}-{seed}.json"

    def _begun(self, candidate: Candidate, unit: TrainingUnit, seed: int) -> Cell | None:
        """What is there of a cell; InputError: it was made with another model."""
        file = self._file(candidate, unit, seed)
        cell = Cell.read(file) if file.is_file() else None
        content = _content(candidate, unit, seed)
        other = cell is not None and cell.given_sha256 is not None and cell.given_sha256 != content
        if cell is not None and (cell.given != candidate.where or other):
            raise InputError(
                f"{file} was made with {cell.given or 'a trained model'}"
                f"{', which has changed since' if other else f', not {candidate.where}'}; give the model another "
                "name, or choose another --output"
            )
        return cell

    def _complete(
        self, cell: Cell | None, candidate: Candidate, unit: TrainingUnit, seed: int, model: str, seconds: float
    ) -> Cell:
        """Search with a model what it is not evaluated on yet; ``seconds`` were its training."""
        file, before = self._file(candidate, unit, seed), time.perf_counter()
        if cell is None:
            tests = {regime: load_collection(folder, "test") for regime, folder in unit.tests.items()}
            scores, retrieval = self._scores(model, tests, self.policy)
            cell = Cell(
                model=candidate.name,
                given=candidate.where,
                given_sha256=_content(candidate, unit, seed),
                seed=seed,
                set=unit.name,
                scores=scores,
                retrieval=retrieval,
                training_seconds=round(seconds, 1),
                search_seconds=round(time.perf_counter() - before, 1),
            )
            cell.write(file)
        for name in [name for name in self.ood if name not in cell.ood]:
            if (means := self.known.get((model, name))) is None:
                found, _ = self._scores(model, {"": load_collection(name, "test")}, identical_ids(name))
                means = {measure: sum(values.values()) / len(values) for measure, values in found[""].items()}
            cell = replace(cell, ood=cell.ood | {name: means})
            cell.write(file)
        return cell

    def _scores(self, model: str, tests: Mapping[str, Collection], policy: str) -> tuple[dict[str, Scores], Json]:
        """Scores of test sets over one corpus, searched at once, and the retriever's description."""
        wanted, drop = parse_measures(self.measures), policy == "drop"
        top_k = depth(wanted)
        documents = next(iter(tests.values())).documents
        queries = {query: text for found in tests.values() for query, text in found.queries.items()}
        with files.unfinished(self.output) as work:
            retriever = load_retriever(model, documents, work, self.recipe, self.progress and rank() == 0)
            results = retriever.search(queries, top_k + drop).results(documents, drop, top_k)
            retrieval = retriever.describe()
        scores = {}
        for name, test in tests.items():
            found = score_queries(wanted, test.qrels, {query: results[query] for query in test.qrels})
            scores[name] = {m: dict(zip(test.qrels, values.tolist(), strict=True)) for m, values in found.items()}
        return scores, retrieval

    def _drop(self, candidates: Sequence[Candidate], unit: TrainingUnit, seed: int) -> None:
        """Remove the trained models of a set and a seed."""
        names = [candidate.name for candidate in candidates if candidate.where is None]
        for name in (*names, TEACHER, *(f"{TEACHER}@{name.partition('@')[2]}" for name in names)):
            shutil.rmtree(model_folder(self.output, unit, name, seed), True)

    def _drop_empty(self) -> None:
        shutil.rmtree(self.output / "shared", ignore_errors=True)
        for path in sorted([models := self.output / "models", *models.rglob("*")], reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _content(candidate: Candidate, unit: TrainingUnit, seed: int) -> str | None:
    return None if candidate.where is None else files.content_sha256(candidate.model(unit, seed))
