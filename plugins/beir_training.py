"""BEIR's training: its ``TrainRetriever`` over sentence-transformers' trainer.

BEIR 2.2 imports an optimizer that transformers 5 no longer has, so none of its training scripts
starts there. They run with one line changed::

    from beir_cocodr.plugins.beir import TrainRetriever
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.datasets import NoDuplicatesDataLoader
from sentence_transformers.sentence_transformer.evaluation import (
    InformationRetrievalEvaluator,
    SentenceEvaluator,
)
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.temporary import TemporaryFolder

# Old names of learning-rate schedules to those of transformers.
_SCHEDULES = {
    "constantlr": "constant",
    "warmupconstant": "constant_with_warmup",
    "warmuplinear": "linear",
    "warmupcosine": "cosine",
    "warmupcosinewithhardrestarts": "cosine_with_restarts",
}

# An option of the optimizer that BEIR's scripts set and torch's does not have.
_BIAS = "correct_bias"

_LABEL = "label"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often training is saved to be resumed; the names are those of the host's fit.

    Attributes:
        checkpoint_path: The folder. Default: no checkpoints.
        checkpoint_save_steps: Steps between two checkpoints.
        checkpoint_save_total_limit: Checkpoints that are kept; 0 keeps all.
        resume_from_checkpoint: Continue from the last checkpoint of the folder.
        show_progress_bar: Show a progress bar.
    """

    checkpoint_path: str | None = None
    checkpoint_save_steps: int = 500
    checkpoint_save_total_limit: int = 0
    resume_from_checkpoint: bool = False
    show_progress_bar: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Checkpoints:
        """Take options by name, and refuse others."""
        for name in options:
            if name not in cls.__dataclass_fields__:
                raise InputError(f"fit has no option {name!r}; leave it out")
        return cls(**options)

    def last(self) -> str | None:
        """Return the last checkpoint if training is to be resumed and has one."""
        folder = self.checkpoint_path
        if not self.resume_from_checkpoint or folder is None:
            return None
        if not Path(folder).is_dir():
            return None
        checkpoint: str | None = get_last_checkpoint(folder)
        return checkpoint

    def arguments(self, scratch: str) -> dict[str, Any]:
        """Return the trainer's arguments; ``scratch`` is a folder to use without checkpoints."""
        return {
            "output_dir": self.checkpoint_path or scratch,
            "save_strategy": "steps" if self.checkpoint_path else "no",
            "save_steps": self.checkpoint_save_steps,
            "save_total_limit": self.checkpoint_save_total_limit or None,
            "disable_tqdm": not self.show_progress_bar,
        }


@dataclass(frozen=True)
class Objective:
    """Examples, and the loss that they are trained with.

    Attributes:
        examples: A column for each text of an example, and one for its label.
        texts: The names of the columns of texts.
        loss: The loss.
        sampling: The trainer's batch sampler.
    """

    examples: Dataset
    texts: list[str]
    loss: nn.Module
    sampling: Any

    @classmethod
    def of(cls, loader: Any, loss: nn.Module) -> Objective:
        """Take the examples and the order of a loader by :class:`TrainRetriever`.

        Raises:
            InputError: The loader has no examples.
        """
        is_triplets = isinstance(loader, NoDuplicatesDataLoader)
        source = loader.train_examples if is_triplets else loader.dataset
        if not len(source):
            raise InputError("there are no examples to train on; check the queries and the qrels")
        sampling: Any = "batch_sampler"
        if is_triplets:
            sampling = "no_duplicates"
        elif isinstance(loader.sampler, SequentialSampler):
            sampling = _in_order
        if isinstance(source, list):
            columns = _columns(source)
            if all(label == 0 for label in columns[_LABEL]):
                del columns[_LABEL]  # 0 is what an example without a label has
            examples = Dataset.from_dict(columns)
        else:
            columns = _columns([source[0]])
            rows = Dataset.from_dict({"row": range(len(source))})
            examples = rows.with_transform(
                lambda batch: _columns([source[row] for row in batch["row"]])
            )
        texts = [name for name in columns if name != _LABEL]
        return cls(examples, texts, loss, sampling)


