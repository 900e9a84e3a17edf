"""CoT-MAE's part of pre-training that is thrown away: a shallow decoder of a passage's context."""

import logging
import math
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from beir_cocodr.errors import InputError
from beir_cocodr.models.condenser import CondenserHead, initialize, transformer_layers
from beir_cocodr.models.saved_module import SavedModule

log = logging.getLogger(__name__)

#: Where a pre-trained model keeps its decoder, beside its own modules.
DECODER_FOLDER = "cotmae_decoder"

#: The decoders, and their transformer layers unless asked otherwise.
DECODERS = {"autoregressive": 1, "masked": 2}


def autoregressive_mask(length: int, window: int = 3) -> Tensor:
    """(L, L) bool: a position of the decoder, a row, sees position 0, where the passage's embedding
    stands, and the last ``window`` up to itself. Source: query-as-context pre-training, the
    released autoregressive decoder (window 3).
    """
    place = torch.arange(length)
    seen, seeing = place[None], place[:, None]
    return (seen <= seeing) & ((seen == 0) | (seen > seeing - window))


class CoTMAEDecoder(SavedModule):
    """Rebuilds a context from [embedding of the passage ; tokens of the context].

    It stands last in the encoder while that is trained, behind a
    :class:`~beir_cocodr.models.condenser.CondenserHead` without layers, whose output layers it
    shares, and does nothing unless the features carry ``decoder_ids``. Then it adds one column to
    the embeddings: each passage's decoder loss, summed over the labels of its context.

    The tokens of the context are embedded by the encoder's own embedding layer. In the place of the
    first, [CLS], stands the passage's embedding by the model's own pooling, which is the last
    layer's [CLS] of a bare BERT; a normalised one is scaled by √d, to the size of the tokens beside
    it.

    Args:
        hidden_size, num_attention_heads, intermediate_size, dropout, layer_norm_eps: as in the
            backbone.
        vocab_size: the backbone's; tells decoders apart.
        decoder: "autoregressive" (layers as in GPT-2, each position sees what
            :func:`autoregressive_mask` says) or "masked" (layers as in BERT, each position sees
            all).
        n_layers: transformer layers (default 1 and 2).
        window: attention window of the autoregressive decoder.

    Inputs:
        ``decoder_ids``, ``decoder_mask`` and ``decoder_labels``, (B, L) each: the context's token
        ids, 1 where there is a token, and the labels, -100 where there is no loss.

    References:
        Query-as-context pre-training, section 2.2, and the released autoregressive decoder: layer
        norm before attention and feed-forward and after all, dropout on what goes in; CoT-MAE (Wu
        et al., 2022), section 3.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        intermediate_size: int,
        vocab_size: int,
        dropout: float = 0.1,
        layer_norm_eps: float = 1e-12,
        decoder: str = "autoregressive",
        n_layers: int = 1,
        window: int = 3,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.intermediate_size, self.vocab_size = intermediate_size, vocab_size
        self.dropout, self.layer_norm_eps = dropout, layer_norm_eps
        self.decoder, self.n_layers, self.window = decoder, n_layers, window
        shape = (hidden_size, num_attention_heads, intermediate_size, dropout, layer_norm_eps)
        self.layers = transformer_layers(n_layers, *shape, norm_first=decoder == "autoregressive")
        self.layers.apply(initialize)
        if decoder == "autoregressive":
            self.input_dropout, self.norm = (
                nn.Dropout(dropout),
                nn.LayerNorm(hidden_size, layer_norm_eps),
            )
            for (
                name,
                weight,
            ) in (
                self.layers.named_parameters()
            ):  # as GPT-2 scales what is added to the residual path
                if name.endswith(("out_proj.weight", "linear2.weight")):
                    nn.init.normal_(weight, std=0.02 / math.sqrt(2 * n_layers))
        self.scale = 1.0
        # Parts of the encoder. A tuple keeps them from being registered (and saved) twice.
        self._shared: tuple[nn.Module, CondenserHead] | None = None

    def tie(self, embeddings: nn.Module, head: CondenserHead, scale: float = 1.0) -> None:
        """Share the encoder's embedding layer, (B, L) ids to (B, L, d), and the output layers of a
        head without layers; ``scale`` is a factor on the passage's embedding.
        """
        self._shared, self.scale = (embeddings, head), scale

    def forward(self, features: dict[str, Tensor], **kwargs: object) -> dict[str, Tensor]:
        ids = features.get("decoder_ids")
        if ids is None:
            return features
        assert self._shared is not None, "the decoder is tied to no encoder"
        embeddings, head = self._shared
        embedded = features["sentence_embedding"]
        passage = self.scale * embedded[:, None, : self.hidden_size]
        states = torch.cat([passage, embeddings(input_ids=ids)[:, 1:]], dim=1)  # (B, L, d)
        padding = features["decoder_mask"] == 0
        states = self.decode(states, padding)
        decoded = {"all_layer_embeddings": [states], "sentence_embedding": passage[:, 0]}
        decoded |= {
            "mlm_labels": features["decoder_labels"],
            "attention_mask": features["decoder_mask"],
        }
        loss = head(decoded)["sentence_embedding"][:, -1:]
        features["sentence_embedding"] = torch.cat([embedded, loss], dim=1)
        return features

    def decode(self, states: Tensor, padding: Tensor) -> Tensor:
        """(B, L, d) embeddings to the last layer's states; ``padding`` is (B, L), true where there
        is no token.
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


