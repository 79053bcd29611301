"""Strategy merge: ranks that stay keep what stays theirs; the difference moves.

An expansion joins launches to the running world and rebalances; a shrink lets go of whole
launches, because ranks of one mpiexec (or spawn) end together. All ranks of the merged world build
before the commit; until then those that stay hold the old blocks and the old communicator as well,
and if the commit does not come they build for the old world once more.

The steps are those of :mod:`dmr.resize.replace` with another move and another end::

    step     old world                                      new world (an expansion only)

    start to connect, as there; all ranks are in one communicator then
    move     rebalances                               -->   receives its part
                                                      <--   Arrived: every cell is here
    build    Build: every cell is everywhere          -->
             ranks that stay build                          builds with them
    commit                                            <--   Acknowledged
             Committed                                -->
                                                      <--   TakenOver
    leave    ranks that a shrink lets go end                steps with the ranks that stay
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from dmr.application import Application, Run
from dmr.boot import spawn
from dmr.data import streams
from dmr.data.distributed import Distributed, Steps
from dmr.errors import CollectiveError, Left, RolledBackError
from dmr.plan import NextWorld, Plan
from dmr.resize import replace
from dmr.resize.replace import NewWorld, OldWorld, Phase
from dmr.resize.side import attempt, detach_fields
from dmr.state.progress import OpenResize
from dmr.state.values import ValuesError, adopt, replaced_parts
from dmr.system import libc
from dmr.wire.channel import (
    SEND_S,
    Acknowledged,
    Arrived,
    Build,
    ChannelError,
    ControlChannel,
    Header,
)
from dmr.world import World, decompositions_for, disconnect, widest_grid


def merge(
    app: Application,
    run: Run,
    plan: Plan,
    wanted: NextWorld,
    blocks: NewBlocks | None = None,
) -> None:
    """Grow or shrink the world of ``run`` in place (collective over the old world).

    Args:
        blocks: this rank's in the new world, if they are there already.

    Raises:
        Left: in ranks that a shrink lets go.
        RolledBackError: it could not be; go on as before.
    """
    with contextlib.ExitStack() as stack:
        if blocks is None:
            with contextlib.suppress(MemoryError):  # there may be room when they are needed
                blocks = NewBlocks(run.fields, wanted.ranks)
        if blocks is not None:
            stack.callback(blocks.drop)
        old = MergeSide(app, run, plan, wanted, stack, blocks)
        steps = grow if wanted.ranks > run.world.size else shrink
        steps(old)


@dataclass(frozen=True)
class Membership:
    """The new world, as one rank of the old one sees it.

    Attributes:
        comm: its ranks, or (in a rank that leaves) those that leave.
        launches: that its ranks are of, and ranks of each.
        on_host: whether blocks may go without packing.
        stays: whether this rank is in it.
    """

    comm: MPI.Intracomm
    launches: Sequence[tuple[int, int]]
    on_host: bool
    stays: bool = True


class MergeSide(OldWorld):
    """The old world's side of one try; ``blocks`` are this rank's in the new world, if any."""

    def __init__(
        self,
        app: Application,
        run: Run,
        plan: Plan,
        wanted: NextWorld,
        stack: contextlib.ExitStack,
        blocks: NewBlocks | None,
    ) -> None:
        super().__init__(run, plan, wanted, stack)
        self.app, self.blocks = app, blocks


# --- start to connect ---------------------------------------------------------------------------


def grow(old: MergeSide) -> None:
    """Join the launches that wait, or one that is spawned."""
    run = old.run
    replace.meet_old(old, replace.start_old(old))
    met = run.runtime.clock()
    on_host = replace.header_old(old).on_host
    more = [(one.launch, one.ranks) for one in old.wanted.launches]
    comm = run.world.internal_comm
    if old.inter is not None:
        comm = merged(comm, old.inter, high=False, keep=True)
        more = [(run.runtime.launch, comm.size - run.world.size)]
    else:
        for at, one in enumerate(old.wanted.launches):
            inter = replace.connect_old(old, comm, one.port)
            comm = merged(comm, inter, high=False, keep=at == 0)
    members = Membership(comm, [*run.progress.launches, *more], on_host)
    go_over(old, members, replace.open_resize(old, met))


def shrink(old: MergeSide) -> None:
    """Let the last launches go."""
    run, ranks = old.run, old.wanted.ranks
    kept: list[tuple[int, int]] = []
    for launch in run.progress.launches:
        if sum(count for _, count in kept) < ranks:
            kept.append(launch)
    if sum(count for _, count in kept) != ranks:
        sizes = ", ".join(str(count) for _, count in run.progress.launches)
        raise RolledBackError(
            f"expected {ranks} ranks to be whole launches, got launches of {sizes}"
        )
    replace.merge_state(old)
    old.phase = Phase.MOVING
    stays = run.world.rank < ranks
    part = MPI.Intracomm(run.world.internal_comm.Split(0 if stays else 1, run.world.rank))
    on_host = all(block.on_host for block in run.fields.values())
    cost = replace.open_resize(old, old.begun)
    try:
        go_over(old, Membership(part, kept, on_host, stays), cost)
    except RolledBackError:
        part.Free()
        # Messages of this try may still be on the old one, which so cannot be freed.
        renewed = run.world.internal_comm.Dup()
        run.world = dataclasses.replace(run.world, internal_comm=renewed)
        for block in run.fields.values():
            block.join(renewed)
        raise


# --- move, build, commit: both worlds -----------------------------------------------------------


def go_over(old: MergeSide, members: Membership, cost: OpenResize) -> None:
    """Rebalance, build, commit: ``members.comm`` is then the world of the ranks that stay."""
    run = old.run
    parts: dict[str, Any] = {}
    if run.internal.per_rank:
        problem, values = attempt(lambda: _parts(old, members))
        old.agree(problem, old.check_reports)
        parts = values or parts
    fields: dict[str, Distributed] = {}
    sent: list[int] = []
    begun = run.runtime.clock()
    problem, before = attempt(lambda: _rebalance(old, members, fields, sent))
    moved_s = run.runtime.clock() - begun

    def arrived(parts: list[int]) -> tuple[int, float]:
        """Every cell is where it belongs; have the new ranks build."""
        longest_s = max([moved_s, *(answer.move_s for answer in old.expect(Arrived))])
        old.say(Build())
        return sum(parts), longest_s

    bytes_, moved_s = old.report_and_decide(problem, sum(sent), arrived, old.check_reports)
    if before is None:
        raise RuntimeError("expected what this rank was before")
    try:
        if members.stays:
            grid = widest_grid(members.comm.size, old.decompositions)
            enter(run, members.comm, grid, fields, members.launches)
        done = _build_and_commit(
            old,
            members.stays,
            lambda built_s, acks: replace.commit(old, cost, bytes_, (moved_s, built_s), acks),
        )
    except RolledBackError:
        before.put_back(run)
        raise
    if not members.stays:
        leave(run, before.world, members.comm)
    for name, part in parts.items():
        value = run.state[name]
        replaced = replaced_parts(run.internal.parts[name], value)
        others = [other for key, other in run.state.items() if key != name]
        memory = [block.storage for block in fields.values()]
        run.state[name] = adopt(value, part, replaced, others=others, fields=memory)
    stay(run, before.world, done)


def join_world(new: NewWorld, header: Header, port: str, on_host: bool) -> None:
    """Become part of the running world, as :func:`go_over` does on its ranks."""
    run, own = new.run, new.run.world
    comm = merged(own.internal_comm, replace.connect_new(new, port), high=True, keep=True)
    for _ in header.joined[header.place + 1 :]:
        comm = merged(comm, comm.Connect(""), high=False, keep=False)
    begun = time.perf_counter()
    decompositions = replace.decompositions_over(new, header.ranks)
    fields: dict[str, Distributed] = {}

    def receive() -> None:
        for name, block in run.fields.items():
            fields[name] = block.moved_to(decompositions[name], comm.rank)
            replace.fill(new, comm, {name: fields[name]}, header.from_ranks, on_host)

    def arrived(parts: list[float]) -> None:
        """All is here; wait until it is everywhere."""
        new.say(Arrived(max(parts)))
        new.expect(Build)

    problem, _ = attempt(receive)
    moved_s = time.perf_counter() - begun
    new.report_and_decide(problem, moved_s, arrived, new.check_alive)
    launches = [*run.progress.launches, *(header.joined or ((run.runtime.launch, own.size),))]
    enter(run, comm, widest_grid(comm.size, decompositions), fields, launches)
    problem, build_s = replace.build_new(new)
    cost = replace.commit_new(new, problem, moved_s, build_s, joins=True)
    stay(run, own, cost)


def _parts(old: MergeSide, members: Membership) -> dict[str, Any]:
    """Return this rank's part, in the new world, of what differs from rank to rank."""
    if not members.stays:
        return {}
    specs, rank, ranks = old.run.internal.per_rank, members.comm.rank, old.wanted.ranks
    return {name: spec.part(name, old.merged[name], rank, ranks) for name, spec in specs.items()}


