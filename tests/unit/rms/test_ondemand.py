"""Which allocations a pilot asks for, changes, withdraws and lets go: whatever waits and runs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import called

from rms.cli.main import main
from rms.core.rules.checks import LEAST_S
from rms.launch.base import WaitingJob
from rms.launch.slurm.ondemand import (
    Action,
    Alter,
    GiveBack,
    Pending,
    PilotLimits,
    Running,
    Submit,
    Withdraw,
    decide,
    serves,
)

NOW_S = 1000.0
HOUR = PilotLimits(most=4)


def waits(least: int, wants: int | None = None, needs_s: float = 60.0) -> WaitingJob:
    return WaitingJob(least, wants or least, needs_s)


def holds(
    number: int, *hosts: str, idle_s: float = 0.0, idle: str = "", left_s: float = inf
) -> Running:
    """Return an allocation of which these hosts have been idle for so long."""
    since = dict.fromkeys(idle.split(), NOW_S - idle_s)
    return Running(number, hosts, NOW_S + left_s, since)


@pytest.mark.parametrize(
    ("waiting", "running", "pending", "expected"),
    [
        # What the first job lacks at least, what all lack at most.
        ([waits(2), waits(1)], [], [], [Submit(2, 3)]),
        ([waits(1, 3)], [], [], [Submit(1, 3)]),
        ([waits(3), waits(3)], [], [], [Submit(3, 4)]),
        # What is idle need not be asked for; who is too wide for the limits counts for nothing.
        ([waits(3)], [holds(1, "a", "b", idle="b")], [], [Submit(2, 2)]),
        ([waits(5), waits(1)], [], [], [Submit(1, 1)]),
        # Nor who could not end before an allocation does.
        ([waits(1, needs_s=HOUR.longest_s + 1)], [], [], []),
        # The queue grew, shrank, is empty.
        ([waits(1)] * 3, [], [Pending(7, 1, 1)], [Alter(7, 1, 3)]),
        ([waits(1)], [], [Pending(7, 1, 3)], [Alter(7, 1, 1)]),
        ([waits(1)], [], [Pending(7, 1, 1)], []),
        ([], [], [Pending(7, 1, 3)], [Withdraw(7)]),
        # As many nodes as are allowed, and no more.
        ([waits(1)] * 9, [holds(1, "a", "b", "c", "d")], [], []),
        ([waits(2)], [holds(1, "a", "b", "c")], [], []),
        # Idle for long: the whole allocation, or its nodes but the first.
        (
            [],
            [holds(1, "a", "b", idle="a b", idle_s=61)],
            [],
            [GiveBack(1, ("a", "b"), whole=True)],
        ),
        ([], [holds(1, "a", "b", "c", idle="a c", idle_s=61)], [], [GiveBack(1, ("c",))]),
        ([], [holds(1, "a", "b", idle="b", idle_s=59)], [], []),
        ([waits(1)], [holds(1, "a", "b", idle="a b", idle_s=61)], [], [GiveBack(1, ("b",))]),
        # Too late to be of use: given back at once, and asked for anew.
        (
            [waits(1, needs_s=600.0)],
            [holds(1, "a", idle="a", left_s=599.0)],
            [],
            [Submit(1, 1), GiveBack(1, ("a",), whole=True)],
        ),
        ([], [holds(1, "a", idle="a", left_s=59.0)], [], [GiveBack(1, ("a",), whole=True)]),
    ],
)
def test_examples(
    waiting: list[WaitingJob],
    running: list[Running],
    pending: list[Pending],
    expected: list[Action],
) -> None:
    assert decide(NOW_S, HOUR, waiting, running, pending) == expected


def test_what_is_kept_is_kept_whatever_waits() -> None:
    kept = PilotLimits(on_demand=False, keep=2, most=2)
    assert decide(NOW_S, kept, [], [], []) == [Submit(1, 2)]
    idle = holds(1, "a", "b", idle="a b", idle_s=999.0)
    assert decide(NOW_S, kept, [waits(2)] * 9, [idle], []) == []
    ends = holds(1, "a", "b", idle="a b", left_s=0.0)
    assert decide(NOW_S, kept, [], [ends], []) == [GiveBack(1, ("a", "b"), whole=True)]
    both = PilotLimits(keep=1, most=3)
    assert decide(NOW_S, both, [], [idle], []) == [GiveBack(1, ("b",))]


def test_nodes_that_no_job_can_have_go_back_at_once_and_others_are_asked_for() -> None:
    drained = Running(1, ("a", "b"), inf, {"b": NOW_S}, useless=frozenset("b"))
    assert decide(NOW_S, HOUR, [waits(1)], [drained], []) == [Submit(1, 1), GiveBack(1, ("b",))]
    busy = Running(1, ("a", "b"), inf, {}, useless=frozenset("b"))
    assert decide(NOW_S, HOUR, [], [busy], []) == []


def test_a_backlog_is_shared_out_and_single_nodes_stay_where_they_must() -> None:
    many = PilotLimits(most=8, backlog=3)
    asked = decide(NOW_S, many, [waits(1)] * 8, [], [])
    assert asked == [Submit(1, 3), Submit(1, 3), Submit(1, 2)]
    idle = holds(1, "a", "b", idle="b", idle_s=99.0)
    assert decide(NOW_S, HOUR, [], [idle], [], narrows=False) == []


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[PilotLimits, list[WaitingJob], list[Running], list[Pending]]:
    most = draw(st.integers(1, 9))
    limits = PilotLimits(
        on_demand=draw(st.booleans()),
        keep=draw(st.integers(0, most)),
        most=most,
        idle_s=30.0,
        backlog=draw(st.integers(1, 3)),
    )
    needs = st.sampled_from([0.0, 60.0, 900.0, 9999.0])
    job = st.builds(
        lambda n, more, s: WaitingJob(n, n + more, s), st.integers(1, 6), st.integers(0, 4), needs
    )
    left, running = most, []
    for number in range(draw(st.integers(0, 3))):
        width = draw(st.integers(0, left))
        left -= width
        if width:
            hosts = tuple(f"h{number}.{n}" for n in range(width))
            quiet = draw(st.sets(st.sampled_from(hosts)))
            leaving = draw(st.sets(st.sampled_from(sorted(quiet)))) if quiet else set()
            since = {h: NOW_S - draw(st.sampled_from([0.0, 29.0, 31.0])) for h in quiet - leaving}
            until_s = NOW_S + draw(st.sampled_from([inf, 3000.0, 100.0, 0.0]))
            running.append(Running(number, hosts, until_s, since, frozenset(leaving)))
    pending = [
        Pending(10 + n, *draw(st.sampled_from([(0, 0), (1, 1), (1, 3), (2, 4)])))
        for n in range(draw(st.integers(0, 3)))
    ]
    return limits, draw(st.lists(job, max_size=5)), running, pending


@given(situations())
@pytest.mark.promise("pilot-on-demand")
def test_no_limit_is_passed_and_no_job_loses_its_nodes(
    situation: tuple[PilotLimits, list[WaitingJob], list[Running], list[Pending]],
) -> None:
    limits, waiting, running, pending = situation
    actions = decide(NOW_S, limits, waiting, running, pending)
    asked = {each.number: each.most for each in pending}
    backlog = len(pending)
    for action in actions:
        if isinstance(action, Withdraw):
            del asked[action.number]
            backlog -= 1
        elif isinstance(action, Alter):
            assert 1 <= action.least <= action.most
            asked[action.number] = action.most
        elif isinstance(action, Submit):
            assert 1 <= action.least <= action.most
            asked[100 + len(asked)] = action.most
            backlog += 1
    held = sum(len(each.hosts) for each in running)
    assert not asked or held + sum(asked.values()) <= limits.most
    assert backlog <= limits.backlog
    there = {each.number: each for each in running}
    given = [each for each in actions if isinstance(each, GiveBack)]
    assert len({each.number for each in given}) == len(given)
    gone = 0
    for each in given:
        own = there[each.number]
        assert each.whole == (len(each.hosts) == len(own.hosts))
        assert each.hosts and set(each.hosts) <= own.idle_since_s.keys()  # nothing runs there
        assert len(each.hosts) == len(own.hosts) or own.hosts[0] not in each.hosts
        of_use = min((j.needs_s for j in waiting if serves(limits, j)), default=0.0)
        late = own.until_s - NOW_S < max(of_use, LEAST_S)
        assert late or all(NOW_S - own.idle_since_s[host] >= limits.idle_s for host in each.hosts)
        gone += 0 if late else len(each.hosts)
    lasting = [each for each in running if each.until_s > NOW_S]
    staying = sum(len(each.hosts) - len(each.leaving) for each in lasting)
    assert not gone or staying - gone >= limits.keep


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 5)), max_size=8),
    st.integers(0, 2),
    st.integers(1, 3),
    st.lists(st.integers(1, 6), min_size=60, max_size=60),
)
def test_every_job_runs_and_then_all_is_let_go(
    jobs: list[tuple[int, int, int]], keep: int, backlog: int, free: list[int]
) -> None:
    """A queue served in order by whatever nodes Slurm has: those free at each step."""
    limits = PilotLimits(keep=keep, most=6, backlog=backlog, idle_s=2.0)
    waiting = [(WaitingJob(least, least + more, 60.0), steps) for least, more, steps in jobs]
    busy: dict[str, int] = {}
    since: dict[str, float] = {}
    running: dict[int, tuple[str, ...]] = {}
    pending: dict[int, Pending] = {}
    number = 0
    for step, there in enumerate([*free, *[6] * 60]):
        now = float(step)
        held = {host for hosts in running.values() for host in hosts}
        busy = {host: left - 1 for host, left in busy.items() if left > 1}
        while waiting and len(idle := sorted(held - busy.keys())) >= waiting[0][0].least:
            job, steps = waiting.pop(0)
            busy |= dict.fromkeys(idle[: job.wants], steps)
        since = {host: since.get(host, now) for host in held if host not in busy}
        seen = [
            Running(n, hosts, inf, {h: since[h] for h in hosts if h in since})
            for n, hosts in running.items()
        ]
        for action in decide(now, limits, [j for j, _ in waiting], seen, list(pending.values())):
            if isinstance(action, Submit):
                number += 1
                pending[number] = Pending(number, action.least, action.most)
            elif isinstance(action, Alter):
                pending[action.number] = Pending(action.number, action.least, action.most)
            elif isinstance(action, Withdraw):
                del pending[action.number]
            else:
                assert busy.keys().isdisjoint(action.hosts)
                left = tuple(h for h in running[action.number] if h not in action.hosts)
                running[action.number] = left
                if not left:
                    del running[action.number]
        for each in list(pending.values()):  # Slurm gives what it has
            spare = there - sum(map(len, running.values()))
            if spare >= each.least:
                del pending[each.number]
                width = min(each.most, spare)
                running[each.number] = tuple(f"{each.number}.{n}" for n in range(width))
    assert not waiting and not busy and not pending
    assert sum(map(len, running.values())) == keep


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected --on-demand, --keep N, or an allocation (SLURM_JOB_ID, "),
        (["--keep", "-1"], "--keep: expected a whole number of at least 0, got '-1'"),
        (["--keep", "3", "--max-nodes", "2"], "expected --max-nodes of at least 3, got 2"),
        (["--on-demand", "--backlog", "0"], "expected a whole number of at least 1, got '0'"),
        (["--on-demand", "--idle", "-1"], "--idle: expected a number of at least 0, got '-1'"),
        (["--on-demand", "--time", "UNLIMITED"], "expected a --time at which allocations end"),
        (["--on-demand", "--time", "soon"], "expected a time as minutes"),
        (["--on-demand", "--engine", "slurm"], "expected no --engine for rms pilot, got slurm"),
        (["--on-demand", "--nodes", "2"], "expected --max-nodes for rms pilot, got --nodes 2"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], said: str) -> None:
    done = called(main, "pilot", *words)
    assert done.returncode == 2 and said in done.stderr
