"""ANCE episodes on a tiny BERT: BM25, then the model's own negatives and clusters."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from beir_cocodr import COCODR
from beir_cocodr.errors import InputError
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions

SMALL = FinetuneOptions.of(
    max_steps=3,
    batch_size=6,
    learning_rate=1e-3,
    weighting="idro",
    clusters=3,
    episodes=2,
    mining_depth=20,
    mining_keep=5,
    save_steps=2,
)


@pytest.fixture(scope="module")
def whole(beir_folder, two_layer_mlm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes") / "whole"
    record = finetune(
        str(two_layer_mlm),
        str(beir_folder),
        output=folder,
        options=SMALL.with_overrides(targets=[str(beir_folder)]),
    )
    return folder, record


def test_each_episode_starts_from_the_last_and_mines_its_own(whole, beir_folder):
    folder, record = whole
    assert [found["episode"] for found in record.details["episodes"]] == [0, 1, 2]
    assert record.steps == 9
    records = [json.loads((folder / f"episodes/{i}/training.json").read_text()) for i in range(3)]
    for found, own in zip(
        record.details["episodes"], records, strict=True
    ):  # one point a step of so few
        assert found["logged_loss"] == own["logged_loss"]
        assert [step for step, _ in own["logged_loss"]] == list(range(1, own["steps"] + 1))
        assert own["training_loss"] == pytest.approx(
            sum(loss for _, loss in own["logged_loss"]) / own["steps"]
        )
    assert records[0]["mining"] is None
    assert all(found["mining"]["candidates"] > 0 for found in records[1:])
    assert records[2]["parent"]["base_sha256"] == records[1]["base_sha256"]
    assert len({found["base_sha256"] for found in records}) == 3
    clusters = [(folder / f"episodes/{i}/clusters.tsv").read_text() for i in range(3)]
    assert len(set(clusters)) > 1  # the queries are clustered anew
    last, copied = (
        load_file(path / "model.safetensors") for path in (folder / "episodes/2", folder)
    )
    assert all(np.array_equal(last[name], copied[name]) for name in last)
    assert COCODR(str(folder)).encode_query(["wing"]).shape == (1, 32)


def test_every_episode_is_measured_on_every_target(whole, beir_folder):
    folder, record = whole
    points = json.loads((folder / "curves.json").read_text())
    assert [point["model"] for point in points] == ["base", "episode 0", "episode 1", "episode 2"]
    assert all(
        point["dataset"] == str(beir_folder) and 0 <= point["nDCG@10"] <= 1 for point in points
    )
    assert record.details["curves"] == points


def test_what_a_run_left_that_was_killed_after_it_measured_a_target_is_removed(
    beir_folder, two_layer_mlm, tmp_path, dies_at
):
    output = tmp_path / "m"
    options = SMALL.with_overrides(targets=[str(beir_folder)], max_steps=1, episodes=1)
    with dies_at(1, lambda stage: stage.plan.episode == 0):
        finetune(str(two_layer_mlm), str(beir_folder), output=output, options=options)
    measured = next((output / "curves" / "base").iterdir())
    (measured / ".lock").touch()
    (measured / ".unfinished-0").mkdir()
    finetune(str(two_layer_mlm), str(beir_folder), output=output, options=options, resume=True)
    assert not list(output.rglob(".lock")) + list(output.rglob(".unfinished-*"))


@pytest.mark.parametrize("episode", [0, 2])
def test_a_killed_episode_goes_on_to_the_same_weights(
    episode, whole, beir_folder, two_layer_mlm, tmp_path, dies_at
):
    with dies_at(3, lambda stage: stage.plan.episode == episode):
        finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=SMALL)
    record = finetune(
        str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=SMALL, resume=True
    )
    assert record.steps == 9
    first, second = (load_file(path / "model.safetensors") for path in (whole[0], tmp_path / "m"))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_targets_without_episodes_and_episodes_without_negatives_are_refused(
    beir_folder, two_layer_mlm, tmp_path
):
    with pytest.raises(InputError, match="episodes"):
        finetune(
            str(two_layer_mlm),
            str(beir_folder),
            output=tmp_path / "m",
            options=SMALL.with_overrides(episodes=0).with_overrides(targets=[str(beir_folder)]),
        )
    with pytest.raises(InputError, match="hard negatives"):
        SMALL.with_overrides(negatives=0)


def test_more_clusters_than_queries_leaves_nothing_behind(beir_folder, two_layer_mlm, tmp_path):
    options = SMALL.with_overrides(clusters=17, episodes=0)
    with pytest.raises(InputError, match=rf"{beir_folder}: 17 clusters for 16 .*--clusters"):
        finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    assert not list((tmp_path / "m").iterdir())
    assert finetune(
        str(two_layer_mlm),
        str(beir_folder),
        output=tmp_path / "m",
        options=options.with_overrides(clusters=3),
    )
