"""Entering a run, in whichever world this process is, and leaving it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator, Mapping

from mpi4py import MPI

from dmr.application import Application, Run, RunState
from dmr.boot.environment import (
    COLLECTIVE_VARIABLE,
    SCRIPT_VARIABLE,
    SIGTERM_VARIABLE,
    STRATEGY_VARIABLE,
    Runtime,
)
from dmr.checkpoint import store
from dmr.data import constant
from dmr.data.distributed import Distributed, Spec
from dmr.errors import Left, UsageError, raise_on_all
from dmr.loop.driver import NO_BUILD, Driver
from dmr.loop.termination import Ending, ending
from dmr.plan import Plan, check_plan, check_seconds, check_size, parse_resizes
from dmr.resize import strategy as strategies
from dmr.resize.merge import join_world
from dmr.resize.replace import take_over
from dmr.resize.side import giving_way
from dmr.state.progress import Progress
from dmr.system.watch import WATCH
from dmr.wire.ranks import RankMessages
from dmr.wire.rms import RmsClient
from dmr.world import World, decompositions_for, disconnect, widest_grid
from rms.wire.messages import COOLDOWN_VARIABLE

START = "the start of the block"
"""The place of ranks that read a checkpoint or hash their fields; see :mod:`dmr.system.watch`."""


@contextlib.contextmanager
def running(app: Application, runtime: Runtime, plan: Plan) -> Iterator[tuple[Run, Driver]]:
    """Enter the run at the step where this world takes it up; the driver has its loops.

    The block is entered by every world, left at its end by the last alone: in all others the
    loop raises :class:`dmr.errors.Left`, a ``SystemExit``.
    """
    try:
        limits = _limits(plan, runtime)
    except UsageError as error:
        if runtime.comm.rank == 0 and runtime.rendezvous is None:
            with contextlib.suppress(OSError):
                Ending(runtime, runtime.comm).record("FAILED", error.exit_code, str(error))
        raise
    with (
        _sigterm() as sigterm,
        WATCH.running(*limits, sigterm),
        _running(app, runtime, plan, sigterm) as pair,
    ):
        yield pair


def _limits(plan: Plan, runtime: Runtime) -> tuple[float, float]:
    """Return the timeouts of collective calls, and from SIGTERM to a resize point."""
    collective, sigterm = runtime.limits
    with _naming(COLLECTIVE_VARIABLE, collective):
        collective_s = check_seconds(collective or plan.collective_s, "collective_s", positive=True)
    with _naming(SIGTERM_VARIABLE, sigterm):
        return collective_s, check_seconds(sigterm or plan.sigterm_s, "sigterm_s", positive=True)


@contextlib.contextmanager
def _running(
    app: Application, runtime: Runtime, plan: Plan, sigterm: list[int]
) -> Iterator[tuple[Run, Driver]]:
    launch_comm = runtime.launch_comm or runtime.comm
    WATCH.query_on(runtime.comm)
    with WATCH.within("dmr.malleable"):
        # Nothing but the world's own communicators may connect launches: some of them may leave.
        comm = runtime.comm if runtime.launches else runtime.comm.Dup()
        world = World(comm, runtime.comm.Dup(), 0, ())
        runtime.probed = world.internal_comm.bcast(runtime.probed)
    run = None
    try:
        with ending(runtime, world.internal_comm) as end:
            runtime.forget_completion()
            if runtime.rendezvous is not None:
                runtime.rendezvous.reached()
            with giving_way(runtime, RankMessages(world.internal_comm, 0)):
                specs = dict(app.fields())
                auto = plan.strategy == "auto" and runtime.strategy == "auto"
                rehearses = not plan.resizes  # then those of the surroundings count
                plan = _check(plan, runtime, specs, app)
                if runtime.check is not None:  # each run of dmr check begins at step 0
                    plan = dataclasses.replace(plan, checkpoint=None, restart=False)
                if plan.strategy == "restart":
                    store.prepare()
                specs = _agreed(world, specs, plan)
                grid = widest_grid(world.size, decompositions_for(world.size, specs))
                world = dataclasses.replace(world, grid=grid)
                run = _enter(app, runtime, world, specs, plan, sigterm)
                run.internal.auto, run.internal.rehearses = auto, rehearses
            end.watch(run.progress, run.world.internal_comm)
            with _rms_client(run, plan):
                driver = Driver(app, run, plan, end)
                driver.report_done(runtime.clock())
                yield run, driver
            if runtime.check is not None:
                comm = run.world.internal_comm
                with contextlib.suppress(UsageError):
                    app.before_resize(run, run.world.size)
                with WATCH.within("the end of the block", patient=True):
                    from dmr.check.digests import write_digests

                    write_digests(runtime.check, comm, run.fields, run.progress)
    except Left:
        runtime.comm, WATCH.left = launch_comm, True
        raise
    finally:
        if run is not None and run.internal.checkpoint_lock is not None:
            run.internal.checkpoint_lock.release()
        if run is not None:
            run.internal.free_carts()
            for block in run.fields.values():
                block.join(None)
        WATCH.query_on(None)
        with WATCH.within("MPI_Comm_disconnect", alone=True):
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


@contextlib.contextmanager
def _naming(name: str, value: str) -> Iterator[None]:
    """Name an environment variable in the errors of its value; do nothing where it is not set."""
    try:
        yield
    except UsageError as error:
        if not value:
            raise
        raise UsageError(f"{name}={value}: {error}") from None


def _check(plan: Plan, runtime: Runtime, specs: Mapping[str, Spec], app: Application) -> Plan:
    """Return the plan with a strategy that can be had here."""
    if runtime.uncoordinated_copies:
        raise UsageError(
            f"expected one world of ranks, got {runtime.uncoordinated_copies + 1} copies "
            "that know nothing of one another: start it by mpirun, or by srun --mpi=pmi2 where "
            "Slurm has that"
        )
    if plan.every < 1:
        raise UsageError(f"expected a resize point every 1 or more steps, got {plan.every}")
    decompositions_for(runtime.comm.size, specs)
    script = "" if plan.resizes or runtime.manager is not None else runtime.script
    with _naming(SCRIPT_VARIABLE, script):
        if script:
            try:
                resizes, backends = parse_resizes(script)
            except ValueError as error:
                raise UsageError(str(error)) from None
            plan = dataclasses.replace(plan, resizes=resizes, backends=backends)
        for ranks in plan.resizes.values():
            check_size(ranks, plan.limits)
            decompositions_for(ranks, specs)
        _check_backends(plan, app.backends)
    if plan.resizes and runtime.manager is not None:
        raise UsageError("expected no scripted resizes under an RMS, which decides them itself")
    check_plan(plan.limits, plan.sizes)
    with _naming(COOLDOWN_VARIABLE, runtime.cooldown):
        cooldown_s = max(
            check_seconds(plan.cooldown_s, "a cooldown"),
            check_seconds(runtime.cooldown or 0, "a cooldown"),
        )
    named = runtime.strategy if plan.strategy == "auto" and runtime.strategy != "auto" else ""
    with _naming(STRATEGY_VARIABLE, named):
        strategy = strategies.choose(named or plan.strategy, runtime, scripted=bool(plan.resizes))
        if strategy == "merge" and not app.supports_merge:
            if not runtime.launches:
                raise UsageError(NO_BUILD)
            strategy = "warm"
    return dataclasses.replace(plan, strategy=strategy, cooldown_s=cooldown_s)


def _agreed(world: World, specs: Mapping[str, Spec], plan: Plan) -> dict[str, Spec]:
    """Return what all ranks state together: halos may differ from rank to rank (collective)."""
    shared = {"every": plan.every, "checkpoint": plan.checkpoint, "restart": plan.restart}
    with WATCH.within("dmr.malleable"):
        ranks = world.internal_comm.allgather(
            ({name: spec.halos for name, spec in specs.items()}, shared)
        )
    for rank, (_, theirs) in enumerate(ranks):
        for name, value in ranks[0][1].items():
            if theirs[name] != value:
                raise UsageError(
                    f"expected the same {name} of the plan on all ranks, got {value} on rank 0 "
                    f"and {theirs[name]} on rank {rank}"
                )
    halos = [mine for mine, _ in ranks]
    decompositions = decompositions_for(world.size, specs)
    other = next((rank for rank, own in enumerate(halos) if own.keys() != halos[0].keys()), None)
    if other is not None:
        raise UsageError(
            f"expected the same fields on all ranks, got {', '.join(halos[0]) or 'none'} on rank 0 "
            f"and {', '.join(halos[other]) or 'none'} on rank {other}"
        )
    return {
        name: spec.agreed(name, decompositions[name], [own[name] for own in halos])
        for name, spec in specs.items()
    }


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
    world: World,
    specs: Mapping[str, Spec],
    plan: Plan,
    sigterm: list[int],
) -> Run:
    """Return the state this world starts from: moved, read, or initial."""
    fields = _allocate(world, specs)
    for block in fields.values():
        block.join(world.internal_comm)
    fresh = Progress(launches=[*runtime.launches] or [(runtime.launch, world.size)])
    connects = strategies.accept_connect_works(runtime)
    state = RunState(runtime.launch_comm or runtime.comm, sigterm, can_connect=connects)
    taking_over = runtime.rendezvous is not None
    run = Run(runtime, world, fields, fresh, restored=taking_over, internal=state)
    if taking_over:
        take_over(app, run, plan, join_world)
        return run
    try:
        with WATCH.within(START, patient=True):
            if plan.checkpoint is not None:
                state.checkpoint_lock = store.lock(plan.checkpoint, world)
            _restore(run, plan)
        if not run.restored:
            _initialise(run)
        with WATCH.within(START, patient=True):
            _hash_constants(run)
            if runtime.check is not None and not run.restored:
                from dmr.check.digests import digests_of

                run.progress.digests = digests_of(world.internal_comm, fields)
    except BaseException:
        if state.checkpoint_lock is not None:
            state.checkpoint_lock.release()
        raise
    return run


def _restore(run: Run, plan: Plan) -> None:
    """Set the fields of a job's first world from a checkpoint, if the plan has it (collective)."""
    if plan.checkpoint is None:
        return
    if not plan.restart:
        store.refuse_others(plan.checkpoint, run.world)
        return
    log = run.runtime.log
    progress = store.restore(plan.checkpoint, run.world, run.fields, plan.options, log)
    if progress is not None:
        progress.launches = run.progress.launches
        run.progress, run.restored = progress, True


def _initialise(run: Run) -> None:
    """Set the fields of a job's first world to their initial values (collective)."""
    error = None
    for name, block in run.fields.items():
        try:
            block.initialise()
        except ValueError as problem:
            error = error or f"field {name}: {problem}"
    raise_on_all(run.world.internal_comm, error)


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


def _allocate(world: World, specs: Mapping[str, Spec]) -> dict[str, Distributed]:
    """Return this rank's blocks; arrays of the application's own may not fit (collective)."""
    fields: dict[str, Distributed] = {}
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
    sigterm: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: sigterm.append(number))
    try:
        yield sigterm
    except Left:
        previous = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
