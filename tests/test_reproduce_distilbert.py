"""DistilBERT saved as a BERT computes the same, and TSDAE trains from it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from reproduce import make
from reproduce.make import tiny, tiny_distilbert
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
)

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining.pretrain import pretrain

TEXTS = ["the heat of a boiler is in the water", "a [MASK] letter ends the lease", "of"]


@pytest.fixture
def distilbert(tmp_path):
    """Save a DistilBERT with random weights, norms and biases."""
    folder = tmp_path / "distilbert"
    tiny_distilbert(folder, TEXTS, seed=1)
    config = DistilBertConfig.from_pretrained(folder)
    torch.manual_seed(2)
    model = DistilBertForMaskedLM(config)
    for values in model.parameters():
        values.data = torch.randn_like(values) * 0.2
    model.save_pretrained(folder)
    return folder


def convert(folder, base):
    command = [sys.executable, make.__file__, "bert-from-distilbert", str(folder)]
    subprocess.run([*command, "--base", str(base)], check=True)
    return folder


def outputs(folder):
    """Return the class of a model, the states of all its layers, and its logits, for some texts."""
    model = AutoModelForMaskedLM.from_pretrained(folder, output_hidden_states=True).eval()
    read = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    inputs = {name: read[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        output = model(**inputs)
    return type(model), [*output.hidden_states, output.logits]


def test_a_distilbert_computes_the_same_as_a_bert(distilbert, tmp_path):
    bert = convert(tmp_path / "bert", distilbert)
    kind, expected = outputs(distilbert)
    as_kind, computed = outputs(bert)
    assert (kind, as_kind) == (DistilBertForMaskedLM, BertForMaskedLM)
    assert len(expected) == len(computed) == 4
    for one, other in zip(expected, computed, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_the_tiny_distilbert_computes_what_the_tiny_bert_does(tmp_path):
    tiny(tmp_path / "bert", TEXTS, seed=3)
    tiny_distilbert(tmp_path / "distilbert", TEXTS, seed=3)
    assert not (tmp_path / "distilbert.bert").exists()
    _, expected = outputs(tmp_path / "bert")
    _, computed = outputs(tmp_path / "distilbert")
    for one, other in zip(expected, computed, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_tsdae_trains_from_a_distilbert_only_as_a_bert(distilbert, beir_folder, tmp_path):
    options = PretrainOptions.of(objective="tsdae", max_steps=1, batch_size=4)
    with pytest.raises(InputError, match="transformers has none for distilbert"):
        pretrain(str(distilbert), str(beir_folder), output=tmp_path / "refused", options=options)
    bert = convert(tmp_path / "bert", distilbert)
    record = pretrain(str(bert), str(beir_folder), output=tmp_path / "trained", options=options)
    assert record.steps == 1
