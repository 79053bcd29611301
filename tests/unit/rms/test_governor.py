"""What sets the governor of tasks; which nodes a power cap leaves to tasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from specs import job_spec

from rms.cli.main import main
from rms.core.model.events import PowerCapSet, Started, Submitted, TasksHold
from rms.core.model.jobs import JobId, Node, NodePower, Site
from rms.core.policies import named
from rms.core.rules.powercap import expected_w, tasks_in_the_way, under_cap
from rms.core.scheduler.engine import Engine
from rms.core.state import State
from rms.daemon.nodes.nodes import NodesForTasks
from rms.formats.prices import Prices, Series
from rms.kernels.model import Governor
from rms.kernels.served import GovernorRule

HIGH, LOW = Governor.HIGH, Governor.LOW
POWER = NodePower(idle_w=10.0, static_w=30.0)
PRICES = Prices("p.csv", "EUR", price=Series((0.1, 0.3, None, 0.2), (0.0, 10.0, 20.0, 30.0, 40.0)))
MINE = "task:mine.py[7]"


def engine(cap_w: float | None) -> Engine:
    found = Engine(Site(4, (POWER,) * 4), named("fifo"))
    found.handle(PowerCapSet(0.0, cap_w))
    return found


def said(text: str, state: State, at_s: float, present: Governor = HIGH) -> Governor:
    lender = NodesForTasks.__new__(NodesForTasks)
    lender.now, lender.prices = (lambda: at_s), PRICES
    context: Any = SimpleNamespace(state=state)
    lender._context = context
    return GovernorRule.parse(text).governor(lender, range(4), present)[0]


def test_tasks_know_whether_a_job_waits_for_their_nodes() -> None:
    found = engine(None)
    lender = NodesForTasks.__new__(NodesForTasks)
    context: Any = SimpleNamespace(state=found.state)
    lender._context = context
    assert lender.jobs_wait() is False
    found.handle(TasksHold(0.0, (Node(0), Node(1)), ("", "")))
    found.handle(Submitted(1.0, (job_spec(1, 2), job_spec(2, 5))))
    assert lender.jobs_wait() is False  # the first has started, the other never can
    found.handle(Submitted(2.0, (job_spec(3, 2),)))
    assert lender.jobs_wait() is True


@pytest.mark.promise("governor")
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("high", [HIGH] * 4),
        ("low", [LOW] * 4),
        ("price:0.3", [HIGH] * 4),
        ("price:0.15", [HIGH, LOW, LOW, LOW]),  # in a gap it stays as it was
        ("price", [HIGH, LOW, LOW, HIGH]),  # the mean is 0.2
    ],
)
def test_a_price_curve_sets_the_governor(rule: str, expected: list[Governor]) -> None:
    state, present, found = engine(None).state, HIGH, []
    for at_s in (5.0, 10.0, 29.0, 30.0):
        present = said(rule, state, at_s, present)
        found.append(present)
    assert found == expected


@pytest.mark.parametrize(
    "text", ["", "medium", "price:", "price:x", "price:nan", "cap:100", "high:1", "co2:0.1:2"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a governor: high, low, price.*, got"):
        GovernorRule.parse(text)


def test_a_rule_by_what_is_not_known_is_refused() -> None:
    for prices in (None, PRICES):
        with pytest.raises(ValueError, match="--prices FILE with co2_g_per_kwh, got none"):
            GovernorRule.parse("co2:100").check(prices)
    GovernorRule.parse("price").check(PRICES)
    assert str(GovernorRule.parse("price:0.25")) == "price:0.25"


def test_a_daemon_with_a_governor_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["medium"], "expected a governor: high, low, price[:LIMIT], co2[:LIMIT] or cap, got"),
        (["price"], "expected rms serve --prices FILE with price_per_kwh, got none"),
        (["cap", "--engine", "slurm"], "expected --governor with --engine local or slurm-pilot"),
    ):
        assert main(["serve", "--state", str(tmp_path / "s"), "--governor", *words]) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "s").exists()


@pytest.mark.promise("governor")
def test_a_power_cap_sets_the_governor_and_leaves_nodes_to_tasks() -> None:
    run = engine(85.0)  # 40 W idle, 20 W more for each node with a job or a task
    state, able = run.state, range(4)
    assert under_cap(state, able) == {0, 1} and said("cap", state, 0.0) is LOW
    run.handle(TasksHold(1.0, (Node(2), Node(3)), (MINE, "")))
    assert expected_w(state) == 60.0
    assert under_cap(state, able) == {0, 2}  # what runs is paid for
    run.handle(Submitted(2.0, (job_spec("1"),)))
    run.handle(Started(2.0, JobId("1")))
    assert expected_w(state) == 80.0 and under_cap(state, [1, 2, 3]) == {2}
    run.handle(Submitted(3.0, (job_spec("2"),)))  # lacks power, which a task has
    assert list(state.pending) == ["2"] and tasks_in_the_way(state, state.pending.values())
    run.handle(TasksHold(4.0, ()))
    assert not state.pending and not tasks_in_the_way(state, state.pending.values())
    run.handle(PowerCapSet(5.0, None))
    assert under_cap(state, able) == {0, 1, 2, 3} and said("cap", state, 5.0) is HIGH


def test_nodes_of_tasks_are_in_the_way_of_jobs_that_they_would_let_start() -> None:
    for nodes, in_the_way in ((3, True), (2, False)):
        run = engine(None)
        run.handle(TasksHold(0.0, (Node(0), Node(1)), (MINE, MINE)))
        run.handle(Submitted(1.0, (job_spec("1", nodes),)))
        assert tasks_in_the_way(run.state, run.state.pending.values()) is in_the_way
