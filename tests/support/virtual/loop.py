"""An event loop on a virtual clock, and processes on it that can be killed at any point.

Nothing waits: as soon as no callback is ready, the clock jumps to the next timer. A loop without
timers and callbacks, whose main coroutine is not done, is stuck, which is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")

THREAD_S = (0.0, 0.0, 0.001, 0.01)
"""Times after which a function in a thread ends, but for those of a slow disk."""


class StuckError(Exception):
    """Nothing can happen any more, and something still waits."""


class _Timers(selectors.BaseSelector):
    """A selector without files: instead of waiting it moves the clock of its loop."""

    loop: VirtualLoop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError(f"nothing happens after {self.loop.now_s:.3f} s")
        if timeout > 0.0:
            self.loop.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only where nothing is ready.

    Attributes:
        now_s: the time since the loop was made.
        slow_s: added to the time of a function in a thread, for a slow disk.
    """

    def __init__(self, rng: random.Random) -> None:
        timers = _Timers()
        timers.loop, self.now_s, self._rng, self.slow_s = self, 0.0, rng, 0.0
        super().__init__(timers)
        self.set_task_factory(_quiet_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call a function a little later, as a thread would; nothing else runs meanwhile."""
        done: asyncio.Future[T] = self.create_future()
        life = Life.running

        def work() -> None:
            if done.cancelled() or (life is not None and life.dead):
                return
            before, Life.running = Life.running, life
            try:
                value = func(*args)
            except KilledError:
                return
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(value)
            finally:
                Life.running = before

        self.call_later(self._rng.choice(THREAD_S) + self.slow_s, work)
        return done


def _quiet_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Return a task whose end is no news where its process was killed."""
    task = asyncio.Task(work, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


# --- a process that can be killed ----------------------------------------------------------------


class KilledError(BaseException):
    """The process is gone, in the middle of whatever it did."""


@dataclass
class Life:
    """A process on the loop, from its start to its end.

    A kill leaves its coroutines where they are. In the one that runs, the point at which the
    process dies raises :class:`KilledError`, as does everything that it would do to the outside
    from then on, in its ``finally`` blocks too.

    Attributes:
        dead: whether it was killed, or has ended.
        points: how many times it has touched the outside or has waited.
        kill_at: at which of them it is killed, None for never.
        at: where it was killed.
        on_death: called when it ends.
        resumed: set when it goes on after SIGSTOP; None while it is not stopped.
        running: the process whose code runs now.
    """

    loop: VirtualLoop
    dead: bool = False
    points: int = 0
    kill_at: int | None = None
    at: str = ""
    on_death: list[Callable[[], None]] = field(default_factory=list)
    resumed: asyncio.Event | None = None
    _left: list[Any] = field(default_factory=list)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    running: ClassVar[Life | None] = None

    def point(self, what: str) -> None:
        """Die here, if that is so decided, or because this process is dead already."""
        if not self.dead:
            self.points += 1
            if self.kill_at is not None and self.points >= self.kill_at:
                self.kill(what)
        if self.dead:
            raise KilledError

    def kill(self, at: str) -> None:
        """End it at once."""
        if self.dead:
            return
        self.dead, self.at = True, at
        for task in self._tasks:
            task.cancel()
        for call in self.on_death:
            call()

    def freeze(self) -> None:
        """Stop it, as SIGSTOP does."""
        self.resumed = self.resumed or asyncio.Event()

    def thaw(self) -> None:
        """Let it go on, if it is stopped."""
        if self.resumed is not None:
            self.resumed.set()
            self.resumed = None

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine of this process."""
        task = self.loop.create_task(self._mortal(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _mortal(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._stepped(work)

    @types.coroutine
    def _stepped(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = work.send
        value: Any = None
        while True:
            if self.dead:
                self._left.append(work)
                raise asyncio.CancelledError
            if self.resumed is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    yield from self.resumed.wait().__await__()
                continue
            before, Life.running = Life.running, self
            try:
                waits_for = step(value)
            except StopIteration as end:
                result: T = end.value
                return result
            except KilledError:
                self._left.append(work)
                raise asyncio.CancelledError from None
            finally:
                Life.running = before
            try:
                value = yield waits_for
                step = work.send
                self.point("await")
            except KilledError:
                continue
            except BaseException as error:
                step, value = work.throw, error

    def bury(self) -> None:
        """Free the coroutines that were left, once nothing of this process matters any more."""
        self.dead = True
        for work in self._left:
            with contextlib.suppress(BaseException):
                work.close()
        self._left.clear()


# --- threads of a process ------------------------------------------------------------------------

STOPPED_S = 0.5


class Thread:
    """A function on a thread of a process, which waits on the virtual clock.

    It is a greenlet, as one thread runs at a time: the loop gives it the turn, and has it back
    where the function waits or ends. In a process that is gone a wait does not return.

    Attributes:
        running: the thread that has the turn, None for the loop's own.
    """

    running: ClassVar[Thread | None] = None

    def __init__(self, loop: VirtualLoop, life: Life, work: Callable[[], None]) -> None:
        self._loop, self._life, self._work, self.over = loop, life, work, False
        self._stack = greenlet(self._main)

    def _main(self) -> None:
        with contextlib.suppress(KilledError):
            self._life.point("start of a thread")
            self._work()
        self.over = True

    def step(self) -> None:
        """Let it run until it waits again."""
        if self.over:
            return
        if self._life.resumed is not None and not self._life.dead:
            self._loop.call_later(STOPPED_S, self.step)
            return
        before = Life.running, Thread.running
        Life.running, Thread.running = self._life, self
        self._stack.parent = getcurrent()  # the turn comes back here
        self._stack.switch()
        Life.running, Thread.running = before

    def wait(self, seconds: float) -> None:
        """Wait, on this thread."""
        self._life.point("before a wait")
        self._loop.call_later(seconds, self.step)
        self._stack.parent.switch()
        self._life.point("after a wait")
