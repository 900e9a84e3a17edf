"""Cells of the evaluation: one model of one training set, judged once and kept."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import depth, parse_measures, score_queries
from beir_cocodr.evaluation.protocol import identical_ids
from beir_cocodr.files import write_text
from beir_cocodr.resampling.regimes.candidate import Candidate
from beir_cocodr.resampling.regimes.load_retriever import load_retriever
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.training_units import TrainingUnit

log = logging.getLogger(__name__)

#: Measure to query id to score.
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Cells:
    """Judges models and keeps what it finds in ``output/cells/SET/NAME-SEED.json``.

    Attributes:
        output: folder of the evaluation.
        recipe: how models are trained and searched.
        measures: names that ir-measures knows.
        policy: for documents whose id is the query's, of the resampled test set.
        ood: further collections, whose split "test" every model is judged on.
        progress: show bars on stderr.
    """

    output: Path
    recipe: Recipe
    measures: str
    policy: str
    ood: Sequence[str] = ()
    progress: bool = False

    def judge(self, candidate: Candidate, unit: TrainingUnit, seed: int) -> dict[str, Any]:
        """The cell, made or completed where it is not there.

        Returns:
            ``scores``: regime to measure to query id to score; ``ood``: collection to measure to mean.

        Raises:
            InputError: the model cannot be trained or found, or the cell was made with another one.
        """
        file = self.output / "cells" / unit.name / f"{candidate.name}-{seed}.json"
        cell: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"ood": {}}
        if cell.get("given", candidate.where) != candidate.where:
            raise InputError(
                f"{file} was made with {cell['given'] or 'a trained model'}, not {candidate.where}; give the "
                "model another name, or choose another --output"
            )
        missing = [name for name in self.ood if name not in cell["ood"]]
        if "scores" in cell and not missing:
            return cell
        log.info("%s, seed %d, trained on %s", candidate.name, seed, unit.name)
        start = time.perf_counter()
        model = candidate.model(unit, seed)
        trained = time.perf_counter()
        if "scores" not in cell:
            tests = {regime: load_collection(folder, "test") for regime, folder in unit.tests.items()}
            scores, retrieval = self._scores(model, tests, self.policy)
            cell |= {
                "model": candidate.name,
                "given": candidate.where,
                "seed": seed,
                "set": unit.name,
                "scores": scores,
                "retrieval": retrieval,
                "training_seconds": round(trained - start, 1),
                "search_seconds": round(time.perf_counter() - trained, 1),
            }
            _write(file, cell)
        for name in missing:
            found, _ = self._scores(model, {"": load_collection(name, "test")}, identical_ids(name))
            cell["ood"][name] = {
                measure: sum(values.values()) / len(values) for measure, values in found[""].items()
            }
            _write(file, cell)
        return cell

    def _scores(
        self, model: str, tests: Mapping[str, Collection], policy: str
    ) -> tuple[dict[str, Scores], dict[str, Any]]:
        """Scores of test sets over one corpus, searched at once, and what the retriever says of itself."""
        wanted = parse_measures(self.measures)
        top_k, drop = depth(wanted), policy == "drop"
        documents = next(iter(tests.values())).documents
        queries = {query: text for found in tests.values() for query, text in found.queries.items()}
        with tempfile.TemporaryDirectory(dir=self.output, prefix=".embeddings-") as work:
            retriever = load_retriever(model, documents, Path(work), self.recipe, self.progress)
            results = retriever.search(queries, top_k + drop).results(documents, drop, top_k)
            retrieval = retriever.describe()
        scores = {}
        for name, found in tests.items():
            values = score_queries(wanted, found.qrels, {q: results[q] for q in found.qrels})
            scores[name] = {
                measure: dict(zip(found.qrels, per_query.tolist(), strict=True))
                for measure, per_query in values.items()
            }
        return scores, retrieval


def _write(file: Path, cell: dict[str, Any]) -> None:
    write_text(file, json.dumps(cell, indent=1, ensure_ascii=False) + "\n")
