"""The loop of a run, and the actions between two steps: end, checkpoint, resize."""

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

from dmr.application import Program, Run
from dmr.boot.environment import CHECK_STEPS_VARIABLE
from dmr.boot.spawn import host_of_rank
from dmr.data.field import WrappedSpec
from dmr.errors import CollectiveError, Left, RolledBackError, UsageError, raise_on_all
from dmr.loop.decide import POINT, Decision
from dmr.loop.termination import Ending, TerminatedError
from dmr.plan import NextWorld, Plan, Schedule, check_size
from dmr.state.progress import Progress, merged_progress
from dmr.state.values import ValuesError, replaced_parts
from dmr.system.watch import WATCH
from rms.wire.messages import JOIN_VARIABLE, KEEPERS_VARIABLE, Begun, Done, RolledBack

if TYPE_CHECKING:
    from dmr.data.field import Field
    from dmr.resize.merge import NewBlocks

PROBES = 3
"""Calls of MPI_Iprobe for each communicator: each lets MPI make progress."""

MOST_BETWEEN_S = 10.0
"""Above this interval of resize points, a resize does not wait at one for new memory."""

END = "the end of the block"
"""Place in the messages of :mod:`dmr.system.watch`."""

NO_BUILD = "strategy merge keeps ranks in their loop; expected build= in dmr.malleable, got none"


