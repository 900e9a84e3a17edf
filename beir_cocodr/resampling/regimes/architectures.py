"""The retrieval architectures that are evaluated in both regimes, by name; a row of results is one,
or given models.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

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

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat, readable
from beir_cocodr.distributed import on_main, wait_for_all, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.models.integrity import NEW_CLASSIFIER, SPARSE, loading
from beir_cocodr.models.spec import BM25 as BM25_NAME
from beir_cocodr.models.spec import EncoderOptions, ModelSpec, SearchOptions
from beir_cocodr.provenance import TrainingPlan, collection_provenance, read_record
from beir_cocodr.records import Record
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.host_training import (
    TrainingUnit,
    masked_language_model,
    save_start,
)
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hosted import CONFIG, Reranking, Sparse, TokenSearch
from beir_cocodr.retrieval.hosted import LateInteraction as LateInteractionSearch
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.training.distill import distill
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.held_out import CheckpointSelection, hold_out
from beir_cocodr.training.negatives import bm25_negatives
from beir_cocodr.training.options import DistillOptions, FinetuneOptions
from beir_cocodr.training.output_folder import CHECKPOINTS, lock_output
from beir_cocodr.training.pairs import TrainingPairs
from beir_cocodr.training.trainer import GuardedTrainer, Stage, drawn_dataset, run_stage

log = logging.getLogger(__name__)
Options = TypeVar("Options", DistillOptions, FinetuneOptions)

#: Of a token's vector in late interaction.
_DIMENSIONS = 128


class Architecture(Protocol):
    """Trains models for `load_retriever`; ``name``: on the command line; ``seeded``: whether seeds
    matter.
    """

    name: str
    seeded: bool

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        """Train on the split "train" of a collection and save the model; gives what
        `load_retriever` takes.

        Args:
            dataset: a BEIR folder.
            output: folder for the model; an interrupted one is resumed or begun anew.
            recipe, seed: of everything that is drawn.
            shared: folder for what does not depend on training queries and serves other sets as
            well.
        """
        ...


class DenseArchitecture:
    """An encoder trained by `finetune` or `distill`, from the recipe's start. ``name``: "dense"
    (the paper's base setting: other documents of the batch are the negatives, and cross-entropy),
    "dense-hard" (BM25's or mined negatives besides), or "dense-distilled" (LambdaRank on a
    teacher's lists).

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2; teacher and hard negatives there are
    ColBERT and STAR/ADORE.
    """

    seeded = True

    def __init__(self, name: str) -> None:
        self.name = name

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if self.name == "dense-distilled":
            # Equal budgets: no search of the student's own candidates.
            chosen = {"positives": 1, "m_bm25": recipe.list_size - 1, "m_hard": 0}
            lists = _budgeted(DistillOptions, recipe, seed, **chosen)
            distill(
                dataset,
                recipe.start,
                recipe.teacher,
                output,
                lists,
                resume=True,
                encoder=recipe.encoder,
            )
            return output
        hard = self.name == "dense-hard"
        own = {
            "negatives": recipe.negatives if hard else 0,
            "negative_depth": recipe.negative_depth,
        }
        stages = 2 if hard and recipe.hard_negatives == "mined" else 1
        options = _budgeted(FinetuneOptions, recipe, seed, stages=stages, **own)
        finetune(dataset, recipe.start, output, options, resume=True, encoder=recipe.encoder)
        return output


def _budgeted(kind: Callable[..., Options], recipe: Recipe, seed: int, **own: object) -> Options:
    """Options of a stage with the recipe's budget and held-out queries; none stop early."""
    names = (
        "max_steps",
        "epochs",
        "batch_size",
        "learning_rate",
        "warmup",
        "held_out",
        "most_held_out",
    )
    own |= {name: getattr(recipe, name) for name in names}
    return kind(**own, seed=seed, select_epochs=recipe.select_epochs or 1.0)


class HostArchitecture:
    """A model class of sentence-transformers, trained by the host's own trainer from the recipe's
    start.

    A subclass builds the model and its loss, and has the host's classes for :class:`Stage`. Other
    documents of the batch are the negatives, unless ``listwise`` is set: then a query comes with a
    relevant document and BM25's negatives, and their labels.
    """

    name: str
    seeded = True
    listwise = False
    trainer: type[GuardedTrainer]
    arguments: Any

    def start(
        self, collection: Collection, folder: Path, recipe: Recipe, seed: int, shared: Path
    ) -> tuple[str, TextFormat]:
        """What the model is built on, at best in ``folder``, which is removed after that."""
        return str(folder), save_start(recipe, seed, folder)

    def build(self, source: str, text_format: TextFormat, recipe: Recipe) -> tuple[Any, nn.Module]:
        """The host's model and loss."""
        raise NotImplementedError

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if on_main(lambda: read_record(output)) is not None:
            return output
        collection, start = load_collection(dataset, "train"), output / "start"
        on_main(
            lambda: shutil.rmtree(
                start if (output / CHECKPOINTS).is_dir() else output, ignore_errors=True
            )
        )
        source, text_format = self.start(collection, start, recipe, seed, shared)
        model, loss = self.build(source, text_format, recipe)
        read = readable(model.tokenizer)
        wait_for_all()  # until each has read it
        on_main(lambda: shutil.rmtree(start, ignore_errors=True))
        negatives = recipe.negatives if self.listwise else 0
        options = _budgeted(FinetuneOptions, recipe, seed, negatives=negatives)
        rest, held = hold_out(collection, options, seed)
        pool = bm25_negatives(rest, text_format, recipe.negative_depth, seed) if negatives else None
        pairs = TrainingPairs(rest, text_format, options, pool)
        seen = (collection_provenance(collection, queries=True),)
        stage = Stage(
            plan=TrainingPlan(self.name, options=recipe.describe() | {"seed": seed}, seen=seen),
            model=model,
            loss=loss,
            dataset=_lists(pairs, read) if self.listwise else pairs.dataset(read),
            callbacks=[pairs.clock],
            details={"recipe": recipe.describe(), "seed": seed},
            trainer=self.trainer,
            arguments=self.arguments,
        )
        if not self.listwise:
            tasks = {"query": "query", "positive": "document"}
            stage = replace(
                stage, batch_keys=pairs.batch_keys(), column_tasks=tasks, names=pairs.names
            )
        with lock_output(output, True, stage.plan) as finished:
            if finished is None:
                if held is not None:
                    examples = len(pairs.positives)
                    selection = CheckpointSelection(
                        held, stage.model, text_format, options, output, examples, read
                    )
                    stage = selection.added_to(stage)
                run_stage(stage, options, output, resume=True)
        return output


def _lists(pairs: TrainingPairs, read: Callable[[str], str]) -> Dataset:
    """(query, [positive, negatives ...], [1, 0 ...]), negatives drawn anew each epoch; texts as
    ``read`` makes them.
    """

    def draw(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {"query": [], "documents": [], "label": []}
        for pair in batch["pair"]:
            found = pairs.collection.documents.take(pairs.rows(pair))
            columns["query"].append(read(pairs.collection.queries[pairs.queries[pair]]))
            columns["documents"].append(
                [read(pairs.text_format.document(document)) for document in found]
            )
            columns["label"].append([1.0] + [0.0] * (len(found) - 1))
        return columns

    return drawn_dataset("pair", np.arange(len(pairs.positives)), draw)


class _CrossEncoderTrainer(GuardedTrainer, st.CrossEncoderTrainer):
    pass


class CrossEncoderReranker(HostArchitecture):
    """Query and document read together for one score, trained by pairwise cross-entropy (the host's
    RankNet loss) of a relevant document against BM25's negatives.

    Source: BERT reranker (Nogueira and Cho, 2019); Zhan et al., 2022, section 5.1.2.
    """

    name, listwise = "cross-encoder", True
    trainer, arguments = _CrossEncoderTrainer, st.CrossEncoderTrainingArguments

    def build(self, source: str, text_format: TextFormat, recipe: Recipe) -> tuple[Any, nn.Module]:
        with loading(source, NEW_CLASSIFIER):
            model: Any = st.CrossEncoder(source, num_labels=1, device=recipe.device)
        lengths = (text_format.query_length or 0) + (text_format.document_length or 0)
        model.max_seq_length = min(lengths, model.config.max_position_embeddings)
        # DDP finds what a step uses in dictionaries alone, and the host gives a tokenizer's own
        # kind of mapping.
        model.register_forward_hook(lambda module, given, found: dict(found))
        return model, RankNetLoss(model)


class _LateInteractionTrainer(GuardedTrainer, st.MultiVectorEncoderTrainer):
    pass


class LateInteractionArchitecture(HostArchitecture):
    """A vector of 128 dimensions for every token, compared by MaxSim, trained on in-batch
    negatives.

    The modules are those that the host puts on a bare transformer; the projection is drawn by the
    seed.

    Source: ColBERT (Khattab and Zaharia, 2020); Zhan et al., 2022, section 5.1.2.
    """

    name = "late-interaction"
    trainer, arguments = _LateInteractionTrainer, st.MultiVectorEncoderTrainingArguments

    def build(self, source: str, text_format: TextFormat, recipe: Recipe) -> tuple[Any, nn.Module]:
        lengths = {
            "query_length": text_format.query_length,
            "document_length": text_format.document_length,
        }
        with loading(source):
            transformer = Transformer(source, **lengths)
        width, on = transformer.get_embedding_dimension(), "token_embeddings"
        projection = Dense(
            width, _DIMENSIONS, bias=False, activation_function=nn.Identity(), module_input_name=on
        )
        modules = [transformer, projection, MultiVectorMask(), Normalize(module_input_name=on)]
        model = st.MultiVectorEncoder(
            modules=modules, similarity_fn_name="maxsim", device=recipe.device
        )
        return model, MultiVectorMultipleNegativesRankingLoss(
            model, gather_across_devices=world_size() > 1
        )


class _Flops(FlopsLoss):
    """The host's regularizer, over the batch of all processes: it is no mean over their parts."""

    def compute_loss_from_embeddings(self, embeddings: Tensor) -> Tensor:
        whole = all_gather_with_grad(embeddings) if world_size() > 1 else embeddings
        found: Tensor = super().compute_loss_from_embeddings(whole)
        return found


class _SpladeTrainer(GuardedTrainer, st.SparseEncoderTrainer):
    pass


class Splade(HostArchitecture):
    """Maximum pooling of log(1 + relu) over a masked language model's logits, trained on in-batch
    negatives with the host's SPLADE loss (FLOPS regularizers, their weights rising over the first
    third).

    Source: SPLADE v2 (Formal et al., 2021); Zhan et al., 2022, section 5.1.2.
    """

    name = "splade"
    trainer, arguments = _SpladeTrainer, st.SparseEncoderTrainingArguments

    def start(
        self, collection: Collection, folder: Path, recipe: Recipe, seed: int, shared: Path
    ) -> tuple[str, TextFormat]:
        return masked_language_model(collection, recipe, seed, shared)

    def build(self, source: str, text_format: TextFormat, recipe: Recipe) -> tuple[Any, nn.Module]:
        lengths = {
            "query_length": text_format.query_length,
            "document_length": text_format.document_length,
        }
        with loading(source, SPARSE):
            transformer = Transformer(source, transformer_task="fill-mask", **lengths)
        modules = [transformer, SpladePooling("max")]
        model = st.SparseEncoder(modules=modules, similarity_fn_name="dot", device=recipe.device)
        ranking = SparseMultipleNegativesRankingLoss(model, gather_across_devices=world_size() > 1)
        weights = recipe.document_flops, recipe.query_flops
        return model, SpladeLoss(model, ranking, *weights, _Flops(model), _Flops(model))


#: What `load_retriever` knows a tuned BM25 by.
BM25_FILE = "bm25.json"

#: The usual parameters stand first, and stay where no others are better.
K1, B = (0.9, 0.6, 1.2, 1.6), (0.4, 0.2, 0.6, 0.8)
_MEASURE = "nDCG@10"
_DEPTH = 10
_MOST_QUERIES = 500


@dataclass(frozen=True)
class BM25Parameters(Record):
    """The parameters chosen, over how many queries, and the scores of all."""

    k1: float
    b: float
    queries: int
    grid: list[dict[str, float]]


class TunedBM25:
    """BM25, k1 and b from a grid of 16 by nDCG@10 over at most 500 evenly spaced training queries.

    Source: Zhan et al., 2022, section 5.1.2 (grid search on the training data).
    """

    name = "bm25"
    seeded = False

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if not on_main((output / BM25_FILE).is_file):
            on_main(lambda: self._choose(dataset, output))
        return output

    def _choose(self, dataset: str, output: Path) -> None:
        collection = load_collection(dataset, "train")
        ids = list(collection.qrels)
        chosen = [ids[i] for i in spaced_rows(len(ids), _MOST_QUERIES)]
        qrels = {query: collection.qrels[query] for query in chosen}
        queries = {query: collection.queries[query] for query in chosen}
        [measure] = parse_measures(_MEASURE)
        grid: list[tuple[float, float, float]] = []  # score, k1, b
        for bm25 in BM25(collection.documents).grid(K1, B):
            found = bm25.search(queries, _DEPTH)
            scores = score_queries([measure], qrels, found.results(collection.documents))
            grid.append((float(scores[_MEASURE].mean()), bm25.k1, bm25.b))
        _, k1, b = max(grid, key=lambda point: point[0])  # the first among equals
        log.info("BM25 on %s: k1 %g, b %g", dataset, k1, b)
        points = [{"k1": k1, "b": b, _MEASURE: score} for score, k1, b in grid]
        BM25Parameters(k1, b, len(queries), points).write(output / BM25_FILE)


#: What stands before a hub name that is no dense encoder, the host's class that a folder names, and
#: ours.
KINDS: dict[str, tuple[str, Callable[..., Ranker]]] = {
    "splade": ("SparseEncoder", Sparse),
    "late-interaction": ("MultiVectorEncoder", LateInteractionSearch),
    "cross-encoder": ("CrossEncoder", Reranking),
}


def _host_kind(model: str) -> tuple[Callable[..., Ranker] | None, str]:
    """How a model of a host searches, None for another, and its folder or hub name."""
    prefix, _, name = model.partition(":")
    if name and prefix in KINDS:
        return KINDS[prefix][1], name
    file = Path(model) / CONFIG
    with loading(model) if file.is_file() else nullcontext():
        recorded = (
            json.loads(file.read_text(encoding="utf-8")).get("model_type")
            if file.is_file()
            else None
        )
    return next((kind for host, kind in KINDS.values() if host == recorded), None), model


def is_shared(model: str, recipe: Recipe) -> bool:
    """Whether processes that search with a model together have less to do each: a dense one, whose
    corpus they encode together, and reranking of BM25's candidates, but not where each would make
    an index of the corpus alone.
    """
    kind, _ = _host_kind(model)
    if kind is not None:
        return kind is Reranking and recipe.first_stage == BM25_NAME
    return not (Path(model) / BM25_FILE).is_file() and ModelSpec.parse(model).kind == "dense"


def load_retriever(
    model: str, documents: Documents, work: Path, recipe: Recipe, progress: bool = False
) -> Ranker:
    """A retriever over one corpus, of the kind that its folder has. An InputError where the model
    cannot be loaded.

    Args:
        model: a folder that an architecture saved; any folder of sentence-transformers;
            ``splade:``, ``late-interaction:`` or ``cross-encoder:`` and a hub name; or what
            `evaluate` takes for a model.
        documents: the corpus.
        work: folder for embeddings; the caller removes it.
        recipe: lengths of dense encoders, first stage and depth of reranking, batch size and
            device.
        progress: show bars on stderr.
    """
    options = SearchOptions(recipe.encoder, batch_size=recipe.encode_batch_size, progress=progress)
    retrievers = Resources(documents, work, options)
    if (tuned := Path(model) / BM25_FILE).is_file():
        found = BM25Parameters.read(tuned)
        return BM25(documents, k1=found.k1, b=found.b)
    kind, name = _host_kind(model)
    if kind is None:
        return retrievers.ranker(model)
    # Those that training made have their own lengths.
    options = SearchOptions(EncoderOptions(device=recipe.device), batch_size=options.batch_size)
    first = retrievers.ranker(recipe.first_stage) if kind is Reranking else None
    if kind is LateInteractionSearch:
        kind = TokenSearch if recipe.candidates == "tokens" else kind
        return kind(name, documents, options, folder=work)
    return kind(name, documents, options, first, recipe.rerank)


_DENSE = [DenseArchitecture(name) for name in ("dense", "dense-hard", "dense-distilled")]
_ALL: list[Architecture] = [
    TunedBM25(),
    *_DENSE,
    Splade(),
    LateInteractionArchitecture(),
    CrossEncoderReranker(),
]
ARCHITECTURES = {found.name: found for found in _ALL}


def find_architectures(names: Sequence[str]) -> list[Architecture]:
    """The architectures of these names, "all" for every one; an InputError for one unknown or given
    twice.
    """
    names = [*ARCHITECTURES] if list(names) == ["all"] else list(names)
    for name in names:
        if name not in ARCHITECTURES:
            raise InputError(
                f"unknown architecture {name!r}; there are all, {', '.join(ARCHITECTURES)}"
            )
        if names.count(name) > 1:
            raise InputError(f"architecture {name!r} is named twice; name each once")
    return [ARCHITECTURES[name] for name in names]


#: Placeholders in the path of given models.
SET, SEED = "{set}", "{seed}"

#: The architecture that can be the teacher of another on the same set.
TEACHER = "cross-encoder"


@dataclass(frozen=True)
class ModelRow:
    """One row of the table, by its name and the seeds of its models.

    Attributes:
        model: trains or finds the model of a set and a seed.
        where: of what is given, its path; None for what is trained.
    """

    name: str
    seeds: tuple[int, ...]
    model: Callable[[TrainingUnit, int], str]
    where: str | None = None


def trained(
    architecture: Architecture, recipe: Recipe, seeds: Sequence[int], output: Path, start: str = ""
) -> ModelRow:
    """An architecture; its models go to ``output/models/SET/NAME-SEED``. One without chance has
    just the first.

    ``start``: what another start than the recipe's own is called, which then stands behind the
    name.
    """
    name, shared = architecture.name + f"@{start}" * bool(start), output / "shared" / start

    def model(unit: TrainingUnit, seed: int) -> str:
        own = recipe
        if architecture.name == "dense-distilled" and recipe.teacher == TEACHER:
            teacher = trained(ARCHITECTURES[TEACHER], recipe, [seed], output, start)
            own = replace(recipe, teacher=teacher.model(unit, seed))
        return str(
            architecture.train(
                str(unit.train), model_folder(output, unit, name, seed), own, seed, shared
            )
        )

    return ModelRow(name, tuple(seeds if architecture.seeded else seeds[:1]), model)


def all_trained(
    kinds: Sequence[Architecture],
    recipe: Recipe,
    seeds: Sequence[int],
    output: Path,
    starts: Mapping[str, str],
) -> list[ModelRow]:
    """Architectures from the recipe's start, and those that have one from ``starts``, name to path,
    as well.
    """
    found = [trained(kind, recipe, seeds, output) for kind in kinds]
    for name, path in starts.items():
        own = replace(recipe, start=path)
        found += [trained(kind, own, seeds, output, name) for kind in kinds if kind.seeded]
    return found


def named_path(flag: str, text: str) -> tuple[str, str]:
    """Both parts of NAME=PATH, else an InputError."""
    name, equals, path = text.partition("=")
    if not (name and equals and path) or "/" in name:
        raise InputError(
            f"{flag} {text!r}: give NAME=PATH; in --model, PATH may hold {SET}, {SEED}"
        )
    return name, path


def given(option: str, seeds: Sequence[int]) -> ModelRow:
    """Models that are there already.

    Args:
        option: NAME=PATH, else an InputError. The path is what `load_retriever` takes, in which
            ``{set}`` stands for the name of a training set (``interpolation``,
            ``size-45k/extrapolation``, ``bucket-1``), and ``{seed}`` for a seed. Without ``{set}``
            one model is evaluated in both regimes.
        seeds: used where the path has ``{seed}``.
    """
    name, path = named_path("--model", option)

    def model(unit: TrainingUnit, seed: int) -> str:
        return path.replace(SET, unit.name).replace(SEED, str(seed))

    return ModelRow(name, tuple(seeds if SEED in path else seeds[:1]), model, path)


def model_folder(output: Path, unit: TrainingUnit, name: str, seed: int) -> Path:
    """Where a trained model goes."""
    return output / "models" / unit.name / f"{name}-{seed}"
