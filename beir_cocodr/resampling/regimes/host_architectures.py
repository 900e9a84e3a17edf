"""Model classes of sentence-transformers as architectures, trained by the host's own trainers."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import sentence_transformers as st
from datasets import Dataset
from sentence_transformers.base.modules import Normalize
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.cross_encoder.losses import RankNetLoss
from sentence_transformers.multi_vector_encoder.losses import (
    MultiVectorMultipleNegativesRankingLoss,
)
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.sparse_encoder.losses import (
    FlopsLoss,
    SparseMultipleNegativesRankingLoss,
    SpladeLoss,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util.distributed import all_gather_with_grad
from torch import Tensor, nn

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.text import TextFormat, readable
from beir_cocodr.distributed import on_main, wait_for_all, world_size
from beir_cocodr.models.checkpoints.integrity import NEW_CLASSIFIER, SPARSE, loading
from beir_cocodr.provenance import TrainingPlan, collection_provenance, read_record
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.starts import masked_language_model, save_start
from beir_cocodr.training.batches import drawn_dataset
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.hard_negatives.bm25_negatives import bm25_negatives
from beir_cocodr.training.held_out import CheckpointSelection, hold_out
from beir_cocodr.training.options import DistillOptions, FinetuneOptions
from beir_cocodr.training.output_folder import lock_output
from beir_cocodr.training.trainer import GuardedTrainer, Stage, run_stage

Options = TypeVar("Options", DistillOptions, FinetuneOptions)

#: Dimensions of the vector of a token in late interaction.
_DIMENSIONS = 128


def budgeted(
    kind: type[Options],
    recipe: Recipe,
    seed: int,
    **settings: int,
) -> Options:
    """Return options of a stage with the recipe's budget and held-out queries.

    No stage stops early.
    """
    return kind.of(
        max_steps=recipe.max_steps,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        warmup=recipe.warmup,
        precision=recipe.precision,
        held_out=recipe.held_out,
        most_held_out=recipe.most_held_out,
        select_epochs=recipe.select_epochs or 1.0,
        seed=seed,
        encoder=recipe.encoder,
        **settings,
    )


class HostArchitecture:
    """A model class of sentence-transformers, trained from the recipe's start.

    A subclass builds the model and its loss, and names the host's classes for :class:`Stage`.

    Attributes:
        seeded: False if seeds make no difference.
        listwise: whether a query comes with a relevant document, BM25's negatives and their labels;
            otherwise the other documents of the batch are the negatives.
        trainer: the host's trainer, guarded.
        arguments: the host's arguments of that trainer.
    """

    seeded = True
    listwise = False
    trainer: type[GuardedTrainer]
    arguments: Any

    def __init__(self, name: str) -> None:
        """Take the name of its row."""
        self.name = name

    def start(
        self,
        collection: Collection,
        folder: Path,
        recipe: Recipe,
        seed: int,
        shared: Path,
    ) -> tuple[str, TextFormat]:
        """Return the folder or name that the model is built on, and its text format.

        Args:
            collection: what the model is trained on.
            folder: where the start may be saved; it is removed once the model is built.
            recipe: names the start.
            seed: of layers that the start lacks.
            shared: folder for what serves other sets too.
        """
        return str(folder), save_start(recipe, seed, folder)

    def build(
        self,
        source: str,
        text_format: TextFormat,
        recipe: Recipe,
    ) -> tuple[Any, nn.Module]:
        """Return the host's model and loss."""
        raise NotImplementedError

    def train(
        self,
        dataset: str,
        output: Path,
        recipe: Recipe,
        seed: int,
        shared: Path,
    ) -> Path:
        """Train on the split "train" of a collection, and save the model to ``output``.

        See :class:`~beir_cocodr.resampling.regimes.architectures.Architecture`.
        """
        if on_main(lambda: read_record(output)) is not None:
            return output
        collection = load_collection(dataset, "train")
        folder = output / "start"
        on_main(lambda: _clear(output, folder))
        source, text_format = self.start(
            collection,
            folder,
            recipe,
            seed,
            shared,
        )
        model, loss = self.build(source, text_format, recipe)
        read = readable(model.tokenizer)
        wait_for_all()  # until each has read the start
        on_main(lambda: shutil.rmtree(folder, ignore_errors=True))
        negatives = recipe.negatives if self.listwise else 0
        options = budgeted(FinetuneOptions, recipe, seed, negatives=negatives)
        rest, held_out = hold_out(collection, None, options, seed)
        pools = None
        if negatives:
            pools = bm25_negatives(rest, text_format, recipe.negative_depth, seed)
        pairs = TrainingPairs(rest, text_format, options, pools)
        stage = Stage(
            plan=self._plan(collection, recipe, seed),
            model=model,
            loss=loss,
            dataset=_lists(pairs, read) if self.listwise else pairs.dataset(read),
            callbacks=[pairs.clock],
            details={"recipe": recipe.describe(), "seed": seed},
            trainer=self.trainer,
            arguments=self.arguments,
        )
        if not self.listwise:
            stage = _with_batch_negatives(stage, pairs)
        with lock_output(output, True, stage.plan) as finished:
            if finished is not None:
                return output
            if held_out is not None:
                examples = len(pairs.positives)
                selection = CheckpointSelection(
                    held_out,
                    model,
                    text_format,
                    options,
                    output,
                    examples,
                    read,
                )
                stage = selection.added_to(stage)
            run_stage(stage, options, output, resume=True)
        return output

    def _plan(self, collection: Collection, recipe: Recipe, seed: int) -> TrainingPlan:
        seen = collection_provenance(collection, queries=True)
        return TrainingPlan(self.name, options=recipe.describe() | {"seed": seed}, seen=(seen,))


