"""The loop, and what may happen between two steps: the end, a checkpoint, a resize."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpi4py import MPI

from dmr import checkpoint
from dmr.errors import UsageError
from dmr.plan import check_size, fitting
from dmr.resize.memory import rooms, thrifty, too_small
from dmr.resize.source import RolledBackError, Target, replace
from dmr.termination import Ending, TerminatedError
from rms.wire.messages import ApplicationResizeRequest, Begun, Done, Resize, RolledBack

if TYPE_CHECKING:
    from dmr.application import Application, Plan, Run

FIRST_POLL, POLLS = 4, 256
"""Resize points of a world at which the RMS hears what memory is left: once it is alone."""

NO_BUILD = "strategy merge keeps ranks in their loop; expected build= in dmr.malleable, got none"


def loop(
    app: Application, state: Run, plan: Plan, sigterm_received: list[int], end: Ending
) -> Iterator[int]:
    """Yield every step that is left, once it may be done; act in between."""
    progress, clock = state.progress, state.runtime.clock
    entered = clock() if progress.open_resize is None else progress.open_resize.arrived_at
    steps = _begin(app, state, plan, sigterm_received)
    before = progress.elapsed_s

    while True:
        progress.elapsed_s = before + clock() - entered
        step = progress.step
        if state.rms is not None:
            state.rms.step, state.rms.steps = step, steps
        scripted = plan.resizes.get(step)
        if scripted is not None or step % plan.every == 0:
            if state.auto and state.runtime.manager is not None:
                state.polls += 1
                if state.polls == FIRST_POLL or state.polls % POLLS == 0:
                    _crowded(app, state, plan)
            stop, target = _resize_point(app, state, plan, bool(sigterm_received), scripted)
            if stop:
                _terminate(state, plan)
            if target is not None and _resize(app, state, plan, target, sigterm_received):
                end.watch(progress, state.world.comm)
                steps = _begin(app, state, plan, sigterm_received)
                continue  # as the ranks that have joined: at this resize point once more
        if step >= steps:
            if state.rms is not None:
                state.rms.close()  # nothing is asked of a job that has done its steps
            return
        if plan.checkpoint is not None and plan.checkpoint.due(step) and step > progress.saved_at:
            progress.saved_at = step
            checkpoint.write(
                plan.checkpoint,
                state.world,
                state.fields,
                progress,
                plan.options,
                state.runtime.log,
            )
        yield step
        progress.step += 1


def _begin(app: Application, state: Run, plan: Plan, sigterm_received: list[int]) -> int:
    """Build for the present world, if that is still to do; return the steps of the run."""
    progress = state.progress
    if not state.built:
        app.build(state)
        state.built = True
    steps = app.steps(state)
    if progress.step > steps:
        raise UsageError(
            f"expected at least {progress.step} steps, as the checkpoint has done, got {steps}"
        )
    late = [step for step in plan.resizes if step >= steps]
    if late:
        raise UsageError(f"expected resizes before the last step {steps}, got step {late[0]}")
    if progress.open_resize is not None:
        if progress.open_resize.sigterm_received:
            sigterm_received.append(signal.SIGTERM)
        wish = progress.open_resize.wish
        now = state.runtime.clock()
        record = progress.close_resize(now)
        state.rests_until = now + plan.cooldown_s
        state.say(_describe(record))
        if state.rms is not None:
            state.rms.launches = tuple(progress.groups)
            if wish:
                worlds = tuple(launch for launch, _ in progress.groups)
                state.rms.report(Done(wish, record, worlds))
        app.after_resize(state, record)
    return steps


def _resize_point(
    app: Application, state: Run, plan: Plan, sigterm_received: bool, scripted: int | None
) -> tuple[bool, Target | None]:
    """Agree on whether to stop and on what to become.

    Most often there is nothing: one reduction of one number, which takes two thirds of the time
    that one of four does. Those follow where a rank has something to say.

    A wish goes before a scripted resize, and that before a request. The wish of an RMS is known
    to rank 0 only; it is sent round where there is one. What comes in a cooldown waits, scripted
    resizes aside.
    """
    world, rms = state.world, state.rms
    rests = state.rests_until > 0.0 and state.runtime.clock() < state.rests_until
    wish = None if rms is None or rests else rms.request
    stop, number, asked = sigterm_received, 0 if wish is None else wish.number, state.asked
    if world.size > 1:
        news, flags = state.news, state.flags
        news[0] = stop or number or asked
        world.comm.Allreduce(MPI.IN_PLACE, news, MPI.MAX)
        if news[0]:
            flags[0], flags[1], flags[2], flags[3] = stop, number, asked, rests
            world.comm.Allreduce(MPI.IN_PLACE, flags, MPI.MAX)
            stop, number, asked = bool(flags[0]), int(flags[1]), int(flags[2])
            rests = bool(flags[3])
    if number:
        wish = world.internal_comm.bcast(wish)
        return stop, Target(len(wish.slots), wish.strategy, wish.slots, number, wish.worlds)
    if asked and scripted is None and not rests:
        scripted = _requested(state, plan, asked)
    backend = plan.backends.get(state.step, "")
    changes = bool(backend) and backend != state.runtime.backend
    if scripted is None or (scripted == world.size and not changes):
        return stop, None
    # Ranks that stay would go on with the backend they have.
    strategy = "spawn" if changes and plan.strategy == "merge" else plan.strategy
    if state.auto and not changes and _crowded(app, state, plan):
        strategy = thrifty(strategy, scripted, state.progress.groups, stays=app.stays)
    return stop, Target(scripted, strategy, backend=backend)


def _crowded(app: Application, state: Run, plan: Plan) -> bool:
    """Return whether a second copy of this world would not fit beside it (collective).

    Said where it has changed; the RMS is told what to do about it.
    """
    world = state.world
    mine = rooms(MPI.Get_processor_name(), state.fields)
    why = too_small([room for each in world.internal_comm.allgather(mine) for room in each])
    was, state.crowded = state.crowded, why is not None
    best = plan.strategy
    if why is not None:
        joins = state.runtime.manager is None or state.connects
        best = thrifty(best, 0, state.progress.groups, stays=app.stays and joins)
    if state.crowded != was:
        state.say(
            f"strategy {best} from here on: "
            + (f"{why}" if why is not None else "a second copy of this world fits again")
            + ("; a resize may be rolled back for it" if why and best == plan.strategy else "")
        )
    if state.rms is not None and state.connects:
        state.rms.strategy = best
    return state.crowded


def _resize(
    app: Application, state: Run, plan: Plan, target: Target, sigterm_received: list[int]
) -> bool:
    """Replace the world; return whether this rank is in the new one (strategy merge)."""
    rms = state.rms
    if rms is not None and target.wish:
        rms.report(Begun(target.wish))
    try:
        check_size(target.ranks, plan.limits)
        if target.strategy == "merge" and not app.stays:
            raise UsageError(NO_BUILD)
        app.before_resize(state, target.ranks)
        replace(app, state, plan, target, sigterm_received)
        return True
    except (UsageError, RolledBackError) as error:
        why = str(error)
    state.say(f"resize to {target.ranks} ranks rolled back: {why}")
    if not state.built:  # ranks that were to stay had built for the new world already
        gc.collect()  # what is left of that: there may be no room for both
        app.build(state)
        state.built = True
    state.progress.wish = max(state.progress.wish, target.wish)
    if plan.cooldown_s:
        state.rests_until = state.runtime.clock() + plan.cooldown_s
    if rms is not None:
        if not state.connects and rms.strategy in ("warm", "merge"):
            rms.strategy = "restart"  # the one that needs no connection
        if target.wish:
            rms.report(RolledBack(target.wish, why, rms.strategy))
    app.after_resize(state, None)
    return False


def _requested(state: Run, plan: Plan, asked: int) -> int | None:
    """Answer the application's own request: now, or by passing it on to the RMS."""
    state.asked = 0
    ranks = fitting(asked, plan.limits, plan.sizes)
    if state.runtime.manager is None:
        return ranks
    if state.rms is not None and ranks != state.world.size:
        state.rms.report(ApplicationResizeRequest(ranks))
    return None


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
