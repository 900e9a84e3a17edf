"""Checkpoints without modules.json encode as their authors' code does, or with a warning."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    RobertaConfig,
    RobertaModel,
)

from beir_cocodr import COCODR
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError

TEXTS = ["wing flow drag", "heat", "the boundary layer of a plate"]


@pytest.fixture
def copied(tiny_bert, tmp_path):
    """Copy the tiny encoder to a folder of another name."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(tiny_bert, tmp_path / name))

    return copy


def hidden_states(folder: Path, texts: list[str], **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what transformers itself computes, (N, L, d), and the attention mask."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    features = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, **settings)
    with torch.no_grad():
        return model(**features).last_hidden_state, features["attention_mask"]


def averaged(states: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    weights = mask.unsqueeze(-1).float()
    return ((states * weights).sum(1) / weights.sum(1)).numpy()


@pytest.mark.parametrize("name", ["contriever", "contriever-msmarco"])
def test_contriever_averages_all_tokens(copied, name, caplog):
    folder = copied(name)
    expected = averaged(*hidden_states(folder, TEXTS))
    with caplog.at_level(logging.INFO):
        model = COCODR(str(folder))
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=1e-5)
    assert model.similarity_fn_name == "dot"
    assert "Izacard et al., 2022" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def tct_colbert(wordpiece, tmp_path) -> Path:
    """Save an encoder whose vocabulary has the brackets of the prefixes, as BERT's has."""
    tokens = [*wordpiece.get_vocab(), "[", "]"]
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(tokens)})
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.3,
    )
    folder = tmp_path / "tct_colbert-msmarco"
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_tct_colbert_fills_queries_with_masks_and_leaves_its_prefix_out(tct_colbert, tmp_path):
    folder = tct_colbert
    queries = [f"[CLS] [Q] {text} {' '.join(['[MASK]'] * 36)}" for text in TEXTS]
    states, mask = hidden_states(folder, queries, add_special_tokens=False, max_length=36)
    assert states.shape[1] == 36
    expected_queries = averaged(states[:, 4:], mask[:, 4:])
    documents = [f"[CLS] [D] {text}" for text in TEXTS]
    states, mask = hidden_states(folder, documents, add_special_tokens=False, max_length=100)
    expected_documents = averaged(states[:, 4:], mask[:, 4:])
    model = COCODR(str(folder))
    np.testing.assert_allclose(model.encode_query(TEXTS), expected_queries, atol=1e-5)
    np.testing.assert_allclose(model.encode_document(TEXTS), expected_documents, atol=1e-5)
    model.save_pretrained(str(tmp_path / "saved"))
    host = SentenceTransformer(str(tmp_path / "saved"))
    np.testing.assert_allclose(host.encode_query(TEXTS), expected_queries, atol=1e-5)
    np.testing.assert_allclose(host.encode_document(TEXTS), expected_documents, atol=1e-5)


def test_an_unknown_encoder_is_read_by_cls_with_a_warning_that_names_the_choice(copied, caplog):
    folder = copied("somebody-else")
    states, mask = hidden_states(folder, TEXTS)
    vectors = COCODR(str(folder)).encode_document(TEXTS)
    np.testing.assert_allclose(vectors, states[:, 0].numpy(), atol=1e-5)
    [warning] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "[CLS]" in warning.message
    assert "set pooling to mean" in warning.message
    caplog.clear()
    vectors = COCODR(str(folder), pooling="mean").encode_document(TEXTS)
    np.testing.assert_allclose(vectors, averaged(states, mask), atol=1e-5)
    COCODR(str(folder), pooling="cls")
    assert not caplog.records


def test_a_model_of_cocodr_is_read_without_a_warning(copied, caplog):
    COCODR(str(copied("cocodr-base-msmarco")))
    assert not caplog.records


def test_a_pooling_that_is_unknown_or_not_to_choose_is_refused(copied, tiny_cosine, capsys):
    with pytest.raises(InputError, match="pooling is 'max'; give cls or mean"):
        COCODR(str(copied("a")), pooling="max")
    with pytest.raises(InputError, match="leave pooling mean out"):
        COCODR(str(tiny_cosine), pooling="mean")
    words = ["search", "wing", "--dataset", "apidocs/numpy", "--model", str(tiny_cosine)]
    with pytest.raises(SystemExit) as end:
        main([*words, "--pooling", "mean"])
    assert end.value.code == 2
    assert "leave pooling mean out" in capsys.readouterr().err


def released(
    folder: Path, prefix: str, architecture: str, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Turn a saved encoder into the form in which the code of ANCE saves it; return the layers."""
    draw = torch.Generator().manual_seed(0)
    width = 32
    layers = {
        "classifier.weight": torch.randn(2, width, generator=draw),
        "classifier.bias": torch.randn(2, generator=draw),
        "embeddingHead.weight": torch.randn(48, width, generator=draw),
        "embeddingHead.bias": torch.randn(48, generator=draw),
        "norm.weight": torch.randn(48, generator=draw),
        "norm.bias": torch.randn(48, generator=draw),
    }
    weights = load_file(folder / "model.safetensors")
    prefixed = {f"{prefix}.{name}": weight for name, weight in weights.items()}
    save_file(prefixed | layers, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    return layers


def test_the_form_of_cocodr_s_code_is_read_without_its_unused_layers(copied, caplog):
    folder = copied("mine")
    states, _ = hidden_states(folder, TEXTS)
    released(folder, "bert", "BertDot_NLL_LN")
    with caplog.at_level(logging.INFO):
        vectors = COCODR(str(folder), pooling="cls").encode_document(TEXTS)
    np.testing.assert_allclose(vectors, states[:, 0].numpy(), atol=1e-5)
    assert "classifier" in caplog.text
    assert "embeddingHead and norm" in caplog.text


def roberta(folder: Path, wordpiece) -> Path:
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(wordpiece),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=162,
        pad_token_id=wordpiece.pad_token_id,
        initializer_range=0.3,
    )
    RobertaModel(config).save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return folder


def test_the_form_of_ance_scores_with_its_head_and_norm(wordpiece, tmp_path):
    folder = roberta(tmp_path / "ance", wordpiece)
    states, _ = hidden_states(folder, TEXTS)
    layers = released(folder, "roberta", "RobertaDot_NLL_LN")
    projected = states[:, 0] @ layers["embeddingHead.weight"].T + layers["embeddingHead.bias"]
    expected = torch.nn.functional.layer_norm(
        projected, (48,), layers["norm.weight"], layers["norm.bias"]
    )
    model = COCODR(str(folder), pooling="cls")
    np.testing.assert_allclose(model.encode_document(TEXTS), expected.numpy(), atol=1e-4)
    model.save_pretrained(str(tmp_path / "saved"))
    host = SentenceTransformer(str(tmp_path / "saved"))
    np.testing.assert_allclose(host.encode_document(TEXTS), expected.numpy(), atol=1e-4)


def test_a_form_of_ance_without_its_norm_is_refused(wordpiece, tmp_path):
    folder = roberta(tmp_path / "ance", wordpiece)
    released(folder, "roberta", "RobertaDot_NLL_LN")
    weights = load_file(folder / "model.safetensors")
    del weights["norm.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"norm\.bias"):
        COCODR(str(folder), pooling="cls")


def test_other_classes_with_such_layers_are_still_refused(copied):
    folder = copied("mine")
    released(folder, "bert", "BertForSequenceClassification")
    with pytest.raises(InputError, match="left over"):
        COCODR(str(folder), pooling="cls")
