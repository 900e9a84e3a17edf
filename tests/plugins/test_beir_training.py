"""BEIR's training calls, over sentence-transformers' trainer."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import beir
import numpy as np
import pytest
import torch
from beir.datasets.data_loader import GenericDataLoader
from beir_cocodr.plugins.beir import TrainRetriever
from sentence_transformers import InputExample, SentenceTransformer, losses
from torch.utils.data import Dataset

from beir_cocodr import MRL
from beir_cocodr.errors import InputError

TEXTS = ["wing flow", "library index"]


@pytest.fixture
def data(beir_folder):
    return GenericDataLoader(str(beir_folder)).load(split="test")


def retriever(model, batch_size: int = 4) -> TrainRetriever:
    return TrainRetriever(SentenceTransformer(str(model), device="cpu"), batch_size)


class Counted(Dataset):
    """A data set that counts how often each example is read."""

    def __init__(self, size: int) -> None:
        self.reads = [0] * size

    def __getitem__(self, item: int) -> InputExample:
        self.reads[item] += 1
        return InputExample(texts=[f"wing {item}", f"flow {item}", f"drag {self.reads[item]}"])

    def __len__(self) -> int:
        return len(self.reads)


def test_its_methods_take_what_those_of_beir_take():
    """BEIR's module does not import beside transformers 5, so its signatures are read as text."""
    source = (Path(beir.__file__).parent / "retrieval" / "train.py").read_text()
    methods = re.findall(r"    def (\w+)\((.*?)\)[^\n]*:\n", source, flags=re.DOTALL)
    assert len(methods) >= 8
    for name, signature in methods:
        theirs = re.findall(r"^\s*(\w+)[:=,]|, (\w+)[:=]", signature, flags=re.MULTILINE)
        names = {one or other for one, other in theirs} - {"self"}
        parameters = inspect.signature(getattr(TrainRetriever, name)).parameters
        assert names <= parameters.keys(), name


def test_training_pairs_are_the_relevant_documents(data, tiny_cosine, caplog):
    corpus, queries, qrels = data
    samples = retriever(tiny_cosine).load_train(corpus, queries, qrels)
    relevant = [(q, d) for q, grades in qrels.items() for d, grade in grades.items() if grade >= 1]
    assert len(samples) == len(relevant) > 10
    query, document = relevant[0]
    joined = f"{corpus[document]['title']} {corpus[document]['text']}".strip()
    assert samples[0].texts == [queries[query], joined]
    retriever(tiny_cosine).load_train({}, queries, qrels)
    assert f"{len(relevant)} relevant documents are not in the corpus" in caplog.text


def test_the_best_model_is_saved_and_epochs_are_evaluated(data, tiny_cosine, tmp_path):
    training = retriever(tiny_cosine, 8)
    corpus, queries, qrels = data
    loader = training.prepare_train(training.load_train(corpus, queries, qrels))
    evaluator = training.load_ir_evaluator(corpus, queries, qrels, name="dev")
    scores: list[tuple[float, int, int]] = []
    before = training.model.encode_query(TEXTS)
    training.fit(
        [(loader, losses.MultipleNegativesRankingLoss(training.model))],
        evaluator=evaluator,
        epochs=2,
        warmup_steps=1,
        optimizer_params={"lr": 1e-3, "correct_bias": False},
        output_path=str(tmp_path / "best"),
        callback=lambda *score: scores.append(score),
        show_progress_bar=False,
        use_amp=True,
    )
    assert [step for _, _, step in scores] == [len(loader), 2 * len(loader)]
    assert not np.array_equal(training.model.encode_query(TEXTS), before)
    saved = SentenceTransformer(str(tmp_path / "best"), device="cpu")
    best = max(score for score, _, _ in scores)
    assert evaluator(saved)[evaluator.primary_metric] == pytest.approx(best)


def test_a_data_set_is_read_anew_in_each_epoch(tiny_cosine, tmp_path):
    examples = Counted(8)
    training = retriever(tiny_cosine)
    loader = training.prepare_train(examples, shuffle=True, dataset_present=True)
    loss = losses.MultipleNegativesRankingLoss(training.model)
    training.fit([(loader, loss)], epochs=3, warmup_steps=0, show_progress_bar=False)
    assert all(reads >= 3 for reads in examples.reads)


