"""The loop the library owns: that is what makes resuming structural.

Initial values are set only where nothing was restored; step number, values and records travel
by themselves; scratch is rebuilt, not moved; and the code after :func:`run` is reached by the
last world alone.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from dmr import checkpoint, spawn
from dmr.client import Link
from dmr.endings import TerminatedError, ending
from dmr.errors import UsageError, agree
from dmr.field import Field, FieldSpec
from dmr.progress import Progress
from dmr.world import Runtime, World, grid_for
from rms.protocol import Begun, Done, Resize, RolledBack

STRATEGIES = ("auto", "spawn", "warm", "merge", "restart")


class Application(ABC):
    """What a malleable program states; :func:`run` does the rest."""

    @abstractmethod
    def fields(self) -> Mapping[str, FieldSpec]:
        """Return the distributed arrays, the same on every rank and in every world."""

    def build(self, run: Run) -> None:  # noqa: B027 - nothing to build is a fair answer
        """Build what belongs to the current world: scratch, communication. Once per world."""

    @abstractmethod
    def steps(self, run: Run) -> int:
        """Return the number of steps of the whole run (called after ``build``)."""

    @abstractmethod
    def step(self, run: Run) -> None:
        """Advance the fields by one step."""

    def finish(self, run: Run) -> None:  # noqa: B027
        """Do what is left to do after the last step, in the last world."""


@dataclass(frozen=True)
class Plan:
    """When the library may act.

    Attributes:
        every: steps between resize points, where SIGTERM and resizes are noticed.
        resizes: scripted resizes, step to ranks, done exactly at those steps.
        strategy: one of ``STRATEGIES``.
        checkpoint: where and how often to write checkpoints, or None.
        restart: continue from the newest whole checkpoint, if there is one.
        options: what must be equal for a checkpoint to be continued.
    """

    every: int = 10
    resizes: Mapping[int, int] = field(default_factory=dict)
    strategy: str = "auto"
    checkpoint: checkpoint.Schedule | None = None
    restart: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """What an application sees of its run.

    Attributes:
        world: the present world.
        fields: this rank's blocks.
        step: steps done so far.
        values: replicated values that travel with the job: numbers, strings, lists of them.
        restored: whether this world started from moved or checkpointed fields.
        link: rank 0's line to the RMS, where there is one.
    """

    runtime: Runtime
    world: World
    fields: dict[str, Field]
    progress: Progress
    restored: bool
    link: Link | None = None

    @property
    def step(self) -> int:
        """Steps done so far, over all worlds."""
        return self.progress.step

    @property
    def values(self) -> dict[str, Any]:
        """Replicated values that travel with the job."""
        return self.progress.values

    @property
    def resizes(self) -> list[Resize]:
        """The resizes done so far."""
        return self.progress.resizes

    @property
    def elapsed_s(self) -> float:
        """Seconds of the loop so far, stalls included, over all worlds."""
        return self.progress.elapsed_s

    def say(self, text: str) -> None:
        """Print a line, from rank 0 only."""
        if self.world.rank == 0:
            # Whoever read along may have seen enough; the run goes on.
            with contextlib.suppress(BrokenPipeError):
                print(text, file=self.runtime.log, flush=True)


def run(app: Application, runtime: Runtime, plan: Plan | None = None) -> Run:
    """Run an application to its last step through any number of worlds.

    Returns in the last world only; the ranks of earlier worlds leave by a normal exit.

    Raises:
        UsageError: on all ranks together, for what the user asked and cannot be had.
    """
    plan = plan or Plan()
    runtime.forget_completion()
    comm = runtime.comm.Dup()
    try:
        with ending(runtime, comm) as end, _sigterm() as told:
            specs = dict(app.fields())
            _check(plan, runtime, specs)
            state = _enter(runtime, comm, specs, plan)
            end.watch(state.progress)
            with _linked(state):
                _loop(app, state, plan, told)
            app.finish(state)
            return state
    finally:
        if not sys.is_finalizing() and comm != MPI.COMM_NULL:
            comm.Free()


@contextlib.contextmanager
def _linked(state: Run) -> Iterator[None]:
    """Keep a line from rank 0 to the RMS that launched this world, if one did."""
    manager = state.runtime.manager
    if manager is not None and state.world.rank == 0:
        state.link = Link(manager, state.progress.wish)
    try:
        yield
    finally:
        if state.link is not None:
            state.link.close()


def _check(plan: Plan, runtime: Runtime, specs: Mapping[str, FieldSpec]) -> None:
    if plan.every < 1:
        raise UsageError(f"expected a resize point every 1 or more steps, got {plan.every}")
    if plan.strategy not in STRATEGIES:
        raise UsageError(f"expected a strategy of {', '.join(STRATEGIES)}, got {plan.strategy!r}")
    if plan.strategy == "warm":
        raise UsageError("strategy warm needs a launcher; under bare mpirun expected spawn")
    if plan.strategy in ("merge", "restart"):
        raise UsageError(
            f"expected strategy auto or spawn (all that this version has), got {plan.strategy!r}"
        )
    if plan.resizes and not runtime.launched and runtime.mpiexec is None:
        raise UsageError(
            "no mpiexec found to start a new world with; expected one on PATH "
            "(pip install 'malleable-mpi[mpich]' brings it)"
        )
    if plan.resizes and runtime.manager is not None:
        raise UsageError("expected no scripted resizes under an RMS, which decides them itself")
    for ranks in (runtime.comm.size, *plan.resizes.values()):
        grid_for(ranks, list(specs.values()))


def _enter(
    runtime: Runtime, comm: MPI.Intracomm, specs: Mapping[str, FieldSpec], plan: Plan
) -> Run:
    """Return the state this world starts from: moved, read, or initial."""
    grid = grid_for(comm.size, list(specs.values()))
    if runtime.parent is not None:
        arrival = spawn.join(runtime, comm, specs, grid)
        return Run(runtime, arrival.world, arrival.fields, arrival.progress, restored=True)
    world = World(comm, 0, grid)
    fields = world.allocate(specs)
    if plan.restart and plan.checkpoint is not None:
        progress = checkpoint.restore(plan.checkpoint, world, fields, plan.options, runtime.log)
        if progress is not None:
            return Run(runtime, world, fields, progress, restored=True)
    elif plan.checkpoint is not None:
        checkpoint.refuse_others(plan.checkpoint, world)
    error = None
    for name, block in fields.items():
        try:
            block.initialise()
        except ValueError as problem:
            error = error or f"field {name}: {problem}"
    agree(comm, error)
    return Run(runtime, world, fields, Progress(), restored=False)


def _loop(app: Application, state: Run, plan: Plan, told: list[int]) -> None:
    progress, clock = state.progress, state.runtime.clock
    entered = clock() if progress.open_resize is None else progress.open_resize.arrived_at
    app.build(state)
    steps = app.steps(state)
    if progress.step > steps:
        raise UsageError(
            f"expected at least {progress.step} steps, as the checkpoint has done, got {steps}"
        )
    late = [step for step in plan.resizes if step >= steps]
    if late:
        raise UsageError(f"expected resizes before the last step {steps}, got step {late[0]}")
    world = state.world
    if progress.open_resize is not None:
        if progress.open_resize.told:
            told.append(signal.SIGTERM)
        wish = progress.open_resize.wish
        record = progress.close_resize(clock())
        state.say(_describe(record))
        if state.link is not None and wish:
            state.link.report(Done(wish, record))
    before = progress.elapsed_s

    while True:
        progress.elapsed_s = before + clock() - entered
        step = progress.step
        if state.link is not None:
            state.link.step, state.link.steps = step, steps
        scripted = plan.resizes.get(step)
        if scripted is not None or step % plan.every == 0:
            stop, target = _resize_point(state, bool(told), scripted)
            if stop:
                _terminate(state, plan)
            if target is not None:
                _resize(state, target, told)  # leaves this process unless rolled back
        if step >= steps:
            return
        if plan.checkpoint is not None and plan.checkpoint.due(step) and step > progress.saved_at:
            progress.saved_at = step
            checkpoint.write(
                plan.checkpoint, world, state.fields, progress, plan.options, state.runtime.log
            )
        app.step(state)
        progress.step += 1


def _resize_point(state: Run, told: bool, scripted: int | None) -> tuple[bool, spawn.Target | None]:
    """Agree on whether to stop and on what to become: one reduction of two numbers.

    The wish of an RMS is known to rank 0 only; its slots are sent round where there is one.
    """
    world, link = state.world, state.link
    wish = None if link is None else link.wish
    stop, number = told, 0 if wish is None else wish.number
    if world.size > 1:
        flags = np.array([stop, number], np.int64)
        world.comm.Allreduce(MPI.IN_PLACE, flags, MPI.MAX)
        stop, number = bool(flags[0]), int(flags[1])
    if number:
        slots = world.comm.bcast(None if wish is None else wish.slots)
        return stop, spawn.Target(len(slots), slots, number)
    if scripted is None or scripted == world.size:
        return stop, None
    return stop, spawn.Target(scripted)


def _resize(state: Run, target: spawn.Target, told: list[int]) -> None:
    """Replace the world; comes back only if the old one goes on."""
    link = state.link
    if link is not None and target.wish:
        link.report(Begun(target.wish))
    try:
        grid_for(target.ranks, [block.spec for block in state.fields.values()])
    except UsageError as error:
        why = str(error)
    else:
        why = spawn.replace(state, target, told)
    state.say(f"resize to {target.ranks} ranks rolled back: {why}")
    state.progress.wish = max(state.progress.wish, target.wish)
    if link is not None and target.wish:
        link.report(RolledBack(target.wish, why))


def _terminate(state: Run, plan: Plan) -> None:
    where = "no checkpoint folder was given"
    if plan.checkpoint is not None:
        path = checkpoint.write(
            plan.checkpoint,
            state.world,
            state.fields,
            state.progress,
            plan.options,
            state.runtime.log,
        )
        where = f"checkpoint {path}" if path else "the checkpoint could not be written"
    raise TerminatedError(f"ended by SIGTERM at step {state.step}; {where}")


def _describe(record: Resize) -> str:
    return (
        f"resize at step {record.step}: {record.from_ranks} -> {record.to_ranks} ranks by "
        f"{record.strategy}, {record.bytes / 1e6:.1f} MB moved at {record.gb_per_s:.2f} GB/s, "
        f"stall {record.stall_s:.3f} s"
    )


@contextlib.contextmanager
def _sigterm() -> Iterator[list[int]]:
    """Collect SIGTERM in a list that the next resize point looks at.

    A rank that has left keeps ignoring it: killed by it while it ends, it would look to mpiexec
    like a failure and take the new world with it.
    """
    told: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        yield told
    except spawn.Left:
        previous = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
