"""Interrupted and resumed training gives the uninterrupted weights."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from conftest import exit_code, write_beir
from interrupted import copied_at_steps
from safetensors.torch import load_file
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler

from beir_cocodr import COCODR
from beir_cocodr.errors import InputError
from beir_cocodr.models.heads.condenser import HEAD_FOLDER
from beir_cocodr.training import checkpoints
from beir_cocodr.training import trainer as run
from beir_cocodr.training.batches import BatchKeys, WholeEpochs
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.pretraining.pretrain import pretrain

STEPS = {
    "max_steps": 5,
    "batch_size": 12,
    "mini_batch_size": 5,
    "learning_rate": 1e-3,
    "save_steps": 2,
}
# The 36 documents and 15 pairs of `small` make epochs of 3 steps: the stop lies in the second one.
PRETRAIN = PretrainOptions.of(**STEPS, span_tokens=12)
FINETUNE = FinetuneOptions.of(**STEPS | {"batch_size": 4, "mini_batch_size": 3}, negatives=1)


def train(kind: str, folder: Path, data: Path, model: Path, resume: bool = False, workers: int = 0):
    if kind == "pretrain":
        return pretrain(
            str(model),
            [str(data)],
            output=folder,
            options=PRETRAIN.with_overrides(loader_workers=workers),
            resume=resume,
        )
    return finetune(
        str(model),
        str(data),
        output=folder,
        options=FINETUNE.with_overrides(loader_workers=workers),
        resume=resume,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("small") / "small", documents=36, queries=10)


@pytest.fixture(scope="module", params=["pretrain", "finetune"])
def whole(request, small, tiny_mlm, tmp_path_factory) -> tuple[str, Path]:
    """A kind of training, and the folder of one that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / request.param
    assert train(request.param, folder, small, tiny_mlm).steps == 5
    return request.param, folder


def train_with_loader_workers(kind: str, output: Path, data: Path, model: Path, killed: Path):
    """Leave the folder of a training that was killed at the end of its last step."""
    with copied_at_steps(output, {5: killed}):
        train(kind, output, data, model, workers=2)


def test_resumed_equals_uninterrupted(whole, small, tiny_mlm, tmp_path):
    """Who prepares batches changes nothing.

    The loader workers are forked from a process that never used Ray: with Python 3.13, those of a
    process that did crash in Ray's library.
    """
    kind, uninterrupted = whole
    folders = tmp_path / "trained", small, tiny_mlm, tmp_path / "killed"
    assert exit_code(train_with_loader_workers, kind, *folders) == 0
    assert not (tmp_path / "killed" / "training.json").exists()
    # A checkpoint that was being written when the run died.
    torn = tmp_path / "killed" / checkpoints.CHECKPOINTS / "checkpoint-5"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    resumed = train(kind, tmp_path / "killed", small, tiny_mlm, resume=True)
    assert (resumed.steps, resumed.resumed_from) == (5, "checkpoint-4")
    files = ["model.safetensors"]
    if kind == "pretrain":
        files.append(f"{HEAD_FOLDER}/model.safetensors")
    for file in files:
        first, second = load_file(uninterrupted / file), load_file(tmp_path / "killed" / file)
        assert first.keys() == second.keys()
        for name, weight in first.items():
            torch.testing.assert_close(second[name], weight, rtol=0, atol=0, msg=name)
    start = load_file(tiny_mlm / "model.safetensors")
    moved = load_file(uninterrupted / "model.safetensors")["encoder.layer.0.output.dense.weight"]
    assert (start["bert.encoder.layer.0.output.dense.weight"] - moved).abs().max() > 1e-4


def test_a_kill_between_the_last_step_and_the_save(whole, small, tiny_mlm, tmp_path, monkeypatch):
    kind, uninterrupted = whole

    class Killed(Exception):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(run, "_save", die)
        with pytest.raises(Killed):
            train(kind, tmp_path / "killed", small, tiny_mlm)
    resumed = train(kind, tmp_path / "killed", small, tiny_mlm, resume=True)
    assert resumed.steps == 5
    assert resumed.resumed_from == "checkpoint-5"
    assert resumed.training_loss is None
    first = load_file(uninterrupted / "model.safetensors")
    second = load_file(tmp_path / "killed" / "model.safetensors")
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=0, atol=0, msg=name)


