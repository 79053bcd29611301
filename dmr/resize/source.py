"""The source of a resize: the old world's side, which gives the job away or keeps it as it was.

See :mod:`dmr.resize.side` for the messages between the two worlds.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from mpi4py import MPI

from dmr import checkpoint
from dmr.application import Run
from dmr.boot import spawn
from dmr.data import constant, transfer
from dmr.errors import Left, RolledBackError
from dmr.per_rank import merge_all, pack, with_merged
from dmr.plan import NextWorld, Plan, Schedule
from dmr.progress import OpenResize, encode
from dmr.resize.membership import part_from_fields
from dmr.resize.side import Side, attempt, signature
from dmr.watch import WATCH
from dmr.wire.channel import ChannelError, ControlChannel, connect
from dmr.wire.protocol import Accepted, Acknowledged, Committed, Header, Stored, TakenOver
from dmr.wire.ranks import RankMessages
from dmr.world import layouts_for, sent_once_a_node

ERROR_LENGTH = 120
"""MPI's own message is cut to so many characters."""


class Phase(StrEnum):
    """How far a resize is."""

    BOOTING = "booting"
    READY = "ready"
    MOVING = "moving"
    COMMITTED = "committed"


def replace_world(run: Run, plan: Plan, wanted: NextWorld, sigterm_received: Sequence[int]) -> None:
    """Replace the whole world of ``run`` (collective).

    ``sigterm_received`` holds the signals that have come in so far; the new world is told of them.

    Raises:
        Left: it is done; leave.
        RolledBackError: it could not be; go on.
    """
    with contextlib.ExitStack() as stack:
        Replacement(run, plan, wanted, stack).go(sigterm_received)
    part_from_fields(run)
    if wanted.strategy == "restart" and run.runtime.manager is None:
        # The parent of the new world's mpiexec waits for that, so that its status is the job's.
        WATCH.stop()  # the new world may take any time, and has a watchdog of its own
        with contextlib.suppress(MPI.Exception):
            MPI.Finalize()
        if run.internal.mpiexec is not None:
            raise Left(run.internal.mpiexec.wait())
    raise Left(0)


