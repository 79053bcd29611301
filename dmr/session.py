"""Entering a run, in whichever world this process is, and leaving it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator, Mapping

from mpi4py import MPI

from dmr import checkpoint
from dmr.application import Application, Run, RunState
from dmr.boot.environment import SCRIPT_VARIABLE, Runtime
from dmr.data import constant
from dmr.data.field import Field, FieldSpec
from dmr.digests import digests_of, write_digests
from dmr.driver import NO_BUILD, Driver
from dmr.errors import Left, UsageError, raise_on_all
from dmr.plan import Plan, check_cooldown, check_plan, check_size, parse_resizes
from dmr.progress import Progress
from dmr.resize import strategy as strategies
from dmr.resize.target import Target
from dmr.termination import ending, giving_way
from dmr.wire.ranks import RankMessages
from dmr.wire.rms import RmsClient
from dmr.world import World, disconnect, layouts_for, widest_grid


@contextlib.contextmanager
def running(app: Application, runtime: Runtime, plan: Plan) -> Iterator[tuple[Run, Driver]]:
    """Enter the run at the step where this world takes it up; the driver has its loops.

    The block is entered by every world, left at its end by the last alone: in all others the
    loop raises :class:`dmr.errors.Left`, a ``SystemExit``.
    """
    runtime.forget_completion()
    app.supports_merge = getattr(app, "stays", app.supports_merge)
    launch_comm = runtime.launch_comm or runtime.comm
    # Nothing but the world's own communicators may connect launches: some of them may leave.
    comm = runtime.comm if runtime.launches else runtime.comm.Dup()
    world = World(comm, runtime.comm.Dup(), 0, ())
    run = None
    try:
        with ending(runtime, world.internal_comm) as end, _sigterm() as sigterm_received:
            if runtime.rendezvous is not None:
                runtime.rendezvous.reached()
            with giving_way(runtime, RankMessages(world.internal_comm, 0)):
                specs = dict(app.fields())
                auto = plan.strategy == "auto" and runtime.strategy == "auto"
                rehearses = not plan.resizes  # then those of the surroundings count
                plan = _check(plan, runtime, specs, supports_merge=app.supports_merge)
                _check_backends(plan, app.backends)
                if plan.strategy == "restart":
                    checkpoint.prepare()
                grid = widest_grid(world.size, layouts_for(world.size, specs))
                world = dataclasses.replace(world, grid=grid)
                run = _enter(app, runtime, world, specs, plan)
                run.internal.auto, run.internal.rehearses = auto, rehearses
            end.watch(run.progress, run.world.internal_comm)
            with _rms_client(run, plan):
                yield run, Driver(app, run, plan, sigterm_received, end)
            if runtime.check is not None:
                comm = run.world.internal_comm
                write_digests(runtime.check, comm, run.fields, run.progress)
    except Left:
        runtime.comm = launch_comm
        raise
    finally:
        if run is not None and run.internal.checkpoint_lock is not None:
            run.internal.checkpoint_lock.release()
        if run is not None:
            run.internal.free_carts()
            for block in run.fields.values():
                block.join(None)
        _part(world if run is None else run.world, runtime)


def _part(world: World, runtime: Runtime) -> None:
    """Free a world's communicators, but for one that is still the process's own."""
    if sys.is_finalizing() or MPI.Is_finalized():
        return
    for comm in (world.comm, world.internal_comm):
        if comm not in (MPI.COMM_NULL, runtime.comm):
            disconnect(comm)


@contextlib.contextmanager
def _rms_client(run: Run, plan: Plan) -> Iterator[None]:
    """Keep rank 0 in touch with the RMS that launched this world, if one did."""
    manager = run.runtime.manager
    if manager is not None and run.world.rank == 0:
        progress, restarts = run.progress, plan.restart and plan.checkpoint is not None
        run.internal.rms = RmsClient(
            manager,
            progress.answered_request,
            plan.strategy,
            tuple(progress.launches),
            plan.cooldown_s,
            restarts,
        )
    try:
        yield
    finally:
        if run.internal.rms is not None:
            run.internal.rms.close()


def _check(
    plan: Plan, runtime: Runtime, specs: Mapping[str, FieldSpec], *, supports_merge: bool
) -> Plan:
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
        layouts_for(ranks, specs)
    strategy = runtime.strategy if plan.strategy == "auto" else plan.strategy
    strategy = strategies.choose(strategy, runtime, scripted=bool(plan.resizes))
    if strategy == "merge" and not supports_merge:
        if not runtime.launches:
            raise UsageError(NO_BUILD)
        strategy = "warm"
    return dataclasses.replace(plan, strategy=strategy, cooldown_s=cooldown_s)


def _check_backends(plan: Plan, known: tuple[str, ...]) -> None:
    for step, name in plan.backends.items():
        if name not in known:
            among = ", ".join(known) or "none (Application.backends)"
            raise UsageError(f"expected a backend of {among}, got {name!r}")
        if step not in plan.resizes:
            raise UsageError(f"expected a resize where the backend changes, at step {step}")


def _enter(
    app: Application, runtime: Runtime, world: World, specs: Mapping[str, FieldSpec], plan: Plan
) -> Run:
    """Return the state this world starts from: moved, read, or initial."""
    fields = _allocate(world, specs)
    for block in fields.values():
        block.join(world.internal_comm)
    fresh = Progress(launches=[*runtime.launches] or [(runtime.launch, world.size)])
    state = RunState(
        runtime.launch_comm or runtime.comm, can_connect=strategies.accept_connect_works(runtime)
    )
    taking_over = runtime.rendezvous is not None
    run = Run(runtime, world, fields, fresh, restored=taking_over, internal=state)
    if taking_over:
        Target(app, run, plan).take_over()
        return run
    if plan.checkpoint is not None:
        state.checkpoint_lock = checkpoint.lock(plan.checkpoint, world)
    try:
        _restore_or_initialise(run, plan)
    except BaseException:
        if state.checkpoint_lock is not None:
            state.checkpoint_lock.release()
        raise
    return run


def _restore_or_initialise(run: Run, plan: Plan) -> None:
    """Set the fields of a job's first world: from a checkpoint if asked for, else initial."""
    world, fields = run.world, run.fields
    if plan.restart and plan.checkpoint is not None:
        log = run.runtime.log
        progress = checkpoint.restore(plan.checkpoint, world, fields, plan.options, log)
        if progress is not None:
            progress.launches = run.progress.launches
            run.progress, run.restored = progress, True
            _hash_constants(run)
            return
    elif plan.checkpoint is not None:
        checkpoint.refuse_others(plan.checkpoint, world)
    error = None
    for name, block in fields.items():
        try:
            block.initialise()
        except ValueError as problem:
            error = error or f"field {name}: {problem}"
    raise_on_all(world.internal_comm, error)
    _hash_constants(run)
    if run.runtime.check is not None:
        run.progress.digests = digests_of(world.internal_comm, fields)


def _hash_constants(run: Run) -> None:
    """Note what the fields that never change are, for later worlds to compare (collective)."""
    fields = {name: block for name, block in run.fields.items() if block.spec.constant}
    if not fields:
        return
    found = constant.combined(fields, run.world.internal_comm.allgather(constant.hashes(fields)))
    for name, digest in found.items():
        if digest == constant.DIFFERS:
            raise UsageError(f"field {name}: expected one constant array, got data {digest}")
    run.progress.constants = found


def _allocate(world: World, specs: Mapping[str, FieldSpec]) -> dict[str, Field]:
    """Return this rank's blocks; arrays of the application's own may not fit (collective)."""
    fields: dict[str, Field] = {}
    problem = None
    try:
        fields = world.allocate(specs)
    except (ValueError, MemoryError) as error:
        problem = str(error) or type(error).__name__
    raise_on_all(world.internal_comm, problem)
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
