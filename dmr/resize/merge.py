"""Strategy merge: survivors stay and keep what stays theirs; only the difference comes or goes.

An expansion joins worlds to the running one and rebalances; a shrink lets go of whole launches,
because ranks of one mpiexec (or spawn) end together. All ranks of the new world build before the
commit; until then survivors hold the old blocks and the old communicator as well, and if it does
not come they build for the old world once more.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from dmr.boot import spawn
from dmr.data import transfer
from dmr.data.decomposition import Box
from dmr.data.field import Field
from dmr.errors import CollectiveError, TransferError
from dmr.progress import OpenResize
from dmr.resize.source import Attempt, Left, RolledBackError, State, Target
from dmr.wire.channel import SEND_S, ChannelError, ControlChannel
from dmr.wire.protocol import Acknowledged, Arrived, Build
from dmr.world import World, disconnect

if TYPE_CHECKING:
    from dmr.application import Application, Plan, Run


def merge(
    app: Application, run: Run, plan: Plan, target: Target, sigterm_received: Sequence[int]
) -> None:
    """Grow or shrink the world of ``run`` in place (collective over the old world).

    Raises:
        Left: in ranks that a shrink lets go.
        RolledBackError: it could not be; go on as before.
    """
    before = run.world
    with contextlib.ExitStack() as stack:
        attempt = Merge(run, plan, target, stack)
        attempt.app = app
        if target.ranks > before.size:
            attempt.grow(sigterm_received)
        else:
            attempt.shrink(sigterm_received)


class Merge(Attempt):
    """One try at it."""

    app: Application

    def grow(self, sigterm_received: Sequence[int]) -> None:
        """Join the worlds that wait, or that are spawned."""
        run, clock = self.run, self.run.runtime.clock
        asked = clock()
        self._meet()
        met = clock()
        in_host = self._together(self._introduce)
        self.state = State.MOVING
        groups = [(world.launch, world.ranks) for world in self.target.worlds]
        comm = run.world.internal_comm
        if self._inter is not None:
            comm = join(comm, self._inter, high=False, keep=True)
            groups = [(run.runtime.launch, comm.size - run.world.size)]
        else:
            for at, world in enumerate(self.target.worlds):
                comm = join(comm, self._connect(comm, world.port), high=False, keep=at == 0)
        groups = [*run.progress.groups, *groups]
        self._go_over(comm, groups, self._cost(asked, met, bool(sigterm_received)), in_host)

    def shrink(self, sigterm_received: Sequence[int]) -> None:
        """Let the last launches go."""
        run, asked = self.run, self.run.runtime.clock()
        groups: list[tuple[int, int]] = []
        for group in run.progress.groups:
            if sum(ranks for _, ranks in groups) < self.target.ranks:
                groups.append(group)
        kept = sum(ranks for _, ranks in groups)
        if kept != self.target.ranks:
            sizes = ", ".join(str(ranks) for _, ranks in run.progress.groups)
            raise RolledBackError(
                f"expected {self.target.ranks} ranks to be whole launches, got launches of {sizes}"
            )
        self.state = State.MOVING
        stays = run.world.rank < self.target.ranks
        part = MPI.Intracomm(run.world.internal_comm.Split(0 if stays else 1, run.world.rank))
        cost = self._cost(asked, asked, bool(sigterm_received))
        in_host = all(block.in_host for block in run.fields.values())
        try:
            self._go_over(part, groups, cost, in_host, stays=stays)
        except RolledBackError:
            part.Free()
            raise

    def _go_over(
        self,
        comm: MPI.Intracomm,
        groups: list[tuple[int, int]],
        cost: OpenResize,
        in_host: bool,
        *,
        stays: bool = True,
    ) -> None:
        """Rebalance, build, commit: ``comm`` is then the world of the ranks that stay."""
        run, old = self.run, self.run.world
        carrier = comm if comm.size > old.size else old.internal_comm
        fields: dict[str, Field] = {}
        sent: list[int] = []
        begun = run.runtime.clock()
        try:
            for name, block in run.fields.items():
                fields[name] = self._rebalance(carrier, block, sent, in_host, stays=stays)
        except (RolledBackError, TransferError, MemoryError) as error:
            self._problem = str(error)
        if not self.messages.is_root:
            self.messages.report((self._problem, sum(sent)))
        moved_s = run.runtime.clock() - begun
        bytes_, moved_s = self._together(lambda: self._arrived(sum(sent), moved_s))
        before = Before(run)
        try:
            if stays:
                enter(run, comm, self.grid, fields, groups)
            done = self._build(
                stays, lambda built_s, acks: self._give(cost, bytes_, (moved_s, built_s), acks)
            )
        except RolledBackError:
            before.put_back(run)
            raise
        if not stays:
            leave(before.world, comm, run)
        settle(run, before.world, done)

    def _arrived(self, sent: int, moved_s: float) -> tuple[int, float]:
        """Rank 0: hear that every cell is where it belongs; have the new ranks build."""
        sent = self._sent(sent)
        moved_s = max([moved_s, *(said.move_s for said in self._expect(Arrived))])
        self._say(Build())
        return sent, moved_s

    def _build(
        self, stays: bool, give: Callable[[float, list[Acknowledged]], OpenResize]
    ) -> OpenResize:
        """Build on the ranks that stay, as the new ones do meanwhile; then commit.

        A rank that has failed by itself waits for the others: they may be in a collective of
        ``build`` that it will never enter. Then only the end of all ranks helps.
        """
        run, limit_s = self.run, self.plan.deadlines.answer_s
        failed: Exception | None = None
        begun = run.runtime.clock()
        with AckListener(self.channels, self._expect, limit_s) as acks:
            self._stack.callback(acks.close)
            try:
                if stays:
                    self.app.build(run)
                    run.built = True
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

        def verdict() -> OpenResize:
            found = [(problem, built_s), *self.messages.collect(check)]
            wrong = next((said for said, _ in found if said is not None), None)
            if wrong is not None:
                raise ChannelError(wrong)
            return give(max(s for _, s in found), acks.answers())

        if not self.messages.is_root:
            self.messages.report((problem, built_s))
        try:
            return self._together(verdict, check)
        finally:
            failed = None  # its trace would keep the new blocks

    def _rebalance(
        self,
        carrier: MPI.Intracomm,
        block: Field,
        sent: list[int],
        in_host: bool,
        *,
        stays: bool,
    ) -> Field:
        layout = block.spec.decompose(self.grid)
        transfers = [block.sending(carrier, layout, sent, in_host=in_host)]
        if not stays:
            transfer.drive(transfers, self._alive)
            return block
        new = block.spec.block(layout, block.rank)
        broken: list[Box] = []
        transfers.append(new.receiving(carrier, block.layout, broken, in_host=in_host))
        new.keep(block)
        transfer.drive(transfers, self._alive)
        if broken:
            raise RolledBackError("data did not arrive whole")
        return new


def join(comm: MPI.Intracomm, inter: MPI.Intercomm, *, high: bool, keep: bool) -> MPI.Intracomm:
    """Return both sides of ``inter`` as one communicator, and free what led to it.

    ``keep`` spares ``comm``, where it is the world's own.
    """
    merged = inter.Merge(high=high)
    inter.Disconnect()
    if not keep:
        disconnect(comm)
    return merged


class AckListener:
    """Rank 0: hears the new ranks' answers while it builds with them.

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
                spawn.give_up(f"build did not return within {self._limit_s:g} s after: {error}")

    def __enter__(self) -> AckListener:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._built.set()