class LatestModel(SentenceEvaluator):
    """An evaluator by which the latest model is the best; it evaluates nothing."""

    def __init__(self) -> None:
        """Begin to count."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.primary_metric = "evaluations"
        self.evaluations = 0

    def __call__(
        self,
        model: Any,
        output_path: str | None = None,
        epoch: int = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """Return how often it was called."""
        self.evaluations += 1
        return {"evaluations": float(self.evaluations)}


@dataclass
class Evaluations(TrainerCallback):  # type: ignore[misc]
    """Evaluates a model while it is trained, and saves it whenever it is the best so far.

    Attributes:
        evaluator: Evaluates the model.
        steps: Steps between two evaluations; an epoch's end is always evaluated.
        folder: Folder of the model; None saves nothing.
        callback: Called with score, epoch and step of each evaluation.
        best: The best score so far.
        last: The step of the last evaluation.
    """

    evaluator: SentenceEvaluator
    steps: set[int] = field(default_factory=set)
    folder: str | None = None
    callback: Callable[[float, int, int], None] | None = None
    best: float | None = None
    last: int = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate after one of the steps; the trainer calls it."""
        if any(state.global_step % steps == 0 for steps in self.steps):
            self._evaluate(kwargs["model"], state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate an epoch; the trainer calls it."""
        self._evaluate(kwargs["model"], state)

    def _evaluate(self, model: SentenceTransformer, state: Any) -> None:
        if state.global_step == self.last:
            return
        self.last = state.global_step
        was_training = model.training
        epoch = int(state.epoch)
        output = str(Path(self.folder, "eval")) if self.folder else None
        if output:
            Path(output).mkdir(parents=True, exist_ok=True)
        result: Any = self.evaluator(model, output_path=output, epoch=epoch, steps=self.last)
        model.train(was_training)
        if isinstance(result, dict):
            result = result[self.evaluator.primary_metric]
        score = float(result)
        if self.best is None or score > self.best:
            self.best = score
            if self.folder:
                model.save_pretrained(self.folder)
        if self.callback is not None:
            self.callback(score, epoch, self.last)


class TrainRetriever:
    """BEIR's class of the same name, for any sentence-transformers model.

    Two-sided encoders such as an MRL train as well: the first text of an example is encoded as a
    query, and all others as documents.

    Args:
        model: A loaded encoder, or a name or folder.
        batch_size: Examples of a step.

    Example:
        >>> from beir_cocodr.plugins.beir import TrainRetriever
        >>> retriever = TrainRetriever("minilm", batch_size=2)
        >>> corpus = {"sort": {"title": "sort", "text": "Return a sorted copy of an array."}}
        >>> samples = retriever.load_train(corpus, {"q": "order numbers"}, {"q": {"sort": 1}})
        >>> samples[0].texts
        ['order numbers', 'sort Return a sorted copy of an array.']
    """

    def __init__(self, model: SentenceTransformer | str | Path, batch_size: int = 64) -> None:
        """Load the model if it is a name."""
        if isinstance(model, str | Path):
            model = load_encoder(model)
        self.model = model
        self.batch_size = batch_size

    def load_train(
        self,
        corpus: Mapping[str, Mapping[str, str | None]],
        queries: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]],
    ) -> list[InputExample]:
        """Return one example for each relevant document of each query.

        Documents that the corpus lacks are left out, and a warning counts them.

        Args:
            corpus: Document id to title and text.
            queries: Query id to text.
            qrels: Query id to document id to grade; 1 and more is relevant.
        """
        samples = []
        missing = []
        for query, text in queries.items():
            for document, grade in qrels.get(query, {}).items():
                if grade < 1:
                    continue
                if document not in corpus:
                    missing.append(document)
                    continue
                texts = [text, self._document(corpus[document])]
                samples.append(InputExample(guid=query, texts=texts, label=1))
        if missing:
            log.warning(
                "%d relevant documents are not in the corpus, such as %r; they are left out",
                len(missing),
                missing[0],
            )
        log.info("Loaded %d training pairs.", len(samples))
        return samples

    def load_train_triplets(self, triplets: Sequence[Sequence[str]]) -> list[InputExample]:
        """Return one example for each (query, relevant text, other text)."""
        return [InputExample(texts=list(texts)) for texts in triplets]

    def prepare_train(
        self,
        train_dataset: Any,
        shuffle: bool = True,
        dataset_present: bool = False,
    ) -> DataLoader[Any]:
        """Return a loader of examples.

        Args:
            train_dataset: Examples, or a data set of torch that returns one for each index. A data
                set is asked for each example in each epoch, so it may return others then.
            shuffle: Draw the examples in random order.
            dataset_present: Of no consequence: lists and data sets are both taken.
        """
        return DataLoader(train_dataset, batch_size=self.batch_size, shuffle=shuffle)

    def prepare_train_triplets(self, train_dataset: list[InputExample]) -> NoDuplicatesDataLoader:
        """Return a loader none of whose batches has a text twice."""
        loader: Any = NoDuplicatesDataLoader
        triplets: NoDuplicatesDataLoader = loader(train_dataset, batch_size=self.batch_size)
        return triplets

    def load_ir_evaluator(
        self,
        corpus: Mapping[str, Mapping[str, str | None]],
        queries: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]],
        max_corpus_size: int | None = None,
        name: str = "eval",
    ) -> SentenceEvaluator:
        """Return an evaluator over a labelled collection.

        Args:
            corpus: Document id to title and text.
            queries: Query id to text.
            qrels: Query id to document id to grade; 1 and more is relevant.
            max_corpus_size: Evaluate on this many documents: all relevant ones, and others drawn
                at random, the same each time.
            name: Name of the evaluator, in its files and measures.

        Raises:
            InputError: There are no queries, or more relevant documents than ``max_corpus_size``.
        """
        if not queries:
            raise InputError("there are no queries to evaluate on; give a split that has some")
        relevant = {}
        for query, grades in qrels.items():
            relevant[query] = {document for document, grade in grades.items() if grade >= 1}
        kept = list(corpus)
        if max_corpus_size:
            needed = set().union(*relevant.values())
            if len(needed) > max_corpus_size:
                raise InputError(
                    f"max_corpus_size is {max_corpus_size}, fewer than the {len(needed)} relevant "
                    "documents; raise it"
                )
            others = [document for document in corpus if document not in needed]
            most = min(len(others), max_corpus_size - len(needed))
            kept = [*sorted(needed), *random.Random(0).sample(others, most)]
        texts: dict[str, Any] = {id: self._document(corpus[id]) for id in kept}
        log.info("%s set contains %d documents and %d queries", name, len(texts), len(queries))
        return InformationRetrievalEvaluator(dict(queries), texts, relevant, name=name)

    def load_dummy_evaluator(self) -> SentenceEvaluator:
        """Return an evaluator by which the latest model is the best."""
        return LatestModel()

    def fit(  # noqa: PLR0913 - BEIR's signature
        self,
        train_objectives: Iterable[tuple[Any, nn.Module]],
        evaluator: SentenceEvaluator | None = None,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        scheduler: str = "WarmupLinear",
        warmup_steps: int = 10_000,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.AdamW,
        optimizer_params: Mapping[str, object] | None = None,
        weight_decay: float = 0.01,
        evaluation_steps: int = 0,
        output_path: str | Path | None = None,
        save_best_model: bool = True,
        max_grad_norm: float = 1,
        use_amp: bool = False,
        callback: Callable[[float, int, int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Train the model, evaluate it, and save the best.

        Args:
            train_objectives: Loaders with the loss of each; of several, batches alternate.
            evaluator: Evaluates the model after each epoch.
            epochs: Number of epochs.
            steps_per_epoch: Steps of an epoch. Default: one pass over the examples.
            scheduler: ConstantLR, WarmupConstant, WarmupLinear, WarmupCosine or
                WarmupCosineWithHardRestarts.
            warmup_steps: Steps in which the learning rate rises.
            optimizer_class: The optimizer.
            optimizer_params: Its options. Default: a learning rate of 2e-5 and an eps of 1e-6.
            weight_decay: Weight decay of all weights except biases and norms.
            evaluation_steps: Also evaluate after so many steps; 0 evaluates epochs alone.
            output_path: Folder of the model. With an evaluator it holds the best one, without one
                the last.
            save_best_model: With an evaluator, save the best model, not the last.
            max_grad_norm: Norm that gradients are cut to.
            use_amp: Train in mixed precision; on a CPU it changes nothing.
            callback: Called with score, epoch and step of each evaluation.
            **kwargs: See :class:`Checkpoints`.

        Raises:
            InputError: The scheduler or an option is unknown, or there is nothing to train on.
        """
        objectives = [Objective.of(loader, loss) for loader, loss in train_objectives]
        checkpoints = Checkpoints.of(kwargs)
        folder = str(output_path) if output_path is not None else None
        keeps_best = evaluator is not None and save_best_model
        evaluations = Evaluations(
            evaluator or LatestModel(),
            steps={steps for steps in (evaluation_steps, steps_per_epoch) if steps},
            folder=folder if keeps_best else None,
            callback=callback,
        )
        with TemporaryFolder() as scratch:
            arguments = SentenceTransformerTrainingArguments(
                **checkpoints.arguments(str(scratch)),
                **_batch_arguments(objectives, self.batch_size),
                num_train_epochs=epochs,
                max_steps=epochs * steps_per_epoch if steps_per_epoch else -1,
                lr_scheduler_type=_schedule(scheduler),
                warmup_steps=warmup_steps,
                weight_decay=weight_decay,
                max_grad_norm=max_grad_norm,
                fp16=use_amp and self.model.device.type == "cuda",
                use_cpu=self.model.device.type == "cpu",
                report_to=[],
            )
            trainer = SentenceTransformerTrainer(
                model=self.model,
                args=arguments,
                train_dataset=_one_or_all([part.examples for part in objectives]),
                loss=_one_or_all([part.loss for part in objectives]),
                callbacks=[evaluations],
                optimizer_cls_and_kwargs=_optimizer(optimizer_class, optimizer_params),
            )
            trainer.train(resume_from_checkpoint=checkpoints.last())
        if folder is not None and not keeps_best:
            self.model.save_pretrained(folder)

    def _document(self, document: Mapping[str, str | None]) -> str:
        text_format = getattr(self.model, "text_format", None) or TextFormat()
        text: str = text_format.document(document)
        return text


def _columns(examples: Sequence[InputExample]) -> dict[str, list[Any]]:
    """Return a column for each text of some examples, and one for their labels."""
    texts = zip(*(example.texts for example in examples), strict=True)
    columns = {f"sentence_{number}": list(column) for number, column in enumerate(texts)}
    columns[_LABEL] = [example.label for example in examples]
    return columns


def _in_order(dataset: Dataset, batch_size: int, drop_last: bool, **kwargs: Any) -> Any:
    """Return a batch sampler that keeps the order of the examples; the trainer calls it."""
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last, **kwargs)


