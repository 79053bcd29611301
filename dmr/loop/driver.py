"""The loop, and what may happen between two steps: the end, a checkpoint, a resize."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from mpi4py import MPI

from dmr.application import Application, Run
from dmr.checkpoint import store
from dmr.data.field import WrappedSpec
from dmr.errors import RolledBackError, UsageError, raise_on_all
from dmr.loop.decide import POINT, Decision
from dmr.loop.termination import Ending, TerminatedError
from dmr.plan import NextWorld, Plan, Schedule, check_size
from dmr.resize.merge import NewBlocks, merge
from dmr.resize.replace import replace_world
from dmr.state.progress import Progress, merged_progress
from dmr.state.values import ValuesError, replaced_parts
from dmr.system.watch import WATCH
from rms.wire.messages import (
    Begun,
    Done,
    ResizeReport,
    RolledBack,
)

if TYPE_CHECKING:
    from dmr.data.field import Field

PROBES = 3
"""Calls of MPI_Iprobe for each communicator: each lets MPI make progress."""

MOST_BETWEEN_S = 10.0
"""Where resize points come less often, a resize does not wait at one for new memory."""

NO_BUILD = "strategy merge keeps ranks in their loop; expected build= in dmr.malleable, got none"


class Driver:
    """Owns the loop of a run in one process: that is what makes resuming structural.

    Args:
        end: is told of the present progress and world.
    """

    def __init__(self, app: Application, run: Run, plan: Plan, end: Ending) -> None:
        self.app, self.run, self.plan = app, run, plan
        self._end = end
        self.position = Position(run.progress)
        self._zero_s: float | None = None
        self._swaps = None if run.restored else SwapWatch(run.fields)
        self._new_blocks: NewBlocks | None = None
        self._decision = Decision(app, run, plan)
        WATCH.between_s = self._between_s

    def loop(self, count: Callable[[], int], *, only: bool = False) -> Iterator[int]:
        """Yield every step that is left of a loop, once it may be done; act in between.

        Args:
            count: returns the steps of the whole loop.
            only: whether the program has no other loop, and nothing to do after it.
        """
        entered = self.position.enter()
        if entered is None:
            return  # an earlier world has done it
        depth, _ = entered
        try:
            yield from self._steps(count, depth, only=only)
        finally:
            self.position.leave(depth)

    def _steps(self, count: Callable[[], int], depth: int, *, only: bool) -> Iterator[int]:
        run, plan, progress = self.run, self.plan, self.run.progress
        rms, position, clock = run.internal.rms, self.position, run.runtime.clock
        at, zero_s = position.at, self._start_clock()
        steps = self._begin(count, at[depth], only=only)

        while True:
            progress.elapsed_s = clock() - zero_s
            step = progress.step
            if rms is not None:
                rms.step = step
                if depth == 0:
                    rms.steps = step + steps - at[0]
            scripted = plan.resizes.get(step)
            if position.goal is None:  # else ranks that stay are in a loop within this one
                if scripted is not None or step % plan.every == 0:
                    progress.at_point = False
                    if self._act(scripted):
                        steps = self._begin(count, at[depth], only=only)
                        continue  # as the ranks that have joined: at this resize point once more
                if at[depth] >= steps:
                    if rms is not None and only:
                        rms.close()  # nothing is asked of a job that has done its steps
                    return
                if plan.checkpoint is not None:
                    self._save_if_due()
            if self._swaps is not None and depth == 0:
                self._look_for_swaps(self._swaps)
            yield at[depth]
            progress.step += 1
            position.passed()

    def _look_for_swaps(self, swaps: SwapWatch) -> None:
        """Say once, in the first steps of a run, which arrays a swap has made stale."""
        if swaps.done:
            self._swaps = None
            return
        with WATCH.within(POINT):
            swapped = swaps.look(self.run.world.internal_comm)
        for name in swapped:
            self.run.note(
                f"note: field {name} changes in every second step only: where the program swaps "
                f"two arrays, add run.fields[{name!r}].rebind(ARRAY) after the swap"
            )

    def point(self) -> None:
        """Act at a resize point of a loop that the program has of its own (collective)."""
        run, progress = self.run, self.run.progress
        if self.position.at:
            raise UsageError(
                "expected run.resize_point() outside of run.loop, which has its own resize points"
            )
        if self.position.goal is not None:
            return  # an earlier world has passed it
        zero_s = self._start_clock()
        self._arrive()
        progress.step += 1
        progress.elapsed_s = run.runtime.clock() - zero_s
        if run.internal.rms is not None:
            run.internal.rms.step = progress.step
        # Before a resize: the ranks that join have no part in this call.
        self._save_if_due()
        progress.at_point = True
        if self._act(self.plan.resizes.get(progress.step)):
            self._arrive()

    def enter(self) -> None:
        """Build for this world, and close a resize whose new world goes on at the program's own."""
        self._build()
        if self.run.progress.at_point:
            self._start_clock()
            self._arrive()

    def finish(self) -> None:
        """Say which resizes were planned for steps that did not come."""
        self._drop_new_blocks()
        steps = self.run.progress.step
        late = [str(step) for step in self.plan.resizes if step > steps]
        if late:
            self.run.note(
                f"note: no resize at step {', '.join(late)}: the program ended after {steps} steps"
            )

    def _act(self, scripted: int | None) -> bool:
        """Do what there is to do at a resize point; return whether this rank stays (merge)."""
        stop, wanted = self._decision.take(scripted)
        if stop:
            self._terminate()
        if wanted is None:
            self._drop_new_blocks()
            return False
        if self._waits_for_memory(wanted) or not self._resize(wanted):
            return False
        self._swaps = None  # those that join look at nothing
        self._end.watch(self.run.progress, self.run.world.internal_comm)
        return True

    def _save_if_due(self) -> None:
        plan, progress = self.plan, self.run.progress
        if (
            plan.checkpoint is not None
            and plan.checkpoint.due(progress.step)
            and progress.step > progress.saved_at
        ):
            progress.saved_at = progress.step
            self._save(plan.checkpoint)
            self.app.after_resize(self.run, None)

    # --- the beginning of a world ------------------------------------------------------------

    def _start_clock(self) -> float:
        """Return the clock's time at which the run would have begun, had one world done it all."""
        if self._zero_s is None:
            progress = self.run.progress
            resize = progress.open_resize
            begun = self.run.runtime.clock() if resize is None else resize.arrived_at
            self._zero_s = begun - progress.elapsed_s
        return self._zero_s

    def _build(self) -> None:
        if not self.run.internal.built:
            self.app.build(self.run)
            self.run.internal.built = True

    def _begin(self, count: Callable[[], int], at: int, *, only: bool) -> int:
        """Build for the present world, if that is still to do; return the steps of the loop."""
        self._build()
        steps = count()
        if at > steps:
            raise UsageError(
                f"expected at least {at} steps, as the checkpoint has done, got {steps}"
            )
        late = [step for step in self.plan.resizes if step >= steps] if only else []
        if late:
            raise UsageError(f"expected resizes before the last step {steps}, got step {late[0]}")
        self._arrive()
        return steps

    def _arrive(self) -> None:
        """Close the resize that led to the present world, if it is still open."""
        self._build()
        run, plan, progress = self.run, self.plan, self.run.progress
        if progress.open_resize is not None:
            if progress.open_resize.sigterm_received:
                run.internal.sigterm.append(signal.SIGTERM)
            now = run.runtime.clock()
            self.report_done(now)
            record = progress.close_resize(now)
            run.internal.cooldown_until = now + plan.cooldown_s
            run.note(_describe(record))
            self.app.after_resize(run, record)

    def report_done(self, now: float) -> None:
        """Report the open resize to the RMS: at the takeover, and at the first step.

        The set-up between them has no time limit, as the RMS waits for the first report only; the
        second one states the whole stall.
        """
        progress, rms = self.run.progress, self.run.internal.rms
        resize = progress.open_resize
        if rms is not None and resize is not None:
            rms.launches = tuple(progress.launches)
            if resize.request:
                launches = tuple(launch for launch, _ in progress.launches)
                rms.report(Done(resize.request, resize.record(now), launches))

    # --- memory ------------------------------------------------------------------------------

    def _between_s(self) -> float:
        """Return the mean time between resize points."""
        progress = self.run.progress
        every = 1 if progress.at_point else self.plan.every
        return progress.elapsed_s / max(1, progress.step) * every

    def _waits_for_memory(self, wanted: NextWorld) -> bool:
        """Return whether the steps go on until ranks that will stay have their memory (collective).

        The new ranks of a request wait, with their pages touched; so ranks that stay (merge) have
        theirs touched by a thread while they step.
        """
        run = self.run
        if not wanted.request or wanted.strategy != "merge" or not self.app.supports_merge:
            return False
        blocks = self._new_blocks
        if blocks is None or (blocks.request, blocks.ranks) != (wanted.request, wanted.ranks):
            self._drop_new_blocks()
            with contextlib.suppress(UsageError, MemoryError):  # the resize itself will say so
                blocks = self._new_blocks = NewBlocks(run.fields, wanted.ranks, wanted.request)
        waits = blocks is not None and not blocks.ready and self._between_s() < MOST_BETWEEN_S
        with WATCH.within(POINT):
            return bool(run.world.internal_comm.allreduce(waits, MPI.MAX))

    def _drop_new_blocks(self) -> None:
        if self._new_blocks is not None:
            self._new_blocks.drop()
            self._new_blocks = None

    # --- acting ------------------------------------------------------------------------------

    def _resize(self, wanted: NextWorld) -> bool:
        """Replace the world; return whether this rank is in the new one (strategy merge)."""
        run, rms, plan = self.run, self.run.internal.rms, self.plan
        if rms is not None and wanted.request:
            rms.report(Begun(wanted.request))
        try:
            check_size(wanted.ranks, plan.limits)
            if wanted.strategy == "merge" and not self.app.supports_merge:
                raise UsageError(NO_BUILD)
            self.app.before_resize(run, wanted.ranks)
            self._note_replaced()
            raise_on_all(run.world.internal_comm, self._not_received())
            WATCH.query_on(None)
            WATCH.resizes = True
            if wanted.strategy == "merge":
                blocks, self._new_blocks = self._new_blocks, None
                merge(self.app, run, plan, wanted, blocks)
            else:
                replace_world(run, plan, wanted)
            self.report_done(run.runtime.clock())
            return True
        except (UsageError, RolledBackError) as error:
            why = str(error)
        finally:
            WATCH.resizes = False
        WATCH.query_on(run.world.internal_comm)
        self._go_on(wanted, why)
        return False

    def _note_replaced(self) -> None:
        """Record the parts of the state that the program has replaced."""
        run = self.run
        replaced = {
            name: replaced_parts(original, run.state[name])
            for name, original in run.internal.parts.items()
            if name in run.state
        }
        run.progress.replaced = {name: paths for name, paths in replaced.items() if paths}

    def _not_received(self) -> str | None:
        """Describe a pending message to this rank, which a resize would lose; None for none."""
        status = MPI.Status()
        for comm in (self.run.world.comm, MPI.COMM_WORLD):
            for _ in range(PROBES):
                if comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
                    return (
                        "expected no pending message at a resize point, got one from rank "
                        f"{status.source} with tag {status.tag} that rank {comm.rank} has not "
                        "received"
                    )
        return None

    def _go_on(self, wanted: NextWorld, why: str) -> None:
        """Go on as before after a resize that was rolled back."""
        self._drop_new_blocks()
        run, rms, plan = self.run, self.run.internal.rms, self.plan
        run.note(f"resize to {wanted.ranks} ranks rolled back: {why}")
        if not run.internal.built:  # ranks that were to stay had built for the new world already
            gc.collect()  # what is left of that: there may be no room for both
            self.app.build(run)
            run.internal.built = True
        run.progress.answered_request = max(run.progress.answered_request, wanted.request)
        if plan.cooldown_s:
            run.internal.cooldown_until = run.runtime.clock() + plan.cooldown_s
        if rms is not None:
            if not run.internal.can_connect and rms.strategy in ("warm", "merge"):
                rms.strategy = "restart"  # the one that needs no connection
                store.prepare()
            if wanted.request:
                rms.report(RolledBack(wanted.request, why, rms.strategy))
        self.app.after_resize(run, None)

    def _save(self, schedule: Schedule) -> Path | None:
        """Write a checkpoint (collective); return its path, None where it could not be written."""
        run, comm = self.run, self.run.world.internal_comm
        try:
            self.app.before_resize(run, run.world.size)  # not patient: the program's own code
            with WATCH.within("a checkpoint", patient=True):
                self._note_replaced()
                progress = merged_progress(comm, run.internal.per_rank, run.progress)
                return store.write(
                    schedule, run.world, run.fields, progress, self.plan.options, run.runtime.log
                )
        except (UsageError, ValuesError) as error:
            run.note(f"warning: checkpoint at step {run.step} not written: {error}")
            return None

    def _terminate(self) -> None:
        WATCH.terminates()
        where = "no checkpoint folder was given"
        if self.plan.checkpoint is not None:
            path = self._save(self.plan.checkpoint)
            where = f"checkpoint {path}" if path else "the checkpoint could not be written"
        raise TerminatedError(f"ended by SIGTERM at step {self.run.step}; {where}")