def test_the_record_says_what_was_done_and_seen(beir_folder, tiny_mlm, tmp_path):
    first = tmp_path / "first"
    pretrain(
        str(tiny_mlm),
        [str(beir_folder), str(beir_folder)],
        output=first,
        options=PRETRAIN.with_overrides(max_steps=2),
    )
    finetune(
        str(first),
        str(beir_folder),
        output=tmp_path / "second",
        options=FINETUNE.with_overrides(max_steps=2),
    )
    record = json.loads((tmp_path / "second" / "training.json").read_text())
    assert (record["stage"], record["parent"]["stage"]) == ("finetune", "coco")
    assert record["options"]["seed"] == 42
    assert record["seen"][0]["queries"] == 16
    assert record["pairs"] == 24
    assert [seen["documents"] for seen in record["parent"]["seen"]] == [48, 48]
    assert record["seen"][0]["corpus_sha256"] == record["parent"]["seen"][0]["corpus_sha256"]
    assert set(record["modules"]) == {"modules.json", "config.json", "1_Pooling/config.json"}
    assert record["texts_cut"] == record["parent"]["texts_cut"] == 0
    assert not (tmp_path / "second" / checkpoints.CHECKPOINTS).exists()
    card = (tmp_path / "second" / "README.md").read_text()
    texts = [
        json.loads(line)["text"] for line in (beir_folder / "corpus.jsonl").read_text().splitlines()
    ]
    assert not any(
        text[:30] in card for text in texts
    )  # a private corpus stays out of the model card
    assert (
        COCODR(str(first)).encode_document(["wing"])
        != COCODR(str(tiny_mlm)).encode_document(["wing"])
    ).any()


def test_a_taken_output_is_refused_and_a_finished_one_is_kept(beir_folder, tiny_mlm, tmp_path):
    done = finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=FINETUNE)
    with pytest.raises(InputError, match=r"already .*trained model"):
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=FINETUNE)
    half_removed = (
        tmp_path / "m" / checkpoints.CHECKPOINTS / "checkpoint-8"
    )  # by a run that died as it finished
    half_removed.mkdir(parents=True)
    assert (
        finetune(
            str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=FINETUNE, resume=True
        )
        == done
    )
    assert not half_removed.parent.exists()
    with pytest.raises(InputError, match=r"other .*options"):
        finetune(
            str(tiny_mlm),
            str(beir_folder),
            output=tmp_path / "m",
            options=FINETUNE.with_overrides(seed=1),
            resume=True,
        )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("do not lose")
    with pytest.raises(InputError, match="not empty"):
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "other", options=FINETUNE)


def test_a_folder_that_is_not_ours_is_not_resumed_either(beir_folder, tiny_mlm, tmp_path):
    own = tmp_path / "checkpoints" / "checkpoint-400"
    own.mkdir(parents=True)
    (own / "model.safetensors").write_bytes(b"somebody's")
    with pytest.raises(InputError, match="resumed"):
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path, options=FINETUNE, resume=True)
    assert (own / "model.safetensors").read_bytes() == b"somebody's"


def test_content_decides_not_paths(beir_folder, tiny_mlm, tmp_path):
    data, model = tmp_path / "data", tmp_path / "model"
    shutil.copytree(beir_folder, data)
    shutil.copytree(tiny_mlm, model)
    done = finetune(str(model), str(data), output=tmp_path / "m", options=FINETUNE)
    data.rename(tmp_path / "moved")
    model.rename(tmp_path / "renamed")
    arguments = {
        "model": str(tmp_path / "renamed"),
        "dataset": str(tmp_path / "moved"),
        "output": tmp_path / "m",
        "options": FINETUNE,
        "resume": True,
    }
    assert finetune(**arguments) == done
    qrels = tmp_path / "moved" / "qrels" / "train.tsv"
    qrels.write_text("\n".join(qrels.read_text().splitlines()[:-2]) + "\n")
    with pytest.raises(InputError, match=r"other settings .seen"):
        finetune(**arguments)


def test_no_document_of_a_batch_is_relevant_to_another_query_of_it(beir_folder, wordpiece):
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.data.text import TextFormat
    from beir_cocodr.training.hard_negatives.bm25_negatives import bm25_negatives

    collection = load_collection(beir_folder, "train")
    pool = bm25_negatives(collection, TextFormat())
    pairs = TrainingPairs(collection, TextFormat(), FinetuneOptions(negatives=2), pool)
    assert len(pairs.rows(0)) == 3
    sampler = WholeEpochs(
        pairs.batch_keys(), batch_size=4, drop_last=True, generator=torch.Generator(), seed=0
    )
    ids, batches = collection.documents.ids(), 0
    for epoch in range(3):
        pairs.clock.epoch = epoch
        sampler.set_epoch(epoch)
        for batch in sampler:
            batches += 1
            for pair in batch:
                grades = collection.qrels[pairs.queries[pair]]
                others = {ids[row] for other in batch for row in pairs.rows(other) if other != pair}
                assert not any(grades.get(document, 0) > 0 for document in others)
                assert all(grades.get(ids[row], 0) == 0 for row in pairs.rows(pair)[1:])
    assert batches > 6


