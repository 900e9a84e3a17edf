"""A distillation that is killed resumes to the weights that it would have had, or is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import exit_code
from safetensors.torch import load_file

from beir_cocodr.errors import InputError
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.distillation.distill_rounds import Rounds
from beir_cocodr.training.options import DistillOptions

# So high a rate that the second round is the best: what comes last is not what is kept.
OPTIONS = DistillOptions.of(
    **{"max_steps": 6, "batch_size": 4, "learning_rate": 0.3, "warmup": 0.1},
    **{
        "refresh_steps": 3,
        "held_out": 0.25,
        "candidates": 10,
        "m_bm25": 2,
        "m_hard": 2,
        "positives": 2,
    },
    save_steps=2,
    seed=0,
)
STOPPED = OPTIONS.with_overrides(
    max_steps=60, refresh_steps=2, patience=1, save_steps=1, learning_rate=1.0, seed=42
)


def _die(
    data: Path,
    model: Path,
    output: Path,
    options: DistillOptions,
    method: str,
    times: int,
    teacher: str,
) -> None:
    """A distillation that kills itself when it comes to a method of Rounds for the n-th time."""
    original, left = getattr(Rounds, method), [times]

    def dies(*args, **settings):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **settings)

    setattr(Rounds, method, dies)
    distill(str(model), str(data), teacher=teacher, output=output, options=options)


def killed(
    data: Path,
    model: Path,
    output: Path,
    options: DistillOptions,
    method: str,
    times: int,
    teacher: str = "bm25",
) -> None:
    status = exit_code(_die, data, model, output, options, method, times, teacher)
    assert status == -signal.SIGKILL
    assert not (output / "training.json").exists()


PLANS = {"usual": OPTIONS, "stopped": STOPPED}


@pytest.fixture(scope="module")
def uninterrupted(beir_folder, tiny_mlm, tmp_path_factory):
    """The folder and the record of a distillation of each plan that nothing interrupted."""
    root = tmp_path_factory.mktemp("uninterrupted")
    return {
        plan: (
            root / plan,
            distill(
                str(tiny_mlm),
                str(beir_folder),
                teacher="bm25",
                output=root / plan,
                options=options,
            ),
        )
        for plan, options in PLANS.items()
    }


@pytest.mark.parametrize(
    ("plan", "method", "times"),
    [
        ("usual", "on_train_end", 1),  # before the final search, after the last checkpoint
        ("usual", "_search", 3),  # in it
        ("usual", "_restore_best_round", 1),  # after it
        ("usual", "_draw", 2),  # after the search of the second round
        ("stopped", "finish", 1),  # after training stopped early, with checkpoints behind the stop
    ],
)
def test_killed_near_its_end_it_keeps_the_best_weights(
    plan, method, times, uninterrupted, beir_folder, tiny_mlm, tmp_path
):
    folder, whole = uninterrupted[plan]
    options = PLANS[plan]
    measured = whole.details["held_out_mrr"]
    assert np.argmax(measured) < len(measured) - 1  # else there is nothing to tell apart
    killed(beir_folder, tiny_mlm, tmp_path / "m", options, method, times)
    resumed = distill(
        str(tiny_mlm),
        str(beir_folder),
        teacher="bm25",
        output=tmp_path / "m",
        options=options,
        resume=True,
    )
    assert {name: resumed.details[name] for name in ("held_out_mrr", "lists")} == {
        name: whole.details[name] for name in ("held_out_mrr", "lists")
    }
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "m"))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not list((tmp_path / "m").glob(".*"))


@pytest.fixture(scope="module")
def interrupted_once(beir_folder, tiny_mlm, tmp_path_factory) -> Path:
    """A folder with a table of scores, and in `m` a distillation of it killed in step 5."""
    folder = tmp_path_factory.mktemp("interrupted")
    table = folder / "scores.tsv"
    queries = [
        json.loads(line)["_id"] for line in (beir_folder / "queries.jsonl").read_text().splitlines()
    ]
    table.write_text(
        "".join(f"{q}\td{d}\t{(7 * d + len(q)) % 11}\n" for q in queries for d in range(48))
    )
    killed(beir_folder, tiny_mlm, folder / "m", OPTIONS, "on_step_end", 5, str(table))
    return folder


@pytest.fixture
def interrupted(interrupted_once, tmp_path) -> Path:
    """The killed distillation, copied together with its table."""
    shutil.copytree(interrupted_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "m"


def test_another_teacher_is_refused_and_a_moved_one_is_not(
    interrupted, beir_folder, tiny_mlm, tmp_path
):
    table, moved = tmp_path / "scores.tsv", tmp_path / "moved.tsv"
    for teacher in ("bm25", "hybrid"):
        with pytest.raises(InputError, match=r"other .*teacher"):
            distill(
                str(tiny_mlm),
                str(beir_folder),
                teacher=teacher,
                output=interrupted,
                options=OPTIONS,
                resume=True,
            )
    table.rename(moved)
    content = moved.read_text()
    moved.write_text(content.replace("\t5\n", "\t6\n"))
    with pytest.raises(InputError, match=r"other .*teacher"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher=str(moved),
            output=interrupted,
            options=OPTIONS,
            resume=True,
        )
    moved.write_text(content)
    assert (
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher=str(moved),
            output=interrupted,
            options=OPTIONS,
            resume=True,
        ).steps
        == 6
    )
    with pytest.raises(InputError, match=r"other .*teacher"):  # a finished one, too
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher="bm25",
            output=interrupted,
            options=OPTIONS,
            resume=True,
        )


@pytest.mark.parametrize("file", ["rounds/0/round.json", "rounds/1/lists.npy"])
def test_a_damaged_round_is_one_line(file, interrupted, beir_folder, tiny_mlm, tmp_path):
    damaged = interrupted / "checkpoints" / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content[:-4])
    with pytest.raises(InputError, match=f"{damaged.name} is damaged"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher=str(tmp_path / "scores.tsv"),
            output=interrupted,
            options=OPTIONS,
            resume=True,
        )


def test_damaged_best_weights_are_one_line(interrupted, beir_folder, tiny_mlm, tmp_path):
    best = interrupted / "checkpoints" / "rounds" / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-1] ^= 1
    best.write_bytes(content)
    with pytest.raises(InputError, match=r"best.safetensors is damaged"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher=str(tmp_path / "scores.tsv"),
            output=interrupted,
            options=OPTIONS,
            resume=True,
        )


def test_damaged_scores_are_asked_for_again(interrupted, beir_folder, tiny_mlm, tmp_path, caplog):
    files = sorted((interrupted / "checkpoints" / "teacher").glob("*.npy"))
    content = bytearray(files[0].read_bytes())
    content[-1] ^= 1
    files[0].write_bytes(content)
    table = str(tmp_path / "scores.tsv")
    resumed = distill(
        str(tiny_mlm),
        str(beir_folder),
        teacher=table,
        output=interrupted,
        options=OPTIONS,
        resume=True,
    )
    whole = distill(
        str(tiny_mlm), str(beir_folder), teacher=table, output=tmp_path / "whole", options=OPTIONS
    )
    assert "computed again" in caplog.text
    assert resumed.details["held_out_mrr"] == whole.details["held_out_mrr"]