def _rebalance(
    old: MergeSide, members: Membership, fields: dict[str, Distributed], sent: list[int]
) -> Snapshot:
    """Send and take what moves into new ``fields``; return what this rank was before."""
    run, grows = old.run, members.comm.size > old.run.world.size
    carrier = members.comm if grows else run.world.internal_comm
    before = Snapshot(run)
    blocks = (old.blocks or NewBlocks(run.fields, old.wanted.ranks)).take()
    for name, block in run.fields.items():
        decomposition = old.decompositions[name]
        transfers: list[Steps[int]] = [
            block.sending(carrier, decomposition, on_host=members.on_host)
        ]
        if members.stays:
            fields[name] = new = blocks.pop(name)
            transfers.append(new.receiving(carrier, block.decomposition, on_host=members.on_host))
            new.keep(block)
        moved, *intact = streams.drive(transfers, old.check_alive)
        sent.append(moved)
        if not all(intact):
            raise RolledBackError("data did not arrive whole")
    return before


def _build_and_commit(
    old: MergeSide, stays: bool, commit: Callable[[float, list[Acknowledged]], OpenResize]
) -> OpenResize:
    """Build on the ranks that stay, as the new ones do meanwhile; then commit.

    A rank that has failed by itself waits for the others: they may be in a collective of
    ``build`` that it will never enter. Then only the end of all ranks helps.
    """
    run, limit_s = old.run, old.deadlines.answer_s
    failed: Exception | None = None
    begun = run.runtime.clock()
    with AckListener(old.channels, old.expect, limit_s) as acks:
        old.stack.callback(acks.close)
        try:
            if stays:
                old.app.build(run)
                run.internal.built = True
        except Exception as error:
            failed = error
    built_s = run.runtime.clock() - begun
    alone = failed is not None and not isinstance(failed, CollectiveError)
    problem = None if failed is None else str(failed)
    if alone:
        problem = f"rank {run.world.rank}: {type(failed).__name__}: {failed}"

    def check(waited_s: float) -> None:
        if alone and waited_s > limit_s:
            raise failed  # type: ignore[misc]

    try:
        return old.report_and_decide(
            problem,
            built_s,
            lambda parts: commit(max(parts), acks.answers()),
            check,
            everywhere=True,
        )
    finally:
        failed = None  # its trace would keep the new blocks


