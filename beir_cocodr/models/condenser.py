"""The part of COCO pre-training that is thrown away: Condenser head and masked-language-model head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import Module
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from beir_cocodr.data.masking import IGNORED
from beir_cocodr.errors import InputError

#: Where a pre-trained model keeps its head, beside its own modules.
HEAD_FOLDER = "condenser_head"

# dense, LayerNorm and bias of the masked-language-model heads of BERT, RoBERTa and MPNet, DistilBERT:
# the same three layers under different names.
_MLM_NAMES = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
)


class CondenserHead(Module):
    """Two transformer layers over [last [CLS] ; earlier tokens], and a shared masked-language-model head.

    It stands last in the encoder while that is trained, so that checkpoints, optimiser and data-parallel
    wrapping see it, and does nothing unless the features carry ``mlm_labels``. Then it adds one column to
    the embeddings: each sequence's language-model loss, summed over its masked tokens, through the head
    (tokens of layer ``skip_from`` beside the last layer's [CLS]) and, with ``late_mlm``, straight from the
    last layer as well.

    Args:
        hidden_size, num_attention_heads, intermediate_size, dropout, vocab_size: as in the backbone.
        n_head_layers: transformer layers of the head (default 2; 0 leaves the late loss alone).
        skip_from: hidden state that the tokens are taken from, 0 being the embeddings (default half of
            the layers, so 6 of 12).
        late_mlm: add the loss of the last layer (default).

    References:
        COCO-DR, section 4.1; Condenser (Gao and Callan, 2021), section 3.
    """

    config_keys = [  # noqa: RUF012 - the host's way to declare it
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "dropout",
        "vocab_size",
        "n_head_layers",
        "skip_from",
        "late_mlm",
    ]

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
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.intermediate_size, self.vocab_size, self.dropout = intermediate_size, vocab_size, dropout
        self.n_head_layers, self.skip_from, self.late_mlm = n_head_layers, skip_from, late_mlm
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden_size, num_attention_heads, intermediate_size, dropout, "gelu", batch_first=True
            )
            for _ in range(n_head_layers)
        )
        for layer in self.layers:
            layer.dropout = nn.Dropout(0.0)  # BERT has no dropout inside its feed-forward block
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # The decoder is the input embedding itself. A tuple keeps it from being registered (and saved) twice.
        self._embedding: tuple[nn.Embedding, ...] = ()
        self.apply(_initialize)

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the backbone's input embeddings, (V, d), as output layer."""
        self._embedding = (embedding,)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
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
        embedding = features["sentence_embedding"]
        features["sentence_embedding"] = torch.cat([embedding, loss.to(embedding.dtype)[:, None]], dim=1)
        return features

    def _masked_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """(B,) cross entropy summed over each sequence's masked tokens; only those pass the output layer."""
        rows, columns = torch.nonzero(labels != IGNORED, as_tuple=True)
        chosen = self.layer_norm(F.gelu(self.dense(states[rows, columns])))  # (M, d)
        logits = F.linear(chosen, self._embedding[0].weight, self.bias)  # (M, V)
        losses = F.cross_entropy(logits.float(), labels[rows, columns], reduction="none")
        return losses.new_zeros(len(labels)).index_add(0, rows, losses)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> CondenserHead:
        places = {k: v for k, v in kwargs.items() if k in ("subfolder", "token", "cache_folder", "revision")}
        head = cls(**cls.load_config(model_name_or_path, **places))
        cls.load_torch_weights(model_name_or_path, model=head, **places)
        return head


def build_head(
    model: Any,
    source: str | None,
    n_head_layers: int = 2,
    skip_from: int | None = None,
    late_mlm: bool = True,
) -> tuple[CondenserHead, str]:
    """A head that fits ``model``, tied to its embeddings, with the best weights that are to be had.

    Args:
        model: the encoder.
        source: where the encoder was loaded from. A head saved by an earlier pre-training is loaded from
            there, else the masked-language-model layers of the backbone's own checkpoint.

    Returns:
        The head, and in words where its weights come from.
    """
    backbone = model.transformers_model
    config, embedding = backbone.config, backbone.get_input_embeddings()
    saved = Path(source or "") / HEAD_FOLDER
    if source and saved.is_dir():
        head = CondenserHead.load(str(saved))
        asked = (n_head_layers, late_mlm, head.skip_from if skip_from is None else skip_from)
        if asked != (head.n_head_layers, head.late_mlm, head.skip_from):
            raise InputError(
                f"{saved} has n_head_layers {head.n_head_layers}, late_mlm {head.late_mlm} and skip_from "
                f"{head.skip_from}; ask for the same, or delete it for a new head"
            )
        origin = "the head of the loaded pre-training"
    else:
        head = CondenserHead(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=getattr(config, "intermediate_size", None) or config.hidden_dim,
            vocab_size=embedding.num_embeddings,
            skip_from=config.num_hidden_layers // 2 if skip_from is None else skip_from,
            n_head_layers=n_head_layers,
            late_mlm=late_mlm,
        )
        loaded = source is not None and _load_mlm_weights(head, source)
        origin = "the checkpoint's language-model layers" if loaded else "new layers, tied to the embeddings"
    head.tie(embedding)
    return head.to(embedding.weight.device), origin


def _load_mlm_weights(head: CondenserHead, source: str) -> bool:
    """Copy dense, LayerNorm and bias from a masked language model; False where there is none."""
    try:
        language_model, info = AutoModelForMaskedLM.from_pretrained(source, output_loading_info=True)
    except (OSError, ValueError, KeyError):
        return False
    weights, missing = language_model.state_dict(), set(info["missing_keys"])
    for dense, norm, bias in _MLM_NAMES:
        ours = {
            f"{ours}.{part}": f"{theirs}.{part}"
            for ours, theirs in (("dense", dense), ("layer_norm", norm))
            for part in ("weight", "bias")
        } | {"bias": bias}
        if all(name in weights and name not in missing for name in ours.values()):
            head.load_state_dict({name: weights[theirs] for name, theirs in ours.items()}, strict=False)
            return True
    return False


def _initialize(module: nn.Module) -> None:
    """BERT's initialisation: normal with deviation 0.02, biases zero."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)
