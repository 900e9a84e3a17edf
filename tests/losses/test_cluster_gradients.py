"""The matrix of cluster-gradient products, by one backward and by autograd call by call."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import sentences
from harness.launches import Launches
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn

from beir_cocodr.errors import InputError
from beir_cocodr.losses import cluster_gradients as cluster_gram
from beir_cocodr.losses.cluster_gradients import (
    ClusterStep,
    Tokens,
    cluster_sums,
    gram_by_calls,
    gram_of,
    membership,
    selected_modules,
    sketched_gradients,
    vector_gradients,
    weight_grams,
)
from beir_cocodr.losses.dro import IDROLoss
from beir_cocodr.models.cocodr import COCODR

K = 6
MEMBERS = torch.tensor([4, 0, 4, 1, 1, 4, 3, 0])  # uneven, out of order; 2 and 5 are absent
PRESENT = MEMBERS.unique().tolist()


@pytest.fixture(scope="module")
def backbones(tmp_path_factory, wordpiece) -> dict[str, Path]:
    """Folders of four kinds of tiny transformers, dropout 0.1, and LayerNorms that are not the
    identity.
    """
    from transformers import (
        BertConfig,
        BertModel,
        DistilBertConfig,
        DistilBertModel,
        MPNetConfig,
        MPNetModel,
        RobertaConfig,
        RobertaModel,
    )

    size = len(wordpiece)
    shape = {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 40,
    }
    shared = {
        "vocab_size": size,
        "max_position_embeddings": 160,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    distil = {"dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 40}
    torch.manual_seed(0)
    made = {
        "bert": BertModel(BertConfig(**shape, **shared)),
        "distilbert": DistilBertModel(DistilBertConfig(**distil, **shared)),
        "roberta": RobertaModel(RobertaConfig(**shape, **shared)),
        "mpnet": MPNetModel(MPNetConfig(**shape, **shared)),
    }
    folders = {}
    for name, model in made.items():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.weight, 1, 0.3)
                nn.init.normal_(module.bias, 0, 0.3)
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
        wordpiece.save_pretrained(folders[name])
    return folders


@cache
def loaded(folder: Path, pooling: str) -> COCODR:
    transformer = Transformer(str(folder), max_seq_length=40)
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    return COCODR(modules=modules, similarity_fn_name="dot")


def encoder(folder: Path, pooling: str = "cls", dtype: torch.dtype = torch.float32) -> COCODR:
    """Return a copy of a model, with dropout on."""
    return deepcopy(loaded(folder, pooling)).to(dtype).train()


def batch(model: COCODR, negatives: int = 1, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Columns of one to three sentences a text, each padded to its own longest."""
    columns = []
    for column in range(2 + negatives):
        rng = np.random.default_rng((seed, column))
        texts = [sentences(rng, int(k) % 4, 1 + (i + column) % 3, 7) for i, k in enumerate(MEMBERS)]
        columns.append({k: v for k, v in model.preprocess(texts).items() if torch.is_tensor(v)})
    assert all((c["attention_mask"] == 0).any() for c in columns)
    return columns


class Recorded(IDROLoss):
    """Keeps each step's Gram matrix."""

    last: torch.Tensor

    def update(self, losses, counts, gram):
        self.last = gram.clone()
        super().update(losses, counts, gram)


def each_loss(model: COCODR, columns, scale: float = 1.0, in_batch: bool = False) -> torch.Tensor:
    """(B,) losses, written out."""
    query, *documents = (model(dict(column))["sentence_embedding"] for column in columns)
    if in_batch:
        scores = scale * torch.stack([query @ column.T for column in documents], dim=2).flatten(1)
        own = (scale * query * documents[0]).sum(dim=1)
    else:
        scores = scale * torch.stack([(query * column).sum(dim=1) for column in documents], dim=1)
        own = scores[:, 0]
    return scores.logsumexp(dim=1) - own


def last_layers(model: COCODR, layers: int = 2) -> list[nn.Parameter]:
    marks = [f"layer.{i}." for i in (1, 2)][-layers:]
    return [p for name, p in model.named_parameters() if any(mark in name for mark in marks)]