class Source(Side):
    """One try at a resize. Handles are freed by ``stack``."""

    def __init__(
        self, run: Run, plan: Plan, wanted: NextWorld, stack: contextlib.ExitStack
    ) -> None:
        run.internal.attempts += 1
        messages = RankMessages(run.world.internal_comm, run.internal.attempts)
        super().__init__(messages, plan.deadlines)
        self.run, self.plan, self.wanted, self._stack = run, plan, wanted, stack
        specs = {name: block.spec for name, block in run.fields.items()}
        self.layouts = layouts_for(wanted.ranks, specs)
        self._inter: MPI.Intercomm | None = None
        self.merged: dict[str, Any] = {}
        """Of the state that differs from rank to rank: one value each."""
        self._progress = b""

    # --- meeting -----------------------------------------------------------------------------

    def meet(self) -> None:
        """Have a channel to the new world on rank 0, and an inter-communicator if MPI carries it.

        Raises:
            RolledBackError: there is no way to the new world, or it does not come.
        """
        self._encode()  # errors of pickling are raised before anything is started
        self.phase = Phase.BOOTING
        run, deadlines, launches = self.run, self.deadlines, self.wanted.launches
        ways: list[Callable[[], ControlChannel]]
        if launches:
            if self.wanted.strategy != "restart" and not run.internal.can_connect:
                # Open MPI 5.0 waits in MPI_Comm_connect for good; MPICH 5.0 dies in the next one
                # of a process in which one has timed out.
                raise RolledBackError(
                    "MPI_Comm_connect does not work in this world, or no longer does"
                )
            ways = [partial(connect, one.address, deadlines.connect_s) for one in launches]
        elif self.wanted.strategy == "restart":
            ways = [self._start_mpiexec]
        else:
            comm = run.world.internal_comm
            self._inter, wait = spawn.spawn(
                run.runtime, comm, self.wanted, self._stack, deadlines.boot_s
            )
            ways = [wait]
        self.on_root(lambda: self._open(ways))
        self.phase = Phase.READY

    def _open(self, ways: Sequence[Callable[[], ControlChannel]]) -> None:
        for way in ways:
            self.channels.append(self._stack.enter_context(way()))

    def _start_mpiexec(self) -> ControlChannel:
        runtime, boot_s = self.run.runtime, self.deadlines.boot_s
        process, channel = spawn.start_mpiexec(runtime, self.wanted, self._stack, boot_s)
        self.run.internal.mpiexec = process
        return channel

    def merge_state(self) -> None:
        """Make one value of each that differs from rank to rank.

        Raises:
            RolledBackError: it cannot be pickled, or merged.
        """
        specs = self.run.internal.per_rank
        if specs:
            problem, packed = attempt(lambda: pack(specs, self.run.state))
            self.merged = self.conclude(problem, packed or b"", self._merged, self.check_reports)

    def _merged(self, parts: Sequence[bytes]) -> dict[str, Any]:
        """Merge; find out as well whether it can be split again."""
        specs = self.run.internal.per_rank
        merged = merge_all(specs, parts)
        for name, spec in specs.items():
            spec.part(name, merged[name], 0, self.wanted.ranks)
        return merged

    def _encode(self) -> None:
        """Encode the progress, which contains the state, on rank 0.

        Raises:
            RolledBackError: a value cannot be pickled, or merged.
        """
        self.merge_state()

        def encoded() -> None:
            self._progress = encode(with_merged(self.run.progress, self.merged))

        self.on_root(encoded)

    def introduce(self) -> Accepted:
        """Say what is to move; return whether blocks may go without packing, and to whom."""
        return self.on_root(self._introduce)

    def _introduce(self) -> Accepted:
        run = self.run
        header = Header(
            ranks=self.wanted.ranks,
            from_ranks=run.world.size,
            strategy=self.wanted.strategy,
            progress=msgspec.Raw(self._progress),
            signature=signature(run.fields),
            options=dict(self.plan.options),
            in_host=all(block.in_host for block in run.fields.values()),
            measure=self.plan.measure,
            joined=tuple((one.launch, one.ranks) for one in self.wanted.launches),
        )
        for place, channel in enumerate(self.channels):
            channel.send(msgspec.structs.replace(header, place=place))
        answers = self.expect(Accepted)
        return Accepted(all(answer.in_host for answer in answers), answers[0].receivers)

    def connect_to(self, comm: MPI.Intracomm, port: str) -> MPI.Intercomm:
        """Return an inter-communicator to ranks that wait at a port (collective over ``comm``).

        Raises:
            RolledBackError: they are gone, or MPI finds no way to them.
        """
        self.on_root(self.check_other_world)
        info = MPI.Info.Create()
        try:
            info.Set("timeout", str(max(1, round(self.deadlines.connect_s))))
            return comm.Connect(port if self.messages.is_root else "", info)
        except MPI.Exception as error:
            self.run.internal.can_connect = False
            why = " ".join(error.Get_error_string().split())[:ERROR_LENGTH]
            raise RolledBackError(self.in_phase(f"MPI_Comm_connect failed: {why}")) from None
        finally:
            info.Free()

    # --- the commit --------------------------------------------------------------------------

    def open_resize(self, begun: float, met: float, *, sigterm_received: bool) -> OpenResize:
        """Return the record that the commit completes: what is known when the worlds have met.

        Args:
            begun, met: the clock when the resize began, and when the new world was there.
        """
        launches = self.wanted.launches
        return OpenResize(
            step=self.run.step,
            from_ranks=self.run.world.size,
            to_ranks=self.wanted.ranks,
            strategy=self.wanted.strategy,
            boot_s=max(one.boot_s for one in launches) if launches else met - begun,
            move_s=0.0,
            old_stall_s=begun,
            bytes=0,
            sigterm_received=sigterm_received,
            request=self.wanted.request,
        )

    def commit(
        self,
        cost: OpenResize,
        sent: int,
        own_s: tuple[float, float],
        acks: Sequence[Acknowledged],
    ) -> OpenResize:
        """Rank 0: complete the record and give the job away.

        Args:
            sent: bytes that all ranks have sent.
            own_s: seconds that ranks of this world have moved and built (merge).
            acks: of every new launch.
        """
        moved_s, built_s = own_s
        cost.bytes, cost.move_s = sent, max([moved_s, *(ack.move_s for ack in acks)])
        built_s = max([built_s, *(ack.build_s for ack in acks)])
        cost.phases_s |= {"move": cost.move_s, "build": built_s}
        raw_s = max((ack.raw_s for ack in acks), default=0.0)
        cost.raw_gb_per_s = sent / 1e9 / raw_s if raw_s else 0.0
        aside_s = max((ack.aside_s for ack in acks), default=0.0)
        cost.old_stall_s = self.run.runtime.clock() - cost.old_stall_s - aside_s
        self.phase = Phase.COMMITTED
        lock = None if self.wanted.strategy == "merge" else self.run.internal.checkpoint_lock
        if lock is not None:
            lock.release()  # the new world takes it
        try:
            self.say(Committed(cost))
            self.expect(TakenOver)
        except ChannelError:
            if lock is not None:
                lock.acquire()
            raise
        return cost

    def check_reports(self, waited_s: float) -> None:
        """Give up waiting for the reports of this world's ranks."""
        self.check_other_world()
        if waited_s > self.deadlines.answer_s:
            raise ChannelError("ranks of the old world have not sent their part")


