from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import sentences
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from beir_cocodr import COCODR
from beir_cocodr.errors import InputError
from beir_cocodr.losses.lambdarank import LambdaRankDistillationLoss, lambda_rank_distillation_loss
from beir_cocodr.models.mrl import MRL

QUERIES = [" ".join(sentences(np.random.default_rng(i), i % 4, 1).split()[:4]) for i in range(6)]
LISTS = [
    [sentences(np.random.default_rng(10 * i + j), i % 4, 1 + j) for j in range(3)] for i in range(6)
]
TEACHER = torch.randn(6, 3, generator=torch.Generator().manual_seed(5))
ROUTES = {"query": "query"} | {f"document_{j}": "document" for j in (1, 2, 3)}


def by_pairs(student, teacher, mask=None, reduction="sum"):
    """Equation 12, one pair after the other; documents without a teacher score have −inf."""
    total, pairs = student.new_zeros(()), 0
    for i in range(len(student)):
        listed = [j for j in range(student.shape[1]) if mask is None or mask[i, j]]
        ranked = sorted(listed, key=lambda j: (-student[i, j].item(), j))
        rank = {j: place for place, j in enumerate(ranked, start=1)}
        for a in listed:
            for b in listed:
                if teacher[i, a] > teacher[i, b]:
                    weight = abs(1 / rank[a] - 1 / rank[b])
                    total = total + weight * torch.log1p(torch.exp(student[i, b] - student[i, a]))
                    pairs += 1
    return total / (len(student) if reduction == "sum" else max(1, pairs))


def lambda_mrr(student, teacher):
    """The earlier published loss of this kind (CL-DRD, "lambda MRR"), from its formula: over all
    pairs with y_i > y_j of the whole batch, the mean of |1/rank_i − 1/rank_j| · log(1 + exp(s_j −
    s_i)).
    """
    rank = (student[:, None, :] > student[:, :, None]).sum(dim=2) + 1
    weights = (1 / rank[:, :, None] - 1 / rank[:, None, :]).abs()
    terms = torch.log(1 + torch.exp(student[:, None, :] - student[:, :, None]))
    return (weights * terms)[teacher[:, :, None] > teacher[:, None, :]].mean()


def scores(rows, count, seed, dtype=torch.float64):
    return torch.randn(rows, count, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sum_over_pairs(reduction):
    student = torch.tensor(
        [[1.0, 1.0, -0.5, 2.0], [0.3, 0.2, 0.1, 0.0]], dtype=torch.float64
    )  # with ties
    teacher = torch.tensor([[2.0, 0.0, 2.0, -1.0], [0.0, 1.0, 2.0, 2.0]], dtype=torch.float64)
    found = lambda_rank_distillation_loss(student, teacher, reduction=reduction)
    torch.testing.assert_close(found, by_pairs(student, teacher, reduction=reduction))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_the_earlier_published_loss_in_value_and_gradient(dtype):
    teacher = scores(7, 9, 1, dtype).round(decimals=1)  # with a few ties
    ours, theirs = (scores(7, 9, 0, dtype).mul(3).requires_grad_() for _ in range(2))
    found, expected = (
        lambda_rank_distillation_loss(ours, teacher, reduction="mean"),
        lambda_mrr(theirs, teacher),
    )
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)


def test_gradient_is_right_and_does_not_pass_through_ranks():
    teacher = scores(3, 5, 2)
    student = scores(3, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: lambda_rank_distillation_loss(s, teacher), student)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_in_batch_documents_are_below_all_others_and_tied(reduction):
    student, listed = scores(4, 9, 4).requires_grad_(), scores(4, 3, 5)
    mask = torch.ones(4, 9, dtype=torch.bool)
    mask[0, 4] = mask[2, 8] = mask[3, 1] = False  # known positives, and a place without a document
    found = lambda_rank_distillation_loss(student, listed, mask, reduction)
    all_known = F.pad(listed, (0, 6), value=-torch.inf)
    torch.testing.assert_close(found, by_pairs(student, all_known, mask, reduction))
    torch.testing.assert_close(
        found, lambda_rank_distillation_loss(student, all_known, mask, reduction)
    )
    (gradient,) = torch.autograd.grad(found, student)
    assert (gradient[~mask] == 0).all()
    assert (gradient[:, 3:][mask[:, 3:]] > 0).all()  # every in-batch document is pushed down


def test_what_is_masked_may_be_anything():
    student, teacher = scores(2, 4, 6), scores(2, 4, 7)
    mask = torch.tensor([[True, True, False, True], [False, True, True, True]])
    expected = lambda_rank_distillation_loss(student, teacher, mask)
    for value in (torch.inf, -torch.inf, torch.nan, 1e30):
        odd = student.masked_fill(~mask, value).requires_grad_()
        found = lambda_rank_distillation_loss(odd, teacher, mask)
        found.backward()
        torch.testing.assert_close(found, expected)
        assert odd.grad.isfinite().all()


