"""Entering a run, in any world, and leaving it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from mpi4py import MPI

from dmr.application import Program, Run, RunState
from dmr.boot.environment import (
    COLLECTIVE_VARIABLE,
    RATE_VARIABLE,
    SCRIPT_VARIABLE,
    SIGTERM_VARIABLE,
    STRATEGY_VARIABLE,
    Runtime,
)
from dmr.boot.spawn import host_of_rank
from dmr.data.distributed import Distributed, Spec
from dmr.errors import Left, UsageError, raise_on_all
from dmr.loop.driver import NO_BUILD, Driver, enter_copies, record_end
from dmr.loop.termination import Ending, ending
from dmr.plan import (
    AUTO,
    Plan,
    Schedule,
    check_plan,
    check_rate,
    check_schedules,
    check_seconds,
    check_size,
    parse_resizes,
)
from dmr.resize import strategy as strategies
from dmr.state.progress import Progress
from dmr.system.watch import WATCH
from dmr.world import World, decompositions_for, disconnect
from rms.wire.messages import (
    COOLDOWN_VARIABLE,
    KEEPERS_VARIABLE,
    MEMORY_VARIABLE,
    MTBF_VARIABLE,
    SUPERVISOR_VARIABLE,
)

if TYPE_CHECKING:
    from dmr.memory.copies import Copies
    from dmr.resize.replace import NewWorld
    from dmr.wire.channel import Header

_blocks = itertools.count()
"""Numbers of the blocks that this process has entered."""

BLOCK, START = "dmr.malleable", "the start of the block"
"""Places in the messages of :mod:`dmr.system.watch`."""


@contextlib.contextmanager
def running(app: Program, runtime: Runtime, plan: Plan) -> Iterator[tuple[Run, Driver]]:
    """Enter the run at the step where this world takes it up; the driver has its loops.

    Every world enters the block, the last one alone leaves it at its end: in all others the loop
    raises :class:`dmr.errors.Left`, a ``SystemExit``.
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
        _entered(app, runtime, plan, sigterm) as run_and_driver,
    ):
        yield run_and_driver


def _limits(plan: Plan, runtime: Runtime) -> tuple[float, float]:
    """Return the timeouts of collective calls, and from SIGTERM to a resize point."""
    with _naming(runtime, COLLECTIVE_VARIABLE) as text:
        collective_s = check_seconds(text or plan.collective_s, "collective_s", positive=True)
    with _naming(runtime, SIGTERM_VARIABLE) as text:
        return collective_s, check_seconds(text or plan.sigterm_s, "sigterm_s", positive=True)


@contextlib.contextmanager
def _naming(runtime: Runtime, name: str, *, ignored: bool = False) -> Iterator[str]:
    """Give the text of an environment variable, and name the variable in the errors of it."""
    text = "" if ignored else runtime.env.get(name, "")
    try:
        yield text
    except UsageError as error:
        if not text:
            raise
        raise UsageError(f"{name}={text}: {error}") from None


@contextlib.contextmanager
def _entered(
    app: Program, runtime: Runtime, plan: Plan, sigterm: list[int]
) -> Iterator[tuple[Run, Driver]]:
    launch_comm = runtime.launch_comm or runtime.comm
    WATCH.query_on(runtime.comm)
    with WATCH.within(BLOCK):
        # No Dup of a comm of several launches: an extra communicator would keep a launch from
        # leaving.
        comm = runtime.comm if runtime.launches else runtime.comm.Dup()
        world = World(comm, runtime.comm.Dup(), 0, {})
        runtime.probed = world.internal_comm.bcast(runtime.probed)
    run = None
    try:
        with ending(runtime, world.internal_comm) as end:
            runtime.forget_completion()
            with _giving_way(runtime, world):
                specs = dict(app.fields())
                state = RunState(launch_comm, sigterm, strategies.accept_connect_works(runtime))
                wanted = runtime.env.get(STRATEGY_VARIABLE, "auto")
                state.auto = plan.strategy == "auto" and wanted == "auto"
                state.rehearses = not plan.resizes  # else the program has planned them
                plan = _check(plan, runtime, specs, app)
                decompositions = decompositions_for(world.size, specs)
                world = dataclasses.replace(world, decompositions=decompositions)
                _load(plan, runtime)
                specs = _agreed(world, specs, plan)
                run = _first_state(app, runtime, world, specs, plan, state)
            end.watch(run.progress, run.world.internal_comm)
            with _rms_client(run, plan):
                if KEEPERS_VARIABLE in runtime.env:
                    enter_copies(run)
                driver = Driver(app, run, plan, end)
                driver.report_done(runtime.clock())
                yield run, driver
            record_end(app, run)
    except Left:
        runtime.comm, WATCH.left = launch_comm, True
        raise
    finally:
        if run is not None:
            world = run.world
            if run.internal.copies is not None:
                run.internal.copies.close()
            if run.internal.checkpoint_lock is not None:
                run.internal.checkpoint_lock.release()
            run.internal.free_carts()
            for block in run.fields.values():
                block.join(None)
        WATCH.query_on(None)
        with WATCH.within("MPI_Comm_disconnect", alone=True):
            for comm in (world.comm, world.internal_comm):
                finalized = sys.is_finalizing() or MPI.Is_finalized()
                if not finalized and comm not in (MPI.COMM_NULL, runtime.comm):
                    disconnect(comm)