class AckListener:
    """Rank 0: takes the new ranks' acknowledgements while it builds with them.

    If they fail in the middle of it, this rank may wait for them in a collective for good.
    """

    def __init__(
        self,
        channels: Sequence[ControlChannel],
        expect: Callable[[type[Acknowledged]], list[Acknowledged]],
        limit_s: float,
    ) -> None:
        self._expect, self._limit_s = expect, limit_s
        self._found: list[Acknowledged] = []
        self._error: ChannelError | None = None
        self._built = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True) if channels else None

    def answers(self) -> list[Acknowledged]:
        """Return them, once they are there.

        Raises:
            ChannelError: one is none.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def close(self) -> None:
        """Stop listening, before the channels are closed."""
        if self._thread is not None:
            self._thread.join(SEND_S)

    def _listen(self) -> None:
        try:
            self._found = self._expect(Acknowledged)
        except ChannelError as error:
            self._error = error
            if not self._built.wait(self._limit_s):
                spawn.end_all_ranks(
                    f"build did not return within {self._limit_s:g} s after: {error}"
                )

    def __enter__(self) -> AckListener:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._built.set()


# --- how a rank becomes part of a merged world, goes back to the one before, or leaves ----------


def merged(comm: MPI.Intracomm, inter: MPI.Intercomm, *, high: bool, keep: bool) -> MPI.Intracomm:
    """Return both sides of ``inter`` as one communicator, and free what led to it.

    ``keep`` spares ``comm``, where it is the world's own.
    """
    both = inter.Merge(high=high)
    inter.Disconnect()
    if not keep:
        disconnect(comm)
    return both


class Snapshot:
    """What a rank is before it enters a new world that may be taken back.

    Raises:
        ValuesError: ``run.state`` cannot be copied.
    """

    def __init__(self, run: Run) -> None:
        progress = run.progress
        self.world, self._fields, self._restored = run.world, dict(run.fields), run.restored
        self._generation, self._launches = progress.generation, progress.launches
        try:
            self._values = copy.deepcopy(progress.values)
        except Exception as error:  # whatever the values' own code raises
            raise ValuesError(
                f"run.state cannot be copied: {type(error).__name__}: {error}"
            ) from None

    def put_back(self, run: Run) -> None:
        """Be that again; ``build`` is to run again, on all ranks."""
        run.world, run.restored, run.internal.built = self.world, self._restored, False
        run.internal.free_carts()
        run.fields.clear()
        run.fields.update(self._fields)
        _join(run)
        progress = run.progress
        progress.generation, progress.launches = self._generation, self._launches
        # The program may hold references to the dictionary and to its values.
        values = {
            name: adopt(progress.values.get(name), value) for name, value in self._values.items()
        }
        progress.values.clear()
        progress.values.update(values)


def enter(
    run: Run,
    comm: MPI.Intracomm,
    grid: tuple[int, ...],
    fields: dict[str, Distributed],
    launches: Sequence[tuple[int, int]],
) -> None:
    """Make a rank that goes on part of the new world, which is still to be built."""
    progress = run.progress
    progress.generation += 1
    progress.launches = list(launches)
    run.world = World(comm, comm.Dup(), progress.generation, grid)
    detach_fields(run)
    run.fields.update(fields)
    _join(run)
    run.internal.built, run.restored = False, True


def _join(run: Run) -> None:
    for block in run.fields.values():
        block.join(run.world.internal_comm)


def stay(run: Run, old: World, cost: OpenResize) -> None:
    """The job is the new world's: let go of the old one."""
    progress = run.progress
    progress.open_resize = cost
    progress.answered_request = max(progress.answered_request, cost.request)
    cost.arrived_at = run.runtime.clock()
    run.internal.attempts = run.internal.polls = 0  # as in the ranks that have joined
    run.runtime.comm = run.world.comm
    free(old)


