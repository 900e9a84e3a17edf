"""Weighted clusters go on after an interruption as if there had been none."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import exit_code, process
from interrupted import copied_at_steps
from safetensors.torch import load_file

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.io import file_sha256
from beir_cocodr.losses.dro import CVaRLoss, IDROLoss
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.training import checkpoints
from beir_cocodr.training import trainer as run
from beir_cocodr.training.checkpoints import LossState
from beir_cocodr.training.finetuning import finetune as finetuning
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.finetuning.query_clusters import (
    CENTROIDS_FILE,
    CLUSTER_LOG,
    CLUSTERS_FILE,
    ClusterLog,
)
from beir_cocodr.training.options import FinetuneOptions

# Lines of the log at steps 4, 8 and 9, checkpoints at 3, 6 and 9: sums of the log have to survive
# as well.
SETTINGS = {
    "max_steps": 9,
    "batch_size": 6,
    "learning_rate": 1e-3,
    "clusters": 3,
    "min_cluster_size": 1,
    "log_clusters": 4,
    "save_steps": 3,
}
WEIGHTINGS = {
    "idro": {"weighting": "idro", "rho": 1.0},
    "idro paper": {"weighting": "idro", "rho": 1.0, "idro_mode": "paper", "tau": 1e4},
    "idro in batch": {"weighting": "idro", "rho": 1.0, "loss": "infonce"},
    "groupdro": {"weighting": "groupdro", "eta": 0.3},
    "cvar": {"weighting": "cvar"},
}


def assert_same_model(one: Path, other: Path) -> None:
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert torch.equal(second[name], weight), name


def assert_same_clusters(one: Path, other: Path) -> None:
    for name in (CLUSTER_LOG, CLUSTERS_FILE, CENTROIDS_FILE):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / CLUSTER_LOG).read_text().splitlines()]


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A folder for trainings that several tests begin with."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def begin(kept, beir_folder, two_layer_mlm, tmp_path):
    """Return a function that copies a whole training, and what a kill at step 8 leaves of it."""

    def copied(options: FinetuneOptions, kind: str) -> tuple[Path, Path]:
        trained = kept / kind
        if not trained.exists():
            model, data = str(two_layer_mlm), str(beir_folder)
            with copied_at_steps(trained / "whole", {8: trained / "half"}):
                finetune(model, data, output=trained / "whole", options=options)
        shutil.copytree(trained, tmp_path / "copy")
        return tmp_path / "copy" / "whole", tmp_path / "copy" / "half"

    return copied


@pytest.mark.parametrize("kind", WEIGHTINGS)
def test_resumed_equals_uninterrupted(kind, beir_folder, two_layer_mlm, begin):
    options = FinetuneOptions.of(**SETTINGS | WEIGHTINGS[kind])
    whole, half = begin(options, kind)
    assert [line["step"] for line in log_of(half)] == [4, 8]  # 8 comes again
    with (half / CLUSTER_LOG).open("a") as file:
        file.write('{"step": 9, "weigh')  # it died while it wrote
    record = finetune(
        str(two_layer_mlm), str(beir_folder), output=half, options=options, resume=True
    )
    assert record.resumed_from == "checkpoint-6"
    assert_same_model(whole, half)
    assert_same_clusters(whole, half)
    lines = log_of(whole)
    assert [line["step"] for line in lines] == [4, 8, 9]
    assert [sum(line["examples"]) for line in lines] == [24, 24, 6]
    assert len({tuple(line["weights"]) for line in lines}) == 3


def test_a_checkpoint_without_its_cluster_weights_is_not_taken(beir_folder, two_layer_mlm, begin):
    options = FinetuneOptions.of(**SETTINGS | WEIGHTINGS["idro"])
    whole, half = begin(options, "idro")
    (half / checkpoints.CHECKPOINTS / "checkpoint-6" / checkpoints.LOSS_FILE).unlink()
    record = finetune(
        str(two_layer_mlm), str(beir_folder), output=half, options=options, resume=True
    )
    assert record.resumed_from == "checkpoint-3"
    assert_same_model(whole, half)
    assert_same_clusters(whole, half)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-5],
        lambda content: content[:-2] + (b"0" if content[-2:] != b"0\n" else b"1") + b"\n",
        lambda content: content.replace(b"\t", b" "),
    ],
)
def test_damaged_clusters_are_made_again(damage, beir_folder, two_layer_mlm, begin, caplog):
    options = FinetuneOptions.of(**SETTINGS | WEIGHTINGS["idro"])
    whole, half = begin(options, "idro")
    content = (half / CLUSTERS_FILE).read_bytes()
    (half / CLUSTERS_FILE).write_bytes(damage(content))
    finetune(str(two_layer_mlm), str(beir_folder), output=half, options=options, resume=True)
    assert f"{half / CLUSTERS_FILE} was changed" in caplog.text
    assert_same_model(whole, half)
    assert_same_clusters(whole, half)


def test_what_it_resumes_from_matters(beir_folder, two_layer_mlm, begin):
    """The comparisons above would see it if the weights of clusters were lost."""
    options = FinetuneOptions.of(**SETTINGS | WEIGHTINGS["groupdro"])
    whole, half = begin(options, "groupdro")
    from safetensors.torch import save_file

    file = half / checkpoints.CHECKPOINTS / "checkpoint-6" / checkpoints.LOSS_FILE
    state = load_file(file)
    assert set(state) == {"weights", "loss_sums", "steps_seen", "examples_seen"}
    save_file(state | {"weights": torch.full_like(state["weights"], 1 / 3)}, file)
    seal = file.parent / checkpoints.SEAL_FILE  # which would tell that the file is another
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {file.name: file_sha256(file)}))
    finetune(str(two_layer_mlm), str(beir_folder), output=half, options=options, resume=True)
    assert log_of(whole)[-1]["weights"] != log_of(half)[-1]["weights"]
    with pytest.raises(AssertionError):
        assert_same_model(whole, half)


def _command(threads: int, arguments: list[str]) -> None:
    torch.set_num_threads(threads)
    main(arguments)


def test_killed_for_real(beir_folder, two_layer_mlm, tmp_path):
    """The command line, SIGKILL while it trains, and again with --resume."""
    half = tmp_path / "half"
    arguments = [
        "finetune",
        "--dataset",
        str(beir_folder),
        "--model",
        str(two_layer_mlm),
        "--output",
        str(half),
    ]
    arguments += [
        "--weighting",
        "idro",
        "--clusters",
        "3",
        "--max-steps",
        "20",
        "--batch-size",
        "6",
    ]
    arguments += ["--learning-rate", "1e-3", "--set", "log_clusters=5"]
    training = process(_command, torch.get_num_threads(), arguments)
    deadline = time.monotonic() + 120
    while not (half / checkpoints.CHECKPOINTS / "checkpoint-6" / checkpoints.SEAL_FILE).is_file():
        assert training.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    training.kill()
    training.join()
    assert training.exitcode == -signal.SIGKILL
    assert not (half / "training.json").exists()
    assert exit_code(_command, torch.get_num_threads(), [*arguments, "--resume"]) == 0
    record = json.loads((half / "training.json").read_text())
    assert record["steps"] == 20
    assert int(record["resumed_from"].split("-")[1]) >= 6
    options = FinetuneOptions.of(
        weighting="idro", clusters=3, max_steps=20, batch_size=6, learning_rate=1e-3, log_clusters=5
    )
    whole = tmp_path / "whole"
    finetune(str(two_layer_mlm), str(beir_folder), output=whole, options=options)
    assert_same_model(whole, half)
    assert_same_clusters(whole, half)
    assert not (half / checkpoints.CHECKPOINTS).exists()


@pytest.mark.parametrize("episodes", [0, 1])
def test_every_pair_is_trained_in_the_cluster_of_its_own_query(
    episodes, beir_folder, two_layer_mlm, tmp_path, monkeypatch
):
    """The centroid that is nearest to the query, as the model that begins embeds it; mined
    embeddings are no others.
    """
    seen = []

    def spy(stage, *arguments):
        rows = [stage.dataset[place] for place in range(len(stage.dataset))]
        own = [int(stage.loss.clusters[row["label"]]) for row in rows]
        embeddings = COCODR(stage.plan.base).encode_query([row["query"] for row in rows])
        seen.append((own, embeddings, np.load(arguments[1] / CENTROIDS_FILE)))
        return run.run_stage(stage, *arguments)

    monkeypatch.setattr(finetuning, "run_stage", spy)
    options = FinetuneOptions.of(
        **SETTINGS
        | WEIGHTINGS["idro"]
        | {"max_steps": 2, "episodes": episodes, "mining_keep": 5, "clusters": 5}
    )
    finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    assert len(seen) == episodes + 1
    for own, embeddings, centroids in seen:
        nearest = ((embeddings[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        assert own == nearest.tolist()
        assert len(set(own)) == 5


class Arguments:
    def __init__(self, folder: Path) -> None:
        self.output_dir = str(folder)


class State:
    def __init__(self, step: int, most: int = 100) -> None:
        self.global_step, self.max_steps = step, most


@pytest.mark.parametrize("kind", [IDROLoss, CVaRLoss])
def test_the_state_of_a_loss_is_all_it_knows(kind, two_layer_bert, tmp_path):
    first, second = (
        kind(COCODR(str(two_layer_bert)), 3, clusters=torch.arange(3)) for _ in range(2)
    )
    own = [name for name in first.state_dict() if not name.startswith("model.")]
    assert {"weights", "loss_sums", "steps_seen", "examples_seen"} <= set(own)
    for i, name in enumerate(own):
        first.state_dict()[name].copy_(torch.arange(3) + i)
    (tmp_path / "checkpoint-7").mkdir()
    LossState(first, None).on_save(Arguments(tmp_path), State(7), None)
    LossState(second, tmp_path / "checkpoint-7").on_train_begin(Arguments(tmp_path), State(7), None)
    for name in own:
        assert torch.equal(second.state_dict()[name], first.state_dict()[name]), name
    assert [path.name for path in (tmp_path / "checkpoint-7").iterdir()] == [checkpoints.LOSS_FILE]


def test_each_process_keeps_a_state_of_its_own_if_the_weights_are_its_own(
    two_layer_bert, tmp_path, monkeypatch
):
    checkpoint = tmp_path / "checkpoint-7"
    checkpoint.mkdir()
    for number in (0, 1):
        monkeypatch.setattr(checkpoints, "rank", lambda number=number: number)
        loss = IDROLoss(COCODR(str(two_layer_bert)), 3, scope="rank")
        loss.weights.fill_(number + 2)
        LossState(loss, None).on_save(Arguments(tmp_path), State(7), None)
    for number in (0, 1):
        monkeypatch.setattr(checkpoints, "rank", lambda number=number: number)
        loss = IDROLoss(COCODR(str(two_layer_bert)), 3, scope="rank")
        LossState(loss, checkpoint).on_train_begin(Arguments(tmp_path), State(7), None)
        assert loss.weights.tolist() == [number + 2] * 3
    monkeypatch.setattr(checkpoints, "rank", lambda: 2)
    with pytest.raises(InputError, match=r"checkpoint-7.*process 2.*scope=rank"):
        LossState(loss, checkpoint).on_train_begin(Arguments(tmp_path), State(7), None)


def test_going_on_drops_lines_after_the_checkpoint_and_broken_ones(two_layer_bert, tmp_path):
    file = tmp_path / CLUSTER_LOG
    lines = [json.dumps({"step": step}) for step in (2, 4, 6)]
    file.write_text("\n".join([*lines, '{"step": 7']))
    ClusterLog(CVaRLoss(COCODR(str(two_layer_bert)), 3), file, 2).on_train_begin(
        None, State(4), None
    )
    assert file.read_text().splitlines() == lines[:2]


@pytest.mark.parametrize("damaged", [b'{"step": "2"}', b'{"steps": 2}', b"[2]", b"2", b"\xff"])
def test_a_damaged_line_of_the_log_is_left_out_and_named(damaged, two_layer_bert, tmp_path, caplog):
    file = tmp_path / CLUSTER_LOG
    file.write_bytes(damaged + b'\n{"step": 4}\n')
    ClusterLog(CVaRLoss(COCODR(str(two_layer_bert)), 3), file, 2).on_train_begin(
        None, State(4), None
    )
    assert file.read_text() == '{"step": 4}\n'
    assert f"{file}: damaged lines were left out" in caplog.text


def test_the_log_holds_means_since_its_last_line(two_layer_bert, tmp_path):
    loss = CVaRLoss(COCODR(str(two_layer_bert)), 3)
    log = ClusterLog(loss, tmp_path / CLUSTER_LOG, 2)
    log.on_train_begin(None, State(0), None)
    for step, (sums, seen, examples) in enumerate([((1, 0, 4), (1, 0, 1), (2, 0, 1))] * 3, 1):
        loss.loss_sums += torch.tensor(sums)
        loss.steps_seen += torch.tensor(seen)
        loss.examples_seen += torch.tensor(examples)
        log.on_step_end(None, State(step, 3), None)
    first, last = log_of(tmp_path)
    assert (first["step"], first["losses"], first["examples"]) == (2, [1, None, 4], [4, 0, 2])
    assert (last["step"], last["losses"], last["examples"]) == (3, [1, None, 4], [2, 0, 1])
    assert first["weights"] == [1, 1, 1]
