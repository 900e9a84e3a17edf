"""CoT-MAE's decoder of a passage's context, which is not part of the trained encoder."""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from beir_cocodr.errors import InputError
from beir_cocodr.models.heads.condenser import CondenserHead
from beir_cocodr.models.heads.transformer_layers import (
    INITIAL_DEVIATION,
    TransformerShape,
    initialize,
    transformer_layers,
)
from beir_cocodr.models.saved_module import SavedModule
from beir_cocodr.records import Json

log = logging.getLogger(__name__)

#: The folder of the decoder in a pre-trained model, beside the model's own modules.
DECODER_FOLDER = "cotmae_decoder"

#: The decoders, and their transformer layers by default.
DECODERS = {"autoregressive": 1, "masked": 2}

# Parameters whose outputs are added to the residual path, by the ends of their names.
_RESIDUAL = ("out_proj.weight", "linear2.weight")


def autoregressive_mask(length: int, window: int = 3) -> Tensor:
    """Return which positions of the decoder see which.

    A position sees position 0, which holds the passage's embedding, and the last ``window``
    positions up to itself.

    Returns:
        (L, L) bool; row i says what position i sees.

    References:
        Query-as-context pre-training, the released autoregressive decoder (window 3).
    """
    positions = torch.arange(length)
    seen = positions[None]
    seeing = positions[:, None]
    is_earlier = seen <= seeing
    is_near = seen > seeing - window
    return is_earlier & ((seen == 0) | is_near)


class CoTMAEDecoder(SavedModule):
    """A decoder that rebuilds a context from [embedding of the passage ; tokens of the context].

    It is the last module of the encoder during pre-training, after a
    :class:`~beir_cocodr.models.heads.condenser.CondenserHead` without layers, whose output layers
    it shares, and does nothing unless the features have ``decoder_ids``. Then it appends a column
    to the embeddings: each passage's decoder loss, summed over the labels of its context.

    The tokens of the context are embedded by the encoder's own embedding layer. The first, [CLS],
    is replaced by the passage's embedding by the model's own pooling, which is the last layer's
    [CLS] of a bare BERT. An embedding of unit length is scaled by √d, to the size of the tokens.

    Args:
        shape: Shape of the layers, that of the backbone.
        vocab_size: Size of the backbone's vocabulary, which distinguishes saved decoders.
        decoder: "autoregressive" (layers as in GPT-2, with :func:`autoregressive_mask`) or "masked"
            (layers as in BERT, each position sees all).
        n_layers: Transformer layers.
        window: Attention window of the autoregressive decoder.

    Inputs:
        ``decoder_ids``, ``decoder_mask`` and ``decoder_labels``, (B, L) each: the context's token
        ids, 1 where there is a token, and the labels, -100 where there is no loss.

    References:
        Query-as-context pre-training, section 2.2, and the released autoregressive decoder: layer
        norm before attention and feed-forward and after all layers, dropout on the inputs; CoT-MAE
        (Wu et al., 2022), section 3.
    """

    def __init__(
        self,
        shape: TransformerShape,
        vocab_size: int,
        decoder: str = "autoregressive",
        n_layers: int = 1,
        window: int = 3,
    ) -> None:
        """Draw the weights of a new decoder."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape = shape
        self.vocab_size = vocab_size
        self.decoder = decoder
        self.n_layers = n_layers
        self.window = window
        is_autoregressive = decoder == "autoregressive"
        self.layers = transformer_layers(n_layers, shape, norm_first=is_autoregressive)
        self.layers.apply(initialize)
        if is_autoregressive:
            self.input_dropout = nn.Dropout(shape.dropout)
            self.norm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)
            deviation = INITIAL_DEVIATION / math.sqrt(2 * n_layers)  # as GPT-2
            for name, weight in self.layers.named_parameters():
                if name.endswith(_RESIDUAL):
                    nn.init.normal_(weight, std=deviation)
        self.scale = 1.0
        # Parts of the encoder. A tuple keeps them from being registered, and so saved, twice.
        self._shared: tuple[nn.Module, CondenserHead] | None = None

    def tie(
        self,
        embeddings: nn.Module,
        head: CondenserHead,
        scale: float = 1.0,
    ) -> None:
        """Share parts of the encoder.

        Args:
            embeddings: The encoder's embedding layer, from (B, L) ids to (B, L, d).
            head: A head without layers, whose output layers are shared.
            scale: Factor on the passage's embedding.
        """
        self._shared = (embeddings, head)
        self.scale = scale

    def forward(self, features: dict[str, Tensor], **kwargs: object) -> dict[str, Tensor]:
        """Append each passage's decoder loss to its embedding, if there are contexts."""
        ids = features.get("decoder_ids")
        if ids is None:
            return features
        assert self._shared is not None, "the decoder is tied to no encoder"
        embeddings, head = self._shared
        passages = features["sentence_embedding"]
        first = self.scale * passages[:, None, : self.shape.hidden_size]
        tokens = embeddings(input_ids=ids)
        states = torch.cat([first, tokens[:, 1:]], dim=1)  # (B, L, d)
        mask = features["decoder_mask"]
        states = self.decode(states, mask == 0)
        outputs = head(
            {
                "all_layer_embeddings": [states],
                "sentence_embedding": first[:, 0],
                "mlm_labels": features["decoder_labels"],
                "attention_mask": mask,
            }
        )
        loss = outputs["sentence_embedding"][:, -1:]
        features["sentence_embedding"] = torch.cat([passages, loss], dim=1)
        return features

    def decode(self, states: Tensor, padding: Tensor) -> Tensor:
        """Return the last layer's states.

        Args:
            states: (B, L, d) embeddings.
            padding: (B, L), true where there is no token.
        """
        if self.decoder == "masked":
            for layer in self.layers:
                states = layer(states, src_key_padding_mask=padding)
            return states
        hidden = ~autoregressive_mask(states.shape[1], self.window).to(states.device)
        states = self.input_dropout(states)
        for layer in self.layers:
            states = layer(states, src_mask=hidden, src_key_padding_mask=padding)
        return self.norm(states)  # type: ignore[no-any-return]

    def get_config_dict(self) -> Json:
        """Return the settings that the decoder is saved with."""
        return {
            **asdict(self.shape),
            "vocab_size": self.vocab_size,
            "decoder": self.decoder,
            "n_layers": self.n_layers,
            "window": self.window,
        }

    @classmethod
    def of_settings(cls, settings: Mapping[str, object]) -> Self:
        """Return a new decoder with the settings that one was saved with."""
        shape, others = TransformerShape.split(settings)
        return cls(shape, **others)


