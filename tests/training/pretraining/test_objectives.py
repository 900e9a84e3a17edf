"""The objectives of pre-training: each trains, resumes exactly, and learns from what it should
see.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import sentences, write_beir
from packaging.version import Version
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from beir_cocodr import COCODR
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.heads.condenser import HEAD_FOLDER
from beir_cocodr.training import checkpoints
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining import token_places
from beir_cocodr.training.pretraining.document_views import DocumentViews, token_counts
from beir_cocodr.training.pretraining.objectives import OBJECTIVES
from beir_cocodr.training.pretraining.pretrain import pretrain
from beir_cocodr.training.trainer import Stage

ON_DOCUMENTS = [name for name, found in OBJECTIVES.items() if not found.on_queries]

STEPS = {
    "max_steps": 6,
    "batch_size": 16,
    "mini_batch_size": 6,
    "learning_rate": 1e-3,
    "save_steps": 2,
}


def settings(objective: str, **changes) -> PretrainOptions:
    return PretrainOptions.of(
        **{"objective": objective, "span_tokens": 12, "max_length": 40} | STEPS | changes
    )


def dataset(folder: str | list[str], model: Path, options: PretrainOptions) -> DocumentViews:
    collections = [
        load_collection(name, labels="none")
        for name in ([folder] if isinstance(folder, str) else folder)
    ]
    return DocumentViews(collections, COCODR(str(model)), options)


@contextmanager
def copied_at(step: int, folder: Path, copy: Path) -> Iterator[None]:
    """Copy the output of a training at the end of a step: what it would leave if it died then."""

    class Copy(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                shutil.copytree(folder, copy)

    original = Stage.__init__

    def with_copy(self, *args, **kwargs):
        original(self, *args, **kwargs)
        object.__setattr__(self, "callbacks", [*self.callbacks, Copy()])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stage, "__init__", with_copy)
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("small") / "tiny", documents=24, queries=4)


@pytest.mark.parametrize("objective", ON_DOCUMENTS)
def test_resumed_equals_uninterrupted(objective, small, tiny_mlm, tmp_path):
    # 24 documents make epochs of 3 steps: the stop lies in a later epoch, one step after a
    # checkpoint.
    options = settings(objective, batch_size=8, mini_batch_size=3)
    data, model = [str(small)], str(tiny_mlm)
    with copied_at(5, tmp_path / "whole", tmp_path / "killed"):
        whole = pretrain(model, data, output=tmp_path / "whole", options=options)
    resumed = pretrain(model, data, output=tmp_path / "killed", options=options, resume=True)
    assert (resumed.resumed_from, resumed.steps, whole.steps) == ("checkpoint-4", 6, 6)
    assert whole.stage == resumed.stage == objective
    by_spans = objective in ("coco", "cocondenser", "ict", "tsdae")
    assert whole.rehearsed == resumed.rehearsed == (("spans",) if by_spans else ())
    files = ["model.safetensors"] + [f"{HEAD_FOLDER}/model.safetensors"] * (
        OBJECTIVES[objective].masked
    )
    # Before PyTorch 2.8 the last bits of a decoder depend on where its tensors lie in memory.
    rounding = 1e-5 if objective == "tsdae" and Version(torch.__version__) < Version("2.8") else 0
    for file in files:
        first, second = load_file(tmp_path / "whole" / file), load_file(tmp_path / "killed" / file)
        assert first.keys() == second.keys()
        for name, weight in first.items():
            if rounding and name.endswith("key.bias"):
                continue  # its gradient is nothing but rounding, which Adam makes large
            torch.testing.assert_close(second[name], weight, rtol=0, atol=rounding, msg=name)
    if OBJECTIVES[objective].masked:
        layers = json.loads((tmp_path / "whole" / HEAD_FOLDER / "config.json").read_text())[
            "n_head_layers"
        ]
        assert layers == (0 if objective == "mlm" else 2)
    start = load_file(tiny_mlm / "model.safetensors")
    moved = load_file(tmp_path / "whole" / "model.safetensors")
    # What training needed alone (head, decoder) is not in the model, which loads without this
    # package.
    assert {f"bert.{name}" for name in moved if "pooler" not in name} <= start.keys()
    name = "encoder.layer.0.output.dense.weight"
    assert (start[f"bert.{name}"] - moved[name]).abs().max() > 1e-4
    vectors = SentenceTransformer(str(tmp_path / "whole")).encode(["a wing", "a library"])
    assert vectors.shape == (2, 32)
    assert np.isfinite(vectors).all()
    assert not (tmp_path / "whole" / checkpoints.CHECKPOINTS).exists()


@pytest.mark.parametrize("objective", ON_DOCUMENTS)
def test_texts_depend_on_seed_epoch_and_row_alone(objective, beir_folder, tiny_mlm):
    views = dataset(str(beir_folder), tiny_mlm, settings(objective))
    rows = views.dataset()
    batch, alone = rows[3:9], rows[5:6]
    assert all(batch[column][2] == alone[column][0] for column in views.columns)
    assert batch["label"] == list(range(3, 9))
    assert list(batch) == [*views.columns, "label"]
    views.clock.epoch = 1
    assert rows[3:9] != batch
    views.clock.epoch = 0
    assert rows[3:9] == batch
    other = dataset(str(beir_folder), tiny_mlm, settings(objective, seed=7)).dataset()
    assert other[3:9] != batch


@pytest.mark.parametrize("objective", ON_DOCUMENTS)
def test_columns_carry_masks_tasks_and_lengths(objective, beir_folder, tiny_mlm):
    views = dataset(str(beir_folder), tiny_mlm, settings(objective))
    views.model.prompts = {"query": "library ", "document": "flow "}
    rows = views.dataset()
    batch = views.collator()([rows[i] for i in range(8)])
    labels = [name for name in batch if name.endswith("mlm_labels")]
    assert len(labels) == (len(views.columns) if OBJECTIVES[objective].masked else 0)
    for column, task in views.columns.items():
        assert batch[f"{column}_task"] == task
        assert batch[f"{column}_input_ids"].shape[1] <= 40
    if objective == "ict":
        words = views.model.tokenizer.batch_decode(
            batch["query_input_ids"], skip_special_tokens=True
        )
        assert all(text.startswith("library ") for text in words)
        assert batch["passage_input_ids"].shape[1] > batch["query_input_ids"].shape[1]
    assert batch["label"].tolist() == list(range(8))


def test_a_batch_is_named_by_corpus_and_document(beir_folder, tiny_mlm, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"x{i}", "text": sentences(np.random.default_rng(i), i, count)})
            + "\n"
            for i, count in enumerate((3, 0, 2))
        )
    )
    other = str(tmp_path / "corpus.jsonl")
    assert dataset(str(beir_folder), tiny_mlm, settings("coco")).names([0, 47]) == ["d0", "d47"]
    views = dataset([other, str(beir_folder)], tiny_mlm, settings("coco"))
    assert views.names([2, 3]) == [f"{other}: x2", f"{beir_folder}: d0"]
    assert views.rows.tolist()[:3] == [0, 2, 3]  # the empty one is left out


def test_one_span_is_enough_without_pairs(tiny_mlm, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"d{i}", "text": text}) + "\n"
            for i, text in enumerate(["wing flow", "", "library index of", " "])
        )
    )
    data = str(tmp_path / "corpus.jsonl")
    for objective in ON_DOCUMENTS:
        if objective in ("coco", "cocondenser", "ict"):
            with pytest.raises(InputError, match="two spans"):
                dataset(data, tiny_mlm, settings(objective))
        else:
            assert dataset(data, tiny_mlm, settings(objective)).rows.tolist() == [0, 2]
    for objective in ("coco", "cocondenser"):
        views = dataset(data, tiny_mlm, settings(objective, single_spans=True))
        assert views.rows.tolist() == [0, 2]
        assert views.counts() == {"documents_with_text": 2}
        assert [views.texts(row) for row in (0, 2)] == [
            ("wing flow",) * 2,
            ("library index of",) * 2,
        ]
    with pytest.raises(InputError, match=r"ict .*single_spans.*coco"):
        settings("ict", single_spans=True)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": " ", "title": ""}\n')
    with pytest.raises(InputError, match="any text"):
        dataset(data, tiny_mlm, settings("mlm"))


def test_a_corpus_is_tokenised_once_for_a_tokenizer(beir_folder, tiny_mlm, tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_places, "_PART", 20)
    documents, model = (
        load_collection(str(beir_folder), labels="none").documents,
        COCODR(str(tiny_mlm)),
    )
    texts = [model.text_format.document(document) for document in documents.values()]
    wanted = [[len(model.tokenizer.tokenize(text)), len(text)] for text in texts]
    asked: list[int] = []

    class Dying(type(model.tokenizer)):
        def __call__(self, given, *args, **settings):
            asked.append(len(given))
            if len(asked) == 3:
                raise KeyboardInterrupt
            return super().__call__(given, *args, **settings)

    model.tokenizer.__class__ = Dying
    with pytest.raises(KeyboardInterrupt):
        token_counts(documents, model)
    assert (
        token_counts(documents, model).tolist() == wanted
    )  # what was counted is not counted again
    assert asked == [20, 20, 8, 8]
    assert token_counts(documents, model).tolist() == wanted
    assert asked == [20, 20, 8, 8]
    [kept] = (tmp_path / "cache" / "token-counts").glob("*.npy")
    model.tokenizer.add_tokens(["library"])
    token_counts(documents, model)
    assert len(list(kept.parent.glob("*.npy"))) == 2


def test_dropout_is_off_for_coco_alone_unless_asked():
    assert [name for name in OBJECTIVES if not settings(name).keeps_dropout] == ["coco"]
    assert settings("coco", encoder_dropout=True).keeps_dropout
    assert not settings("mlm", encoder_dropout=False).keeps_dropout
    with pytest.raises(InputError, match=r"simcse .*encoder_dropout"):
        settings("simcse", encoder_dropout=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "bogus"}, r"'bogus'.*coco, mlm, .*tsdae"),
        ({"objective": "mlm", "mlm_weight": 0.0}, "nothing"),
        ({"objective": "ict", "batch_size": 1}, "batch_size .*2"),
        ({"objective": "tsdae", "deletion": 1.5}, "deletion"),
        ({"span_tokens": 39}, "span_tokens 39"),
        ({"scale": 0.0}, "scale"),
        ({"n_head_layers": -1}, "n_head_layers"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        settings(**{"objective": "coco"} | changes)
    assert not any(OBJECTIVES[name].contrastive for name in ("mlm", "condenser", "tsdae"))


def test_a_length_that_the_encoder_cannot_read_is_refused(beir_folder, tiny_mlm):
    with pytest.raises(InputError, match=r"max_length is 500, .*160"):
        dataset(str(beir_folder), tiny_mlm, settings("coco", max_length=500))


def test_simcse_without_any_dropout_is_refused(beir_folder, wordpiece, tmp_path):
    from transformers import BertConfig, BertModel

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config = BertConfig(
        vocab_size=len(wordpiece),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )
    BertModel(config).save_pretrained(tmp_path / "model")
    wordpiece.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"simcse .*dropout"):
        pretrain(
            str(tmp_path / "model"),
            [str(beir_folder)],
            output=tmp_path / "o",
            options=settings("simcse"),
        )


def test_stages_go_on_from_each_other(beir_folder, tiny_mlm, tmp_path):
    """coCondenser on the source, then COCO on the target: the head goes on; other objectives need
    none.
    """
    base = str(tiny_mlm)
    for objective in ("mlm", "cocondenser", "tsdae", "coco"):
        folder = tmp_path / objective
        record = pretrain(
            base, [str(beir_folder)], output=folder, options=settings(objective, max_steps=1)
        )
        base = str(folder)
        if objective == "cocondenser":
            assert record.details["language_model_head"] == "the head of the loaded pre-training"
    assert record.parent.parent.parent.stage == "mlm"
