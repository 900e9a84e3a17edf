"""The head of COCO pre-training, which is not part of the trained encoder.

It is a Condenser head, or a plain masked-language-model head, published or new.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beir_cocodr.data.text import IGNORED
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.checkpoint_heads import (
    PUBLISHED_HEAD,
    mlm_layers,
    published_head_layers,
)
from beir_cocodr.models.heads.transformer_layers import (
    TransformerShape,
    initialize,
    transformer_layers,
)
from beir_cocodr.models.saved_module import SavedModule
from beir_cocodr.records import Json

log = logging.getLogger(__name__)

#: The folder of the head in a pre-trained model, beside the model's own modules.
HEAD_FOLDER = "condenser_head"

_NEW_LAYERS = "new layers, tied to the embeddings"


class CondenserHead(SavedModule):
    """Transformer layers over [last [CLS] ; earlier tokens], and a masked-language-model head.

    It is the last module of the encoder during pre-training, so that checkpoints, optimiser and
    data-parallel wrapping include it, and does nothing unless the features have ``mlm_labels``.
    Then it appends a column to the embeddings: each sequence's language-model loss, summed over its
    masked tokens. The loss goes through the head (tokens of layer ``skip_from`` beside the last
    layer's [CLS]) and, with ``late_mlm``, also directly from the last layer.

    Args:
        shape: Shape of the layers, that of the backbone.
        vocab_size: Size of the backbone's vocabulary.
        skip_from: Hidden state that the tokens are taken from, 0 being the embeddings.
        n_head_layers: Transformer layers of the head; 0 leaves the late loss alone.
        late_mlm: Add the loss of the last layer.

    References:
        COCO-DR, section 4.1; Condenser (Gao and Callan, 2021), section 3.
    """

    def __init__(
        self,
        shape: TransformerShape,
        vocab_size: int,
        skip_from: int,
        n_head_layers: int = 2,
        late_mlm: bool = True,
    ) -> None:
        """Draw the weights of a new head."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape = shape
        self.vocab_size = vocab_size
        self.skip_from = skip_from
        self.n_head_layers = n_head_layers
        self.late_mlm = late_mlm
        width = shape.hidden_size
        self.layers = transformer_layers(n_head_layers, shape)
        self.dense = nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width, shape.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # The input embedding is the output layer. A tuple keeps it from being registered, and so
        # saved, twice.
        self._embedding: tuple[nn.Embedding, ...] = ()
        self.apply(initialize)

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the backbone's input embeddings, (V, d), as the output layer."""
        self._embedding = (embedding,)

    def forward(self, features: dict[str, Tensor], **kwargs: object) -> dict[str, Tensor]:
        """Append each sequence's language-model loss to its embedding, if there are labels."""
        labels = features.get("mlm_labels")
        if labels is None:
            return features
        hidden = features["all_layer_embeddings"]
        last = hidden[-1]
        padding = features["attention_mask"] == 0
        loss = self._masked_loss(last, labels) if self.late_mlm else last.new_zeros(len(last))
        if self.n_head_layers:
            earlier = hidden[self.skip_from]
            states = torch.cat([last[:, :1], earlier[:, 1:]], dim=1)  # (B, L, d)
            for layer in self.layers:
                states = layer(states, src_key_padding_mask=padding)
            loss = loss + self._masked_loss(states, labels)
        # torch.cat takes the wider type: sums of losses lose too much in half precision.
        embeddings = features["sentence_embedding"]
        features["sentence_embedding"] = torch.cat([embeddings, loss[:, None]], dim=1)
        return features

    def _masked_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return (B,) cross entropies, summed over each sequence's masked tokens.

        Only masked tokens pass the output layer.
        """
        rows, columns = torch.nonzero(labels != IGNORED, as_tuple=True)
        masked = F.gelu(self.dense(states[rows, columns]))  # (M, d)
        masked = self.layer_norm(masked)
        logits = F.linear(masked, self._embedding[0].weight, self.bias)  # (M, V)
        losses = F.cross_entropy(logits.float(), labels[rows, columns], reduction="none")
        return losses.new_zeros(len(labels)).index_add(0, rows, losses)

    def get_config_dict(self) -> Json:
        """Return the settings that the head is saved with."""
        return {
            **asdict(self.shape),
            "vocab_size": self.vocab_size,
            "skip_from": self.skip_from,
            "n_head_layers": self.n_head_layers,
            "late_mlm": self.late_mlm,
        }

    @classmethod
    def of_settings(cls, settings: Mapping[str, object]) -> Self:
        """Return a new head with the settings that one was saved with."""
        shape, others = TransformerShape.split(settings)
        return cls(shape, **others)


def build_head(
    model: Any,
    source: str | None,
    n_head_layers: int = 2,
    skip_from: int | None = None,
    late_mlm: bool = True,
) -> tuple[CondenserHead, str]:
    """Build a head that fits a model, tied to its embeddings, with the best weights at hand.

    Args:
        model: The encoder.
        source: Where the encoder was loaded from. A head saved by an earlier pre-training is loaded
            from there. Otherwise the transformer layers of a published Condenser (its file
            ``model.pt``) and the masked-language-model layers of the backbone's own checkpoint are,
            as far as they exist.
        n_head_layers: See :class:`CondenserHead`.
        skip_from: See :class:`CondenserHead`. Default: half the layers, so 6 of 12.
        late_mlm: See :class:`CondenserHead`.

    Returns:
        The head, and where its weights come from, in words.

    Raises:
        InputError: The weights are those of another model, or their shape is not the one asked for.
    """
    backbone = model.transformers_model
    config = backbone.config
    embedding = backbone.get_input_embeddings()
    layers = config.num_hidden_layers
    if skip_from is not None and not 0 <= skip_from <= layers:
        raise InputError(f"skip_from {skip_from} is not one of the encoder's layers, 0 to {layers}")
    head = CondenserHead(
        TransformerShape.of_config(config),
        vocab_size=embedding.num_embeddings,
        skip_from=layers // 2 if skip_from is None else skip_from,
        n_head_layers=n_head_layers,
        late_mlm=late_mlm,
    )
    origin = None
    if source is not None:
        origin = _load(head, source, skip_from)
    origin = origin or _NEW_LAYERS
    log.info("language-model head of pre-training: %s", origin)
    head.tie(embedding)
    return head.to(embedding.weight.device), origin


def _load(
    head: CondenserHead,
    source: str,
    skip_from: int | None,
) -> str | None:
    """Load the weights that a source has for a head.

    Returns:
        Where they come from, in words, or None if there are none.
    """
    saved = Path(source) / HEAD_FOLDER
    if saved.is_dir():
        _load_saved(head, saved, skip_from)
        return "the head of the loaded pre-training"
    origins = []
    layers = published_head_layers(source) if head.n_head_layers else None
    if layers is not None:
        file = f"{source}/{PUBLISHED_HEAD}"
        if len(layers) != head.n_head_layers:
            raise InputError(
                f"{file} has {len(layers)} head layers, not {head.n_head_layers}; ask for "
                f"n_head_layers {len(layers)}, or move it away to start with a new head"
            )
        weights = {}
        for number, layer in enumerate(layers):
            for name, weight in layer.items():
                weights[f"layers.{number}.{name}"] = weight
        _fill(head, weights, file)
        origins.append(f"the Condenser head in {PUBLISHED_HEAD}")
    output_layers = mlm_layers(source)
    if output_layers is not None:
        _fill(head, output_layers, source)
        origins.append("the checkpoint's language-model layers")
    return " and ".join(origins) or None


def _load_saved(
    head: CondenserHead,
    folder: Path,
    skip_from: int | None,
) -> None:
    """Load the weights of a head that an earlier pre-training saved."""
    saved = CondenserHead.load_complete(folder, "head")
    _check_same_model(head, saved, folder)
    if skip_from is None:
        head.skip_from = saved.skip_from
    weights = saved.state_dict()
    if not (saved.n_head_layers and head.n_head_layers):
        # One of them is masked language modelling alone: only the output layers are shared.
        for name in list(weights):
            if name.startswith("layers."):
                del weights[name]
    elif _form(saved) != _form(head):
        raise InputError(
            f"{folder} has n_head_layers {saved.n_head_layers}, late_mlm {saved.late_mlm} and "
            f"skip_from {saved.skip_from}; ask for the same, or delete it to start with a new head"
        )
    _fill(head, weights, str(folder))


def _form(head: CondenserHead) -> tuple[int, bool, int]:
    return head.n_head_layers, head.late_mlm, head.skip_from


def _check_same_model(
    head: CondenserHead,
    saved: CondenserHead,
    folder: Path,
) -> None:
    """Check that a saved head is that of the same backbone as a new one."""
    settings = head.get_config_dict()
    saved_settings = saved.get_config_dict()
    for name in ("hidden_size", "num_attention_heads", "vocab_size"):
        if saved_settings[name] != settings[name]:
            raise InputError(
                f"{folder} is the head of another model: its {name} is {saved_settings[name]} and "
                f"the encoder's is {settings[name]}; delete it to start with a new head"
            )


def _fill(
    head: CondenserHead,
    weights: dict[str, Tensor],
    source: str,
) -> None:
    """Copy weights into a head, which may have others too."""
    expected = head.state_dict()
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            raise InputError(
                f"{source} belongs to another model: its head's {name} is {tuple(weight.shape)} "
                f"and the encoder needs {tuple(expected[name].shape)}; move it away to start with "
                "a new head"
            )
    head.load_state_dict(weights, strict=False)