def _describe(record: ResizeReport) -> str:
    return (
        f"resize at step {record.step}: {record.from_ranks} -> {record.to_ranks} ranks by "
        f"{record.strategy}, {record.bytes / 1e6:.1f} MB moved at {record.gb_per_s:.2f} GB/s, "
        f"stall {record.stall_s:.3f} s"
    )


# --- where a program is in its loops ------------------------------------------------------------
#
# What a new world needs to go on at the very step. A position is, for every loop that is open (the
# outermost first), the step it is at, and for every depth how many loops have ended there since the
# loop around them took its present step.


class Position:
    """Follows the loops of one process; a world that takes over finds its way back to them.

    Args:
        progress: holds the position, so that it travels; taken over where it holds one.

    Attributes:
        done, at: the position.
        goal: that of an earlier world which was further, until it is reached; else None.
    """

    def __init__(self, progress: Progress) -> None:
        done, at = progress.loops_done, progress.loops_at
        self.goal: tuple[list[int], list[int]] | None = (list(done) or [0], list(at))
        self.done: list[int] = [0]
        self.at: list[int] = []
        self.follow(progress)
        self._arrive()

    def follow(self, progress: Progress) -> None:
        """Keep the position in this progress from now on."""
        progress.loops_done, progress.loops_at = self.done, self.at

    def enter(self) -> tuple[int, int] | None:
        """Open a loop; return its depth and its first step, None if it has ended in the past."""
        depth = len(self.at)
        start = 0
        if self.goal is not None:
            done, at = self.goal
            if self.done[depth] < done[depth]:
                self.done[depth] += 1
                self._arrive()
                return None
            start = at[depth]
        self.at.append(start)
        self.done.append(0)
        self._arrive()
        return depth, start

    def passed(self) -> None:
        """The innermost loop has done a step."""
        self.goal = None
        self.at[-1] += 1
        self.done[-1] = 0

    def leave(self, depth: int) -> None:
        """The loop at this depth has ended, by its last step or a ``break``."""
        self.goal = None
        if depth < len(self.at):
            del self.at[depth:], self.done[depth + 1 :]
            self.done[depth] += 1

    def _arrive(self) -> None:
        if self.goal == (self.done, self.at):
            self.goal = None


