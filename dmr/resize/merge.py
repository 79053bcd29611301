"""Strategy merge: ranks that stay keep their cells of both worlds; the others move.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from dmr.application import Program, Run
from dmr.boot import spawn
from dmr.data import streams
from dmr.data.decomposition import Decomposition
from dmr.data.distributed import Distributed, Steps
from dmr.errors import CollectiveError, Left, RolledBackError
from dmr.plan import NextWorld, Plan
from dmr.resize import replace
from dmr.resize.replace import NewWorld, OldWorld, Phase
from dmr.resize.side import catch_failure, detach_fields
from dmr.state.progress import OpenResize
from dmr.state.values import ValuesError, adopt, replaced_parts
from dmr.system import libc
from dmr.wire.channel import SEND_S, Acknowledged, Arrived, Build, ChannelError, Header
from dmr.world import World, decompositions_for, disconnect

Launches = Sequence[tuple[int, int]]
"""Numbers of launches, and ranks of each."""


class MergeSide(OldWorld):
    """The old world's side of one attempt; ``blocks`` are this rank's in the new world, if any."""

    def __init__(
        self,
        app: Program,
        run: Run,
        plan: Plan,
        wanted: NextWorld,
        stack: contextlib.ExitStack,
        blocks: NewBlocks | None,
    ) -> None:
        super().__init__(run, plan, wanted, stack)
        self.app, self.blocks = app, blocks


@dataclass(frozen=True)
class Membership:
    """The new world, as one rank of the old one sees it.

    Attributes:
        comm: its ranks, or (in a rank that leaves) the ranks that leave.
        launches: of its ranks.
        on_host: whether blocks may go without packing.
        stays: whether this rank is in it.
    """

    comm: MPI.Intracomm
    launches: Launches
    on_host: bool
    stays: bool = True


def merge(
    app: Program, run: Run, plan: Plan, wanted: NextWorld, blocks: NewBlocks | None = None
) -> None:
    """Grow or shrink the world of ``run`` in place (collective over the old world).

    Args:
        blocks: this rank's in the new world, if they exist already.

    Raises:
        Left: in ranks that a shrink lets go.
        RolledBackError: the resize has failed; go on as before.
    """
    with contextlib.ExitStack() as stack:
        if blocks is None:
            with contextlib.suppress(MemoryError):  # there may be room at the move
                blocks = NewBlocks(run.fields, wanted.ranks)
        if blocks is not None:
            stack.callback(blocks.drop)
        old = MergeSide(app, run, plan, wanted, stack, blocks)
        steps = grow if wanted.ranks > run.world.size else shrink
        steps(old)


# --- start to connect ---------------------------------------------------------------------------


def grow(old: MergeSide) -> None:
    """Join the launches that wait, or one that is spawned."""
    run = old.run
    replace.meet_old(old, replace.start_old(old))
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
    rebalance_and_commit(old, members)


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
    try:
        rebalance_and_commit(old, Membership(part, kept, on_host, stays))
    except RolledBackError:
        part.Free()
        # Messages of this attempt may be under way on the old one, so it cannot be freed.
        renewed = run.world.internal_comm.Dup()
        run.world = dataclasses.replace(run.world, internal_comm=renewed)
        for block in run.fields.values():
            block.join(renewed)
        raise


# --- move, build, commit: both worlds -----------------------------------------------------------


def rebalance_and_commit(old: MergeSide, members: Membership) -> None:
    """Rebalance, build, commit: ``members.comm`` is then the world of the ranks that stay."""
    run = old.run
    parts: dict[str, Any] = {}
    if run.internal.per_rank:
        problem, values = catch_failure(lambda: _parts(old, members))
        old.agree(problem, old.check_reports)
        parts = values or parts
    begun = run.runtime.clock()
    problem, moved = catch_failure(lambda: _rebalance(old, members))
    move_s = run.runtime.clock() - begun

    def order_build(parts: list[int]) -> tuple[int, float]:
        """Every cell is where it belongs: have the new ranks build."""
        longest_s = max([move_s, *(answer.move_s for answer in old.expect(Arrived))])
        old.say(Build())
        return sum(parts), longest_s

    sent = 0 if moved is None else moved[2]
    sent, move_s = old.report_and_decide(problem, sent, order_build, old.check_reports)
    if moved is None:
        raise RuntimeError("expected the result of the move")
    before, fields, _ = moved
    try:
        if members.stays:
            enter_world(run, members.comm, old.decompositions, fields, members.launches)
        cost = _build_and_commit(old, members.stays, sent, move_s)
    except RolledBackError:
        before.put_back(run)
        raise
    if not members.stays:
        leave_world(run, before.world, members.comm)
    for name, part in parts.items():
        value = run.state[name]
        replaced = replaced_parts(run.internal.parts[name], value)
        others = [other for key, other in run.state.items() if key != name]
        memory = [block.storage for block in fields.values()]
        run.state[name] = adopt(value, part, replaced, others=others, fields=memory)
    leave_old_world(run, before.world, cost)


def join_world(new: NewWorld, header: Header, port: str, on_host: bool) -> None:
    """Become part of the running world, as its ranks :func:`rebalance_and_commit`."""
    run, own = new.run, new.run.world
    comm = merged(own.internal_comm, replace.connect_new(new, port), high=True, keep=True)
    for _ in header.joined[header.place + 1 :]:
        comm = merged(comm, comm.Connect(""), high=False, keep=False)
    begun = time.perf_counter()
    decompositions = replace.decompositions_over(run, header.ranks)
    fields: dict[str, Distributed] = {}

    def receive() -> None:
        for name, block in run.fields.items():
            fields[name] = block.moved_to(decompositions[name], comm.rank)
            replace.fill(new, comm, {name: fields[name]}, header.from_ranks, on_host)

    def await_build(parts: list[float]) -> None:
        """Every cell is here: wait until every cell is everywhere."""
        new.say(Arrived(max(parts)))
        new.expect(Build)

    problem, _ = catch_failure(receive)
    move_s = time.perf_counter() - begun
    new.report_and_decide(problem, move_s, await_build, new.check_alive)
    launches = [*run.progress.launches, *(header.joined or ((run.runtime.launch, own.size),))]
    enter_world(run, comm, decompositions, fields, launches)
    problem, build_s = replace.build_new(new)
    cost = replace.commit_new(new, problem, move_s, build_s, joins=True)
    leave_old_world(run, own, cost)


def _parts(old: MergeSide, members: Membership) -> dict[str, Any]:
    """Return this rank's part, in the new world, of the state that differs from rank to rank."""
    if not members.stays:
        return {}
    specs, rank, ranks = old.run.internal.per_rank, members.comm.rank, old.wanted.ranks
    return {name: spec.part(name, old.merged[name], rank, ranks) for name, spec in specs.items()}