class Driver:
    """Owns the loops of a run in one process, so that a new world can resume them.

    Args:
        end: gets the present progress and world.
    """

    def __init__(self, app: Program, run: Run, plan: Plan, end: Ending) -> None:
        self.app, self.run, self.plan = app, run, plan
        self._end = end
        self.position = Position(run.progress)
        self._zero_s: float | None = None
        self._swaps = None if run.restored else SwapWatch(run.fields)
        self._new_blocks: NewBlocks | None = None
        self._stays_in_block = False
        self._end_of_rank: Left | TerminatedError | None = None
        self._decision = Decision(app, run, plan)
        env = run.runtime.env if run.runtime.check is not None else {}
        self._most_steps = int(env.get(CHECK_STEPS_VARIABLE) or 0)
        self._loads = run.restored  # until the program has taken the data of this world
        WATCH.between_s = self._between_s

    def loop(self, count: Callable[[], int], *, single: bool = False) -> Iterator[int]:
        """Yield every remaining step of a loop; act before it.

        Args:
            count: returns the steps of the whole loop.
            single: whether the program has no other loop, and nothing to do after it.
        """
        if self._end_of_rank is not None:
            raise self._end_of_rank
        depth = self.position.open_loop()
        if depth is None:
            return  # an earlier world has ended it
        try:
            yield from self._steps(count, depth, single=single)
        finally:
            self.position.close_loop(depth)

    def _steps(self, count: Callable[[], int], depth: int, *, single: bool) -> Iterator[int]:
        run, plan, progress = self.run, self.plan, self.run.progress
        rms, position, clock = run.internal.rms, self.position, run.runtime.clock
        supervised = run.internal.steps
        at, zero_s = position.open_steps, self._start_clock()
        steps = self._begin(count, at[depth], single=single)
        while True:
            progress.elapsed_s = clock() - zero_s
            step = progress.step
            if rms is not None:
                rms.step = step
                if depth == 0:
                    rms.steps = step + steps - at[0]
            scripted = plan.resizes.get(step)
            if position.resume_target is None:  # else the world resumes in a loop within this one
                if scripted is not None or step % plan.every == 0:
                    progress.resumes_at_resize_point = False
                    if self._act(scripted):
                        steps = self._begin(count, at[depth], single=single)
                        continue  # at this resize point once more, as the ranks that have joined
                if at[depth] >= steps:
                    if rms is not None and single:
                        rms.close()  # the job has done its steps: no more requests
                    return
                if plan.checkpoint is not None:
                    self._save_if_due()
            if self._swaps is not None and depth == 0:
                self._check_swaps(self._swaps)
            if supervised is not None:
                supervised.begins(step)
            yield at[depth]
            progress.step += 1
            position.count_step()

    def _check_swaps(self, swaps: SwapWatch) -> None:
        """Report once, in the first steps of a run, the arrays that a swap has made stale."""
        if swaps.is_over:
            self._swaps = None
            return
        with WATCH.within(POINT):
            names = swaps.sample(self.run.world.internal_comm)
        for name in names:
            self.run.note(
                f"note: field {name} changes in every second step only: where the program swaps "
                f"two arrays, add run.fields[{name!r}].rebind(ARRAY) after the swap"
            )

    def resize_point(self, *, leave: bool) -> bool:
        """Act at a resize point of a loop of the program's own (collective).

        Args:
            leave: whether a rank leaves here; else :meth:`finish` has it leave.

        Returns:
            Whether it is to go on to the end of the block, and leave there.
        """
        self._stays_in_block = not leave
        try:
            if self._end_of_rank is not None:
                raise self._end_of_rank
            self._resize_point()
        except (Left, TerminatedError) as end:
            if leave:
                raise
            self._end_of_rank = end
        return self._end_of_rank is not None

    def _resize_point(self) -> None:
        run, progress = self.run, self.run.progress
        if run.internal.steps is not None:
            run.internal.steps.begins(progress.step)
        if self.position.open_steps:
            raise UsageError(
                "expected run.resize_point() outside of run.loop, which has its own resize points"
            )
        if self.position.resume_target is not None:
            return  # an earlier world has passed it
        zero_s = self._start_clock()
        self._close_resize()
        progress.step += 1
        progress.elapsed_s = run.runtime.clock() - zero_s
        if run.internal.rms is not None:
            run.internal.rms.step = progress.step
        # Before a resize: the ranks that join have no part in this call.
        self._save_if_due()
        progress.resumes_at_resize_point = True
        if self._act(self.plan.resizes.get(progress.step)):
            self._set_up()
            self._close_resize()

    def start(self) -> None:
        """Set this world up; close a resize that was at a resize point of the program."""
        self._set_up()
        if self.run.progress.resumes_at_resize_point:
            self._start_clock()
            self._close_resize()

    @property
    def has_left(self) -> bool:
        """Whether another world has the job, and this rank goes on to the end of the block only."""
        return isinstance(self._end_of_rank, Left)

    def finish(self) -> None:
        """Have a rank leave that did not at a resize point; report resizes that did not come."""
        self._drop_new_blocks()
        if self._end_of_rank is not None:
            if isinstance(self._end_of_rank, Left):
                self._end_of_rank.settle()
            raise self._end_of_rank
        steps = self.run.progress.step
        late = [str(step) for step in self.plan.resizes if step > steps]
        if late:
            self.run.note(
                f"note: no resize at step {', '.join(late)}: the program ended after {steps} steps"
            )

    def _act(self, scripted: int | None) -> bool:
        """Act at a resize point; return whether this rank is in a new world (merge)."""
        if self._most_steps and self.run.progress.step > self._most_steps:
            self._stop_check()
        stop, wanted, copy = self._decision.take(scripted)
        if stop:
            self._terminate()
        if wanted is None:
            self._drop_new_blocks()
            if copy:
                self._copy()
            return False
        if self._waits_for_memory(wanted) or not self._resize(wanted):
            return False
        self._swaps = None  # the ranks that join have none
        self._loads = True
        if KEEPERS_VARIABLE in self.run.runtime.env:
            enter_copies(self.run)
        self._end.watch(self.run.progress, self.run.world.internal_comm)
        return True

    # --- the beginning of a world ------------------------------------------------------------

    def _start_clock(self) -> float:
        """Return the time at which the run would have begun, had this world done all steps."""
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

    def _set_up(self) -> None:
        """Build for the present world, and have the program take its data, if not done yet."""
        self._build()
        if self._loads:
            self._loads = False
            load_state(self.app, self.run)
        elif self.run.runtime.check is not None and self.run.progress.step == 0:
            from dmr.check.digests import note_initial_state

            note_initial_state(self.run.progress)

    def _begin(self, count: Callable[[], int], step: int, *, single: bool) -> int:
        """Set the present world up, if not done yet; return the steps of the loop."""
        self._set_up()
        steps = count()
        if step > steps:
            raise UsageError(
                f"expected at least {step} steps, as the checkpoint has done, got {steps}"
            )
        late = [one for one in self.plan.resizes if one >= steps] if single else []
        if late:
            raise UsageError(f"expected resizes before the last step {steps}, got step {late[0]}")
        self._close_resize()
        return steps

    def _close_resize(self) -> None:
        """Close the resize that led to the present world, if it is still open."""
        run, progress = self.run, self.run.progress
        if progress.open_resize is None:
            return
        if progress.open_resize.sigterm_received:
            run.internal.sigterm.append(signal.SIGTERM)
        now = run.runtime.clock()
        self.report_done(now)
        record = progress.close_resize(now)
        run.internal.cooldown_until = now + self.plan.cooldown_s
        run.note(
            f"resize at step {record.step}: {record.from_ranks} -> {record.to_ranks} ranks by "
            f"{record.strategy}, {record.bytes / 1e6:.1f} MB moved at {record.gb_per_s:.2f} GB/s, "
            f"stall {record.stall_s:.3f} s"
        )

    def report_done(self, now: float) -> None:
        """Report the open resize to the RMS: at the takeover, and at the first step.

        The set-up between them has no time limit, as the RMS waits for the first report only; the
        second report has the whole stall.
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
        progress = self.run.progress
        every = 1 if progress.resumes_at_resize_point else self.plan.every
        return progress.elapsed_s / max(1, progress.step) * every

    def _waits_for_memory(self, wanted: NextWorld) -> bool:
        """Return whether to step on until ranks that will stay have their memory (collective).

        The new ranks of a request wait with their pages touched. Meanwhile a thread touches those
        of the ranks that stay (merge).
        """
        run = self.run
        if not wanted.request or wanted.strategy != "merge" or not self.app.supports_merge:
            return False
        from dmr.resize.merge import NewBlocks

        blocks = self._new_blocks
        if blocks is None or (blocks.request, blocks.ranks) != (wanted.request, wanted.ranks):
            self._drop_new_blocks()
            with contextlib.suppress(UsageError, MemoryError):  # the resize itself reports it
                blocks = self._new_blocks = NewBlocks(run.fields, wanted.ranks, wanted.request)
        waits = blocks is not None and not blocks.ready and self._between_s() < MOST_BETWEEN_S
        with WATCH.within(POINT):
            return bool(run.world.internal_comm.allreduce(waits, MPI.MAX))

    def _drop_new_blocks(self) -> None:
        if self._new_blocks is not None:
            self._new_blocks.drop()
            self._new_blocks = None

    # --- a resize ----------------------------------------------------------------------------

    def _resize(self, wanted: NextWorld) -> bool:
        """Replace the world; return whether this rank is in the new one (strategy merge)."""
        run, rms = self.run, self.run.internal.rms
        if rms is not None and wanted.request:
            rms.report(Begun(wanted.request))
        try:
            check_size(wanted.ranks, self.plan.limits)
            if wanted.strategy == "merge" and not self.app.supports_merge:
                raise UsageError(NO_BUILD)
            save_state(self.app, run)
            self._note_replaced()
            raise_on_all(run.world.internal_comm, self._pending_message())
            WATCH.query_on(None)
            WATCH.resizes = True
            if wanted.strategy == "merge":
                from dmr.resize.merge import merge

                blocks, self._new_blocks = self._new_blocks, None
                merge(self.app, run, self.plan, wanted, blocks)
            else:
                from dmr.resize.replace import replace_world

                replace_world(run, self.plan, wanted)
            self.report_done(run.runtime.clock())
            return True
        except (UsageError, RolledBackError) as error:
            why = str(error)
        except Left as left:
            if not self._stays_in_block:
                left.settle()
            raise
        finally:
            WATCH.resizes = False
        WATCH.query_on(run.world.internal_comm)
        release_state(run)
        self._resume_after_rollback(wanted, why)
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

    def _pending_message(self) -> str | None:
        """Describe a message that this rank has not received, which a resize would lose."""
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

    def _resume_after_rollback(self, wanted: NextWorld, why: str) -> None:
        self._drop_new_blocks()
        run, rms, plan = self.run, self.run.internal.rms, self.plan
        run.note(f"resize to {wanted.ranks} ranks rolled back: {why}")
        if not run.internal.built:  # ranks that were to stay have built for the new world
            gc.collect()  # there may be no room for the scratch of both
            self._build()
        run.progress.answered_request = max(run.progress.answered_request, wanted.request)
        if plan.cooldown_s:
            run.internal.cooldown_until = run.runtime.clock() + plan.cooldown_s
        if rms is not None:
            if not run.internal.can_connect and rms.strategy in ("warm", "merge"):
                from dmr.checkpoint import store

                rms.strategy = "restart"  # the one that needs no connection
                store.prepare()
            if wanted.request:
                rms.report(RolledBack(wanted.request, why, rms.strategy))

    # --- checkpoints -------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        schedule, progress = self.plan.checkpoint, self.run.progress
        if (
            schedule is not None
            and schedule.due(progress.step)
            and progress.step > progress.saved_at
        ):
            progress.saved_at = progress.step
            self._save(schedule)

    def _save(self, schedule: Schedule) -> Path | None:
        """Write a checkpoint (collective); return its path, None if it could not be written."""
        from dmr.checkpoint import store

        run, comm = self.run, self.run.world.internal_comm
        try:
            save_state(self.app, run)  # not patient: the program's own code
            with WATCH.within("a checkpoint", patient=True):
                self._note_replaced()
                progress = merged_progress(comm, run.internal.per_rank, run.progress)
                log, lock = run.runtime.log, run.internal.checkpoint_lock
                options = self.plan.options
                return store.write(
                    schedule, run.world, run.fields, progress, options, log, lock=lock
                )
        except (UsageError, ValuesError) as error:
            run.note(f"warning: checkpoint at step {run.step} not written: {error}")
            return None
        finally:
            release_state(run)

    def _copy(self) -> None:
        """Take a copy in memory (collective)."""
        run, copies = self.run, self.run.internal.copies
        if copies is None:
            return
        try:
            save_state(self.app, run)
            with WATCH.within("a copy in memory", patient=True):
                self._note_replaced()
                comm = run.world.internal_comm
                progress = merged_progress(comm, run.internal.per_rank, run.progress)
                copies.take(run.fields, progress)
        except (UsageError, ValuesError) as error:
            copies.skip()
            run.note(f"warning: copy in memory at step {run.step} not taken: {error}")
        finally:
            release_state(run)

    def _stop_check(self) -> None:
        """End a run of ``dmr check`` whose loop does not end (collective)."""
        note_variables(self.run, None if self.run.internal.loops else self.app)
        record_end(self.app, self.run, stopped=True)
        raise CollectiveError(f"stopped by dmr check at step {self.run.step}")

    def _terminate(self) -> None:
        WATCH.terminates()
        where = "no checkpoint folder was given"
        if self.plan.checkpoint is not None:
            path = self._save(self.plan.checkpoint)
            where = f"checkpoint {path}" if path else "the checkpoint could not be written"
        raise TerminatedError(f"ended by SIGTERM at step {self.run.step}; {where}")


# --- the position of a program in its loops -----------------------------------------------------
#
# A new world needs it to resume at the very step. A position has the step of every open loop (the
# outermost first) and, for every depth, how many loops have ended there since the loop around them
# began its present step.


class Position:
    """Follows the loops of one process; a new world finds its way back to them.

    Args:
        progress: holds the position, so that it travels; a position that it has is resumed.

    Attributes:
        open_steps, loops_ended: the position.
        resume_target: the position of the earlier world, until it is reached; else None.
    """

    def __init__(self, progress: Progress) -> None:
        ended, steps = list(progress.loops_ended) or [0], list(progress.open_steps)
        self.resume_target: tuple[list[int], list[int]] | None = (ended, steps)
        self.loops_ended: list[int] = [0]
        self.open_steps: list[int] = []
        progress.loops_ended, progress.open_steps = self.loops_ended, self.open_steps
        self._check_target()

    def open_loop(self) -> int | None:
        """Open a loop; return its depth, None if an earlier world has ended it."""
        depth = len(self.open_steps)
        first = 0
        if self.resume_target is not None:
            ended, steps = self.resume_target
            if self.loops_ended[depth] < ended[depth]:
                self.loops_ended[depth] += 1
                self._check_target()
                return None
            first = steps[depth]
        self.open_steps.append(first)
        self.loops_ended.append(0)
        self._check_target()
        return depth

    def count_step(self) -> None:
        """Count a step of the innermost loop."""
        self.resume_target = None
        self.open_steps[-1] += 1
        self.loops_ended[-1] = 0

    def close_loop(self, depth: int) -> None:
        """Close the loop at this depth, after its last step or a ``break``."""
        self.resume_target = None
        if depth < len(self.open_steps):
            del self.open_steps[depth:], self.loops_ended[depth + 1 :]
            self.loops_ended[depth] += 1

    def _check_target(self) -> None:
        if self.resume_target == (self.loops_ended, self.open_steps):
            self.resume_target = None


# --- arrays that a program swaps ----------------------------------------------------------------
#
# A program may swap two arrays and have declared only one of them. Such an array changes in every
# second step, and after an odd number of steps a resize would take the wrong one.

STEPS = 3
"""Number of first steps in which arrays are compared."""

MOST_BYTES = 16 << 20
"""Larger arrays are not hashed."""


class SwapWatch:
    """Compares the program's own arrays between the first steps of its first loop.

    Args:
        fields: of the run.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = {
            name: block
            for name, block in fields.items()
            if isinstance(block.spec, WrappedSpec) and block.spec.getter is None
        }
        self._hashes: list[list[int]] = []

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to compare."""
        return not self._fields or len(self._hashes) > STEPS

    def sample(self, comm: MPI.Intracomm) -> list[str]:
        """Hash the arrays between two steps; return the names of swapped ones (collective)."""
        self._hashes.append([_hash(block) for block in self._fields.values()])
        if len(self._hashes) <= STEPS:
            return []
        hashes = np.array(self._hashes, np.uint64)
        changed = (hashes[1:] != hashes[:-1]).astype(np.int8)
        comm.Allreduce(MPI.IN_PLACE, changed, MPI.MAX)
        alternates = (changed[1:] != changed[:-1]).all(axis=0)
        return [name for name, swapped in zip(self._fields, alternates, strict=True) if swapped]


def _hash(block: Field) -> int:
    if not block.on_host or block.storage.nbytes > MOST_BYTES:
        return 0
    return int(xxhash.xxh3_64_intdigest(block.storage.reshape(-1).view(np.uint8).data))


# --- copies in memory ---------------------------------------------------------------------------


def enter_copies(run: Run) -> None:
    """Copy the present world of a run from now on (collective)."""
    env, own = run.runtime.env, run.internal.copies
    if run.runtime.manager is not None and env.get(KEEPERS_VARIABLE):
        _regroup(run)
        own = run.internal.copies
    if own is not None:
        own.enter(run.world, run.progress.generation, run.fields)


def _regroup(run: Run) -> None:
    """Let the copies of a job of an RMS be on the hosts that its ranks have now (collective).

    The ranks that were started last know the keepers of the hosts that have joined; those of hosts
    that the job has left end.
    """
    from dmr.memory.copies import own_place
    from dmr.memory.keeper import places_of

    comm, env = run.world.internal_comm, run.runtime.env
    joined = int(env.get(JOIN_VARIABLE) or 0)
    root = -max(comm.allgather((joined, -comm.rank)))[1]
    places = places_of(comm.bcast(env[KEEPERS_VARIABLE], root))
    own = None if run.internal.copies is None else own_place(places, host_of_rank(env))
    present = comm.allgather(own)
    if own is None or None in present:
        if run.internal.copies is not None:
            run.internal.copies.close()
            run.internal.copies = None
            run.note("note: no copies in memory from now on: expected a keeper on every host")
        return
    ring = sorted(set(present))
    if run.internal.copies is not None:
        run.internal.copies.be_at([places[at] for at in ring], ring.index(own))


# --- the program's part of what travels ---------------------------------------------------------


def save_state(app: Program, run: Run) -> None:
    """Bring the declared data up to date (collective).

    Raises:
        UsageError: on all ranks together, by the program, or for a getter's data on any of them.
    """
    app.save(run)
    problem = None
    for name, block in run.fields.items():
        try:
            block.update()
        except ValueError as error:
            problem = problem or f"field {name}: {error}"
    if any(block.spec.getter is not None for block in run.fields.values()):
        raise_on_all(run.world.internal_comm, problem)


def release_state(run: Run) -> None:
    """Free what :func:`save_state` has read into memory: the ranks go on as they are."""
    for block in run.fields.values():
        block.release()


def load_state(app: Program, run: Run) -> None:
    """Have the program take the data of a world that goes on (collective)."""
    for block in run.fields.values():
        block.deliver()
    app.load(run)


# --- dmr check ----------------------------------------------------------------------------------


def note_variables(run: Run, app: Program | None = None) -> None:
    """Keep the hashes of the program's variables that are not declared.

    They are those of the function or module that has called the library, or the attributes of an
    application.
    """
    from dmr.check.variables import calling_frame, digests_of_names, variables_of

    declared, frame = {**run.fields, **run.state}, calling_frame()
    if app is not None:
        names = getattr(app, "__dict__", {})
        run.internal.variables = digests_of_names(names, declared, type(app).__module__)
    elif frame is not None:
        run.internal.variables = variables_of(frame, declared)


def record_end(app: Program, run: Run, *, stopped: bool = False) -> None:
    """Write the record of a run for ``dmr check``, if it is one (collective).

    Args:
        stopped: whether it is stopped before its end.
    """
    path, comm = run.runtime.check, run.world.internal_comm
    if path is None:
        return
    from dmr.check.digests import write_digests

    with contextlib.suppress(UsageError):
        save_state(app, run)
    with WATCH.within(END, patient=True):
        variables = run.internal.variables
        write_digests(path, comm, run.fields, run.progress, variables, stopped=stopped)
