from __future__ import annotations

import json
import shutil

import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from beir_cocodr import COCODR, MRL
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder
from beir_cocodr.models.spec import EncoderOptions


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {part for part in one if one[part] != other[part]}


@pytest.mark.parametrize("kind", [COCODR, MRL])
def test_the_same_encoder_elsewhere_used_before_or_with_other_lengths_is_the_same(
    tiny_bert, tmp_path, kind
):
    model = kind(str(tiny_bert))
    before = fingerprint(model)
    model.encode_document(
        ["wing", "a much longer text about wings"]
    )  # sets the tokenizer's padding
    assert fingerprint(model) == before
    model.save_pretrained(str(tmp_path / "moved"))
    assert fingerprint(load_encoder(tmp_path / "moved", EncoderOptions(20, 30))) == before


def test_weights(tiny_bert):
    model = COCODR(tiny_bert)
    before = fingerprint(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[7] += 1e-4
    assert differing(before, fingerprint(model)) == {"weights"}


def test_tokenizer(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "cased")
    path = tmp_path / "cased" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_lower_case": False}))
    before, after = fingerprint(COCODR(tiny_bert)), fingerprint(COCODR(tmp_path / "cased"))
    assert differing(before, after) == {"tokenizer"}


def test_pooling_and_heads_share_weights_and_differ(tiny_bert, tmp_path):
    before, pooled = fingerprint(COCODR(tiny_bert)), COCODR(tiny_bert)
    pooled[1] = Pooling(32, "mean")
    assert differing(before, fingerprint(pooled)) == {"architecture"}
    shutil.copytree(tiny_bert, tmp_path / "heads")
    config = json.loads((tmp_path / "heads" / "config.json").read_text())
    (tmp_path / "heads" / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2}))
    assert differing(before, fingerprint(COCODR(tmp_path / "heads"))) == {"architecture"}


def test_something_without_weights_is_refused():
    with pytest.raises(InputError, match="no weights"):
        fingerprint(object())
