"""On a machine with several GPUs and without torchrun, a training takes one and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformerTrainingArguments

from beir_cocodr.training import trainer
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions

OPTIONS = FinetuneOptions.of(
    max_steps=2,
    batch_size=8,
    loss="triplet",
    weighting="idro",
    clusters=2,
    min_cluster_size=1,
    kmeans_restarts=1,
    gradient_layers=1,
)


@pytest.fixture
def four_gpus(monkeypatch):
    """Let the host count four GPUs, as it does where torch sees four."""
    post_init = SentenceTransformerTrainingArguments.__post_init__

    def counting(self):
        post_init(self)
        self._n_gpu = 4

    monkeypatch.setattr(SentenceTransformerTrainingArguments, "__post_init__", counting)


def train(model: Path, data: Path, output: Path) -> dict[str, torch.Tensor]:
    finetune(str(model), str(data), output=output, options=OPTIONS)
    return load_file(output / "model.safetensors")


def test_one_gpu_is_taken_with_the_batch_that_was_asked_for(
    four_gpus, monkeypatch, beir_folder, tiny_mlm, tmp_path, caplog
):
    several = train(tiny_mlm, beir_folder, tmp_path / "several")
    assert "4 GPUs are visible, and this training uses one" in caplog.text
    assert "torchrun --standalone --nproc-per-node 4" in caplog.text
    monkeypatch.undo()
    caplog.clear()
    one = train(tiny_mlm, beir_folder, tmp_path / "one")
    assert "GPUs are visible" not in caplog.text
    for name, weight in one.items():
        assert torch.equal(weight, several[name])


def test_the_host_wraps_the_model_and_multiplies_the_batch_unless_told(four_gpus, tmp_path):
    """The private name is what the host reads; this fails when it moves."""
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=8, use_cpu=True
    )
    assert arguments.n_gpu == 4
    assert arguments.train_batch_size == 32
    trainer._keep_to_one_gpu(arguments)
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == 8
