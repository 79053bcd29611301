"""The source of a resize: the old world's side, which gives the job away or keeps it as it was.

See :mod:`dmr.resize.side` for the messages between the two worlds.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from mpi4py import MPI

from dmr.application import Application, Run
from dmr.boot import spawn
from dmr.boot.environment import bind
from dmr.checkpoint import store
from dmr.checkpoint.format import BrokenCheckpointError, path_of
from dmr.data import constant, transfer
from dmr.data.decomposition import Decomposition
from dmr.data.field import Field
from dmr.errors import CollectiveError, Left, RolledBackError
from dmr.plan import NextWorld, Plan, Schedule
from dmr.resize.membership import enter, join, part_from_fields, stay
from dmr.resize.side import Side, attempt, give_way, nothing, signature
from dmr.state.per_rank import merge_all, pack, with_merged
from dmr.state.progress import OpenResize, decode, encode
from dmr.state.values import ValuesError
from dmr.system.watch import WATCH
from dmr.wire.channel import (
    Accepted,
    Acknowledged,
    Arrived,
    Build,
    ChannelError,
    Committed,
    ControlChannel,
    Header,
    Stored,
    TakenOver,
    connect,
)
from dmr.wire.ranks import RankMessages
from dmr.world import World, layouts_for, sent_once_a_node, widest_grid

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
        path = store.write(
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


# --- the new world's side: it boots, waits, and takes over or leaves ----------------------------

IDLE_S = 1e-3
"""Sleep between polls of ranks that wait for the old world: it needs their core."""


class Target(Side):
    """A world that was booted beside a running one."""

    def __init__(self, app: Application, run: Run, plan: Plan) -> None:
        super().__init__(RankMessages(run.world.internal_comm, 0), plan.deadlines)
        self.app, self.run, self.plan = app, run, plan
        self._inter = run.runtime.parent
        self._stack = contextlib.ExitStack()
        self._constants: dict[str, str] = {}
        self._node: MPI.Intracomm | None = None
        self._receivers: tuple[int, ...] = ()

    def take_over(self) -> None:
        """Wait for the old world and become the job (collective).

        Raises:
            Left: it was refused, or nobody came. The old world goes on: MPI_Abort here might end
                it too.
        """
        with self._stack:
            try:
                self._take_over()
            except RolledBackError:
                raise Left(0) from None
            except Exception as error:
                channel = self.channels[0] if self.channels else None
                give_way(self.run.runtime, self.messages, error, channel)

    def _take_over(self) -> None:
        run = self.run
        port = self._prepare()
        header = self.on_root(lambda: self._meet(port), sleep_s=IDLE_S)
        if run.runtime.slot:
            bind(run.runtime.slot)
        in_host = self._accept_header(header)
        if header.strategy == "merge":
            self._join(header, port, in_host)
        else:
            self._replace(header, port, in_host)

    # --- before the old world comes ----------------------------------------------------------

    def _prepare(self) -> str:
        """Do what needs no data: prefault the memory, load kernels; return the MPI port."""
        fields = self.run.fields
        for block in fields.values():
            if block.spec.constant:
                block.initialise()
            else:
                block.prefault()  # pages are there before the data is
        self._find_nodes()
        self.app.prepare(self.run)
        if found := constant.hashes(fields):
            self._constants = self.conclude(None, found, partial(constant.combined, fields))
        port = ""
        if self._inter is None and self.run.world.rank == 0:
            with contextlib.suppress(MPI.Exception):
                port = MPI.Open_port()
                self._stack.callback(MPI.Close_port, port)
        return port

    def _find_nodes(self) -> None:
        """Find out which ranks share a node, if there is anything that each of them gets whole."""
        world, fields = self.run.world, constant.moving(self.run.fields).values()
        if world.size == 1 or all(block.spec.split for block in fields):
            return
        node: MPI.Intracomm = world.internal_comm.Split_type(MPI.COMM_TYPE_SHARED)  # type: ignore[assignment]
        self._stack.callback(node.Free)
        first = world.internal_comm.allgather(node.rank == 0)
        if not all(first):
            self._node = node
            self._receivers = tuple(rank for rank, one in enumerate(first) if one)

    def _meet(self, port: str) -> Header:
        runtime = self.run.runtime
        if runtime.rendezvous is None:
            raise RuntimeError("expected to meet a running world")
        channel = runtime.rendezvous.meet(runtime.manager, port)
        self.channels.append(self._stack.enter_context(channel))
        (header,) = self.expect(Header)
        return header

    def _accept_header(self, header: Header) -> bool:
        """Refuse a job of other fields or options; return whether blocks come without packing."""
        run = self.run
        mine = all(block.in_host for block in run.fields.values())
        problem = differing("field", header.signature, signature(run.fields)) or differing(
            "option",
            self._fixed(header.options, header.strategy),
            self._fixed(self.plan.options, header.strategy),
        )
        if header.ranks != run.world.size and header.strategy != "merge":
            problem = problem or f"expected {header.ranks} ranks, got {run.world.size}"
        try:
            # The control channel is authenticated in both directions.
            run.progress = decode(bytes(header.progress), trusted=True)
        except (msgspec.DecodeError, ValuesError) as error:
            problem = problem or str(error)
        if header.strategy not in ("merge", "restart"):  # these move it as all else
            problem = problem or constant.problem_with(run.progress.constants, self._constants)
        self.conclude(problem, None, lambda _: self.say(Accepted(mine, self._receivers)))
        return mine and header.in_host

    def _fixed(self, options: Mapping[str, Any], strategy: str) -> dict[str, Any]:
        """Return the options that may not change: the backend may, if no rank stays."""
        known = () if strategy == "merge" else self.app.backends
        return {k: v for k, v in options.items() if k != "backend" or v not in known}

    def _accept(self, port: str) -> MPI.Intercomm:
        """Return the inter-communicator to the old world: MPI's own, or met at the port."""
        return self._inter or self.run.world.internal_comm.Accept(port)

    # --- in place of the old world -----------------------------------------------------------

    def _replace(self, header: Header, port: str, in_host: bool) -> None:
        """Become the job's world (warm, spawn, restart)."""
        run, own = self.run, self.run.world
        run.progress.generation += 1
        run.world = World(own.comm, own.internal_comm, run.progress.generation, own.grid)
        run.progress.launches = [(run.runtime.launch, own.size)]
        inter = None
        if header.strategy == "restart":
            times = (self._read(), 0.0, 0.0)
        else:
            inter = self._accept(port)
            times = self._receive(inter, header, in_host)
        problem, build_s = self._build()
        self._acknowledge(problem, (*times, build_s))
        if inter is not None:
            inter.Disconnect()

    def _receive(
        self, inter: MPI.Intercomm, header: Header, in_host: bool
    ) -> tuple[float, float, float]:
        """Fill the blocks; return the seconds of that, of plain sends, and of measuring these."""
        begun = time.perf_counter()
        fields = constant.moving(self.run.fields)
        layouts = {name: block.layout for name, block in fields.items()}
        for name, layout in sent_once_a_node(layouts, self._receivers).items():
            fields[name].layout = layout
        problem, _ = attempt(lambda: self._fill(inter, fields, header, in_host))
        self.conclude(problem, None, nothing, self.check_alive)
        problem, _ = attempt(lambda: self._share(fields))
        taken_s = time.perf_counter() - begun
        self.conclude(problem, None, nothing, self.check_alive)
        begun = time.perf_counter()
        raw_s = 0.0
        if header.measure:
            problem, raw = attempt(lambda: self._measure(inter, header))
            self.conclude(problem, None, nothing, self.check_alive)
            raw_s = raw or 0.0
        return taken_s, raw_s, time.perf_counter() - begun

    def _fill(
        self, comm: MPI.Comm, fields: Mapping[str, Field], header: Header, in_host: bool
    ) -> None:
        intact = True
        old = self._layouts(header.from_ranks)
        for name, block in fields.items():
            intact &= transfer.receive(
                comm, block, old[name], in_host=in_host, check=self.check_alive
            )
        if not intact:
            raise RolledBackError("data did not arrive whole")

    def _share(self, fields: Mapping[str, Field]) -> None:
        """Give what one rank of a node was sent whole to the others there."""
        for block in fields.values():
            if self._node is not None and not block.spec.split:
                transfer.share(self._node, block, self.check_alive)

    def _measure(self, inter: MPI.Intercomm, header: Header) -> float:
        old = self._layouts(header.from_ranks)
        return sum(
            transfer.plain(inter, block, old[name], sending=False, check=self.check_alive)
            for name, block in constant.moving(self.run.fields).items()
        )

    def _layouts(self, ranks: int) -> dict[str, Decomposition]:
        return layouts_for(ranks, {name: block.spec for name, block in self.run.fields.items()})

    def _read(self) -> float:
        """Read the checkpoint that the old world has written; return the seconds it took."""
        begun = time.perf_counter()
        (stored,) = self.on_root(lambda: self.expect(Stored))
        path = path_of(Path(stored.folder), stored.step)
        problem = None
        try:
            store.load(path, self.run.world, self.run.fields, self._fixed(self.plan.options, ""))
        except (BrokenCheckpointError, CollectiveError, OSError, MemoryError) as error:
            problem = f"{path}: {error}"
        self.conclude(problem, None, nothing, self.check_alive)
        return time.perf_counter() - begun

    # --- beside the ranks of the old world that stay -----------------------------------------

    def _join(self, header: Header, port: str, in_host: bool) -> None:
        """Become part of the running world (merge)."""
        run, own = self.run, self.run.world
        comm = join(own.internal_comm, self._accept(port), high=True, keep=True)
        for _ in header.joined[header.place + 1 :]:
            comm = join(comm, comm.Connect(""), high=False, keep=False)
        begun = time.perf_counter()
        layouts = self._layouts(header.ranks)
        fields: dict[str, Field] = {}

        def fill() -> None:
            for name, block in run.fields.items():
                fields[name] = block.moved_to(layouts[name], comm.rank)
                self._fill(comm, {name: fields[name]}, header, in_host)

        def arrived(parts: list[float]) -> None:
            """All is here; wait until it is everywhere."""
            self.say(Arrived(max(parts)))
            self.expect(Build)

        problem, _ = attempt(fill)
        moved_s = time.perf_counter() - begun
        self.conclude(problem, moved_s, arrived, self.check_alive)
        launches = header.joined or ((run.runtime.launch, own.size),)
        enter(
            run, comm, widest_grid(comm.size, layouts), fields, [*run.progress.launches, *launches]
        )
        problem, build_s = self._build()
        cost = self._acknowledge(problem, (moved_s, 0.0, 0.0, build_s), joins=True)
        stay(run, own, cost)

    # --- the end of it -----------------------------------------------------------------------

    def _build(self) -> tuple[str | None, float]:
        """Build for this world; return what all ranks find wrong, and the seconds it took."""
        begun = time.perf_counter()
        problem = None
        try:
            self.app.build(self.run)
            self.run.internal.built = True
        except CollectiveError as error:
            problem = str(error)
        return problem, time.perf_counter() - begun

    def _acknowledge(
        self, problem: str | None, taken_s: tuple[float, ...], *, joins: bool = False
    ) -> OpenResize:
        """Say that all is here; the job is this world's once the old one has said so.

        Args:
            problem: what is wrong with this rank, or None.
            taken_s: seconds it took to move, to send plainly, to measure that, and to build.
            joins: whether ranks of the old world stay in this one.
        """
        run = self.run

        def take(parts: list[tuple[float, ...]]) -> OpenResize:
            self.say(Acknowledged(*(max(each) for each in zip(*parts, strict=True))))
            (committed,) = self.expect(Committed)
            if self.plan.checkpoint is not None and not joins:
                run.internal.checkpoint_lock = store.Lock(self.plan.checkpoint.directory)
                run.internal.checkpoint_lock.acquire()
            self.say(TakenOver())
            return committed.cost

        cost = self.conclude(problem, taken_s, take)
        progress = run.progress
        progress.open_resize = cost
        cost.arrived_at = run.runtime.clock()
        progress.elapsed_s += cost.old_stall_s
        progress.answered_request = max(progress.answered_request, cost.request)
        return cost


def differing(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return a sentence if two worlds of one job do not state the same."""
    old, new = json.loads(json.dumps(dict(old))), json.loads(json.dumps(dict(new)))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            return f"{what} {name}: expected {old.get(name)}, got {new.get(name)}"
    return None
