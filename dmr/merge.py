"""Strategy merge: survivors stay and keep what stays theirs; only the difference comes or goes.

An expansion joins worlds to the running one and rebalances; a shrink lets go of whole launches,
because ranks of one mpiexec (or spawn) end together. All ranks build for the new world after the
commit: until then survivors hold the old blocks and the old communicator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from dmr import move
from dmr.field import Field
from dmr.items import OwnerError
from dmr.progress import OpenResize
from dmr.transaction import Attempt, Left, RolledBackError, State, Target
from dmr.world import World

if TYPE_CHECKING:
    from dmr.session import Plan, Run


def merge(run: Run, plan: Plan, target: Target, told: Sequence[int]) -> None:
    """Grow or shrink the world of ``run`` in place (collective over the old world).

    Raises:
        Left: in ranks that a shrink lets go.
        RolledBackError: it could not be; go on as before.
    """
    before = run.world
    with contextlib.ExitStack() as stack:
        attempt = Merge(run, plan, target, stack)
        if target.ranks > before.size:
            attempt.grow(told)
        else:
            attempt.shrink(told)


class Merge(Attempt):
    """One try at it."""

    def grow(self, told: Sequence[int]) -> None:
        """Join the worlds that wait, or that are spawned."""
        run, clock = self.run, self.run.runtime.clock
        asked = clock()
        self._meet()
        met = clock()
        in_host = self._together(self._introduce)
        self.state = State.MOVING
        groups = [(world.world, world.ranks) for world in self.target.worlds]
        comm = run.world.talk
        if self._inter is not None:
            comm = join(comm, self._inter, high=False, keep=True)
            groups = [(run.runtime.launch, comm.size - run.world.size)]
        else:
            for at, world in enumerate(self.target.worlds):
                comm = join(comm, self._connect(comm, world.port), high=False, keep=at == 0)
        groups = [*run.progress.groups, *groups]
        self._go_over(comm, groups, self._cost(asked, met, bool(told)), in_host)

    def shrink(self, told: Sequence[int]) -> None:
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
        part = MPI.Intracomm(run.world.talk.Split(0 if stays else 1, run.world.rank))
        cost = self._cost(asked, asked, bool(told))
        in_host = all(move.in_host(block) for block in run.fields.values())
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
        """Rebalance, commit, and make ``comm`` the world of the ranks that stay."""
        run, old = self.run, self.run.world
        carrier = comm if comm.size > old.size else old.talk
        fields: dict[str, Field] = {}
        sent: list[int] = []
        begun = run.runtime.clock()
        try:
            for name, block in run.fields.items():
                fields[name] = self._rebalance(carrier, block, sent, in_host, stays=stays)
        except (RolledBackError, OwnerError) as error:
            self._problem = str(error)
        if not self.crew.first:
            self.crew.report((self._problem, sum(sent)))
        moved_s = run.runtime.clock() - begun
        done: OpenResize = self._together(lambda: self._commit(cost, sum(sent), moved_s))
        if not stays:
            leave(run, comm)
        take(run, comm, self.grid, fields, groups, done)

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
        transfers = [move.sending(carrier, block, layout, sent, in_host=in_host)]
        if not stays:
            move.drive(transfers, self._alive)
            return block
        new = block.spec.block(layout, block.rank)
        broken: list[object] = []
        transfers.append(
            move.receiving(carrier, new, block.layout, broken, in_host=in_host)  # type: ignore[arg-type]
        )
        move.copy(block, new)
        move.drive(transfers, self._alive)
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
        comm.Disconnect()
    return merged


def take(
    run: Run,
    comm: MPI.Intracomm,
    grid: tuple[int, ...],
    fields: dict[str, Field],
    groups: list[tuple[int, int]],
    cost: OpenResize,
) -> None:
    """Make a rank that goes on part of the new world; ``build`` is still to run."""
    progress = run.progress
    progress.generation += 1
    progress.groups = groups
    progress.open_resize = cost
    progress.wish = max(progress.wish, cost.wish)
    cost.arrived_at = run.runtime.clock()
    old = run.world
    run.world = World(comm, comm.Dup(), progress.generation, grid)
    run.fields.clear()
    run.fields.update(fields)
    run.built, run.restored = False, True
    run.attempts = 0
    free(old)


def leave(run: Run, comm: MPI.Intracomm) -> None:
    """Leave for good: nothing may connect this rank to those that stay."""
    comm.Free()
    free(run.world)
    run.fields.clear()
    raise Left(0)


def free(world: World) -> None:
    """Free a world's communicators, with all who are in it."""
    world.comm.Disconnect()
    world.talk.Disconnect()
