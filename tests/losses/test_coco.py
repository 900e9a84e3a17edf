from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from conftest import sentences
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

from beir_cocodr.data.text import IGNORED, WholeWordMasker
from beir_cocodr.errors import InputError
from beir_cocodr.losses.coco import COCOLoss, coco_contrastive_loss
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.heads.condenser import build_head


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize("normalize", [False, True])
def test_identical_embeddings_give_the_logarithm_of_the_candidates(batch, normalize):
    embeddings = torch.full((2 * batch, 5), 0.3)
    expected = math.log(2 * batch - 1)
    assert coco_contrastive_loss(embeddings, 3.0, normalize).item() == pytest.approx(
        expected, abs=1e-6
    )


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


def test_hard_negatives_are_candidates_of_every_row_and_targets_of_none():
    c = np.random.default_rng(3).normal(size=(6, 4))
    negatives = np.random.default_rng(4).normal(size=(5, 4))
    losses = []
    for i in range(6):
        scores = [float(c[i] @ c[j]) for j in range(6) if j != i] + [
            float(c[i] @ n) for n in negatives
        ]
        losses.append(math.log(sum(math.exp(s) for s in scores)) - float(c[i] @ c[i ^ 1]))
    arguments = (torch.from_numpy(c), 1.0, False, torch.from_numpy(negatives))
    assert coco_contrastive_loss(*arguments).item() == pytest.approx(np.mean(losses), abs=1e-9)
    part = coco_contrastive_loss(*arguments, rows=slice(2, 4))
    assert part.item() == pytest.approx(np.mean(losses[2:4]), abs=1e-9)


