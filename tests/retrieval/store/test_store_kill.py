"""Encoding that is killed, again and again, and gone on with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import exit_code, process, write_beir

from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.vectors.pool import Workers

KILLS, DOCUMENTS, SIZE = 6, 300, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("kill") / "corpus", documents=DOCUMENTS)


def run(folder: Path, model: Path, output: Path, precision: str, processes: int = 1) -> None:
    options = EncodeOptions(shard_size=SIZE, precision=precision, token_budget=1_024)
    encode(
        str(folder), str(model), output, options, workers=Workers(processes=processes, threads=1)
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def complete(folder: Path) -> dict[Path, int]:
    """Files under their own names, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("[!.]*") if path.is_file()}


def test_kills_at_random_moments_change_no_byte(folder, tiny_bert, tmp_path):
    whole = tmp_path / "whole"
    assert exit_code(run, folder, tiny_bert, whole, "fp32") == 0  # warms up
    begun = time.monotonic()
    again = tmp_path / "again"
    assert exit_code(run, folder, tiny_bert, again, "fp32") == 0
    seconds, expected = time.monotonic() - begun, contents(whole)
    assert len(expected) == 2 * (-(-DOCUMENTS // SIZE) + 5)
    assert contents(again) == expected

    random = np.random.default_rng(0)
    kills, stores, in_the_middle = 0, [tmp_path / "store-0"], 0
    while kills < KILLS:
        output = stores[-1]
        before = complete(output) if output.exists() else {}
        encoding = process(run, folder, tiny_bert, output, "fp32")
        if kills % 5 == 0:
            encoding.join(random.uniform(0, seconds))  # at any time, most likely while it starts
        else:
            wanted = len(list(output.glob("shard-*"))) + random.integers(1, 6)
            while encoding.is_alive() and len(list(output.glob("shard-*"))) < wanted:
                time.sleep(0.001)
            encoding.join(random.uniform(0, 0.02))
        if encoding.is_alive():
            encoding.kill()
            encoding.join()
            kills += 1
        if encoding.exitcode == 0:
            assert contents(output) == expected
            stores.append(tmp_path / f"store-{len(stores)}")
            continue
        assert encoding.exitcode == -signal.SIGKILL
        now = complete(output) if output.exists() else {}
        # What has its name is whole, and what was whole before was not written again.
        assert all(path.read_bytes() == expected[path.name] for path in now)
        assert before.items() <= now.items()
        in_the_middle += any(path.name.startswith("shard-") for path in now) and 2 * len(now) < len(
            expected
        )
    assert in_the_middle >= 3

    assert exit_code(run, folder, tiny_bert, stores[-1], "fp32") == 0
    assert contents(stores[-1]) == expected


def test_two_processes_write_what_one_does_even_when_one_of_them_is_killed(
    folder, tiny_bert, tmp_path, caplog
):
    run(folder, tiny_bert, tmp_path / "one", "int8")
    two, killed = tmp_path / "two", []

    def kill() -> None:
        """One of the two, once it has written something and not yet everything."""
        end = time.monotonic() + 100
        while time.monotonic() < end and not killed:
            if len(list(two.glob("shard-*"))) >= 2:
                victim = multiprocessing.active_children()[0]
                os.kill(victim.pid, signal.SIGKILL)
                killed.append(len(list(two.glob("shard-*"))))
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    run(folder, tiny_bert, two, "int8", processes=2)
    killer.join()
    assert killed
    assert killed[0] < 38
    assert "a process died" in caplog.text
    assert contents(two) == contents(tmp_path / "one")