def _with_batch_negatives(stage: Stage, pairs: TrainingPairs) -> Stage:
    """Keep texts that two rows share out of one batch, and name the columns for the encoder."""
    return replace(
        stage,
        batch_keys=pairs.batch_keys(),
        column_tasks={"query": "query", "positive": "document"},
        names=pairs.names,
    )


def _clear(output: Path, start: Path) -> None:
    """Remove what an interrupted training left, except for checkpoints to resume from."""
    has_checkpoints = (output / CHECKPOINTS).is_dir()
    shutil.rmtree(start if has_checkpoints else output, ignore_errors=True)


def _lists(pairs: TrainingPairs, read: Callable[[str], str]) -> Dataset:
    """Return rows (query, [positive, negatives ...], [1, 0 ...]), with new negatives each epoch.

    Args:
        pairs: queries with relevant documents and pools of negatives.
        read: converts a text before it is tokenized.
    """

    def draw(batch: dict[str, list[int]]) -> dict[str, list[object]]:
        columns: dict[str, list[object]] = {"query": [], "documents": [], "label": []}
        for pair in batch["pair"]:
            documents = pairs.collection.documents.take(pairs.rows(pair))
            texts = [read(pairs.text_format.document(document)) for document in documents]
            query = pairs.queries[pair]
            columns["query"].append(read(pairs.collection.queries[query]))
            columns["documents"].append(texts)
            columns["label"].append([1.0] + [0.0] * (len(texts) - 1))
        return columns

    return drawn_dataset("pair", np.arange(len(pairs.positives)), draw)


class _CrossEncoderTrainer(GuardedTrainer, st.CrossEncoderTrainer):
    pass


class CrossEncoderReranker(HostArchitecture):
    """Query and document read together for one score.

    It is trained by pairwise cross-entropy (the host's RankNet loss) of a relevant document against
    BM25's negatives.

    Source: BERT reranker (Nogueira and Cho, 2019); Zhan et al., 2022, section 5.1.2.
    """

    listwise = True
    trainer = _CrossEncoderTrainer
    arguments = st.CrossEncoderTrainingArguments

    def build(
        self,
        source: str,
        text_format: TextFormat,
        recipe: Recipe,
    ) -> tuple[Any, nn.Module]:
        """Return a cross-encoder with a new classifier, and its loss."""
        with loading(source, NEW_CLASSIFIER):
            model: Any = st.CrossEncoder(source, num_labels=1, device=recipe.device)
        length = (text_format.query_length or 0) + (text_format.document_length or 0)
        model.max_seq_length = min(length, model.config.max_position_embeddings)
        # DDP finds what a step uses only in dictionaries, and the host gives a mapping of its
        # tokenizer.
        model.register_forward_hook(lambda module, inputs, features: dict(features))
        return model, RankNetLoss(model)


