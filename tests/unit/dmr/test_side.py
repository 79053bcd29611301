"""One side of a resize: what comes early is kept; a failure is one of all ranks."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

from dmr.checkpoint import store
from dmr.checkpoint.store import Lock
from dmr.errors import RolledBackError, TransferError
from dmr.plan import Deadlines, Schedule
from dmr.resize import replace
from dmr.resize.replace import (
    NewWorld,
    OldWorld,
    Phase,
    commit,
    commit_new,
    commit_old,
    fill,
    meet_new,
    meet_old,
    start_new,
    store_old,
)
from dmr.resize.side import Side, catch_failure
from dmr.state.progress import OpenResize, Progress
from dmr.state.values import ValuesError
from dmr.wire.channel import (
    Accepted,
    Acknowledged,
    Arrived,
    Build,
    ChannelError,
    Committed,
    PeerGoneError,
    Refused,
    Stored,
    TakenOver,
)


class Channel:
    """A control channel whose other end is a list."""

    def __init__(self, *messages: Any) -> None:
        self.incoming, self.sent = deque(messages), []

    @property
    def readable(self) -> bool:
        return bool(self.incoming)

    def receive(self, deadline_s: float) -> Any:
        if not self.incoming or self.incoming[0] is None:
            raise PeerGoneError("the other world is gone")
        return self.incoming.popleft()

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Messages:
    """Rank 0's messages with others, whose reports are given."""

    is_root = True

    def __init__(self, *reports: Any) -> None:
        self.reports, self.sent = list(reports), []

    def collect(self, check: Callable[[float], None]) -> list[Any]:
        check(0.0)
        return self.reports

    def send_all(self, message: Any) -> None:
        self.sent.append(message)


def root(*channels: Channel, reports: tuple[Any, ...] = ()) -> Side:
    side = Side(Messages(*reports), Deadlines())  # type: ignore[arg-type]
    side.channels = list(channels)  # type: ignore[arg-type]
    return side


def test_a_message_that_comes_early_is_not_lost() -> None:
    side = root(Channel(Accepted(True), Arrived(1.0)), Channel(Accepted(False)))
    side.check_other_world()
    side.check_other_world()
    assert [answer.on_host for answer in side.expect(Accepted)] == [True, False]
    side.channels[1].incoming.append(Arrived(2.0))  # type: ignore[attr-defined]
    assert [answer.move_s for answer in side.expect(Arrived)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("incoming", "why"),
    [
        (Refused("no room"), "no room"),
        (Build(), "expected Acknowledged, got Build"),
        (None, "the other world is gone"),
    ],
)
def test_an_answer_that_is_none_is_an_error(incoming: Any, why: str) -> None:
    with pytest.raises(ChannelError, match=why):
        root(Channel(incoming)).expect(Acknowledged)


@pytest.mark.parametrize("incoming", [Refused("out of memory"), None])
def test_a_wait_for_fields_ends_with_the_other_world(incoming: Any) -> None:
    with pytest.raises(RolledBackError, match=r"out of memory|the other world is gone"):
        root(Channel(incoming)).check_alive(0.0)
    root(Channel(Arrived(1.0))).check_alive(0.0)
    with pytest.raises(RolledBackError, match="nothing moved for 10 s"):
        root(Channel()).check_alive(10.1)


def test_what_all_ranks_report_is_concluded_on_all() -> None:
    side = root(Channel(), reports=((None, 2), (None, 3)))
    assert side.report_and_decide(None, 1, sum) == 6
    assert side.messages.sent == [(None, 6)]  # type: ignore[attr-defined]


class Silent(Messages):
    """Ranks that have not reported after some time."""

    def __init__(self, waited_s: float) -> None:
        super().__init__()
        self.waited_s = waited_s

    def collect(self, check: Callable[[float], None]) -> list[Any]:
        check(self.waited_s)
        return []


class Wire:
    """A communicator of two ranks, one of them in this process, over a list."""

    size = 2

    def __init__(self, rank: int, sent: list[Any]) -> None:
        self.rank, self.sent = rank, sent

    def send(self, message: Any, *_: int) -> None:
        self.sent.append(message)

    def Iprobe(self, *_: int) -> bool:  # noqa: N802 - as MPI has it
        return bool(self.sent)

    def recv(self, **_: int) -> Any:
        return self.sent.pop(0)


def test_a_late_report_of_an_attempt_before_is_not_taken_for_one_of_the_next() -> None:
    def attempt(run: Any) -> OldWorld:
        plan: Any = SimpleNamespace(deadlines=Deadlines())
        wanted: Any = SimpleNamespace(ranks=1)
        return OldWorld(run, plan, wanted, contextlib.ExitStack())

    sent: list[Any] = []
    first, other = (
        run_at_step(3, world=SimpleNamespace(internal_comm=Wire(rank, sent), size=2))
        for rank in (0, 1)
    )
    for run in (first, other):
        run.internal.attempts = 0
    attempt(other).messages.report("late")
    attempt(first)
    attempt(other).messages.report("in time")
    assert attempt(first).messages.collect() == ["in time"]


