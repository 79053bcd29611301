"""A resize into a world of new ranks (strategies warm, spawn and restart), step by step.

The old world gives the job away, the new world takes it over. Rank 0 of each communicates for its
world over a control channel that notices a death (:mod:`dmr.wire.channel`); MPI carries fields
only. A section below is a step of the protocol: the old world's function, then the new world's::

    step     old world                                      new world

    start    encodes the state; starts the new world        boots, makes constant fields, touches
             (the RMS has started it already)               its memory, loads kernels
    meet     connects to the new world                      reports that it is ready, sleeps
    header   Header: progress, fields, options        -->   compares them with its own
                                                      <--   Accepted
    connect  MPI_Comm_connect                               MPI_Comm_accept
    move     interiors, hashed                        -->   checks the hashes
             (restart: Stored, the name of a checkpoint)    (reads the checkpoint)
    build    waits                                          builds for its ranks
    commit                                            <--   Acknowledged
             Committed: the job is yours, its cost    -->
                                                      <--   TakenOver
    leave    frees its fields, ends                         steps

A step that fails on one rank fails on all ranks of its world by
:class:`~dmr.errors.RolledBackError`, and rank 0 sends Refused with the reason. In every step up to
TakenOver the old world still has everything: it goes on as it was, and the new world leaves. Every
wait has a deadline. The job is the new world's from Committed on. If the connection ends before
TakenOver, the new world has died, and the old one goes on; if nothing comes in time, the new world
may have the job, and the old one ends.

Strategy merge (:mod:`dmr.resize.merge`) shares the steps, except move and leave.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

from dmr.application import Program, Run
from dmr.boot import spawn
from dmr.boot.environment import bind
from dmr.data import streams
from dmr.data.decomposition import Decomposition
from dmr.data.distributed import Distributed
from dmr.data.field import Field
from dmr.errors import CollectiveError, Left, RolledBackError
from dmr.plan import NextWorld, Plan, Schedule
from dmr.resize.side import Side, catch_failure, detach_fields, give_way
from dmr.state.progress import OpenResize, decode, encode, merge_all, pack, with_merged
from dmr.state.values import ValuesError
from dmr.system.watch import WATCH
from dmr.wire.channel import (
    Accepted,
    Acknowledged,
    ChannelError,
    Committed,
    ControlChannel,
    Header,
    SilentError,
    Stored,
    TakenOver,
    connect,
)
from dmr.wire.ranks import RankMessages
from dmr.world import decompositions_for

ERROR_LENGTH = 120
"""Length to which an error message of MPI is cut."""

UNCLEAR = "the new world has not answered the commit, and may have the job"

IDLE_S = 1e-3
"""Sleep between polls of ranks that wait for the old world, which needs their core."""


class Phase(StrEnum):
    """Progress of a resize, as messages name it."""

    BOOTING = "booting"
    READY = "ready"
    MOVING = "moving"
    COMMITTED = "committed"


class OldWorld(Side):
    """The old world's side of one attempt at a resize.

    Args:
        stack: frees handles at the end of the attempt.

    Attributes:
        from_ranks, begun: size of the old world, and the clock when the resize began.
        meet_s, phases_s: seconds until the worlds had met, and of the phases of the stall.
        decompositions: of the fields in the new world.
        inter: the inter-communicator to the new world, if MPI has one.
        merged: one value for each state that differs from rank to rank.
        encoded: the progress, which contains the state (rank 0).
    """

    def __init__(
        self, run: Run, plan: Plan, wanted: NextWorld, stack: contextlib.ExitStack
    ) -> None:
        run.internal.attempts += 1
        messages = RankMessages(run.world.internal_comm, run.internal.attempts)
        super().__init__(messages, plan.deadlines)
        self.run, self.plan, self.wanted, self.stack = run, plan, wanted, stack
        self.decompositions = decompositions_over(run, wanted.ranks)
        self.inter: MPI.Intercomm | None = None
        self.merged: dict[str, Any] = {}
        self.encoded = b""
        self.from_ranks, self.begun = run.world.size, run.runtime.clock()
        self.meet_s, self.phases_s = 0.0, dict[str, float]()

    def check_reports(self, waited_s: float) -> None:
        """Check a wait for the reports of this world's ranks."""
        self.check_other_world()
        if waited_s > self.deadlines.answer_s:
            raise ChannelError("ranks of the old world have not sent their part")