def build_decoder(
    model: Any,
    head: CondenserHead,
    source: str | None,
    decoder: str = "autoregressive",
    n_layers: int | None = None,
    window: int = 3,
) -> tuple[CoTMAEDecoder, str]:
    """Build a decoder that fits a model, tied to its embedding layer and to its head.

    Args:
        model: The encoder.
        head: See :meth:`CoTMAEDecoder.tie`.
        source: Where the encoder was loaded from. A decoder saved by an earlier pre-training is
            loaded from there.
        decoder: See :class:`CoTMAEDecoder`.
        n_layers: See :class:`CoTMAEDecoder`. Default: the number in :data:`DECODERS`.
        window: See :class:`CoTMAEDecoder`.

    Returns:
        The decoder, and where its weights come from, in words.

    Raises:
        InputError: The encoder's parts cannot be shared, or the saved decoder has other settings.
    """
    embeddings = _embedding_layer(model)
    built = CoTMAEDecoder(
        head.shape,
        head.vocab_size,
        decoder,
        n_layers=DECODERS[decoder] if n_layers is None else n_layers,
        window=window,
    )
    origin = "new layers"
    if source is not None and (Path(source) / DECODER_FOLDER).is_dir():
        _load_saved(built, Path(source) / DECODER_FOLDER)
        origin = "the decoder of the loaded pre-training"
    log.info("decoder of pre-training: %s", origin)
    normalized = any(isinstance(module, Normalize) for module in model)
    built.tie(embeddings, head, head.shape.hidden_size**0.5 if normalized else 1.0)
    return built.to(head.bias.device), origin


def _embedding_layer(model: Any) -> nn.Module:
    """Return the backbone's module from ids to first hidden states, if a decoder can share it."""
    backbone = model.transformers_model
    layer: nn.Module | None = getattr(backbone, "embeddings", None)
    width = backbone.config.hidden_size
    if layer is None or backbone.get_input_embeddings().embedding_dim != width:
        raise InputError(
            "cotmae's decoder shares the encoder's embedding layer, and that of "
            f"{backbone.config.model_type} cannot be shared; choose a BERT, RoBERTa, DistilBERT or "
            "MPNet encoder, or the objective qc"
        )
    dimension = model.get_embedding_dimension()
    if dimension != width:
        raise InputError(
            f"cotmae decodes embeddings of the encoder's width {width}, and this model has "
            f"{dimension}; choose an encoder without a projection"
        )
    tokenizer = model.tokenizer
    first = tokenizer("a")["input_ids"][0]
    if first not in tokenizer.all_special_ids:
        raise InputError(
            "cotmae replaces the first special token of a context by the passage's embedding, and "
            f"{type(tokenizer).__name__} begins a text without one; choose another encoder"
        )
    return layer


def _load_saved(decoder: CoTMAEDecoder, folder: Path) -> None:
    """Load the weights of a decoder that an earlier pre-training saved."""
    saved = CoTMAEDecoder.load_complete(folder, "decoder")
    saved_settings = saved.get_config_dict()
    for name, value in decoder.get_config_dict().items():
        if saved_settings[name] != value:
            raise InputError(
                f"{folder} has {name} {saved_settings[name]}, and {value} is asked for; ask for "
                "the same, or delete it to start with a new decoder"
            )
    decoder.load_state_dict(saved.state_dict())