def _rebalance(old: MergeSide, members: Membership) -> tuple[Snapshot, dict[str, Distributed], int]:
    """Move cells; return this rank's state before, its new fields, and the bytes it has sent."""
    run, grows = old.run, members.comm.size > old.run.world.size
    carrier = members.comm if grows else run.world.internal_comm
    before = Snapshot(run)
    blocks = (old.blocks or NewBlocks(run.fields, old.wanted.ranks)).take()
    fields, sent = dict[str, Distributed](), 0
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
        sent += moved
        if not all(intact):
            raise RolledBackError("data did not arrive whole")
    return before, fields, sent


def _build_and_commit(old: MergeSide, stays: bool, sent: int, move_s: float) -> OpenResize:
    """Build on the ranks that stay, as the new ones do meanwhile; then commit.

    A rank that has failed alone waits for the others: they may be in a collective of ``build``
    that it will never enter. After the timeout it ends all ranks.
    """
    run, limit_s = old.run, old.deadlines.answer_s
    failed: Exception | None = None
    begun = run.runtime.clock()
    acks = AckListener(old)
    try:
        if stays:
            old.app.build(run)
            run.internal.built = True
    except Exception as error:
        failed = error
    finally:
        acks.built.set()
    build_s = run.runtime.clock() - begun
    alone = failed is not None and not isinstance(failed, CollectiveError)
    problem = None if failed is None else str(failed)
    if alone:
        problem = f"rank {run.world.rank}: {type(failed).__name__}: {failed}"

    def check(waited_s: float) -> None:
        if alone and waited_s > limit_s:
            raise failed  # type: ignore[misc]

    def commit(parts: list[float]) -> OpenResize:
        cost = replace.commit(old, sent, move_s, max(parts), acks.answers())
        if cost is None:  # the ranks that have joined may step already
            raise RuntimeError(f"resize at step {run.step}: {replace.UNCLEAR}")
        return cost

    try:
        return old.report_and_decide(problem, build_s, commit, check, everywhere=True)
    finally:
        failed = None  # its trace would keep the new blocks


