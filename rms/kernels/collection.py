"""Collections of kernels, and their runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

from rms.kernels.connection import OpenTask, TaskDroppedError, connection
from rms.kernels.model import (
    Affinity,
    KernelSpec,
    Resource,
    TaskDrop,
    TaskId,
    TaskRegistered,
    TaskRun,
    TaskSpec,
)
from rms.kernels.places import Kernel, Place, bound, go_on, use_threads
from rms.kernels.remote import check_sendable, run_remotely
from rms.wire.messages import JOB_VARIABLE

T = TypeVar("T")

Deliver = Callable[[TaskRun | TaskDrop], object]  # takes the decision on a task
_numbers = map(TaskId, itertools.count(1))
_alone_logged = threading.Event()


class KernelCollection(Generic[T]):
    """A computation on one data object, with kernels for the kinds of devices that it can run on.

    Args:
        data: the data that the kernels work on; afterwards it has the result.
        kernels: at most one per resource.
        after: collections that must be done before, already started.
        priority: waiting collections of the highest priority go first.

    Raises:
        ValueError: there is no kernel, or there are two for a resource, or one for another node
            that cannot be sent there.
    """

    def __init__(
        self,
        data: T,
        *kernels: Kernel,
        name: str = "",
        priority: int = 0,
        after: Sequence[KernelCollection[Any]] = (),
    ) -> None:
        self.data, self.after = data, after
        self.kernels = {kernel.resource: kernel for kernel in kernels}
        if Resource.NODE in self.kernels:
            check_sendable(self.kernels[Resource.NODE].function)
        if not kernels or len(self.kernels) < len(kernels):
            got = ", ".join(kernel.resource for kernel in kernels) or "none"
            raise ValueError(f"expected kernels, one for a resource, got {got}")
        self._turn: _Turn | None = None
        malleable = [kernel for kernel in kernels if kernel.malleable]
        if any(k.resource is not Resource.CORES or not k.interruptible for k in malleable):
            raise ValueError(
                "expected a malleable kernel to be one for cores with yield points, got another"
            )
        self._spec = TaskSpec(
            0,
            tuple(KernelSpec(k.resource, k.affinity, k.expected_s) for k in kernels),
            priority,
            interruptible=any(kernel.interruptible for kernel in kernels),
            name=name,
            malleable=bool(malleable),
        )
        self._number = next(_numbers)

    def run(self) -> T:
        """Run to the end and return the data.

        Raises:
            TaskDroppedError: it will never run.
            ValueError: it was run before, or a collection of ``after`` was not started.
        """
        messages: queue.SimpleQueue[TaskRun | TaskDrop] = queue.SimpleQueue()
        return self._go_on(self._start(messages.put), messages)

    def start(self) -> Future[T]:
        """Register now; wait, run and return the data in a thread of its own."""
        messages: queue.SimpleQueue[TaskRun | TaskDrop] = queue.SimpleQueue()
        turn, future = self._start(messages.put), Future[T]()

        def work() -> None:
            try:
                future.set_result(self._go_on(turn, messages))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="rms-kernel", daemon=True).start()
        return future

    async def run_async(self) -> T:
        """Do as :meth:`run` does; kernels run in threads, waiting takes none."""
        import asyncio  # takes longer to load than all else

        loop, messages = asyncio.get_running_loop(), asyncio.Queue[TaskRun | TaskDrop]()
        turn = self._start(lambda message: loop.call_soon_threadsafe(messages.put_nowait, message))
        with turn:
            while not await asyncio.to_thread(self._work, turn, await messages.get()):
                pass
        return self.data

    def _start(self, deliver: Deliver) -> _Turn:
        if self._turn is not None:
            raise ValueError("expected a collection that was not run before, got one that was")
        before = [each._turn for each in self.after if each._turn is not None]
        if len(before) < len(self.after):
            raise ValueError(
                "expected collections in after that were started, got one that was not"
            )
        message = TaskRegistered(0.0, self._number, self._spec)
        self._turn = turn = _Turn(message, deliver, [each.entry.number for each in before])
        if any(each.failed for each in before):  # the daemon counts it as done
            turn.refused = "a collection that it comes after has failed"
        return turn

    def _go_on(self, turn: _Turn, messages: queue.SimpleQueue[TaskRun | TaskDrop]) -> T:
        with turn:
            while not self._work(turn, messages.get()):
                pass
        return self.data

    def _work(self, turn: _Turn, message: TaskRun | TaskDrop) -> bool:
        """Carry out a decision of the daemon; return whether the computation is done."""
        with turn.place(message) as where:
            kernel, stop = self.kernels[where.resource], turn.entry.stop.is_set
            if where.resource is Resource.NODE:
                done = run_remotely(
                    kernel, self.data, where, turn.begin, stop, lambda: turn.entry.ended
                )
            else:
                if kernel.malleable:
                    use_threads(len(where.cpus) or os.cpu_count() or 1)
                done = kernel.work(self.data, turn.at_yield if kernel.malleable else stop)
        if not done and turn.link is not None:
            turn.link.yielded(turn.entry)
        return done


@contextlib.contextmanager
def on_device(*resources: Resource, priority: int = 0) -> Iterator[Place]:
    """Wait for a device of one of these kinds, in order of preference; hold it during a block.

    Raises:
        TaskDroppedError: there is no such device.
        ValueError: there is no kind, or one twice.
    """
    if not resources or len(set(resources)) < len(resources):
        raise ValueError(
            f"expected different kinds of devices, got {', '.join(resources) or 'none'}"
        )
    levels = (Affinity.HIGH, Affinity.MED, *[Affinity.LOW] * len(resources))
    specs = tuple(KernelSpec(kind, level) for kind, level in zip(resources, levels, strict=False))
    messages: queue.SimpleQueue[TaskRun | TaskDrop] = queue.SimpleQueue()
    message = TaskRegistered(0.0, next(_numbers), TaskSpec(0, specs, priority))
    with _Turn(message, messages.put, []) as turn, turn.place(messages.get()) as where:
        yield where


class _Turn:
    """A task from its registration to its end, with a daemon or without."""

    def __init__(self, message: TaskRegistered, deliver: Deliver, after: Sequence[TaskId]) -> None:
        self.link, self.entry = connection(), OpenTask(message, deliver, _best(message))
        self.refused, self.failed = "", False
        if self.link is not None:
            self.link.open(self.entry, after)
            return
        best = self.entry.best
        if isinstance(best, TaskRun) and not _alone_logged.is_set():
            _alone_logged.set()
            why = "in a job" if JOB_VARIABLE in os.environ else "no daemon answers"
            print(f"rms.kernels: {why}: on {best.resource} here", file=sys.stderr)
        deliver(best)

    def __enter__(self) -> _Turn:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.failed = kind is not None  # before the task is reported as over
        if self.link is not None:
            self.link.close(self.entry, failed=self.failed)

    @contextlib.contextmanager
    def place(self, message: TaskRun | TaskDrop) -> Iterator[Place]:
        """Run a block on the device of a decision; a dropped task is a TaskDroppedError."""
        if self.refused:
            raise TaskDroppedError(self.refused)
        if isinstance(message, TaskDrop):
            raise TaskDroppedError(message.reason)
        where = Place(message.resource, message.device, message.slots)
        if where.resource is Resource.NODE:  # the kernel runs in another process
            yield where
            return
        with bound(where):
            yield where

    def begin(self, command: list[str], variables: Mapping[str, str]) -> None:
        """Let the daemon start a command on the node of this task."""
        assert self.link is not None
        env = {key: value for key, value in os.environ.items() if key.isprintable()}
        self.link.begin(self.entry, command, {**env, **variables})

    def at_yield(self) -> bool:
        """Go on with other cores if the daemon decided so; return whether to stop."""
        if self.entry.stop.is_set():
            return True
        if self.link is not None and self.entry.coming is not None:
            coming = self.link.resized(self.entry)
            if coming is not None:
                go_on(coming.slots, coming.device)
        return False


def _best(message: TaskRegistered) -> TaskRun | TaskDrop:
    """Return the decision without a daemon: the best kernel of this machine, by affinity."""
    here = [
        kernel
        for kernel in message.spec.kernels
        if kernel.affinity is not Affinity.NEVER
        and (
            kernel.resource in (Resource.CORE, Resource.CORES)
            or (kernel.resource is Resource.GPU and Path("/dev/nvidiactl").exists())
        )
    ]
    if not here:
        kinds = ", ".join(kernel.resource for kernel in message.spec.kernels)
        return TaskDrop(message.task, f"expected a kernel for this machine, got {kinds}")
    return TaskRun(message.task, "", max(here, key=lambda kernel: kernel.affinity).resource)