def test_ranks_that_do_not_report_in_time_roll_the_resize_back() -> None:
    old: Any = OldWorld.__new__(OldWorld)
    old.channels, old.deadlines, old.phase = [Channel()], Deadlines(answer_s=20.0), Phase.MOVING
    old._early, old.messages = {}, Silent(20.1)
    why = "ranks of the old world have not sent their part (while moving)"
    with pytest.raises(RolledBackError, match=re.escape(why)):
        commit_old(old, None, 0)
    assert old.channels[0].sent == [Refused(why)]
    Silent(19.9).collect(old.check_reports)


def test_a_new_world_that_refuses_while_the_old_ranks_report_rolls_the_resize_back() -> None:
    old: Any = OldWorld.__new__(OldWorld)
    old.channels, old.deadlines, old.phase = [Channel(Refused("no room"))], Deadlines(), ""
    old._early, old.messages = {}, Silent(1e9)
    with pytest.raises(RolledBackError, match="no room"):
        commit_old(old, None, 0)


@pytest.mark.parametrize(
    ("problem", "reports", "fails"),
    [
        ("first", ((None, 2),), None),
        (None, (("second", 2), (None, 3)), None),
        (None, ((None, 2),), ChannelError("third")),
    ],
)
def test_a_failure_is_everybody_s(
    problem: str | None, reports: tuple[Any, ...], fails: Exception | None
) -> None:
    def work(parts: list[int]) -> None:
        if fails is not None:
            raise fails

    channel = Channel()
    side = root(channel, reports=reports)
    side.phase = "moving"
    with pytest.raises(RolledBackError) as error:
        side.report_and_decide(problem, 1, work)
    why = str(error.value)
    assert why in {f"{which} (while moving)" for which in ("first", "second", "third")}
    assert side.messages.sent == [(why, None)]  # type: ignore[attr-defined]
    assert [refused.why for refused in channel.sent] == [why]


def test_only_what_leaves_no_rank_in_a_collective_is_a_reason_to_roll_back() -> None:
    def failing(error: Exception) -> Callable[[], None]:
        def work() -> None:
            raise error

        return work

    for error in (TransferError("t"), ValuesError("v"), RolledBackError("r"), MemoryError("m")):
        problem, result = catch_failure(failing(error))
        assert problem is not None and problem.endswith(str(error)) and result is None
    assert catch_failure(failing(MemoryError()))[0] == "out of memory"
    with pytest.raises(KeyError):
        catch_failure(failing(KeyError("k")))


def test_an_mpi_without_ports_has_the_new_world_met_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses() -> str:
        raise MPI.Exception(MPI.ERR_UNSUPPORTED_OPERATION)

    monkeypatch.setattr(MPI, "Open_port", refuses)
    new: Any = NewWorld.__new__(NewWorld)
    new.run = SimpleNamespace(fields={}, world=SimpleNamespace(size=1, rank=0))
    new.app, new.messages, new.inter = SimpleNamespace(prepare=lambda _: None), Messages(), None
    new.channels, new.phase, new.deadlines = [], "", Deadlines()
    assert start_new(new) == ""


# --- the commit ----------------------------------------------------------------------------------


def run_at_step(step: int, **more: Any) -> Any:
    """As much of a run as a commit uses; its clock is at 110 s."""
    runtime = SimpleNamespace(clock=lambda: 110.0, run_of_job=None, rendezvous=None)
    internal = SimpleNamespace(sigterm=[], checkpoint_lock=None)
    world = SimpleNamespace(size=1, rank=0)
    own = {"step": step, "fields": {}, "runtime": runtime, "internal": internal, "world": world}
    return SimpleNamespace(**own | {"progress": Progress()} | more)


def committing(strategy: str, *incoming: Any, reports: tuple[Any, ...] = ()) -> Any:
    """The old world, whose resize began at 100 s, with the answers of the new one."""
    old: Any = OldWorld.__new__(OldWorld)
    old.messages, old.deadlines, old.channels = (
        Messages(*reports),
        Deadlines(),
        [Channel(*incoming)],
    )
    old._early, old.phase, old.inter, old.run = {}, Phase.MOVING, None, run_at_step(7)
    launches = (SimpleNamespace(boot_s=2.0), SimpleNamespace(boot_s=5.0))
    old.wanted = SimpleNamespace(ranks=3, strategy=strategy, launches=launches, request=4)
    old.begun, old.from_ranks, old.meet_s, old.phases_s = 100.0, 2, 1.5, {"meet": 1.5}
    return old


