"""The decision of a resize point: whether to stop, and which world comes next.

The ranks agree on it. It follows from SIGTERM, a request of the RMS, a scripted resize, or a
request of the application, and, if the library chooses the strategy, from the memory left.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from dmr.application import Program, Run
from dmr.plan import NextWorld, Plan, fitting
from dmr.resize import strategy as strategies
from dmr.system.watch import WATCH
from rms.wire.messages import ApplicationResizeRequest, ResizeRequest

FIRST_POLL, POLLS = 4, 256
"""Resize points of a world at which free memory is checked for the RMS: the first once the world
is alone, then at this interval."""

POINT = "a resize point"
"""Place in the messages of :mod:`dmr.system.watch`."""


class Decision:
    """Decides at the resize points of one process, together with the other ranks."""

    def __init__(self, app: Program, run: Run, plan: Plan) -> None:
        self.app, self.run, self.plan = app, run, plan
        self._event = np.zeros(1, np.int64)
        self._flags = np.zeros(7, np.int64)
        self._call = WATCH.within(POINT)

    def take(self, scripted: int | None) -> tuple[bool, NextWorld | None, bool]:
        """Agree on whether to stop, on the next world, and on a copy in memory (collective).

        In the usual case of no event this is one reduction of one number, which takes two thirds
        of the time of one of four numbers. The second one follows where a rank has an event.

        A request of the RMS precedes a scripted resize, and that one of the application. Rank 0
        alone has the request of the RMS, and broadcasts it. In a cooldown all but scripted resizes
        wait.
        """
        self._poll_memory()
        run, state, world = self.run, self.run.internal, self.run.world
        in_cooldown = state.cooldown_until > 0.0 and run.runtime.clock() < state.cooldown_until
        copies, due, copy = state.copies, False, False
        if copies is not None:
            due = copies.is_due(run.step)
        request = None if state.rms is None or in_cooldown else state.rms.request
        number, requested = 0 if request is None else request.number, state.requested
        stop = bool(state.sigterm)
        if world.size > 1:
            event, flags = self._event, self._flags
            event[0] = stop or number or requested or due or (copies is not None and copies.waits)
            with self._call:
                world.internal_comm.Allreduce(MPI.IN_PLACE, event, MPI.MAX)
                if event[0]:
                    flags[:4] = stop, number, requested, in_cooldown
                    flags[4:] = (due, *copies.state) if copies is not None else 0
                    world.internal_comm.Allreduce(MPI.IN_PLACE, flags, MPI.MAX)
            if event[0]:
                stop, number, requested = bool(flags[0]), int(flags[1]), int(flags[2])
                in_cooldown = bool(flags[3])
                if copies is not None:
                    copy = copies.agreed(*flags[4:].tolist())
        elif copies is not None:
            copy = copies.agreed(due, *copies.state)
        if number:
            newest: ResizeRequest = world.internal_comm.bcast(request)
            slots = newest.slots
            wanted = NextWorld(len(slots), newest.strategy, slots, number, newest.worlds)
            return stop, wanted, False
        if requested and scripted is None and not in_cooldown:
            scripted = self._requested(requested)
        return stop, self._own_resize(scripted), copy

    def _requested(self, ranks: int) -> int | None:
        """Return the size of the application's own request; with an RMS, pass it on to that."""
        run = self.run
        run.internal.requested = 0
        ranks = fitting(ranks, self.plan.limits, self.plan.sizes)
        if ranks == run.world.size:
            return None
        if run.runtime.manager is None:
            return ranks
        if run.internal.rms is not None:
            run.internal.rms.report(ApplicationResizeRequest(ranks))
        return None

    def _own_resize(self, ranks: int | None) -> NextWorld | None:
        """Return the next world of a resize without the RMS, None if it would be the same."""
        run, plan = self.run, self.plan
        backend = plan.backends.get(run.step, "")
        changes = bool(backend) and backend != run.runtime.backend
        rehearsal = run.internal.rehearses and ranks == run.world.size and not changes
        if ranks is None or (ranks == run.world.size and not changes and not rehearsal):
            return None
        if rehearsal and run.step in (resize.step for resize in run.resizes):
            return None
        # With merge, ranks would stay and keep their backend.
        moves = changes or rehearsal
        strategy = plan.strategy
        if strategy == "merge" and (
            moves or not strategies.can_merge(ranks, run.progress.launches)
        ):
            strategy = "spawn"
        if run.internal.auto and not moves and self._check_memory():
            strategy = strategies.merge_instead(
                strategy, ranks, run.progress.launches, supports_merge=self.app.supports_merge
            )
        return NextWorld(ranks, strategy, backend=backend)

    # --- memory ----------------------------------------------------------------------------

    def _poll_memory(self) -> None:
        """Check the memory at intervals, for the strategy that an RMS uses."""
        state = self.run.internal
        if state.auto and self.run.runtime.manager is not None:
            state.polls += 1
            if state.polls == FIRST_POLL or state.polls % POLLS == 0:
                self._check_memory()

    def _check_memory(self) -> bool:
        """Return whether a second copy of this world would not fit beside it (collective).

        A change is noted in the log; the RMS gets the strategy to use.
        """
        run, state = self.run, self.run.internal
        mine = strategies.usage(MPI.Get_processor_name(), run.fields)
        with WATCH.within(POINT):
            ranks = run.world.internal_comm.allgather(mine)
        why = strategies.shortage([use for uses in ranks for use in uses])
        was_short, state.memory_short = state.memory_short, why is not None
        best = self.plan.strategy
        if why is not None:
            joins = run.runtime.manager is None or state.can_connect
            best = strategies.merge_instead(
                best, 0, run.progress.launches, supports_merge=self.app.supports_merge and joins
            )
        if state.memory_short != was_short:
            words = why or "a second copy of this world fits again"
            if why is not None and best == self.plan.strategy:
                words += "; a resize may be rolled back for it"
            run.note(f"strategy {best} from here on: {words}")
        if state.rms is not None and state.can_connect:
            state.rms.strategy = best
        return state.memory_short
