"""The objectives of pre-training: what each sees of a document, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from beir_cocodr.data.spans import SpannedText, damaged, inverse_cloze, span_pair, twice, window
from beir_cocodr.distributed import world_size
from beir_cocodr.errors import InputError
from beir_cocodr.losses.coco import COCOLoss, infonce
from beir_cocodr.losses.cotmae import CoTMAELoss
from beir_cocodr.losses.tsdae import TSDAELoss
from beir_cocodr.models.condenser import build_head
from beir_cocodr.models.cotmae import build_decoder
from beir_cocodr.models.loading import model_source
from beir_cocodr.training.options import CONTRASTIVE, MASKED, PretrainOptions

View = Callable[[SpannedText, np.random.Generator], tuple[str, ...]]


@dataclass(frozen=True)
class Objective:
    """One way to learn from a corpus without labels.

    Args:
        columns: name of each text column, and its task, "query" or "document".
        view: draws the texts of one document, one per column.
        two_spans: whether a document needs two spans.
    """

    columns: dict[str, str]
    view: View
    two_spans: bool = False


def find_objective(options: PretrainOptions) -> Objective:
    """What the objective that ``options`` names sees of a document.

    - ``coco``: two spans of a document find each other, and language-model losses; encoder dropout off.
    - ``cocondenser``: the same with encoder dropout, meant for the source corpus (Gao and Callan, 2022).
    - ``condenser``: the language-model losses alone, on one window of each document.
    - ``mlm``: masked language modelling from the last layer alone.
    - ``simcse``: a window finds itself under other dropout (Gao et al., 2021).
    - ``ict``: a span finds the rest of its window (Lee et al., 2019).
    - ``tsdae``: a decoder rebuilds a window from the embedding of what is left of it (Wang et al., 2021).

    The objectives ``qc`` and ``cotmae`` see passages and queries, see
    :class:`~beir_cocodr.training.pretrain_data.ContextViews`.

    Source: COCO-DR, Table 3.
    """
    document = "document"
    objectives = {
        "coco": Objective({"span_1": document, "span_2": document}, span_pair, two_spans=True),
        "condenser": Objective({"window": document}, window),
        "simcse": Objective({"view_1": document, "view_2": document}, twice),
        "ict": Objective(
            {"query": "query", "passage": document},
            partial(inverse_cloze, keep_query=options.keep_query),
            two_spans=True,
        ),
        "tsdae": Objective(
            {"damaged": document, "original": document}, partial(damaged, deletion=options.deletion)
        ),
    }
    same = {"cocondenser": "coco", "mlm": "condenser"}
    return objectives[same.get(options.objective, options.objective)]


def is_masked(options: PretrainOptions) -> bool:
    """Whether there are language-model losses over masked tokens."""
    return options.objective == "cotmae" or (options.objective in MASKED and options.mlm_weight > 0)


def build_loss(model: Any, options: PretrainOptions) -> nn.Module:
    """The objective's loss, with gradient caching where a process's batch is larger than its mini-batch.

    The gradient of cotmae, in which no text acts on another, is accumulated instead.
    """
    cached = options.batch_size // world_size() > options.mini_batch_size
    mini_batch_size = options.mini_batch_size if cached else None
    if options.objective == "tsdae":
        return TSDAELoss(model, mini_batch_size)
    if options.objective == "cotmae":
        return CoTMAELoss(model, mini_batch_size, options.mlm_weight)
    if options.objective in MASKED:
        contrastive_weight = float(options.objective in CONTRASTIVE)
        return COCOLoss(model, options.scale, mini_batch_size, options.mlm_weight, contrastive_weight)
    if options.objective == "simcse":
        _need_dropout(model)
    loss: nn.Module = infonce(model, options.scale, mini_batch_size)
    return loss


def attach_head(model: Any, base: str, options: PretrainOptions) -> str:
    """Append the language-model head to ``model``; tells where its weights come from."""
    late_only = options.objective in ("mlm", "cotmae")
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
    decoder, origin = build_decoder(
        model,
        model[-1],
        model_source(base),
        options.decoder,
        options.decoder_layers,
        options.decoder_window,
    )
    model.append(decoder)
    return origin


def _need_dropout(model: Any) -> None:
    modules = model.transformers_model.modules()
    if not any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
        raise InputError(
            "simcse needs an encoder with dropout, and this one's is 0: nothing else tells the two copies of "
            "a text apart; take another objective"
        )
