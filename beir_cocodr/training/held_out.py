"""Held-out queries: which they are, a model's MRR@10 on them, and the checkpoint that they
choose.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerState

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import do_each, on_main, rank, world_size
from beir_cocodr.errors import InputError, explained
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.generation.generation_record import GENERATION_FILE, read_generation
from beir_cocodr.io import atomic_path, file_sha256
from beir_cocodr.provenance import collection_provenance
from beir_cocodr.records import CollectionProvenance, Json, Record
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.topk import NonFiniteScores
from beir_cocodr.training.negatives import bm25_negatives, relevant_rows
from beir_cocodr.training.options import DistillOptions, FinetuneOptions
from beir_cocodr.training.output_folder import CHECKPOINTS
from beir_cocodr.training.trainer import Stage, planned_steps

MEASURE = "RR@10"

#: BM25's best documents that stand beside the relevant ones of a held-out query.
CANDIDATES = 100

# Queries whose candidates are encoded together.
_BLOCK = 8
_FOLDER, _RECORD = "selection", "selection.json"
_TRAIN_AGAIN = "this training cannot be resumed: train again in another --output"
log = logging.getLogger(__name__)


def given_queries(
    collection: Collection, options: FinetuneOptions | DistillOptions
) -> list[CollectionProvenance]:
    """What a training is given: the collection, and the split that chooses the checkpoint; an
    InputError where that is the one that is trained on, has no query with a relevant document, or
    is not measured.
    """
    split, found = options.select_split, [labelled_provenance(collection)]
    if split is not None:
        if isinstance(options, DistillOptions) and options.select_epochs is None:
            raise InputError("select_split chooses every select_epochs: set that, too")
        if split == collection.split:
            raise InputError(
                f"select_split: {split} is what is trained on; name another split, or a held_out share"
            )
        chosen = collection.in_split(split)
        if not relevant_rows(chosen):
            raise InputError(
                f"select_split: no query of {collection.name} has a relevant document in split {split}"
            )
        found.append(labelled_provenance(chosen))
    return found


def labelled_provenance(collection: Collection) -> CollectionProvenance:
    """Return the provenance of a labelled collection, and of its queries if they were generated."""
    seen = collection_provenance(collection, queries=True)
    folder = Path(collection.name)
    if not (folder / GENERATION_FILE).is_file():
        return seen
    record = read_generation(folder)
    return replace(seen, generation={"settings": record.settings, "counts": record.counts})


def hold_out(
    collection: Collection, options: FinetuneOptions | DistillOptions, seed: int
) -> tuple[Collection, Collection | None]:
    """The collection without its held-out queries, and with these alone: a share of the queries
    with a relevant document, drawn by the seed, or queries of another split. None, and a warning if
    a share is asked for, where that is no query.
    """
    split = options.select_split
    chosen = collection if split is None else collection.in_split(split)
    names = np.random.default_rng(seed).permutation(sorted(relevant_rows(chosen))).tolist()
    count = int(options.held_out * len(names)) if split is None else len(names)
    held = names[: min(count, options.most_held_out)]
    if not held:
        if options.held_out:
            log.warning(
                "held_out %g of %d queries is none: nothing is measured on them",
                options.held_out,
                len(names),
            )
        return collection, None
    out = set(held) if split is None else set()
    return _only(collection, (query for query in collection.queries if query not in out)), _only(
        chosen, held
    )


def _only(collection: Collection, names: Iterable[str]) -> Collection:
    queries = {name: collection.queries[name] for name in names}
    qrels = {name: collection.qrels[name] for name in queries if name in collection.qrels}
    return replace(collection, queries=queries, qrels=qrels)


def held_out_scores(collection: Collection, ranking: Ranking) -> Floats:
    """(Q,) reciprocal ranks at 10 of the ranked queries, by the judgements of ``collection``."""
    judged = {query: collection.qrels[query] for query in ranking.queries}
    scores: Floats = score_queries(
        parse_measures(MEASURE), judged, ranking.results(collection.documents, depth=10)
    )[MEASURE]
    return scores


def keep_weights(model: Any, file: Path) -> str:
    """Write a model's weights; returns the file's checksum."""
    state = {name: weight.detach().cpu().clone() for name, weight in model.state_dict().items()}
    with atomic_path(file) as temporary:
        save_file(state, temporary)
    return file_sha256(file)


@dataclass(frozen=True)
class SelectionRecord(Record):
    """MRR@10 after each of some steps, the first best of these, and the checksum of its weights."""

    steps: list[int]
    values: list[float]
    best: int
    weights_sha256: str


class CheckpointSelection(TrainerCallback):
    """Measures held-out queries every few steps and at the end, and keeps the best weights.

    What is measured is MRR@10 among the relevant documents of a query and BM25's :data:`CANDIDATES`
    best others, scored as the model itself compares texts: it means the same for every
    architecture, and costs the same on a large corpus. All processes of a run share the queries.
    Values and weights are kept beside the checkpoints, so that a run that goes on measures no step
    again.

    Args:
        held: the held-out queries, see :func:`hold_out`.
        text_format: of BM25 and of the texts.
        options: ``select_epochs`` and the batch size.
        examples: of a pass over the data.
        read: what every text passes before the host tokenises it.
    """

    def __init__(
        self,
        held: Collection,
        model: Any,
        text_format: TextFormat,
        options: FinetuneOptions | DistillOptions,
        output: Path,
        examples: int,
        read: Callable[[str], str] = str,
    ) -> None:
        self.held, self.model, self.text_format, self.read = held, model, text_format, read
        self.every = planned_steps(-1, options.select_epochs or 1.0, examples, options.batch_size)
        self.folder = output / CHECKPOINTS / _FOLDER
        relevant, others = relevant_rows(held), bm25_negatives(held, text_format, CANDIDATES)
        self.candidates = {
            query: np.concatenate([relevant[query], others[query]]) for query in held.queries
        }
        self._measured: set[int] = set()

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        self._measured = on_main(
            lambda: set(self._recall().steps if (self.folder / _RECORD).is_file() else ())
        )
        if self.every >= state.max_steps and rank() == 0:
            log.warning(
                "held-out queries choose nothing in a training of %d steps: lower select_epochs",
                self.every,
            )

    def on_step_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        # The host makes a step too many where it goes on from the last one.
        if state.global_step % self.every == 0 and state.global_step <= state.max_steps:
            self._measure(state.global_step)

    def on_train_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        if 0 < state.global_step <= state.max_steps:
            self._measure(state.global_step)

    def finish(self, folder: Path) -> Json:
        """After training, on the first process: put the best weights back; gives what chose
        them.
        """
        found = self._recall()
        self.model.load_state_dict(load_file(self._weights(found.best)))
        counts = {"measure": MEASURE, "queries": len(self.held.queries), "candidates": CANDIDATES}
        return {
            "selection": {
                **counts,
                "steps": found.steps,
                "values": found.values,
                "best": found.best,
            }
        }

    def added_to(self, stage: Stage) -> Stage:
        """The stage with this selection behind its own callbacks and end."""

        def finish(folder: Path) -> Json:
            return stage.finish(folder) | self.finish(folder)

        return replace(stage, callbacks=[*stage.callbacks, self], finish=finish)

    def _weights(self, step: int) -> Path:
        return self.folder / f"best-{step}.safetensors"

    def _recall(self) -> SelectionRecord:
        """What was measured so far, the best weights being there as they were written; else an
        InputError.
        """
        found = SelectionRecord.read(self.folder / _RECORD)
        file = self._weights(found.best)
        with explained(f"{file} is damaged", _TRAIN_AGAIN, OSError, ValueError, SafetensorError):
            if file_sha256(file) != found.weights_sha256:
                raise ValueError("its checksum is another")
        return found

    def _measure(self, step: int) -> None:
        if step in self._measured:
            return
        mode = self.model.training
        self.model.eval()
        value = fsum(chain(*do_each(self._reciprocal_ranks))) / len(
            self.candidates
        )  # whatever their order
        self.model.train(mode)
        on_main(lambda: self._keep(step, value))
        self._measured.add(step)

    def _reciprocal_ranks(self) -> list[float]:
        """Of this process's share of the queries."""
        queries = list(self.candidates)[rank() :: world_size()]
        scored = [
            pair
            for n in range(0, len(queries), _BLOCK)
            for pair in self._scores(queries[n : n + _BLOCK])
        ]
        ranking = Ranking.of_best(queries, scored, self.held.documents.tie_ranks(), 10)
        return held_out_scores(self.held, ranking).tolist() if queries else []

    def _keep(self, step: int, value: float) -> None:
        log.info(
            "step %d: MRR@10 of %d held-out queries is %.4f", step, len(self.held.queries), value
        )
        before = self._recall() if self._measured else SelectionRecord([], [], 0, "")
        best, hash = before.best, before.weights_sha256
        if value > max(before.values, default=-1.0):
            best, hash = step, keep_weights(self.model, self._weights(step))
        SelectionRecord([*before.steps, step], [*before.values, value], best, hash).write(
            self.folder / _RECORD
        )
        for file in self.folder.glob(
            "best-*.safetensors"
        ):  # after the record, which names the one that counts
            if file != self._weights(best):
                file.unlink()

    def _scores(self, queries: Sequence[str]) -> list[tuple[Ints, Floats]]:
        """Each query's candidates, (n,), and their scores."""
        rows = [self.candidates[query] for query in queries]
        wanted = np.unique(np.concatenate(rows))
        documents = self.held.documents.take(wanted)
        texts = np.array(
            [self.read(self.text_format.document(document)) for document in documents], object
        )
        asked = [self.read(self.held.queries[query]) for query in queries]
        places = [np.searchsorted(wanted, own) for own in rows]
        if hasattr(self.model, "predict"):
            pairs = [
                (text, document)
                for text, own in zip(asked, places, strict=True)
                for document in texts[own]
            ]
            raw = self.model.predict(
                pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False
            )
            found = np.split(
                np.asarray(raw, np.float32), np.cumsum([len(own) for own in rows])[:-1]
            )
        else:
            vectors = self.model.encode_document(texts.tolist(), show_progress_bar=False)
            similarity = self.model.similarity(
                self.model.encode_query(asked, show_progress_bar=False), vectors
            )
            dense = (
                (similarity.to_dense() if similarity.is_sparse else similarity)
                .float()
                .cpu()
                .numpy()
            )
            found = [line[own] for line, own in zip(dense, places, strict=True)]
        for query, own, scores in zip(queries, rows, found, strict=True):
            if len(wrong := own[~np.isfinite(scores)]):
                raise NonFiniteScores(self.held.documents.ids(wrong[:1]), [query])
        return list(zip(rows, found, strict=True))
