from __future__ import annotations

import sys

import pytest
import torch

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.vectors import pool
from beir_cocodr.retrieval.vectors.pool import available_cores, device_list, warn_if_crowded


def test_gpus_are_taken_in_turn_unless_one_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_list(None, 3) == device_list("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_list("cuda:1", 2) == ["cuda:1"] * 2
    assert device_list("cpu", 2) == ["cpu"] * 2


def test_without_gpus_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_list(None, 2) == ["cpu", "cpu"]
    with pytest.raises(InputError, match="-1 processes"):
        device_list(None, -1)
    assert len(device_list("cpu", 1_024)) == 1_024
    with pytest.raises(InputError, match="1025 processes are too many"):
        device_list("cpu", 1_025)


def test_processes_in_each_others_way_are_warned_of(caplog):
    cores = available_cores()
    warn_if_crowded(["cpu"], cores)
    warn_if_crowded(["cuda:0", "cuda:1"], cores)
    assert not caplog.records
    warn_if_crowded(["cpu"] * 3, cores)
    assert (
        f"3 processes of {cores} threads share {cores} cores: --threads {max(1, cores // 3)}"
        in caplog.text
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize(
    ("devices", "method"),
    [
        (["cpu", "cpu"], "forkserver"),
        (["cuda:0", "cuda:1"], "spawn"),
        (["mps"], "spawn"),
    ],
)
def test_processes_with_an_accelerator_are_not_forked(devices, method):
    """CUDA refuses to work in a forked process once its parent has counted the GPUs."""
    assert pool._context(len, devices).get_start_method() == method
