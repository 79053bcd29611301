"""The old world's side of a resize: a transaction that commits or leaves everything as it was.

The two worlds speak in this order. Rank 0 of each speaks for its world, over a control channel
that notices a death (dmr.wire.channel); only fields go by MPI::

    planned, requested   a scripted step, or a wish of the RMS
    booting              the new world starts, prepares, and waits to be called
    ready      old -> new   header: progress, fields, options
               new -> old   accepted, or refused and why
    moving     old -> new   interiors, hashed (or the name of a checkpoint)
               new -> old   acknowledged: every hash agreed and ``build`` has run
    committed  old -> new   the job is yours, and what it has cost
               new -> old   settled: the old ranks leave

Whatever fails before the last word rolls back: the old world still has everything. Every wait has
a deadline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from dmr.boot import spawn
from dmr.data import transfer
from dmr.data.field import FieldSpec
from dmr.errors import TransferError
from dmr.progress import OpenResize
from dmr.wire.channel import ChannelError, ControlChannel, connect
from dmr.wire.protocol import (
    Accepted,
    Acknowledged,
    Committed,
    Header,
    Message,
    Refused,
    Stored,
    TakenOver,
)
from dmr.wire.ranks import Check, RankMessages
from dmr.world import grid_for
from rms.wire.messages import BootedWorld

if TYPE_CHECKING:
    from dmr.application import Application, Plan, Run

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class State(StrEnum):
    """How far a resize is."""

    BOOTING = "booting"
    READY = "ready"
    MOVING = "moving"
    COMMITTED = "committed"


@dataclass(frozen=True)
class Deadlines:
    """How long each phase of a resize may take before it is rolled back, in seconds.

    Attributes:
        boot_s: from the start of a new world until it is ready (an RMS has its own).
        connect_s: until the two worlds have met.
        move_s: without a byte moving.
        answer_s: for ``build`` in the new world, and for any other answer.
    """

    boot_s: float = 60.0
    connect_s: float = 10.0
    move_s: float = 10.0
    answer_s: float = 60.0


@dataclass(frozen=True)
class Target:
    """What a resize is to lead to.

    Attributes:
        ranks: how many ranks.
        strategy: how.
        slots: where each is to be, if an RMS says so.
        wish: number of the RMS's wish, or 0.
        worlds: booted for it and waiting.
        backend: what the new world is to compute with, "" for what this one does.
    """

    ranks: int
    strategy: str
    slots: tuple[str, ...] = ()
    wish: int = 0
    worlds: tuple[BootedWorld, ...] = ()
    backend: str = ""


class RolledBackError(Exception):
    """Raised by all ranks of the old world: it goes on; the message says why."""


class Left(SystemExit):
    """Raised in ranks whose part of the job is done: an old world's, or a refused new one's."""


def replace(
    app: Application, run: Run, plan: Plan, target: Target, sigterm_received: Sequence[int]
) -> None:
    """Replace the world of ``run`` by one at ``target`` (collective).

    Returns in ranks that go on in the new world (strategy merge).

    ``sigterm_received`` holds the signals that have come in so far; the new world hears of them.

    Raises:
        Left: it is done; leave.
        RolledBackError: it could not be; go on.
    """
    if target.strategy == "merge":
        from dmr.resize.merge import merge

        merge(app, run, plan, target, sigterm_received)
        return
    with contextlib.ExitStack() as stack:
        cost = Attempt(run, plan, target, stack).go(sigterm_received)
    run.fields.clear()
    spawn.outlive(run, cost)
    raise Left(0)


class Attempt:
    """One try. Handles are freed by ``stack``."""

    def __init__(self, run: Run, plan: Plan, target: Target, stack: contextlib.ExitStack) -> None:
        run.attempts += 1
        self.run, self.plan, self.target, self._stack = run, plan, target, stack
        self.state = State.BOOTING
        self.messages = RankMessages(run.world.internal_comm, run.attempts)
        self.specs = {name: block.spec for name, block in run.fields.items()}
        self.grid = grid_for(target.ranks, list(self.specs.values()))
        self.channels: list[ControlChannel] = []
        self._problem: str | None = None
        self._inter: MPI.Intercomm | None = None

    def go(self, sigterm_received: Sequence[int]) -> OpenResize:
        """Do it all; return what it cost once the new world has the job."""
        run = self.run
        clock = run.runtime.clock
        asked = clock()
        self._meet()
        met = clock()
        in_host = self._together(self._introduce)
        self.state = State.MOVING
        introduced = clock()
        if self._inter is None and self.target.strategy != "restart":
            self._inter = self._connect(run.world.internal_comm, self.target.worlds[0].port)
        connected = clock()
        sent = self._move(in_host)
        cost = self._cost(asked, met, bool(sigterm_received))
        cost.phases_s = {
            "meet": met - asked,
            "introduce": introduced - met,
            "connect": connected - introduced,
            "send": clock() - connected,
        }
        found: OpenResize = self._together(lambda: self._commit(cost, sent))
        if self._inter is not None:
            self._inter.Disconnect()
        return found

    def _cost(self, asked: float, met: float, sigterm_received: bool) -> OpenResize:
        """Return the record to be completed at the commit."""
        worlds = self.target.worlds
        return OpenResize(
            step=self.run.step,
            from_ranks=self.run.world.size,
            to_ranks=self.target.ranks,
            strategy=self.target.strategy,
            boot_s=max(world.boot_s for world in worlds) if worlds else met - asked,
            move_s=0.0,
            old_stall_s=asked,
            bytes=0,
            sigterm_received=sigterm_received,
            wish=self.target.wish,
        )

    # --- meeting -----------------------------------------------------------------------------

    def _meet(self) -> None:
        """Open a channel to the new world on rank 0, and an inter-communicator if MPI spawns it."""
        limits, worlds = self.plan.deadlines, self.target.worlds
        if worlds and self.target.strategy != "restart" and not self.run.connects:
            # Open MPI 5.0 waits in MPI_Comm_connect for good; MPICH 5.0 dies in the next one
            # of a process in which one has timed out.
            raise RolledBackError("MPI_Comm_connect does not work in this world, or no longer does")
        if worlds:
            self._open_channels(
                [partial(connect, world.address, limits.connect_s) for world in worlds]
            )
        elif self.target.strategy in ("spawn", "merge"):
            more = self.target.ranks - (
                self.run.world.size if self.target.strategy == "merge" else 0
            )
            self._inter, wait = spawn.spawn(self.run, self.target, more, self._stack, limits.boot_s)
            self._open_channels([wait])
        else:
            self._open_channels([spawn.nested(self.run, self.target, self._stack, limits.boot_s)])
        self.state = State.READY

    def _open_channels(self, opened: Sequence[Callable[[], ControlChannel]]) -> None:
        def open_all() -> None:
            for one in opened:
                self.channels.append(self._stack.enter_context(one()))

        self._together(open_all)

    def _introduce(self) -> bool:
        """Rank 0: say what is to move; return whether blocks may go without packing."""
        run = self.run
        in_host = all(block.in_host for block in run.fields.values())
        joined = tuple((world.launch, world.ranks) for world in self.target.worlds)
        for place, channel in enumerate(self.channels):
            header = Header(
                ranks=self.target.ranks,
                grid=run.world.grid,
                strategy=self.target.strategy,
                progress=run.progress,
                signature=signature(self.specs),
                options=dict(self.plan.options),
                in_host=in_host,
                measure=self.plan.measure,
                joined=joined,
                place=place,
            )
            channel.send(header)
        answers = self._expect(Accepted)
        return all(said.in_host for said in answers)

    # --- moving ------------------------------------------------------------------------------

    def _move(self, in_host: bool) -> int:
        """Send this rank's part; return the bytes. A failure is kept for the verdict."""
        if self.target.strategy == "restart":
            return self._store()
        if self._inter is None:
            raise RuntimeError("expected to be connected")
        sent = 0
        try:
            for block in self.run.fields.values():
                layout = block.spec.decompose(self.grid)
                sent += transfer.send(
                    self._inter, block, layout, in_host=in_host, check=self._alive
                )
            for block in self.run.fields.values() if self.plan.measure else ():
                layout = block.spec.decompose(self.grid)
                transfer.plain(self._inter, block, layout, sending=True, check=self._alive)
        except (RolledBackError, TransferError) as error:
            self._problem = str(error)
        if not self.messages.is_root:
            self.messages.report((self._problem, sent))
        return sent

    def _connect(self, comm: MPI.Intracomm, port: str) -> MPI.Intercomm:
        self._together(self._still_there)
        info = MPI.Info.Create()
        try:
            info.Set("timeout", str(max(1, round(self.plan.deadlines.connect_s))))
            return comm.Connect(port if self.messages.is_root else "", info)
        except MPI.Exception as error:
            self.run.connects = False
            why = " ".join(error.Get_error_string().split())[:120]
            raise RolledBackError(self._words(f"MPI_Comm_connect failed: {why}")) from None
        finally:
            info.Free()

    def _still_there(self) -> None:
        if any(channel.peer_gone for channel in self.channels):
            raise ChannelError("the new world is gone")

    def _store(self) -> int:
        """Write a checkpoint for the new world to read."""
        folder, path = spawn.store(self.run, self.plan, self._stack)
        if path is None:
            raise RolledBackError(self._words("the checkpoint could not be written"))
        self._together(lambda: self._say(Stored(folder, self.run.step)))
        if not self.messages.is_root:
            self.messages.report((None, 0))
        return 0

    def _alive(self, waited_s: float) -> None:
        """Give up a wait: rank 0 hears the channel, others are told; each has a deadline."""
        if self.messages.is_root and any(channel.peer_gone for channel in self.channels):
            raise RolledBackError("the new world is gone")
        if not self.messages.is_root and self.messages.pending():
            raise RolledBackError("told to stop")
        if waited_s > self.plan.deadlines.move_s:
            raise RolledBackError(f"nothing moved for {self.plan.deadlines.move_s:g} s")

    # --- verdict -----------------------------------------------------------------------------

    def _commit(self, cost: OpenResize, sent: int) -> OpenResize:
        """Rank 0: hear of all that it has arrived, then give the job away."""
        sent = self._sent(sent)
        if self.target.strategy == "restart":
            sent = sum(spec.nbytes for spec in self.specs.values())
        return self._give(cost, sent, (0.0, 0.0), self._expect(Acknowledged))

    def _sent(self, sent: int) -> int:
        """Rank 0: return the bytes that all ranks have sent."""
        if self._problem is not None:
            raise ChannelError(self._problem)

        def check(waited_s: float) -> None:
            if waited_s > self.plan.deadlines.answer_s:
                raise ChannelError("ranks of the old world have not sent their part")

        for problem, count in self.messages.collect(check):
            if problem is not None:
                raise ChannelError(problem)
            sent += count
        return sent

    def _give(
        self,
        cost: OpenResize,
        sent: int,
        taken_s: tuple[float, float],
        acks: Sequence[Acknowledged],
    ) -> OpenResize:
        """Rank 0: complete the record and give the job away."""
        moved_s, build_s = taken_s
        cost.bytes, cost.move_s = sent, max([moved_s, *(ack.move_s for ack in acks)])
        build_s = max([build_s, *(ack.build_s for ack in acks)])
        cost.phases_s |= {"move": cost.move_s, "build": build_s}
        raw_s = max((ack.raw_s for ack in acks), default=0.0)
        cost.raw_gb_per_s = sent / 1e9 / raw_s if raw_s else 0.0
        aside_s = max((ack.aside_s for ack in acks), default=0.0)
        cost.old_stall_s = self.run.runtime.clock() - cost.old_stall_s - aside_s
        self.state = State.COMMITTED
        lock = None if self.target.strategy == "merge" else self.run.checkpoint_lock
        if lock is not None:
            lock.release()  # the new world takes it
        try:
            self._say(Committed(cost))
            self._expect(TakenOver)
        except ChannelError:
            if lock is not None:
                lock.acquire()
            raise
        return cost

    # --- talking -----------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        for channel in self.channels:
            channel.send(message)

    def _expect(self, kind: type[M]) -> list[M]:
        """Return the answers of the kind that must come now, one of each new world."""
        found: list[M] = []
        for channel in self.channels:
            said = channel.receive(self.plan.deadlines.answer_s)
            if isinstance(said, Refused):
                raise ChannelError(said.why)
            if not isinstance(said, kind):
                raise ChannelError(f"expected {kind.__name__}, got {type(said).__name__}")
            found.append(said)
        return found

    def _together(self, work: Callable[[], T], check: Check | None = None) -> T:
        """Return what ``work`` gives on rank 0; what it finds wrong, all ranks raise."""
        if self.messages.is_root:
            try:
                words: tuple[str | None, Any] = (None, work())
            except ChannelError as error:
                words = (self._words(str(error)), None)
            if words[0] is not None:
                for channel in self.channels:
                    with contextlib.suppress(ChannelError):
                        channel.send(Refused(words[0]))
            self.messages.send_all(words)
        else:
            words = self.messages.receive(check)
        problem, found = words
        if problem is not None:
            raise RolledBackError(problem)
        result: T = found
        return result

    def _words(self, why: str) -> str:
        return f"{why} (while {self.state})"


def signature(specs: dict[str, FieldSpec]) -> dict[str, Any]:
    """Return what both worlds must agree on."""
    return {name: spec.signature() for name, spec in specs.items()}
