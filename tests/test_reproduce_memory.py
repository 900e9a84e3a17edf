"""The memory that a plan states: as measured, by what a loss holds, and within that of a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reproduce import memory, plans, runner
from reproduce.costs import Cost, cost, throughputs
from reproduce.memory import BASE, SHAPES, Held, training_gib
from reproduce.plans import describe_plan, plan
from reproduce.scales import PaperScale
from reproduce.specification import Step
from reproduce.workshop import Workshop

from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.training.finetuning.loss_rows import DISTILLATION_LOSSES, LOSSES
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions

ROOT = Path(__file__).parents[1]
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "gpu.json").read_text())

#: The least and the largest ratio of an estimate to what was measured.
LEAST, LARGEST = 0.8, 1.25

#: The GPU of the assumptions, an A100.
SMALLEST_CARD = 80


def planned(line: str, gpus: int = 8) -> Cost:
    return cost(Step((line,)), gpus, {})


def memory_figures(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all figures of memory."""
    if not isinstance(content, dict):
        if any(part in ("peak_mib", "peak_memory_mib") for part in path):
            yield path
        return
    for name, below in content.items():
        yield from memory_figures(below, (*path, name))


def estimates() -> dict[tuple[str, ...], float]:
    """Return the path of each measured figure of memory to its estimate, in GiB.

    The steps of COCO were measured in bfloat16 and those of iDRO in float32.
    """
    sizes = MEASURED["sizes"]
    found = {}
    for kind, weight in (("coco", 0.0), ("host", 0.0), ("coco with language-model losses", 1.0)):
        options = PretrainOptions.of(
            batch_size=sizes["batch"],
            mini_batch_size=sizes["mini_batch"],
            max_length=sizes["tokens"],
            whole_sentences=True,
            mlm_weight=weight,
        )
        held = memory.pretraining(options, BASE, 1)
        found["parts", "coco", kind, "peak_mib"] = training_gib(BASE, held)
    for way in ("erm", "one_backward", "sketch", "k_calls"):
        own = {"weighting": "erm"} if way == "erm" else {"weighting": "idro", "gram": way}
        options = FinetuneOptions.of(
            loss="triplet",
            batch_size=sizes["triplets"],
            query_length=64,
            document_length=128,
            precision="float32",
            **own,
        )
        needed = training_gib(BASE, memory.finetuning(options, 1))
        needed += memory.idro_gib(options, BASE)
        found["parts", "idro", "steps", "peak_memory_mib", way] = needed
    return found


def test_the_estimates_agree_with_every_figure_that_was_measured_on_a_gpu():
    found = estimates()
    assert set(memory_figures(MEASURED)) == set(found)
    for path, estimate in found.items():
        measured = MEASURED
        for part in path:
            measured = measured[part]
        assert LEAST < estimate * 1024 / measured < LARGEST, path


def test_the_plan_of_coco_dr_holds_all_64_triplets_of_a_gpu():
    line = "finetune --preset cocodr-base --dataset {data:msmarco-train} --model m --output {out}"
    erm = planned(f"{line} --weighting erm").gpu_gib
    idro = planned(f"{line} --weighting idro").gpu_gib
    # In bfloat16: weights, gradients and moments, and activations of 64 (64 + 2 · 128) tokens.
    held = 64 * 320 * 12 * 768 * 44 / 2**30
    assert erm == pytest.approx(110e6 * 16 / 2**30 + held)
    assert 9 < erm < idro < 11
    in_float32 = planned(f"{line} --weighting erm --precision float32").gpu_gib
    assert in_float32 * 1024 == pytest.approx(
        MEASURED["parts"]["idro"]["steps"]["peak_memory_mib"]["erm"], rel=0.1
    )


def test_language_model_losses_take_logits_and_states():
    line = "pretrain --preset cocodr-base --dataset {data:msmarco} --model m --output {out}"
    plain, masked = planned(f"{line} --mlm-weight 0").gpu_gib, planned(line).gpu_gib
    tokens = 64 * 32
    logits = 2 * 0.15 * tokens * 30_522 * 12
    states = tokens * 13 * 768 * 4
    head = tokens * 2 * 768 * 44
    assert masked - plain == pytest.approx((logits + states + head) / 2**30)


@pytest.mark.parametrize(
    ("objective", "mini_batch", "texts", "layers"),
    [("coco", 8, 8, 0), ("coco", 64, 128, 0), ("mlm", 64, 64, 0), ("tsdae", 8, 8, 12)],
)
def test_a_pretraining_holds_a_mini_batch_or_all_columns(objective, mini_batch, texts, layers):
    weight = {} if objective == "tsdae" else {"mlm_weight": 0.0 if objective == "coco" else 1.0}
    options = PretrainOptions.of(
        objective=objective,
        batch_size=64,
        mini_batch_size=mini_batch,
        max_length=100,
        whole_sentences=True,
        **weight,
    )
    held = memory.pretraining(options, BASE, 1)
    assert held.tokens == texts * 100
    assert held.beside == held.tokens * layers
    assert held.is_cached is (mini_batch < 64)