def _batch_arguments(objectives: Sequence[Objective], batch_size: int) -> dict[str, Any]:
    """Return the trainer's arguments for batches, in which the first text is a query."""
    if not objectives:
        raise InputError("train_objectives is empty; give a loader and a loss")
    tasks = {name: "document" for part in objectives for name in part.texts}
    tasks[objectives[0].texts[0]] = "query"
    return {
        "per_device_train_batch_size": batch_size,
        "batch_sampler": objectives[0].sampling,
        "multi_dataset_batch_sampler": "round_robin",
        "router_mapping": tasks,
    }


def _one_or_all(parts: list[Any]) -> Any:
    """Return the only part of the objectives, or a name for each part."""
    if len(parts) == 1:
        return parts[0]
    return {f"objective_{number}": part for number, part in enumerate(parts, 1)}


def _schedule(name: str) -> str:
    """Return transformers' name of a schedule."""
    if name.lower() not in _SCHEDULES:
        raise InputError(f"there is no scheduler {name!r}; choose one of {', '.join(_SCHEDULES)}")
    return _SCHEDULES[name.lower()]


def _optimizer(
    kind: type[torch.optim.Optimizer],
    options: Mapping[str, Any] | None,
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return an optimizer and its options, without one of transformers' former AdamW."""
    chosen = {"lr": 2e-5, "eps": 1e-6} if options is None else dict(options)
    if kind is torch.optim.AdamW and _BIAS in chosen:
        del chosen[_BIAS]
        log.info("torch's AdamW always corrects the bias; correct_bias is left out")
    return kind, chosen
