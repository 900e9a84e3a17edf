"""Sizes in a model's settings with which a host would never end."""

import json
import shutil

import pytest

from beir_cocodr import load_encoder
from beir_cocodr.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_labels", 10**12),
        ("num_hidden_layers", 10**6),
        ("num_attention_heads", 10**9),
        ("hidden_size", 10**9),
        ("vocab_size", 10**15),
    ],
)
def test_a_size_beyond_any_model_is_refused_at_once(tiny_cosine, tmp_path, name, value):
    folder = tmp_path / "model"
    shutil.copytree(tiny_cosine, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(InputError, match=rf"config\.json: {name} is {value}"):
        load_encoder(folder)
