"""Training stops at the first loss or gradient that is not a number, and says where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.training import checkpoints
from beir_cocodr.training import trainer as run
from beir_cocodr.training.batches import drawn_dataset
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.finite_guard import FiniteGuard, NonFiniteTraining
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.pretraining.pretrain import pretrain

OPTIONS = FinetuneOptions(max_steps=5, batch_size=8, learning_rate=1e-3, save_steps=1)
CLUSTERS = {"loss": "triplet", "clusters": 3, "min_cluster_size": 1}
KINDS = {
    "infonce": OPTIONS,
    "cached infonce": OPTIONS.with_overrides(mini_batch_size=3),
    "triplet": OPTIONS.with_overrides(loss="triplet"),
    "idro": OPTIONS.with_overrides(weighting="idro", **CLUSTERS),
    "idro paper": OPTIONS.with_overrides(weighting="idro", idro_mode="paper", **CLUSTERS),
    "cvar": OPTIONS.with_overrides(weighting="cvar", **CLUSTERS),
}


class Poison(TrainerCallback):
    """From step 3 on one weight, or the gradient of one, is not a number."""

    def __init__(self, gradient: bool) -> None:
        self.gradient, self.model, self.hook = gradient, None, None

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step != 2:
            return
        self.model = model
        weight = model.transformers_model.encoder.layer[1].output.dense.weight
        if self.gradient:
            self.hook = weight.register_hook(lambda g: torch.where(g == g.max(), torch.nan, g))
        else:
            weight.data[0, 0] = torch.nan


@pytest.fixture
def poison(monkeypatch):
    def arrange(gradient: bool) -> Poison:
        original, callback = run.Stage.__init__, Poison(gradient)

        def poisoned(self, *args, **kwargs):
            original(self, *args, **kwargs)
            object.__setattr__(self, "callbacks", [*self.callbacks, callback])

        monkeypatch.setattr(run.Stage, "__init__", poisoned)
        return callback

    return arrange


def pairs(folder: Path) -> set[str]:
    lines = [
        line.split("\t") for line in (folder / "qrels" / "train.tsv").read_text().splitlines()[1:]
    ]
    return {f"({query!r}, {document!r})" for query, document, grade in lines if int(grade) > 0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_is_not_a_number_stops_with_its_place(
    kind, beir_folder, two_layer_mlm, tmp_path, poison
):
    poison(gradient=False)
    output = tmp_path / "m"
    with pytest.raises(NonFiniteTraining) as stopped:
        finetune(str(two_layer_mlm), str(beir_folder), output=output, options=KINDS[kind])
    assert isinstance(stopped.value, InputError)
    message = str(stopped.value)
    last = output / checkpoints.CHECKPOINTS / "checkpoint-2"
    assert message.startswith("step 3: the loss is nan")
    assert "and 3 more" in message
    assert f"the last good checkpoint is {last}" in message
    assert str(output / "nonfinite.json") in message
    found = json.loads((output / "nonfinite.json").read_text())
    assert (found["step"], found["last_good_checkpoint"]) == (3, str(last))
    assert len(set(found["examples"])) == 8
    assert set(found["examples"]) <= pairs(beir_folder)
    assert sum(example in message for example in found["examples"]) == 5
    assert all(weight.isfinite().all() for weight in load_file(last / "model.safetensors").values())
    assert not (output / "training.json").exists()


@pytest.mark.parametrize("kind", ["infonce", "cached infonce", "idro"])
def test_a_gradient_that_is_not_a_number_never_moves_the_weights(
    kind, beir_folder, two_layer_mlm, tmp_path, poison
):
    poisoned = poison(gradient=True)
    output = tmp_path / "m"
    with pytest.raises(NonFiniteTraining, match=r"step 3: .*loss is finite.*gradient"):
        finetune(str(two_layer_mlm), str(beir_folder), output=output, options=KINDS[kind])
    kept = load_file(output / checkpoints.CHECKPOINTS / "checkpoint-2" / "model.safetensors")
    now = poisoned.model.transformers_model.state_dict()
    names = {name: name.removeprefix("0.model.").removeprefix("model.") for name in kept}
    compared = [name for name, short in names.items() if short in now]
    assert len(compared) > 30
    for name in compared:
        assert torch.equal(now[names[name]], kept[name]), name
    found = json.loads((output / "nonfinite.json").read_text())
    assert found["step"] == 3
    assert len(found["examples"]) == 8


def test_without_a_checkpoint_it_says_so(beir_folder, two_layer_mlm, tmp_path, poison):
    poison(gradient=False)
    options = OPTIONS.with_overrides(save_steps=4)
    with pytest.raises(NonFiniteTraining, match="no checkpoint"):
        finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path, options=options)
    found = json.loads((tmp_path / "nonfinite.json").read_text())
    assert found["last_good_checkpoint"] is None


def test_an_absurd_learning_rate_names_no_checkpoint_that_is_not_finite(
    beir_folder, two_layer_mlm, tmp_path
):
    """The step before had a finite loss and gradient, but its weights were overflowing when it was
    saved.
    """
    options = OPTIONS.with_overrides(learning_rate=1e36, warmup=0.0)
    with pytest.raises(NonFiniteTraining) as stopped:
        finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path, options=options)
    found = json.loads((tmp_path / "nonfinite.json").read_text())
    assert str(stopped.value).startswith(f"step {found['step']}: the ")
    named = found["last_good_checkpoint"]
    if named is not None and named != "None":
        weights = load_file(Path(named) / "model.safetensors")
        assert all(weight.isfinite().all() for weight in weights.values())


def test_pretraining_is_guarded_too(beir_folder, two_layer_mlm, tmp_path):
    options = PretrainOptions(
        max_steps=6, batch_size=8, learning_rate=1e36, span_tokens=12, save_steps=1
    )
    with pytest.raises(NonFiniteTraining, match=r"^step \d: "):
        pretrain(str(two_layer_mlm), [str(beir_folder)], output=tmp_path, options=options)
    assert json.loads((tmp_path / "nonfinite.json").read_text())["step"] < 6


@pytest.mark.parametrize("save_steps", [1, 4])
@pytest.mark.parametrize("weighting", ["erm", "idro"])
def test_on_the_command_line_it_is_status_2_and_one_line(
    capsys, beir_folder, two_layer_mlm, tmp_path, poison, weighting, save_steps
):
    """A line of its own, and the last: the progress bar stands neither before nor after it."""
    poison(gradient=False)
    arguments = {
        "--dataset": beir_folder,
        "--model": two_layer_mlm,
        "--output": tmp_path / "m",
        "--weighting": weighting,
        "--clusters": 3,
        "--max-steps": 5,
        "--batch-size": 8,
        "--set": f"save_steps={save_steps}",
    }
    with pytest.raises(SystemExit) as status:
        main(["finetune", *(str(part) for pair in arguments.items() for part in pair)])
    assert status.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert captured.err.splitlines()[-1] == lines[0]
    assert lines[0].startswith("error: step 3: the loss is nan, for the batch (")
    assert ("checkpoint-2" in lines[0]) is (save_steps == 1)
    assert "Traceback" not in captured.err


class TestGuard:
    """The checks themselves."""

    @pytest.fixture
    def guard(self, tmp_path):
        guard = FiniteGuard(tmp_path, lambda: None, lambda rows: [f"row {row}" for row in rows])
        guard.rows = [4, 2]
        return guard

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_losses(self, guard, bad):
        guard.check_loss(torch.tensor(3.4e38))
        guard.check_loss(torch.tensor([1.0, 2.0]))
        for loss in (torch.tensor(bad), torch.tensor([1.0, bad])):
            with pytest.raises(NonFiniteTraining, match="row 4, row 2 "):
                guard.check_loss(loss)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_gradients(self, guard, bad):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        guard.on_pre_optimizer_step(None, None, None, model=model)  # no gradients at all
        model(torch.ones(1, 2)).sum().backward()
        guard.on_pre_optimizer_step(None, None, None, model=model)
        model[1].bias.grad[1] = bad
        guard.scaled = True  # float16's scaler looks for itself
        guard.on_pre_optimizer_step(None, None, None, model=model)
        guard.scaled = False
        with pytest.raises(NonFiniteTraining, match="gradient"):
            guard.on_pre_optimizer_step(None, None, None, model=model)

    def test_without_names_the_message_is_still_a_sentence(self, tmp_path):
        guard = FiniteGuard(tmp_path, lambda: tmp_path / "checkpoint-7", None)
        with pytest.raises(NonFiniteTraining) as stopped:
            guard.check_loss(torch.tensor(float("nan")))
        assert "  " not in str(stopped.value)
        assert "batch (all" not in str(stopped.value)


def test_a_data_set_is_named_without_pickling_the_model_and_the_corpus_behind_it():
    pickled = []

    class Views:
        def __reduce__(self):
            pickled.append(self)
            return str, ("views",)

        def draw(self, rows):
            return {"text": [f"text {row}" for row in rows["row"]]}

    first, second = (drawn_dataset("row", np.array([3, 4]), Views().draw) for _ in range(2))
    assert first[1] == {"text": "text 4"}
    assert first[:] == {"text": ["text 3", "text 4"]}
    assert not pickled
    assert first._fingerprint != second._fingerprint