def leave(run: Run, old: World, comm: MPI.Intracomm) -> NoReturn:
    """Leave for good: nothing may connect this rank to those that stay."""
    comm.Free()
    run.runtime.comm = run.internal.launch_comm
    detach_fields(run)
    free(old)
    raise Left(0)


def free(world: World) -> None:
    """Free a world's communicators, with all who are in it."""
    disconnect(world.comm)
    disconnect(world.internal_comm)


# --- the blocks of a rank that stays, whose pages exist before anything stops -------------------


class NewBlocks:
    """A rank's zeroed blocks in a world of another size; a thread touches what is large.

    Args:
        fields: of now.
        ranks: of the world to come.
        request: number of the resize request that it is for, 0 for none.

    Raises:
        UsageError: no process grid of so many ranks fits.
        MemoryError: there is no room for them.
    """

    def __init__(self, fields: Mapping[str, Distributed], ranks: int, request: int = 0) -> None:
        self.ranks, self.request = ranks, request
        decompositions = decompositions_for(
            ranks, {name: block.spec for name, block in fields.items()}
        )
        self._blocks = {
            name: block.spec.block(decompositions[name], block.rank)
            for name, block in fields.items()
            if block.rank < ranks
        }
        self._large = [
            block.storage.reshape(-1)
            for block in self._blocks.values()
            if block.on_host and block.storage.nbytes >= libc.LEAST_BYTES
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="dmr-pages", daemon=True)
        if self._large:
            self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether all pages are there."""
        return not self._thread.is_alive()

    def take(self) -> dict[str, Distributed]:
        """Return the blocks, by name, once their pages are there."""
        if self._large:
            self._thread.join()
        self._large = []
        found, self._blocks = self._blocks, {}
        return found

    def drop(self) -> None:
        """Let go of the blocks: the resize does not come."""
        self._stop.set()
        self.take()

    def _touch(self) -> None:
        for cells in self._large:
            step = max(1, libc.TOUCHED_BYTES // cells.itemsize)
            for at in range(0, cells.size, step):
                if self._stop.is_set():
                    return
                cells[at : at + step] = np.zeros((), cells.dtype)