class NewWorld(Side):
    """The new world's side: it was booted beside a running world.

    Attributes:
        inter: the inter-communicator to the old world, if that has spawned this one.
        constants: hashes of the constant fields, as this world has made them.
        node: the ranks of this rank's node, if they share the fields that every rank has whole.
        receivers: the first rank of each node then.
    """

    def __init__(self, app: Program, run: Run, plan: Plan) -> None:
        super().__init__(RankMessages(run.world.internal_comm, 0), plan.deadlines)
        self.app, self.run, self.plan = app, run, plan
        self.stack = contextlib.ExitStack()
        self.inter = run.runtime.parent
        self.constants: dict[str, str] = {}
        self.node: MPI.Intracomm | None = None
        self.receivers: tuple[int, ...] = ()


Join = Callable[[NewWorld, Header, str, bool], None]
"""Makes a new world part of the running one (strategy merge)."""


# --- all steps ----------------------------------------------------------------------------------


def replace_world(run: Run, plan: Plan, wanted: NextWorld) -> None:
    """Replace the whole world of ``run`` (collective over the old world).

    Raises:
        Left: the new world has the job; leave.
        RolledBackError: the resize has failed; go on.
    """
    clock = run.runtime.clock
    with contextlib.ExitStack() as stack:
        old = OldWorld(run, plan, wanted, stack)
        meet_old(old, start_old(old))
        met = clock()
        accepted = header_old(old)
        old.decompositions = with_receivers(old.decompositions, accepted.receivers)
        introduced = clock()
        if old.inter is None and wanted.strategy != "restart":
            comm, port = run.world.internal_comm, wanted.launches[0].port
            old.inter = connect_old(old, comm, port)
        connected = clock()
        problem, sent = move_old(old, accepted)
        old.phases_s = {
            "meet": old.meet_s,
            "introduce": introduced - met,
            "connect": connected - introduced,
            "send": clock() - connected,
        }
        answered = commit_old(old, problem, sent)
    leave_old(run, wanted, answered=answered)


def take_over(app: Program, run: Run, plan: Plan, join: Join) -> None:
    """Wait for the old world and take over the job (collective over the new world).

    Args:
        join: the steps after the header in strategy merge.

    Raises:
        Left: the old world has refused, or has not come. It goes on: MPI_Abort here might end it
            too.
    """
    new = NewWorld(app, run, plan)
    with new.stack:
        try:
            port = start_new(new)
            header = new.on_root(lambda: meet_new(new, port), sleep_s=IDLE_S)
            if run.runtime.slot:
                bind(run.runtime.slot)
            on_host = header_new(new, header)
            steps = join if header.strategy == "merge" else _take_over
            steps(new, header, port, on_host)
        except RolledBackError:
            raise Left(0) from None
        except Exception as error:
            channel = new.channels[0] if new.channels else None
            give_way(run.runtime, new.messages, error, channel)


def _take_over(new: NewWorld, header: Header, port: str, on_host: bool) -> None:
    """Do the steps from the connection on, in place of the old world."""
    run = new.run
    run.progress.generation += 1
    run.world = dataclasses.replace(run.world, generation=run.progress.generation)
    run.progress.launches = [(run.runtime.launch, run.world.size)]
    inter = None
    if header.strategy == "restart":
        move_s = read_new(new)
    else:
        inter = connect_new(new, port)
        move_s = move_new(new, inter, header, on_host)
    problem, build_s = build_new(new)
    commit_new(new, problem, move_s, build_s)
    if inter is not None:
        inter.Disconnect()


# --- start --------------------------------------------------------------------------------------