def build_decoder(
    model: Any,
    head: CondenserHead,
    source: str | None,
    decoder: str = "autoregressive",
    n_layers: int | None = None,
    window: int = 3,
) -> tuple[CoTMAEDecoder, str]:
    """A decoder that fits ``model``, tied to its embedding layer and to ``head``, and in words
    where its weights come from; an InputError where the encoder's parts cannot be shared, or what
    lies in ``source`` is another decoder.

    Args:
        model: the encoder.
        head: see :meth:`CoTMAEDecoder.tie`.
        source: where the encoder was loaded from; a decoder saved by an earlier pre-training goes
            on.
        decoder, n_layers, window: see :class:`CoTMAEDecoder`; None layers means :data:`DECODERS`'
        number.
    """
    embeddings = _embedding_layer(model)
    shape = (head.hidden_size, head.num_attention_heads, head.intermediate_size, head.vocab_size)
    layers = DECODERS[decoder] if n_layers is None else n_layers
    built = CoTMAEDecoder(*shape, head.dropout, head.layer_norm_eps, decoder, layers, window)
    origin = "new layers"
    if source is not None and (Path(source) / DECODER_FOLDER).is_dir():
        _load_saved(built, Path(source) / DECODER_FOLDER)
        origin = "the decoder of the loaded pre-training"
    log.info("decoder of pre-training: %s", origin)
    normalized = any(isinstance(module, Normalize) for module in model)
    built.tie(embeddings, head, head.hidden_size**0.5 if normalized else 1.0)
    return built.to(head.bias.device), origin


def _embedding_layer(model: Any) -> nn.Module:
    """The backbone's module from ids to first hidden states, if a decoder can share it."""
    backbone = model.transformers_model
    layer: nn.Module | None = getattr(backbone, "embeddings", None)
    width = backbone.config.hidden_size
    if layer is None or backbone.get_input_embeddings().embedding_dim != width:
        raise InputError(
            "cotmae's decoder shares the encoder's embedding layer, and that of "
            f"{backbone.config.model_type} cannot be shared; take a BERT, RoBERTa, DistilBERT or MPNet "
            "encoder, or the objective qc"
        )
    if model.get_embedding_dimension() != width:
        raise InputError(
            f"cotmae decodes embeddings of the encoder's width {width}, this model's have "
            f"{model.get_embedding_dimension()}: take an encoder without a projection"
        )
    first = model.tokenizer("a")["input_ids"][0]
    if first not in model.tokenizer.all_special_ids:
        raise InputError(
            "cotmae puts the passage's embedding in the place of the first special token of its context, and "
            f"{type(model.tokenizer).__name__} begins a text with none; take another encoder"
        )
    return layer


def _load_saved(decoder: CoTMAEDecoder, folder: Path) -> None:
    saved = CoTMAEDecoder.load_complete(folder, "decoder")
    for name in CoTMAEDecoder.config_keys:
        if getattr(saved, name) != getattr(decoder, name):
            raise InputError(
                f"{folder} has {name} {getattr(saved, name)}, asked for is {getattr(decoder, name)}; ask for "
                "the same, or delete it for a new decoder"
            )
    decoder.load_state_dict(saved.state_dict())
