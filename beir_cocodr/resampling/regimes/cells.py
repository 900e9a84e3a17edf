"""One model of one training set is a cell: trained or given, evaluated once, and kept.

Under ``torchrun`` all processes train a model together; then each searches with another model.
Where there are fewer, all search together, each for a part of the queries, once they encoded the
corpus of a dense model together.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from beir_cocodr import io as files
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.distributed import do_each, gather, on_main, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import depth, parse_measures, score_queries
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.progress import step
from beir_cocodr.records import Json, Record
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import (
    TEACHER,
    ModelRow,
    is_shared,
    load_retriever,
    model_folder,
)
from beir_cocodr.resampling.regimes.host_training import TrainingUnit
from beir_cocodr.retrieval.ranking import Ranker, Ranking

#: Measure to query id to score.
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Cell(Record):
    """One model of one training set, evaluated.

    Attributes:
        given, given_sha256: the path of a given model, and its content if it is here; None for a
            trained one.
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


def label(candidate: ModelRow, unit: TrainingUnit, seed: int) -> str:
    """A cell's name as a step of the command."""
    return f"{candidate.name}, seed {seed}, trained on {unit.name}"


@dataclass(frozen=True)
class Cells:
    """Evaluates models and keeps what it finds in ``output/cells/SET/NAME-SEED.json``.

    Attributes:
        output, recipe, measures, ood, progress: as for `evaluate_regimes`.
        policy: for documents whose id is the query's, of the resampled test set.
        known: means by model and collection outside: a model of several sets is evaluated there
        once.
    """

    output: Path
    recipe: Recipe
    measures: str
    policy: str
    ood: Sequence[str]
    progress: bool
    known: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def evaluate(
        self, candidates: Sequence[ModelRow], units: Sequence[TrainingUnit], keep_models: bool
    ) -> CellsByModel:
        """All cells, made or completed; InputError: no model can be had, or a cell was made with
        another one.
        """
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

    def _of_set(self, candidates: Sequence[ModelRow], unit: TrainingUnit, seed: int) -> list[Cell]:
        """The cells of one set and seed, as many at a time as there are processes."""
        begun = [on_main(partial(self._begun, candidate, unit, seed)) for candidate in candidates]
        found = {n: cell for n, cell in enumerate(begun) if cell is not None}
        for n, cell in found.items():
            self._know(candidates[n], unit, seed, cell)
        left = [
            n
            for n in range(len(begun))
            if n not in found or any(name not in found[n].ood for name in self.ood)
        ]
        for start in range(0, len(left), world_size()):
            some = left[start : start + world_size()]
            own = [candidates[n] for n in some]
            for n, cell in zip(
                some, self._of_round([begun[n] for n in some], own, unit, seed), strict=True
            ):
                found[n] = cell
                self._know(candidates[n], unit, seed, cell)
        return [found[n] for n in range(len(begun))]

    def _of_round(
        self,
        begun: Sequence[Cell | None],
        candidates: Sequence[ModelRow],
        unit: TrainingUnit,
        seed: int,
    ) -> list[Cell]:
        """The cells of at most as many models as there are processes."""
        models = []
        for candidate in candidates:
            step(label(candidate, unit, seed))
            before = time.perf_counter()
            models.append((candidate.model(unit, seed), time.perf_counter() - before))
        fewer = len(models) < world_size()
        together = on_main(lambda: [fewer and is_shared(model, self.recipe) for model, _ in models])
        apart = [n for n, shared in enumerate(together) if not shared]

        def complete(n: int) -> Cell:
            return self._complete(begun[n], candidates[n], unit, seed, *models[n], together[n])

        made = do_each(lambda: complete(apart[rank()]) if rank() < len(apart) else None)
        cells = {n: cell for n, cell in zip(apart, made, strict=False) if cell is not None}
        cells |= {n: gather(complete(n))[0] for n, shared in enumerate(together) if shared}
        return [cells[n] for n in range(len(models))]

    def _know(self, candidate: ModelRow, unit: TrainingUnit, seed: int, cell: Cell) -> None:
        if cell.given is not None:
            model = candidate.model(unit, seed)
            self.known.update({(model, name): means for name, means in cell.ood.items()})

    def _file(self, candidate: ModelRow, unit: TrainingUnit, seed: int) -> Path:
        return self.output / "cells" / unit.name / f"{candidate.name}-{seed}.json"

    def _begun(self, candidate: ModelRow, unit: TrainingUnit, seed: int) -> Cell | None:
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
        self,
        cell: Cell | None,
        candidate: ModelRow,
        unit: TrainingUnit,
        seed: int,
        model: str,
        seconds: float,
        together: bool,
    ) -> Cell:
        """Search with a model what it is not evaluated on yet, here or with all; it took
        ``seconds`` to train.
        """
        file, before = self._file(candidate, unit, seed), time.perf_counter()
        if cell is None:
            tests = {
                regime: load_collection(folder, "test") for regime, folder in unit.tests.items()
            }
            scores, retrieval = self._scores(model, tests, self.policy, together)
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
            self._write(cell, file, together)
        for name in [name for name in self.ood if name not in cell.ood]:
            if (means := self.known.get((model, name))) is None:
                found, _ = self._scores(
                    model, {"": load_collection(name, "test")}, identical_ids(name), together
                )
                means = {
                    measure: sum(values.values()) / len(values)
                    for measure, values in found[""].items()
                }
            cell = replace(cell, ood=cell.ood | {name: means})
            self._write(cell, file, together)
        return cell

    def _write(self, cell: Cell, file: Path, together: bool) -> None:
        if not together or rank() == 0:
            cell.write(file)

    def _scores(
        self, model: str, tests: Mapping[str, Collection], policy: str, together: bool
    ) -> tuple[dict[str, Scores], Json]:
        """Scores of test sets over one corpus, searched at once, and the retriever's
        description.
        """
        wanted, drop = parse_measures(self.measures), policy == "drop"
        top_k = depth(wanted)
        documents = next(iter(tests.values())).documents
        queries = {query: text for found in tests.values() for query, text in found.queries.items()}
        mine = dict(list(queries.items())[rank() :: world_size()]) if together else queries
        with files.unfinished(self.output) as work:

            def load() -> Ranker:
                return load_retriever(
                    model, documents, work, self.recipe, self.progress and rank() == 0
                )

            if together:
                retriever, found = _search_together(load, queries, mine, work, top_k + drop)
            else:
                retriever = load()
                found = retriever.search(queries, top_k + drop)
            results = found.results(documents, drop, top_k) if found else {}
            retrieval = retriever.describe() if not together or rank() == 0 else {}
        scores: dict[str, Scores] = {}
        for name, test in tests.items():
            qrels = {query: grades for query, grades in test.qrels.items() if query in mine}
            own = score_queries(wanted, qrels, {query: results[query] for query in qrels})
            found_here = {
                m: dict(zip(qrels, values.tolist(), strict=True)) for m, values in own.items()
            }
            parts = gather(found_here) if together else [found_here]
            scores[name] = {m: {} for m in found_here}
            for measure, of_queries in scores[name].items():
                known = {query: score for part in parts for query, score in part[measure].items()}
                of_queries.update((query, known[query]) for query in test.qrels)
        return scores, retrieval

    def _drop(self, candidates: Sequence[ModelRow], unit: TrainingUnit, seed: int) -> None:
        """Remove the trained models of a set and a seed."""
        names = [candidate.name for candidate in candidates if candidate.where is None]
        for name in (*names, TEACHER, *(f"{TEACHER}@{name.partition('@')[2]}" for name in names)):
            shutil.rmtree(model_folder(self.output, unit, name, seed), True)

    def _drop_empty(self) -> None:
        shutil.rmtree(self.output / "shared", ignore_errors=True)
        for path in sorted([models := self.output / "models", *models.rglob("*")], reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _content(candidate: ModelRow, unit: TrainingUnit, seed: int) -> str | None:
    return None if candidate.where is None else files.content_sha256(candidate.model(unit, seed))


def _search_together(
    load: Callable[[], Ranker],
    queries: dict[str, str],
    mine: dict[str, str],
    work: Path,
    top_k: int,
) -> tuple[Ranker, Ranking | None]:
    """A process's part of a search that all make, None where it has no queries; ``work`` is a
    folder of its own. What goes wrong on one process does on all.
    """
    from beir_cocodr.retrieval.dense import Dense

    held: list[Ranker] = []
    do_each(lambda: held.append(load()))
    [retriever] = held
    vectors: Any = None
    if isinstance(retriever, Dense):
        retriever.encode_together(on_main(lambda: work) / "corpus")
        # Of all of them, as the description tells how many were cut.
        vectors = retriever.encode_queries(list(queries.values()))[rank() :: world_size()]
    found: list[Ranking] = []

    def search() -> None:
        if mine and isinstance(retriever, Dense):
            found.append(retriever.search_embeddings(list(mine), vectors, top_k))
        elif mine:
            found.append(retriever.search(mine, top_k))

    do_each(search)  # after which nobody reads the first one's folder any more
    return retriever, found[0] if found else None
