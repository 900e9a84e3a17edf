"""Plans: what holds a step up besides the GPU, and what it takes of memory and disk."""

from __future__ import annotations

import json

import pytest
from reproduce import costs
from reproduce.costs import Cost, corpora_gib, cost, throughputs
from reproduce.specification import Step

COCO = "pretrain --preset cocodr-base --dataset {data:msmarco} --model m --output {out}"
QC = (
    "pretrain --preset qc --dataset {data:msmarco} --model m --queries q --output {out} "
    "--batch-size 2048 --max-steps 1000"
)
TUNED = (
    "finetune --dataset {data:msmarco-train} --model m --output {out} --batch-size 64 "
    "--max-steps 1000 --loss triplet"
)


@pytest.fixture
def assumed(monkeypatch):
    """Throughputs that a test sets; a GPU of the rest takes no time at all."""
    values = {name: dict(entry) for name, entry in throughputs().items()}
    values["gpu"]["sustained_tflops"] = 1e9
    monkeypatch.setattr(costs, "throughputs", lambda: values)
    return values


def planned(line: str, gpus: int = 8) -> Cost:
    return cost(Step((line,)), gpus, {})


def test_a_training_takes_as_long_as_the_cores_that_feed_it(assumed):
    assumed["cores_per_gpu"]["value"] = 8
    assumed["pairs_per_second_and_core"]["value"] = 100
    coco = planned(COCO)
    pairs = coco.steps * costs.options_of(COCO.split(), 8).batch_size
    assert coco.hours == pytest.approx(pairs / 100 / (8 * 7) / 3600)
    assumed["pairs_per_second_and_core"]["value"] = 200
    assert planned(COCO).hours == pytest.approx(coco.hours / 2)


def test_each_process_samples_all_rows_of_a_step_without_repeated_texts(assumed):
    assumed["pairs_per_second_and_core"]["value"] = 1e9
    assumed["sampler_ms_per_passage"]["value"] = 0.5
    assumed["sampler_ms_per_pair"]["value"] = 7
    seconds = 2048 * 1000 * 0.5 / 1000
    assert planned(QC).hours == pytest.approx(seconds / 3600)
    assert planned(QC, 1).hours == pytest.approx(seconds / 3600)
    # CoT-MAE compares no passage with others, so that any may come together.
    assert planned(QC.replace("--preset qc", "--preset cotmae")).hours < seconds / 3600 / 100
    compared = TUNED.replace("--loss triplet", "--loss infonce")
    pairs_seconds = planned(compared).hours - planned(TUNED).hours
    assert pairs_seconds * 3600 == pytest.approx(64 * 1000 * 7 / 1000, rel=0.01)


def test_the_rates_of_the_sampler_are_those_of_the_input():
    measured = json.loads(costs.INPUT_RESULTS.read_text())["query_context"]
    assert throughputs()["sampler_ms_per_passage"]["value"] == measured["cpu_ms_per_row"]
    assert throughputs()["sampler_ms_per_pair"]["value"] == measured["finetuning_cpu_ms_per_row"]


def test_idro_costs_what_its_products_do(assumed):
    """BERT-base: 3 of 12 layers of 12 d² weights, K = 50, 64 triplets over 8 GPUs."""
    assumed["pairs_per_second_and_core"]["value"] = 1e9
    assumed["gram_tflops"]["value"] = 10
    plain = planned(f"{TUNED} --weighting groupdro")
    tokens = 8 * 3 * 128 * assumed["share_of_length"]["value"]
    flops = 2 * 3 * 12 * 768**2 * (tokens + 50 * 8 + 50**2) * 1000
    added = planned(f"{TUNED} --weighting idro").hours - plain.hours
    assert added == pytest.approx(flops / 10e12 / 3600, rel=1e-6)


def test_generation_is_shared_by_the_gpus_and_takes_the_memory_of_its_batch():
    line = (
        "generate-queries --dataset {data:msmarco} --generator {model:doc2query} "
        "--per-passage 5 --output {out}"
    )
    one, eight = planned(line, 1), planned(line, 8)
    assert one.hours == pytest.approx(8 * eight.hours)
    # 1,280 queries of 208 tokens in 12 layers of 768 dimensions: keys and values, held twice.
    held = 2 * 1280 * 208 * 2 * 12 * 768 * 4 / 2**30
    assert held < planned(f"{line} --batch-size 256").gpu_gib < held + 3
    assert 35 < held < 42


def test_corpora_count_once_for_a_table_and_colbert_counts_its_tokens():
    assert corpora_gib(["msmarco", "msmarco"]) == corpora_gib(["msmarco"])
    documents, _ = costs.size("msmarco")
    assert corpora_gib(["msmarco"]) == pytest.approx(documents * 1400 / 2**30)
    command = "resample evaluate --preset extrapolation --folder {{step:sets}} {} --output {{out}}"
    sets = {"sets": Step(("resample restrain --size 50000",))}
    disk = [
        cost(Step((command.format(f"--architecture {names}"),)), 8, sets).disk_gib
        for names in ("dense", "dense,late-interaction")
    ]
    tokens = documents * 128 * throughputs()["share_of_length"]["value"]
    assert disk[1] - disk[0] >= tokens * 512 / 2**30
    assert tokens * 512 / 1e9 > 340