def test_every_epoch_has_its_length_where_few_texts_differ():
    """Resuming counts epochs by it; the host ends some before."""
    rng = random.Random(0)
    rows = [rng.sample("abcdefghij", 2) for _ in range(12)]
    data = BatchKeys(len(rows), rows.__getitem__)

    def epochs(kind: type[DefaultBatchSampler]) -> list[list[list[int]]]:
        sampler = kind(data, batch_size=4, drop_last=True, generator=torch.Generator(), seed=0)
        found = []
        for epoch in range(40):
            sampler.set_epoch(epoch)
            found.append(list(sampler))
        return found

    assert min(map(len, epochs(NoDuplicatesBatchSampler))) < 3
    ours = epochs(WholeEpochs)
    assert {len(batches) for batches in ours} == {3}
    assert ours == epochs(WholeEpochs)
    assert all(
        len({text for row in batch for text in rows[row]}) == 8
        for batches in ours
        for batch in batches
    )
    alike = BatchKeys(12, lambda row: ["a"])
    assert (
        list(WholeEpochs(alike, batch_size=4, drop_last=True, generator=torch.Generator(), seed=0))
        == []
    )


def test_resumed_where_few_texts_differ_it_is_the_same(beir_folder, tiny_mlm, tmp_path, dies_at):
    data = tmp_path / "data"
    shutil.copytree(beir_folder, data)
    lines = [f"q{i}\td{i % 6}\t1" for i in range(12)]
    (data / "qrels" / "train.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    )
    whole = train("finetune", tmp_path / "whole", data, tiny_mlm)
    with dies_at(5):
        train("finetune", tmp_path / "m", data, tiny_mlm)
    assert train("finetune", tmp_path / "m", data, tiny_mlm, resume=True).steps == whole.steps == 5
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "m"))
    assert all((first[name] == second[name]).all() for name in first)
    assert (tmp_path / "whole" / "tokenizer.json").read_bytes() == (
        tmp_path / "m" / "tokenizer.json"
    ).read_bytes()


def test_no_step_is_no_model(tmp_path, tiny_mlm, beir_folder):
    data = tmp_path / "data"
    shutil.copytree(beir_folder, data)
    lines = [f"q{i}\td0\t1" for i in range(16)]
    (data / "qrels" / "train.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    )
    with pytest.raises(InputError, match=f"no training step was possible.* from {data} without"):
        finetune(str(tiny_mlm), str(data), output=tmp_path / "m", options=FINETUNE)
    assert not list((tmp_path / "m").rglob("*"))


def test_resuming_with_other_settings_is_refused(beir_folder, tiny_mlm, tmp_path, dies_at):
    with dies_at(3):
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=FINETUNE)
    with pytest.raises(InputError, match=r"other .*options"):
        finetune(
            str(tiny_mlm),
            str(beir_folder),
            output=tmp_path / "m",
            options=FINETUNE.with_overrides(seed=1),
            resume=True,
        )


def test_short_documents_only_is_one_clear_line(tiny_mlm, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "a", "text": "wing flow"}\n{"_id": "b", "text": "drag"}\n'
    )
    with pytest.raises(InputError, match=r"no document .*30 tokens"):
        pretrain(
            str(tiny_mlm),
            [str(tmp_path / "corpus.jsonl")],
            output=tmp_path / "m",
            options=PretrainOptions(),
        )


@pytest.mark.parametrize("keep", [False, True])
def test_encoder_dropout_is_off_by_default_and_on_when_asked(keep, tiny_mlm):
    from beir_cocodr.training.pretraining.pretrain import _encoder_dropout

    model = COCODR(str(tiny_mlm)).train()
    tokens = model.preprocess(["a wing in supersonic flow"])
    with _encoder_dropout(model, keep):
        first, second = (model.train()(dict(tokens))["sentence_embedding"] for _ in range(2))
    assert torch.equal(first, second) is not keep
    assert first.requires_grad


def test_every_training_option_reaches_the_trainer(beir_folder, tiny_mlm, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(self, *arguments):
        raise Stop(self.args)

    monkeypatch.setattr("beir_cocodr.training.trainer.GuardedTrainer.train_guarded", stop)
    settings = {
        "learning_rate": 0.003,
        "weight_decay": 0.07,
        "max_grad_norm": 0.3,
        "max_steps": 7,
        "seed": 11,
        "save_steps": 3,
    }
    options = FinetuneOptions(**settings, epochs=2.0, warmup=5, batch_size=4)
    with pytest.raises(Stop) as stopped:
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    [arguments] = stopped.value.args
    assert {name: getattr(arguments, name) for name in settings} == settings
    assert (arguments.warmup_steps, arguments.num_train_epochs) == (5, 2.0)
    assert arguments.per_device_train_batch_size == 4
    # The host's own optimiser and schedule are made of them.
    assert arguments.get_warmup_steps(7) == 5
