"""A real cluster of two nodes on this machine, and workers that are really killed."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from beir_cocodr.plugins import ray as plugin
from beir_cocodr.plugins.ray import RayPool
from conftest import write_beir

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.vectors.pool import Workers

# Not imported here: processes are forked from one that has imported the modules of tests, and Ray
# has threads.
if find_spec("ray") is None:
    pytest.skip("ray is not installed: pip install 'beir-cocodr[ray]'", allow_module_level=True)

DOCUMENTS, SIZE, MEMORY = 240, 8, 100 * 2**20
# Seconds, far beyond what anything here takes on a busy machine.
PATIENCE = 240.0
# Loopback all the same: for 127.0.0.1 Ray would put the address of the machine, where nothing
# listens.
LOOPBACK = "127.0.0.2"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import ray
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else workers wait for all other tests
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
    encode(str(folder), str(tiny_bert), output, options(), workers=Workers(threads=1))
    return output


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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


def left_over() -> list[psutil.Process]:
    """Workers that do not end: after a run Ray's agents end them in their own time."""
    end = time.monotonic() + PATIENCE
    while (found := workers()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as status:
        main([str(argument) for argument in arguments])
    return int(status.value.code or 0)


def killer_of_one(output: Path, killed: list[int]) -> threading.Thread:
    """Kills an actor that is there once shards are, and notes how many those were; runs until it
    has.
    """

    def kill() -> None:
        # Looking for it only then might take until all are written.
        end, victims = time.monotonic() + PATIENCE, []
        while time.monotonic() < end and not (victims := workers()):
            time.sleep(0.01)
        while victims and time.monotonic() < end and not killed:
            written = len(list(output.glob("shard-*")))
            if written >= 2:
                os.kill(victims[0].pid, signal.SIGKILL)
                killed.append(written)
            time.sleep(0.002)

    started = threading.Thread(target=kill)
    started.start()
    return started


def test_two_nodes_write_what_one_process_does_and_an_actor_killed_in_the_middle_changes_no_byte(
    address, folder, tiny_bert, whole, tmp_path, capsys, caplog, monkeypatch
):
    """By the commands; without an ADDRESS the cluster is that of RAY_ADDRESS."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    store = tmp_path / "store"
    given = ["--dataset", folder, "--threads", 1]
    sizes = ["--shard-size", SIZE, "--token-budget", 256]
    encoding = ["encode", "--model", tiny_bert, "--output", store, *given, *sizes, "--ray"]
    killer = killer_of_one(store, killed := [])
    assert command(*encoding) == 0
    killer.join()
    assert killed
    assert killed[0] < DOCUMENTS // SIZE - 2
    assert (
        f"{DOCUMENTS} documents of 32 dimensions in 30 shards"
        in (printed := capsys.readouterr()).out
    )
    # One may be done with all before the other has imported everything.
    assert re.search(
        r"by 2 actors on (1 node|2 nodes) of Ray; 1 of them died and were replaced\n", printed.out
    )
    assert "an actor died" in printed.err + caplog.text
    assert contents(store) == contents(whole)
    assert command(*encoding, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["documents_encoded"], again["ray"]["tasks_by_node"]) == (0, {})

    searching = ["search", "--store", store, *given, "--top-k", 20, "--json"]
    assert command(*searching, "--ray", address, "--output", tmp_path / "two.run") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ray"]["actors"], report["ray"]["died"], len(report["devices"])) == (2, 0, 2)
    assert sum(report["ray"]["tasks_by_node"].values()) == 8
    search(whole, str(folder), tmp_path / "one.run", StoreSearchOptions(top_k=20, threads=1))
    assert (tmp_path / "two.run").read_bytes() == (tmp_path / "one.run").read_bytes()
    assert len((tmp_path / "one.run").read_text().splitlines()) == 20 * report["queries"]
    assert not import_module("ray").is_initialized()
    assert not left_over()


def test_two_nodes_sharpen_as_one_process_does(address, folder, tiny_bert, tmp_path, capsys):
    generated = tmp_path / "generated"
    settings = GenerationOptions(per_passage=2, query_kinds="claims,keywords")
    generate_queries(str(folder), "lexical", generated, settings)
    given = ["--dataset", folder, "--threads", 1, "--shard-size", SIZE, "--token-budget", 256]
    encoding = ["encode", "--model", tiny_bert, *given, "--sharpen", generated, "--output"]
    assert command(*encoding, tmp_path / "one") == 0
    assert command(*encoding, tmp_path / "two", "--ray", address) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"{DOCUMENTS} of {DOCUMENTS} documents have generated queries") == 2
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert not left_over()


@pytest.fixture
def pool(address) -> Iterator[RayPool]:
    with plugin.connected(address):
        yield RayPool(cpus=1, gpus=0, device="cpu")


# Functions in functions travel to the actors by value, which this module cannot be imported by.
def test_both_nodes_have_work_at_the_same_time(pool, tmp_path):
    def start(device: str) -> Callable[[int], None]:
        (tmp_path / str(os.getpid())).touch()

        def work(task: int) -> None:
            end = time.monotonic() + PATIENCE
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

    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match=r"3 times .*4 parts"):
        list(pool.share_out(range(4), start, ["cpu"]))
    assert not left_over()


def test_results_wait_for_who_takes_them(pool, tmp_path):
    """With results of 20 MB and a store of 100, thirty of them pass only if few are asked for at a
    time.
    """

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
    assert most <= 6  # Two for each of two actors, and those done while one is fetched.


def test_what_a_task_raises_arrives_as_it_is(pool):
    def start(device: str) -> Callable[[int], int]:
        from beir_cocodr.errors import InputError

        def work(task: int) -> int:
            raise InputError(f"part {task} is gone")

        return work

    with pytest.raises(InputError, match=r"^part \d is gone$") as caught:
        list(pool.share_out([0, 1], start, ["cpu"]))
    assert type(caught.value) is InputError
    assert list(pool.share_out([], start, ["cpu"])) == []


def test_clusters_that_are_too_small_or_not_there(
    address, folder, tiny_bert, tmp_path, monkeypatch
):
    with pytest.raises(InputError, match=r"room for 2 .*1 CPUs.*3"):
        plugin.encode(
            str(folder),
            str(tiny_bert),
            tmp_path / "s",
            cluster=plugin.Cluster(address, actors=3, threads=4),
        )
    for nowhere in ("no address", f"{LOOPBACK}:1", "127.0.0.1:99999"):
        with pytest.raises(InputError, match="no cluster of Ray"), plugin.connected(nowhere):
            pass
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"beir-cocodr\[ray\]"), plugin.connected(address):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_command_starts_a_cluster_of_its_own_and_ends_it(folder, whole, tmp_path, capfd):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    arguments = ["search", "--store", whole, "--dataset", folder, "--output", tmp_path / "own.run"]
    settings = ["--top-k", 20, "--threads", 1, "--processes", 1]
    assert command(*arguments, *settings, "--ray", "local", "--json") == 0
    assert json.loads(capfd.readouterr().out)["ray"]["actors"] == 1
    left = {
        p.pid for p in psutil.Process().children(recursive=True) if p.status() != "zombie"
    } - before
    assert not left
    search(whole, str(folder), tmp_path / "one.run", StoreSearchOptions(top_k=20, threads=1))
    assert (tmp_path / "own.run").read_bytes() == (tmp_path / "one.run").read_bytes()


def test_commands_say_what_is_wrong_with_a_cluster_in_one_line(
    address, folder, tiny_bert, whole, tmp_path, capsys, monkeypatch
):
    encoding = ["encode", "--dataset", folder, "--model", tiny_bert, "--output", tmp_path / "s"]
    searching = ["search", "--store", whole, "--dataset", folder, "--output", tmp_path / "r"]
    monkeypatch.setenv("RAY_ADDRESS", f"{LOOPBACK}:1")
    for arguments, expected in (
        ([*encoding, "--ray"], "no cluster of Ray to be reached at '127.0.0.2:1'"),
        ([*searching, "--ray", "nowhere"], "no cluster of Ray to be reached at 'nowhere'"),
        ([*searching, "--ray", address, "--processes", 3, "--threads", 1], "room for 2 actors"),
        ([*searching, "--ray", address, "--processes", 0], "0 were asked for"),
        ([*searching, "--ray", address, "--index", "flat"], "--index or --ray, not both"),
    ):
        assert command(*arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines()[-1].startswith("error: ")
        assert expected in captured.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
