"""Work shared out to actors of a Ray cluster, which may die."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from beir_cocodr.errors import InputError

# Deaths for each actor, without a task done in between, after which nothing is tried again.
_ATTEMPTS = 3
# Tasks given to an actor at a time: one that it does, one that waits, so that results in Ray's object store
# are never more than that.
_UNDER_WAY = 2
# Seconds without news after which it is said what is waited for.
_PATIENCE = 60.0
# What ``ready`` answers to, beside tasks.
_READY = object()

log = logging.getLogger(__name__)


class ShardWorker:
    """An actor: what it does is made once, by its first task, so that what fails there reaches the caller.

    Args:
        start: takes a device and returns what does a task there.
        device: "cpu", ...; None for the GPU that Ray gave to this actor, or the CPU where it gave none.
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


class RayPool:
    """``share_out`` over the nodes of the cluster that this process is connected to.

    Args:
        cpus, gpus: that each actor takes.
        device: of all actors; None for the GPU that each has, else the CPU.

    Attributes:
        tasks_by_node: how many tasks were done on each node.
        deaths: of actors.
    """

    def __init__(self, cpus: int, gpus: int, device: str | None) -> None:
        self.cpus, self.gpus, self.device = cpus, gpus, device
        self.tasks_by_node: Counter[str] = Counter()
        self.deaths = 0

    def share_out(
        self, tasks: Sequence[Any], start: Callable[[str], Callable[[Any], Any]], devices: Sequence[str]
    ) -> Iterator[Any]:
        """As :func:`beir_cocodr.retrieval.process_pool.share_out`, with actors for processes.

        An actor that died is replaced and what it had not finished is done again, on whichever node has room,
        so a task may be done twice.

        Args:
            tasks: few enough to hold in a list.
            start: called in each actor with its device, returns what does a task there.
            devices: one for each actor; what they are is decided where the actor is.

        Raises:
            InputError: actors died again and again without a task done in between.
            Exception: whatever a task raised.
        """
        if not tasks:
            return
        run = _Run(self, start, tasks)
        try:
            for _ in devices:
                run.begin()
            yield from run.results()
        finally:
            run.end()


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

    def end(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)

    def _feed(self, actor: Any) -> None:
        held = sum(other is actor for other, _ in self.calls.values())
        while held < _UNDER_WAY and self.left:
            task = self.left.popleft()
            self.calls[actor.work.remote(task)] = actor, task
            held += 1

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
                f"actors of Ray died {deaths} times with {self.count - self.done} parts of the work left "
                f"({reason}): most likely memory ran out; use fewer actors, smaller shards or a lower token "
                "budget"
            ) from None
        log.warning("an actor died (%s); %d parts are left and go on", reason, self.count - self.done)
        self.begin()
