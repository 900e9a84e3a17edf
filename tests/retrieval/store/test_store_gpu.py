"""Stores encoded and searched on GPUs hold and find what the CPU does."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from conftest import write_beir

from beir_cocodr.evaluation.runs import read_trec_run
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import Workers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("gpu") / "corpus", documents=90)


def made(folder: Path, model: Path, output: Path, device: str, processes: int = 1) -> torch.Tensor:
    encode(
        str(folder),
        str(model),
        output,
        EncodeOptions(shard_size=16),
        workers=Workers(processes=processes, threads=1),
        encoder=EncoderOptions(device=device),
    )
    return torch.cat(list(EmbeddingStore.open(output).chunks()))


def test_one_process_and_three_on_gpus_encode_what_the_cpu_does(folder, tiny_bert, tmp_path):
    cpu = made(folder, tiny_bert, tmp_path / "cpu", device="cpu")
    for processes in (1, 3):
        gpu = made(folder, tiny_bert, tmp_path / f"{processes}", device="cuda", processes=processes)
        torch.testing.assert_close(gpu, cpu, rtol=0, atol=1e-4)


@pytest.mark.parametrize("index", ["flat", "ivfpq"])
def test_an_index_finds_on_a_gpu_what_it_finds_on_the_cpu(
    folder, tiny_bert, tmp_path, monkeypatch, index
):
    if not faiss.get_num_gpus():
        pytest.skip("faiss-cpu is installed: pip install 'beir-cocodr[faiss-gpu]'")
    made(folder, tiny_bert, tmp_path / "store")
    search(
        tmp_path / "store",
        str(folder),
        tmp_path / "gpu.run",
        StoreSearchOptions(top_k=20, index=index),
    )
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    search(
        tmp_path / "store",
        str(folder),
        tmp_path / "cpu.run",
        StoreSearchOptions(top_k=20, index=index),
    )
    gpu, cpu = (read_trec_run(tmp_path / f"{place}.run") for place in ("gpu", "cpu"))
    for query, found in cpu.items():
        shared = gpu[query].keys() & found.keys()
        assert len(shared) >= 18  # ties at the last places
        np.testing.assert_allclose(
            [gpu[query][id] for id in shared], [found[id] for id in shared], rtol=1e-3, atol=1e-3
        )