def test_stable_at_differences_of_a_thousand():
    student = torch.tensor([[0.0, 1000.0]], requires_grad=True)
    loss = lambda_rank_distillation_loss(student, torch.tensor([[1.0, 0.0]]))
    loss.backward()
    assert loss.item() == 500.0  # |1/2 − 1/1| · softplus(1000)
    assert student.grad.tolist() == [[-0.5, 0.5]]
    won = lambda_rank_distillation_loss(-student, torch.tensor([[1.0, 0.0]]))
    assert won.item() == 0.0


def test_teachers_grades_may_be_whole_numbers():
    student, grades = scores(2, 5, 9), torch.tensor([[2, 0, 1], [0, 0, 3]])
    found = lambda_rank_distillation_loss(student, grades)
    torch.testing.assert_close(found, lambda_rank_distillation_loss(student, grades.double()))


def test_half_precision_scores_are_compared_as_float32():
    student = torch.tensor([[0.0, 300.0, 2.0]], dtype=torch.bfloat16)
    found = lambda_rank_distillation_loss(student, torch.tensor([[1.0, 0.0, 0.5]]))
    assert found.dtype == torch.float32


def test_without_pairs_the_loss_is_zero_and_can_be_differentiated():
    for reduction in ("sum", "mean"):
        student = scores(3, 4, 8).requires_grad_()
        loss = lambda_rank_distillation_loss(student, torch.zeros(3, 4), reduction=reduction)
        loss.backward()
        assert loss.item() == 0.0
        assert (student.grad == 0).all()


lists = st.integers(1, 3).flatmap(
    lambda rows: st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            st.lists(
                st.lists(st.integers(-50, 50), min_size=n, max_size=n, unique=True),
                min_size=rows,
                max_size=rows,
            ),
            st.lists(
                st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=rows, max_size=rows
            ),
            st.permutations(range(n)),
        )
    )
)


@settings(max_examples=60, deadline=None)
@given(lists, st.floats(-100, 100), st.sampled_from(["sum", "mean"]))
def test_invariants(drawn, shift, reduction):
    student, teacher = (torch.tensor(x, dtype=torch.float64) for x in drawn[:2])
    student /= 10
    loss = lambda_rank_distillation_loss(student, teacher, reduction=reduction)
    order = drawn[2]
    assert loss >= 0
    permuted = lambda_rank_distillation_loss(
        student[:, order], teacher[:, order], reduction=reduction
    )
    shifted = lambda_rank_distillation_loss(student + shift, teacher, reduction=reduction)
    monotone = lambda_rank_distillation_loss(student, teacher.exp(), reduction=reduction)
    for same in (permuted, shifted, monotone, by_pairs(student, teacher, reduction=reduction)):
        torch.testing.assert_close(same, loss, rtol=1e-9, atol=1e-9)


def encoder(kind: str, tiny_bert, tiny_cosine):
    """An encoder whose gradients do not depend on dropout."""
    model = {"mrl": MRL, "dot": COCODR, "cosine": COCODR}[kind](
        str(tiny_cosine if kind == "cosine" else tiny_bert)
    )
    return model.eval()


def columns(model, lists=LISTS):
    made = []
    for task, texts in [
        ("query", QUERIES),
        *(("document", list(column)) for column in zip(*lists, strict=True)),
    ]:
        made.append(dict(model.preprocess(texts, task=task)) | {"task": task})
    return made


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["mrl", "dot", "cosine"])
@pytest.mark.parametrize("in_batch", [True, False])
def test_on_an_encoder_it_is_the_loss_of_its_own_similarity(kind, in_batch, tiny_bert, tiny_cosine):
    model = encoder(kind, tiny_bert, tiny_cosine)
    found = LambdaRankDistillationLoss(model, in_batch=in_batch)(columns(model), TEACHER)
    query = model.encode_query(QUERIES, convert_to_tensor=True)
    documents = model.encode_document(
        [text for row in LISTS for text in row], convert_to_tensor=True
    )
    scale = {"mrl": 0.5, "dot": 1.0, "cosine": 20.0}[kind]
    student = scale * model.similarity(query, documents).reshape(6, 6, 3)  # (B, B, n)
    own = student[torch.arange(6), torch.arange(6)]
    others = student.flatten(1)[
        ~torch.eye(6, dtype=torch.bool).repeat_interleave(3, dim=1)
    ].reshape(6, 15)
    expected = lambda_rank_distillation_loss(
        torch.cat([own, others], dim=1) if in_batch else own, TEACHER
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["mrl", "dot", "cosine"])
def test_cached_and_uncached_gradients_agree(kind, tiny_bert, tiny_cosine):
    model = encoder(kind, tiny_bert, tiny_cosine)
    whole = gradients(model, LambdaRankDistillationLoss(model)(columns(model), TEACHER))
    cached = gradients(
        model, LambdaRankDistillationLoss(model, mini_batch_size=4)(columns(model), TEACHER)
    )
    assert whole.keys() == cached.keys()
    largest = max(gradient.abs().max() for gradient in whole.values())
    for name, gradient in whole.items():
        assert (cached[name] - gradient).abs().max() <= 1e-5 * largest, name


