"""Vectors read back in each precision, and MRL's, which are folded before they are rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_beir
from safetensors.numpy import load_file

from beir_cocodr import COCODR, MRL, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.folding import Folding
from beir_cocodr.retrieval.store.encode import encode, encode_documents
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import Workers

SIZE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("vectors") / "corpus", documents=40)


def run(folder: Path, model: Path, output: Path, **options: Any) -> EmbeddingStore:
    encode(
        str(folder),
        str(model),
        output,
        EncodeOptions(shard_size=SIZE, **options),
        workers=Workers(threads=1),
    )
    return EmbeddingStore.open(output)


@pytest.fixture(scope="module")
def exact(folder, tiny_bert, tmp_path_factory) -> torch.Tensor:
    """The (N, d) vectors of a store in float32."""
    opened = run(folder, tiny_bert, tmp_path_factory.mktemp("exact") / "fp32", precision="fp32")
    return torch.cat(list(opened.chunks()))


@pytest.mark.parametrize(
    ("precision", "bound"), [("fp16", 2.0**-11), ("bf16", 2.0**-8), ("int8", 1 / 254)]
)
def test_precision_on_disk(exact, folder, tiny_bert, tmp_path, precision, bound):
    """Errors within the arithmetic of the format, and files of its size."""
    opened = run(folder, tiny_bert, tmp_path / precision, precision=precision)
    rough = torch.cat(list(opened.chunks()))
    scale = exact.abs().amax(dim=1, keepdim=True) if precision == "int8" else exact.abs()
    assert ((rough - exact).abs() <= scale * bound * 1.001 + 2.0**-25).all()
    assert (rough != exact).any()
    first = load_file(tmp_path / precision / "shard-00000.safetensors")
    assert first["vectors"].dtype == (np.int8 if precision == "int8" else np.float16)
    assert ("scales" in first) == (precision == "int8")


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_mrl_is_folded_and_keeps_its_prior_in_float32(folder, tiny_bert, tmp_path, precision):
    model = MRL(str(tiny_bert))
    model.save_pretrained(str(tmp_path / "mrl"))
    opened = run(folder, tmp_path / "mrl", tmp_path / "store", precision=precision)
    collection = load_collection(folder)
    expected = model.encode_corpus(list(collection.documents.values()))
    folding = Folding.load(tmp_path / "store" / "folding.safetensors")
    folded, found = folding.transform_documents(expected), torch.cat(list(opened.chunks())).numpy()
    np.testing.assert_allclose(found[:, 0], folded[:, 0], rtol=1e-5, atol=1e-3)
    first = load_file(tmp_path / "store" / "shard-00000.safetensors")
    assert first["priors"].dtype == np.float32
    np.testing.assert_array_equal(first["priors"], found[:SIZE, 0])
    # Scores are the model's own, as offsets undo the centring, to what the precision loses.
    queries = model.encode_queries(list(collection.queries.values()), convert_to_tensor=True)
    changed, offsets = opened.queries(queries)
    scores = changed.double() @ torch.from_numpy(found).double().T + offsets[:, None]
    before = queries.double() @ torch.from_numpy(expected).double().T
    lost = (scores - before).abs().max() / before.std(dim=1).mean()
    assert lost < {"fp16": 0.002, "bf16": 0.02, "int8": 0.1}[precision]


def test_shards_without_their_folding_are_refused(folder, tiny_bert, tmp_path):
    MRL(str(tiny_bert)).save_pretrained(str(tmp_path / "mrl"))
    run(folder, tmp_path / "mrl", tmp_path / "store", precision="int8")
    (tmp_path / "store" / "folding.safetensors").unlink()
    (tmp_path / "store" / "shard-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"folding\.safetensors"):
        run(folder, tmp_path / "mrl", tmp_path / "store", precision="int8")


def test_mrl_in_float32_is_kept_as_it_is(folder, tiny_bert, tmp_path):
    model = MRL(str(tiny_bert))
    documents = load_collection(folder).documents
    opened = encode_documents(model, documents, tmp_path)
    assert not (tmp_path / "folding.safetensors").exists()
    expected = model.encode_corpus(list(documents.values()))
    np.testing.assert_allclose(torch.cat(list(opened.chunks())), expected, rtol=1e-4, atol=1e-3)


def test_numbers_that_a_precision_cannot_hold_name_the_document(folder, tiny_bert, tmp_path):
    model = COCODR(tiny_bert)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("encoder.layer.0.output.LayerNorm.weight"):
                weight.mul_(1e6)
    documents = load_collection(folder).documents
    with pytest.raises(InputError, match=r"'d\d+' .*±65,504.*fp16"):
        encode_documents(model, documents, tmp_path / "half", EncodeOptions(precision="fp16"))
    encode_documents(model, documents, tmp_path / "byte", EncodeOptions(precision="int8"))
