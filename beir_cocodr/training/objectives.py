"""What is trained on, in tables: objectives of pre-training, weightings of fine-tuning, teachers of distillation.

A new objective is a row of :data:`OBJECTIVES`, and a view or a loss if no other objective has it; a new weighting a row
of :data:`WEIGHTINGS` and a loss; a new teacher a row of :data:`TEACHERS` and a class. Options and the command line's
help are made from the tables, so that this module imports no torch: what needs it is imported when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beir_cocodr.data.spans import SpannedText, damaged, inverse_cloze, span_pair, twice, window
from beir_cocodr.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from beir_cocodr.training.options import PretrainOptions

View = Callable[[SpannedText, np.random.Generator], tuple[str, ...]]


@dataclass(frozen=True)
class Objective:
    """One way to learn from a corpus without labels.

    Args:
        help: what is learned, in one line.
        loss: the function that builds its loss from the model, the options, and the texts embedded at a time (None:
            all).
        columns: name of each text column, and its task, "query" or "document".
        view: draws the texts of one document, one per column.
        view_options: the options that the view takes.
        two_spans: whether a document needs two spans.
        on_queries: whether it sees passages and queries generated for them instead, see
            :class:`~beir_cocodr.training.pretrain_data.ContextViews`.
        contrastive: whether a text is contrasted with the other documents of its batch.
        masked: whether there are language-model losses over masked tokens, from a Condenser head.
        late_head: whether the head has no layers of its own, only its late loss.
        decoder: whether CoT-MAE's decoder stands on the head; texts are then masked whatever the weights.
        dropout: whether the encoder's dropout is on by default.
        needs_dropout: whether it may not be off.
        defaults: where its paper's settings differ from those of COCO.
    """

    help: str
    loss: Callable[[Any, PretrainOptions, int | None], nn.Module]
    columns: Mapping[str, str] = field(default_factory=dict)
    view: Callable[..., tuple[str, ...]] | None = None
    view_options: tuple[str, ...] = ()
    two_spans: bool = False
    on_queries: bool = False
    contrastive: bool = False
    masked: bool = False
    late_head: bool = False
    decoder: bool = False
    dropout: bool = True
    needs_dropout: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)

    def draw(self, options: PretrainOptions) -> View:
        """The view with its options."""
        assert self.view is not None  # objectives on queries have none
        return partial(self.view, **{name: getattr(options, name) for name in self.view_options})


def _coco(model: Any, options: PretrainOptions, mini_batch_size: int | None) -> nn.Module:
    from beir_cocodr.losses.coco import COCOLoss

    contrastive_weight = float(OBJECTIVES[options.objective].contrastive)
    return COCOLoss(model, options.scale, mini_batch_size, options.mlm_weight, contrastive_weight)


def _infonce(model: Any, options: PretrainOptions, mini_batch_size: int | None) -> nn.Module:
    from beir_cocodr.losses.coco import infonce

    loss: nn.Module = infonce(model, options.scale, mini_batch_size)
    return loss


def _simcse(model: Any, options: PretrainOptions, mini_batch_size: int | None) -> nn.Module:
    from torch import nn

    modules = model.transformers_model.modules()
    if not any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
        raise InputError(
            "simcse needs an encoder with dropout, and this one's is 0: nothing else tells the two copies of "
            "a text apart; take another objective"
        )
    return _infonce(model, options, mini_batch_size)


def _tsdae(model: Any, options: PretrainOptions, mini_batch_size: int | None) -> nn.Module:
    from beir_cocodr.losses.tsdae import TSDAELoss

    return TSDAELoss(model, mini_batch_size)


def _cotmae(model: Any, options: PretrainOptions, mini_batch_size: int | None) -> nn.Module:
    from beir_cocodr.losses.cotmae import CoTMAELoss

    # No text acts on another here: gradients are accumulated, not cached.
    return CoTMAELoss(model, mini_batch_size, options.mlm_weight)


_SPANS = {"span_1": "document", "span_2": "document"}

# The most tokens of a generated query's passage, special tokens included.
_PASSAGE = {"max_length": 144}

#: Name to objective: COCO and its rivals (COCO-DR, Table 3), and query-as-context pre-training.
OBJECTIVES = {
    "coco": Objective(
        "two spans of a document find each other, and language-model losses",
        _coco,
        _SPANS,
        span_pair,
        two_spans=True,
        contrastive=True,
        masked=True,
        dropout=False,
    ),
    "mlm": Objective(
        "masked language modelling from the last layer alone",
        _coco,
        {"window": "document"},
        window,
        masked=True,
        late_head=True,
    ),
    "condenser": Objective(
        "the language-model losses alone, on one window of each document",
        _coco,
        {"window": "document"},
        window,
        masked=True,
    ),
    "cocondenser": Objective(
        "as coco, with encoder dropout, meant for the source corpus (Gao and Callan, 2022)",
        _coco,
        _SPANS,
        span_pair,
        two_spans=True,
        contrastive=True,
        masked=True,
    ),
    "simcse": Objective(
        "a window finds itself under other dropout (Gao et al., 2021)",
        _simcse,
        {"view_1": "document", "view_2": "document"},
        twice,
        contrastive=True,
        needs_dropout=True,
    ),
    "ict": Objective(
        "a span finds the rest of its window (Lee et al., 2019)",
        _infonce,
        {"query": "query", "passage": "document"},
        inverse_cloze,
        ("keep_query",),
        two_spans=True,
        contrastive=True,
    ),
    "tsdae": Objective(
        "a decoder rebuilds a window from the embedding of what is left of it (Wang et al., 2021)",
        _tsdae,
        {"damaged": "document", "original": "document"},
        damaged,
        ("deletion",),
    ),
    "qc": Objective(
        "a passage and a query generated for it find each other, and language-model losses (Wu et al., 2023)",
        _coco,
        on_queries=True,
        contrastive=True,
        masked=True,
        defaults=_PASSAGE,
    ),
    "cotmae": Objective(
        "a decoder rebuilds a query from its passage's embedding (Wu et al., 2023)",
        _cotmae,
        on_queries=True,
        masked=True,
        late_head=True,
        decoder=True,
        defaults=_PASSAGE | {"batch_size": 16_384, "learning_rate": 4e-4, "mask_probability": 0.3},
    ),
}


def build_loss(model: Any, options: PretrainOptions) -> nn.Module:
    """The objective's loss, with gradient caching where a process's batch is larger than its mini-batch."""
    from beir_cocodr.distributed import world_size

    cached = options.batch_size // world_size() > options.mini_batch_size
    mini_batch_size = options.mini_batch_size if cached else None
    return OBJECTIVES[options.objective].loss(model, options, mini_batch_size)


def attach_head(model: Any, base: str, options: PretrainOptions) -> str:
    """Append the language-model head to ``model``; tells where its weights come from."""
    from beir_cocodr.models.condenser import build_head
    from beir_cocodr.models.loading import model_source

    late_only = OBJECTIVES[options.objective].late_head
    head, origin = build_head(
        model,
        model_source(base),
        0 if late_only else options.n_head_layers,
        None if late_only else options.skip_from,
        late_only or options.late_mlm,
    )
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    return origin


def attach_decoder(model: Any, base: str, options: PretrainOptions) -> str:
    """Append CoT-MAE's decoder to a model that has its head; tells where its weights come from."""
    from beir_cocodr.models.cotmae import build_decoder
    from beir_cocodr.models.loading import model_source

    decoder, origin = build_decoder(
        model, model[-1], model_source(base), options.decoder, options.decoder_layers, options.decoder_window
    )
    model.append(decoder)
    return origin