def test_a_document_of_the_own_list_is_no_in_batch_document(tiny_bert):
    """Row 3 lists row 0's first document too, and row 4 lists row 1's second, in a wider column."""
    model = encoder("dot", tiny_bert, None)
    shared = [list(row) for row in LISTS]
    shared[3][0], shared[4][2] = LISTS[0][0], LISTS[1][1]
    found = LambdaRankDistillationLoss(model)(columns(model, shared), TEACHER)
    query = model.encode_query(QUERIES, convert_to_tensor=True)
    total = 0.0
    for i, row in enumerate(shared):
        others = sorted({text for other in shared for text in other} - set(row))  # each once
        documents = model.encode_document(row + others, convert_to_tensor=True)
        total += lambda_rank_distillation_loss(query[i : i + 1] @ documents.T, TEACHER[i : i + 1])
    torch.testing.assert_close(found, total / 6, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mini_batch_size", [None, 4])
def test_a_place_without_a_document_is_nobodys_document(mini_batch_size, tiny_bert):
    model = encoder("mrl", tiny_bert, None)
    labels = TEACHER.clone()
    labels[1, 2] = labels[4, 0] = -torch.inf
    losses, changed = [], [list(row) for row in LISTS]
    changed[1][2], changed[4][0] = "", "wing"
    for lists_ in (LISTS, changed):
        loss = LambdaRankDistillationLoss(model, mini_batch_size=mini_batch_size)(
            columns(model, lists_), labels
        )
        losses.append((loss.detach(), gradients(model, loss)))
    torch.testing.assert_close(losses[0][0], losses[1][0])
    for name, gradient in losses[0][1].items():
        torch.testing.assert_close(losses[1][1][name], gradient, rtol=1e-3, atol=1e-3)


def test_bad_input_is_one_clear_line(tiny_bert):
    model = encoder("dot", tiny_bert, None)
    loss, made = LambdaRankDistillationLoss(model), columns(model)
    wrong = TEACHER.clone()
    wrong[2, 1] = torch.nan
    with pytest.raises(InputError, match=r"document_2 .*row 2 .*NaN"):
        loss(made, wrong)
    for labels in (None, TEACHER[:, 0], TEACHER[:, :2]):
        with pytest.raises(ValueError, match="teacher scores"):
            loss(made, labels)
    with pytest.raises(ValueError, match="rank"):
        LambdaRankDistillationLoss(model, in_batch=False)(made[:2], TEACHER[:, :1])
    assert loss(made[:2], TEACHER[:, :1]) > 0  # one document still ranks above the batch's
    for make in (
        lambda: LambdaRankDistillationLoss(model, reduction="max"),
        lambda: lambda_rank_distillation_loss(TEACHER, TEACHER, reduction="max"),
    ):
        with pytest.raises(ValueError, match="reduction"):
            make()
    assert loss.get_config_dict()["scale"] == 1.0


@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_the_hosts_trainer_trains_every_part_of_an_mrl(mini_batch_size, tiny_bert, tmp_path):
    model = MRL(str(tiny_bert))
    rows = {"query": QUERIES, "label": TEACHER.tolist()}
    rows |= {f"document_{j + 1}": [row[j] for row in LISTS] for j in range(3)}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = LambdaRankDistillationLoss(model, mini_batch_size=mini_batch_size)

    def trainer(**changes):
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=6,
            learning_rate=1e-3,
            save_strategy="steps",
            save_steps=2,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **changes,
        )
        return SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_dict(rows), loss=loss
        )

    with pytest.raises(InputError, match="router_mapping"):
        trainer().train()
    trainer(router_mapping=ROUTES).train()
    after = dict(model.named_parameters())
    changed = {name for name, p in after.items() if not torch.equal(p, before[name])}
    assert before.keys() - changed == {name for name in before if "pooler" in name}
    table = next(name for name in before if "word_embeddings" in name)
    variance_row = model.tokenizer.convert_tokens_to_ids("[VAR]")
    assert not torch.equal(after[table][variance_row], before[table][variance_row])
    trained = model.encode_document(LISTS[0])
    torch.nn.init.zeros_(model.head.mean_projection.weight)
    resumed = trainer(router_mapping=ROUTES)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    np.testing.assert_array_equal(resumed.model.encode_document(LISTS[0]), trained)
    np.testing.assert_array_equal(
        MRL.load(tmp_path / "checkpoint-2").encode_document(LISTS[0]), trained
    )
