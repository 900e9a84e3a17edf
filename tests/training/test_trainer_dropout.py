"""Dropout in training: the encoder's own rates, or one that was asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DistilBertConfig, DistilBertModel, ModernBertConfig, ModernBertModel

from beir_cocodr import COCODR
from beir_cocodr.errors import InputError
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.trainer import set_dropout

BUDGET = {"max_steps": 2, "batch_size": 8, "learning_rate": 1e-4, "warmup": 0}
SIZES = {"vocab_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}


def distilbert(attention: str):
    config = DistilBertConfig(
        vocab_size=64, dim=16, hidden_dim=32, n_heads=2, n_layers=2, attention_dropout=0.5
    )
    config._attn_implementation = attention
    return DistilBertModel(config)


def modernbert(attention: str):
    config = ModernBertConfig(
        **SIZES,
        hidden_size=16,
        intermediate_size=32,
        pad_token_id=0,
        attention_dropout=0.5,
        mlp_dropout=0.5,
        embedding_dropout=0.5,
    )
    config._attn_implementation = attention
    return ModernBertModel(config)


@pytest.mark.parametrize("build", [distilbert, modernbert])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_without_dropout_a_model_computes_in_training_what_it_computes_after(build, attention):
    torch.manual_seed(0)
    model = build(attention)
    ids = torch.randint(1, 64, (3, 12))
    expected = model.eval()(input_ids=ids).last_hidden_state
    model.train()
    dropped = model(input_ids=ids).last_hidden_state
    assert not torch.allclose(dropped, expected, atol=1e-3)
    set_dropout(model, 0.0)
    assert torch.allclose(model(input_ids=ids).last_hidden_state, expected, atol=1e-6)


class Rates(set):
    """The rates of the dropout layers that ran in training."""

    def look(self, module, inputs, output):
        if isinstance(module, nn.Dropout) and module.training:
            self.add(module.p)


def test_a_training_drops_what_was_asked_for_and_records_it(two_layer_bert, beir_folder, tmp_path):
    losses = {}
    for rate in (None, 0.0, 0.3):
        output = tmp_path / str(rate)
        options = FinetuneOptions.of(**BUDGET, dropout=rate)
        rates = Rates()
        hook = nn.modules.module.register_module_forward_hook(rates.look)
        try:
            record = finetune(str(two_layer_bert), str(beir_folder), output=output, options=options)
        finally:
            hook.remove()
        config = COCODR(str(output)).transformers_model.config
        own = config.hidden_dropout_prob
        assert rates == {own if rate is None else rate}
        assert own > 0  # the configuration keeps the encoder's own rate
        assert record.options.get("dropout") == rate
        losses[rate] = record.training_loss
    assert len(set(losses.values())) == 3


def test_another_dropout_is_another_training(two_layer_bert, beir_folder, tmp_path):
    def train(**settings):
        options = FinetuneOptions.of(**BUDGET, **settings)
        arguments = {"output": tmp_path / "m", "options": options, "resume": True}
        return finetune(str(two_layer_bert), str(beir_folder), **arguments)

    first = train(dropout=0.0)
    assert train(dropout=0.0) == first
    with pytest.raises(InputError, match="dropout"):
        train()


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_is_a_share(rate):
    with pytest.raises(InputError, match="dropout"):
        FinetuneOptions(dropout=rate)