def test_examples_keep_their_order_unless_they_are_shuffled(tiny_cosine):
    training = retriever(tiny_cosine, 1)
    seen: list[int] = []

    class Listening(torch.nn.Module):
        def __init__(self, model: SentenceTransformer) -> None:
            super().__init__()
            self.model = model

        def forward(self, features, labels):
            seen.append(int(labels[0]))
            return self.model(features[0])["sentence_embedding"].sum()

    samples = [InputExample(texts=["wing", "flow"], label=number) for number in range(1, 9)]
    for shuffle in (False, True):
        seen.clear()
        loader = training.prepare_train(samples, shuffle=shuffle)
        training.fit([(loader, Listening(training.model))], show_progress_bar=False)
        assert sorted(seen) == list(range(1, 9))
        assert (seen == sorted(seen)) is not shuffle


def test_several_objectives_steps_and_two_sided_encoders(tiny_cosine, tmp_path):
    model = MRL(str(tiny_cosine), device="cpu")
    training = TrainRetriever(model, 2)
    triplets = [[f"wing {n}", f"flow {n}", f"drag {n}"] for n in range(6)]
    samples = training.load_train_triplets(triplets)
    loss = losses.MultipleNegativesRankingLoss(model)
    objectives = [
        (training.prepare_train_triplets(samples), loss),
        (training.prepare_train_triplets(samples), loss),
    ]
    steps: list[int] = []
    training.fit(
        objectives,
        evaluator=training.load_dummy_evaluator(),
        epochs=2,
        steps_per_epoch=2,
        output_path=tmp_path / "m",
        callback=lambda score, epoch, step: steps.append(step),
        checkpoint_path=str(tmp_path / "checkpoints"),
        checkpoint_save_steps=2,
        show_progress_bar=False,
    )
    assert steps == [2, 4]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} >= {"checkpoint-2"}
    training.fit(
        objectives,
        epochs=2,
        steps_per_epoch=2,
        checkpoint_path=str(tmp_path / "checkpoints"),
        resume_from_checkpoint=True,
        callback=lambda score, epoch, step: steps.append(step),
        show_progress_bar=False,
    )
    assert 2 not in steps[2:]  # the last checkpoint is resumed
    again = MRL(str(tmp_path / "m"), device="cpu")
    assert np.allclose(again.encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-6)


def test_a_smaller_corpus_has_all_relevant_documents(data, tiny_cosine):
    corpus, queries, qrels = data
    training = retriever(tiny_cosine)
    relevant = {d for grades in qrels.values() for d, grade in grades.items() if grade >= 1}
    size = len(relevant) + 3
    evaluator = training.load_ir_evaluator(corpus, queries, qrels, max_corpus_size=size)
    assert relevant <= set(evaluator.corpus_ids)
    assert len(evaluator.corpus_ids) == size
    with pytest.raises(InputError, match="max_corpus_size is 2"):
        training.load_ir_evaluator(corpus, queries, qrels, max_corpus_size=2)


def test_bad_input_is_one_clear_line(data, tiny_cosine):
    training = retriever(tiny_cosine)
    loss = losses.MultipleNegativesRankingLoss(training.model)
    loader = training.prepare_train_triplets([InputExample(texts=["a", "b"])])
    for arguments, reason in (
        ({"train_objectives": []}, "train_objectives is empty"),
        ({"train_objectives": [(loader, loss)], "scheduler": "Sine"}, "no scheduler 'Sine'"),
        ({"train_objectives": [(loader, loss)], "epoch": 2}, "no option 'epoch'"),
        (
            {"train_objectives": [(training.prepare_train_triplets([]), loss)]},
            "no examples to train on",
        ),
    ):
        with pytest.raises(InputError, match=reason):
            training.fit(**arguments)
    with pytest.raises(InputError, match="no queries"):
        training.load_ir_evaluator({}, {}, {})