class _LateInteractionTrainer(GuardedTrainer, st.MultiVectorEncoderTrainer):
    pass


class LateInteractionArchitecture(HostArchitecture):
    """A vector of 128 dimensions for every token, compared by MaxSim.

    It is trained on in-batch negatives. The modules are those that the host adds to a bare
    transformer; the projection is drawn by the seed.

    Source: ColBERT (Khattab and Zaharia, 2020); Zhan et al., 2022, section 5.1.2.
    """

    trainer = _LateInteractionTrainer
    arguments = st.MultiVectorEncoderTrainingArguments

    def build(
        self,
        source: str,
        text_format: TextFormat,
        recipe: Recipe,
    ) -> tuple[Any, nn.Module]:
        """Return a transformer with a projection of its tokens, and its loss."""
        with loading(source):
            transformer = Transformer(
                source,
                query_length=text_format.query_length,
                document_length=text_format.document_length,
            )
        projection = Dense(
            transformer.get_embedding_dimension(),
            _DIMENSIONS,
            bias=False,
            activation_function=nn.Identity(),
            module_input_name="token_embeddings",
        )
        normalize = Normalize(module_input_name="token_embeddings")
        model = st.MultiVectorEncoder(
            modules=[transformer, projection, MultiVectorMask(), normalize],
            similarity_fn_name="maxsim",
            device=recipe.device,
        )
        loss = MultiVectorMultipleNegativesRankingLoss(
            model, gather_across_devices=world_size() > 1
        )
        return model, loss


class _Flops(FlopsLoss):
    """The host's regularizer over the batch of all processes, as it is no mean over their parts."""

    def compute_loss_from_embeddings(self, embeddings: Tensor) -> Tensor:
        """Return the loss of the (b, V) embeddings of all processes."""
        if world_size() > 1:
            embeddings = all_gather_with_grad(embeddings)
        loss: Tensor = super().compute_loss_from_embeddings(embeddings)
        return loss


class _SpladeTrainer(GuardedTrainer, st.SparseEncoderTrainer):
    pass


class Splade(HostArchitecture):
    """Maximum pooling of log(1 + relu) over the logits of a masked language model.

    It is trained on in-batch negatives with the host's SPLADE loss: FLOPS regularizers, whose
    weights rise over the first third.

    Source: SPLADE v2 (Formal et al., 2021); Zhan et al., 2022, section 5.1.2.
    """

    trainer = _SpladeTrainer
    arguments = st.SparseEncoderTrainingArguments

    def start(
        self,
        collection: Collection,
        folder: Path,
        recipe: Recipe,
        seed: int,
        shared: Path,
    ) -> tuple[str, TextFormat]:
        """Return a masked language model around the recipe's start, and its text format."""
        return masked_language_model(collection, recipe, seed, shared)

    def build(
        self,
        source: str,
        text_format: TextFormat,
        recipe: Recipe,
    ) -> tuple[Any, nn.Module]:
        """Return a masked language model with SPLADE's pooling, and its loss."""
        with loading(source, SPARSE):
            transformer = Transformer(
                source,
                transformer_task="fill-mask",
                query_length=text_format.query_length,
                document_length=text_format.document_length,
            )
        model = st.SparseEncoder(
            modules=[transformer, SpladePooling("max")],
            similarity_fn_name="dot",
            device=recipe.device,
        )
        loss = SpladeLoss(
            model,
            SparseMultipleNegativesRankingLoss(model, gather_across_devices=world_size() > 1),
            document_regularizer_weight=recipe.document_flops,
            query_regularizer_weight=recipe.query_flops,
            document_regularizer=_Flops(model),
            query_regularizer=_Flops(model),
        )
        return model, loss
