"""Held-out queries: which they are, their MRR@10, and the checkpoint that they choose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, TrainerState

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat, query_key
from beir_cocodr.distributed import do_each, on_main, rank, world_size
from beir_cocodr.errors import InputError, explained
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.generation.generation_record import GENERATION_FILE, read_generation
from beir_cocodr.io import atomic_path, file_sha256
from beir_cocodr.provenance import collection_provenance
from beir_cocodr.records import CollectionProvenance, Json, Record
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.hard_negatives.bm25_negatives import (
    bm25_negatives,
    relevant_rows,
)
from beir_cocodr.training.options import DistillOptions, FinetuneOptions
from beir_cocodr.training.shared_options import planned_steps
from beir_cocodr.training.trainer import Stage

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

#: The measure of held-out queries.
MEASURE = "RR@10"
_DEPTH = 10

#: BM25's best documents that are ranked beside the relevant ones of a held-out query.
CANDIDATES = 100

# Candidates that are encoded together: as vectors, and by any other model, which may keep a vector
# of each token.
_MOST_VECTORS = 20_000
_MOST_OTHERS = 8 * CANDIDATES

# The folder of what was measured so far, and its record.
_FOLDER = "selection"
_RECORD = "selection.json"
_TRAIN_AGAIN = "this training cannot be resumed: train again in another --output"
log = logging.getLogger(__name__)

#: Options of a training with held-out queries.
HoldingOut = FinetuneOptions | DistillOptions


def selecting_collection(collection: Collection, options: HoldingOut) -> Collection | None:
    """Return the split of a collection whose queries choose the checkpoint, if there is one.

    Raises:
        InputError: It is the split that is trained on, none of its queries has a relevant
            document, or nothing is measured on it.
    """
    split = options.select_split
    if split is None:
        return None
    if isinstance(options, DistillOptions) and options.select_epochs is None:
        raise InputError("select_split needs select_epochs; set it too")
    if split == collection.split:
        raise InputError(
            f"select_split {split} is the split that is trained on; name another split, or set "
            "held_out"
        )
    selecting = collection.in_split(split)
    relevant_rows(selecting)
    return selecting


def labelled_collections(
    collection: Collection, selecting: Collection | None
) -> list[CollectionProvenance]:
    """Return the provenance of what a training on labelled queries is given."""
    seen = [labelled_provenance(collection)]
    if selecting is not None:
        seen.append(labelled_provenance(selecting))
    return seen


def labelled_provenance(collection: Collection) -> CollectionProvenance:
    """Return the provenance of a labelled collection, and of its queries if they were generated."""
    seen = collection_provenance(collection, queries=True)
    folder = Path(collection.name)
    if not (folder / GENERATION_FILE).is_file():
        return seen
    record = read_generation(folder)
    generation = {"settings": record.settings, "counts": record.counts}
    return replace(seen, generation=generation)


def hold_out(
    collection: Collection, selecting: Collection | None, options: HoldingOut, seed: int
) -> tuple[Collection, Collection | None]:
    """Split a collection into the queries to train on and the held-out ones.

    A held-out query is not trained on in another spelling or for another document either, nor is it
    measured twice: generated queries may repeat a title for every passage of its document.

    Args:
        collection: a corpus with queries and judgements.
        selecting: another split, whose queries choose; none of ``collection`` is held out then.
        options: the share of the queries with a relevant document, and the most of them.
        seed: draws the queries.

    Returns:
        The collection without its held-out queries, and with these alone. The second is None where
        that is no query, with a warning if a share is wanted.
    """
    chosen = collection if selecting is None else selecting
    rng = np.random.default_rng(seed)
    names = rng.permutation(sorted(relevant_rows(chosen))).tolist()
    count = len(names)
    if selecting is None:
        count = int(options.held_out * len(names))
    different: dict[str, str] = {}
    for name in names:
        different.setdefault(query_key(chosen.queries[name]), name)
    held = list(different.values())[: min(count, options.most_held_out)]
    if not held:
        if options.held_out:
            log.warning(
                "held_out %g of %d queries is less than one query: none is held out, and nothing "
                "is measured",
                options.held_out,
                len(names),
            )
        return collection, None
    if selecting is not None:
        return collection, _only(chosen, held)
    left_out = {query_key(collection.queries[name]) for name in held}
    training = [
        name for name, text in collection.queries.items() if query_key(text) not in left_out
    ]
    repeated = len(collection.queries) - len(training) - len(held)
    if repeated:
        log.info(
            "%d queries have the text of a held-out one, and are neither trained on nor measured",
            repeated,
        )
    return _only(collection, training), _only(chosen, held)


def _only(collection: Collection, names: Iterable[str]) -> Collection:
    queries = {name: collection.queries[name] for name in names}
    qrels = {name: collection.qrels[name] for name in queries if name in collection.qrels}
    return replace(collection, queries=queries, qrels=qrels)


def held_out_scores(collection: Collection, ranking: Ranking) -> Floats:
    """Return (Q,) reciprocal ranks at 10 of ranked queries, by the judgements of a collection."""
    judged = {query: collection.qrels[query] for query in ranking.queries}
    results = ranking.results(collection.documents, depth=_DEPTH)
    values = score_queries(parse_measures(MEASURE), judged, results)
    scores: Floats = values[MEASURE]
    return scores


def keep_weights(model: COCODR, file: Path) -> str:
    """Write a model's weights, and return the file's checksum."""
    state = {}
    for name, weight in model.state_dict().items():
        state[name] = weight.detach().cpu().clone()
    with atomic_path(file) as temporary:
        save_file(state, temporary)
    return file_sha256(file)


def most_encoded(queries: int, documents: int) -> int:
    """Return the most texts that a measurement of an encoder on held-out queries encodes.

    Args:
        queries: the held-out queries.
        documents: documents of the corpus. Those that fit into memory are encoded once.
    """
    candidates = queries * (1 + CANDIDATES)
    if documents <= _MOST_VECTORS:
        candidates = min(candidates, documents)
    return queries + candidates


@dataclass(frozen=True)
class SelectionRecord(Record):
    """The measurements on held-out queries.

    Attributes:
        steps: the steps after which it was measured.
        values: MRR@10 after each.
        best: the first of the steps with the best value.
        weights_sha256: checksum of the weights then.
    """

    steps: list[int]
    values: list[float]
    best: int
    weights_sha256: str


class CheckpointSelection(TrainerCallback):
    """Measures held-out queries every few steps and at the end, and keeps the best weights.

    It measures MRR@10 among the relevant documents of a query and BM25's :data:`CANDIDATES` best
    others, scored as the model itself compares texts: that means the same for every architecture,
    and costs the same on a large corpus. All processes of a run share the queries. Values and
    weights are kept beside the checkpoints, so that a resumed run measures no step again.

    Args:
        held: the held-out queries, see :func:`hold_out`.
        model: the model that is trained.
        text_format: how BM25 and the model read documents.
        options: ``select_epochs`` and the batch size.
        output: the output of the training.
        examples: examples of a pass over the data.
        read: what every text passes before the host tokenises it.
    """

    def __init__(
        self,
        held: Collection,
        model: Any,
        text_format: TextFormat,
        options: HoldingOut,
        output: Path,
        examples: int,
        read: Callable[[str], str] = str,
    ) -> None:
        """Search for the candidates."""
        self.held = held
        self.model = model
        self.text_format = text_format
        self.read = read
        self.every = planned_steps(
            max_steps=-1,
            epochs=options.select_epochs or 1.0,
            examples=examples,
            batch_size=options.batch_size,
        )
        self.folder = output / CHECKPOINTS / _FOLDER
        relevant = relevant_rows(held)
        others = bm25_negatives(held, text_format, CANDIDATES)
        self.candidates: dict[str, Ints] = {}
        for query in held.queries:
            rows = [relevant[query], others[query]]
            self.candidates[query] = np.concatenate(rows)
        self._measured: set[int] = set()

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Recall what was measured before the run was interrupted."""
        self._measured = on_main(self._measured_before)
        if self.every >= state.max_steps and rank() == 0:
            log.warning(
                "no checkpoint is chosen by held-out queries within %d steps: lower select_epochs",
                self.every,
            )

    def on_step_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Measure, if it is time."""
        # The host makes a step too many where it resumes from the last one.
        is_due = state.global_step % self.every == 0
        if is_due and state.global_step <= state.max_steps:
            self._measure(state.global_step)

    def on_train_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Measure the last step."""
        if 0 < state.global_step <= state.max_steps:
            self._measure(state.global_step)

    def restore(self) -> None:
        """Put the best weights back after training, on every process."""
        record = on_main(self._recall)
        self.model.load_state_dict(load_file(self._weights(record.best)))

    def finish(self) -> Json:
        """Return what chose the best weights, for the record."""
        record = self._recall()
        return {
            "selection": {
                "measure": MEASURE,
                "queries": len(self.held.queries),
                "candidates": CANDIDATES,
                "steps": record.steps,
                "values": record.values,
                "best": record.best,
            }
        }

    def added_to(self, stage: Stage) -> Stage:
        """Return the stage with this selection after its own callbacks and end."""

        def finish(folder: Path) -> Json:
            return stage.finish(folder) | self.finish()

        return replace(
            stage,
            callbacks=[*stage.callbacks, self],
            concluding=[*stage.concluding, self.restore],
            finish=finish,
        )

    def _weights(self, step: int) -> Path:
        return self.folder / f"best-{step}.safetensors"

    def _measured_before(self) -> set[int]:
        has_record = (self.folder / _RECORD).is_file()
        if has_record:
            return set(self._recall().steps)
        return set()

    def _recall(self) -> SelectionRecord:
        """Return what was measured so far, after a check of the best weights."""
        record = SelectionRecord.read(self.folder / _RECORD)
        file = self._weights(record.best)
        with explained(f"{file} is damaged", _TRAIN_AGAIN, OSError, ValueError, SafetensorError):
            if file_sha256(file) != record.weights_sha256:
                raise ValueError("its checksum differs")
        return record

    def _measure(self, step: int) -> None:
        if step in self._measured:
            return
        mode = self.model.training
        self.model.eval()
        # An exact sum, whatever the order of the processes.
        total = fsum(chain(*do_each(self._own_ranks)))
        value = total / len(self.candidates)
        self.model.train(mode)
        on_main(lambda: self._keep(step, value))
        self._measured.add(step)

    def _own_ranks(self) -> list[float]:
        """Return the reciprocal ranks of this process's share of the queries."""
        queries = list(self.candidates)
        return self.reciprocal_ranks(queries[rank() :: world_size()])

    def reciprocal_ranks(self, queries: Sequence[str]) -> list[float]:
        """Return the reciprocal ranks at 10 of some held-out queries, in their order."""
        if not queries:
            return []
        scored: list[tuple[Ints, Floats]] = []
        for block in self._blocks(queries):
            scored += self._scores(block)
        ties = self.held.documents.tie_ranks()
        ranking = Ranking.of_best(queries, scored, ties, _DEPTH)
        ranks: list[float] = held_out_scores(self.held, ranking).tolist()
        return ranks

    def _blocks(self, queries: Sequence[str]) -> Iterator[list[str]]:
        """Yield queries in their order, as many as share candidates that fit into memory."""
        has_vectors = isinstance(self.model, SentenceTransformer)
        most = _MOST_VECTORS if has_vectors else _MOST_OTHERS
        block: list[str] = []
        encoded: set[int] = set()
        for query in queries:
            candidates = self.candidates[query].tolist()
            encoded.update(candidates)
            if block and len(encoded) > most:
                yield block
                block = []
                encoded = set(candidates)
            block.append(query)
        yield block

    def _keep(self, step: int, value: float) -> None:
        """Record a value, and keep the weights if it is the best."""
        log.info(
            "step %d: MRR@10 of %d held-out queries is %.4f", step, len(self.held.queries), value
        )
        before = self._recall() if self._measured else SelectionRecord([], [], 0, "")
        best = before.best
        digest = before.weights_sha256
        if value > max(before.values, default=-1.0):
            best = step
            digest = keep_weights(self.model, self._weights(step))
        record = SelectionRecord(
            steps=[*before.steps, step],
            values=[*before.values, value],
            best=best,
            weights_sha256=digest,
        )
        record.write(self.folder / _RECORD)
        # After the record, which names the file that counts.
        for file in self.folder.glob("best-*.safetensors"):
            if file != self._weights(best):
                file.unlink()

    def _scores(self, queries: Sequence[str]) -> list[tuple[Ints, Floats]]:
        """Return each query's candidates, (n,), and their scores."""
        rows = [self.candidates[query] for query in queries]
        all_rows = np.unique(np.concatenate(rows))
        documents = self.held.documents.take(all_rows)
        read = [self.read(self.text_format.document(document)) for document in documents]
        texts = np.array(read, object)
        query_texts = [self.read(self.held.queries[query]) for query in queries]
        places = [np.searchsorted(all_rows, candidates) for candidates in rows]
        if hasattr(self.model, "predict"):
            scores = self._pair_scores(query_texts, texts, places)
        else:
            scores = self._vector_scores(query_texts, texts, places)
        for query, candidates, values in zip(queries, rows, scores, strict=True):
            is_finite = np.isfinite(values)
            wrong = candidates[~is_finite]
            if len(wrong):
                raise NonFiniteScores(self.held.documents.ids(wrong[:1]), [query])
        return list(zip(rows, scores, strict=True))

    def _pair_scores(
        self, queries: Sequence[str], texts: np.ndarray, places: Sequence[Ints]
    ) -> list[Floats]:
        """Return the scores of a model of pairs, such as a cross-encoder."""
        pairs = []
        for query, candidates in zip(queries, places, strict=True):
            pairs += [(query, document) for document in texts[candidates]]
        raw = self.model.predict(
            pairs,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        lengths = [len(candidates) for candidates in places]
        ends = np.cumsum(lengths)
        scores = np.asarray(raw, np.float32)
        return np.split(scores, ends[:-1])

    def _vector_scores(
        self, queries: Sequence[str], texts: np.ndarray, places: Sequence[Ints]
    ) -> list[Floats]:
        """Return the scores of an encoder, by its own similarity."""
        documents = self.model.encode_document(texts.tolist(), show_progress_bar=False)
        query_vectors = self.model.encode_query(list(queries), show_progress_bar=False)
        similarity = self.model.similarity(query_vectors, documents)
        dense = similarity.to_dense() if similarity.is_sparse else similarity
        matrix = dense.float().cpu().numpy()  # (Q, D)
        return [line[candidates] for line, candidates in zip(matrix, places, strict=True)]