# --- arrays that a program swaps ----------------------------------------------------------------
#
# A program may swap two arrays and have declared only one of them. Such an array changes in every
# second step, and after an odd number of them the other one holds the answer, so that a resize
# would take the wrong one. It is looked for in the first steps of a run.

STEPS = 3
"""Steps that are looked at."""

MOST_BYTES = 16 << 20
"""Larger arrays are not hashed."""


class SwapWatch:
    """Looks at the program's own arrays between the first steps of its first loop.

    Args:
        fields: of the run.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = {
            name: block for name, block in fields.items() if isinstance(block.spec, WrappedSpec)
        }
        self._hashes: list[list[int]] = []

    @property
    def done(self) -> bool:
        """Whether there is nothing more to look at."""
        return not self._fields or len(self._hashes) > STEPS

    def look(self, comm: MPI.Intracomm) -> list[str]:
        """Look between two steps; return the names of arrays that must be swapped (collective)."""
        self._hashes.append([_hash(block) for block in self._fields.values()])
        if len(self._hashes) <= STEPS:
            return []
        seen = np.array(self._hashes, np.uint64)
        changed = (seen[1:] != seen[:-1]).astype(np.int8)
        comm.Allreduce(MPI.IN_PLACE, changed, MPI.MAX)
        alternates = (changed[1:] != changed[:-1]).all(axis=0)
        return [name for name, found in zip(self._fields, alternates, strict=True) if found]


def _hash(block: Field) -> int:
    if not block.on_host or block.storage.nbytes > MOST_BYTES:
        return 0
    return int(xxhash.xxh3_64_intdigest(block.storage.reshape(-1).view(np.uint8).data))
