"""Episodes as COCO-DR's released commands have them: a warm-up of its own, and decaying peaks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.training.batches import ConsecutiveBatches
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.finetuning.rounds import rounds_of
from beir_cocodr.training.options import FinetuneOptions

EPISODES = {
    "weighting": "idro",
    "clusters": 3,
    "episodes": 3,
    "max_steps": 100,
    "learning_rate": 4e-4,
    "batch_size": 6,
    "bm25_plain": True,
    "bm25_learning_rate": 1e-3,
    "bm25_batch_size": 12,
    "bm25_max_steps": 2,
    "bm25_warmup": 0.0,
    "peak_steps": 200,
}


def test_the_warm_up_has_its_own_budget_and_peaks_decay_to_a_fifth(tmp_path):
    options = FinetuneOptions.of(**EPISODES)
    warm_up, *episodes = [round_.options for round_ in rounds_of("m", tmp_path, options)]
    assert (warm_up.weighting, warm_up.loss) == ("erm", "triplet")
    assert (warm_up.learning_rate, warm_up.batch_size, warm_up.max_steps) == (1e-3, 12, 2)
    # max(0.2, 1 - steps before / 200) after 0, 100 and 200 steps
    rates = [episode.learning_rate for episode in episodes]
    assert rates == pytest.approx([4e-4, 4e-4 * 0.5, 4e-4 * 0.2])
    assert {episode.weighting for episode in episodes} == {"idro"}
    assert {episode.max_steps for episode in episodes} == {100}
    assert options.workload(1000).steps == 2 + 3 * 100


def test_decaying_peaks_need_a_number_of_steps(tmp_path):
    options = FinetuneOptions.of(**EPISODES | {"max_steps": -1})
    with pytest.raises(InputError, match=r"peak_steps.*max_steps"):
        rounds_of("m", tmp_path, options)


def test_the_released_recipe_trains(beir_folder, two_layer_mlm, tmp_path):
    settings = EPISODES | {
        "episodes": 1,
        "max_steps": 2,
        "mining_depth": 20,
        "mining_keep": 5,
        "consecutive": 3,
        "optimizer": "lamb",
        "weight_decay": 0.0,
        "mode": "published",
        "scope": "rank",
    }
    options = FinetuneOptions.of(**settings)
    record = finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    assert record.steps == 2 + 2
    own_records = []
    for episode in (0, 1):
        file = tmp_path / "m" / "episodes" / str(episode) / "training.json"
        own_records.append(json.loads(file.read_text())["options"])
    assert [own["weighting"] for own in own_records] == ["erm", "idro"]
    assert [own["batch_size"] for own in own_records] == [12, 6]
    assert {own["optimizer"] for own in own_records} == {"lamb"}


def test_triplets_of_a_pair_come_one_after_the_other_with_other_negatives(beir_folder):
    collection = load_collection(str(beir_folder), "train")
    pool = {query: np.arange(10) for query in collection.qrels}
    options = FinetuneOptions.of(loss="triplet", consecutive=3, negatives=2)
    pairs = TrainingPairs(collection, TextFormat(), options, pool)
    dataset = pairs.dataset()
    assert len(dataset) == 3 * len(pairs.positives)
    sampler = ConsecutiveBatches(dataset, 3, batch_size=6, drop_last=True, seed=1)
    batches = list(sampler)
    numbers = np.concatenate(batches).tolist()
    assert len(set(numbers)) == len(numbers) == len(dataset) // 6 * 6
    rows = dataset[batches[0]]
    assert rows["label"][0:3] == [rows["label"][0]] * 3
    assert rows["label"][3:6] == [rows["label"][3]] * 3
    assert rows["label"][0] != rows["label"][3]
    first, second, third = (pairs.rows(0, turn)[1:] for turn in range(3))
    assert len({*first, *second, *third}) == 6
    sampler.set_epoch(1)
    assert list(sampler) != batches


def test_a_query_is_not_compared_with_itself_in_a_batch():
    with pytest.raises(InputError, match=r"consecutive 6.*infonce.*triplet"):
        FinetuneOptions.of(consecutive=6)
