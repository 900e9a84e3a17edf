"""Weights that changed since they were written, and numbers of other types than weights have."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from beir_cocodr import load_encoder
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_cross_encoder
from beir_cocodr.provenance import TrainingRecord, write_record


@pytest.fixture
def trained(tiny_cosine, tmp_path) -> Path:
    folder = tmp_path / "trained"
    shutil.copytree(tiny_cosine, folder)
    write_record(folder, TrainingRecord("finetune", "x"))
    return folder


def flip_bit(file: Path, place: float, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    file.write_bytes(content)


@pytest.mark.parametrize("seed", range(6))
def test_one_flipped_bit_of_the_weights_is_refused(trained, seed):
    load_encoder(trained)
    rng = np.random.default_rng(seed)
    file = trained / "model.safetensors"
    flip_bit(file, rng.uniform(0.2, 1), int(rng.integers(8)))
    with pytest.raises(InputError, match=r"model\.safetensors was changed.*training\.json") as end:
        load_encoder(trained)
    assert "\n" not in str(end.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_that_is_gone_is_named(trained, name):
    (trained / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        load_encoder(trained)


def test_a_change_that_is_meant_has_a_way_out(trained):
    flip_bit(trained / "model.safetensors", 0.99, 0)
    with pytest.raises(InputError, match="take its line out of checksums"):
        load_encoder(trained)
    record = json.loads((trained / "training.json").read_text())
    del record["checksums"]["model.safetensors"]
    (trained / "training.json").write_text(json.dumps(record))
    load_encoder(trained)


def test_a_fused_folder_has_checksums_of_all_that_is_computed_with(tmp_path, tiny_cosine):
    from beir_cocodr import fuse

    corpus = {str(row): text for row, text in enumerate(["wing lift", "heat plate", "shock wave"])}
    fuse(tiny_cosine, corpus, output=tmp_path / "fused")
    recorded = json.loads((tmp_path / "fused" / "training.json").read_text())["checksums"]
    known = {*recorded, "training.json"}
    others = []
    for path in (tmp_path / "fused").rglob("*"):
        name = path.relative_to(tmp_path / "fused").as_posix()
        if path.is_file() and name not in known and path.suffix not in (".json", ".md"):
            others.append(name)
    assert others == []
    weights = [name for name in recorded if name.endswith(".safetensors")]
    assert len(weights) >= 2
    for name in weights:
        kept = (tmp_path / "fused" / name).read_bytes()
        flip_bit(tmp_path / "fused" / name, 0.9, 3)
        with pytest.raises(InputError, match=name):
            load_encoder(tmp_path / "fused")
        (tmp_path / "fused" / name).write_bytes(kept)
    load_encoder(tmp_path / "fused")


def change_weights(folder: Path, change: Callable[[torch.Tensor], torch.Tensor], key: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[key] = change(tensors[key])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


TYPES = [torch.int8, torch.int32, torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_another_type_are_refused(tiny_cosine, tmp_path, dtype):
    folder = tmp_path / "model"
    shutil.copytree(tiny_cosine, folder)
    key = "encoder.layer.0.attention.self.query.weight"
    change_weights(folder, lambda weight: (100 * weight).to(dtype), key)
    with pytest.raises(InputError, match=f"model.safetensors holds .* in '{key}'"):
        load_encoder(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floating_point_numbers_of_any_size_are_read(tiny_cosine, tmp_path, dtype):
    folder = tmp_path / "model"
    shutil.copytree(tiny_cosine, folder)
    key = "encoder.layer.0.attention.self.query.weight"
    change_weights(folder, lambda weight: weight.to(dtype), key)
    loaded = load_encoder(folder)[0].auto_model.state_dict()[key]
    expected = load_file(tiny_cosine / "model.safetensors")[key]
    torch.testing.assert_close(loaded.float(), expected.float(), rtol=1e-2, atol=1e-4)


def test_numbers_of_a_pickled_file_are_checked_too(tiny_cosine, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_cosine, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["position_ids"] = torch.arange(8)  # integers that are meant
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_encoder(folder)
    tensors["embeddings.word_embeddings.weight"] = tensors[
        "embeddings.word_embeddings.weight"
    ].int()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin holds int32"):
        load_encoder(folder)


def test_a_cross_encoder_is_checked_too(tiny_cross, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_cross, folder)
    change_weights(folder, lambda weight: (1000 * weight).int(), "classifier.weight")
    with pytest.raises(InputError, match=r"classifier\.weight"):
        load_cross_encoder(str(folder))