@contextlib.contextmanager
def _giving_way(runtime: Runtime, world: World) -> Iterator[None]:
    """Let no error of a world that is to take over end the running one."""
    if runtime.rendezvous is not None:
        runtime.rendezvous.reached()
    try:
        yield
    except Exception as error:
        if runtime.rendezvous is None:
            raise
        from dmr.resize.side import give_way
        from dmr.wire.ranks import RankMessages

        give_way(runtime, RankMessages(world.internal_comm, 0), error)


def _load(plan: Plan, runtime: Runtime) -> None:
    """Load the modules of a resize: during a resize that would add to its stall."""
    if runtime.manager is not None or plan.strategy == "merge":
        import_module("dmr.resize.merge")
    elif plan.resizes:
        import_module("dmr.resize.replace")
    if plan.checkpoint is not None or plan.strategy == "restart":
        from dmr.checkpoint import store

        if plan.strategy == "restart":
            store.prepare()


@contextlib.contextmanager
def _rms_client(run: Run, plan: Plan) -> Iterator[None]:
    """Have rank 0 poll the RMS that launched this world, if one did."""
    manager, progress = run.runtime.manager, run.progress
    if manager is not None and run.world.rank == 0:
        from dmr.wire.rms import RmsClient

        run.internal.rms = RmsClient(
            manager,
            progress.answered_request,
            plan.strategy,
            tuple(progress.launches),
            plan.cooldown_s,
            step=progress.step,
            restarts=plan.restart and plan.checkpoint is not None,
            superseded=WATCH.supersede,
        )
    try:
        yield
    finally:
        if run.internal.rms is not None:
            run.internal.rms.close()


def _check(plan: Plan, runtime: Runtime, specs: Mapping[str, Spec], app: Program) -> Plan:
    """Return the plan with the settings of the environment and a strategy that works here."""
    if runtime.uncoordinated_copies:
        raise UsageError(
            f"expected one world of ranks, got {runtime.uncoordinated_copies + 1} copies "
            "that know nothing of one another: start it by mpirun, or by srun --mpi=pmi2 where "
            "Slurm has that"
        )
    for name, spec in specs.items():
        if not isinstance(spec, Spec):
            raise UsageError(
                f"field {name!r}: expected dmr.adapt(array, shape, ...), a FieldSpec or a "
                f"ListSpec, got {type(spec).__name__}"
            )
    if plan.every < 1:
        raise UsageError(f"expected a resize point every 1 or more steps, got {plan.every}")
    scripts = not plan.resizes and runtime.manager is None
    with _naming(runtime, SCRIPT_VARIABLE, ignored=not scripts) as script:
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
    check_schedules(plan.checkpoint, plan.memory, plan.partners)
    with _naming(runtime, MEMORY_VARIABLE) as text:
        if text:
            is_auto = text == AUTO
            own_s = 0.0 if is_auto else check_seconds(text, "an interval of copies", positive=True)
            plan = dataclasses.replace(plan, memory=Schedule(every_s=AUTO if is_auto else own_s))
    with _naming(runtime, RATE_VARIABLE) as text:
        rate = text or plan.partner_gb_s
        plan = dataclasses.replace(plan, partner_gb_s=None if rate is None else check_rate(rate))
    with _naming(runtime, COOLDOWN_VARIABLE) as cooldown:
        cooldown_s = max(
            check_seconds(plan.cooldown_s, "a cooldown"),
            check_seconds(cooldown or 0, "a cooldown"),
        )
    with _naming(runtime, STRATEGY_VARIABLE, ignored=plan.strategy != "auto") as named:
        wanted = named or plan.strategy
        strategy = strategies.choose(wanted, runtime, scripted=bool(plan.resizes))
        if strategy == "merge" and not app.supports_merge:
            if not runtime.launches:
                raise UsageError(NO_BUILD)
            strategy = "warm"
    plan = dataclasses.replace(plan, strategy=strategy, cooldown_s=cooldown_s)
    if runtime.check is not None:  # each run of dmr check begins at step 0
        plan = dataclasses.replace(plan, checkpoint=None, memory=None, restart=False)
    return plan


