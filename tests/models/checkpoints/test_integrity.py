"""Damaged models, as a person would meet them: each fault is one line, and nothing is random."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, PreTrainedModel

from beir_cocodr import COCODR, MRL, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.checkpoint_heads import mlm_layers
from beir_cocodr.models.checkpoints.integrity import ENCODER, loading
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.provenance import TrainingRecord, write_record


@pytest.fixture
def copied(tmp_path):
    def copy(source: Path, name: str = "model") -> Path:
        return Path(shutil.copytree(source, tmp_path / name))

    return copy


@pytest.fixture(scope="module")
def saved_mrl(tiny_cosine, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mrl")
    MRL(tiny_cosine, k=4).save_pretrained(str(folder))
    return folder


def change_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


def fault(folder: Path) -> str:
    """Return the line that refuses a folder."""
    with pytest.raises(InputError) as caught:
        load_encoder(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_cosine", "saved_mrl"])
def test_a_tensor_that_is_missing_is_named(kind, request, copied):
    folder = copied(request.getfixturevalue(kind))
    name = "encoder.layer.0.output.dense.weight"
    change_weights(folder, lambda weights: {k: w for k, w in weights.items() if k != name})
    assert f"missing: {name}" in fault(folder)


@pytest.mark.parametrize("kind", ["two_layer_bert", "two_layer_cosine"])
def test_more_and_fewer_layers_and_other_shapes_are_named(kind, request, copied):
    source = request.getfixturevalue(kind)
    for name, settings, words in [
        ("more", {"num_hidden_layers": 3}, ("missing: encoder.layer.2.", "and 13 more")),
        ("fewer", {"num_hidden_layers": 1}, ("left over: encoder.layer.1.", "and 13 more")),
        (
            "wider",
            {"intermediate_size": 96},
            ("of another shape: encoder.layer.0.", "(64,) for (96,)"),
        ),
    ]:
        folder = copied(source, name)
        change_json(folder / "config.json", **settings)
        message = fault(folder)
        assert all(word in message for word in words), message


def test_another_architecture_over_the_weights(tiny_bert, copied):
    distil, roberta = copied(tiny_bert, "distil"), copied(tiny_bert, "roberta")
    change_json(distil / "config.json", model_type="distilbert", architectures=["DistilBertModel"])
    assert "missing: " in fault(distil)
    # Its tensors have BERT's names and shapes, and other positions.
    change_json(roberta / "config.json", model_type="roberta")
    assert "BertModel" in fault(roberta)


def test_what_a_task_does_without_is_logged_and_left_out(tiny_mlm, tiny_bert, caplog):
    with caplog.at_level(logging.INFO):
        model = COCODR(tiny_mlm)
    assert "language-model head is not read" in caplog.text
    assert "has no pooler" in caplog.text
    assert "LOAD REPORT" not in caplog.text
    assert fingerprint(model) == fingerprint(
        COCODR(tiny_mlm)
    )  # no random pooler tells it apart from itself
    with caplog.at_level(logging.INFO):
        MRL(tiny_bert, k=4)
    assert "projections and [VAR] are new" in caplog.text


def test_the_host_is_left_as_it_was(tiny_bert, copied):
    before = PreTrainedModel.__dict__["from_pretrained"]
    folder = copied(tiny_bert)
    (folder / "config.json").write_text("{")
    fault(folder)
    with loading(str(tiny_bert), ENCODER):
        assert PreTrainedModel.__dict__["from_pretrained"] is not before
    assert PreTrainedModel.__dict__["from_pretrained"] is before


def test_half_a_language_model_head_is_no_start(tiny_mlm, tiny_bert, copied):
    assert mlm_layers(str(tiny_bert)) is None
    assert mlm_layers(str(tiny_mlm)) is not None
    folder = copied(tiny_mlm)
    lost = "cls.predictions.transform.dense.bias"
    change_weights(folder, lambda weights: {k: w for k, w in weights.items() if k != lost})
    with pytest.raises(InputError, match=f"lacks {lost}"):
        mlm_layers(str(folder))


FILES = [
    "config",
    "modules",
    "tokenizer",
    "tokenizer_config",
    "sentence_bert_config",
    "config_sentence_transformers",
]
FILES += ["1_Pooling/config"]

DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x80\x81not json" * 9,
    "latin": lambda content: b'{"caf\xe9": 1}',
    "list": lambda content: b"[1, 2]",
    "text": lambda content: b'"settings"',
    "null": lambda content: b"null",
    "deep": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_settings_file_that_is_damaged_is_named(damage, tiny_cosine, copied):
    for file in FILES:
        folder = copied(tiny_cosine, file.replace("/", "-"))
        path = folder / f"{file}.json"
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert str(path) in fault(folder)


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_what_is_no_file_is_not_passed_over(kind, tiny_cosine, copied):
    for name in FILES:
        folder = copied(tiny_cosine, name.replace("/", "-"))
        path = folder / f"{name}.json"
        path.unlink()
        path.mkdir() if kind == "folder" else path.symlink_to(path.name)
        assert str(path) in fault(folder)


def test_a_damaged_text_format_and_a_damaged_head_are_named(tiny_bert, saved_mrl, tmp_path, copied):
    COCODR(tiny_bert, title_separator=": ").save_pretrained(str(tmp_path / "saved"))
    for damage in ('{"title_separator"', '{"title_separator": 5}', "{}", "[]"):
        (tmp_path / "saved" / "text_format.json").write_text(damage)
        assert "text_format.json" in fault(tmp_path / "saved")
    folder = copied(saved_mrl, "head")
    (head,) = folder.glob("*_MRLHead")
    change_weights(head, lambda weights: {k: w for k, w in weights.items() if "variance" not in k})
    assert "variance_projection" in fault(folder)
    shutil.copytree(saved_mrl, folder, dirs_exist_ok=True)
    change_json(head / "config.json", k="four")
    fault(folder)
    change_json(head / "config.json", k=5)
    assert "size mismatch" in fault(folder) or "shape" in fault(folder)
    for setting in (
        {"pooling": True},
        {"pooling": "max"},
        {"formula": "fast"},
        {"normalize_mean": "no"},
        {"beta": 0},
    ):
        shutil.copytree(saved_mrl, folder, dirs_exist_ok=True)
        change_json(head / "config.json", **setting)
        assert "beta" in setting or str(head / "config.json") in fault(folder)
        fault(folder)


SETTINGS = [
    ("config.json", {"hidden_size": "wide"}),
    ("config.json", {"num_attention_heads": 5}),
    ("config.json", {"vocab_size": 10**9}),
    ("config.json", {"hidden_act": "none"}),
    ("config.json", {"layer_norm_eps": "small"}),
    ("config.json", {"pad_token_id": 10**6}),
    ("config.json", {"model_type": 3}),
    ("config.json", {"model_type": "no-such-model"}),
    ("config.json", {"architectures": "BertModel"}),
    ("sentence_bert_config.json", {"max_seq_length": "48"}),
    ("sentence_bert_config.json", {"max_seq_length": -1}),
    ("sentence_bert_config.json", {"query_length": -1}),
    ("sentence_bert_config.json", {"max_seq_length": 4_096}),
    ("sentence_bert_config.json", {"no_such_setting": 1}),
    ("config_sentence_transformers.json", {"prompts": ["query: "]}),
    ("config_sentence_transformers.json", {"prompts": {"query": 7}}),
    ("config_sentence_transformers.json", {"similarity_fn_name": "closest"}),
    ("1_Pooling/config.json", {"embedding_dimension": 33}),
    ("1_Pooling/config.json", {"embedding_dimension": "32"}),
    ("1_Pooling/config.json", {"pooling_mode": "best"}),
    ("1_Pooling/config.json", {"pooling_mode_cls_token": "no"}),
    ("2_Normalize/config.json", {"module_input_name": "embedding"}),
    ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}),
    ("2_Normalize/config.json", {"module_output_name": "sentence_embeddings"}),
    ("2_Normalize/config.json", {"module_output_name": 5}),
    ("tokenizer_config.json", {"model_max_length": "long"}),
    ("tokenizer_config.json", {"model_max_length": 40.5}),
    ("tokenizer_config.json", {"tokenizer_class": 5}),
    ("tokenizer.json", {"model": {"type": "WordPiece"}}),
    ("tokenizer.json", {"model": []}),
]


@pytest.mark.parametrize(("file", "changes"), SETTINGS)
def test_a_setting_of_a_wrong_type_or_value_is_one_line(file, changes, tiny_cosine, copied):
    folder = copied(tiny_cosine)
    change_json(folder / file, **changes)
    way_out = fault(folder).rpartition(";")[2]
    assert "again" in way_out or "another model" in way_out


def change_modules(folder: Path, change) -> None:
    path = folder / "modules.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_a_similarity_that_is_unknown_is_named_and_none_becomes_cosine(tiny_cosine, copied):
    for number, (name, words) in enumerate(
        [("closest", "unknown"), ("", "unknown"), ("euclidean", "cosine or dot")]
    ):
        folder = copied(tiny_cosine, str(number))
        change_json(folder / "config_sentence_transformers.json", similarity_fn_name=name)
        with pytest.raises(InputError, match=words) as caught:
            load_encoder(folder)
        assert name in str(caught.value)


def test_a_module_that_is_lost_is_missed(tiny_cosine, copied):
    folder = copied(tiny_cosine)
    change_modules(folder, lambda modules: [modules[0], modules[2]])
    assert "modules.json: the numbers of the modules (idx) show that one is missing" in fault(
        folder
    )
    folder = copied(tiny_cosine, "last")
    change_modules(folder, lambda modules: modules[:2])
    assert "2_Normalize" in fault(folder)
    shutil.rmtree(folder / "2_Normalize")
    load_encoder(folder)  # another model, which is whole


def test_modules_that_are_not_those_of_the_record_are_refused(tiny_cosine, copied):
    folder = copied(tiny_cosine)
    write_record(folder, TrainingRecord("finetune", "x"))
    change_json(
        folder / "config.json", transformers_version="0", dtype="float64"
    )  # what computes the same
    load_encoder(folder)
    for file, change in {
        "1_Pooling/config.json": lambda: change_json(
            folder / "1_Pooling/config.json", pooling_mode="cls"
        ),
        "config.json": lambda: change_json(folder / "config.json", layer_norm_eps=1e-3),
        "2_Normalize/config.json": lambda: (
            shutil.rmtree(folder / "2_Normalize"),
            change_modules(folder, lambda modules: modules[:2]),
        ),
    }.items():
        kept = copied(folder, f"kept-{file.partition('/')[0]}")
        change()
        message = fault(folder)
        assert file in message or "modules.json" in message
        assert "training.json" in message
        shutil.rmtree(folder)
        kept.rename(folder)
    change_json(folder / "1_Pooling/config.json", pooling_mode="cls")
    change_json(folder / "training.json", modules={})
    load_encoder(folder)  # the change is meant


def test_quantized_weights_are_not_read_as_if_they_were_not(tiny_cosine, copied):
    """The host leaves a method that it does not know aside."""
    folder = copied(tiny_cosine)
    change_json(folder / "config.json", quantization_config={"quant_method": "nonsense"})
    assert "quantization_config" in fault(folder)
    change_json(folder / "config.json", quantization_config=None)
    load_encoder(folder)


def test_no_code_of_a_model_runs(tiny_cosine, copied, tmp_path):
    ran = tmp_path / "ran"
    for number, (file, changes) in enumerate(
        [
            ("config.json", {"auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}}),
            ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Model", None]}}),
            ("modules.json", "evil.Model"),
            ("modules.json", "os.path.Pooling"),
        ]
    ):
        folder = copied(tiny_cosine, str(number))
        (folder / "evil.py").write_text(
            f"from pathlib import Path\nPath({str(ran)!r}).touch()\nclass Model: ...\n"
        )
        path = folder / file
        if isinstance(changes, dict):
            change_json(path, **changes)
        else:
            modules = json.loads(path.read_text())
            path.write_text(json.dumps([modules[0], modules[1] | {"type": changes}, *modules[2:]]))
        assert file in fault(folder)
    modules = json.loads((tiny_cosine / "modules.json").read_text())
    folder = copied(tiny_cosine, "outside")
    (folder / "modules.json").write_text(json.dumps([modules[0], modules[1] | {"path": "../x"}]))
    assert "out of the folder" in fault(folder)
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_cosine"])
def test_weights_that_cannot_be_read_are_one_line(kind, request, copied):
    source = request.getfixturevalue(kind)
    weights = (source / "model.safetensors").read_bytes()
    for name, content in {
        "truncated": weights[: len(weights) // 2],
        "headless": weights[:5],
        "empty": b"",
        "garbage": b"\xff" * 5_000,
    }.items():
        folder = copied(source, name)
        (folder / "model.safetensors").write_bytes(content)
        assert "SafetensorError" in fault(folder), name
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in fault(folder)


def test_published_pickles_are_read_as_tensors_alone(tiny_bert, copied, caplog):
    import pickle

    folder = copied(tiny_bert)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with caplog.at_level(logging.INFO):
        model = load_encoder(folder)
    assert "pytorch_model.bin, read as tensors alone" in caplog.text
    assert fingerprint(model) == fingerprint(load_encoder(tiny_bert))

    class Evil:
        def __reduce__(self):
            return (Path(folder / "ran").touch, ())

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    assert "tensors alone" in fault(folder)
    torch.save(weights | {"evil": Evil()}, folder / "pytorch_model.bin")
    assert "tensors alone" in fault(folder)
    (folder / "pytorch_model.bin").write_bytes(b"garbage")
    fault(folder)
    assert not (folder / "ran").exists()


def test_numbers_that_are_none_and_tokens_without_a_row(tiny_bert, copied):
    def broken(weights):
        weights["encoder.layer.0.output.dense.weight"][3, 4] = float("nan")
        return weights

    folder = copied(tiny_bert, "nan")
    change_weights(folder, broken)
    assert "NaN" in fault(folder)
    folder = copied(tiny_bert, "tokens")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["zeppelin"] = 70_000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = fault(folder)
    assert "'zeppelin'" in message
    assert "70000" in message
    folder = copied(tiny_bert, "none")
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / file).unlink(missing_ok=True)
    fault(folder)


def test_the_report_of_the_host_has_the_keys_that_are_read(tiny_bert):
    """A private name of transformers that integrity reads; it has moved if this test fails."""
    _, info = AutoModelForMaskedLM.from_pretrained(tiny_bert, output_loading_info=True)
    assert {"missing_keys", "unexpected_keys", "mismatched_keys"} <= info.keys()
    assert any(name.startswith("cls.") for name in info["missing_keys"])


def test_commands_end_with_two_and_one_line(tiny_bert, beir_folder, copied, tmp_path, capsys):
    folder = copied(tiny_bert)
    change_weights(
        folder,
        lambda weights: {k: w for k, w in weights.items() if "layer.0.output.dense" not in k},
    )
    for command in (
        ["evaluate"],
        ["encode"],
        ["pretrain"],
        ["finetune"],
        ["distill", "--teacher", "bm25"],
    ):
        arguments = [
            "--dataset",
            str(beir_folder),
            "--model",
            str(folder),
            "--output",
            str(tmp_path / command[0]),
        ]
        with pytest.raises(SystemExit) as status:
            main([*command, *arguments])
        assert status.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "missing: encoder.layer.0.output.dense.bias" in last
        assert not list((tmp_path / command[0]).rglob("*.safetensors"))
