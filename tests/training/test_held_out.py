"""Held-out queries choose a checkpoint: their draw, MRR@10 by another way, the weights put back,
resume.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from interrupted import copied_at_steps
from safetensors.torch import load_file

from beir_cocodr import COCODR, load_collection, load_encoder
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.held_out import (
    CANDIDATES,
    CheckpointSelection,
    hold_out,
    selecting_collection,
)
from beir_cocodr.training.options import DistillOptions, FinetuneOptions

# A rate that is far too high: what is learned at first is soon lost.
OPTIONS = FinetuneOptions(
    max_steps=6,
    batch_size=4,
    learning_rate=2e-2,
    warmup=0,
    held_out=0.25,
    select_epochs=0.5,
    save_steps=2,
    negatives=1,
)
# Before the first checkpoint, and between others.
KILLS = (1, 3, 5)


def reciprocal_rank(model: str, dataset: Path, options, work: Path) -> float:
    """MRR@10 of a saved model on the held-out queries, from a search of the whole corpus."""
    collection = load_collection(dataset, "train")
    selecting = selecting_collection(collection, options)
    _, held = hold_out(collection, selecting, options, options.seed)
    documents = held.documents
    every = (
        Dense(load_encoder(model), documents, work)
        .search(held.queries, len(documents))
        .results(documents)
    )
    bm25 = BM25(documents).search(held.queries, CANDIDATES).results(documents)
    run = {}
    for query, found in every.items():
        candidates = {name for name, _ in bm25[query]} | {
            name for name, grade in held.qrels[query].items() if grade
        }
        run[query] = {name: score for name, score in found if name in candidates}
    return ir_measures.calc_aggregate([ir_measures.RR @ 10], held.qrels, run)[ir_measures.RR @ 10]


def test_the_share_is_drawn_by_the_seed_and_parted_from_the_rest(beir_folder, caplog):
    collection = load_collection(beir_folder, "train")
    rest, held = hold_out(collection, None, OPTIONS, 1)
    assert set(rest.queries) | set(held.queries) == set(collection.queries)
    assert not set(rest.queries) & set(held.queries)
    assert rest.qrels == {query: collection.qrels[query] for query in rest.queries}
    assert len(held.queries) == 4
    assert hold_out(collection, None, OPTIONS, 1)[1].queries == held.queries
    assert hold_out(collection, None, OPTIONS, 2)[1].queries != held.queries
    assert (
        len(hold_out(collection, None, OPTIONS.with_overrides(most_held_out=1), 1)[1].queries) == 1
    )
    assert hold_out(collection, None, OPTIONS.with_overrides(held_out=0.0), 1) == (collection, None)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert hold_out(collection, None, OPTIONS.with_overrides(held_out=0.01), 1) == (
            collection,
            None,
        )
    assert "held_out 0.01 of 16 queries is less than one query" in caplog.text


def test_what_is_held_out_is_not_trained_on_in_another_spelling(beir_folder, caplog):
    collection = load_collection(beir_folder, "train")
    twins = {f"again-{id}": f" {text.upper()} ?" for id, text in collection.queries.items()}
    qrels = {f"again-{id}": grades for id, grades in collection.qrels.items()}
    twice = replace(collection, queries=collection.queries | twins, qrels=collection.qrels | qrels)
    with caplog.at_level(logging.INFO):
        rest, held = hold_out(twice, None, OPTIONS, 1)
    held_words = [text.casefold().strip(" ?") for text in held.queries.values()]
    trained_words = {text.casefold().strip(" ?") for text in rest.queries.values()}
    assert len(held_words) == len(set(held_words)) == 8
    assert trained_words.isdisjoint(held_words)
    assert len(rest.queries) + 2 * len(held.queries) == len(twice.queries)
    assert "8 queries have the text of a held-out one" in caplog.text


@pytest.fixture(scope="module")
def whole(beir_folder, tiny_mlm, tmp_path_factory):
    """A whole training, and beside it what a kill at some steps leaves of it."""
    folder = tmp_path_factory.mktemp("held-out") / "m"
    with copied_at_steps(folder, {step: killed_at(step, folder) for step in KILLS}):
        record = finetune(str(tiny_mlm), str(beir_folder), output=folder, options=OPTIONS)
    return folder, record


def killed_at(step: int, folder: Path) -> Path:
    return folder.with_name(f"killed-{step}")


def test_the_best_checkpoint_is_kept_and_all_values_are_recorded(whole, beir_folder, tmp_path):
    folder, record = whole
    found = json.loads((folder / "training.json").read_text())["selection"]
    assert found == record.details["selection"]
    assert (found["measure"], found["queries"], found["candidates"]) == ("RR@10", 4, 100)
    # Twelve queries are left, with one or two documents each: half an epoch is two steps.
    assert found["steps"] == [2, 4, 6]
    assert found["best"] == found["steps"][int(np.argmax(found["values"]))]
    assert found["values"][-1] < max(found["values"])
    assert reciprocal_rank(str(folder), beir_folder, OPTIONS, tmp_path) == pytest.approx(
        max(found["values"])
    )
    rest, _ = hold_out(load_collection(beir_folder, "train"), None, OPTIONS, OPTIONS.seed)
    assert record.details["pairs"] == sum(
        grade > 0 for grades in rest.qrels.values() for grade in grades.values()
    )
    assert record.steps == 6


@pytest.mark.parametrize("most", [1, 45, 20_000])
def test_a_candidate_of_several_queries_is_encoded_once(
    most, beir_folder, tiny_bert, tmp_path, monkeypatch
):
    """However the queries are divided into blocks, they get the same ranks."""
    monkeypatch.setattr("beir_cocodr.training.held_out._MOST_VECTORS", most)
    encoded: list[int] = []

    class Counting(COCODR):
        def encode_document(self, inputs, *arguments, **options):
            encoded.append(len(inputs))
            return super().encode_document(inputs, *arguments, **options)

    model = Counting(str(tiny_bert), device="cpu")
    held = load_collection(beir_folder, "train")
    selection = CheckpointSelection(
        held=held,
        model=model,
        text_format=model.text_format,
        options=OPTIONS,
        output=tmp_path,
        examples=1,
    )
    queries = list(selection.candidates)
    one_by_one = [rank for query in queries for rank in selection.reciprocal_ranks([query])]
    encoded.clear()
    assert selection.reciprocal_ranks(queries) == one_by_one
    every = np.concatenate([selection.candidates[query] for query in queries])
    if most == 20_000:
        assert encoded == [len(np.unique(every))]
        assert len(every) > 2 * sum(encoded)
    if most == 1:
        assert encoded == [len(selection.candidates[query]) for query in queries]


@pytest.mark.parametrize("step", KILLS)
def test_a_run_that_was_killed_selects_the_same_weights(
    step, whole, beir_folder, tiny_mlm, tmp_path
):
    folder, record = whole
    shutil.copytree(killed_at(step, folder), tmp_path / "m")
    again = finetune(
        str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=OPTIONS, resume=True
    )
    assert again.details["selection"] == record.details["selection"]
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "m"))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_weights_that_were_damaged_are_named(whole, beir_folder, tiny_mlm, tmp_path):
    shutil.copytree(killed_at(5, whole[0]), tmp_path / "m")
    [best] = (tmp_path / "m" / "checkpoints" / "selection").glob("best-*.safetensors")
    best.write_bytes(best.read_bytes()[:-9] + b"\0" * 9)
    with pytest.raises(InputError, match=rf"{best.name} is damaged.*another --output"):
        finetune(
            str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=OPTIONS, resume=True
        )


def test_distillation_selects_in_the_same_way_and_makes_all_steps(beir_folder, tiny_mlm, tmp_path):
    small = {
        "max_steps": 4,
        "batch_size": 4,
        "learning_rate": 1e-3,
        "warmup": 0.0,
        "refresh_steps": 2,
    }
    options = DistillOptions.of(
        **small, candidates=10, held_out=0.25, select_epochs=2 / 3, patience=1
    )
    record = distill(
        str(tiny_mlm), str(beir_folder), teacher="bm25", output=tmp_path / "m", options=options
    )
    found = record.details["selection"]
    assert (record.steps, found["steps"]) == (4, [2, 4])
    assert record.details["training_queries"] == 12
    assert reciprocal_rank(str(tmp_path / "m"), beir_folder, options, tmp_path) == pytest.approx(
        max(found["values"])
    )


def test_a_split_chooses_instead_and_is_recorded_as_seen(beir_folder, tiny_mlm, tmp_path):
    options = OPTIONS.with_overrides(held_out=0.0, select_split="test")
    record = finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    chosen, train = (load_collection(beir_folder, split) for split in ("test", "train"))
    found = record.details["selection"]
    assert (
        found["queries"]
        == len(hold_out(train, chosen, options, 0)[1].queries)
        == len(chosen.queries)
    )
    assert record.details["pairs"] == sum(
        grade > 0 for grades in train.qrels.values() for grade in grades.values()
    )
    assert [seen.split for seen in record.seen] == ["train", "test"]
    assert reciprocal_rank(str(tmp_path / "m"), beir_folder, options, tmp_path) == pytest.approx(
        max(found["values"])
    )


@pytest.mark.parametrize(
    ("split", "words"), [("train", "is the split that is trained on"), ("dev", "dev")]
)
def test_a_split_that_cannot_choose_is_named(split, words, beir_folder, tiny_mlm, tmp_path):
    with pytest.raises(InputError, match=words):
        finetune(
            str(tiny_mlm),
            str(beir_folder),
            output=tmp_path / "m",
            options=OPTIONS.with_overrides(select_split=split),
        )
    assert not (tmp_path / "m").exists()


def test_a_split_chooses_in_a_distillation_every_few_epochs(beir_folder, tiny_mlm, tmp_path):
    with pytest.raises(InputError, match="select_epochs"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher="bm25",
            output=tmp_path / "m",
            options=DistillOptions(select_split="test"),
        )


def test_of_episodes_all_hold_out_the_same_queries(beir_folder, tiny_mlm, tmp_path):
    options = OPTIONS.with_overrides(episodes=1, max_steps=2, learning_rate=1e-3)
    record = finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    first, second = record.details["episodes"]
    assert first["pairs"] == second["pairs"]
    assert second["selection"]["best"] == 2