@dataclass(frozen=True)
class Weighting:
    """How clusters of queries are weighted.

    Args:
        help: what it does, in a word or a line.
        loss: ``module:object`` of its loss, called with the model and the clusters; None weights all examples alike.
        options: parameter of the loss to option of :class:`FinetuneOptions`.
    """

    help: str
    loss: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


_IDRO = (
    *("alpha", "rho", "ema", "eps", "beta", "tau", "absent", "renormalize_present"),
    *("gram", "gradient_layers", "sketch_size", "seed"),
)

#: Name to weighting.
WEIGHTINGS = {
    "erm": Weighting("alike"),
    "idro": Weighting(
        "more weight to clusters whose gradients help all others (COCO-DR, section 4.2)",
        "beir_cocodr.losses.dro:IDROLoss",
        {name: name for name in _IDRO} | {"mode": "idro_mode"},
    ),
    "groupdro": Weighting(
        "more weight to clusters with large losses (Sagawa et al., 2020)",
        "beir_cocodr.losses.dro:GroupDROLoss",
        {"eta": "eta"},
    ),
    "cvar": Weighting(
        "only the clusters with the largest losses",
        "beir_cocodr.losses.dro:CVaRLoss",
        {"cvar_alpha": "cvar_alpha", "eps": "eps"},
    ),
}


@dataclass(frozen=True)
class TeacherKind:
    """Whose scores are learned.

    Args:
        help: what ``--teacher`` is then.
        build: ``module:object``, called with a :class:`~beir_cocodr.training.teachers.TeacherSetting`.
        means: whether a value of ``--teacher`` means this kind; None for what no other kind takes.
    """

    help: str
    build: str
    means: Callable[[str], bool] | None = None


#: Name to kind of teacher; a value means the first kind that takes it.
TEACHERS = {
    "bm25": TeacherKind("bm25", "beir_cocodr.training.teachers:BM25Teacher.of", "bm25".__eq__),
    "hybrid": TeacherKind(
        "hybrid (BM25 and the encoder)", "beir_cocodr.training.teachers:HybridTeacher.of", "hybrid".__eq__
    ),
    "file": TeacherKind(
        "a file of scores", "beir_cocodr.training.teachers:FileTeacher.of", lambda name: Path(name).is_file()
    ),
    "cross-encoder": TeacherKind("a cross-encoder", "beir_cocodr.training.teachers:CrossEncoderTeacher.of"),
}