def _check_backends(plan: Plan, backends: tuple[str, ...]) -> None:
    for step, name in plan.backends.items():
        if name not in backends:
            among = ", ".join(backends) or "none (Application.backends)"
            raise UsageError(f"expected a backend of {among}, got {name!r}")
        if step not in plan.resizes:
            raise UsageError(f"expected a resize where the backend changes, at step {step}")


def _agreed(world: World, specs: Mapping[str, Spec], plan: Plan) -> dict[str, Spec]:
    """Return the specs with the halos of all ranks, which may differ (collective).

    Raises:
        UsageError: the ranks have different plans or fields.
    """
    names = ("every", "checkpoint", "memory", "partners", "partner_gb_s", "restart")
    shared = {name: getattr(plan, name) for name in names}
    with WATCH.within(BLOCK):
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
    halos = [own for own, _ in ranks]
    other = next((rank for rank, own in enumerate(halos) if own.keys() != halos[0].keys()), None)
    if other is not None:
        raise UsageError(
            f"expected the same fields on all ranks, got {', '.join(halos[0]) or 'none'} on rank 0 "
            f"and {', '.join(halos[other]) or 'none'} on rank {other}"
        )
    return {
        name: spec.agreed(name, world.decompositions[name], [own[name] for own in halos])
        for name, spec in specs.items()
    }


def _first_state(
    app: Program,
    runtime: Runtime,
    world: World,
    specs: Mapping[str, Spec],
    plan: Plan,
    state: RunState,
) -> Run:
    """Return the state from which this world starts: moved, read, or initial (collective)."""
    fields: dict[str, Distributed] = {}
    problem = None
    try:
        fields = world.allocate(specs)
    except (ValueError, MemoryError) as error:
        problem = str(error) or type(error).__name__
    raise_on_all(world.internal_comm, problem)
    for block in fields.values():
        block.join(world.internal_comm)
    progress = Progress(launches=[*runtime.launches] or [(runtime.launch, world.size)])
    taking_over = runtime.rendezvous is not None
    run = Run(runtime, world, fields, progress, restored=taking_over, internal=state)
    _connect_keepers(run, plan)
    if taking_over:
        from dmr.resize.replace import take_over

        take_over(app, run, plan, _join)
        return run
    try:
        with WATCH.within(START, patient=True):
            if plan.checkpoint is not None:
                _lock(run, plan.checkpoint)
            if state.copies is not None and state.copies.life:
                _restore_after_death(run, plan, state.copies)
            elif plan.checkpoint is not None:
                _restore(run, plan, plan.checkpoint)
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


def _join(new: NewWorld, header: Header, port: str, on_host: bool) -> None:
    from dmr.resize.merge import join_world

    join_world(new, header, port, on_host)


def _lock(run: Run, schedule: Schedule) -> None:
    """Lock the folder of checkpoints (collective)."""
    from dmr.checkpoint import store

    run.internal.checkpoint_lock = store.lock(schedule, run.world, run.runtime.run_of_job)


def _restore(run: Run, plan: Plan, schedule: Schedule) -> None:
    """Restore the newest checkpoint if the plan has it (collective)."""
    from dmr.checkpoint import store

    if not plan.restart:
        store.refuse_others(schedule, run.world)
        return
    _read_newest(run, plan, schedule)


def _read_newest(run: Run, plan: Plan, schedule: Schedule) -> None:
    """Restore the newest whole checkpoint of a folder, if it has one (collective)."""
    from dmr.checkpoint import store

    log = run.runtime.log
    progress = store.restore(schedule, run.world, run.fields, plan.options, log)
    if progress is not None:
        _go_on_from(run, progress)


def _go_on_from(run: Run, progress: Progress) -> None:
    progress.launches = run.progress.launches
    run.progress, run.restored = progress, True


# --- copies in memory ---------------------------------------------------------------------------