class Before:
    """What a rank was before it entered a new world that may be taken back."""

    def __init__(self, run: Run) -> None:
        progress = run.progress
        self.world, self._fields = run.world, dict(run.fields)
        self._was = progress.generation, progress.groups, copy.deepcopy(progress.values)
        self._restored = run.restored

    def put_back(self, run: Run) -> None:
        """Be that again; ``build`` is to run again, on all ranks."""
        run.world, run.restored, run.built = self.world, self._restored, False
        run.fields.clear()
        run.fields.update(self._fields)
        run.progress.generation, run.progress.groups, run.progress.values = self._was


def enter(
    run: Run,
    comm: MPI.Intracomm,
    grid: tuple[int, ...],
    fields: dict[str, Field],
    groups: list[tuple[int, int]],
) -> None:
    """Make a rank that goes on part of the new world, which is still to be built."""
    progress = run.progress
    progress.generation += 1
    progress.groups = groups
    run.world = World(comm, comm.Dup(), progress.generation, grid)
    run.fields.clear()
    run.fields.update(fields)
    run.built, run.restored = False, True


def settle(run: Run, old: World, cost: OpenResize) -> None:
    """The job is the new world's: let go of the old one."""
    progress = run.progress
    progress.open_resize = cost
    progress.wish = max(progress.wish, cost.wish)
    cost.arrived_at = run.runtime.clock()
    run.attempts = run.polls = 0  # as in the ranks that have joined
    free(old)


def leave(old: World, comm: MPI.Intracomm, run: Run) -> None:
    """Leave for good: nothing may connect this rank to those that stay."""
    comm.Free()
    free(old)
    run.fields.clear()
    raise Left(0)


def free(world: World) -> None:
    """Free a world's communicators, with all who are in it."""
    disconnect(world.comm)
    disconnect(world.internal_comm)