class AckListener:
    """Rank 0: a thread that receives the new ranks' acknowledgements while this rank builds.

    If the new ranks fail meanwhile, this rank may wait for them in a collective forever.

    Attributes:
        built: set once this rank has built.
    """

    def __init__(self, old: MergeSide) -> None:
        self._old, self._limit_s = old, old.deadlines.answer_s
        self._answers: list[Acknowledged] = []
        self._error: ChannelError | None = None
        self.built = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        old.stack.callback(self._thread.join, SEND_S)  # before the channels are closed

    def answers(self) -> list[Acknowledged]:
        """Return them once they have come."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers

    def _listen(self) -> None:
        try:
            self._answers = self._old.expect(Acknowledged)
        except ChannelError as error:
            self._error = error
            if not self.built.wait(self._limit_s):
                spawn.end_all_ranks(
                    f"build did not return within {self._limit_s:g} s after: {error}"
                )


# --- a rank enters a merged world, goes back to the old one, or leaves --------------------------


def merged(comm: MPI.Intracomm, inter: MPI.Intercomm, *, high: bool, keep: bool) -> MPI.Intracomm:
    """Return both sides of ``inter`` as one communicator; free ``inter``, and ``comm`` too.

    ``keep`` spares ``comm``, if it is the world's own.
    """
    both = inter.Merge(high=high)
    inter.Disconnect()
    if not keep:
        disconnect(comm)
    return both


class Snapshot:
    """The state of a rank before it enters a new world that may be rolled back.

    Raises:
        ValuesError: ``run.state`` cannot be copied.
    """

    def __init__(self, run: Run) -> None:
        progress = run.progress
        self.world, self._fields, self._restored = run.world, dict(run.fields), run.restored
        self._generation, self._launches = progress.generation, progress.launches
        try:
            self._values = copy.deepcopy(progress.values)
        except Exception as error:  # of the values' own code
            raise ValuesError(
                f"run.state cannot be copied: {type(error).__name__}: {error}"
            ) from None

    def put_back(self, run: Run) -> None:
        """Restore it; ``build`` is to run again, on all ranks."""
        run.world, run.restored, run.internal.built = self.world, self._restored, False
        run.internal.free_carts()
        run.fields.clear()
        _set_fields(run, self._fields)
        progress = run.progress
        progress.generation, progress.launches = self._generation, self._launches
        # The program may hold references to the dictionary and to its values.
        values = {
            name: adopt(progress.values.get(name), value) for name, value in self._values.items()
        }
        progress.values.clear()
        progress.values.update(values)


def enter_world(
    run: Run,
    comm: MPI.Intracomm,
    decompositions: Mapping[str, Decomposition],
    fields: dict[str, Distributed],
    launches: Launches,
) -> None:
    """Make a rank part of the new world, which is still to be built."""
    progress = run.progress
    progress.generation += 1
    progress.launches = list(launches)
    run.world = World(comm, comm.Dup(), progress.generation, decompositions)
    detach_fields(run)
    _set_fields(run, fields)
    run.internal.built, run.restored = False, True


def _set_fields(run: Run, fields: Mapping[str, Distributed]) -> None:
    run.fields.update(fields)
    for block in fields.values():
        block.join(run.world.internal_comm)


def leave_old_world(run: Run, old: World, cost: OpenResize) -> None:
    """Free the old world's communicators: the new world has the job."""
    progress = run.progress
    progress.open_resize = cost
    progress.answered_request = max(progress.answered_request, cost.request)
    cost.arrived_at = run.runtime.clock()
    run.internal.attempts = run.internal.polls = 0  # as in the ranks that have joined
    run.runtime.comm = run.world.comm
    disconnect(old.comm)
    disconnect(old.internal_comm)


def leave_world(run: Run, old: World, comm: MPI.Intracomm) -> NoReturn:
    """Leave: no communicator may connect this rank to those that stay."""
    comm.Free()
    run.runtime.comm = run.internal.launch_comm
    detach_fields(run)
    disconnect(old.comm)
    disconnect(old.internal_comm)
    raise Left(0)


# --- the blocks of a rank that stays, whose pages exist before anything stops -------------------


class NewBlocks:
    """A rank's zeroed blocks in a world of another size; a thread touches the large ones.

    Args:
        fields: of the present world.
        ranks: of the next world.
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
        """Whether all pages exist."""
        return not self._thread.is_alive()

    def take(self) -> dict[str, Distributed]:
        """Return the blocks by name, once their pages exist."""
        if self._large:
            self._thread.join()
        blocks, self._blocks, self._large = self._blocks, {}, []
        return blocks

    def drop(self) -> None:
        """Free the blocks: the resize does not come."""
        self._stop.set()
        self.take()

    def _touch(self) -> None:
        for cells in self._large:
            step = max(1, libc.TOUCHED_BYTES // cells.itemsize)
            for at in range(0, cells.size, step):
                if self._stop.is_set():
                    return
                cells[at : at + step] = np.zeros((), cells.dtype)
