"""Encoding and searching a store on all nodes of a Ray cluster, whose actors may die.

Each actor holds one copy of the model, or of the queries, and works on whole shards. All nodes need
this package, and must see the store, the cache of this package (``BEIR_COCODR_CACHE``) and the
model under the same paths, on a shared file system. The files equal, to the byte, those of one
process with as many threads on such a processor.
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
    from beir_cocodr.evaluation.store_run import StoreRun, StoreSearchOptions

# Deaths for each actor, without a finished task in between, after which the run gives up.
_ATTEMPTS = 3

# Tasks given to an actor at a time: one in progress and one waiting. Ray's object store holds no
# more results.
_UNDER_WAY = 2

# Seconds without news after which progress is logged.
_PATIENCE = 60.0

# Stands for the answer of ``ready``, which is no task.
_READY = object()

#: Makes the function that does a task, on a device.
Start = Callable[[str], Callable[[Any], Any]]

log = logging.getLogger(__name__)


class ShardWorker:
    """An actor that does tasks on one device.

    The function that does a task is made by the first task, so that an error in it reaches the
    caller. Without a device, the actor uses the GPU that Ray gave it, or the CPU if it got none.
    """

    def __init__(self, start: Start, device: str | None) -> None:
        """Keep what the first task needs."""
        self._start = start
        self._device = device
        self._do: Callable[[Any], Any] | None = None

    def ready(self) -> None:
        """Answer once the actor is running."""

    def work(self, task: object) -> tuple[Any, str]:
        """Return the result of a task, and the id of the node that did it."""
        ray: Any = import_module("ray")
        if self._do is None:
            default = "cuda:0" if ray.get_gpu_ids() else "cpu"
            self._do = self._start(self._device or default)
        return self._do(task), str(ray.get_runtime_context().get_node_id())


@dataclass(frozen=True)
class Cluster:
    """A cluster of Ray, and what this package takes of it.

    Args:
        address: ``HOST:PORT``; ``auto`` for the cluster that RAY_ADDRESS names or that runs on this
            machine; or ``local`` to start one. An existing connection of this process is used in
            any case.
        actors: The number of actors. Default: as many as the cluster has room for.
        threads: Threads of each actor. Default: those of torch.
    """

    address: str = "local"
    actors: int | None = None
    threads: int | None = None


@dataclass
class RayPool:
    """The actors of the cluster that this process is connected to.

    Attributes:
        cpus: CPUs that each actor takes.
        gpus: GPUs that each actor takes.
        device: The device of all actors; None means the GPU that each has, else the CPU.
        tasks_by_node: Node id to the number of tasks done there.
        deaths: The number of actors that died.
    """

    cpus: int
    gpus: int
    device: str | None
    tasks_by_node: Counter[str] = field(default_factory=Counter)
    deaths: int = 0

    def share_out(
        self,
        tasks: Sequence[object],
        start: Start,
        devices: Sequence[str],
    ) -> Iterator[object]:
        """Share tasks out among actors, as beir_cocodr.retrieval.vectors.pool.share_out does.

        An actor that died is replaced, and its unfinished tasks are done again on whichever node
        has room. Whatever a task raises is raised here.

        Args:
            tasks: The tasks.
            start: Makes the function that does a task.
            devices: One for each actor; the node of an actor decides which device it uses.

        Raises:
            InputError: Actors die again and again.
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
    """The waiting tasks of one call of ``share_out``, and the calls that actors have not answered.

    Attributes:
        calls: Reference of a call to its actor and task.
    """

    def __init__(
        self,
        pool: RayPool,
        start: Start,
        tasks: Sequence[object],
    ) -> None:
        self.ray: Any = import_module("ray")
        self.pool = pool
        self.left = deque(tasks)
        self.count = len(tasks)
        self.done = 0
        self.start = self.ray.put(start)  # once for all actors
        self.calls: dict[Any, tuple[Any, Any]] = {}
        self.actors: list[object] = []
        self.actor_class = self.ray.remote(ShardWorker).options(
            num_cpus=pool.cpus,
            num_gpus=pool.gpus,
            scheduling_strategy="SPREAD",
        )

    def begin(self) -> None:
        """Start an actor.

        It gets no task before it answers: it may wait for a node with room while others work.
        """
        actor = self.actor_class.remote(self.start, self.pool.device)
        self.actors.append(actor)
        self.calls[actor.ready.remote()] = (actor, _READY)

    def results(self) -> Iterator[object]:
        """Yield results as they come, and replace actors that die."""
        exceptions = self.ray.exceptions
        # An object is lost with the node that held it.
        lost = (exceptions.RayActorError, exceptions.ObjectLostError)
        deaths = 0
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
            del answered  # Ray may drop the object while the caller works on the result
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
            self.calls[actor.work.remote(task)] = (actor, task)

    def _replace(
        self,
        actor: Any,
        task: object,
        error: Exception,
        deaths: int,
    ) -> None:
        self.pool.deaths += 1
        unfinished = [task]
        references = [reference for reference, (other, _) in self.calls.items() if other is actor]
        for reference in references:
            _, waiting = self.calls.pop(reference)
            unfinished.append(waiting)
        tasks = [part for part in unfinished if part is not _READY]
        self.left.extendleft(reversed(tasks))
        self.ray.kill(actor)  # it may only have been out of reach
        self.actors.remove(actor)
        reason = str(error).strip().splitlines()[0]
        left = self.count - self.done
        if deaths >= _ATTEMPTS * (len(self.actors) + 1):
            raise InputError(
                f"actors of Ray died {deaths} times with {left} parts of the work left ({reason}), "
                "most likely because memory ran out; use fewer actors, smaller shards or a lower "
                "token budget"
            ) from None
        log.warning("an actor died (%s); %d parts are left, and the work continues", reason, left)
        self.begin()


