"""The loop the library owns: that is what makes resuming structural.

Initial values are set only where nothing was restored; step number, values and records travel
by themselves; scratch is rebuilt, not moved; and the code after :func:`run` is reached by the
last world alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from dmr import checkpoint, driver
from dmr.boot.environment import SCRIPT_VARIABLE, Runtime
from dmr.data.field import Field, FieldSpec
from dmr.errors import UsageError, agree
from dmr.plan import Limits, check_cooldown, check_plan, check_size, parse_resizes
from dmr.progress import Progress
from dmr.resize import strategy as strategies
from dmr.resize.source import Deadlines, Left
from dmr.resize.target import Newcomer
from dmr.termination import ending, giving_way
from dmr.wire.ranks import RankMessages
from dmr.wire.rms import RmsClient
from dmr.world import World, disconnect, grid_for
from rms.wire.messages import Resize


class Application(ABC):
    """What a malleable program states; :func:`run` does the rest.

    Attributes:
        stays: whether its ranks can go on in another world (strategy merge).
        backends: what it can compute with. A resize may lead from one of them to another: a new
            world takes the one named by :attr:`dmr.Runtime.backend`, or, under an RMS, what its
            :attr:`dmr.Runtime.slot` is good for. Only "backend" may then differ in the options.
    """

    stays: bool = True
    backends: tuple[str, ...] = ()

    @abstractmethod
    def fields(self) -> Mapping[str, FieldSpec]:
        """Return the distributed arrays, the same on every rank and in every world."""

    def prepare(self, run: Run) -> None:  # noqa: B027
        """Do early what ``build`` will need: load modules, compile kernels, open devices.

        Called in a world that is booted beside the running one, before it has any data: blocks
        are zeros, ``run.values`` is empty. ``build`` must not rely on it.
        """

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

    def before_resize(self, run: Run, ranks: int) -> None:  # noqa: B027
        """Do what must be done before the fields move, on all ranks of the old world.

        What is put into ``run.values`` travels. Raising :class:`dmr.UsageError` on all ranks
        rolls the resize back.
        """

    def after_resize(self, run: Run, record: Resize | None) -> None:  # noqa: B027
        """Go on after a resize, on all ranks of the new world, before its first step.

        After one that was rolled back ``record`` is None, and the ranks are the old ones.
        """


@dataclass(frozen=True)
class Plan:
    """When the library may act.

    Attributes:
        every: steps between resize points, where SIGTERM and resizes are noticed.
        resizes: scripted resizes, step to ranks, done exactly at those steps.
        strategy: one of ``dmr.STRATEGIES``.
        deadlines: how long each phase of a resize may take.
        measure: time plain sends of as many bytes in every resize, for comparison.
        checkpoint: where and how often to write checkpoints, or None.
        restart: continue from the newest whole checkpoint, if there is one.
        options: what must be equal for a checkpoint to be continued.
        limits: fewest and most ranks that the job may have.
        sizes: the sizes it prefers; a request of its own is rounded down to one of them.
        backends: the backend that a scripted resize goes over to, by its step.
        cooldown_s: seconds from the end of a resize, done or rolled back, until the RMS or the
            application itself may have the next; ``DMR_COOLDOWN`` may ask for more.
    """

    every: int = 10
    resizes: Mapping[int, int] = field(default_factory=dict)
    strategy: str = "auto"
    deadlines: Deadlines = field(default_factory=Deadlines)
    measure: bool = False
    checkpoint: checkpoint.Schedule | None = None
    restart: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = (1, None)
    sizes: tuple[int, ...] = ()
    backends: Mapping[int, str] = field(default_factory=dict)
    cooldown_s: float = 0.0


@dataclass
class Run:
    """What an application sees of its run.

    Attributes:
        world: the present world.
        fields: this rank's blocks.
        step: steps done so far.
        values: replicated values that travel with the job: numbers, strings, lists of them.
        restored: whether this world started from moved or checkpointed fields.
        rms: rank 0's client of the RMS, where there is one.
        checkpoint_lock: the right to write checkpoints, where there are any.
        connects: whether this process may call MPI_Comm_connect (still).
        built: whether ``build`` has run in this world.
        attempts: resizes tried in this world.
        child: an mpiexec that this process has started for the next world.
        asked: ranks that the application has asked for, 0 if it has not.
        rests_until: the clock's time from which the next resize may begin.
        auto: whether the library chooses the strategy, also by the memory that is left.
        crowded: whether a second copy of this world would not fit beside it.
        polls: resize points that this world has come to.
        turns: the loop of :func:`dmr.malleable`, for so many steps.
    """

    runtime: Runtime
    world: World
    fields: dict[str, Field]
    progress: Progress
    restored: bool
    rms: RmsClient | None = None
    checkpoint_lock: checkpoint.Lock | None = None
    connects: bool = True
    built: bool = False
    attempts: int = 0
    news: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    flags: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, np.int64))
    child: subprocess.Popen[Any] | None = None
    asked: int = 0
    rests_until: float = 0.0
    auto: bool = False
    crowded: bool = False
    polls: int = 0
    turns: Callable[[int], Iterator[int]] | None = None

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

    def request(self, ranks: int) -> None:
        """Ask for another number of ranks; answered at the next resize point after a cooldown.

        Any rank may ask; the largest number asked for counts, brought to what the plan allows.
        Under an RMS it is the RMS that grants it (a node a rank) or not.

        Raises:
            ValueError: fewer than 1.
        """
        if ranks < 1:
            raise ValueError(f"expected a request of at least 1 rank, got {ranks}")
        self.asked = ranks

    def loop(self, steps: int) -> Iterator[int]:
        """Yield the steps that are left of ``steps``, in the block of :func:`dmr.malleable`.

        Raises:
            RuntimeError: the library has the loop already (:func:`dmr.run`).
        """
        if self.turns is None:
            raise RuntimeError("expected run.loop in a block of dmr.malleable")
        return self.turns(steps)

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
    with running(app, runtime, plan or Plan()) as (state, turns):
        for _ in turns:
            app.step(state)
        app.finish(state)
    return state


@contextlib.contextmanager
def running(app: Application, runtime: Runtime, plan: Plan) -> Iterator[tuple[Run, Iterator[int]]]:
    """Enter the run at the step where this world takes it up; its steps are the caller's loop.

    The block is entered by every world, left at its end by the last alone: in all others the
    loop raises :class:`dmr.resize.source.Left`, a ``SystemExit``.
    """
    runtime.forget_completion()
    comm, internal_comm = runtime.comm.Dup(), runtime.comm.Dup()
    state = None
    try:
        with ending(runtime, comm) as end, _sigterm() as sigterm_received:
            if runtime.rendezvous is not None:
                runtime.rendezvous.reached()
            with giving_way(runtime, RankMessages(internal_comm, 0)):
                specs = dict(app.fields())
                auto = plan.strategy == "auto" and runtime.strategy == "auto"
                plan = _check(plan, runtime, specs, stays=app.stays)
                _check_backends(plan, app.backends)
                state = _enter(app, runtime, (comm, internal_comm), specs, plan)
                state.auto = auto
            end.watch(state.progress, state.world.comm)
            with _linked(state, plan):
                yield state, driver.loop(app, state, plan, sigterm_received, end)
    finally:
        if state is not None and state.checkpoint_lock is not None:
            state.checkpoint_lock.release()
        if not sys.is_finalizing() and not MPI.Is_finalized():
            last = (
                (comm, internal_comm)
                if state is None
                else (state.world.comm, state.world.internal_comm)
            )
            for one in last:
                if one != MPI.COMM_NULL:
                    disconnect(one)


@contextlib.contextmanager
def _linked(state: Run, plan: Plan) -> Iterator[None]:
    """Keep rank 0 in touch with the RMS that launched this world, if one did."""
    manager = state.runtime.manager
    if manager is not None and state.world.rank == 0:
        groups = tuple(state.progress.groups)
        restarts = plan.restart and plan.checkpoint is not None
        state.rms = RmsClient(
            manager, state.progress.wish, plan.strategy, groups, plan.cooldown_s, restarts
        )
    try:
        yield
    finally:
        if state.rms is not None:
            state.rms.close()


def _check(plan: Plan, runtime: Runtime, specs: Mapping[str, FieldSpec], *, stays: bool) -> Plan:
    """Return the plan with a strategy that can be had here."""
    if runtime.uncoordinated_copies:
        raise UsageError(
            f"expected one world of ranks, got {runtime.uncoordinated_copies + 1} copies "
            "that know nothing of one another: start it by mpirun, or by srun --mpi=pmi2 where "
            "Slurm has that"
        )
    if plan.every < 1:
        raise UsageError(f"expected a resize point every 1 or more steps, got {plan.every}")
    if runtime.script and runtime.manager is None and not plan.resizes:
        try:
            resizes, backends = parse_resizes(runtime.script, f"{SCRIPT_VARIABLE} ")
        except ValueError as error:
            raise UsageError(str(error)) from None
        plan = dataclasses.replace(plan, resizes=resizes, backends=backends)
    if plan.resizes and runtime.manager is not None:
        raise UsageError("expected no scripted resizes under an RMS, which decides them itself")
    check_plan(plan.limits, plan.sizes)
    cooldown_s = max(check_cooldown(plan.cooldown_s), check_cooldown(runtime.cooldown or 0))
    for ranks in plan.resizes.values():
        check_size(ranks, plan.limits)
    for ranks in (runtime.comm.size, *plan.resizes.values()):
        grid_for(ranks, list(specs.values()))
    asked_for = runtime.strategy if plan.strategy == "auto" else plan.strategy
    strategy = strategies.choose(asked_for, runtime, asked=bool(plan.resizes))
    if strategy == "merge" and not stays:
        raise UsageError(driver.NO_BUILD)
    return dataclasses.replace(plan, strategy=strategy, cooldown_s=cooldown_s)


def _check_backends(plan: Plan, known: tuple[str, ...]) -> None:
    for step, name in plan.backends.items():
        if name not in known:
            among = ", ".join(known) or "none (Application.backends)"
            raise UsageError(f"expected a backend of {among}, got {name!r}")
        if step not in plan.resizes:
            raise UsageError(f"expected a resize where the backend changes, at step {step}")


def _enter(
    app: Application,
    runtime: Runtime,
    comms: tuple[MPI.Intracomm, MPI.Intracomm],
    specs: Mapping[str, FieldSpec],
    plan: Plan,
) -> Run:
    """Return the state this world starts from: moved, read, or initial."""
    comm, internal_comm = comms
    world = World(comm, internal_comm, 0, grid_for(comm.size, list(specs.values())))
    fields = _allocate(world, specs)
    fresh = Progress(groups=[(runtime.launch, comm.size)])
    state = Run(runtime, world, fields, fresh, restored=runtime.rendezvous is not None)
    state.connects = strategies.meets(runtime)
    if runtime.rendezvous is not None:
        Newcomer(app, state, plan).take_over()
        return state
    if plan.checkpoint is not None:
        state.checkpoint_lock = checkpoint.lock(plan.checkpoint, world)
    try:
        _restore_or_initialise(state, plan)
    except BaseException:
        if state.checkpoint_lock is not None:
            state.checkpoint_lock.release()
        raise
    return state


def _restore_or_initialise(state: Run, plan: Plan) -> None:
    """Set the fields of a job's first world: from a checkpoint if asked for, else initial."""
    world, fields = state.world, state.fields
    if plan.restart and plan.checkpoint is not None:
        log = state.runtime.log
        progress = checkpoint.restore(plan.checkpoint, world, fields, plan.options, log)
        if progress is not None:
            progress.groups = state.progress.groups
            state.progress, state.restored = progress, True
            return
    elif plan.checkpoint is not None:
        checkpoint.refuse_others(plan.checkpoint, world)
    error = None
    for name, block in fields.items():
        try:
            block.initialise()
        except ValueError as problem:
            error = error or f"field {name}: {problem}"
    agree(world.comm, error)


def _allocate(world: World, specs: Mapping[str, FieldSpec]) -> dict[str, Field]:
    """Return this rank's blocks; arrays of the application's own may not fit (collective)."""
    fields: dict[str, Field] = {}
    problem = None
    try:
        fields = world.allocate(specs)
    except (ValueError, MemoryError) as error:
        problem = str(error) or type(error).__name__
    agree(world.comm, problem)
    return fields


@contextlib.contextmanager
def _sigterm() -> Iterator[list[int]]:
    """Collect SIGTERM in a list that the next resize point looks at.

    A rank that has left keeps ignoring it: killed by it while it ends, it would look to mpiexec
    like a failure and take the new world with it.
    """
    sigterm_received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: sigterm_received.append(number))
    try:
        yield sigterm_received
    except Left:
        previous = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
