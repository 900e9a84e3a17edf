"""Ray: a store encoded and searched by all nodes of a cluster.

One actor has one copy of the model, or of the queries, and whole shards are its work. All nodes need this
package, and must see the store, the cache of this package (``BEIR_COCODR_CACHE``) and the model under the
same paths, on a shared file system. Files come out the same, to the byte, as from one process with the same
number of threads on the same kind of processor.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.store_run import search as search_and_write
from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.encode import encode as encode_corpus
from beir_cocodr.retrieval.store.options import EncodeOptions
from beir_cocodr.retrieval.torch_threads import torch_threads

from .ray_pool import RayPool

#: Bytes of a node's object store, where this process starts the cluster.
OBJECT_STORE = 512 * 2**20
# Seconds.
_TIMEOUT = 10.0
_WAY_OUT = "start one with ray start --head, or give the HOST:PORT of another, or local"


def encode(
    dataset: str,
    model: str,
    output: Path,
    options: EncodeOptions | None = None,
    address: str = "local",
    actors: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: bool = False,
    **encoder: Any,
) -> dict[str, Any]:
    """:func:`beir_cocodr.retrieval.encode.encode` on a cluster: resumed and refused in the same way.

    Args:
        dataset, model, output, options, threads, progress, **encoder: as there.
        address: of the cluster: ``HOST:PORT``, ``auto`` for the one that RAY_ADDRESS names or that runs on
            this machine, or ``local`` for one that is started for this. Where this process is connected
            already, that one is taken.
        actors: by default as many as the cluster has room for.
        device: of all actors; by default the GPU of each where there are any, else the CPU.

    Returns:
        as there, and ``ray``: actors, how many died, and how many shards each node did.

    Raises:
        InputError: as there; Ray is not installed, the cluster is not to be reached or too small, or a node
            wrote its shards to another folder.
    """
    with connected(address), torch_threads(threads) as count:
        size, pool = _pool(actors, count, device)
        report = encode_corpus(
            dataset, model, output, options, size, device, count, progress, pool.share_out, **encoder
        )
        EmbeddingStore.open(output)  # fails where nodes have a folder of their own under this path
        return {**report, "ray": _describe(size, pool)}


def search(
    store: str | Path,
    dataset: str,
    output: Path,
    top_k: int = 100,
    address: str = "local",
    actors: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """:func:`beir_cocodr.evaluation.store_run.search` on a cluster, exactly.

    Args:
        store, dataset, output, top_k, threads: as there.
        address, actors, device: as for :func:`encode`.
        **options: ``split``, ``policy``, ``model`` and ``batch_size``, as there.

    Returns:
        as there, and ``ray`` as for :func:`encode`.

    Raises:
        InputError: as there, and as for :func:`encode`.
    """
    with connected(address), torch_threads(threads) as count:
        size, pool = _pool(actors, count, device)
        report = search_and_write(
            store,
            dataset,
            output,
            top_k,
            processes=size,
            device=device,
            threads=count,
            share=pool.share_out,
            **options,
        )
        return {**report, "ray": _describe(size, pool)}


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster, or start one; a connection that is there already is taken and kept.

    Raises:
        InputError: Ray is not installed, or does not answer.
    """
    if find_spec("ray") is None:
        raise InputError("a cluster needs Ray: pip install 'beir-cocodr[ray]'")
    ray: Any = import_module("ray")
    if ray.is_initialized():
        yield
        return
    _probe(address)
    try:
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=OBJECT_STORE,
                _node_ip_address="127.0.0.1",
            )
        else:
            ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"there is no cluster of Ray to be reached at {address!r}: {reason}; {_WAY_OUT}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _probe(address: str) -> None:
    """Fail at once where nothing answers, because Ray tries for seven minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("local", "auto"):
        return
    try:
        if not port.isdigit():
            raise OSError("an address is HOST:PORT")
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"there is no cluster of Ray to be reached at {address!r}: {error}; {_WAY_OUT}"
        ) from error


@dataclass(frozen=True)
class _Room:
    """For actors of one kind: what each takes, and how many fit."""

    cpus: int
    gpus: int
    actors: int


def _room(threads: int, device: str | None) -> _Room:
    """GPUs one for each actor where there are any; else CPUs as many as threads, or all of a smaller node."""
    ray: Any = import_module("ray")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if device in (None, "cuda") and (gpus := sum(int(node.get("GPU", 0)) for node in nodes)):
        return _Room(0, 1, gpus)
    cpus = max(1, min(threads, max(int(node.get("CPU", 0)) for node in nodes)))
    return _Room(cpus, 0, sum(int(node.get("CPU", 0)) // cpus for node in nodes))


def _pool(actors: int | None, threads: int, device: str | None) -> tuple[int, RayPool]:
    room = _room(threads, device)
    wanted = room.actors if actors is None else actors
    if not 1 <= wanted <= room.actors:
        what = f"{room.cpus} CPUs" if room.cpus else "a GPU"
        raise InputError(
            f"the cluster has room for {room.actors} actors with {what} each, and {wanted} are asked for: "
            "ask for another number, or for fewer threads"
        )
    return wanted, RayPool(room.cpus, room.gpus, None if device == "cuda" else device)


def _describe(actors: int, pool: RayPool) -> dict[str, Any]:
    return {"actors": actors, "died": pool.deaths, "tasks_by_node": dict(pool.tasks_by_node)}
