"""On a machine with several GPUs and without torchrun, a training takes one and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainingArguments

from beir_cocodr.data.collection import load_collection
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.starts import masked_language_model
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
    """Let the hosts count four GPUs, as they do where torch sees four."""
    for arguments in (SentenceTransformerTrainingArguments, TrainingArguments):
        post_init = arguments.__post_init__

        def counting(self, post_init=post_init):
            post_init(self)
            self._n_gpu = 4

        monkeypatch.setattr(arguments, "__post_init__", counting)


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


def masked_start(model: Path, data: Path, shared: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a start after two steps of masked language modelling."""
    recipe = Recipe(start=str(model), batch_size=4, mlm_steps=2, warmup=0, device="cpu")
    folder, _ = masked_language_model(load_collection(str(data), "train"), recipe, 1, shared)
    return load_file(Path(folder) / "model.safetensors")


def test_masked_language_modelling_of_a_start_takes_one_gpu_too(
    four_gpus, monkeypatch, beir_folder, tiny_bert, tmp_path, caplog
):
    several = masked_start(tiny_bert, beir_folder, tmp_path / "several")
    assert "4 GPUs are visible, and this training uses one" in caplog.text
    monkeypatch.undo()
    caplog.clear()
    one = masked_start(tiny_bert, beir_folder, tmp_path / "one")
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
    trainer.keep_to_one_gpu(arguments)
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == 8
