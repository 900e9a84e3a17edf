"""Ray: a store encoded and searched by all nodes of a cluster, whose actors may die.

One actor has one copy of the model, or of the queries, and whole shards are its work. All nodes
need this package, and must see the store, the cache of this package (``BEIR_COCODR_CACHE``) and the
model under the same paths, on a shared file system. Files come out the same, to the byte, as from
one process of as many threads on such a processor.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beir_cocodr.errors import InputError, explained
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import Json
from beir_cocodr.retrieval.store.record import EncodeOptions

if TYPE_CHECKING:
    from beir_cocodr.evaluation.store_run import StoreRun

# Deaths for each actor, without a task done in between, after which nothing is tried again.
_ATTEMPTS = 3

# Tasks given to an actor at a time: one that it does, one that waits. Ray's object store holds no
# more results.
_UNDER_WAY = 2

# Seconds without news after which progress is logged.
_PATIENCE = 60.0

# What ``ready`` answers to, beside tasks.
_READY = object()
log = logging.getLogger(__name__)


class ShardWorker:
    """An actor. What does a task on ``device`` is made once, by the first task: what fails there
    reaches the caller.

    Without a device, that is the GPU that Ray gave to this actor, or the CPU where it gave none.
    """

    def __init__(self, start: Callable[[str], Callable[[Any], Any]], device: str | None) -> None:
        self._start, self._device = start, device
        self._do: Callable[[Any], Any] | None = None

    def ready(self) -> None:
        """Answers when the actor is there."""

    def work(self, task: Any) -> tuple[Any, str]:
        """The result of a task, and the id of the node that it was done on."""
        ray: Any = import_module("ray")
        if self._do is None:
            self._do = self._start(self._device or ("cuda:0" if ray.get_gpu_ids() else "cpu"))
        return self._do(task), str(ray.get_runtime_context().get_node_id())


@dataclass
class RayPool:
    """``share_out`` over the nodes of the cluster that this process is connected to.

    Attributes:
        cpus, gpus: that each actor takes.
        device: of all actors; None for the GPU that each has, else the CPU.
        tasks_by_node: how many tasks were done on each node.
        deaths: of actors.
    """

    cpus: int
    gpus: int
    device: str | None
    tasks_by_node: Counter[str] = field(default_factory=Counter)
    deaths: int = 0

    def share_out(
        self,
        tasks: Sequence[Any],
        start: Callable[[str], Callable[[Any], Any]],
        devices: Sequence[str],
    ) -> Iterator[Any]:
        """As :func:`beir_cocodr.retrieval.pool.share_out`, with actors for processes; whatever a
        task raises is raised.

        An actor that died is replaced and what it had not finished is done again, on whichever node
        has room; an InputError where they die again and again. ``devices`` has one for each actor;
        its place decides which.
        """
        if not tasks:
            return
        run = _Run(self, start, tasks)
        try:
            for _ in devices:
                run.begin()
            yield from run.results()
        finally:
            for actor in run.actors:
                run.ray.kill(actor)


class _Run:
    """One sharing out: tasks that wait, and calls that actors have not answered."""

    def __init__(self, pool: RayPool, start: Any, tasks: Sequence[Any]) -> None:
        self.ray: Any = import_module("ray")
        self.pool, self.left, self.done, self.count = pool, deque(tasks), 0, len(tasks)
        self.start = self.ray.put(start)  # once for all actors
        self.calls: dict[Any, tuple[Any, Any]] = {}  # reference to actor and task
        self.actors: list[Any] = []
        options = {"num_cpus": pool.cpus, "num_gpus": pool.gpus, "scheduling_strategy": "SPREAD"}
        self.actor_class = self.ray.remote(ShardWorker).options(**options)

    def begin(self) -> None:
        actor = self.actor_class.remote(self.start, self.pool.device)
        self.actors.append(actor)
        # No task before it answers: it may wait for a node with room while others do the work.
        self.calls[actor.ready.remote()] = actor, _READY

    def results(self) -> Iterator[Any]:
        exceptions, deaths = self.ray.exceptions, 0
        # An object is lost with the node that it was on.
        lost = (exceptions.RayActorError, exceptions.ObjectLostError)
        while self.done < self.count:
            answered, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=_PATIENCE)
            if not answered:
                log.info("%d of %d parts are done; waiting for actors", self.done, self.count)
                continue
            actor, task = self.calls.pop(answered[0])
            try:
                answer = self.ray.get(answered[0])
            except exceptions.RayTaskError as error:
                raise error.cause from None
            except lost as error:
                deaths += 1
                self._replace(actor, task, error, deaths)
                continue
            del answered
            if task is not _READY:
                result, node = answer
                self.pool.tasks_by_node[node] += 1
                self.done += 1
                deaths = 0
                yield result
            self._feed(actor)

    def _feed(self, actor: Any) -> None:
        held = sum(other is actor for other, _ in self.calls.values())
        for _ in range(min(_UNDER_WAY - held, len(self.left))):
            task = self.left.popleft()
            self.calls[actor.work.remote(task)] = actor, task

    def _replace(self, actor: Any, task: Any, error: Exception, deaths: int) -> None:
        self.pool.deaths += 1
        theirs = [reference for reference, (other, _) in self.calls.items() if other is actor]
        again = [task, *(self.calls.pop(reference)[1] for reference in theirs)]
        self.left.extendleft(part for part in reversed(again) if part is not _READY)
        self.ray.kill(actor)  # where it was only out of reach
        self.actors.remove(actor)
        reason = str(error).strip().splitlines()[0]
        if deaths >= _ATTEMPTS * (len(self.actors) + 1):
            raise InputError(
                f"actors of Ray died {deaths} times with {self.count - self.done} parts of the work left ({reason}): "
                "most likely memory ran out; use fewer actors, smaller shards or a lower token budget"
            ) from None
        log.warning(
            "an actor died (%s); %d parts are left and go on", reason, self.count - self.done
        )
        self.begin()


#: Bytes of a node's object store, where this process starts the cluster.
OBJECT_STORE = 512 * 2**20

# Seconds.
_TIMEOUT = 10.0
_WAY_OUT = "start one with ray start --head, or give the HOST:PORT of another, or local"


def encode(
    dataset: str,
    model: str,
    output: Path,
    options: EncodeOptions = EncodeOptions(),
    address: str = "local",
    actors: int | None = None,
    threads: int | None = None,
    progress: bool = False,
    encoder: EncoderOptions = EncoderOptions(),
) -> Json:
    """:func:`beir_cocodr.retrieval.store.encode.encode` on a cluster: arguments, errors,
    resumption, and report with ``ray``: actors, how many died, how many shards each node did. An
    InputError: as there; Ray is not installed, the cluster is not to be reached or too small, or a
    node wrote its shards to another folder.

    Args:
        address: of the cluster: ``HOST:PORT``, ``auto`` for the one that RAY_ADDRESS names or that
            runs on this machine, or ``local`` for one that is started for this. Where this process
            is connected, that is taken.
        actors: by default as many as the cluster has room for.
        encoder: its device is by default the GPU of each actor where there are any, else the CPU.
    """
    # Imported here and below, so that actors, which import this module, start without torch where
    # they need none.
    from beir_cocodr.retrieval.pool import torch_threads
    from beir_cocodr.retrieval.store.encode import encode as encode_corpus
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    with connected(address), torch_threads(threads) as count:
        size, pool = _pool(actors, count, encoder.device)
        report = encode_corpus(
            dataset, model, output, options, size, count, progress, pool.share_out, encoder
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
) -> StoreRun:
    """:func:`beir_cocodr.evaluation.store_run.search` on a cluster, exactly, with its arguments and
    errors.

    ``address`` and ``actors`` are as for :func:`encode`, ``device`` is that of all actors, and the
    options are ``split``, ``policy``, ``model`` and ``batch_size``. The record has ``ray`` as for
    :func:`encode` beside its own.
    """
    from beir_cocodr.evaluation.store_run import search as search_and_write
    from beir_cocodr.retrieval.pool import torch_threads

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
        return replace(report, ray=_describe(size, pool))


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster, or start one; a connection that is there already is taken
    and kept.

    ``InputError`` where Ray is not installed, or does not answer.
    """
    if find_spec("ray") is None:
        raise InputError("a cluster needs Ray: pip install 'beir-cocodr[ray]'")
    ray: Any = import_module("ray")
    if ray.is_initialized():
        yield
        return
    _probe(address)
    own: Json = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        own = {
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
            "_node_ip_address": "127.0.0.1",
        }
    none = f"there is no cluster of Ray to be reached at {address!r}"
    with explained(none, _WAY_OUT, ConnectionError, RuntimeError, ValueError):
        ray.init(address=address, log_to_driver=False, **own)
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
    with explained(
        f"there is no cluster of Ray to be reached at {address!r}", _WAY_OUT, OSError, OverflowError
    ):
        if not port.isdigit():
            raise OSError("an address is HOST:PORT")
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()


def _pool(actors: int | None, threads: int, device: str | None) -> tuple[int, RayPool]:
    """The number of actors and their pool: one GPU each if any, else CPUs as many as threads, or a
    smaller node's.
    """
    ray: Any = import_module("ray")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus_of = [int(node.get("CPU", 0)) for node in nodes]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes) if device in (None, "cuda") else 0
    cpus = 0 if gpus else max(1, min(threads, max(cpus_of)))
    room = gpus or sum(count // cpus for count in cpus_of)
    wanted = room if actors is None else actors
    if not 1 <= wanted <= room:
        raise InputError(
            f"the cluster has room for {room} actors with {f'{cpus} CPUs' if cpus else 'a GPU'} each, and {wanted} are "
            "asked for: ask for another number, or for fewer threads"
        )
    return wanted, RayPool(cpus, min(gpus, 1), None if device == "cuda" else device)


def _describe(actors: int, pool: RayPool) -> Json:
    return {"actors": actors, "died": pool.deaths, "tasks_by_node": dict(pool.tasks_by_node)}
