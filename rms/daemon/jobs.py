"""What the daemon knows of a job beside the engine: its processes, steps, worlds and wishes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rms.launch.base import LaunchCommand, ManagedProcess, PendingCall
from rms.wire.messages import BootedWorld, ResizeRequest


@dataclass
class Step:
    """One launcher line being run: a sequence of worlds, and how it ended.

    Attributes:
        worlds: launches by number: every mpiexec whose ranks are, or may become, the job.
        current: the launches that the job's ranks come from now.
        strategy, groups: how the job wants to be resized, and ranks of each current launch.
        ended_s: when the first current launch was seen to have ended.
        cooldown_s: time after a resize in which it is not asked for another.
        restarts: whether it would go on from a checkpoint if it were started again.
    """

    line: LaunchCommand
    worlds: dict[int, ManagedProcess] = field(default_factory=dict)
    current: tuple[int, ...] = ()
    strategy: str = "spawn"
    groups: tuple[tuple[int, int], ...] = ()
    exit_code: int | None = None
    message: str = ""
    spoke: bool = False  # it asked for wishes: a program of dmr, which leaves a record
    ended_s: float | None = None
    cooldown_s: float = 0.0
    restarts: bool = False


class PendingResize(msgspec.Struct):
    """A resize for which worlds are started here, from the wish to the last process gone.

    Attributes:
        number, slots, strategy: of the wish.
        launches: slots of each launch that was started for it, by number.
        ready: those that wait to be called.
        state: ``granting`` (nodes are asked for), ``booting``, ``ready`` (the job may call),
            ``moving`` (it does), ``leaving`` (committed; old launches end), ``closing`` (rolled
            back; new ones are killed), ``releasing`` (nodes no longer needed are given back);
            ``stopping`` and ``starting`` of a relaunch, see :mod:`rms.daemon.relaunch`.
        until_s: when that state must be over.
        leaving: launches that are to end.
        committed: whether it is the new world that goes on.
        why: of a rollback.
        at_step: of a relaunch, where its checkpoint was written.
    """

    number: int
    slots: tuple[str, ...]
    strategy: str
    launches: dict[int, tuple[str, ...]] = {}
    pids: dict[int, int] = {}
    ready: dict[int, BootedWorld] = {}
    state: str = "booting"
    begun_s: float = 0.0
    until_s: float = 0.0
    leaving: list[int] = []
    committed: bool = False
    why: str = ""
    at_step: int = 0

    @property
    def wish(self) -> ResizeRequest:
        """What the job is to be told."""
        worlds = tuple(self.ready[n] for n in self.launches)
        return ResizeRequest(self.number, self.slots, self.strategy, worlds)


@dataclass
class JobRuntime:
    """All of it.

    ``errand`` is what the resize in flight has asked of whoever owns the nodes, ``inquiry`` asks
    them what a job that failed died of. ``news`` is set by the next wish,
    not by one that the job may know already.
    """

    note: dict[str, Any]
    script: ManagedProcess | None = None
    steps: list[Step] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    launches: int = 0
    resizes: list[dict[str, Any]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    boot: PendingResize | None = None
    errand: PendingCall | None = None
    inquiry: PendingCall | None = None
    rests_until_s: float = 0.0
    asked: int = 0  # by its application, once it may be
    forced: str | None = None
    step: int = 0
    total: int = 0
    ending: str | None = None
    kill_at: float | None = None
    answer: str = ""
    _wish: ResizeRequest | None = None

    @property
    def wish(self) -> ResizeRequest | None:
        """What the job is to do; whoever waits for it is told."""
        return self._wish

    @wish.setter
    def wish(self, wish: ResizeRequest | None) -> None:
        self._wish = wish
        if wish is not None:
            told, self.news = self.news, asyncio.Event()
            told.set()

    @property
    def running(self) -> Step | None:
        """The step that runs now."""
        return next((step for step in self.steps if step.exit_code is None), None)
