"""A cell of the table: one model of one training set, trained or given, evaluated once and kept.

Under ``torchrun`` all processes train a model together; then each searches with another model. If
there are fewer models, all processes search together, each for a part of the queries, after they
have encoded the corpus of a dense model together.
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
from beir_cocodr.data.documents import Documents
from beir_cocodr.distributed import do_each, gather, on_main, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import MeasureNames, depth, parse_measures, score_queries
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.progress import step
from beir_cocodr.records import Json, Record
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.model_rows import TEACHER, ModelRow, model_folder
from beir_cocodr.resampling.regimes.rankers import is_shared, load_ranker
from beir_cocodr.resampling.regimes.units import TrainingUnit
from beir_cocodr.retrieval.ranking import Ranker, Ranking, Results

#: Measure to query id to score.
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Cell(Record):
    """One model of one training set, evaluated.

    Attributes:
        model: name of its row.
        path: of given models, None for a trained one.
        set: name of the training set.
        scores: regime to measure to query id to score.
        retrieval: the ranker's description of itself.
        training_seconds, search_seconds: the first is near 0 for a model that existed already.
        ood: collection outside the distribution to measure to mean.
        path_sha256: content of a given model, None if it is not here.
    """

    model: str
    path: str | None
    seed: int
    set: str
    scores: dict[str, Scores]
    retrieval: Json
    training_seconds: float
    search_seconds: float
    ood: dict[str, dict[str, float]] = field(default_factory=dict)
    path_sha256: str | None = None


#: (group, model, seed) to the cells of all sets of the group.
CellsByModel = Mapping[tuple[str, str, int], Sequence[Cell]]


@dataclass(frozen=True)
class CellTask:
    """A cell that is wanted: a row, a training set and a seed."""

    row: ModelRow
    unit: TrainingUnit
    seed: int

    @property
    def label(self) -> str:
        """Return the name of the cell as a step of the command."""
        return f"{self.row.name}, seed {self.seed}, trained on {self.unit.name}"

    def model(self) -> str:
        """Train or find the model, and return its path or name."""
        return self.row.model(self.unit, self.seed)

    def path_sha256(self) -> str | None:
        """Return the content of a given model, None for a trained one."""
        if self.row.path is None:
            return None
        return files.content_sha256(self.model())


@dataclass(frozen=True)
class _CellSearch:
    """A search that completes a cell.

    Attributes:
        task: the cell that is wanted.
        cell: what exists of it, None for nothing.
        model: path or name.
        seconds: how long it took to train.
        together: whether all processes search for a part of the queries each.
    """

    task: CellTask
    cell: Cell | None
    model: str
    seconds: float
    together: bool

    def share(self, queries: dict[str, str]) -> dict[str, str]:
        """Return the queries that this process searches for."""
        if not self.together:
            return queries
        share = list(queries.items())[rank() :: world_size()]
        return dict(share)

    @property
    def reports(self) -> bool:
        """Return true if this process writes the cell."""
        return not self.together or rank() == 0


def cell_tasks(rows: Sequence[ModelRow], units: Sequence[TrainingUnit]) -> list[list[CellTask]]:
    """Return the wanted cells, in groups of one training set and seed."""
    seeds = dict.fromkeys(seed for row in rows for seed in row.seeds)
    groups = []
    for unit in units:
        for seed in seeds:
            rows_of_seed = [row for row in rows if seed in row.seeds]
            groups.append([CellTask(row, unit, seed) for row in rows_of_seed])
    return groups


@dataclass(frozen=True)
class Cells:
    """Evaluates models, and keeps the cells in ``output/cells/SET/NAME-SEED.json``.

    Attributes:
        output: folder for cells and models.
        recipe: of training and search.
        measures: names of measures.
        policy: for documents with the id of the query, in the resampled test set.
        ood: collections outside the distribution, by name.
        progress: whether to show bars on stderr.
        known: (model, collection outside) to measure to mean: a model of several sets is evaluated
            there once.
    """

    output: Path
    recipe: Recipe
    measures: MeasureNames
    policy: str
    ood: Mapping[str, Collection]
    progress: bool
    known: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def evaluate(
        self,
        rows: Sequence[ModelRow],
        units: Sequence[TrainingUnit],
        keep_models: bool,
    ) -> CellsByModel:
        """Make or complete all cells.

        Raises:
            InputError: A model cannot be loaded, or a cell was made with another one.
        """
        cells: dict[tuple[str, str, int], list[Cell]] = {}
        for tasks in cell_tasks(rows, units):
            cells_of_set = self._of_set(tasks)
            for task, cell in zip(tasks, cells_of_set, strict=True):
                key = (task.unit.group, task.row.name, task.seed)
                cells.setdefault(key, []).append(cell)
            if not keep_models:
                # Not before, because one model may be another's teacher.
                on_main(partial(self._remove_models, tasks))
        if not keep_models:
            on_main(self._remove_empty_folders)
        return cells

    def _of_set(self, tasks: Sequence[CellTask]) -> list[Cell]:
        """Return the cells of one set and seed, as many at a time as there are processes."""
        begun = [on_main(partial(self._begun, task)) for task in tasks]
        for task, cell in zip(tasks, begun, strict=True):
            if cell is not None:
                self._remember(task, cell)
        missing = []
        for i, cell in enumerate(begun):
            if cell is None or self._lacks(cell):
                missing.append(i)
        for first in range(0, len(missing), world_size()):
            some = missing[first : first + world_size()]
            round_tasks = [tasks[i] for i in some]
            round_begun = [begun[i] for i in some]
            completed = self._of_round(round_tasks, round_begun)
            for i, cell in zip(some, completed, strict=True):
                begun[i] = cell
                self._remember(tasks[i], cell)
        return [cell for cell in begun if cell is not None]

    def _lacks(self, cell: Cell) -> bool:
        return any(name not in cell.ood for name in self.ood)

    def _of_round(self, tasks: Sequence[CellTask], begun: Sequence[Cell | None]) -> list[Cell]:
        """Return the cells of at most as many models as there are processes."""
        models = []
        seconds = []
        for task in tasks:
            step(task.label)
            before = time.perf_counter()
            models.append(task.model())
            seconds.append(time.perf_counter() - before)
        fewer = len(models) < world_size()
        together = on_main(lambda: [fewer and is_shared(model, self.recipe) for model in models])
        searches = []
        for i, task in enumerate(tasks):
            search = _CellSearch(
                task=task,
                cell=begun[i],
                model=models[i],
                seconds=seconds[i],
                together=together[i],
            )
            searches.append(search)
        apart = [i for i, search in enumerate(searches) if not search.together]

        def complete_own() -> Cell | None:
            if rank() < len(apart):
                search = searches[apart[rank()]]
                return self._complete(search)
            return None

        completed = do_each(complete_own)
        cells: dict[int, Cell] = {}
        for i, cell in zip(apart, completed, strict=False):
            if cell is not None:
                cells[i] = cell
        for i, search in enumerate(searches):
            if search.together:
                parts = gather(self._complete(search))
                cells[i] = parts[0]
        return [cells[i] for i in range(len(searches))]

    def _remember(self, task: CellTask, cell: Cell) -> None:
        """Remember the means outside of a given model, which other sets have too."""
        if cell.path is not None:
            model = task.model()
            for name, means in cell.ood.items():
                self.known[model, name] = means

    def _file(self, task: CellTask) -> Path:
        folder = self.output / "cells" / task.unit.name
        return folder / f"{task.row.name}-{task.seed}.json"

    def _begun(self, task: CellTask) -> Cell | None:
        """Return what exists of a cell.

        Raises:
            InputError: It was made with another model.
        """
        file = self._file(task)
        if not file.is_file():
            return None
        cell = Cell.read(file)
        way_out = "give the model another name, or choose another --output"
        made_with = cell.path or "a trained model"
        if cell.path != task.row.path:
            wanted = task.row.path or "a trained model"
            raise InputError(f"{file} was made with {made_with}, not {wanted}; {way_out}")
        if cell.path_sha256 is None:
            return cell
        if cell.path_sha256 != task.path_sha256():
            raise InputError(
                f"{file} was made with {made_with}, which has changed since; {way_out}"
            )
        return cell

    def _complete(self, search: _CellSearch) -> Cell:
        """Search what a model is not evaluated on yet, here or with all processes."""
        task = search.task
        before = time.perf_counter()
        cell = search.cell
        if cell is None:
            tests = {}
            for regime, folder in task.unit.tests.items():
                tests[regime] = load_collection(folder, "test")
            scores, retrieval = self._scores(search, tests, self.policy)
            cell = Cell(
                model=task.row.name,
                path=task.row.path,
                seed=task.seed,
                set=task.unit.name,
                scores=scores,
                retrieval=retrieval,
                training_seconds=round(search.seconds, 1),
                search_seconds=round(time.perf_counter() - before, 1),
                path_sha256=task.path_sha256(),
            )
            self._write(search, cell)
        for name, collection in self.ood.items():
            if name in cell.ood:
                continue
            means = self.known.get((search.model, name))
            if means is None:
                means = self._means(search, collection)
            ood = cell.ood | {name: means}
            cell = replace(cell, ood=ood)
            self._write(search, cell)
        return cell

    def _write(self, search: _CellSearch, cell: Cell) -> None:
        if search.reports:
            cell.write(self._file(search.task))

    def _means(self, search: _CellSearch, collection: Collection) -> dict[str, float]:
        """Return measure to mean on a collection outside the distribution."""
        policy = identical_ids(collection.name)
        scores, _ = self._scores(search, {collection.name: collection}, policy)
        means = {}
        for measure, values in scores[collection.name].items():
            means[measure] = sum(values.values()) / len(values)
        return means

    def _scores(
        self,
        search: _CellSearch,
        tests: Mapping[str, Collection],
        policy: str,
    ) -> tuple[dict[str, Scores], Json]:
        """Search the test sets of one corpus at once.

        Returns:
            Test set to scores, and the ranker's description, {} where another process has it.
        """
        documents = next(iter(tests.values())).documents
        queries: dict[str, str] = {}
        for test in tests.values():
            queries |= test.queries
        results, retrieval = self._results(search, documents, queries, policy == "drop")
        share = search.share(queries)
        scores: dict[str, Scores] = {}
        for name, test in tests.items():
            scores[name] = self._judge(search, test, share, results)
        return scores, retrieval

    def _results(
        self,
        search: _CellSearch,
        documents: Documents,
        queries: dict[str, str],
        drop: bool,
    ) -> tuple[Results, Json]:
        """Return the results of this process's share of the queries, and a description."""
        top_k = depth(parse_measures(self.measures))
        with files.unfinished(self.output) as work:

            def load() -> Ranker:
                show_progress = self.progress and rank() == 0
                return load_ranker(
                    search.model,
                    documents,
                    work,
                    self.recipe,
                    progress=show_progress,
                )

            ranking: Ranking | None
            if search.together:
                ranker, ranking = _search_together(
                    load,
                    queries,
                    search,
                    work,
                    top_k + drop,
                )
            else:
                ranker = load()
                ranking = ranker.search(queries, top_k + drop)
            results = {}
            if ranking:
                results = ranking.results(documents, drop, top_k)
            return results, ranker.describe() if search.reports else {}

    def _judge(
        self,
        search: _CellSearch,
        test: Collection,
        share: Mapping[str, str],
        results: Results,
    ) -> Scores:
        """Return the scores of a test set, by the results of all processes that search.

        Args:
            search: says whether there are several processes.
            test: the test set.
            share: the queries that this process has searched for.
            results: of this process.
        """
        qrels = {query: grades for query, grades in test.qrels.items() if query in share}
        measures = parse_measures(self.measures)
        judged = {query: results[query] for query in qrels}
        values = score_queries(measures, qrels, judged)
        here: Scores = {}
        for measure, query_scores in values.items():
            here[measure] = dict(zip(qrels, query_scores.tolist(), strict=True))
        parts = gather(here) if search.together else [here]
        scores: Scores = {}
        for measure in here:
            by_query: dict[str, float] = {}
            for part in parts:
                by_query |= part[measure]
            scores[measure] = {query: by_query[query] for query in test.qrels}
        return scores

    def _remove_models(self, tasks: Sequence[CellTask]) -> None:
        """Remove the trained models of a set and a seed, and their teachers."""
        for task in tasks:
            name = task.row.name
            if task.row.path is not None:
                continue
            _, at, start = name.partition("@")
            for removed in (name, TEACHER, f"{TEACHER}{at}{start}"):
                folder = model_folder(self.output, task.unit, removed, task.seed)
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_empty_folders(self) -> None:
        shutil.rmtree(self.output / "shared", ignore_errors=True)
        models = self.output / "models"
        for path in sorted([models, *models.rglob("*")], reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _search_together(
    load: Callable[[], Ranker],
    queries: dict[str, str],
    search: _CellSearch,
    work: Path,
    top_k: int,
) -> tuple[Ranker, Ranking | None]:
    """Search by all processes; an error on one process is raised on all.

    Args:
        load: loads the ranker.
        queries: of all processes.
        search: divides them.
        work: a folder of this process.
        top_k: documents for each query.

    Returns:
        The ranker, and the ranking of this process's queries, None if it has none.
    """
    from beir_cocodr.retrieval.vectors.dense import Dense

    rankers: list[Ranker] = []
    do_each(lambda: rankers.append(load()))
    [ranker] = rankers
    share = search.share(queries)
    vectors: Any = None
    if isinstance(ranker, Dense):
        work_of_first = on_main(lambda: work)
        ranker.encode_together(work_of_first / "corpus")
        # All queries are encoded, because the description tells how many of them were cut.
        texts = list(queries.values())
        vectors = ranker.encode_queries(texts)[rank() :: world_size()]
    rankings: list[Ranking] = []

    def search_share() -> None:
        if share and isinstance(ranker, Dense):
            rankings.append(ranker.search_embeddings(list(share), vectors, top_k))
        elif share:
            rankings.append(ranker.search(share, top_k))

    # After this, no process reads the folder of the first any more.
    do_each(search_share)
    return ranker, rankings[0] if rankings else None