def test_a_loss_caches_gradients_where_its_builder_does(tiny_bert):
    """Of 64 examples and a mini-batch of 8, with each loss and each weighting."""
    model = load_encoder(str(tiny_bert))
    for name, row in LOSSES.items():
        for weighting in ("erm", "groupdro"):
            options = FinetuneOptions.of(
                loss=name, weighting=weighting, batch_size=64, mini_batch_size=8
            )
            build = row.load() if weighting == "erm" else options.row("weighting").load()
            loss = build(model, options, 64) if weighting == "erm" else build(model, 50)
            held = memory.finetuning(options, 1)
            assert held.is_cached is (getattr(loss, "mini_batch_size", 0) == 8), (name, weighting)
    for name, row in DISTILLATION_LOSSES.items():
        options = DistillOptions.of(loss=name, batch_size=64, mini_batch_size=8)
        loss = row.load()(model, options)
        held = memory.distillation(options, 1)
        assert held.is_cached is (getattr(loss, "mini_batch_size", 0) == 8), name
        assert held.tokens == (8 * 128 if held.is_cached else 64 * (64 + 12 * 128))


def test_a_warm_up_of_larger_batches_counts_and_a_process_holds_its_share():
    options = FinetuneOptions.of(
        loss="triplet", weighting="idro", episodes=1, batch_size=64, bm25_batch_size=256
    )
    assert memory.finetuning(options, 1) == Held(256 * 320)
    assert memory.finetuning(options, 8) == Held(32 * 320)


def test_architectures_take_what_the_largest_of_them_does():
    recipe = SimpleNamespace(
        batch_size=128,
        query_length=32,
        document_length=128,
        negatives=4,
        list_size=8,
        precision="auto",
        teacher="cross-encoder",
    )
    alone = memory.architectures_gib(recipe, ["bm25", "dense"], 1)
    reranker = memory.architectures_gib(recipe, ["cross-encoder"], 1)
    assert alone < 10 < reranker == training_gib(BASE, Held(128 * 5 * 160))
    assert memory.architectures_gib(recipe, ["dense-distilled"], 1) == reranker  # its teacher
    assert memory.architectures_gib(recipe, ["dense@roberta", "splade"], 1) > alone


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("name", runner.TABLES)
def test_every_step_of_every_table_fits_a_gpu_of_80_gib(name, gpus, tmp_path):
    paper, table = runner.TABLES[name]
    place = Workshop(paper, PaperScale(gpus=gpus), tmp_path)
    found = plan(place, table)
    assert found["too_large"] == []
    most = max(found["steps"], key=lambda step: step["gpu_gib"])
    assert most["gpu_gib"] < 0.95 * SMALLEST_CARD, most["step"]


def test_a_plan_warns_of_a_step_that_does_not_fit_its_gpu(tmp_path, monkeypatch):
    values = {name: dict(entry) for name, entry in throughputs().items()}
    assert values["gpu"]["memory_gib"] == MEASURED["gpu_gib"]
    values["gpu"] |= {"memory_gib": 24, "device": "a small one"}
    monkeypatch.setattr(plans, "throughputs", lambda: values)
    paper, table = runner.TABLES["query-as-context-table4"]
    place = Workshop(paper, PaperScale(), tmp_path)
    assert plan(place, table)["too_large"] == ["queries"]
    text = describe_plan(place, table, with_commands=False)
    assert "Warning: queries needs about 38 GiB" in text
    assert "a GPU with 24 GiB (a small one)" in text
    assert text.count("Warning") == 1


def test_the_queries_of_64_passages_fit_and_those_of_256_did_not():
    generator = SHAPES["doc2query"]
    assert memory.generating_gib(generator, 20 * 64) < SMALLEST_CARD / 2
    assert memory.generating_gib(generator, 20 * 256) > SMALLEST_CARD
    [command] = runner.PAPERS["query-as-context"].steps["queries"].commands
    assert "--per-passage 20 " in command
    assert command.endswith("--batch-size 64")


def test_a_layer_keeps_as_much_as_is_counted_for_a_token():
    """Count the tensors that a BERT layer keeps on a CPU, whose attention keeps little more."""
    from transformers import BertConfig, BertModel

    kept = {}
    for layers in (1, 2):
        config = BertConfig(num_hidden_layers=layers, attention_probs_dropout_prob=0.0)
        model = BertModel(config, add_pooling_layer=False).train()
        storages: dict[int, Any] = {}

        def keep(tensor: torch.Tensor, storages: dict[int, Any] = storages) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        ids = torch.randint(1000, 30_000, (2, 64))
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            output = model(ids).last_hidden_state
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        kept[layers] = sum(
            storage.nbytes() for place, storage in storages.items() if place not in weights
        )
        assert output.shape == (2, 64, 768)
    copies = 2 * 12 * 768**2  # of the weights in bfloat16
    a_token = (kept[2] - kept[1] - copies) / (2 * 64 * 768)
    held = training_gib(BASE, Held(1)) - training_gib(BASE, Held(0))
    assert a_token == pytest.approx(held * 2**30 / (12 * 768), rel=0.25)
