"""Distillation end to end on a tiny BERT: lists, teachers, rounds, early stopping, resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from interrupted import copied_at_steps
from safetensors.torch import load_file

from beir_cocodr import MRL, load_encoder
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import RM3, Hybrid
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.distillation.distill_lists import draw_easy, draw_list
from beir_cocodr.training.distillation.distill_rounds import Rounds
from beir_cocodr.training.distillation.teacher_scores import EMPTY
from beir_cocodr.training.options import DistillOptions

SMALL = DistillOptions(
    max_steps=6,
    batch_size=4,
    mini_batch_size=2,
    learning_rate=1e-3,
    warmup=0.1,
    refresh_steps=3,
    held_out=0.25,
    candidates=10,
    m_bm25=2,
    m_hard=2,
    positives=2,
    save_steps=2,
)
# Before the first checkpoint, and between others. The lists are drawn anew at step 3.
KILLS = (2, 3, 5)


@pytest.fixture(scope="module", params=["dot", "mrl"])
def whole(request, beir_folder, tiny_mlm, tmp_path_factory):
    """A whole training, and beside it what a kill at some steps leaves of it."""
    folder = tmp_path_factory.mktemp(f"distill-{request.param}") / "m"
    options = SMALL.with_overrides(student=request.param)
    with copied_at_steps(folder, {step: killed_at(step, folder) for step in KILLS}):
        record = distill(
            str(tiny_mlm), str(beir_folder), teacher="bm25", output=folder, options=options
        )
    return folder, record, options


def killed_at(step: int, folder: Path) -> Path:
    return folder.with_name(f"killed-{step}")


def test_the_student_moves_and_is_saved_as_what_it_is(whole, tiny_mlm):
    folder, record, options = whole
    assert record.steps == 6
    assert (record.details["training_queries"], record.details["held_out_queries"]) == (12, 4)
    model = load_encoder(str(folder))
    assert isinstance(model, MRL) == (options.student == "mrl")
    assert model.encode_query(["wing"]).shape == (1, 31 if options.student == "mrl" else 32)
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize("step", KILLS)
def test_killed_and_resumed_gives_the_same_weights(step, whole, beir_folder, tiny_mlm, tmp_path):
    folder, record, options = whole
    shutil.copytree(killed_at(step, folder), tmp_path / "m")
    again = distill(
        str(tiny_mlm),
        str(beir_folder),
        teacher="bm25",
        output=tmp_path / "m",
        options=options,
        resume=True,
    )
    assert again.details == record.details  # the best weights may be of an early step
    for file in folder.rglob("*.safetensors"):
        first, second = load_file(file), load_file(tmp_path / "m" / file.relative_to(folder))
        assert all(np.array_equal(first[name], second[name]) for name in first), file


@pytest.mark.parametrize("loss", ["kl", "margin_mse"])
def test_the_hosts_losses_train_too(loss, beir_folder, tiny_mlm, tmp_path):
    options = SMALL.with_overrides(loss=loss, positives=1, max_steps=2)
    assert (
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher="hybrid",
            output=tmp_path / "m",
            options=options,
        ).steps
        == 2
    )
    with pytest.raises(InputError, match=r"positives .*1"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher="bm25",
            output=tmp_path / "n",
            options=SMALL.with_overrides(loss=loss),
        )


def test_a_list_has_positives_first_and_nothing_twice():
    rng = np.random.default_rng(0)
    for trial in range(200):
        positives = rng.choice(5, size=int(rng.integers(1, 4)), replace=False)
        bm25 = 10 + rng.choice(8, size=int(rng.integers(0, 8)), replace=False)
        hard = 10 + rng.choice(8, size=int(rng.integers(0, 8)), replace=False)
        drawn = draw_list(positives, bm25, hard, SMALL, np.random.default_rng(trial))
        documents = drawn[drawn != EMPTY]
        assert len(set(documents)) == len(documents)
        assert set(drawn[:2]) - {EMPTY} <= set(positives)
        assert (drawn[:2] != EMPTY).sum() == min(2, len(positives))
        others = set(drawn[2:]) - {EMPTY}
        assert others <= set(bm25) | set(hard)
        assert len(others) == min(4, len(set(bm25) | set(hard)))


def test_training_stops_when_held_out_queries_no_longer_gain(beir_folder, tiny_mlm, tmp_path):
    options = SMALL.with_overrides(max_steps=60, refresh_steps=2, patience=1, learning_rate=1.0)
    record = distill(
        str(tiny_mlm), str(beir_folder), teacher="bm25", output=tmp_path / "m", options=options
    )
    assert record.steps < 60
    assert json.loads((tmp_path / "m" / "training.json").read_text())["options"]["patience"] == 1


def test_only_queries_that_come_up_are_searched_for(beir_folder, tiny_mlm, tmp_path, monkeypatch):
    seen, drawn = [], set()
    original = Rounds._read

    def read(rounds, number):
        found = original(rounds, number)
        names = list(rounds.task.train)
        drawn.update(names[row] for row in found.queries)
        seen.append(rounds)
        return found

    monkeypatch.setattr(Rounds, "_read", read)
    options = SMALL.with_overrides(max_steps=3, batch_size=2, refresh_steps=2, held_out=0.0)
    distill(str(tiny_mlm), str(beir_folder), teacher="bm25", output=tmp_path / "m", options=options)
    assert 2 <= len(drawn) <= 8 < len(seen[0].task.train)
    assert set(seen[0].task.bm25) == drawn


def test_more_candidates_than_documents_are_all_documents(
    beir_folder, tiny_mlm, tmp_path, monkeypatch
):
    """A place for each of a billion candidates would take gigabytes."""
    depths = []
    original = Dense.search

    def search(dense, queries, depth):
        depths.append(depth)
        return original(dense, queries, depth)

    monkeypatch.setattr(Dense, "search", search)
    options = SMALL.with_overrides(candidates=1000, max_steps=1)
    distill(str(tiny_mlm), str(beir_folder), teacher="bm25", output=tmp_path / "m", options=options)
    assert 48 < max(depths) < 2 * 48  # with the documents that are left out


def test_lists_around_fused_documents_leave_the_own_passage_out(
    beir_folder, tiny_mlm, tmp_path, monkeypatch
):
    seen = []
    original = Rounds._read
    monkeypatch.setattr(
        Rounds, "_read", lambda self, number: seen.append(self) or original(self, number)
    )
    options = SMALL.with_overrides(anchors="fused", loss="kl", max_steps=2)
    distill(
        str(tiny_mlm), str(beir_folder), teacher="hybrid", output=tmp_path / "m", options=options
    )
    rounds = seen[0]
    collection = rounds.task.collection
    dense = Dense(load_encoder(str(tiny_mlm)), collection.documents, tmp_path / "corpus")
    ranking = Hybrid(dense, BM25(collection.documents, TextFormat())).search(rounds.task.train, 48)
    for slot, number in enumerate(rounds.current.queries.tolist()):
        name = list(rounds.task.train)[number]
        grades = collection.qrels[name].items()
        own = collection.documents.rows([document for document, grade in grades if grade > 0])
        order = [
            row for row in ranking.rows[ranking.queries.index(name)].tolist() if row not in own
        ]
        documents = rounds.current.lists[slot]
        assert documents[:2].tolist() in (order[:2], order[1::-1])
        assert not set(documents.tolist()) & set(own.tolist())
        assert len(set(documents.tolist())) == options.list_size
    # A teacher that cannot search scores the lists of the best ranking without labels.
    distill(str(tiny_mlm), str(beir_folder), teacher="bm25", output=tmp_path / "n", options=options)
    ranking = RM3(dense, BM25(collection.documents, TextFormat())).search(rounds.task.train, 48)
    last = seen[-1]
    for slot, number in enumerate(last.current.queries.tolist()):
        name = list(last.task.train)[number]
        ranked = ranking.rows[ranking.queries.index(name)].tolist()
        relevant = collection.documents.rows(
            [document for document, grade in collection.qrels[name].items() if grade > 0]
        )
        order = [row for row in ranked if row not in relevant]
        assert set(last.current.lists[slot][:2].tolist()) == set(order[:2])


def test_easy_negatives_fill_the_last_places():
    options = SMALL.with_overrides(m_easy=3)
    assert options.list_size == 9
    rng = np.random.default_rng(0)
    for _ in range(50):
        easy = draw_easy(np.arange(6), 30, options, rng)
        drawn = draw_list(np.arange(2), np.arange(6, 16), np.arange(16, 20), options, rng, easy)
        assert len(set(drawn.tolist())) == 9
        assert set(drawn[-3:].tolist()) <= set(easy.tolist())
        assert not set(easy.tolist()) & set(range(6))


def test_what_can_never_happen_is_warned_of(beir_folder, tiny_mlm, tmp_path, caplog):
    options = SMALL.with_overrides(max_steps=1, refresh_steps=1, patience=2, held_out=0.5, warmup=3)
    distill(str(tiny_mlm), str(beir_folder), teacher="bm25", output=tmp_path / "m", options=options)
    assert "warm-up of 3 steps is no shorter than the training of 1" in caplog.text
    assert "can never stop early" in caplog.text
    assert "2 steps" in caplog.text


def test_more_anchors_than_a_list_takes_are_drawn_at_random():
    """Every one of them comes first in some list."""
    anchors, rng = np.arange(6), np.random.default_rng(0)
    options = SMALL.with_overrides(positives=2)
    nothing = np.empty(0, np.int64)
    drawn = [draw_list(anchors, np.arange(10, 14), nothing, options, rng)[:2] for _ in range(60)]
    assert {row for pair in drawn for row in pair.tolist()} == set(anchors.tolist())


@pytest.mark.parametrize(
    ("measured", "patience", "stops"),
    [
        ([0.5, 0.4], 2, False),
        ([0.5, 0.4, 0.4], 2, True),
        ([0.5, 0.4, 0.4], 3, False),
        ([0.5, 0.4, 0.6], 1, False),
        ([0.5, 0.4, 0.6, 0.6], 1, True),
    ],
)
def test_patience_counts_the_refreshes_after_the_best_one(measured, patience, stops):
    rounds = Rounds.__new__(Rounds)
    rounds.task = SimpleNamespace(held_out={"q": "wing"})
    rounds.options = SMALL.with_overrides(patience=patience)
    rounds.measured = measured
    assert rounds._gains_no_more() is stops