def start_old(old: OldWorld) -> list[Callable[[], ControlChannel]]:
    """Encode the state and start the new world; return a function for each channel to it.

    The state comes first, so that an error of pickling is raised before anything is started.
    """
    run, wanted, boot_s = old.run, old.wanted, old.deadlines.boot_s
    merge_state(old)

    def encode_state() -> None:
        old.encoded = encode(with_merged(run.progress, old.merged))

    hosts: list[str] | None = None

    def start_mpiexec() -> ControlChannel:
        started = spawn.start_mpiexec(run.runtime, wanted, old.stack, boot_s, hosts or ())
        run.internal.mpiexec, channel = started
        return channel

    old.on_root(encode_state)
    old.phase = Phase.BOOTING
    if wanted.launches:
        if wanted.strategy != "restart" and not run.internal.can_connect:
            # Open MPI 5.0 waits in MPI_Comm_connect forever; MPICH 5.0 crashes in the next one
            # of a process in which one has timed out.
            raise RolledBackError("MPI_Comm_connect does not work in this world, or no longer does")
        return [partial(connect, one.address, old.deadlines.connect_s) for one in wanted.launches]
    comm = run.world.internal_comm
    if wanted.strategy == "restart":
        hosts = comm.gather(spawn.host_of_rank())
        return [start_mpiexec]
    old.inter, wait = spawn.spawn(run.runtime, comm, wanted, old.stack, boot_s)
    return [wait]


def start_new(new: NewWorld) -> str:
    """Prepare all that needs no data, while the old world steps; return the MPI port, or ""."""
    fields = new.run.fields
    constants = {name: block for name, block in fields.items() if block.spec.constant}
    for name, block in fields.items():
        if name in constants:
            block.initialise()
        else:
            block.prefault()  # pages exist before the data arrives
    _find_nodes(new)
    new.app.prepare(new.run)
    if constants:
        from dmr.data import constant

        hashes = constant.hashes(constants)
        new.constants = new.report_and_decide(None, hashes, partial(constant.combined, constants))
    else:
        # MPI connects two ranks at their first message: here, not while the old world waits.
        new.agree(None, lambda _: None)
    port = ""
    if new.inter is None and new.run.world.rank == 0:
        with contextlib.suppress(MPI.Exception):
            port = MPI.Open_port()
            new.stack.callback(MPI.Close_port, port)
    return port


def merge_state(old: OldWorld) -> None:
    """Make one value of each state that differs from rank to rank, and try to split it again."""
    specs = old.run.internal.per_rank
    if not specs:
        return

    def merge(parts: Sequence[bytes]) -> dict[str, Any]:
        values = merge_all(specs, parts)
        for name, spec in specs.items():
            spec.part(name, values[name], 0, old.wanted.ranks)
        return values

    problem, packed = catch_failure(lambda: pack(specs, old.run.state))
    old.merged = old.report_and_decide(problem, packed or b"", merge, old.check_reports)


def _find_nodes(new: NewWorld) -> None:
    """Find the ranks that share a node, if there is a field that every rank has whole."""
    world, fields = new.run.world, moving(new.run.fields).values()
    if world.size == 1 or all(block.spec.split for block in fields):
        return
    node: MPI.Intracomm = world.internal_comm.Split_type(MPI.COMM_TYPE_SHARED)  # type: ignore[assignment]
    new.stack.callback(node.Free)
    first = world.internal_comm.allgather(node.rank == 0)
    if not all(first):
        new.node = node
        new.receivers = tuple(rank for rank, is_first in enumerate(first) if is_first)


# --- meet ---------------------------------------------------------------------------------------


def meet_old(old: OldWorld, connections: Sequence[Callable[[], ControlChannel]]) -> None:
    """Open a channel to every launch of the new world, on rank 0."""

    def open_channels() -> None:
        for connection in connections:
            old.channels.append(old.stack.enter_context(connection()))

    old.on_root(open_channels)
    old.meet_s = old.run.runtime.clock() - old.begun
    old.phase = Phase.READY


def meet_new(new: NewWorld, port: str) -> Header:
    """Rank 0: report that this world is ready, wait for the old one, and return its header."""
    rendezvous = new.run.runtime.rendezvous
    if rendezvous is None:
        raise RuntimeError("expected to meet a running world")
    new.channels.append(new.stack.enter_context(rendezvous.meet(port)))
    (header,) = new.expect(Header)
    return header


# --- header -------------------------------------------------------------------------------------


def header_old(old: OldWorld) -> Accepted:
    """Send the header; return whether blocks may go without packing, and to which ranks."""
    run, wanted = old.run, old.wanted

    def introduce() -> Accepted:
        header = Header(
            ranks=wanted.ranks,
            from_ranks=run.world.size,
            strategy=wanted.strategy,
            progress=msgspec.Raw(old.encoded),
            signature=signature(run.fields),
            options=dict(old.plan.options),
            on_host=all(block.on_host for block in run.fields.values()),
            joined=tuple((one.launch, one.ranks) for one in wanted.launches),
        )
        for place, channel in enumerate(old.channels):
            channel.send(msgspec.structs.replace(header, place=place))
        answers = old.expect(Accepted)
        return Accepted(all(answer.on_host for answer in answers), answers[0].receivers)

    accepted = old.on_root(introduce)
    old.phase = Phase.MOVING
    return accepted


