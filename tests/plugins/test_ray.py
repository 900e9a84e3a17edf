"""A real cluster of two nodes on this machine, and workers that are really killed."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from beir_cocodr.plugins import ray as plugin
from beir_cocodr.plugins.ray_pool import RayPool
from conftest import write_beir

from beir_cocodr import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.store_run import search
from beir_cocodr.retrieval.encode import encode
from beir_cocodr.retrieval.encode_options import EncodeOptions
from beir_cocodr.retrieval.shard_job import ShardJob

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'beir-cocodr[ray]'")

DOCUMENTS, SIZE, MEMORY = 240, 8, 100 * 2**20
# Loopback all the same: for 127.0.0.1 Ray would put the address of the machine, where nothing listens.
LOOPBACK = "127.0.0.2"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "node_ip_address": LOOPBACK, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("ray") / "corpus", documents=DOCUMENTS)


def options(precision: str = "fp32") -> EncodeOptions:
    return EncodeOptions(shard_size=SIZE, precision=precision, token_budget=256)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, folder, tiny_bert) -> Path:
    """A store by one process, that no test may change."""
    output = tmp_path_factory.mktemp("stores") / "whole"
    encode(str(folder), str(tiny_bert), output, options(), threads=1)
    return output


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def workers() -> list[psutil.Process]:
    """Processes of ours that are actors which encode or search."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ray::ShardWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_two_nodes_write_what_one_process_does(address, folder, tiny_bert, whole, tmp_path):
    report = plugin.encode(str(folder), str(tiny_bert), tmp_path / "ray", options(), address, threads=1)
    assert contents(tmp_path / "ray") == contents(whole)
    assert report["ray"]["actors"] == 2
    assert sum(report["ray"]["tasks_by_node"].values()) == DOCUMENTS // SIZE
    assert report["documents_encoded"] == DOCUMENTS

    search(whole, str(folder), tmp_path / "one.run", 20, threads=1)
    found = plugin.search(whole, str(folder), tmp_path / "two.run", 20, address, threads=1)
    assert (tmp_path / "two.run").read_bytes() == (tmp_path / "one.run").read_bytes()
    assert len((tmp_path / "one.run").read_text().splitlines()) == 20 * found["queries"]
    assert found["ray"]["died"] == 0
    assert sum(found["ray"]["tasks_by_node"].values()) == 8
    assert not ray.is_initialized()
    assert not workers()

    again = plugin.encode(str(folder), str(tiny_bert), tmp_path / "ray", options(), address, threads=1)
    assert (again["documents_encoded"], again["ray"]["tasks_by_node"]) == (0, {})


def test_an_actor_killed_in_the_middle_changes_no_byte(address, folder, tiny_bert, whole, tmp_path, caplog):
    output, killed = tmp_path / "ray", []

    def kill() -> None:
        end = time.monotonic() + 100
        while time.monotonic() < end and not killed:
            written = len(list(output.glob("shard-*")))
            if written >= 2 and (victims := workers()):
                os.kill(victims[0].pid, signal.SIGKILL)
                killed.append(written)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    report = plugin.encode(str(folder), str(tiny_bert), output, options(), address, threads=1)
    killer.join()
    assert killed
    assert killed[0] < DOCUMENTS // SIZE - 2
    assert report["ray"]["died"] == 1
    assert "an actor died" in caplog.text
    assert contents(output) == contents(whole)


@pytest.fixture
def pool(address) -> Iterator[RayPool]:
    with plugin.connected(address):
        yield RayPool(cpus=1, gpus=0, device="cpu")


# Functions in functions travel to the actors by value, which this module cannot be imported by.
def test_both_nodes_have_work_at_the_same_time(pool, tmp_path):
    def start(device: str) -> Callable[[int], None]:
        (tmp_path / str(os.getpid())).touch()

        def work(task: int) -> None:
            end = time.monotonic() + 40
            while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
                time.sleep(0.01)

        return work

    assert list(pool.share_out(range(8), start, ["cpu", "cpu"])) == [None] * 8
    assert len(pool.tasks_by_node) == 2


def test_tasks_of_a_dead_actor_are_done_again_and_results_come_once(pool, tmp_path):
    def start(device: str) -> Callable[[int], tuple[int, str]]:
        def work(task: int) -> tuple[int, str]:
            mark = tmp_path / f"died-{task}"
            if task in (3, 7) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return task**2, device

        return work

    found = list(pool.share_out(range(12), start, ["cpu", "cpu"]))
    assert sorted(found) == [(task**2, "cpu") for task in range(12)]
    assert pool.deaths == 2
    assert sum(pool.tasks_by_node.values()) == 12


def test_what_kills_every_actor_ends_in_one_line(pool, caplog):
    def start(device: str) -> Callable[[int], int]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match="died 3 times with 4 parts"):
        list(pool.share_out(range(4), start, ["cpu"]))
    assert not any(process.is_running() and process.status() != "zombie" for process in workers())


def test_results_wait_for_who_takes_them(pool, tmp_path):
    """With results of 20 MB and a store of 100, thirty of them pass only if few are asked for at a time."""

    def start(device: str) -> Callable[[int], Any]:
        import numpy as np

        def work(task: int) -> Any:
            (tmp_path / str(task)).touch()
            return np.full(20 * 2**20, task, np.uint8)

        return work

    most = 0
    for taken, found in enumerate(pool.share_out(range(30), start, ["cpu", "cpu"])):
        time.sleep(0.02)
        most = max(most, len(list(tmp_path.iterdir())) - taken)
        assert (found == found[0]).all()
    assert taken == 29
    assert most <= 6  # two for each of two actors, and what is done while one is taken


def test_what_a_task_raises_arrives_as_it_is(pool, folder, tiny_bert, tmp_path):
    documents = load_collection(folder).documents
    job = ShardJob(tmp_path / "nowhere", documents, str(tiny_bert), {}, options(), 1)
    with pytest.raises(InputError, match="nowhere is gone") as caught:
        list(pool.share_out([0, 1], job.start, ["cpu", "cpu"]))
    assert type(caught.value) is InputError
    assert list(pool.share_out([], job.start, ["cpu"])) == []


def test_clusters_that_are_too_small_or_not_there(address, folder, tiny_bert, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="room for 2 actors with 1 CPUs each, and 3 are"):
        plugin.encode(str(folder), str(tiny_bert), tmp_path / "s", address=address, actors=3, threads=4)
    for nowhere in ("no address", f"{LOOPBACK}:1", "127.0.0.1:99999"):
        with pytest.raises(InputError, match="no cluster of Ray"), plugin.connected(nowhere):
            pass
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"beir-cocodr\[ray\]"), plugin.connected(address):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_of_its_own_is_started_and_ended(folder, whole, tmp_path):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    found = plugin.search(whole, str(folder), tmp_path / "own.run", 20, actors=1, threads=1)
    search(whole, str(folder), tmp_path / "one.run", 20, threads=1)
    assert (tmp_path / "own.run").read_bytes() == (tmp_path / "one.run").read_bytes()
    assert found["ray"]["actors"] == 1
    left = {p.pid for p in psutil.Process().children(recursive=True) if p.status() != "zombie"} - before
    assert not left
