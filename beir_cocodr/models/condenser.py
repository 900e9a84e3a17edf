"""The part of COCO pre-training that is thrown away: Condenser and masked-language-model heads,
published or new.
"""

import logging
import pickle
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.util import load_file_path
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from beir_cocodr.data.text import IGNORED
from beir_cocodr.errors import InputError, explained, listed
from beir_cocodr.models.integrity import MAYBE_HEAD, loading
from beir_cocodr.models.saved_module import SavedModule

log = logging.getLogger(__name__)

#: The file beside the BERT weights in which Condenser and coCondenser were released with their
#: head.
PUBLISHED_HEAD = "model.pt"

#: Where a pre-trained model keeps its head, beside its own modules.
HEAD_FOLDER = "condenser_head"

# dense, LayerNorm and bias of the masked-language-model heads: the same layers in BERT, RoBERTa and
# MPNet, DistilBERT.
_MLM_NAMES = (
    (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
)

# nn.TransformerEncoderLayer's names for the modules of BERT's and RoBERTa's layers.
_LAYER_NAMES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


def mlm_layers(source: str) -> dict[str, Tensor] | None:
    """dense, LayerNorm and bias of an MLM head, under our names; None without; InputError: a part
    is missing.
    """
    try:
        with loading(source, MAYBE_HEAD):
            language_model, info = AutoModelForMaskedLM.from_pretrained(
                source, output_loading_info=True
            )
    except (
        InputError
    ):  # no such head is known for the encoder, which itself was loaded whole from there
        return None
    weights, missing = language_model.state_dict(), set(info["missing_keys"])
    for dense, norm, bias in _MLM_NAMES:
        names = {"bias": bias}
        for part in ("weight", "bias"):
            names |= {f"dense.{part}": f"{dense}.{part}", f"layer_norm.{part}": f"{norm}.{part}"}
        lacking = [name for name in names.values() if name not in weights or name in missing]
        if not lacking:
            return {ours: weights[theirs] for ours, theirs in names.items()}
        if len(lacking) < len(names):
            raise InputError(
                f"the language-model head of {source} lacks {listed(lacking, 3)}; download it again"
            )
    return None


def published_head_layers(source: str) -> list[dict[str, Tensor]] | None:
    """The transformer layers of a Condenser head as it was released, each as
    nn.TransformerEncoderLayer's weights.

    The file is the one foreign pickle that is read here, and only tensors of it
    (``weights_only=True``): a state dict with the keys ``c_head.{i}.`` of BERT's layers. None where
    there is no such file, or no such key in it; an InputError where it cannot be read, or lacks
    weights of a layer.

    Source: Condenser (Gao and Callan, 2021), its released code and checkpoints.
    """
    path = None
    with suppress(OSError):  # the hub could not be asked, and the encoder came from its cache
        path = load_file_path(source, PUBLISHED_HEAD)
    if path is None:
        return None
    kinds = (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError)
    way_out = "move it away for a new head"
    with explained(f"{path} cannot be read as tensors", way_out, *kinds):
        weights = torch.load(path, map_location="cpu", weights_only=True)
    keys = (
        [re.match(r"c_head\.(\d+)\.", str(key)) for key in weights]
        if isinstance(weights, dict)
        else []
    )
    layers = max((int(key.group(1)) + 1 for key in keys if key), default=0)
    with explained(f"{path} is not a complete head, it lacks a weight", way_out, KeyError):
        return [encoder_layer_weights(weights, f"c_head.{i}.") for i in range(layers)] or None


def encoder_layer_weights(weights: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The weights of one BERT or RoBERTa layer under the names of nn.TransformerEncoderLayer.

    Query, key and value, (d, d) each, become one input projection, (3d, d), in this order. A weight
    that is missing is a KeyError.
    """
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        projections = [
            weights[f"{prefix}attention.self.{name}.{part}"] for name in ("query", "key", "value")
        ]
        found[f"self_attn.in_proj_{part}"] = torch.cat(projections)
        for ours, theirs in _LAYER_NAMES.items():
            found[f"{ours}.{part}"] = weights[f"{prefix}{theirs}.{part}"]
    return found


class CondenserHead(SavedModule):
    """Two transformer layers over [last [CLS] ; earlier tokens], and a shared masked-language-model
    head.

    It stands last in the encoder while that is trained, so that checkpoints, optimiser and
    data-parallel wrapping see it, and does nothing unless the features carry ``mlm_labels``. Then
    it adds one column to the embeddings: each sequence's language-model loss, summed over its
    masked tokens, through the head (tokens of layer ``skip_from`` beside the last layer's [CLS])
    and, with ``late_mlm``, straight from the last layer as well.

    Args:
        hidden_size, num_attention_heads, intermediate_size, dropout, vocab_size, layer_norm_eps: as
            in the backbone.
        n_head_layers: transformer layers of the head (default 2; 0 leaves the late loss alone).
        skip_from: hidden state that the tokens are taken from, 0 being the embeddings (default:
            half, so 6 of 12).
        late_mlm: add the loss of the last layer (default).

    References:
        COCO-DR, section 4.1; Condenser (Gao and Callan, 2021), section 3.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        intermediate_size: int,
        vocab_size: int,
        skip_from: int,
        dropout: float = 0.1,
        n_head_layers: int = 2,
        late_mlm: bool = True,
        layer_norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.intermediate_size, self.vocab_size, self.dropout = (
            intermediate_size,
            vocab_size,
            dropout,
        )
        self.n_head_layers, self.skip_from, self.late_mlm = n_head_layers, skip_from, late_mlm
        self.layer_norm_eps = layer_norm_eps
        shape = (hidden_size, num_attention_heads, intermediate_size, dropout)
        self.layers = transformer_layers(n_head_layers, *shape, layer_norm_eps)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # The decoder is the input embedding itself. A tuple keeps it from being registered (and
        # saved) twice.
        self._embedding: tuple[nn.Embedding, ...] = ()
        self.apply(initialize)

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the backbone's input embeddings, (V, d), as the output layer."""
        self._embedding = (embedding,)

    def forward(self, features: dict[str, Tensor], **kwargs: object) -> dict[str, Tensor]:
        labels = features.get("mlm_labels")
        if labels is None:
            return features
        hidden = features["all_layer_embeddings"]
        last, padding = hidden[-1], features["attention_mask"] == 0
        loss = self._masked_loss(last, labels) if self.late_mlm else last.new_zeros(len(last))
        if self.n_head_layers:
            states = torch.cat([last[:, :1], hidden[self.skip_from][:, 1:]], dim=1)  # (B, L, d)
            for layer in self.layers:
                states = layer(states, src_key_padding_mask=padding)
            loss = loss + self._masked_loss(states, labels)
        # In the wider type of the two: sums of losses lose too much in half precision.
        features["sentence_embedding"] = torch.cat(
            [features["sentence_embedding"], loss[:, None]], dim=1
        )
        return features

    def _masked_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """(B,) cross entropy summed over each sequence's masked tokens; only those pass the output
        layer.
        """
        rows, columns = torch.nonzero(labels != IGNORED, as_tuple=True)
        chosen = self.layer_norm(F.gelu(self.dense(states[rows, columns])))  # (M, d)
        logits = F.linear(chosen, self._embedding[0].weight, self.bias)  # (M, V)
        losses = F.cross_entropy(logits.float(), labels[rows, columns], reduction="none")
        return losses.new_zeros(len(labels)).index_add(0, rows, losses)


def build_head(
    model: Any,
    source: str | None,
    n_head_layers: int = 2,
    skip_from: int | None = None,
    late_mlm: bool = True,
) -> tuple[CondenserHead, str]:
    """A head that fits ``model``, tied to its embeddings, with the best weights that are to be had,
    and in words where they come from; an InputError where those are another model's, or of another
    shape than asked for.

    Args:
        model: the encoder.
        source: where the encoder was loaded from. A head saved by an earlier pre-training is loaded
            from there; else the transformer layers of a published Condenser (its file ``model.pt``)
            and the masked-language-model layers of the backbone's own checkpoint, as far as they
            are there.
        n_head_layers, skip_from, late_mlm: as for :class:`CondenserHead`.
    """
    backbone = model.transformers_model
    config, embedding = backbone.config, backbone.get_input_embeddings()
    if skip_from is not None and not 0 <= skip_from <= config.num_hidden_layers:
        raise InputError(
            f"skip_from {skip_from} is not one of the encoder's layers, 0 to {config.num_hidden_layers}"
        )
    head = CondenserHead(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=getattr(config, "intermediate_size", None) or config.hidden_dim,
        vocab_size=embedding.num_embeddings,
        skip_from=config.num_hidden_layers // 2 if skip_from is None else skip_from,
        n_head_layers=n_head_layers,
        late_mlm=late_mlm,
        dropout=getattr(config, "hidden_dropout_prob", getattr(config, "dropout", 0.1)),
        layer_norm_eps=getattr(config, "layer_norm_eps", 1e-12),
    )
    origin = (
        None if source is None else _load(head, source, skip_from)
    ) or "new layers, tied to the embeddings"
    log.info("language-model head of pre-training: %s", origin)
    head.tie(embedding)
    return head.to(embedding.weight.device), origin


def _load(head: CondenserHead, source: str, skip_from: int | None) -> str | None:
    """Fill ``head`` from what lies in ``source``, and describe it; None where there was nothing."""
    saved = Path(source) / HEAD_FOLDER
    if saved.is_dir():
        _load_saved(head, saved, skip_from)
        return "the head of the loaded pre-training"
    origins = []
    if head.n_head_layers and (layers := published_head_layers(source)) is not None:
        if len(layers) != head.n_head_layers:
            raise InputError(
                f"{source}/{PUBLISHED_HEAD} has {len(layers)} head layers, not {head.n_head_layers}; ask for "
                f"n_head_layers {len(layers)}, or move it away for a new head"
            )
        named = {
            f"layers.{i}.{name}": weight
            for i, layer in enumerate(layers)
            for name, weight in layer.items()
        }
        _fill(head, named, f"{source}/{PUBLISHED_HEAD}")
        origins.append(f"the Condenser head in {PUBLISHED_HEAD}")
    if (weights := mlm_layers(source)) is not None:
        _fill(head, weights, source)
        origins.append("the checkpoint's language-model layers")
    return " and ".join(origins) or None


def _load_saved(head: CondenserHead, folder: Path, skip_from: int | None) -> None:
    saved = CondenserHead.load_complete(folder, "head")
    for name in ("hidden_size", "num_attention_heads", "vocab_size"):
        if getattr(saved, name) != getattr(head, name):
            raise InputError(
                f"{folder} is the head of another model: its {name} is {getattr(saved, name)}, the encoder's "
                f"{getattr(head, name)}; delete it for a new head"
            )
    if skip_from is None:
        head.skip_from = saved.skip_from
    weights = saved.state_dict()
    if not (saved.n_head_layers and head.n_head_layers):
        # Masked language modelling alone has no transformer layers: only the output layers go on.
        weights = {
            name: weight for name, weight in weights.items() if not name.startswith("layers.")
        }
    elif (saved.n_head_layers, saved.late_mlm, saved.skip_from) != (
        head.n_head_layers,
        head.late_mlm,
        head.skip_from,
    ):
        raise InputError(
            f"{folder} has n_head_layers {saved.n_head_layers}, late_mlm {saved.late_mlm} and skip_from "
            f"{saved.skip_from}; ask for the same, or delete it for a new head"
        )
    _fill(head, weights, str(folder))


def _fill(head: CondenserHead, weights: dict[str, Tensor], place: str) -> None:
    """Copy the given weights, which may be some of the head's, into it."""
    own = head.state_dict()
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            raise InputError(
                f"{place} belongs to another model: its head's {name} is {tuple(weight.shape)}, the encoder "
                f"needs {tuple(own[name].shape)}; move it away for a new head"
            )
    head.load_state_dict(weights, strict=False)


def transformer_layers(
    count: int,
    width: int,
    heads: int,
    inner: int,
    dropout: float,
    layer_norm_eps: float,
    norm_first: bool = False,
) -> nn.ModuleList:
    """Layers as in BERT or, with ``norm_first``, as in GPT-2; :func:`initialize` draws their
    weights.
    """
    shape = (width, heads, inner, dropout, "gelu", layer_norm_eps)
    one = partial(nn.TransformerEncoderLayer, *shape, batch_first=True, norm_first=norm_first)
    layers = nn.ModuleList(one() for _ in range(count))
    for layer in layers:
        layer.dropout = nn.Dropout(0.0)  # neither has dropout inside its feed-forward block
    return layers


def initialize(module: nn.Module) -> None:
    """BERT's initialisation: normal with deviation 0.02, biases zero."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)
