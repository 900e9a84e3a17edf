"""Names of models, and how they are loaded."""

from __future__ import annotations

import pytest

from beir_cocodr import load_object
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import (
    FUSIONS,
    RETRIEVERS,
    EncoderOptions,
    ModelSpec,
    Standalone,
    ways_to_use,
)


@pytest.mark.parametrize(
    ("name", "kind", "encoder", "prefix"),
    [
        ("bm25", "bm25", "bm25", ""),
        ("lucene-bm25", "bm25", "bm25", "lucene-"),
        ("m", "dense", "m", ""),
        ("a/b:c", "dense", "a/b:c", ""),
        ("lucene-m", "dense", "lucene-m", ""),
        ("hybrid:m", "hybrid", "m", "hybrid:"),
        ("rrf:a/b", "rrf", "a/b", "rrf:"),
        ("feedback:a:b", "feedback", "a:b", "feedback:"),
        ("lucene-hybrid:m", "hybrid", "m", "lucene-hybrid:"),
    ],
)
def test_a_name_has_one_reading(name, kind, encoder, prefix):
    found = ModelSpec.parse(name)
    assert (found.kind, found.encoder, found.prefix) == (kind, encoder, prefix)
    assert found.lucene == (name.startswith("lucene-") and kind != "dense")
    found.check()


def test_rm3_looks_into_an_index_that_lucene_has_for_itself():
    ModelSpec.parse("rm3:m").check()
    with pytest.raises(InputError, match=r"'lucene-rm3:m'.* rm3:m"):
        ModelSpec.parse("lucene-rm3:m").check()


@pytest.mark.parametrize("kind", FUSIONS)
def test_every_fusion_can_be_built_and_needs_an_encoder(kind):
    assert callable(load_object(FUSIONS[kind].build))
    for encoder in ("", "bm25", "lucene-bm25"):
        with pytest.raises(InputError, match=f"needs a dense encoder, as in {kind}:"):
            ModelSpec.parse(f"{kind}:{encoder}").check()


def test_a_retriever_of_ones_own_is_a_kind_without_an_encoder(monkeypatch):
    monkeypatch.setitem(RETRIEVERS, "titles", Standalone("somewhere:Titles", "titles alone"))
    found = ModelSpec.parse("titles")
    assert (found.kind, found.encoder, found.prefix, found.lucene) == (
        "titles",
        "titles",
        "",
        False,
    )
    found.check()
    assert ModelSpec.parse("titles/of").kind == "dense"


def test_options_go_over_others_and_records_leave_the_device_out():
    options = EncoderOptions(document_length=9, device="cpu").over(
        EncoderOptions(5, 8, query_prompt="")
    )
    assert options == EncoderOptions(5, 9, query_prompt="", device="cpu")
    assert options.overrides() == {
        "query_length": 5,
        "document_length": 9,
        "query_prompt": "",
        "device": "cpu",
    }
    assert "device" not in options.describe()
    assert EncoderOptions().overrides() == {}


@pytest.mark.parametrize(
    ("name", "weight"),
    [("hybrid@0.3:m", 0.3), ("rm3@1:a:b", 1.0), ("hybrid:m", None), ("vector:m", None)],
)
def test_the_weight_of_bm25_may_stand_in_the_name_of_a_fusion(name, weight):
    spec = ModelSpec.parse(name)
    assert spec.bm25_weight == weight
    assert spec.prefix + spec.encoder == name
    spec.check()


@pytest.mark.parametrize("name", ["hybrid@:m", "hybrid@1001:m", "hybrid@r512:m", "rrf@0.5:m"])
def test_a_setting_that_a_fusion_does_not_have_is_named(name):
    with pytest.raises(InputError, match=r"is not a setting of|has no settings"):
        ModelSpec.parse(name)


@pytest.mark.parametrize("settings", ["0.3", "0.3,r512,smooth,feedback"])
def test_settings_of_one_vector_were_removed_and_the_way_out_is_named(settings):
    with pytest.raises(InputError, match=r"were removed; name vector:M, or .* beir-cocodr fuse"):
        ModelSpec.parse(f"vector@{settings}:m")


def test_the_ways_to_use_an_encoder_are_names_of_models():
    names = ways_to_use("a/b")
    assert len(set(names)) == len(names)
    assert {"bm25", "a/b", "hybrid@0.5:a/b"} <= set(names)
    for name in names:
        ModelSpec.parse(name).check()