def test_scores_are_float32_where_the_encoder_runs_in_bfloat16():
    embeddings = 8 * torch.randn(12, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = coco_contrastive_loss(embeddings)
    assert mixed.item() == coco_contrastive_loss(embeddings).item()


def columns(model, masked: bool, rows: int = 7, number: int = 2):
    """Columns of spans of different lengths, masked or not."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(number):
        texts = [sentences(rng, i % 4, 1 + i % 3) for i in range(rows)]
        features = model.preprocess(texts)
        if masked:
            masker = WholeWordMasker(model.tokenizer)
            pairs = [masker(ids.numpy(), rng) for ids in features["input_ids"]]
            features["input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in pairs]))
            features["mlm_labels"] = torch.from_numpy(np.stack([labels for _, labels in pairs]))
        made.append(features)
    return made


def gradients(loss, features):
    loss.model.zero_grad()
    value = loss(copy.deepcopy(features))
    value.backward()
    found = {
        name: p.grad.clone() for name, p in loss.model.named_parameters() if p.grad is not None
    }
    return value.item(), found


@pytest.mark.parametrize("number", [2, 3, 4])  # more than two: hard negatives
@pytest.mark.parametrize("masked", ["none", "spans", "all"])
@pytest.mark.parametrize("folder", ["tiny_mlm", "tiny_cosine"])
def test_cached_and_uncached_gradients_agree(request, folder, masked, number):
    source = str(request.getfixturevalue(folder))
    model = COCODR(source)
    if masked != "none":
        head, _ = build_head(model, source)
        model.append(head)
        model.transformers_model.config.output_hidden_states = True
    model.eval()  # dropout off
    features = columns(model, masked != "none", number=number)
    if masked == "spans":
        features[2:] = columns(model, False, number=number - 2)
    value, whole = gradients(COCOLoss(model), features)
    cached_value, cached = gradients(COCOLoss(model, mini_batch_size=3), features)
    assert cached_value == pytest.approx(value, abs=1e-5)
    assert cached.keys() == whole.keys()
    assert max(float((cached[name] - whole[name]).abs().max()) for name in whole) < 1e-5


def test_permuting_the_documents_of_a_batch_leaves_loss_and_gradient(tiny_mlm):
    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm))
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    model.eval()
    features = columns(model, True, number=3)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    permuted = [
        {k: v[order] if torch.is_tensor(v) else v for k, v in column.items()} for column in features
    ]
    value, whole = gradients(COCOLoss(model), features)
    other_value, other = gradients(COCOLoss(model), permuted)
    assert other_value == pytest.approx(value, abs=1e-5)
    assert max(float((other[name] - whole[name]).abs().max()) for name in whole) < 1e-5


def test_without_contrast_a_batch_is_the_mean_over_the_masked_tokens_of_its_parts(tiny_mlm):
    """Condenser alone: no document acts on another."""
    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm))
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    model.eval()
    loss = COCOLoss(model, contrastive_weight=0.0)
    (column,) = columns(model, True, number=1)
    total, tokens = 0.0, 0
    for i in range(7):
        part = {k: v[i : i + 1] if torch.is_tensor(v) else v for k, v in column.items()}
        count = int((part["mlm_labels"] != IGNORED).sum())
        total, tokens = total + loss([part]).item() * count, tokens + count
    assert loss([dict(column)]).item() == pytest.approx(total / tokens, abs=1e-5)


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
        without = COCOLoss(model, mlm_weight=0.0)([dict(column) for column in both]).item()
        alone = COCOLoss(model, contrastive_weight=0.0)([dict(column) for column in both]).item()
        host = BertForMaskedLM.from_pretrained(tiny_mlm).eval()
        summed, tokens = 0.0, 0
        for column in both:
            count = int((column["mlm_labels"] != IGNORED).sum())
            output = host(
                column["input_ids"],
                attention_mask=column["attention_mask"],
                labels=column["mlm_labels"],
            )
            summed, tokens = summed + output.loss.item() * count, tokens + count
    assert total - without == pytest.approx(summed / tokens, abs=1e-4)
    assert alone == pytest.approx(summed / tokens, abs=1e-5)


def test_takes_at_least_two_columns(tiny_bert):
    model = COCODR(str(tiny_bert))
    with pytest.raises(ValueError, match="2 columns"):
        COCOLoss(model)([model.preprocess(["wing"])])
    with pytest.raises(ValueError, match="mlm_labels"):
        COCOLoss(model, contrastive_weight=0.0)([model.preprocess(["wing"])])


@pytest.mark.parametrize("cached", [None, 3])
@pytest.mark.parametrize("folder", ["tiny_bert", "tiny_cosine"])
def test_in_the_hosts_matryoshka_loss_it_is_summed_over_leading_numbers(request, folder, cached):
    model = COCODR(str(request.getfixturevalue(folder)))
    model.eval()
    features, inner = columns(model, False, number=3), COCOLoss(model, mini_batch_size=cached)
    model.zero_grad()
    outer = MatryoshkaLoss(model, inner, [32, 8], [1.0, 0.5])
    value = outer(copy.deepcopy(features), None)
    value.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected = 0.0
    first, second, negatives = (
        model(copy.deepcopy(column))["sentence_embedding"] for column in features
    )
    for size, weight in ((32, 1.0), (8, 0.5)):
        cut = [
            torch.nn.functional.normalize(part[:, :size], dim=-1)
            for part in (first, second, negatives)
        ]
        spans = torch.stack(cut[:2], dim=1).flatten(0, 1)
        expected = expected + weight * coco_contrastive_loss(spans, inner.scale, negatives=cut[2])
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), abs=1e-5)
    assert found
    assert (
        max(
            float((found[name] - p.grad).abs().max())
            for name, p in model.named_parameters()
            if name in found
        )
        < 1e-5
    )


def test_over_a_training_head_matryoshka_would_cut_its_loss_off(tiny_mlm):
    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm))
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    for size in (None, 3):
        outer = MatryoshkaLoss(model, COCOLoss(model, mini_batch_size=size), [32, 8])
        with pytest.raises(InputError, match="training head"):
            outer(columns(model, True), None)
