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

from dmr.application import RunState
from dmr.checkpoint import store
from dmr.checkpoint.store import Lock
from dmr.errors import CollectiveError, Left, RolledBackError, TransferError
from dmr.plan import Deadlines, Schedule
from dmr.resize import merge, replace
from dmr.resize.replace import (
    NewWorld,
    OldWorld,
    Phase,
    commit,
    commit_new,
    commit_old,
    connect_old,
    fill,
    leave_old,
    meet_new,
    meet_old,
    move_old,
    start_new,
    start_old,
    store_old,
    take_over,
)
from dmr.resize.side import ALONE_S, Side, catch_failure, give_way
from dmr.state.progress import OpenResize, PerRank, Progress, decode, pack
from dmr.state.values import State, ValuesError
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
from dmr.world import World


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
    old.merged = {}
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
    old.plan = SimpleNamespace(checkpoint=Schedule(tmp_path), options={})
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


# --- start, connect, move ------------------------------------------------------------------------


def halved() -> PerRank:
    """State of which every rank has a part: a number that ranks share equally."""
    return PerRank(0, sum, lambda whole, ranks: [whole // ranks] * ranks)


def test_the_state_of_all_ranks_goes_to_a_new_world_as_one_value() -> None:
    packed = pack({"n": halved()}, State(n=4))
    old = committing("restart", reports=((None, packed),))
    old.run.internal = RunState(MPI.COMM_SELF, [], per_rank={"n": halved()})
    old.run.state, old.wanted.launches = State(n=6), ()
    old.run.world.internal_comm = MPI.COMM_SELF
    start_old(old)
    assert decode(old.encoded).values == {"n": 10}


@pytest.mark.parametrize(
    ("strategy", "can_connect", "connections"),
    [("warm", True, 2), ("warm", False, None), ("restart", False, 2)],
)
def test_a_world_that_cannot_connect_meets_none_that_needs_it(
    strategy: str, can_connect: bool, connections: int | None
) -> None:
    """A restart reads files; the others need MPI_Comm_connect."""
    old = committing(strategy)
    old.run.internal = RunState(MPI.COMM_SELF, [], can_connect=can_connect)
    old.wanted.launches = (SimpleNamespace(address="a"), SimpleNamespace(address="b"))
    if connections is None:
        with pytest.raises(RolledBackError, match="MPI_Comm_connect does not work"):
            start_old(old)
    else:
        assert len(start_old(old)) == connections


class Node:
    """The communicator of the ranks of one rank's node."""

    def __init__(self, rank: int) -> None:
        self.rank, self.freed = rank, False

    def Free(self) -> None:  # noqa: N802 - as MPI has it
        self.freed = True


class Cluster:
    """A communicator of ranks on nodes of so many each, as one of its ranks sees it."""

    def __init__(self, size: int, rank: int, on_node: int) -> None:
        self.size, self.rank, self.on_node = size, rank, on_node
        self.nodes: list[Node] = []

    def Split_type(self, _: int) -> Node:  # noqa: N802 - as MPI has it
        self.nodes.append(Node(self.rank % self.on_node))
        return self.nodes[-1]

    def allgather(self, mine: bool) -> list[bool]:
        firsts = [rank % self.on_node == 0 for rank in range(self.size)]
        assert firsts[self.rank] is mine
        return firsts


@pytest.mark.parametrize(
    ("size", "on_node", "split", "receivers", "looks"),
    [
        (4, 2, (), (0, 2), True),
        (4, 4, (), (0,), True),
        (4, 1, (), (), True),  # no node has ranks that could share
        (4, 2, (0,), (), False),  # no field that every rank has whole
        (1, 1, (), (), False),
    ],
)
def test_what_every_rank_has_goes_to_the_first_rank_of_a_node_with_others(
    size: int, on_node: int, split: tuple[int, ...], receivers: tuple[int, ...], looks: bool
) -> None:
    new: Any = NewWorld.__new__(NewWorld)
    comm = Cluster(size, size - 1, on_node)
    block = SimpleNamespace(spec=SimpleNamespace(split=split, constant=False))
    world = SimpleNamespace(size=size, internal_comm=comm)
    new.run, new.node, new.receivers = SimpleNamespace(world=world, fields={"u": block}), None, ()
    with contextlib.ExitStack() as new.stack:
        replace._find_nodes(new)
        assert new.receivers == receivers and new.node is (comm.nodes[0] if receivers else None)
    assert [node.freed for node in comm.nodes] == [True] * looks


@pytest.mark.parametrize(("stated_s", "timeout"), [(30.4, "30"), (0.2, "1"), (1.0, "1")])
def test_a_connection_has_its_deadline_in_whole_seconds(stated_s: float, timeout: str) -> None:
    def connected(port: str, info: MPI.Info) -> tuple[str, str | None]:
        return port, info.Get("timeout")

    old = committing("warm")
    old.deadlines = Deadlines(connect_s=stated_s)
    comm: Any = SimpleNamespace(Connect=connected)
    assert connect_old(old, comm, "port") == ("port", timeout)


@pytest.mark.parametrize(
    ("sizes", "fails", "result"),
    [
        ((3, 4), False, (None, 7)),
        ((), False, (None, 0)),
        ((3,), True, ("gone", 0)),
    ],
)
def test_a_rank_has_sent_the_bytes_of_all_its_fields_or_counts_none(
    sizes: tuple[int, ...], fails: bool, result: tuple[str | None, int]
) -> None:
    def sending(size: int) -> Any:
        yield lambda: True
        if fails:
            raise TransferError("gone")
        return size

    old, spec = committing("warm"), SimpleNamespace(constant=False)
    old.run.fields = {
        str(at): SimpleNamespace(spec=spec, sending=lambda *_, on_host, size=size: sending(size))
        for at, size in enumerate(sizes)
    }
    old.inter, old.decompositions = SimpleNamespace(), dict.fromkeys(old.run.fields)
    assert move_old(old, Accepted(True)) == result


# --- a new world that gives way, an old one that leaves -------------------------------------------


class Alone(Messages):
    """Messages of a rank whose others stay silent."""

    def __init__(self, *, is_root: bool) -> None:
        super().__init__()
        self.is_root, self.reported = is_root, []

    def report(self, message: Any) -> None:
        self.reported.append(message)

    def receive(self, check: Callable[[float], None]) -> Any:
        check(ALONE_S)
        check(ALONE_S + 0.1)

    def collect(self, check: Callable[[float], None]) -> list[Any]:
        self.receive(check)
        return []


@pytest.mark.parametrize("is_root", [True, False])
def test_a_rank_that_fails_alone_and_stays_alone_ends_with_its_error(is_root: bool) -> None:
    """Others may wait for it in MPI, where nothing but MPI_Abort reaches them."""
    messages, channel = Alone(is_root=is_root), Channel()
    runtime: Any = SimpleNamespace(comm=SimpleNamespace(rank=0 if is_root else 3))
    with pytest.raises(KeyError, match="gone"):
        give_way(runtime, messages, KeyError("gone"), channel)  # type: ignore[arg-type]
    why = f"rank {0 if is_root else 3}: KeyError: 'gone'"
    assert channel.sent == ([Refused(why)] if is_root else [])
    assert (messages.sent, messages.reported) == (
        ([(why, None)], []) if is_root else ([], [(why, None)])
    )


def taking_over(monkeypatch: pytest.MonkeyPatch, fails: Exception, *channels: Channel) -> list[str]:
    """Have a new world fail while it prepares; return what it says through the launcher."""
    refused = list[str]()
    run = run_at_step(0, world=SimpleNamespace(size=1, rank=0, internal_comm=MPI.COMM_SELF))
    run.runtime.parent, run.runtime.refuse = None, refused.append

    def start(new: NewWorld) -> str:
        new.channels.extend(channels)  # type: ignore[arg-type]
        raise fails

    monkeypatch.setattr(replace, "start_new", start)
    plan: Any = SimpleNamespace(deadlines=Deadlines())
    with pytest.raises(Left) as left:
        take_over(SimpleNamespace(), run, plan, lambda *_: None)  # type: ignore[arg-type]
    assert left.value.code == 0
    return refused


def test_a_new_world_that_is_refused_or_refuses_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel()
    assert taking_over(monkeypatch, RolledBackError("no room"), channel) == []
    assert channel.sent == []  # whoever has rolled it back has sent the reason
    assert taking_over(monkeypatch, CollectiveError("no file"), channel) == []
    assert channel.sent == [Refused("no file")]
    assert taking_over(monkeypatch, CollectiveError("no file")) == ["no file"]


@pytest.mark.parametrize(
    ("strategy", "managed", "answered", "code", "finalised"),
    [
        ("restart", False, True, 3, True),
        ("restart", False, False, 3, True),
        ("restart", True, True, 0, False),
        ("spawn", False, True, 0, False),
        ("spawn", False, False, 1, False),
        ("warm", True, False, 0, False),
    ],
)
def test_an_old_world_ends_with_the_status_of_the_mpiexec_that_it_has_started(
    strategy: str,
    managed: bool,
    answered: bool,
    code: int,
    finalised: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a restart without a launcher has started one: the caller waits for this process."""
    ended = list[str]()
    monkeypatch.setattr(replace.MPI, "Finalize", lambda: ended.append("MPI"))
    monkeypatch.setattr(replace.WATCH, "stop", lambda: ended.append("watch"))
    mpiexec: Any = SimpleNamespace(wait=lambda: 3)
    internal = RunState(MPI.COMM_SELF, [], mpiexec=mpiexec)
    run = run_at_step(7, internal=internal, note=lambda _: None)
    run.runtime.manager = SimpleNamespace() if managed else None
    with pytest.raises(Left) as left:
        leave_old(run, SimpleNamespace(strategy=strategy), answered=answered)  # type: ignore[arg-type]
    assert not ended
    left.value.settle()
    assert left.value.code == code and ended == (["watch", "MPI"] if finalised else [])


# --- merge ---------------------------------------------------------------------------------------


class Joined:
    """A communicator that grows by launches, and what has been let go of."""

    gone: list[str]

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 2

    def Merge(self, *, high: bool) -> Joined:  # noqa: N802 - as MPI has it
        assert not high  # ranks that stay come first
        return Joined(f"with {self.name}")

    def Disconnect(self) -> None:  # noqa: N802 - as MPI has it
        self.gone.append(self.name)


def test_a_world_that_joins_launches_spares_its_own_communicator_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the commit it may have to go on with it; those between are of no use."""
    Joined.gone, members = [], list[Any]()
    monkeypatch.setattr(replace, "start_old", lambda _: [])
    monkeypatch.setattr(replace, "meet_old", lambda *_: None)
    monkeypatch.setattr(replace, "header_old", lambda _: Accepted(True))
    monkeypatch.setattr(replace, "connect_old", lambda _, comm, port: Joined(port))
    monkeypatch.setattr(merge, "disconnect", lambda comm: comm.Disconnect())
    monkeypatch.setattr(merge, "rebalance_and_commit", lambda _, found: members.append(found))
    old = committing("merge")
    old.run.world.internal_comm, old.run.progress.launches = Joined("own"), [(0, 2)]
    old.wanted.launches = tuple(
        SimpleNamespace(launch=at, ranks=1, port=f"port {at}") for at in (4, 5, 6)
    )
    merge.grow(old)
    assert Joined.gone == ["port 4", "port 5", "with port 4", "port 6", "with port 5"]
    (found,) = members
    assert found.comm.name == "with port 6" and found.launches == [(0, 2), (4, 1), (5, 1), (6, 1)]


def test_a_shrink_that_is_rolled_back_leaves_a_new_communicator_and_none_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members, joins = list[Any](), list[Any]()

    def fails(_: Any, found: Any) -> None:
        members.append(found)
        raise RolledBackError("no room")

    monkeypatch.setattr(merge, "rebalance_and_commit", fails)
    own, old = MPI.COMM_SELF.Dup(), committing("merge")
    old.run.world = World(MPI.COMM_SELF, own, 0, {})
    old.run.fields = {"u": SimpleNamespace(on_host=False, join=joins.append)}
    old.run.internal = RunState(MPI.COMM_SELF, [], per_rank={"n": halved()})
    old.run.state, old.run.progress.launches = State(n=6), [(0, 1), (4, 2)]
    old.wanted.ranks = 1
    with pytest.raises(RolledBackError, match="no room"):
        merge.shrink(old)
    (found,) = members
    assert found.comm == MPI.COMM_NULL and found.launches == [(0, 1)]
    assert found.stays and not found.on_host and old.merged == {"n": 6}
    renewed = old.run.world.internal_comm
    assert renewed not in (own, MPI.COMM_NULL) and joins == [renewed]
    for comm in (own, renewed):
        comm.Free()


def test_a_rank_that_leaves_has_no_part_of_the_state() -> None:
    old = committing("merge")
    old.run.internal = RunState(MPI.COMM_SELF, [], per_rank={"n": halved()})
    old.wanted.ranks, old.merged = 2, {"n": 10}
    for stays, part in ((True, {"n": 5}), (False, {})):
        comm: Any = SimpleNamespace(rank=1)
        assert merge._parts(old, merge.Membership(comm, [(0, 2)], True, stays)) == part


def test_a_merge_has_moved_the_bytes_of_all_fields() -> None:
    def sending(size: int) -> Any:
        yield lambda: True
        return size

    old = committing("merge")
    old.run.fields = {
        name: SimpleNamespace(sending=lambda *_, on_host, size=size: sending(size))
        for name, size in (("u", 300), ("v", 40))
    }
    old.run.world = World(MPI.COMM_SELF, MPI.COMM_SELF, 0, {})
    old.run.restored = False
    old.decompositions = {"u": None, "v": None}
    old.blocks = SimpleNamespace(take=dict)
    leaves = merge.Membership(MPI.COMM_SELF, [(0, 1)], True, stays=False)
    before, fields, sent = merge._rebalance(old, leaves)
    assert (before.world, fields, sent) == (old.run.world, {}, 340)


def test_a_rank_that_leaves_ends_with_the_communicator_of_its_own_launch() -> None:
    launch, own, internal, part = (MPI.COMM_SELF.Dup() for _ in range(4))
    run = run_at_step(7, internal=RunState(launch, []))
    run.runtime.comm = own
    with pytest.raises(Left) as left:
        merge.leave_world(run, World(own, internal, 0, {}), part)
    assert left.value.code == 0 and run.runtime.comm is launch
    assert all(comm == MPI.COMM_NULL for comm in (own, internal, part))
    launch.Free()


def test_a_world_that_is_put_back_has_none_of_the_next_one_s_cartesian_communicators() -> None:
    run = run_at_step(7, restored=False, internal=RunState(MPI.COMM_SELF, []))
    run.world = World(MPI.COMM_SELF, MPI.COMM_SELF, 0, {})
    before = merge.Snapshot(run)
    cart = MPI.COMM_SELF.Create_cart((1,))
    run.internal.carts[(1,), (False,)] = cart
    before.put_back(run)
    assert run.internal.carts == {} and cart == MPI.COMM_NULL
