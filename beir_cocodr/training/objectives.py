"""What is trained on, in tables: objectives of pre-training, weightings of fine-tuning, teachers of
distillation.

A new one is a row, and what the row names: a view or a loss, a loss, a class. Options and the
command line's help are made from the tables, so this module imports no torch: what needs it is
imported when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beir_cocodr.data.spans import SpannedText, damaged, inverse_cloze, span_pair, twice, window
from beir_cocodr.errors import InputError
from beir_cocodr.provenance import SPANS

if TYPE_CHECKING:
    from torch import nn

    from beir_cocodr.training.options import PretrainOptions


@dataclass(frozen=True)
class View:
    """What is seen of a document.

    Args:
        draw: draws its texts, one for each column.
        columns: name of each text column, and its task, "query" or "document".
        two_spans: whether a document needs two spans.
        options: the options that ``draw`` takes.
    """

    draw: Callable[..., tuple[str, ...]]
    columns: Mapping[str, str]
    two_spans: bool = False
    options: tuple[str, ...] = ()

    def texts(
        self, options: PretrainOptions, document: SpannedText, rng: np.random.Generator
    ) -> tuple[str, ...]:
        """The texts of one document, one for each column."""
        return self.draw(document, rng, **{name: getattr(options, name) for name in self.options})


@dataclass(frozen=True)
class Objective:
    """One way to learn from a corpus without labels.

    Args:
        loss: builds its loss from the model, the options, and the texts embedded at a time (None:
            all).
        view: what it sees of a document; None where it sees passages and queries generated for them
            instead, see :class:`~beir_cocodr.training.pretrain_data.ContextViews`.
        contrastive: whether a text is contrasted with the other documents of its batch.
        masked: whether there are language-model losses over masked tokens, from a Condenser head.
        late_head: whether the head has no layers of its own, only its late loss.
        decoder: whether CoT-MAE's decoder stands on the head; texts are then masked whatever the
            weights.
        dropout: whether the encoder's dropout is on by default.
        needs_dropout: whether it may not be off.
        defaults: where its paper's settings differ from those of COCO.
        rehearses: what it practises, see :class:`~beir_cocodr.provenance.TrainingRecord`.
    """

    loss: Callable[[Any, PretrainOptions, int | None], nn.Module]
    view: View | None = None
    contrastive: bool = False
    masked: bool = False
    late_head: bool = False
    decoder: bool = False
    dropout: bool = True
    needs_dropout: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)
    rehearses: tuple[str, ...] = ()

    @property
    def on_queries(self) -> bool:
        return self.view is None


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


_SPANS = View(span_pair, {"span_1": "document", "span_2": "document"}, two_spans=True)
_WINDOW = View(window, {"window": "document"})
_WINDOW_TWICE = View(twice, {"view_1": "document", "view_2": "document"})
_CLOZE = View(
    inverse_cloze,
    {"query": "query", "passage": "document"},
    two_spans=True,
    options=("keep_query",),
)
_DAMAGED = View(damaged, {"damaged": "document", "original": "document"}, options=("deletion",))

# The most tokens of a generated query's passage, special tokens included.
_PASSAGE = {"max_length": 144}
_COTMAE_DEFAULTS = _PASSAGE | {"batch_size": 16_384, "learning_rate": 4e-4, "mask_probability": 0.3}

#: Name to objective: COCO and its rivals (COCO-DR, Table 3), and query-as-context pre-training.
OBJECTIVES = {
    # Two spans of a document find each other, and language-model losses.
    "coco": Objective(
        _coco, _SPANS, contrastive=True, masked=True, dropout=False, rehearses=(SPANS,)
    ),
    # Masked language modelling from the last layer alone.
    "mlm": Objective(_coco, _WINDOW, masked=True, late_head=True),
    # The language-model losses alone, on one window of each document.
    "condenser": Objective(_coco, _WINDOW, masked=True),
    # As coco, with encoder dropout, meant for the source corpus (Gao and Callan, 2022).
    "cocondenser": Objective(_coco, _SPANS, contrastive=True, masked=True, rehearses=(SPANS,)),
    # A window finds itself under other dropout (Gao et al., 2021).
    "simcse": Objective(_simcse, _WINDOW_TWICE, contrastive=True, needs_dropout=True),
    # A span finds the rest of its window (Lee et al., 2019).
    "ict": Objective(_infonce, _CLOZE, contrastive=True, rehearses=(SPANS,)),
    # A decoder rebuilds a window from the embedding of what is left of it (Wang et al., 2021).
    "tsdae": Objective(_tsdae, _DAMAGED),
    # A passage and a query generated for it find each other, and language-model losses (Wu et al.,
    # 2023).
    "qc": Objective(_coco, contrastive=True, masked=True, defaults=_PASSAGE),
    # A decoder rebuilds a query from its passage's embedding (Wu et al., 2023).
    "cotmae": Objective(
        _cotmae, masked=True, late_head=True, decoder=True, defaults=_COTMAE_DEFAULTS
    ),
}


@dataclass(frozen=True)
class Weighting:
    """How clusters of queries are weighted.

    Args:
        loss: ``module:object`` of its loss, called with the model and the clusters; None weights
            all examples alike.
        options: parameter of the loss to option of :class:`FinetuneOptions`.
    """

    loss: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


_IDRO = "alpha rho ema eps beta tau absent renormalize_present seed gram gradient_layers sketch_size".split()

#: Name to weighting.
WEIGHTINGS = {
    # All queries alike.
    "erm": Weighting(),
    # More weight to clusters whose gradients help all others (COCO-DR, section 4.2).
    "idro": Weighting(
        "beir_cocodr.losses.dro:IDROLoss", {own: own for own in _IDRO} | {"mode": "idro_mode"}
    ),
    # More weight to clusters with large losses (Sagawa et al., 2020).
    "groupdro": Weighting("beir_cocodr.losses.dro:GroupDROLoss", {"eta": "eta"}),
    # Only the clusters with the largest losses.
    "cvar": Weighting(
        "beir_cocodr.losses.dro:CVaRLoss", {"cvar_alpha": "cvar_alpha", "eps": "eps"}
    ),
}


@dataclass(frozen=True)
class TeacherKind:
    """Whose scores are learned.

    Args:
        help: what ``--teacher`` is then.
        build: ``module:object``, called with a
            :class:`~beir_cocodr.training.teachers.TeacherSetting`.
        means: whether a value of ``--teacher`` means this kind; None for what no other kind takes.
    """

    help: str
    build: str
    means: Callable[[str], bool] | None = None


_TEACHERS = "beir_cocodr.training.teachers"

#: Name to kind of teacher; a value means the first kind that takes it.
TEACHERS = {
    "bm25": TeacherKind("bm25", f"{_TEACHERS}:BM25Teacher.of", "bm25".__eq__),
    "hybrid": TeacherKind(
        "hybrid (BM25 and the encoder)", f"{_TEACHERS}:HybridTeacher.of", "hybrid".__eq__
    ),
    "feedback": TeacherKind(
        "feedback (the same, its query moved by feedback)",
        f"{_TEACHERS}:HybridTeacher.of_feedback",
        "feedback".__eq__,
    ),
    "file": TeacherKind(
        "a file of scores", f"{_TEACHERS}:FileTeacher.of", lambda name: Path(name).is_file()
    ),
    "cross-encoder": TeacherKind("a cross-encoder", f"{_TEACHERS}:CrossEncoderTeacher.of"),
}
