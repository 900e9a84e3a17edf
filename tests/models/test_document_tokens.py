"""Batches of documents that were tokenised before are those that the host would make."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import COMMON, TOPICS
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr import COCODR, MRL
from beir_cocodr.models.document_tokens import DocumentTokens

WORDS = [*COMMON, *TOPICS[0], "[SEP]", "[MASK]", "?", "unseen"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join), min_size=1)


def known_tokens(model, texts):
    known = DocumentTokens(model.tokenizer)
    known.add(texts, model.tokenize_documents(texts))
    return known


def features_by_both(model, texts, known, task="document"):
    """Return the features of the host, and those of tokens that are known."""
    prompt = model.prompts.get(task)
    by_host = dict(model.preprocess(texts, prompt=prompt, task=task))
    model.document_tokens = known
    try:
        return by_host, dict(model.preprocess(texts, prompt=prompt, task=task))
    finally:
        model.document_tokens = None


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, feature in first.items():
        if isinstance(feature, torch.Tensor):
            assert feature.dtype == second[name].dtype
            np.testing.assert_array_equal(feature, second[name], err_msg=name)
        else:
            assert feature == second[name]


@pytest.fixture(scope="module", params=["plain", "prompt", "left", "mrl"])
def model(request, tiny_bert):
    """An encoder, without and with a prompt, one that pads on the left, and one with two tokens."""
    if request.param == "mrl":
        return MRL(tiny_bert, document_length=20)
    prompt = "wing of: " if request.param == "prompt" else None
    encoder = COCODR(tiny_bert, document_length=20, document_prompt=prompt)
    if request.param == "left":
        encoder.tokenizer.padding_side = "left"
    return encoder


@given(texts=TEXTS)
def test_features_are_those_of_the_host(model, texts):
    by_host, by_tokens = features_by_both(model, texts, known_tokens(model, texts))
    assert_equal(by_host, by_tokens)


def test_only_the_first_text_of_a_batch_is_tokenised_again(model, tokenised_texts):
    texts = ["wing flow", "the drag of a heat plate", "lift"]
    known = known_tokens(model, texts)
    calls = tokenised_texts(model.tokenizer)
    model.document_tokens = known
    try:
        model.preprocess(texts, prompt=model.prompts.get("document"), task="document")
    finally:
        model.document_tokens = None
    assert max(map(len, calls)) == 1


@pytest.mark.parametrize("change", ["an unknown text", "queries", "another length", "a feature"])
def test_the_host_tokenises_what_is_not_known(tiny_bert, change, monkeypatch):
    encoder = COCODR(tiny_bert, document_length=20, query_length=10)
    texts = ["wing flow " * 20, "lift"]
    known = known_tokens(encoder, texts)
    task = "query" if change == "queries" else "document"
    if change == "an unknown text":
        texts = [*texts, "drag"]
    if change == "another length":
        encoder[0].document_length = 12
    if change == "a feature":
        preprocess = type(encoder[0]).preprocess

        def with_positions(self, *args, **kwargs):
            features = preprocess(self, *args, **kwargs)
            return {**features, "position_ids": torch.arange(len(features["input_ids"]))}

        monkeypatch.setattr(type(encoder[0]), "preprocess", with_positions)
    by_host, by_tokens = features_by_both(encoder, texts, known, task)
    assert_equal(by_host, by_tokens)
