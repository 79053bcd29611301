"""All interleavings of two sides that send each other messages, with one fault, exhaustively.

Each side is the real code in a thread of its own, which waits before each message that it sends or
receives until the explorer lets it go on. What a side has seen so far determines what it does next:
a state that another order of steps has led to already is not explored again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dmr.wire.channel import PeerGoneError, SilentError

FAULTS = ("dies", "is late", "cut")
"""A side dies; the time of a wait is over although the other side lives; the network is cut."""


class _EndedError(BaseException):
    """The thread of a side is not needed any more, or its process is dead."""


@dataclass
class End:
    """One side: its end of the channel, and what it has seen."""

    name: str
    inbox: deque[Any] = field(default_factory=deque)
    seen: list[Hashable] = field(default_factory=list)
    waits: str = ""
    outcome: str = ""
    closed: bool = False
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    order: str = ""


class Channel:
    """What :class:`dmr.wire.channel.ControlChannel` is for one side."""

    def __init__(self, run: Run, own: End, other: End) -> None:
        self._run, self._own, self._other = run, own, other

    def send(self, message: Any) -> None:
        order = self._run.step(self._own, f"send {type(message).__name__}")
        if order == "refused":
            raise PeerGoneError("the other world is gone")
        if not (self._run.cut or self._other.closed):
            self._other.inbox.append(message)

    def receive(self, deadline_s: float) -> Any:
        order = self._run.step(self._own, "receive")
        if order == "late":
            raise SilentError(f"the other world did not answer within {deadline_s:g} s")
        if self._own.inbox:
            return self._own.inbox.popleft()
        raise PeerGoneError("the other world is gone")

    @property
    def readable(self) -> bool:
        return bool(self._own.inbox) or (self._other.closed and not self._run.cut)


class Run:
    """One execution: it follows a list of choices, and takes the first one from there on."""

    def __init__(self, choices: list[int], sides: dict[str, Callable[[Channel], str]]) -> None:
        self.choices, self.taken, self.widths = choices, list[int](), list[int]()
        self.ends = [End(name) for name in sides]
        self.cut, self.fault = False, ""
        self._arrived = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._side, args=(end, work), daemon=True)
            for end, work in zip(self.ends, sides.values(), strict=True)
        ]

    def _side(self, end: End, work: Callable[[Channel], str]) -> None:
        (other,) = (one for one in self.ends if one is not end)
        try:
            end.outcome = work(Channel(self, end, other))
        except _EndedError:
            end.outcome = end.outcome or "dead"
        except BaseException as error:
            end.outcome = f"{type(error).__name__}: {error}"
        end.closed, end.waits = True, ""
        self._arrived.release()

    def step(self, end: End, what: str) -> str:
        """Wait until this side may go on; return how."""
        end.waits = what
        self._arrived.release()
        end.go.acquire()
        if end.order in ("dies", "ends"):
            raise _EndedError
        end.seen.append((what, end.order, self._peek(end, what)))
        return end.order

    def _peek(self, end: End, what: str) -> Hashable:
        return type(end.inbox[0]).__name__ if what == "receive" and end.inbox else ""

    def options(self) -> list[tuple[End, str]]:
        """Return what may happen next: a side, and how it goes on."""
        found = list[tuple[End, str]]()
        for end, other in zip(self.ends, reversed(self.ends), strict=True):
            if not end.waits:
                continue
            sends = end.waits.startswith("send")
            gone = other.closed and not self.cut
            if sends and gone:
                found += [(end, "refused"), (end, "lost")]  # an error, or only at the next message
            elif sends or end.inbox or gone:
                found.append((end, "goes on"))
            if not self.fault:
                found.append((end, "dies"))
                if not sends:
                    found.append((end, "late"))
        if found and not self.fault and not self.cut:
            found.append((self.ends[0], "cut"))
        waiting = [end for end in self.ends if end.waits]
        if waiting and not any(how not in ("dies", "late", "cut") for _, how in found):
            found += [(end, "late") for end in waiting if (end, "late") not in found]
        return found

    @property
    def state(self) -> Hashable:
        ends = [
            (tuple(end.seen), end.waits, end.outcome, tuple(type(m).__name__ for m in end.inbox))
            for end in self.ends
        ]
        return (*ends, self.cut, self.fault)

    def follow(self, visited: set[Hashable]) -> bool:
        """Run to the end; return False where it comes to a state that was visited."""
        for thread in self._threads:
            thread.start()
        for _ in self.ends:
            self._arrived.acquire()
        try:
            while options := self.options():
                if len(self.taken) >= len(self.choices):
                    if self.state in visited:
                        return False
                    visited.add(self.state)
                at = len(self.taken)
                chosen = self.choices[at] if at < len(self.choices) else 0
                self.taken.append(chosen)
                self.widths.append(len(options))
                end, how = options[chosen]
                if how == "cut":
                    self.cut, self.fault = True, "cut"
                    continue
                if how in ("dies", "late"):
                    self.fault = self.fault or f"{end.name} {how}"
                end.order = how
                end.go.release()
                self._arrived.acquire()
            return True
        finally:
            for end in self.ends:
                if end.waits:
                    end.order = "ends"
                    end.go.release()
            for thread in self._threads:
                thread.join()


def executions(sides: dict[str, Callable[[Channel], str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the fault and the outcomes of both sides, of every order of steps and every fault."""
    visited, choices = set[Hashable](), list[int]()
    while True:
        run = Run(choices, sides)
        if run.follow(visited):
            yield run.fault, tuple(end.outcome for end in run.ends)
        taken, widths = run.taken, run.widths
        while taken and taken[-1] + 1 >= widths[-1]:
            taken.pop()
            widths.pop()
        if not taken:
            return
        choices = [*taken[:-1], taken[-1] + 1]