class Replacement(Source):
    """A resize into a world that is all new (warm, spawn, restart)."""

    def go(self, sigterm_received: Sequence[int]) -> None:
        """Do it all; the new world has the job then."""
        run, restart = self.run, self.wanted.strategy == "restart"
        clock = run.runtime.clock
        begun = clock()
        self.meet()
        met = clock()
        accepted = self.introduce()
        self.layouts = sent_once_a_node(self.layouts, accepted.receivers)
        self.phase = Phase.MOVING
        introduced = clock()
        if self._inter is None and not restart:
            self._inter = self.connect_to(run.world.internal_comm, self.wanted.launches[0].port)
        connected = clock()
        problem, sent = (None, 0) if restart else attempt(lambda: self._send(accepted.in_host))
        if restart:
            self._store()
        cost = self.open_resize(begun, met, sigterm_received=bool(sigterm_received))
        cost.phases_s = {
            "meet": met - begun,
            "introduce": introduced - met,
            "connect": connected - introduced,
            "send": clock() - connected,
        }

        def give_away(parts: list[int]) -> None:
            acks = self.expect(Acknowledged)
            stored = sum(block.spec.nbytes for block in run.fields.values()) if restart else 0
            self.commit(cost, sum(parts) + stored, (0.0, 0.0), acks)

        self.conclude(problem, sent or 0, give_away, self.check_reports)
        if self._inter is not None:
            self._inter.Disconnect()

    def _send(self, in_host: bool) -> int:
        """Send this rank's part; return its bytes."""
        if self._inter is None:
            raise RuntimeError("expected to be connected")
        sent, blocks = 0, constant.moving(self.run.fields)
        for name, block in blocks.items():
            layout = self.layouts[name]
            sent += transfer.send(
                self._inter, block, layout, in_host=in_host, check=self.check_alive
            )
        for name, block in blocks.items() if self.plan.measure else ():
            layout = self.layouts[name]
            transfer.plain(self._inter, block, layout, sending=True, check=self.check_alive)
        return sent

    def _store(self) -> None:
        """Write a checkpoint for the new world to read (collective).

        Without a folder for checkpoints it is one beside the program, gone when the resize is
        over.
        """
        run, schedule = self.run, self.plan.checkpoint
        if schedule is None:
            name = run.world.internal_comm.bcast(f".dmr-{secrets.token_hex(4)}")
            schedule = Schedule(Path.cwd() / name)
            if run.world.rank == 0:
                self._stack.callback(shutil.rmtree, schedule.directory, ignore_errors=True)
        path = checkpoint.write(
            schedule,
            run.world,
            run.fields,
            with_merged(run.progress, self.merged),
            self.plan.options,
            run.runtime.log,
        )
        if path is None:
            raise RolledBackError(self.in_phase("the checkpoint could not be written"))
        self.on_root(lambda: self.say(Stored(str(schedule.directory), run.step)))
