"""Listwise distillation against scipy and sentence-transformers' own losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import pairwise_cos_sim

from beir_cocodr import load_encoder
from beir_cocodr.losses import ListDistillationLoss, list_distillation_loss

STUDENT = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
TEACHER = 3 * torch.randn(5, 7, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_both_terms_are_their_definitions(temperature):
    student = STUDENT.double().numpy()
    teacher = TEACHER.double().numpy() / temperature
    wanted = softmax(teacher, axis=1)
    ratios = log_softmax(teacher, axis=1) - log_softmax(student, axis=1)
    divergence = (wanted * ratios).sum(axis=1).mean()
    best = teacher.argmax(axis=1)[:, None]
    margins = np.take_along_axis(student, best, 1) - student
    wanted_margins = np.take_along_axis(teacher, best, 1) - teacher
    margin = ((margins - wanted_margins) ** 2).mean()
    for weight in (0.0, 0.3):
        loss = list_distillation_loss(STUDENT, TEACHER, weight, temperature)
        assert float(loss) == pytest.approx(divergence + weight * margin, rel=1e-5)


def test_a_student_that_scores_as_the_teacher_has_nothing_to_learn():
    student = (TEACHER + 4).requires_grad_()
    loss = list_distillation_loss(student, TEACHER, 1.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert student.grad.abs().max() < 1e-5


def test_without_margins_the_module_is_the_hosts(tiny_cosine):
    model = load_encoder(str(tiny_cosine)).eval()

    def similarity(queries, documents):
        return 20 * pairwise_cos_sim(queries, documents)

    texts = [["wing", "library"], ["a wing", "a shelf"], ["drag", "books"], ["flow", "reader"]]
    columns = [model.tokenize(column) for column in texts]
    labels = torch.tensor([[2.0, 1.0, -1.0], [0.5, 0.0, 3.0]])
    host = losses.DistillKLDivLoss(model, similarity_fct=similarity)
    ours = ListDistillationLoss(model, similarity, margin_weight=0.0)
    with torch.no_grad():
        expected = float(host(columns, labels))
        assert float(ours(columns, labels)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradient_caching_changes_no_gradient(size, tiny_cosine):
    def similarity(queries, documents):
        return 20 * pairwise_cos_sim(queries, documents)

    texts = [
        ["wing", "library", "lift"],
        ["a wing", "a shelf", "drag"],
        ["flow", "reader", "noise"],
    ]
    labels = torch.tensor([[2.0, -1.0], [0.5, 3.0], [0.0, 1.0]])
    gradients = []
    for mini_batch_size in (None, size):
        model = load_encoder(str(tiny_cosine)).eval()
        loss = ListDistillationLoss(model, similarity, mini_batch_size=mini_batch_size)
        value = loss([model.tokenize(column) for column in texts], labels)
        value.backward()
        gradients.append(
            {
                name: weight.grad.clone()
                for name, weight in model.named_parameters()
                if weight.grad is not None
            }
        )
    whole, cached = gradients
    assert whole.keys() == cached.keys()
    assert any(gradient.abs().max() > 1e-3 for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(cached[name], gradient, rtol=1e-4, atol=1e-6)