def oracle(model: COCODR, each: torch.Tensor, layers: int = 2) -> torch.Tensor:
    """(K, K), a gradient call for each cluster's mean loss."""
    gram = torch.zeros(K, K, dtype=torch.float64)
    rows = {}
    for k in PRESENT:
        mean = each[k == MEMBERS].sum() / (k == MEMBERS).sum()
        found = torch.autograd.grad(mean, last_layers(model, layers), retain_graph=True)
        rows[k] = torch.cat([g.flatten() for g in found]).double()
    for i in PRESENT:
        for j in PRESENT:
            gram[i, j] = rows[i] @ rows[j]
    return gram


def assert_equal_grams(ours: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Relative to the lengths of the two gradients."""
    lengths = expected.diagonal().sqrt()
    assert (lengths[PRESENT] > 1e-4).all()
    difference = (ours - expected)[PRESENT][:, PRESENT] / (lengths[:, None] * lengths)[PRESENT][
        :, PRESENT
    ]
    assert difference.abs().max() <= tolerance
    absent = [k for k in range(K) if k not in PRESENT]
    assert ours[absent].abs().max() == ours[:, absent].abs().max() == 0


CASES = [
    ("bert", "mean", 3, torch.float64),
    ("bert", "cls", 3, torch.float32),
    ("distilbert", "cls", 1, torch.float64),
    ("distilbert", "mean", 3, torch.float32),
    ("roberta", "cls", 3, torch.float64),
    ("roberta", "mean", 1, torch.float32),
    ("mpnet", "mean", 1, torch.float64),
    ("mpnet", "cls", 3, torch.float32),
]


@pytest.mark.parametrize(("kind", "pooling", "negatives", "dtype"), CASES)
def test_one_backward_and_calls_are_the_oracle_over_two_steps(
    backbones, kind, pooling, negatives, dtype
):
    """With dropout on: the same state of the random numbers gives the same masks."""
    model = encoder(backbones[kind], pooling, dtype)
    losses = {name: Recorded(model, K, gram=name) for name in ("one_backward", "k_calls")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # 1e-10 and 1e-5 of each gradient, hence twice that of the product of two
    tolerance = 2e-10 if dtype == torch.float64 else 2e-5
    for step in range(2):
        columns = batch(model, negatives, step)
        torch.manual_seed(step)
        each = each_loss(model, columns)
        expected = oracle(model, each)
        for loss in losses.values():
            torch.manual_seed(step)
            optimizer.zero_grad()
            shares = (loss.weights / loss.weights[PRESENT].sum()).tolist()
            value = loss(columns, MEMBERS)
            means = {k: each[k == MEMBERS].mean().item() for k in PRESENT}
            assert value.item() == pytest.approx(
                sum(shares[k] * means[k] for k in PRESENT), rel=1e-5
            )
            value.backward()
            loss.finish_step()
            assert_equal_grams(loss.last, expected, tolerance)
            cosine = expected[4, 1] / (expected[4, 4] * expected[1, 1]).sqrt()
            assert 0.001 < abs(cosine) < 0.999
        optimizer.step()


def test_under_autocast_the_products_are_those_of_its_gradients(backbones):
    """To the three digits of bfloat16, in which the training gradients themselves are."""
    model = encoder(backbones["bert"]).eval()
    columns = batch(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected = oracle(model, each_loss(model, columns))
        for gram, tolerance in (("one_backward", 0.02), ("k_calls", 0.02), ("sketch", 0.2)):
            loss = Recorded(model, K, gram=gram, sketch_size=512)
            loss(columns, MEMBERS).backward()
            loss.finish_step()
            assert_equal_grams(loss.last, expected, tolerance)


@pytest.mark.parametrize("layers", [1, 2])
def test_gradient_layers_are_the_last(backbones, layers):
    model = encoder(backbones["bert"], dtype=torch.float64).eval()
    loss = Recorded(model, K, gradient_layers=layers)
    columns = batch(model)
    expected = oracle(model, each_loss(model, columns), layers)
    loss(columns, MEMBERS).backward()
    loss.finish_step()
    assert_equal_grams(loss.last, expected, 1e-10)


@pytest.mark.parametrize("factor", [1024.0, 0.5, 512.0])
@pytest.mark.parametrize("gram", ["one_backward", "k_calls"])
def test_raw_products_do_not_see_what_scales_the_loss(backbones, factor, gram):
    """A loss scaler, gradient accumulation, both; and uneven weights of clusters."""
    model = encoder(backbones["bert"], dtype=torch.float64).eval()
    loss = Recorded(model, K, mode="paper", gram=gram)
    loss.weights.copy_(torch.tensor([0.5, 0.01, 0.1, 0.09, 0.2, 0.1]))
    columns = batch(model)
    expected = oracle(model, each_loss(model, columns))
    (loss(columns, MEMBERS) * factor).backward()
    loss.finish_step()
    assert_equal_grams(loss.last, expected, 1e-10)


@pytest.mark.parametrize("negatives", [1, 3])
def test_in_batch_products_are_of_the_triplet_part_or_exact_by_calls(backbones, negatives):
    model = encoder(backbones["bert"], dtype=torch.float64)
    columns = batch(model, negatives)
    for gram in ("one_backward", "k_calls"):
        torch.manual_seed(0)
        expected = oracle(model, each_loss(model, columns, in_batch=gram != "one_backward"))
        loss = Recorded(model, K, in_batch=True, gram=gram)
        torch.manual_seed(0)
        (loss(columns, MEMBERS) * 64).backward()
        loss.finish_step()
        assert_equal_grams(loss.last, expected, 1e-10)
    torch.manual_seed(0)
    triplets = oracle(model, each_loss(model, columns))
    assert (triplets - expected).abs().max() > 1e-3 * expected.abs().max()  # two different things


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("gram", ["one_backward", "sketch", "k_calls"])
def test_the_training_gradients_are_the_same_bits_with_and_without(backbones, gram, in_batch):
    model = encoder(backbones["bert"])
    found = []
    for watching in (True, False):
        loss = IDROLoss(model, K, gram=gram, in_batch=in_batch, sketch_size=4)
        loss.needs_gram = watching
        model.zero_grad()
        torch.manual_seed(0)
        loss(batch(model), MEMBERS).backward()
        found.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
        loss.finish_step()
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


@pytest.mark.parametrize("gram", ["one_backward", "sketch", "k_calls"])
def test_nothing_stays_in_the_model(backbones, gram):
    model = encoder(backbones["bert"])
    loss = IDROLoss(model, K, gram=gram)
    names = [name for name in vars(model[0]) if "hooks" in name]
    before = [[dict(getattr(m, name)) for name in names] for m in model.modules()]
    keys = list(model.state_dict())
    value = loss(batch(model), MEMBERS)
    assert [[dict(getattr(m, name)) for name in names] for m in model.modules()] == before
    value.backward()
    loss.finish_step()
    assert list(model.state_dict()) == keys
    with pytest.raises(ValueError, match="input_ids"):  # nor after a forward that failed
        loss([{"nothing": torch.zeros(8)}] * 3, MEMBERS)
    assert [[dict(getattr(m, name)) for name in names] for m in model.modules()] == before


def test_nothing_is_captured_or_moved_without_gradients(backbones):
    model = encoder(backbones["bert"]).eval()
    loss = Recorded(model, K)
    state = {
        name: value.clone() for name, value in loss.state_dict().items() if "model." not in name
    }
    with torch.no_grad():
        value = loss(batch(model), MEMBERS)
    loss.finish_step()
    assert not hasattr(loss, "last")
    for name, before in state.items():
        assert torch.equal(loss.state_dict()[name], before), name
    # An evaluation between the forward of a step and its end does not disturb it either.
    expected = oracle(model, each_loss(model, batch(model)))
    training = loss(batch(model), MEMBERS)
    assert training.item() == pytest.approx(value.item(), rel=1e-6)
    with torch.no_grad():
        loss(batch(model, seed=1), MEMBERS.flip(0))
    training.backward()
    loss.finish_step()
    assert_equal_grams(loss.last, expected, 1e-5)


def test_a_step_is_finished_once_by_whoever_comes_first(backbones):
    model = encoder(backbones["bert"]).eval()
    first, second = Recorded(model, K), Recorded(model, K)
    for step in range(2):
        for loss in (first, second):
            loss(batch(model, seed=step), MEMBERS).backward()
        first.finish_step()
        first.finish_step()
    second.finish_step()
    assert torch.equal(first.weights, second.weights)


def test_what_a_step_holds_is_let_go(backbones):
    import gc
    import weakref

    model = encoder(backbones["bert"])
    loss = IDROLoss(model, K)
    caught = []
    layer = loss.watched[0]
    handle = layer.register_forward_hook(
        lambda module, inputs, output: caught.append(weakref.ref(output))
    )
    value = loss(batch(model), MEMBERS)
    handle.remove()
    value.backward()
    loss.finish_step()
    del value
    gc.collect()
    assert len(caught) == 3
    assert not any(reference() is not None for reference in caught)


#: The clusters of five examples among four; cluster 2 has none, as may be on one of two processes.
OF_EXAMPLES = torch.tensor([0, 3, 1, 0, 3])
MEMBERSHIP = membership(OF_EXAMPLES, torch.arange(4))


def tokens(module: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float64):
    """Inputs and output gradients of a module, and the gradients of clusters by autograd."""
    generator = torch.Generator().manual_seed(seed)
    width = module.normalized_shape[0] if isinstance(module, nn.LayerNorm) else module.in_features
    inputs = torch.randn(5, 10, width, generator=generator, dtype=torch.float64).to(dtype)
    wide = module.double()(inputs.double())
    gradients = torch.randn(wide.shape, generator=generator, dtype=torch.float64).to(dtype)
    rows = []
    for cluster in range(4):
        loss = (wide * gradients.double())[cluster == OF_EXAMPLES].sum()
        parts = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return Tokens(inputs, gradients), torch.stack(rows)


def gram_of_module(module: nn.Module, given: Tokens) -> torch.Tensor:
    grams = []
    if isinstance(module, nn.Linear):
        grams += weight_grams(given, MEMBERSHIP)
    for vectors in vector_gradients(module, given):
        grams.append(gram_of(cluster_sums(vectors, MEMBERSHIP)))
    return torch.stack(grams).sum(dim=0, dtype=torch.float64)


def sketch_of_module(module: nn.Linear, given: Tokens, size: int, seed: int) -> torch.Tensor:
    parts = [sketched_gradients(given, size, seed, 7), *vector_gradients(module, given)]
    return gram_of(cluster_sums(torch.cat(parts, dim=1), MEMBERSHIP))


MODULES = {
    "linear": lambda: nn.Linear(12, 20),
    "linear without bias": lambda: nn.Linear(12, 20, bias=False),
    "layer norm": lambda: nn.LayerNorm(12, eps=1e-3),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("block", [1, 1000, 256 << 20])
def test_one_module_in_blocks_of_any_size(name, block, monkeypatch):
    monkeypatch.setattr(cluster_gram, "_BLOCK", block)
    module = MODULES[name]()
    given, rows = tokens(module)
    torch.testing.assert_close(gram_of_module(module, given), rows @ rows.T)
    empty = Tokens(*(part[:, :0] for part in given))
    assert gram_of_module(module, empty).abs().max() == 0


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_of_float32_whatever_autocast_does(name, dtype):
    module = MODULES[name]()
    given, rows = tokens(module, dtype=dtype)
    expected = rows @ rows.T
    lengths = expected.diagonal().sqrt()
    backward = torch.zeros(1, requires_grad=True)
    step = ClusterStep([module], torch.ones(4), torch.arange(4), OF_EXAMPLES)
    with torch.autocast("cpu", torch.bfloat16):
        backward.register_hook(lambda _: step._take(0, given.inputs, 1, given.gradients))
        backward.sum().backward()
        gram = step.gram()
    difference = (gram - expected) / (lengths[:, None] * lengths).clamp(min=1)
    assert difference.abs().max() < 1e-6


def test_sixteen_bits_are_multiplied_to_float32_where_the_device_does_it():
    """The device without values tells shapes and types."""
    left = torch.empty(5, 10, 12, dtype=torch.bfloat16, device="meta")
    right = torch.empty(5, 10, 20, dtype=torch.bfloat16, device="meta")
    with Launches() as launches:
        sums = cluster_gram._outer_sums(left, right)
    assert (sums.shape, sums.dtype) == ((5, 12, 20), torch.float32)
    if cluster_gram._HAS_WIDE_PRODUCT:
        assert launches.names == ["aten.bmm.dtype"]


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_summed_over_processes_before_their_products(name, monkeypatch):
    """A process that adds the same gradients again makes all of them twice as long."""
    module = MODULES[name]()
    given, rows = tokens(module)
    monkeypatch.setattr(cluster_gram, "sum_over_ranks", lambda x: x.mul_(2))
    torch.testing.assert_close(gram_of_module(module, given), 4 * rows @ rows.T)


@pytest.mark.parametrize("name", ["linear", "linear without bias"])
def test_the_sketch_is_right_in_expectation(name):
    module = MODULES[name]()
    given, rows = tokens(module)
    exact = rows @ rows.T
    seeds, size = 500, 6
    drawn = torch.stack([sketch_of_module(module, given, size, seed) for seed in range(seeds)])
    error = drawn.std(dim=0) / seeds**0.5
    assert ((drawn.mean(dim=0) - exact).abs() <= 5 * error + 1e-9 * exact.abs().max()).all()
    assert (error.diagonal()[[0, 1, 3]] > 0).all()
    assert (error / exact.diagonal().max()).max() < 0.05  # or the bound would say nothing


def test_the_two_sides_of_a_sketch_are_independent():
    """One projection for both sides would see the traces of square gradients, such as Xᵀ X."""
    module = nn.Linear(12, 12, bias=False)
    (inputs, _), _ = tokens(module)
    of_examples = inputs.mT @ inputs
    rows = torch.stack([of_examples[cluster == OF_EXAMPLES].sum(dim=0) for cluster in range(4)])
    rows = rows.flatten(1)
    exact, given, seeds = rows @ rows.T, Tokens(inputs, inputs), 500
    drawn = torch.stack([sketch_of_module(module, given, 6, seed) for seed in range(seeds)])
    error = drawn.std(dim=0) / seeds**0.5
    assert ((drawn.mean(dim=0) - exact).abs() <= 5 * error + 1e-9).all()
    assert (error / exact.diagonal().max()).max() < 0.05


def test_the_sketch_is_the_same_on_every_call_and_draws_from_nobody():
    given, _ = tokens(nn.Linear(12, 20))
    sketches = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        sketches.append(sketched_gradients(given, 6, 42, 3))
        assert torch.equal(torch.get_rng_state(), state)
        cluster_gram._projection.cache_clear()
    assert torch.equal(*sketches)
    assert sketches[0].shape == (5, 6 * 6)
    for other in ((43, 3), (42, 4)):
        assert not torch.allclose(sketched_gradients(given, 6, *other), sketches[0])


@pytest.mark.parametrize("gram", ["one_backward", "sketch"])
@pytest.mark.parametrize("in_batch", [False, True])
def test_the_kernels_of_a_step_do_not_grow_with_its_clusters(
    backbones, gram, in_batch, monkeypatch
):
    """Counted as on a GPU, where no value is read before the end of the backward pass."""
    monkeypatch.setattr(cluster_gram, "_can_read", lambda device: False)
    model = encoder(backbones["bert"])
    columns = batch(model)
    of_gram = []
    for members in (torch.zeros(8, dtype=torch.int64), torch.arange(8)):
        loss = IDROLoss(model, 8, gram=gram, in_batch=in_batch)
        loss(columns, members).backward()  # draws the projections of the sketch
        loss.finish_step()
        counts = []
        for watching in (False, True):
            loss.needs_gram = watching
            model.zero_grad()
            with Launches() as launches:
                loss(columns, members).backward()
                loss.finish_step()
            counts.append(len(launches.names))
        of_gram.append(counts[1] - counts[0])
    assert len(set(of_gram)) == 1  # the same for 1 and 8 clusters
    # 12 linear layers and 4 norms are watched here, and 18 and 6 of BERT-base, in larger blocks. In
    # batch there is a second backward pass through the watched layers.
    assert of_gram[0] <= (360 if in_batch else 180)


def test_positions_behind_the_last_gradient_are_left_out(backbones):
    """Of the last layer of a [CLS] encoder that is all but the first token."""
    inputs, gradient = torch.randn(3, 9, 4), torch.zeros(3, 9, 5)
    gradient[1, 6] = 1.0
    trimmed = cluster_gram._tokens(inputs, gradient)
    assert (trimmed.inputs.shape, trimmed.gradients.shape) == ((3, 7, 4), (3, 7, 5))
    assert cluster_gram._tokens(inputs, torch.zeros(3, 9, 5)).inputs.shape == (3, 0, 4)


def test_the_sums_of_a_step_are_the_same_bits_on_every_run(backbones):
    model = encoder(backbones["bert"]).eval()
    columns = batch(model)
    grams = []
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(True)  # refuses atomic additions on a GPU by name
        try:
            for _ in range(2):
                loss = Recorded(model, K)
                loss(columns, MEMBERS).backward()
                loss.finish_step()
                grams.append(loss.last)
        finally:
            torch.use_deterministic_algorithms(False)
    assert torch.equal(*grams)


def test_a_wide_sketch_of_a_step_comes_near_its_exact_products(backbones):
    model = encoder(backbones["bert"]).eval()
    columns = batch(model)
    expected = oracle(model, each_loss(model, columns))
    loss = Recorded(model, K, gram="sketch", sketch_size=512)
    for _ in range(2):
        loss(columns, MEMBERS).backward()
        loss.finish_step()
        assert_equal_grams(loss.last, expected, 0.15)
    first = loss.last
    again = Recorded(model, K, gram="sketch", sketch_size=512)
    again(columns, MEMBERS).backward()
    again.finish_step()
    torch.testing.assert_close(again.last, first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("total", "expected"), [(12, [9, 10, 11]), (24, [22, 23]), (6, [4, 5]), (2, [0, 1])]
)
def test_three_layers_of_twelve_and_two_of_others(wordpiece, tmp_path, total, expected):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(wordpiece),
        hidden_size=4,
        num_hidden_layers=total,
        num_attention_heads=1,
        intermediate_size=4,
    )
    BertModel(config).save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    model = COCODR(str(tmp_path))
    found = selected_modules(model)
    assert sorted({int(name.split(".")[0]) for name in found}) == expected
    covered = {id(p) for module in found.values() for p in module.parameters()}
    named = dict(model.named_parameters())
    assert covered == {id(p) for n, p in named.items() if any(f"layer.{i}." in n for i in expected)}
    assert len(covered) == 16 * len(expected)


def test_calls_are_one_vectorised_call():
    """A parameter that only one loss depends on counts as zero in the other's gradient."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    second = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    losses = torch.stack([(first**2).sum() + second.sin().sum(), first.exp().sum()])
    columns = torch.autograd.grad(
        losses,
        [first, second],
        torch.eye(2, dtype=torch.float64),
        retain_graph=True,
        is_grads_batched=True,
    )
    rows = torch.cat([column.flatten(1) for column in columns], dim=1)
    torch.testing.assert_close(gram_by_calls(losses, [first, second]), rows @ rows.T)


def test_a_gram_that_was_cut_is_refused_by_the_names_of_the_others(backbones):
    with pytest.raises(InputError, match=r"gram 'batched'.*k_calls"):
        IDROLoss(encoder(backbones["bert"]), K, gram="batched")


def test_parameters_that_hooks_cannot_see_are_refused(backbones):
    model = encoder(backbones["bert"])
    layer = model.transformers_model.encoder.layer[-1]
    layer.extra = nn.Parameter(torch.zeros(3))
    with pytest.raises(InputError, match="Linear and LayerNorm"):
        IDROLoss(model, K)


def test_recomputed_activations_are_refused(backbones):
    model = encoder(backbones["bert"])
    model.transformers_model.gradient_checkpointing_enable()
    with pytest.raises(InputError, match="checkpointing"):
        IDROLoss(model, K)


def test_a_frozen_lower_half_changes_nothing(backbones):
    """The first watched modules then get inputs that need no gradient."""
    model = encoder(backbones["bert"], dtype=torch.float64).eval()
    columns = batch(model)
    expected = oracle(model, each_loss(model, columns))
    backbone = model.transformers_model
    for parameter in [*backbone.embeddings.parameters(), *backbone.encoder.layer[0].parameters()]:
        parameter.requires_grad_(False)
    loss = Recorded(model, K)
    loss(columns, MEMBERS).backward()
    loss.finish_step()
    assert_equal_grams(loss.last, expected, 1e-10)