def _connect_keepers(run: Run, plan: Plan) -> None:
    """Let the keeper of this host know of this rank, under a supervisor (collective)."""
    runtime, comm = run.runtime, run.world.internal_comm
    text = runtime.env.get(KEEPERS_VARIABLE, "")
    if not text or runtime.check is not None:
        if plan.memory is not None:
            run.note(
                "note: no copies in memory: expected the program to be started by dmr run, "
                "or in a job with --survive"
            )
        return
    from dmr.memory import copies, keeper
    from dmr.memory.steps import StepsFile

    mtbf_s = copies.MTBF_S
    with _naming(runtime, MTBF_VARIABLE) as text_h:
        if text_h:
            mtbf_s = 3600.0 * check_seconds(text_h, "a time between failures", positive=True)
    terms = copies.Terms(
        plan.memory or copies.DEFAULT,
        plan.partners,
        plan.options,
        plan.limits,
        plan.sizes,
        mtbf_s,
        math.inf if plan.partner_gb_s is None else 1e9 * plan.partner_gb_s,
    )
    try:
        places = keeper.places_of(text)
        life = int(runtime.env.get(SUPERVISOR_VARIABLE, "0"))
    except ValueError as error:
        raise UsageError(f"{KEEPERS_VARIABLE}: {error}") from None
    own = copies.own_place(places, host_of_rank(runtime.env))
    if not comm.allreduce(own is not None, MPI.LAND):
        run.note("note: no copies in memory: expected a keeper on every host (dmr run --hosts)")
        return
    block = next(_blocks)
    run.internal.copies = copies.Copies(
        places, own or 0, life, block, terms, runtime.clock, run.note
    )
    try:
        run.internal.steps = StepsFile(places[own or 0].folder, life)
        run.internal.copies.connect()
    except OSError as error:  # the folder is gone, with its keeper
        WATCH.abandon(f"expected the folder of a keeper, got: {error}")
    except keeper.KeeperError as error:
        WATCH.abandon(str(error))


def _restore_after_death(run: Run, plan: Plan, own: Copies) -> None:
    """Go on from the newest copy in memory, else from the newest checkpoint (collective).

    A run that had no complete copy starts at the beginning.

    Raises:
        UsageError: the copies are lost, and there is no checkpoint.
    """
    comm, constants = run.world.internal_comm, [b for b in run.fields.values() if b.spec.constant]
    restored = own.restore(run.world, run.fields)
    if restored.progress is not None:
        for block in constants:
            block.initialise()
        _go_on_from(run, restored.progress)
        before = dict(run.progress.constants)
        _hash_constants(run)
        if constants:
            from dmr.data import constant

            raise_on_all(comm, constant.problem_with(before, run.progress.constants))
        if run.internal.steps is not None:
            run.internal.steps.restored()
        run.note(f"restored from copies in memory at step {run.step} on {run.world.size} ranks")
        return
    if restored.silent:  # the supervisor notices, too, and starts a world without that host
        WATCH.abandon(restored.silent)
    if restored.lost:
        run.note("note: the copies in memory are lost with their hosts")
    if plan.checkpoint is not None:
        _read_newest(run, plan, plan.checkpoint)
    if restored.lost and not run.restored:
        where = "got no checkpoint" if plan.checkpoint else "got a plan without checkpoints"
        raise UsageError(f"expected a checkpoint to go on from without copies in memory, {where}")


def _initialise(run: Run) -> None:
    problem = None
    for name, block in run.fields.items():
        try:
            block.initialise()
        except ValueError as error:
            problem = problem or f"field {name}: {error}"
    raise_on_all(run.world.internal_comm, problem)


def _hash_constants(run: Run) -> None:
    """Record hashes of the constant fields, for later worlds to compare (collective)."""
    fields = {name: block for name, block in run.fields.items() if block.spec.constant}
    if not fields:
        return
    from dmr.data import constant

    ranks = run.world.internal_comm.allgather(constant.hashes(fields))
    for name, digest in constant.combined(fields, ranks).items():
        if digest == constant.DIFFERS:
            raise UsageError(f"field {name}: expected one constant array, got data {digest}")
        run.progress.constants[name] = digest


@contextlib.contextmanager
def _sigterm() -> Iterator[list[int]]:
    """Collect SIGTERM signals in a list, for the next resize point.

    A rank that has left keeps ignoring SIGTERM: mpiexec would take its death for a failure and end
    the new world too.
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