def header_new(new: NewWorld, header: Header) -> bool:
    """Accept the job, or refuse one of other fields or options.

    Returns:
        Whether blocks come without packing.
    """
    run, strategy = new.run, header.strategy
    on_host = all(block.on_host for block in run.fields.values())
    problem = differing("field", header.signature, signature(run.fields)) or differing(
        "option",
        _fixed(new, header.options, strategy),
        _fixed(new, new.plan.options, strategy),
    )
    if header.ranks != run.world.size and strategy != "merge":
        problem = problem or f"expected {header.ranks} ranks, got {run.world.size}"
    try:
        # The control channel is authenticated in both directions.
        run.progress = decode(bytes(header.progress), trusted=True)
    except (msgspec.DecodeError, ValuesError) as error:
        problem = problem or str(error)
    if new.constants and strategy in ("warm", "spawn"):  # the others move constant fields, too
        from dmr.data import constant

        problem = problem or constant.problem_with(run.progress.constants, new.constants)
    new.report_and_decide(problem, None, lambda _: new.say(Accepted(on_host, new.receivers)))
    return on_host and header.on_host


def signature(fields: Mapping[str, Distributed]) -> dict[str, Any]:
    """Return the properties of the fields that both worlds must have in common."""
    return {name: block.spec.signature() for name, block in fields.items()}


