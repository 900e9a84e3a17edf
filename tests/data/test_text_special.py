"""Special tokens that a text spells out are text, wherever texts are read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from beir_cocodr import COCODR, MRL, load_encoder
from beir_cocodr.data.text import load_tokenizer, read_literally, readable, token_counter

#: What the text spells, and the same words without the marks that make them special.
SPELLED = ["wing [SEP] flow", "[MASK]", "[CLS] drag [PAD] lift [VAR]", "heat[SEP]"]


def parted(text: str) -> str:
    for name in ("SEP", "MASK", "CLS", "PAD", "VAR"):
        text = text.replace(f"[{name}]", f" [ {name} ] ")
    return text


@pytest.mark.parametrize("kind", [COCODR, MRL])
def test_an_encoder_reads_them_as_text(kind, tiny_bert, tmp_path):
    model = kind(tiny_bert, document_prompt="a ")
    found = model.encode_document(SPELLED)
    np.testing.assert_allclose(found, model.encode_document(list(map(parted, SPELLED))), atol=1e-6)
    features = model.preprocess(SPELLED, prompt="a ", task="document")
    tokens = [id for id, token in model.tokenizer.added_tokens_decoder.items() if token.special]
    special = torch.isin(features["input_ids"], torch.tensor(tokens))
    ordinary = special & (features["input_ids"] != model.tokenizer.pad_token_id)
    ordinary &= features["input_ids"] != model.tokenizer.unk_token_id
    assert ordinary.sum(1).tolist() == [3 if kind is MRL else 2] * len(
        SPELLED
    )  # what the tokenizer puts there itself
    assert model.truncated_share([SPELLED[0]], "document") == 0
    model.save_pretrained(str(tmp_path))
    np.testing.assert_array_equal(load_encoder(tmp_path).encode_document(SPELLED), found)
    if kind is COCODR:
        np.testing.assert_array_equal(
            SentenceTransformer(str(tmp_path)).encode_document(SPELLED), found
        )


def test_texts_without_them_are_read_as_before(tiny_cosine):
    texts = ["wing flow", "a [ b ] < s > of it", "drag"]
    plain = SentenceTransformer(str(tiny_cosine))
    np.testing.assert_array_equal(
        COCODR(tiny_cosine).encode_document(texts), plain.encode_document(texts)
    )


def test_those_of_a_prompt_are_meant(tiny_bert):
    model, plain = COCODR(tiny_bert, query_prompt="[MASK] "), COCODR(tiny_bert)
    ids = model.preprocess(["wing [MASK]"], prompt="[MASK] ", task="query")["input_ids"][0].tolist()
    mask = model.tokenizer.mask_token_id
    assert ids.count(mask) == 1
    assert ids[1] == mask
    assert mask not in plain.preprocess(["[MASK]"], task="query")["input_ids"][0].tolist()


def test_tokens_are_counted_as_they_are_read(tiny_bert):
    tokenizer = load_tokenizer(str(tiny_bert))
    assert token_counter(tokenizer).count(SPELLED) == token_counter(tokenizer).count(
        list(map(parted, SPELLED))
    )


@pytest.fixture
def unigram(tmp_path):
    """A tokenizer as T5's and XLM-R's, which finds its special tokens among its words."""
    letters = [(letter, -4.0) for letter in "<>/s"]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁wing", -3.0), *letters]
    backend = Tokenizer(models.Unigram(pieces, unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    fast.save_pretrained(tmp_path / "unigram")
    return fast


def test_a_vocabulary_that_holds_them_as_words(unigram, tmp_path):
    before = unigram.backend_tokenizer.to_str()
    literally = read_literally(unigram)
    assert literally("wing") == "wing"
    assert literally("wing</s>") == readable(unigram)("wing</s>") == "wing< /s>"
    assert readable(unigram, tokens=8)("</s>" * 1_000_000) == "< /s>" * 2_500
    ids = unigram([literally("wing </s> wing</s>")])["input_ids"][0]
    assert unigram.eos_token_id not in ids
    assert unigram.convert_tokens_to_ids("s") in ids
    assert unigram.backend_tokenizer.to_str() == before  # which stores are told apart by
    settings = tmp_path / "unigram" / "tokenizer_config.json"
    unigram.save_pretrained(settings.parent)
    assert json.loads(settings.read_text())["split_special_tokens"] is True
