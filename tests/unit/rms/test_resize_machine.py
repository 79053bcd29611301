"""The resize machine: what is done in every state, at every deadline, after every failure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rms.core.model.events import ResizeBegun, Resized, ResizeRolledBack
from rms.core.model.jobs import JobId
from rms.daemon.jobs import machine
from rms.daemon.jobs.machine import (
    LATER_S,
    LEAVE_S,
    MOVE_S,
    READY_S,
    Input,
    ResizeContext,
    ResizeMachine,
)
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.jobs.worlds import Worlds
from rms.daemon.store.context import Context
from rms.daemon.store.notes import SubmissionNote
from rms.daemon.store.record import JobRuntime, Step
from rms.launch.base import LaunchCommand, ManagedProcess
from rms.wire.messages import (
    Begun,
    BootedWorld,
    CompletionRecord,
    Done,
    Failed,
    Ready,
    ResizeReport,
    RolledBack,
)

JOB = JobId("7")
HAVE, WANTED = ("n1/core:0",), ("n1/core:0", "n2/core:0")
MACHINE = ResizeMachine(boot_s=60.0, grace_s=10.0)
COMMAND = LaunchCommand(["a.out"], "/", {}, "out", "out")
OBSERVED = machine.Observed({}, frozenset())
RESIZE = ResizeReport(5, 1, 2, "warm", 1.0, 0.5, 0.1, 8, 1.0)
STATES = (
    "requested",
    "granting",
    "booting",
    "ready",
    "moving",
    "leaving",
    "closing",
    "releasing",
    "stopping",
    "starting",
)


def facts(now_s: float = 100.0, *, begun: bool = False, requested: bool = True) -> ResizeContext:
    return ResizeContext(now_s, now_s, HAVE, WANTED if requested else None, begun)


def job(strategy: str = "warm", **step: object) -> JobRuntime:
    """Return a job with one world, launch 0, on one node."""
    line = Step(COMMAND, {0: ManagedProcess(10)}, current=(0,), strategy=strategy, ranks=((0, 1),))
    for name, value in step.items():
        setattr(line, name, value)
    return JobRuntime(JOB, steps=[line], keys=["k"], launch_count=1)


def fed(to: JobRuntime, *given: Input, at_s: float = 100.0) -> list[machine.Instruction]:
    """Feed inputs; return the instructions on the last."""
    found: list[machine.Instruction] = []
    for each in given:
        found = MACHINE.handle(to, facts(at_s), each)
    return found


def words(found: list[machine.Instruction]) -> list[str]:
    return [
        each.name.title().replace("_", "") if isinstance(each, machine.Act) else type(each).__name__
        for each in found
    ]


def states(found: list[machine.Instruction]) -> list[str]:
    """Return the states that are noted."""
    return [
        "" if each.note is None else each.note.state
        for each in found
        if isinstance(each, machine.SaveResize)
    ]


DECIDED = machine.Decided(1, WANTED)
NOBODY_TO_ASK = machine.CallAnswered()
READY = Ready(1, 1, "addr", "port")


def booting(strategy: str = "warm") -> JobRuntime:
    found = job(strategy)
    fed(found, DECIDED, NOBODY_TO_ASK, machine.Booted({1: 11}))
    found.steps[0].worlds[1] = ManagedProcess(11)
    return found


def in_state(state: str) -> JobRuntime:
    """Return a job whose resize has come so far, by the way it comes there."""
    found = job("spawn") if state == "requested" else job(restartable=True)
    if state == "requested":
        fed(found, DECIDED, NOBODY_TO_ASK)
    elif state == "granting":
        fed(found, DECIDED, machine.CallStarted())
        found.call = lambda: None
    elif state in ("stopping", "starting"):
        fed(found, decided(refusal="fixed nodes"))
        if state == "starting":
            record = CompletionRecord("CANCELLED", 0, "", 42, 1, 1)
            fed(found, machine.WorldEnded(record), machine.ScriptEnded())
            found.steps.append(Step(COMMAND, {1: ManagedProcess(12)}, current=(1,)))
    else:
        found = booting()
        after = ("ready", "moving", "leaving", "releasing")
        if state in after:
            fed(found, READY)
        if state in after[1:]:
            fed(found, Begun(1))
        if state in after[2:]:
            fed(found, Done(1, RESIZE, (1,)))
        if state == "releasing":
            fed(found, machine.Observed({}, frozenset([0])))
            found.call = lambda: None
        if state == "closing":
            fed(found, Failed(1, 1, "no memory"))
    assert found.resize is not None and found.resize.state == state
    return found


def decided(**changes: str) -> machine.Decided:
    return machine.Decided(DECIDED.number, DECIDED.slots, **changes)


# --- the way to a commit -------------------------------------------------------------------------


def test_whoever_owns_the_nodes_is_asked_first() -> None:
    found = job()
    assert fed(found, DECIDED) == [machine.AskGrant(("n1",), ("n1", "n2"))]
    assert (found.resizing, found.request) == ("", None)
    given = fed(found, machine.CallStarted())
    assert words(given) == ["SaveResize"] and states(given) == ["granting"]
    assert found.resizing == "granting"


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("strategy", ["warm", "restart"])
def test_a_world_boots_beside_the_running_one(strategy: str, asked: bool) -> None:
    found = job(strategy)
    fed(found, DECIDED, *([machine.CallStarted()] if asked else []))
    given = fed(found, machine.CallAnswered(), at_s=100.0)
    assert words(given) == ["SaveSteps", "SaveResize", "BootWorlds"]
    assert given[-1] == machine.BootWorlds(0, {1: WANTED}, 1, ())
    resize = found.resize
    assert resize is not None
    assert (resize.state, resize.begun_s, resize.until_s) == ("booting", 100.0, 160.0)
    assert found.launch_count == 2
    assert states(fed(found, machine.Booted({1: 11}))) == ["booting"]
    assert resize.new.pids == {1: 11} and found.request is None


def test_it_boots_on_cores_that_the_running_world_does_not_use() -> None:
    found, given = job(), facts()
    MACHINE.handle(found, given, machine.Decided(1, ("cpu:0", "cpu:1")))
    here = ResizeContext(0.0, 0.0, ("cpu:0",), ("cpu:0", "cpu:1"))
    (*_, boot) = MACHINE.handle(found, here, machine.CallAnswered())
    assert isinstance(boot, machine.BootWorlds) and boot.cores == (1,)


def test_the_job_is_told_when_the_next_world_is_ready() -> None:
    found = booting()
    given = fed(found, READY, at_s=103.0)
    assert words(given) == ["TellJob", "SaveResize"] and states(given) == ["ready"]
    request = found.request
    assert request is not None
    assert (request.number, request.slots, request.strategy) == (1, WANTED, "warm")
    assert request.worlds == (BootedWorld(1, 2, "addr", "port", 3.0),)


def test_the_job_is_told_at_once_where_nothing_is_started_here() -> None:
    found = job("spawn")
    assert fed(found, DECIDED, NOBODY_TO_ASK) == [machine.Act.TELL_JOB]
    assert found.request is not None and found.resizing == ""
    after = job("spawn")
    given = fed(after, DECIDED, machine.CallStarted(), machine.CallAnswered())
    assert words(given) == ["TellJob", "SaveResize"] and states(given) == ["ready"]


def test_moving_begins_once() -> None:
    found = in_state("ready")
    given = MACHINE.handle(found, facts(110.0), Begun(1))
    assert words(given) == ["SaveResize", "ResizeBegun"] and states(given) == ["moving"]
    assert found.resize is not None and found.resize.until_s == 110.0 + MOVE_S
    assert MACHINE.handle(found, facts(111.0, begun=True), Begun(1)) == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_commit(begun: bool) -> None:
    found = in_state("moving" if begun else "ready")
    given = MACHINE.handle(found, facts(120.0, begun=begun), Done(1, RESIZE, (1,)))
    last = ["SaveFinishedResizes", "SaveSteps", "SaveResize", "Observe"]
    assert words(given) == (last if begun else ["SaveResize", "ResizeBegun", *last])
    assert states(given) == ([] if begun else ["moving"]) + ["leaving"]
    resize = found.resize
    assert resize is not None
    assert (resize.committed, resize.leaving, resize.until_s) == (True, [0], 120.0 + LEAVE_S)
    assert found.steps[0].current == (1,) and found.request is None
    assert [(row.at_s, row.from_ranks, row.to_ranks) for row in found.resizes] == [(120.0, 1, 2)]


def test_what_leaves_has_its_time_and_is_killed_then() -> None:
    found = in_state("leaving")
    assert fed(found, OBSERVED, at_s=100.0 + LEAVE_S) == []
    assert fed(found, OBSERVED, at_s=100.5 + LEAVE_S) == [machine.KillLaunch(0)]


def test_nodes_are_given_back_when_the_last_process_is_gone() -> None:
    found = in_state("leaving")
    given = fed(found, machine.Observed({}, frozenset([0])))
    assert words(given) == ["SaveSteps", "SaveResize", "AskRelease"]
    assert given[-1] == machine.AskRelease(("n1", "n2"))
    assert list(found.steps[0].worlds) == [1]
    assert fed(found, machine.CallStarted()) == []
    assert fed(found, machine.CallAnswered()) == [
        machine.SaveResize(None),
        Resized(100.0, JOB, False),
    ]
    assert found.resize is None


def test_a_release_that_fails_is_tried_again() -> None:
    found = in_state("releasing")
    assert fed(found, OBSERVED) == []
    found.call = None
    assert fed(found, machine.CallAnswered("busy")) == [machine.Say("job 7: busy; tried again")]
    assert found.resize is not None
    assert fed(found, OBSERVED) == [machine.AskRelease(("n1", "n2"))]


def test_a_job_rests_after_a_resize() -> None:
    found = in_state("releasing")
    found.steps[0].cooldown_s = 30.0
    assert fed(found, machine.CallAnswered())[-1] == Resized(100.0, JOB, True)
    assert found.rests_until_s == 130.0


# --- merge ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "wanted", "launches", "strategy"),
    [
        (("a",), ("a", "b", "c"), {1: ("b",), 2: ("c",)}, "merge"),  # only what is new
        (("a", "b"), ("a",), {}, "merge"),  # the last launch leaves
        (("a", "b"), ("b",), {1: ("b",)}, "warm"),  # ranks of a launch cannot be parted
        (("a",), ("b", "a"), {1: ("b", "a")}, "warm"),  # in another order
    ],
)
def test_what_a_merge_boots(
    have: tuple[str, ...],
    wanted: tuple[str, ...],
    launches: dict[int, tuple[str, ...]],
    strategy: str,
) -> None:
    found = job("merge", ranks=((0, 1), (5, 1)))
    given = ResizeContext(0.0, 0.0, have, wanted)
    MACHINE.handle(found, given, machine.Decided(1, wanted))
    (*_, last) = MACHINE.handle(found, given, machine.CallAnswered())
    assert found.resize is not None and found.resize.strategy == strategy
    if launches:
        assert isinstance(last, machine.BootWorlds) and last.launches == launches
    else:
        assert last == machine.Act.TELL_JOB


def test_all_launches_of_a_merge_must_be_ready() -> None:
    found, given = job("merge"), ResizeContext(0.0, 0.0, ("a",), ("a", "b", "c"))
    MACHINE.handle(found, given, machine.Decided(1, ("a", "b", "c")))
    MACHINE.handle(found, given, machine.CallAnswered())
    assert words(MACHINE.handle(found, given, Ready(1, 2, "x", ""))) == ["SaveResize"]
    assert found.request is None
    assert MACHINE.handle(found, given, Ready(1, 9, "x", "")) == []  # no launch of this resize
    assert words(MACHINE.handle(found, given, Ready(1, 1, "y", ""))) == ["TellJob", "SaveResize"]
    assert found.request is not None
    assert [world.launch for world in found.request.worlds] == [1, 2]


# --- the strategy --------------------------------------------------------------------------------


def test_a_users_strategy_is_of_one_resize() -> None:
    found = job("warm")
    fed(found, decided(strategy="spawn"))
    assert found.resize is not None and found.resize.strategy == "spawn"
    assert found.steps[0].strategy == "warm"


def test_a_job_without_a_step_does_it_itself() -> None:
    found = JobRuntime(JOB)
    assert fed(found, decided(strategy="warm"), NOBODY_TO_ASK) == [machine.Act.TELL_JOB]


@pytest.mark.parametrize("how", ["signal", "command:sh resize.sh"])
def test_a_job_with_an_adapter_is_told_at_once_and_has_a_deadline_once_it_has_begun(
    how: str,
) -> None:
    found = JobRuntime(JOB, SubmissionNote(resize_by=how, cooldown_s=30.0))
    given = fed(found, decided(strategy="warm"), NOBODY_TO_ASK)
    assert words(given) == ["TellJob", "SaveResize"] and states(given) == ["ready"]
    assert found.request is not None and found.request.worlds == ()
    assert found.request.strategy == how.partition(":")[0]
    assert fed(found, OBSERVED, at_s=1e9) == []
    given = MACHINE.handle(found, facts(110.0), Begun(1))
    assert words(given) == ["SaveResize", "ResizeBegun"] and states(given) == ["moving"]
    late = fed(found, OBSERVED, at_s=111.0 + MOVE_S)
    assert late == [machine.GiveUp(f"no report of its resize for {MOVE_S:g} s")]
    fed(found, Done(1, RESIZE), OBSERVED)
    assert fed(found, NOBODY_TO_ASK) == [machine.SaveResize(None), Resized(100.0, JOB, True)]
    assert found.rests_until_s == 130.0 and found.steps == []


def test_a_job_with_an_adapter_refuses() -> None:
    found = JobRuntime(JOB, SubmissionNote(resize_by="signal"))
    fed(found, DECIDED, NOBODY_TO_ASK, Begun(1), RolledBack(1, "later: not now", "spawn"), OBSERVED)
    *_, last = fed(found, NOBODY_TO_ASK)
    assert last == ResizeRolledBack(100.0, JOB, "later: not now", rests=True, later=True)


def test_a_rollback_says_how_the_job_would_be_resized_next() -> None:
    found = job("warm")
    fed(found, RolledBack(99, "of another time", "restart"))
    assert found.steps[0].strategy == "restart"


# --- rollbacks, in every state -------------------------------------------------------------------


@pytest.mark.parametrize("state", ["granting", "booting", "ready", "moving"])
def test_a_rollback_of_the_job_kills_what_was_booted(state: str) -> None:
    found = in_state(state)
    given = fed(found, RolledBack(1, "no peer", "warm"))
    booted = [] if state == "granting" else ["KillLaunch"]
    assert words(given) == ["SaveResize", *booted] and states(given) == ["closing"]
    assert found.request is None and found.resize is not None
    assert found.resize.reason == "no peer"


def test_a_rollback_of_what_the_job_did_itself_is_over_at_once() -> None:
    found = in_state("requested")
    given = fed(found, RolledBack(1, "no peer", "spawn"))
    assert given == [ResizeRolledBack(100.0, JOB, "no peer", False, False)]
    assert found.resize is None


@pytest.mark.parametrize("state", ["leaving", "closing", "releasing"])
@pytest.mark.parametrize(
    "report", [RolledBack(1, "late", "warm"), Begun(1), Done(1, RESIZE, (1,)), Failed(1, 1, "x")]
)
def test_reports_after_the_fact_change_nothing(state: str, report: Input) -> None:
    found = in_state(state)
    before = msgspec.to_builtins(found.resize)
    assert fed(found, report) == []
    assert msgspec.to_builtins(found.resize) == before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "report",
    [Ready(9, 1, "a", "p"), Failed(9, 1, "x"), Begun(9), Done(9, RESIZE), RolledBack(9, "x", "")],
)
def test_reports_of_another_resize_change_nothing(state: str, report: Input) -> None:
    found = in_state(state)
    before = msgspec.to_builtins(found.resize)
    assert fed(found, report) == []
    assert msgspec.to_builtins(found.resize) == before


@pytest.mark.parametrize("state", ["booting", "ready"])
def test_a_new_world_that_says_that_it_cannot(state: str) -> None:
    found = in_state(state)
    given = fed(found, Failed(1, 1, "no memory"))
    assert words(given) == ["SaveResize", "KillLaunch"] and states(given) == ["closing"]


@pytest.mark.parametrize("state", ["booting", "ready"])
def test_a_new_world_that_ends_too_early(state: str) -> None:
    found = in_state(state)
    fed(found, machine.Observed({1: 9}, frozenset()))
    assert found.resize is not None
    assert found.resize.reason == f"the new world ended with 9 while {state}"


def test_a_launch_that_cannot_be_started() -> None:
    found = job()
    fed(found, DECIDED, NOBODY_TO_ASK)
    given = fed(found, machine.Booted({}, "could not start mpiexec"))
    assert words(given) == ["SaveResize", "KillLaunch"] and states(given) == ["closing"]


def test_a_grant_that_is_refused() -> None:
    found = in_state("granting")
    found.call = None
    assert states(fed(found, machine.CallAnswered("later: busy"))) == ["closing"]
    given = fed(found, OBSERVED)
    assert given[-1] == machine.AskRelease(("n1",))  # what it has, not what it was to have
    given = fed(found, machine.CallAnswered())
    assert given == [
        machine.SaveResize(None),
        ResizeRolledBack(100.0, JOB, "later: busy", True, True),
    ]
    assert found.rests_until_s == 100.0 + LATER_S


def test_a_grant_to_a_job_that_is_told_to_end() -> None:
    found = in_state("granting")
    found.call, found.ending = None, "CANCELLED"
    fed(found, machine.CallAnswered())
    assert found.resize is not None and found.resize.reason == "the job is ending"


def test_a_rollback_while_nodes_are_asked_for_waits_for_the_answer() -> None:
    found = in_state("granting")
    fed(found, machine.StepEnded())
    assert fed(found, OBSERVED) == []
    found.call = None
    assert fed(found, machine.CallAnswered()) == [machine.Act.OBSERVE]
    assert words(fed(found, OBSERVED)) == ["SaveSteps", "SaveResize", "AskRelease"]


def test_a_closed_resize_kills_until_all_is_gone_and_frees_then() -> None:
    found = in_state("closing")
    for _ in range(3):
        assert fed(found, OBSERVED) == [machine.KillLaunch(1)]
    given = fed(found, machine.Observed({}, frozenset([1])))
    assert words(given) == ["SaveSteps", "SaveResize", "AskRelease"]
    assert given[-1] == machine.AskRelease(("n1",))
    given = fed(found, machine.CallAnswered())
    assert given == [
        machine.SaveResize(None),
        ResizeRolledBack(100.0, JOB, "no memory", False, False),
    ]


@pytest.mark.parametrize("state", STATES)
def test_the_end_of_the_step_ends_its_resize(state: str) -> None:
    found = in_state(state)
    given = fed(found, machine.StepEnded())
    assert found.resize is not None
    if state in ("requested", "leaving", "starting"):
        assert given == [] and found.resize.state == state
    else:
        assert found.resize.state == "closing" and found.resize.reason == "the job ended"


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_nothing_happens_before_its_deadline(state: str) -> None:
    found = in_state(state)
    kills = [machine.KillLaunch(1)] if state == "closing" else []
    assert fed(found, OBSERVED, at_s=100.0) == kills


def test_a_job_that_comes_to_no_resize_point() -> None:
    found = in_state("ready")
    assert fed(found, OBSERVED, at_s=100.0 + READY_S) == []
    given = fed(found, OBSERVED, at_s=100.1 + READY_S)
    assert words(given) == ["SaveResize", "KillLaunch"] and found.request is None
    assert found.resize is not None and found.resize.reason.startswith("the job came to no resize")


@pytest.mark.parametrize("state", ["requested", "granting", "starting"])
def test_what_waits_for_the_job_or_the_owner_has_no_deadline(state: str) -> None:
    assert fed(in_state(state), OBSERVED, at_s=1e9) == []


def test_a_world_that_is_not_ready_in_time() -> None:
    found = in_state("booting")
    assert fed(found, OBSERVED, at_s=160.0) == []
    assert words(fed(found, OBSERVED, at_s=160.1)) == ["SaveResize", "KillLaunch"]
    assert found.resize is not None
    assert found.resize.reason == "the new world was not ready within 60 s"


def test_a_move_without_end_ends_the_job() -> None:
    found = in_state("moving")
    given = fed(found, OBSERVED, at_s=100.1 + MOVE_S)
    assert given == [machine.GiveUp("no report of its resize for 180 s")]
    assert fed(found, OBSERVED, at_s=1e9) == []


def test_a_world_that_writes_no_checkpoint_in_time() -> None:
    found = in_state("stopping")
    assert fed(found, OBSERVED, at_s=110.0) == []
    assert fed(found, OBSERVED, at_s=110.1) == [machine.KillLaunch(0)]
    assert fed(found, OBSERVED, at_s=1e9) == []
    assert words(fed(found, machine.WorldEnded(None))) == ["SaveResize", "KillJob"]
    assert found.resize is not None and found.resize.committed


# --- relaunch ------------------------------------------------------------------------------------


def test_a_job_that_could_not_go_on_from_a_checkpoint_is_left_alone() -> None:
    found = job()
    (given,) = fed(found, decided(refusal="fixed nodes"))
    assert isinstance(given, ResizeRolledBack)
    assert given.reason.startswith("fixed nodes; and the job could not go on from a checkpoint (")
    assert found.resize is None


def test_a_relaunch() -> None:
    found = job(restartable=True, cooldown_s=3.0)
    given = fed(found, decided(refusal="fixed nodes"))
    assert words(given) == ["SaveResize", "ResizeBegun", "Terminate"]
    assert isinstance(given[1], ResizeBegun) and states(given) == ["stopping"]
    record = CompletionRecord("CANCELLED", 0, "", 42, 1, 1)
    assert words(fed(found, machine.WorldEnded(record))) == ["SaveResize", "KillJob"]
    given = fed(found, machine.ScriptEnded())
    assert words(given) == ["SaveSteps", "SaveResize", "RunScript"]
    assert found.steps == found.keys == [] and states(given) == ["starting"]
    assert found.resizing == "starting"
    found.steps.append(Step(COMMAND, {1: ManagedProcess(12)}, current=(1,), cooldown_s=3.0))
    given = fed(found, machine.Polled(), at_s=108.0)
    assert given == [
        machine.SaveFinishedResizes(),
        machine.SaveResize(None),
        Resized(108.0, JOB, True),
    ]
    (row,) = found.resizes
    assert (row.step, row.from_ranks, row.to_ranks, row.stall_s) == (42, 1, 2, 8.0)


@pytest.mark.parametrize(
    "record", [None, CompletionRecord("COMPLETED", 0, "", 50, 1, 1)], ids=["died", "finished"]
)
def test_a_world_that_ends_otherwise_is_not_relaunched(record: CompletionRecord | None) -> None:
    found = in_state("stopping")
    assert fed(found, machine.WorldEnded(record)) == []
    assert fed(found, machine.ScriptEnded()) == []
    assert found.resize is not None and not found.resize.committed


def test_a_job_that_is_cancelled_is_not_relaunched() -> None:
    found = in_state("stopping")
    fed(found, machine.WorldEnded(CompletionRecord("CANCELLED", 0, "", 42, 1, 1)))
    found.ending = "CANCELLED"
    assert fed(found, machine.ScriptEnded()) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_script_that_ends_while_it_starts_again(lost: bool) -> None:
    given = fed(in_state("starting"), machine.ScriptEnded(lost))
    assert given == ([machine.Requeue("could not start at its new size")] if lost else [])


@pytest.mark.parametrize("state", sorted(set(STATES) - {"stopping", "starting"}))
def test_the_end_of_a_script_is_no_part_of_other_resizes(state: str) -> None:
    found = in_state(state)
    for given in (machine.ScriptEnded(True), machine.Polled(), machine.WorldEnded(None)):
        assert fed(found, given) == []


# --- a restarted daemon, in every state ----------------------------------------------------------


def restarted(state: str) -> JobRuntime:
    """Return the job as the next daemon has it, from the notes."""
    before = in_state(state)
    resize = before.resize
    assert resize is not None
    after = JobRuntime(JOB, steps=before.steps, launch_count=before.launch_count)
    after.resize = resize.note()
    assert after.resize is not None and not after.resize.told
    return after


def test_a_resize_of_which_nothing_was_noted_begins_anew() -> None:
    found = job()
    assert fed(found, machine.Adopted()) == [machine.Decide(WANTED)]


def test_a_grant_is_asked_for_again() -> None:
    found = restarted("granting")
    assert fed(found, machine.Adopted()) == [machine.Decide(WANTED, "warm")]
    assert found.resize is None


@pytest.mark.parametrize(
    ("state", "until_s"),
    [
        ("booting", 560.0),
        ("ready", 500.0 + READY_S),
        ("moving", 500.0 + MOVE_S),
        ("leaving", 500.0 + LEAVE_S),
        ("closing", 500.0 + LEAVE_S),
        ("releasing", 500.0 + LEAVE_S),
    ],
)
def test_a_resize_goes_on_with_a_new_deadline(state: str, until_s: float) -> None:
    found = restarted(state)
    given = fed(found, machine.Adopted(), at_s=500.0)
    told = ["TellJob"] if state in ("ready", "moving") else []
    assert words(given) == ["Say", *told]
    assert given[0] == machine.Say(f"job 7: its resize goes on, {state}")
    assert found.resize is not None and found.resize.until_s == until_s
    assert (found.request is not None) == bool(told)


def test_launches_whose_processes_were_not_noted_are_looked_for() -> None:
    found = restarted("booting")
    del found.steps[0].worlds[1]
    assert fed(found, machine.Adopted())[-1] == machine.FindLaunches((1,))


@pytest.mark.parametrize("committed", [False, True])
def test_a_job_that_was_told_to_stop_is_told_again(committed: bool) -> None:
    found = restarted("stopping")
    assert found.resize is not None
    found.resize.committed = committed
    assert fed(found, machine.Adopted()) == [
        machine.Act.KILL_JOB if committed else machine.Act.TERMINATE
    ]
    assert found.resize.until_s == 110.0


@pytest.mark.parametrize("state", STATES)
def test_a_resize_that_the_scheduler_knows_to_be_over_is_dropped(state: str) -> None:
    found = restarted(state)
    given = MACHINE.handle(found, facts(requested=False), machine.Adopted())
    assert given == [machine.SaveResize(None)] and found.resize is None


def test_a_world_whose_start_was_not_noted_is_started_again() -> None:
    found = job()
    fed(found, DECIDED, NOBODY_TO_ASK)  # launch 1 may run, or not
    given = fed(found, machine.Adopted())
    assert given == [
        machine.KillLaunch(1),
        machine.SaveResize(None),
        machine.Decide(WANTED, "warm"),
    ]
    assert found.resize is None


def test_a_note_of_a_resize_before_the_newest_is_dropped() -> None:
    found = restarted("leaving")
    newer = replace(facts(), number=2)
    given = MACHINE.handle(found, newer, machine.Adopted())
    assert given == [machine.SaveResize(None), machine.Decide(WANTED)] and found.resize is None


def test_a_resize_told_twice_is_one_row() -> None:
    found = in_state("moving")
    fed(found, Done(1, RESIZE, (1,)))
    assert found.resize is not None
    found.resize.state = "moving"  # as noted, the daemon having been killed before it answered
    fed(found, Done(1, RESIZE, (1,)))
    assert [row.number for row in found.resizes] == [1]


def test_a_rollback_goes_on_after_a_restart() -> None:
    found = restarted("closing")
    fed(found, machine.Adopted())
    assert fed(found, OBSERVED) == [machine.KillLaunch(1)]
    fed(found, machine.Observed({}, frozenset([1])))
    assert fed(found, machine.CallAnswered())[-1] == ResizeRolledBack(100.0, JOB, "no memory")


# --- the record ----------------------------------------------------------------------------------


def test_there_is_nothing_to_do_without_a_resize() -> None:
    found = job()
    for given in (
        OBSERVED,
        machine.StepEnded(),
        machine.Polled(),
        Begun(1),
        machine.CallAnswered(),
    ):
        assert fed(found, given) == []


# --- the queue of inputs -------------------------------------------------------------------------


def test_an_input_is_handled_after_the_one_that_leads_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed: list[str] = []
    scripts = SimpleNamespace(fail=lambda job, reason: failed.append(f"{job.id}: {reason[:14]}"))
    context = SimpleNamespace(settings=SimpleNamespace(boot_s=60.0, grace_s=10.0))
    worlds = Worlds(cast("Context", context), cast("Scripts", scripts), cast("Any", None))
    one, two, done = JobRuntime(JobId("1")), JobRuntime(JobId("2")), list[str]()

    def handled(job: JobRuntime, given: Input) -> list[machine.Instruction]:
        if isinstance(given, machine.Polled):
            assert not worlds.feed(two, machine.ScriptEnded())
            assert not worlds.feed(one, machine.StepEnded())
        done.append(f"{type(given).__name__} {job.id}")
        if job is two:
            raise ValueError("no nodes")
        return [machine.Act.OBSERVE] if isinstance(given, machine.Polled) else []

    monkeypatch.setattr(worlds, "_handle_input", handled)
    assert worlds.feed(one, machine.Polled())
    assert done == ["Polled 1", "ScriptEnded 2", "StepEnded 1"]
    assert failed == ["2: ValueError: no"]
    with pytest.raises(ValueError, match="no nodes"):  # its own error is the caller's
        worlds.feed(two, machine.ScriptEnded())


# --- all pairs -----------------------------------------------------------------------------------

INPUTS: tuple[Input, ...] = (
    machine.CallStarted(),
    machine.CallAnswered(),
    machine.Booted({1: 11}),
    READY,
    Failed(1, 1, "no memory"),
    Begun(1),
    Done(1, RESIZE, (1,)),
    RolledBack(1, "no peer", "warm"),
    OBSERVED,
    machine.WorldEnded(CompletionRecord("CANCELLED", 0, "", 42, 1, 1)),
    machine.WorldDied(),
    machine.StepEnded(),
    machine.ScriptEnded(),
    machine.Polled(),
    machine.Adopted(),
    DECIDED,
)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("given", INPUTS, ids=[type(given).__name__ for given in INPUTS])
def test_an_input_that_is_not_in_the_table_changes_nothing(state: str, given: Input) -> None:
    own = set(machine.ResizeInput.__subclasses__())
    assert {type(each) for each in INPUTS} == own | {Ready, Failed, Begun, Done, RolledBack}
    found = in_state(state)
    assert found.resize is not None
    before = msgspec.to_builtins(found.resize)
    legal = machine.is_legal(found.resize, given)
    listed = (found.resize.state, type(given)) in machine.TABLE
    assert legal == (listed or isinstance(given, machine.Adopted | machine.Decided | Done))
    instructions = fed(found, given)
    if not legal:
        assert instructions == [] and msgspec.to_builtins(found.resize) == before


# --- the world dies, and another one goes on ------------------------------------------------------

DIES = {
    "requested": ("", ["SaveResize", "ResizeRolledBack"]),
    "granting": ("closing", ["SaveResize"]),
    "booting": ("closing", ["SaveResize", "KillLaunch"]),
    "ready": ("closing", ["SaveResize", "KillLaunch"]),
    "moving": ("closing", ["SaveResize", "KillLaunch"]),
    "leaving": ("leaving", []),
    "closing": ("closing", []),
    "releasing": ("releasing", []),
    "stopping": ("stopping", []),
    "starting": ("starting", []),
}
"""By the state of the resize: the state after the death, and the instructions."""


@pytest.mark.parametrize("state", STATES)
def test_a_world_that_has_died_is_not_resized(state: str) -> None:
    found = in_state(state)
    after, expected = DIES[state]
    assert words(fed(found, machine.WorldDied())) == expected
    assert ("" if found.resize is None else found.resize.state) == after
    if after == "closing" and state != "closing":
        assert found.resize is not None and found.resize.reason == machine.DIED
        assert fed(found, machine.WorldDied()) == []  # once


def test_a_job_whose_world_has_died_rests_from_resizes() -> None:
    found = in_state("requested")
    (*_, rolled_back) = fed(found, machine.WorldDied())
    assert rolled_back == ResizeRolledBack(100.0, JOB, machine.DIED, True, False)
    assert found.rests_until_s == 100.0 + LATER_S
