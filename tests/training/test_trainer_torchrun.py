"""Two processes by torchrun and gloo give what one process gives with the same global batch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def without_dropout(tmp_path_factory, tiny_mlm):
    """Dropout draws differ between processes; nothing else does."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("no-dropout")
    model = AutoModelForMaskedLM.from_pretrained(tiny_mlm)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_mlm).save_pretrained(folder)
    return folder


# Adam makes steps of what rounding leaves of a gradient near zero: in distillation of one weight in 1,000.
TOLERANCE = {"distill": 2e-4}
SHARED = ["--max-steps", "3", "--batch-size", "8", "--learning-rate", "1e-3", "--device", "cpu"]
COMMANDS = {
    "infonce": ["finetune"],
    "idro": ["finetune", "--weighting", "idro", "--clusters", "3", "--set", "log_clusters=1"],
    "episodes": ["finetune", "--weighting", "idro", "--clusters", "3", "--episodes", "1"],
    "coco": ["pretrain", "--set", "span_tokens=12", "--mlm-weight", "0"],
    # Held-out queries would choose the start again, and the paper's warm-up is longer than this training.
    "distill": ("distill --teacher bm25 --loss margin_mse --set positives=1 --set held_out=0 --set warmup=0").split(),
    "cached": ["pretrain", "--set", "span_tokens=12", "--mlm-weight", "0", "--mini-batch-size", "2"],
}


def train(command, processes, data, model, output):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    arguments = [*COMMANDS[command], *SHARED, "--dataset", data, "--model", model, "--output", output]
    start = [sys.executable, *(launch if processes > 1 else []), "-m", "beir_cocodr.cli"]
    return subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_two_processes_equal_one(command, beir_folder, without_dropout, tmp_path):
    for processes in (1, 2):
        done = train(command, processes, beir_folder, without_dropout, tmp_path / str(processes))
        assert done.returncode == 0, done.stderr[-2000:]
        assert json.loads(done.stdout)["stage"] in ("finetune", "coco", "distill")  # printed once
    one, two = (load_file(tmp_path / n / "model.safetensors") for n in ("1", "2"))
    start = load_file(without_dropout / "model.safetensors")
    for name, weight in one.items():
        if "key.bias" in name:
            continue  # attention does not depend on it, and Adam makes steps of what rounding leaves
        atol = TOLERANCE.get(command, 2e-5)
        torch.testing.assert_close(two[name], weight, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    moved = one["encoder.layer.0.output.dense.weight"] - start["bert.encoder.layer.0.output.dense.weight"]
    assert moved.abs().max() > 1e-4
    if command == "idro":
        logs = [(tmp_path / n / "cluster_weights.jsonl").read_text().splitlines() for n in ("1", "2")]
        for first, second in zip(*(map(json.loads, lines) for lines in logs), strict=True):
            assert first["examples"] == second["examples"]
            assert first["weights"] == pytest.approx(second["weights"], abs=1e-5)


def test_bad_input_is_said_once(beir_folder, without_dropout, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("do not lose")
    done = train("idro", 2, beir_folder, without_dropout, tmp_path / "taken")
    assert done.returncode != 0
    assert done.stderr.count("is not empty") == 1


def test_a_batch_that_cannot_be_split_is_refused(beir_folder, without_dropout, tmp_path):
    command = ["--batch-size", "7"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = ["-m", "beir_cocodr.cli", "finetune", *SHARED, *command]
    places = ["--dataset", beir_folder, "--model", without_dropout, "--output", tmp_path / "m"]
    done = subprocess.run([*launch, *arguments, *map(str, places)], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "split evenly over 2 processes" in done.stderr
