"""DistilBERT as the BERT that it is, so that a decoder can be loaded from it.

TSDAE needs a decoder with cross attention, which transformers has for BERT and not for DistilBERT.
A DistilBERT computes what a BERT of its layers does whose embeddings of token types are zero, so
its weights are saved under BERT's names::

    python benchmarks/reproduce/make.py bert-from-distilbert FOLDER --base distilbert-base-uncased
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
)

Weights = dict[str, torch.Tensor]

#: Parts of a layer in DistilBERT and in BERT.
_LAYER_PARTS = {
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}

#: Parts outside of the layers.
_OTHER_PARTS = {
    "distilbert.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
    "distilbert.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
    "distilbert.embeddings.LayerNorm": "bert.embeddings.LayerNorm",
    "vocab_transform": "cls.predictions.transform.dense",
    "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    "vocab_projector": "cls.predictions.decoder",
}

_TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"
_POSITIONS = "bert.embeddings.position_embeddings.weight"
#: BERT's second name of the bias of its last layer.
_BIAS = "cls.predictions.bias"


def part_names(layers: int) -> dict[str, str]:
    """Return the parts of a DistilBERT of some layers, each with its name in BERT."""
    names = dict(_OTHER_PARTS)
    for layer in range(layers):
        for part, in_bert in _LAYER_PARTS.items():
            names[f"distilbert.transformer.layer.{layer}.{part}"] = (
                f"bert.encoder.layer.{layer}.{in_bert}"
            )
    return names


def bert_from_distilbert(output: Path, base: str) -> None:
    """Save a DistilBERT with its head for masked words, and its tokenizer, as a BERT.

    Args:
        output: The folder.
        base: The hub name or folder of the DistilBERT.
    """
    distilbert: Any = DistilBertForMaskedLM.from_pretrained(base)
    given = distilbert.config
    config = BertConfig(
        vocab_size=given.vocab_size,
        hidden_size=given.dim,
        num_hidden_layers=given.n_layers,
        num_attention_heads=given.n_heads,
        intermediate_size=given.hidden_dim,
        max_position_embeddings=given.max_position_embeddings,
        hidden_act=given.activation,
        hidden_dropout_prob=given.dropout,
        attention_probs_dropout_prob=given.attention_dropout,
        pad_token_id=given.pad_token_id,
    )
    bert = BertForMaskedLM(config)
    weights = _renamed(distilbert.state_dict(), part_names(given.n_layers))
    weights[_TOKEN_TYPES] = torch.zeros(config.type_vocab_size, config.hidden_size)
    weights[_BIAS] = weights["cls.predictions.decoder.bias"]
    bert.load_state_dict(weights)
    bert.save_pretrained(output)
    AutoTokenizer.from_pretrained(base).save_pretrained(output)


def distilbert_from_bert(output: Path, base: str) -> None:
    """Save a BERT, of which only the first token type is kept, as a DistilBERT.

    Args:
        output: The folder.
        base: The hub name or folder of the BERT.
    """
    bert: Any = BertForMaskedLM.from_pretrained(base)
    given = bert.config
    config = DistilBertConfig(
        vocab_size=given.vocab_size,
        dim=given.hidden_size,
        n_layers=given.num_hidden_layers,
        n_heads=given.num_attention_heads,
        hidden_dim=given.intermediate_size,
        max_position_embeddings=given.max_position_embeddings,
    )
    weights = dict(bert.state_dict())
    weights[_POSITIONS] = weights[_POSITIONS] + weights[_TOKEN_TYPES][0]
    in_distilbert = {name: part for part, name in part_names(given.num_hidden_layers).items()}
    distilbert = DistilBertForMaskedLM(config)
    distilbert.load_state_dict(_renamed(weights, in_distilbert))
    distilbert.save_pretrained(output)
    AutoTokenizer.from_pretrained(base).save_pretrained(output)


def _renamed(weights: Weights, names: dict[str, str]) -> Weights:
    """Return the weights of the parts that have a name, under that name."""
    renamed = {}
    for name, values in weights.items():
        part, _, kind = name.rpartition(".")
        if part in names:
            renamed[f"{names[part]}.{kind}"] = values
    return renamed
