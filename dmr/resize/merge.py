"""Strategy merge, the old world's side: survivors keep what stays theirs; the difference moves.

An expansion joins launches to the running world and rebalances; a shrink lets go of whole
launches, because ranks of one mpiexec (or spawn) end together. All ranks of the new world build
before the commit; until then survivors hold the old blocks and the old communicator as well, and
if it does not come they build for the old world once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from dmr.application import Application, Run
from dmr.boot import spawn
from dmr.data import transfer
from dmr.data.decomposition import Box
from dmr.data.field import Field
from dmr.errors import CollectiveError, RolledBackError
from dmr.plan import NextWorld, Plan
from dmr.resize.membership import Snapshot, enter, join, leave, stay
from dmr.resize.replace import Phase, Source
from dmr.resize.side import attempt, nothing
from dmr.state.progress import OpenResize
from dmr.state.values import adopt, replaced_parts
from dmr.system import libc
from dmr.wire.channel import SEND_S, Acknowledged, Arrived, Build, ChannelError, ControlChannel
from dmr.world import layouts_for, widest_grid


def merge(
    app: Application,
    run: Run,
    plan: Plan,
    wanted: NextWorld,
    sigterm_received: Sequence[int],
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
        source = MergeSource(run, plan, wanted, stack)
        source.app = app
        if blocks is None:
            with contextlib.suppress(MemoryError):  # there may be room when they are needed
                blocks = NewBlocks(run.fields, wanted.ranks)
        if blocks is not None:
            stack.callback(blocks.drop)
        source.blocks = blocks
        if wanted.ranks > run.world.size:
            source.grow(sigterm_received)
        else:
            source.shrink(sigterm_received)


@dataclass(frozen=True)
class Membership:
    """Who is in the new world, as one rank of the old one sees it.

    Attributes:
        comm: its ranks, or (in a rank that leaves) those that leave.
        launches: that its ranks are of, and ranks of each.
        in_host: whether blocks may go without packing.
        stays: whether this rank is in it.
    """

    comm: MPI.Intracomm
    launches: Sequence[tuple[int, int]]
    in_host: bool
    stays: bool = True


class MergeSource(Source):
    """One try at it."""

    app: Application
    blocks: NewBlocks | None

    def grow(self, sigterm_received: Sequence[int]) -> None:
        """Join the launches that wait, or one that is spawned."""
        run, clock = self.run, self.run.runtime.clock
        begun = clock()
        self.meet()
        met = clock()
        in_host = self.introduce().in_host
        self.phase = Phase.MOVING
        more = [(one.launch, one.ranks) for one in self.wanted.launches]
        comm = run.world.internal_comm
        if self._inter is not None:
            comm = join(comm, self._inter, high=False, keep=True)
            more = [(run.runtime.launch, comm.size - run.world.size)]
        else:
            for at, one in enumerate(self.wanted.launches):
                comm = join(comm, self.connect_to(comm, one.port), high=False, keep=at == 0)
        members = Membership(comm, [*run.progress.launches, *more], in_host)
        cost = self.open_resize(begun, met, sigterm_received=bool(sigterm_received))
        self._go_over(members, cost)

    def shrink(self, sigterm_received: Sequence[int]) -> None:
        """Let the last launches go."""
        run, begun = self.run, self.run.runtime.clock()
        kept: list[tuple[int, int]] = []
        for launch in run.progress.launches:
            if sum(ranks for _, ranks in kept) < self.wanted.ranks:
                kept.append(launch)
        if sum(ranks for _, ranks in kept) != self.wanted.ranks:
            sizes = ", ".join(str(ranks) for _, ranks in run.progress.launches)
            raise RolledBackError(
                f"expected {self.wanted.ranks} ranks to be whole launches, got launches of {sizes}"
            )
        self.merge_state()
        self.phase = Phase.MOVING
        stays = run.world.rank < self.wanted.ranks
        part = MPI.Intracomm(run.world.internal_comm.Split(0 if stays else 1, run.world.rank))
        in_host = all(block.in_host for block in run.fields.values())
        cost = self.open_resize(begun, begun, sigterm_received=bool(sigterm_received))
        try:
            self._go_over(Membership(part, kept, in_host, stays), cost)
        except RolledBackError:
            part.Free()
            # Messages of this try may still be on the old one, which so cannot be freed.
            renewed = run.world.internal_comm.Dup()
            run.world = dataclasses.replace(run.world, internal_comm=renewed)
            for block in run.fields.values():
                block.join(renewed)
            raise

    def _go_over(self, members: Membership, cost: OpenResize) -> None:
        """Rebalance, build, commit: ``members.comm`` is then the world of the ranks that stay."""
        run = self.run
        parts: dict[str, Any] = {}
        if run.internal.per_rank:
            problem, found = attempt(lambda: self._parts(members))
            self.conclude(problem, None, nothing, self.check_reports)
            parts = found or parts
        fields: dict[str, Field] = {}
        sent: list[int] = []
        begun = run.runtime.clock()
        problem, before = attempt(lambda: self._rebalance(members, fields, sent))
        moved_s = run.runtime.clock() - begun

        def arrived(parts: list[int]) -> tuple[int, float]:
            """Every cell is where it belongs; have the new ranks build."""
            longest_s = max([moved_s, *(answer.move_s for answer in self.expect(Arrived))])
            self.say(Build())
            return sum(parts), longest_s

        bytes_, moved_s = self.conclude(problem, sum(sent), arrived, self.check_reports)
        if before is None:
            raise RuntimeError("expected what this rank was before")
        try:
            if members.stays:
                grid = widest_grid(members.comm.size, self.layouts)
                enter(run, members.comm, grid, fields, members.launches)
            done = self._build(
                members.stays,
                lambda built_s, acks: self.commit(cost, bytes_, (moved_s, built_s), acks),
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

    def _parts(self, members: Membership) -> dict[str, Any]:
        """Return this rank's part, in the new world, of what differs from rank to rank."""
        if not members.stays:
            return {}
        specs, rank, ranks = self.run.internal.per_rank, members.comm.rank, self.wanted.ranks
        return {
            name: spec.part(name, self.merged[name], rank, ranks) for name, spec in specs.items()
        }

    def _rebalance(
        self, members: Membership, fields: dict[str, Field], sent: list[int]
    ) -> Snapshot:
        """Send and take what moves into new ``fields``; return what this rank was before."""
        run, grows = self.run, members.comm.size > self.run.world.size
        carrier = members.comm if grows else run.world.internal_comm
        before = Snapshot(run)
        blocks = (self.blocks or NewBlocks(run.fields, self.wanted.ranks)).take()
        for name, block in run.fields.items():
            layout = self.layouts[name]
            transfers = [block.sending(carrier, layout, sent, in_host=members.in_host)]
            broken: list[Box] = []
            if members.stays:
                fields[name] = new = blocks.pop(name)
                transfers.append(
                    new.receiving(carrier, block.layout, broken, in_host=members.in_host)
                )
                new.keep(block)
            transfer.drive(transfers, self.check_alive)
            if broken:
                raise RolledBackError("data did not arrive whole")
        return before

    def _build(
        self, stays: bool, commit: Callable[[float, list[Acknowledged]], OpenResize]
    ) -> OpenResize:
        """Build on the ranks that stay, as the new ones do meanwhile; then commit.

        A rank that has failed by itself waits for the others: they may be in a collective of
        ``build`` that it will never enter. Then only the end of all ranks helps.
        """
        run, limit_s = self.run, self.deadlines.answer_s
        failed: Exception | None = None
        begun = run.runtime.clock()
        with AckListener(self.channels, self.expect, limit_s) as acks:
            self._stack.callback(acks.close)
            try:
                if stays:
                    self.app.build(run)
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
            return self.conclude(
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

    def __init__(self, fields: Mapping[str, Field], ranks: int, request: int = 0) -> None:
        self.ranks, self.request = ranks, request
        layouts = layouts_for(ranks, {name: block.spec for name, block in fields.items()})
        self._blocks = {
            name: block.spec.block(layouts[name], block.rank)
            for name, block in fields.items()
            if block.rank < ranks
        }
        self._large = [
            block.storage.reshape(-1)
            for block in self._blocks.values()
            if block.in_host and block.storage.nbytes >= libc.LEAST_BYTES
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="dmr-pages", daemon=True)
        if self._large:
            self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether all pages are there."""
        return not self._thread.is_alive()

    def take(self) -> dict[str, Field]:
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
