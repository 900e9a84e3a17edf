"""Models whose settings name code: a host neither imports nor calls it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import completed
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Router
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from beir_cocodr import load_encoder
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_cross_encoder
from beir_cocodr.models.checkpoints.named_code import check_named_code, is_module


@pytest.fixture
def cross_encoder(tiny_bert, tmp_path) -> Path:
    folder = tmp_path / "cross"
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=1).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


def change(file: Path, **settings: object) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | settings))


def _load_as_distill(folder: Path) -> None:
    """Load a cross-encoder in the folder above it, where the command line says ``distill``."""
    os.chdir(folder.parent)
    sys.argv = ["beir-cocodr", "distill"]
    try:
        load_cross_encoder(str(folder))
    except InputError as error:
        print(error)


def test_an_activation_that_starts_a_program_is_refused(cross_encoder, tmp_path):
    """torchrun's main takes the command's first argument for a program of the working folder."""
    (tmp_path / "distill").write_text("open('ran', 'w').close()")
    change(
        cross_encoder / "config.json",
        sentence_transformers={"activation_fn": "torch.distributed.run.main"},
    )
    result = completed(_load_as_distill, cross_encoder)
    assert not (tmp_path / "ran").exists()
    assert "torch.distributed.run.main" in result.stdout
    assert str(cross_encoder / "config.json") in result.stdout


@pytest.mark.parametrize(
    "name",
    [
        "torch.distributed.run.main",
        "torch.nn.functional.relu",
        "torch.nn.init.zeros_",
        "torch.nn.Module.cuda",
        "torch.nn.parallel.DistributedDataParallel.join",
        "torch.nn.utils.rnn.PackedSequence",
        "torch.ops.load_library",
        "torch.utils.bottleneck.__main__.main",
        "torch.hub.load",
        "os.system",
        "beir_cocodr.cli.__main__.main",
        ["torch.nn.Identity"],
        7,
    ],
)
@pytest.mark.parametrize("key", ["top", "nested", "old", "host"])
def test_only_layers_are_activations_of_cross_encoders(name, key, cross_encoder):
    if key == "top":
        change(cross_encoder / "config.json", activation_fn=name)
    elif key == "nested":
        change(cross_encoder / "config.json", sentence_transformers={"activation_fn": name})
    elif key == "old":
        change(cross_encoder / "config.json", sbert_ce_default_activation_function=name)
    else:
        change(cross_encoder / "config_sentence_transformers.json", activation_fn=name)
    with pytest.raises(InputError, match=r"layer of torch.nn") as caught:
        load_cross_encoder(str(cross_encoder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["torch.nn.modules.linear.Identity", "torch.nn.Identity"])
def test_layers_are_activations(name, cross_encoder):
    change(cross_encoder / "config.json", sentence_transformers={"activation_fn": name})
    model, _ = load_cross_encoder(str(cross_encoder))
    assert isinstance(model.activation_fn, nn.Identity)


@pytest.mark.parametrize(
    "name",
    [
        "evil.Model",
        "os.path.Pooling",
        "sentence_transformers.base.model.torch",
        "sentence_transformers.util.http_get",
        "sentence_transformers.SentenceTransformer",
        "sentence_transformers.CrossEncoder",
        "sentence_transformers.losses.CosineSimilarityLoss",
        "sentence_transformers.nowhere.Pooling",
        "sentence_transformers.base.modules.dense.import_from_string",
        7,
        None,
    ],
)
def test_only_modules_of_the_host_are_modules(name):
    assert not is_module(name)


@pytest.mark.parametrize(
    "name",
    [
        "sentence_transformers.models.Transformer",
        "sentence_transformers.models.Pooling",
        "sentence_transformers.models.Normalize",
        "sentence_transformers.models.Dense",
        "sentence_transformers.models.StaticEmbedding",
        "sentence_transformers.models.WordEmbeddings",
        "sentence_transformers.models.Router",
        "sentence_transformers.models.Asym",
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "sentence_transformers.sparse_encoder.models.MLMTransformer",
        "sentence_transformers.sparse_encoder.models.SpladePooling",
        "sentence_transformers.sparse_encoder.modules.SparseAutoEncoder",
        "sentence_transformers.cross_encoder.modules.LogitScore",
        "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask",
        "pylate.models.Dense.Dense",
    ],
)
def test_modules_of_the_host_are_modules_by_old_names_too(name):
    assert is_module(name)


@pytest.fixture(scope="module")
def router(tiny_cosine, tmp_path_factory) -> Path:
    """An encoder with a dense layer for queries, inside a router."""
    folder = tmp_path_factory.mktemp("router")
    base = SentenceTransformer(str(tiny_cosine), device="cpu")
    width = base.get_embedding_dimension()
    dense = Dense(width, width, activation_function=nn.Identity())
    routes = Router.for_query_document([dense], [Dense(width, width)])
    SentenceTransformer(modules=[base[0], base[1], routes]).save_pretrained(str(folder))
    return folder


def test_modules_inside_a_router_are_checked(router, tmp_path):
    load_encoder(router)
    [file] = router.glob("*/router_config.json")
    [part, *_] = json.loads(file.read_text())["types"]
    for number, (target, key, value) in enumerate(
        [
            (file, "types", {part: "evil.Model"}),
            (file, "types", {part: "sentence_transformers.base.model.torch"}),
            (file, "types", {"../..": "sentence_transformers.models.Dense"}),
            (file, "types", {".": "sentence_transformers.models.Router"}),
            (file.parent / part / "config.json", "activation_function", "torch.hub.load"),
        ]
    ):
        folder = Path(shutil.copytree(router, tmp_path / str(number)))
        copy = folder / target.relative_to(router)
        change(copy, **{key: value})
        with pytest.raises(InputError) as caught:
            load_encoder(folder)
        assert str(copy) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (
            "wordembedding_config.json",
            {"tokenizer_class": "sentence_transformers.base.model.torch"},
        ),
        ("tokenizer_config.json", {"tokenizer_class": "os.path"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Model", None]}}),
        ("config.json", {"text_config": {"auto_map": {"AutoModel": "evil.Model"}}}),
        ("config.json", {"_attn_implementation": "evil/kernel"}),
        ("config.json", {"attn_implementation": {"text": "evil/kernel:attention"}}),
        ("sentence_bert_config.json", {"model_args": {"attn_implementation": "evil/kernel"}}),
        ("sentence_bert_config.json", {"modality_config": {"text": {"method": "save_pretrained"}}}),
        ("sentence_roberta_config.json", {"modality_config": {"text": {"method": None}}}),
        ("preprocessor_config.json", {"image_processor_type": "pipeline"}),
        ("adapter_config.json", {"auto_mapping": {"parent_library": "evil"}}),
    ],
)
def test_other_names_that_end_in_a_call_are_refused(file, settings, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    check_named_code(tmp_path)
    (tmp_path / file).write_text(json.dumps(settings))
    with pytest.raises(InputError, match=file):
        check_named_code(tmp_path)


def test_what_the_hosts_write_is_allowed(tiny_cosine, cross_encoder, tmp_path):
    check_named_code(tiny_cosine)
    CrossEncoder(str(cross_encoder), device="cpu").save_pretrained(str(tmp_path / "saved"))
    check_named_code(tmp_path / "saved")
    load_cross_encoder(str(tmp_path / "saved"))
