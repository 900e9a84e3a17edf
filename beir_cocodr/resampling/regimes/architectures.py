"""What a retrieval architecture has to offer to be judged in both regimes.

Architectures by name.

Dense retrieval: in-batch negatives, hard negatives, or a teacher's lists.

A cross-encoder by sentence-transformers, for reranking.

Late interaction by sentence-transformers.

SPLADE by sentence-transformers.

BM25 with parameters tuned on training queries.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainer,
    SparseEncoderTrainingArguments,
)
from sentence_transformers.base.modules import Normalize
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.cross_encoder.losses import RankNetLoss
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.io import write_text
from beir_cocodr.provenance import TrainingPlan, collection_provenance
from beir_cocodr.resampling.regimes.host_training import (
    HostRun,
    Recipe,
    TrainingUnit,
    is_trained,
    masked_language_model,
    run_host,
    save_start,
)
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.training.distill import distill
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.negatives import bm25_negatives
from beir_cocodr.training.options import DistillOptions, FinetuneOptions
from beir_cocodr.training.pairs import BatchKeys, TrainingPairs
from beir_cocodr.training.trainer import GuardedTrainer


class Architecture(Protocol):
    """Trains models of one kind; what it saves, `load_retriever` ranks with.

    Attributes:
        name: as on the command line.
        seeded: whether two seeds give two models.
    """

    name: str
    seeded: bool

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        """Train on the split "train" of a collection and save the model.

        Args:
            dataset: a BEIR folder.
            output: folder for the model; an interrupted one is taken up or begun anew.
            recipe: see :class:`Recipe`.
            seed: of everything that is drawn.
            shared: folder for what does not depend on training queries and serves other sets as well.

        Returns:
            What `load_retriever` takes.
        """
        ...


NAMES = (
    "bm25",
    "dense",
    "dense-hard",
    "dense-distilled",
    "splade",
    "late-interaction",
    "cross-encoder",
)


def find_architectures(names: Sequence[str]) -> list[Architecture]:
    """The architectures of these names; "all" stands for every one.

    Raises:
        InputError: a name that is unknown or given twice.
    """
    names = [*NAMES] if list(names) == ["all"] else list(names)
    for name in names:
        if name not in NAMES:
            raise InputError(f"unknown architecture {name!r}; there are all, {', '.join(NAMES)}")
        if names.count(name) > 1:
            raise InputError(f"architecture {name!r} is named twice; name each once")
    return [_make(name) for name in names]


def _make(name: str) -> Architecture:
    # Imported where they are asked for: BM25 alone needs no torch.
    if name == "bm25":
        return TunedBM25()
    if name.startswith("dense"):
        return DenseArchitecture(name)
    if name == "splade":
        return Splade()
    if name == "late-interaction":
        return LateInteraction()

    return CrossEncoderReranker()


class DenseArchitecture:
    """An encoder trained by `finetune` or `distill`, from the recipe's start.

    Args:
        name: "dense" (the paper's base setting: other documents of the batch are the negatives, and
            cross-entropy), "dense-hard" (BM25's or mined negatives besides), or "dense-distilled" (LambdaRank
            on a teacher's lists).

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2; teacher and hard negatives there are ColBERT and
    STAR/ADORE.
    """

    seeded = True

    def __init__(self, name: str) -> None:
        self.name = name

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        budget: dict[str, Any] = {
            "max_steps": recipe.max_steps,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "learning_rate": recipe.learning_rate,
            "warmup": recipe.warmup,
            "seed": seed,
        }
        if self.name == "dense-distilled":
            lists = DistillOptions(
                **budget,
                # Equal budgets: no early stopping, and no search of the student's own candidates.
                held_out=0.0,
                positives=1,
                m_bm25=recipe.list_size - 1,
                m_hard=0,
            )
            distill(dataset, recipe.start, recipe.teacher, output, lists, resume=True, encoder=recipe.encoder)
            return output
        hard = self.name == "dense-hard"
        options = FinetuneOptions(
            **budget,
            negatives=recipe.negatives if hard else 0,
            negative_depth=recipe.negative_depth,
            stages=2 if hard and recipe.hard_negatives == "mined" else 1,
        )
        finetune(dataset, recipe.start, output, options, resume=True, encoder=recipe.encoder)
        return output


class CrossEncoderReranker:
    """Query and document read together for one score, trained by pairwise cross-entropy (the host's RankNet
    loss) of a relevant document against BM25's negatives.

    Source: BERT reranker (Nogueira and Cho, 2019); Zhan et al., 2022, section 5.1.2.
    """

    name = "cross-encoder"
    seeded = True

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if is_trained(output):
            return output
        collection = load_collection(dataset, "train")
        start = output / "start"
        text_format = save_start(recipe, seed, start)
        model = CrossEncoder(str(start), num_labels=1, device=recipe.device)
        lengths = (text_format.query_length or 0) + (text_format.document_length or 0)
        model.max_seq_length = min(lengths, model.config.max_position_embeddings)
        shutil.rmtree(start)
        options = FinetuneOptions(negatives=recipe.negatives, batch_size=recipe.batch_size, seed=seed)
        pool = bm25_negatives(collection, text_format, recipe.negative_depth, seed)
        pairs = TrainingPairs(collection, text_format, options, pool)
        run = HostRun(
            trainer=_CrossEncoderTrainer,
            arguments=CrossEncoderTrainingArguments,
            model=model,
            loss=RankNetLoss(model),
            dataset=_Lists(pairs).dataset(),
            callbacks=[pairs.clock],
            plan=TrainingPlan(self.name, seen=(collection_provenance(collection, queries=True),)),
        )
        return run_host(run, output, recipe, seed)


@dataclass
class _Lists:
    """(query, [positive, negatives ...], [1, 0 ...]), negatives drawn anew each epoch."""

    pairs: TrainingPairs

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"pair": range(len(self.pairs.positives))}).with_transform(self._draw)

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        pairs = self.pairs
        columns: dict[str, list[Any]] = {"query": [], "documents": [], "label": []}
        for pair in batch["pair"]:
            found = pairs.collection.documents.take(pairs.rows(pair))
            columns["query"].append(pairs.collection.queries[pairs.queries[pair]])
            columns["documents"].append([pairs.text_format.document(document) for document in found])
            columns["label"].append([1.0] + [0.0] * (len(found) - 1))
        return columns


class _CrossEncoderTrainer(GuardedTrainer, CrossEncoderTrainer):
    pass


_DIMENSIONS = 128


class LateInteraction:
    """A vector of 128 dimensions for every token, compared by MaxSim, trained on in-batch negatives.

    The modules are those that the host puts on a bare transformer; the projection is drawn by the seed.

    Source: ColBERT (Khattab and Zaharia, 2020); Zhan et al., 2022, section 5.1.2.
    """

    name = "late-interaction"
    seeded = True

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if is_trained(output):
            return output
        collection = load_collection(dataset, "train")
        start = output / "start"
        text_format = save_start(recipe, seed, start)
        transformer = Transformer(
            str(start), query_length=text_format.query_length, document_length=text_format.document_length
        )
        shutil.rmtree(start)
        projection = Dense(
            in_features=transformer.get_embedding_dimension(),
            out_features=_DIMENSIONS,
            bias=False,
            activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings",
        )
        normalize = Normalize(module_input_name="token_embeddings")
        model = MultiVectorEncoder(
            modules=[transformer, projection, MultiVectorMask(), normalize],
            similarity_fn_name="maxsim",
            device=recipe.device,
        )
        options = FinetuneOptions(negatives=0, batch_size=recipe.batch_size, seed=seed)
        pairs = TrainingPairs(collection, text_format, options)
        run = HostRun(
            trainer=_LateInteractionTrainer,
            arguments=MultiVectorEncoderTrainingArguments,
            model=model,
            loss=MultiVectorMultipleNegativesRankingLoss(model),
            dataset=pairs.dataset(),
            batch_keys=BatchKeys(pairs),
            column_tasks={"query": "query", "positive": "document"},
            callbacks=[pairs.clock],
            names=pairs.names,
            plan=TrainingPlan(self.name, seen=(collection_provenance(collection, queries=True),)),
        )
        return run_host(run, output, recipe, seed)


class _LateInteractionTrainer(GuardedTrainer, MultiVectorEncoderTrainer):
    pass


class Splade:
    """Maximum pooling of log(1 + relu) over a masked language model's logits, trained on in-batch negatives
    with the host's SPLADE loss (FLOPS regularizers, their weights rising over the first third).

    Source: SPLADE v2 (Formal et al., 2021); Zhan et al., 2022, section 5.1.2.
    """

    name = "splade"
    seeded = True

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if is_trained(output):
            return output
        collection = load_collection(dataset, "train")
        source, text_format = masked_language_model(collection, recipe, seed, shared)
        transformer = Transformer(
            source,
            transformer_task="fill-mask",
            query_length=text_format.query_length,
            document_length=text_format.document_length,
        )
        model = SparseEncoder(
            modules=[transformer, SpladePooling("max")], similarity_fn_name="dot", device=recipe.device
        )
        options = FinetuneOptions(negatives=0, batch_size=recipe.batch_size, seed=seed)
        pairs = TrainingPairs(collection, text_format, options)
        run = HostRun(
            trainer=_SpladeTrainer,
            arguments=SparseEncoderTrainingArguments,
            model=model,
            loss=SpladeLoss(
                model,
                SparseMultipleNegativesRankingLoss(model),
                document_regularizer_weight=recipe.document_flops,
                query_regularizer_weight=recipe.query_flops,
            ),
            dataset=pairs.dataset(),
            batch_keys=BatchKeys(pairs),
            column_tasks={"query": "query", "positive": "document"},
            callbacks=[pairs.clock],
            names=pairs.names,
            plan=TrainingPlan(self.name, seen=(collection_provenance(collection, queries=True),)),
        )
        return run_host(run, output, recipe, seed)


class _SpladeTrainer(GuardedTrainer, SparseEncoderTrainer):
    pass


log = logging.getLogger(__name__)

#: What `load_retriever` knows a tuned BM25 by.
BM25_FILE = "bm25.json"

#: The usual parameters stand first, and stay where no others are better.
K1, B = (0.9, 0.6, 1.2, 1.6), (0.4, 0.2, 0.6, 0.8)

_MEASURE = "nDCG@10"

_DEPTH = 10

_MOST_QUERIES = 500


class TunedBM25:
    """BM25, k1 and b from a grid of 16 by nDCG@10 over at most 500 evenly spaced training queries.

    Source: Zhan et al., 2022, section 5.1.2 (grid search on the training data).
    """

    name = "bm25"
    seeded = False

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        file = output / BM25_FILE
        if file.is_file():
            return output
        collection = load_collection(dataset, "train")
        ids = list(collection.qrels)
        chosen = [ids[int(i)] for i in np.linspace(0, len(ids) - 1, min(_MOST_QUERIES, len(ids)))]
        qrels = {query: collection.qrels[query] for query in chosen}
        queries = {query: collection.queries[query] for query in chosen}
        [measure] = parse_measures(_MEASURE)
        grid = []
        for k1, b in itertools.product(K1, B):
            found = BM25(collection.documents, k1=k1, b=b).search(queries, _DEPTH)
            scores = score_queries([measure], qrels, found.results(collection.documents))
            grid.append({"k1": k1, "b": b, _MEASURE: float(scores[_MEASURE].mean())})
        best = max(grid, key=lambda point: point[_MEASURE])  # the first among equals
        log.info("BM25 on %s: k1 %g, b %g", dataset, best["k1"], best["b"])
        record = {"k1": best["k1"], "b": best["b"], "queries": len(queries), "grid": grid}
        write_text(file, json.dumps(record, indent=2) + "\n")
        return output


#: Placeholders in the path of given models.
SET, SEED = "{set}", "{seed}"

#: The architecture that can be the teacher of another on the same set.
TEACHER = "cross-encoder"


@dataclass(frozen=True)
class Candidate:
    """One row of the table.

    Attributes:
        name: of the row.
        seeds: of its models.
        model: trains or finds the model of a set and a seed.
        where: of what is given, its path; None for what is trained.
    """

    name: str
    seeds: tuple[int, ...]
    model: Callable[[TrainingUnit, int], str]
    where: str | None = None


def trained(architecture: Architecture, recipe: Recipe, seeds: Sequence[int], output: Path) -> Candidate:
    """An architecture; its models go to ``output/models/SET/NAME-SEED``.

    An architecture without anything random has one model, of the first seed.
    """

    def model(unit: TrainingUnit, seed: int) -> str:
        own = recipe
        if architecture.name == "dense-distilled" and recipe.teacher == TEACHER:
            [teacher] = find_architectures([TEACHER])
            own = replace(recipe, teacher=trained(teacher, recipe, [seed], output).model(unit, seed))
        folder = model_folder(output, unit, architecture.name, seed)
        shared = output / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        return str(architecture.train(str(unit.train), folder, own, seed, shared))

    return Candidate(architecture.name, tuple(seeds if architecture.seeded else seeds[:1]), model)


def given(name: str, path: str, seeds: Sequence[int]) -> Candidate:
    """Models that are there already.

    Args:
        name: of the row.
        path: what `load_retriever` takes, in which ``{set}`` stands for the name of a training set
            (``interpolation``, ``size-45k/extrapolation``, ``bucket-1``), and ``{seed}`` for a seed. Without
            ``{set}`` one model is judged in both regimes.
        seeds: used where the path has ``{seed}``.
    """

    def model(unit: TrainingUnit, seed: int) -> str:
        return path.replace(SET, unit.name).replace(SEED, str(seed))

    return Candidate(name, tuple(seeds if SEED in path else seeds[:1]), model, path)


def given_by_options(options: Sequence[str], seeds: Sequence[int]) -> list[Candidate]:
    """Given models from NAME=PATH.

    Raises:
        InputError: an option that is not of this form.
    """
    found = []
    for option in options:
        name, equals, path = option.partition("=")
        if not (name and equals and path) or "/" in name:
            raise InputError(
                f"--model {option!r}: give NAME=PATH, where PATH may hold {SET} and {SEED}, as in "
                "mine=runs/{set}-{seed}"
            )
        found.append(given(name, path, seeds))
    return found


def model_folder(output: Path, unit: TrainingUnit, name: str, seed: int) -> Path:
    """Where a trained model goes."""
    return output / "models" / unit.name / f"{name}-{seed}"