#: Bytes of a node's object store in a cluster that this process starts.
OBJECT_STORE = 512 * 2**20

# Seconds to wait for the address of a cluster.
_TIMEOUT = 10.0

_WAY_OUT = "start one with ray start --head, or give the HOST:PORT of another, or local"


def encode(
    dataset: str,
    model: str,
    output: Path,
    options: EncodeOptions = EncodeOptions(),
    cluster: Cluster = Cluster(),
    progress: bool = False,
    encoder: EncoderOptions = EncoderOptions(),
) -> Json:
    """Encode a corpus on a cluster, as :func:`beir_cocodr.retrieval.store.encode.encode` does.

    Arguments, errors and resumption are those of that function.

    Args:
        dataset: The collection.
        model: The encoder.
        output: Folder of the store.
        options: Settings of the store.
        cluster: The cluster.
        progress: Show progress bars on stderr.
        encoder: How the encoder is loaded. Its device is by default the GPU of each actor where
            there are any, else the CPU.

    Returns:
        The report of that function, with ``ray``: the number of actors, how many died, and how many
        shards each node encoded.

    Raises:
        InputError: As in that function; also if Ray is not installed, the cluster cannot be reached
            or is too small, or a node wrote its shards to another folder.
    """
    # Imported here and below because actors import this module, and those that need no torch must
    # start without it.
    from beir_cocodr.retrieval.store.encode import encode as encode_corpus
    from beir_cocodr.retrieval.store.store import EmbeddingStore
    from beir_cocodr.retrieval.vectors.pool import Workers, torch_threads

    with connected(cluster.address), torch_threads(cluster.threads) as count:
        size, pool = _pool(cluster.actors, count, encoder.device)
        report = encode_corpus(
            dataset,
            model,
            output,
            options,
            encoder=encoder,
            workers=Workers(size, count, pool.share_out),
            progress=progress,
        )
        EmbeddingStore.open(output)  # fails if a node wrote to a folder of its own with this path
        return {**report, "ray": _describe(size, pool)}


def search(
    store: str | Path,
    dataset: str,
    output: Path,
    options: StoreSearchOptions | None = None,
    cluster: Cluster = Cluster(),
) -> StoreRun:
    """Search a store on a cluster, as :func:`beir_cocodr.evaluation.store_run.search` does.

    The search is exact. Arguments and errors are those of that function.

    Args:
        store: Folder of the store.
        dataset: The collection with the queries.
        output: The run to write.
        options: Options of that function; their device is that of all actors, and the cluster says
            how many processes and threads there are.
        cluster: The cluster.

    Returns:
        The record of that function, with ``ray`` as for :func:`encode`.
    """
    from beir_cocodr.evaluation.store_run import StoreSearchOptions
    from beir_cocodr.evaluation.store_run import search as search_and_write
    from beir_cocodr.retrieval.vectors.pool import torch_threads

    options = options or StoreSearchOptions()
    with connected(cluster.address), torch_threads(cluster.threads) as count:
        size, pool = _pool(cluster.actors, count, options.device)
        options = replace(options, processes=size, threads=count)
        report = search_and_write(store, dataset, output, options, share=pool.share_out)
        return replace(report, ray=_describe(size, pool))


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster, or start one.

    A connection that exists already is used and kept.

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
    local_settings: Json = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local_settings = {
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
            "_node_ip_address": "127.0.0.1",
        }
    problem = _unreachable(address)
    with explained(problem, _WAY_OUT, ConnectionError, RuntimeError, ValueError):
        ray.init(
            address=address,
            log_to_driver=False,
            **local_settings,
        )
    try:
        yield
    finally:
        ray.shutdown()


def _unreachable(address: str) -> str:
    return f"there is no cluster of Ray to be reached at {address!r}"


def _probe(address: str) -> None:
    """Fail at once if nothing answers, because Ray tries for seven minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with explained(_unreachable(address), _WAY_OUT, OSError, OverflowError):
        if not port.isdigit():
            raise OSError("an address is HOST:PORT")
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()


def _pool(
    actors: int | None,
    threads: int,
    device: str | None,
) -> tuple[int, RayPool]:
    """Return the number of actors and their pool.

    Each actor takes a GPU if there are any, else as many CPUs as it has threads, or all CPUs of the
    largest node.
    """
    ray: Any = import_module("ray")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus_of_nodes = [int(node.get("CPU", 0)) for node in nodes]
    gpus = 0
    if device in (None, "cuda"):
        gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if gpus:
        cpus = 0
        room = gpus
        share = "a GPU"
    else:
        cpus = max(1, min(threads, max(cpus_of_nodes)))
        room = sum(count // cpus for count in cpus_of_nodes)
        share = f"{cpus} CPUs"
    wanted = room if actors is None else actors
    if not 1 <= wanted <= room:
        raise InputError(
            f"the cluster has room for {room} actors with {share} each, and {wanted} were asked "
            "for; ask for another number, or for fewer threads"
        )
    pool_device = None if device == "cuda" else device
    return wanted, RayPool(cpus, min(gpus, 1), pool_device)


def _describe(actors: int, pool: RayPool) -> Json:
    return {"actors": actors, "died": pool.deaths, "tasks_by_node": dict(pool.tasks_by_node)}
