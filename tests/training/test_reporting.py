"""Trainings that are logged: real files of TensorBoard, Weights & Biases offline, and Trackio."""

from __future__ import annotations

import json
import sqlite3

import pytest

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.provenance import LOGGED
from beir_cocodr.training import shared_options
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.pretraining.pretrain import pretrain

SETTINGS = {"max_steps": 4, "batch_size": 4}


def trained(folder, dataset, model, report_to: str):
    options = FinetuneOptions.of(**SETTINGS, negatives=1, report_to=report_to)
    record = finetune(str(model), str(dataset), output=folder, options=options)
    # One loss a step, as training.json has them.
    losses = dict(record.details[LOGGED])
    assert list(losses) == [1, 2, 3, 4]
    return losses


def test_tensorboard_has_every_loss(beir_folder, tiny_bert, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    losses = trained(tmp_path / "model", beir_folder, tiny_bert, "tensorboard")
    events = EventAccumulator(str(tmp_path / "model" / "logs"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("train/loss")}
    assert logged == pytest.approx(losses, rel=1e-6)
    assert (
        "report_to" not in json.loads((tmp_path / "model" / "training.json").read_text())["options"]
    )


def test_tensorboard_of_the_command_line(beir_folder, tiny_mlm, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "elsewhere"))
    words = ["pretrain", "--dataset", beir_folder, "--model", tiny_mlm, "--max-steps", 2]
    words += ["--output", tmp_path / "model", "--batch-size", 4, "--report-to", "tensorboard"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--span-tokens", "12", "--device", "cpu"])
    assert not ended.value.code
    assert list((tmp_path / "elsewhere").glob("events.out.tfevents.*"))
    assert not (tmp_path / "model" / "logs").exists()


def test_wandb_offline_has_a_run_for_each_training(beir_folder, tiny_mlm, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    options = PretrainOptions.of(**SETTINGS, span_tokens=12, report_to="wandb")
    for name in ("first", "second"):
        pretrain(str(tiny_mlm), [str(beir_folder)], output=tmp_path / name, options=options)
        assert wandb.run is None
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_trackio_has_every_loss(beir_folder, tiny_bert, tmp_path, monkeypatch):
    # The package reads the variable when it is imported.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio is not installed")
    losses = trained(tmp_path / "model", beir_folder, tiny_bert, "trackio")
    [database] = (tmp_path / "trackio").glob("*.db")
    rows = sqlite3.connect(database).execute("select step, metrics from metrics").fetchall()
    logged = {}
    for step, metrics in rows:
        values = json.loads(metrics)
        if "train/loss" in values:
            logged[step] = values["train/loss"]
    # The service counts steps by itself, from 0.
    in_order = [logged[step] for step in sorted(logged)]
    assert in_order == pytest.approx(list(losses.values()), rel=1e-6)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("paper", "'paper' is unknown; give none, or any of wandb, tensorboard, trackio"),
        ("wandb,none", "'none' is unknown"),
    ],
)
def test_unknown_services_are_refused(names, message):
    with pytest.raises(InputError, match=message):
        FinetuneOptions(report_to=names)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(shared_options.REPORTS, "wandb", "no_such_package")
    with pytest.raises(InputError, match="not installed: pip install no_such_package"):
        FinetuneOptions(report_to="wandb")
