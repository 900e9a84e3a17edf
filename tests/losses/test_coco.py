from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from conftest import sentences
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.masking import IGNORED, WholeWordMasker
from beir_cocodr.losses.coco import COCOLoss, coco_contrastive_loss
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.condenser import build_head


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize("normalize", [False, True])
def test_identical_embeddings_give_the_logarithm_of_the_candidates(batch, normalize):
    embeddings = torch.full((2 * batch, 5), 0.3)
    expected = math.log(2 * batch - 1)
    assert coco_contrastive_loss(embeddings, 3.0, normalize).item() == pytest.approx(expected, abs=1e-6)


@given(batch=st.integers(1, 6), scale=st.floats(0.1, 5), seed=st.integers(0, 1000))
def test_equals_the_definition_written_as_a_loop(batch, scale, seed):
    c = np.random.default_rng(seed).normal(size=(2 * batch, 4))
    total = 0.0
    for i in range(2 * batch):
        scores = {j: scale * float(c[i] @ c[j]) for j in range(2 * batch) if j != i}
        total += math.log(sum(math.exp(s - scores[i ^ 1]) for s in scores.values()))
    ours = coco_contrastive_loss(torch.from_numpy(c).double(), scale)
    assert ours.item() == pytest.approx(total / (2 * batch), rel=1e-5, abs=1e-6)


def test_permuting_documents_and_swapping_spans_leaves_the_loss():
    embeddings = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    permuted = embeddings.view(6, 2, 8)[order].flip(1).reshape(12, 8)
    assert coco_contrastive_loss(permuted).item() == pytest.approx(
        coco_contrastive_loss(embeddings).item(), abs=1e-5
    )


def columns(model, masked: bool, rows: int = 7):
    """Two columns of spans of different lengths, masked or not."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(2):
        texts = [sentences(rng, i % 4, 1 + i % 3) for i in range(rows)]
        features = model.preprocess(texts)
        if masked:
            masker = WholeWordMasker(model.tokenizer)
            pairs = [masker(ids.numpy(), rng) for ids in features["input_ids"]]
            features["input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in pairs]))
            features["mlm_labels"] = torch.from_numpy(np.stack([labels for _, labels in pairs]))
        made.append(features)
    return made


def gradients(model, mini_batch_size: int | None, masked: bool):
    model.zero_grad()
    loss = COCOLoss(model, mini_batch_size=mini_batch_size)
    value = loss([dict(column) for column in copy.deepcopy(columns(model, masked))])
    value.backward()
    return value.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("folder", ["tiny_mlm", "tiny_cosine"])
def test_cached_and_uncached_gradients_agree(request, folder, masked):
    source = str(request.getfixturevalue(folder))
    model = COCODR(source)
    if masked:
        head, _ = build_head(model, source)
        model.append(head)
        model.transformers_model.config.output_hidden_states = True
    model.eval()  # dropout off
    value, whole = gradients(model, None, masked)
    cached_value, cached = gradients(model, 3, masked)
    assert cached_value == pytest.approx(value, abs=1e-5)
    assert cached.keys() == whole.keys()
    assert max(float((cached[name] - whole[name]).abs().max()) for name in whole) < 1e-5


def test_language_model_loss_is_the_mean_over_all_masked_tokens(tiny_mlm):
    from transformers import BertForMaskedLM

    model = COCODR(str(tiny_mlm))
    head, origin = build_head(model, str(tiny_mlm), n_head_layers=0)
    assert origin == "the checkpoint's language-model layers"
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    model.eval()
    both = columns(model, masked=True)
    with torch.no_grad():
        total = COCOLoss(model)([dict(column) for column in both]).item()
        alone = COCOLoss(model, mlm_weight=0.0)([dict(column) for column in both]).item()
        host = BertForMaskedLM.from_pretrained(tiny_mlm).eval()
        summed, tokens = 0.0, 0
        for column in both:
            count = int((column["mlm_labels"] != IGNORED).sum())
            output = host(
                column["input_ids"], attention_mask=column["attention_mask"], labels=column["mlm_labels"]
            )
            summed, tokens = summed + output.loss.item() * count, tokens + count
    assert total - alone == pytest.approx(summed / tokens, abs=1e-4)


def test_takes_exactly_two_columns(tiny_bert):
    model = COCODR(str(tiny_bert))
    with pytest.raises(ValueError, match="two columns"):
        COCOLoss(model)([model.preprocess(["wing"])])