def test_the_record_of_a_resize_has_the_longest_times_of_all_parts() -> None:
    old = committing("warm", TakenOver())
    cost = commit(old, 77, 2.0, 4.0, [Acknowledged(1.0, 0.5), Acknowledged(3.0, 0.1)])
    assert cost is not None
    assert (cost.step, cost.from_ranks, cost.to_ranks, cost.strategy) == (7, 2, 3, "warm")
    assert (cost.boot_s, cost.move_s, cost.old_stall_s, cost.bytes) == (5.0, 3.0, 10.0, 77)
    assert cost.phases_s == {"meet": 1.5, "move": 3.0, "build": 4.0}
    assert (cost.request, cost.sigterm_received) == (4, False)
    assert old.channels[0].sent == [Committed(cost)] and old.phase == Phase.COMMITTED


@pytest.mark.parametrize(("strategy", "stored"), [("warm", 0), ("restart", 800)])
def test_a_restart_has_moved_what_it_has_stored(strategy: str, stored: int) -> None:
    reports = (None, 5), (None, 6)
    old = committing(strategy, Acknowledged(1.0, 0.5), TakenOver(), reports=reports)
    old.run.fields = {"u": SimpleNamespace(spec=SimpleNamespace(nbytes=800))}
    assert commit_old(old, None, 7) is True
    (committed,) = old.channels[0].sent
    assert committed.cost.bytes == 5 + 6 + 7 + stored


@pytest.mark.parametrize(("joins", "locks"), [(False, True), (True, False)])
def test_who_takes_the_job_over_has_its_record_and_its_checkpoints(
    joins: bool, locks: bool, tmp_path: Path
) -> None:
    cost = OpenResize(7, 2, 3, "warm", 5.0, 3.0, 10.0, 77, False, request=4)
    new: Any = NewWorld.__new__(NewWorld)
    new.messages, new.deadlines = Messages((None, (3.0, 1.0))), Deadlines()
    new.channels, new._early, new.phase = [Channel(Committed(cost))], {}, ""
    new.plan = SimpleNamespace(checkpoint=Schedule(tmp_path))
    new.run = run_at_step(7, progress=Progress(elapsed_s=30.0, answered_request=2))
    assert commit_new(new, None, 1.0, 2.0, joins=joins) is cost
    assert new.channels[0].sent == [Acknowledged(3.0, 2.0), TakenOver()]
    progress, lock = new.run.progress, new.run.internal.checkpoint_lock
    assert (progress.elapsed_s, progress.answered_request) == (40.0, 4)
    assert progress.open_resize is cost and cost.arrived_at == 110.0
    assert (lock is not None) == locks
    assert Lock(tmp_path).acquire() is not locks


def test_a_restart_without_its_checkpoint_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = committing("restart")
    old.plan, old.merged = SimpleNamespace(checkpoint=Schedule(tmp_path), options={}), {}
    old.run.runtime.log = None
    monkeypatch.setattr(store, "write", lambda *_, **__: None)
    with pytest.raises(RolledBackError, match="the checkpoint could not be written"):
        store_old(old)
    assert old.channels[0].sent == []
    monkeypatch.setattr(store, "write", lambda *_, **__: tmp_path)
    store_old(old)
    assert old.channels[0].sent == [Stored(str(tmp_path), 7)]


@pytest.mark.parametrize("intact", [True, False])
def test_fields_that_do_not_arrive_whole_roll_the_resize_back(
    intact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace, "decompositions_over", lambda _, ranks: {"u": ranks, "v": ranks})
    driven = iter([[True], [intact]])
    monkeypatch.setattr(replace.streams, "drive", lambda *_: next(driven))
    block: Any = SimpleNamespace(receiving=lambda *_, on_host: ())
    new: Any = SimpleNamespace(run=None, check_alive=None)
    if intact:
        fill(new, MPI.COMM_SELF, {"u": block, "v": block}, 2, on_host=True)
        return
    with pytest.raises(RolledBackError, match="data did not arrive whole"):
        fill(new, MPI.COMM_SELF, {"u": block, "v": block}, 2, on_host=True)


def test_worlds_meet_by_a_channel_to_each_launch() -> None:
    old = committing("warm")
    first, second = Channel(), Channel()
    old.channels, old.stack = [], contextlib.ExitStack()
    meet_old(old, [partial(contextlib.nullcontext, one) for one in (first, second)])
    assert old.channels == [first, second] and old.meet_s == 10.0
    assert old.in_phase("why") == f"why (while {Phase.READY})"
    new: Any = NewWorld.__new__(NewWorld)
    new.run = run_at_step(0)
    with pytest.raises(RuntimeError, match="expected to meet a running world"):
        meet_new(new, "")