def differing(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return a sentence on the first value that differs between two worlds, None for none."""
    old, new = json.loads(json.dumps(dict(old))), json.loads(json.dumps(dict(new)))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            return f"{kind} {name}: expected {old.get(name)}, got {new.get(name)}"
    return None


def _fixed(new: NewWorld, options: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """Return the options that may not change: the backend may, if no rank stays."""
    backends = () if strategy == "merge" else new.app.backends
    return {k: v for k, v in options.items() if k != "backend" or v not in backends}


# --- connect ------------------------------------------------------------------------------------


def connect_old(old: OldWorld, comm: MPI.Intracomm, port: str) -> MPI.Intercomm:
    """Return an inter-communicator to ranks that wait at a port (collective over ``comm``)."""
    old.on_root(old.check_other_world)
    info = MPI.Info.Create()
    try:
        info.Set("timeout", str(max(1, round(old.deadlines.connect_s))))
        return comm.Connect(port if old.messages.is_root else "", info)
    except MPI.Exception as error:
        old.run.internal.can_connect = False
        why = " ".join(error.Get_error_string().split())[:ERROR_LENGTH]
        raise RolledBackError(old.in_phase(f"MPI_Comm_connect failed: {why}")) from None
    finally:
        info.Free()


def connect_new(new: NewWorld, port: str) -> MPI.Intercomm:
    """Return the inter-communicator to the old world: MPI's own, or one of the port."""
    return new.inter or new.run.world.internal_comm.Accept(port)


# --- move ---------------------------------------------------------------------------------------


def moving(fields: Mapping[str, Distributed]) -> dict[str, Distributed]:
    """Return the fields that a resize into a world of new ranks sends."""
    return {name: block for name, block in fields.items() if not block.spec.constant}


def decompositions_over(run: Run, ranks: int) -> dict[str, Decomposition]:
    """Return the decompositions of the fields over another number of ranks."""
    return decompositions_for(ranks, {name: block.spec for name, block in run.fields.items()})


def with_receivers(
    decompositions: Mapping[str, Decomposition], receivers: tuple[int, ...]
) -> dict[str, Decomposition]:
    """Return decompositions in which only these ranks receive fields that every rank has whole."""
    return {
        name: dataclasses.replace(one, receivers=receivers) if receivers and not one.split else one
        for name, one in decompositions.items()
    }


def move_old(old: OldWorld, accepted: Accepted) -> tuple[str | None, int]:
    """Send this rank's part, or store it; return the reason of a failure, and the bytes sent.

    The failure is reported at the commit, when all ranks have tried.
    """
    inter = old.inter
    if inter is None:
        store_old(old)
        return None, 0

    def send() -> int:
        sent = 0
        for name, block in moving(old.run.fields).items():
            steps = block.sending(inter, old.decompositions[name], on_host=accepted.on_host)
            sent += sum(streams.drive([steps], old.check_alive))
        return sent

    problem, sent = catch_failure(send)
    return problem, sent or 0


def move_new(new: NewWorld, inter: MPI.Intercomm, header: Header, on_host: bool) -> float:
    """Receive this rank's part of every field; return the time in seconds."""
    begun = time.perf_counter()
    fields = moving(new.run.fields)
    decompositions = {name: block.decomposition for name, block in fields.items()}
    for name, decomposition in with_receivers(decompositions, new.receivers).items():
        fields[name].decomposition = decomposition
    problem, _ = catch_failure(lambda: fill(new, inter, fields, header.from_ranks, on_host))
    new.agree(problem, new.check_alive)

    def share_on_node() -> None:
        for block in fields.values():
            if new.node is not None and isinstance(block, Field) and not block.spec.split:
                streams.share(new.node, block.carried(), new.check_alive)

    problem, _ = catch_failure(share_on_node)
    move_s = time.perf_counter() - begun
    new.agree(problem, new.check_alive)
    return move_s


def fill(
    new: NewWorld, comm: MPI.Comm, fields: Mapping[str, Distributed], from_ranks: int, on_host: bool
) -> None:
    """Receive fields from the ranks of the old world."""
    intact, decompositions = True, decompositions_over(new.run, from_ranks)
    for name, block in fields.items():
        steps = block.receiving(comm, decompositions[name], on_host=on_host)
        intact &= all(streams.drive([steps], new.check_alive))
    if not intact:
        raise RolledBackError("data did not arrive whole")


def store_old(old: OldWorld) -> None:
    """Restart: write a checkpoint for the new world to read (collective).

    If the plan has no folder for checkpoints, it is in a temporary one in the working folder.
    """
    from dmr.checkpoint import store

    run, schedule = old.run, old.plan.checkpoint
    if schedule is None:
        name = run.world.internal_comm.bcast(f".dmr-{secrets.token_hex(4)}")
        schedule = Schedule(Path.cwd() / name)
        if run.world.rank == 0:
            old.stack.callback(shutil.rmtree, schedule.folder, ignore_errors=True)
    progress, log = with_merged(run.progress, old.merged), run.runtime.log
    lock = None if old.plan.checkpoint is None else run.internal.checkpoint_lock
    options = old.plan.options
    path = store.write(schedule, run.world, run.fields, progress, options, log, lock=lock)
    if path is None:
        raise RolledBackError(old.in_phase("the checkpoint could not be written"))
    old.on_root(lambda: old.say(Stored(str(schedule.folder), run.step)))


def read_new(new: NewWorld) -> float:
    """Restart: read the checkpoint of the old world; return the time in seconds."""
    from dmr.checkpoint import store
    from dmr.checkpoint.format import BrokenCheckpointError, read_checkpoint

    begun = time.perf_counter()
    (stored,) = new.on_root(lambda: new.expect(Stored))
    path = store.path_of(Path(stored.folder), stored.step)
    problem = None
    try:
        read_checkpoint(path, new.run.fields, _fixed(new, new.plan.options, ""))
    except (BrokenCheckpointError, CollectiveError, OSError, MemoryError) as error:
        problem = f"{path}: {error}"
    new.agree(problem, new.check_alive)
    return time.perf_counter() - begun


# --- build --------------------------------------------------------------------------------------


def build_new(new: NewWorld) -> tuple[str | None, float]:
    """Build for this world; return an error of all ranks, and the time in seconds."""
    begun = time.perf_counter()
    problem = None
    try:
        new.app.build(new.run)
        new.run.internal.built = True
    except CollectiveError as error:
        problem = str(error)
    return problem, time.perf_counter() - begun


# --- commit -------------------------------------------------------------------------------------


def commit_old(old: OldWorld, problem: str | None, sent: int) -> bool:
    """Give the job away, once every rank has done its part and the new world has all of it.

    Args:
        problem, sent: this rank's result of the move.

    Returns:
        Whether the new world has answered; if not, it may have the job.
    """

    def give_away(parts: list[int]) -> OpenResize | None:
        acks = old.expect(Acknowledged)
        restart = old.wanted.strategy == "restart"
        stored = sum(block.spec.nbytes for block in old.run.fields.values()) if restart else 0
        return commit(old, sum(parts) + stored, 0.0, 0.0, acks)

    answered = old.report_and_decide(problem, sent, give_away, old.check_reports) is not None
    if answered and old.inter is not None:
        old.inter.Disconnect()
    return answered


def commit(
    old: OldWorld, sent: int, move_s: float, build_s: float, acks: Sequence[Acknowledged]
) -> OpenResize | None:
    """Rank 0: send Committed with the record of the resize, and wait for TakenOver.

    If the new world is gone by then, this one still has the job.

    Args:
        sent: bytes that all ranks have sent.
        move_s, build_s: seconds that ranks of this world have moved and built (merge).
        acks: of every new launch.

    Returns:
        The record; None if the new world does not answer, and may have the job.
    """
    run, wanted = old.run, old.wanted
    move_s = max([move_s, *(ack.move_s for ack in acks)])
    build_s = max([build_s, *(ack.build_s for ack in acks)])
    cost = OpenResize(
        step=run.step,
        from_ranks=old.from_ranks,
        to_ranks=wanted.ranks,
        strategy=wanted.strategy,
        boot_s=max((one.boot_s for one in wanted.launches), default=old.meet_s),
        move_s=move_s,
        old_stall_s=run.runtime.clock() - old.begun,
        bytes=sent,
        sigterm_received=bool(run.internal.sigterm),
        request=wanted.request,
        phases_s=old.phases_s | {"move": move_s, "build": build_s},
    )
    old.phase = Phase.COMMITTED
    lock = None if wanted.strategy == "merge" else run.internal.checkpoint_lock
    if lock is not None:
        lock.release()  # for the new world
    try:
        old.say(Committed(cost))
        old.expect(TakenOver)
    except SilentError:
        return None
    except ChannelError:
        if lock is not None:
            lock.acquire()
        raise
    return cost


def commit_new(
    new: NewWorld, problem: str | None, move_s: float, build_s: float, *, joins: bool = False
) -> OpenResize:
    """Acknowledge the data; the job is this world's at the old world's Committed.

    Args:
        problem: why this rank has failed, or None.
        move_s, build_s: seconds that this rank has moved and built.
        joins: whether ranks of the old world stay in this one.
    """
    run = new.run

    def take(parts: list[tuple[float, float]]) -> OpenResize:
        moved, built = zip(*parts, strict=True)
        new.say(Acknowledged(max(moved), max(built)))
        (committed,) = new.expect(Committed)
        if new.plan.checkpoint is not None and not joins:
            from dmr.checkpoint import store

            owner = run.runtime.run_of_job
            run.internal.checkpoint_lock = store.Lock(new.plan.checkpoint.folder, owner)
            run.internal.checkpoint_lock.acquire()
        try:
            new.say(TakenOver())
        except ChannelError:
            if joins:
                raise
            # The job is this world's all the same: the old world has ended.
        return committed.cost

    cost = new.report_and_decide(problem, (move_s, build_s), take)
    progress = run.progress
    progress.open_resize = cost
    cost.arrived_at = run.runtime.clock()
    progress.elapsed_s += cost.old_stall_s
    progress.answered_request = max(progress.answered_request, cost.request)
    return cost


# --- leave --------------------------------------------------------------------------------------


def leave_old(run: Run, wanted: NextWorld, *, answered: bool) -> None:
    """End the old world; with an error if the new one has not answered the commit."""
    if not answered:
        run.note(f"error: resize at step {run.step}: {UNCLEAR}, so this world ends")
    detach_fields(run)
    status = 0 if answered or run.runtime.manager is not None else 1

    def wait() -> int:
        """Wait, as the parent of the new world's mpiexec, to pass on its status."""
        WATCH.stop()  # the new world may take any time, and has a watchdog of its own
        with contextlib.suppress(MPI.Exception):
            MPI.Finalize()
        return status if run.internal.mpiexec is None else run.internal.mpiexec.wait()

    is_parent = wanted.strategy == "restart" and run.runtime.manager is None
    raise Left(status, wait if is_parent else None)
