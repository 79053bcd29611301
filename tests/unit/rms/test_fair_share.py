"""Priority and a fair share between accounts: order ``multifactor``, and usage that is halved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routed import Routed
from specs import job_spec

from rms.core.model.events import Ended, Start, Submitted
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Speedup
from rms.core.policies import named, read_policy
from rms.core.policies.order import Multifactor
from rms.core.scheduler.engine import Engine
from rms.core.state import Usage

FAIR = Path(__file__).parents[3] / "jobs" / "fair-share.toml"
DAY_S = 86_400.0


def spec(job: str, account: str = "", nodes: int = 1, at_s: float = 0.0) -> JobSpec:
    return JobSpec(JobId(job), at_s, nodes, nodes, nodes, Mode.FIXED, limit_s=1e6, account=account)


def order(engine: Engine) -> list[str]:
    return [job.spec.id for job in engine.policy.order(engine.state)]


@given(
    st.lists(st.tuples(st.floats(0.01, 30.0), st.integers(0, 64)), min_size=1, max_size=8),
    st.floats(1.0, 100.0),
)
def test_usage_is_the_integral_of_nodes_over_time_each_moment_halved_by_its_age(
    spans: list[tuple[float, int]], half_life_d: float
) -> None:
    usage, now_d = Usage(half_life_d, 0.0), 0.0
    expected = 0.0
    end_d = sum(span for span, _ in spans)
    for span_d, nodes in spans:
        job = Job(spec("1", "a", max(1, nodes)), size=nodes)
        usage.advance([job], now_d := now_d + span_d)
        usage.advance([job], now_d)  # no time, no usage
        steps = 100
        for n in range(steps):
            age_d = end_d - now_d + span_d * (n + 0.5) / steps
            expected += nodes * 0.5 ** (age_d / half_life_d) * span_d / steps
    assert usage.now()["a"] == pytest.approx(expected, rel=0.02, abs=1e-6)


@pytest.mark.promise("fair-share")
def test_who_has_used_more_than_its_share_comes_later_until_that_is_long_ago() -> None:
    engine = Engine(1, read_policy(FAIR))
    engine.handle(Submitted(0.0, (spec("1", "a"),)))
    engine.handle(Submitted(0.0, (spec("2", "a"), spec("3", "a"), spec("4", "b"))))
    (start,) = engine.handle(Ended(DAY_S, JobId("1"), "COMPLETED"))
    assert isinstance(start, Start) and start.job == "4"
    assert order(engine) == ["2", "3"]
    engine.handle(Submitted(DAY_S, (spec("5", "b", at_s=DAY_S),)))
    assert order(engine) == ["5", "2", "3"]
    (start,) = engine.handle(Ended(15 * DAY_S, JobId("4"), "COMPLETED"))
    assert isinstance(start, Start) and start.job == "2"  # b has had 14 days, a one, long ago


@pytest.mark.promise("fair-share")
def test_what_is_due_among_resizable_jobs_goes_by_usage_before_and_since() -> None:
    """At the first resizable job, on day 1, a has used a day and b nothing.

    When job 1 is over, a has used two days: EASY starts b's job 3, though a's is older. That takes
    four days. Then a's two days count 1.2, as usage is halved in a week, and b's four days 3.3.
    """
    engine = Engine(1, read_policy(FAIR))

    def submit(job: str, account: str, days: float, mode: Mode, at_d: float) -> None:
        law = Speedup(law=(days * DAY_S, 0.0))
        one = job_spec(job, 1, mode, at_d * DAY_S, speedup=law, account=account)
        engine.handle(Submitted(at_d * DAY_S, (one,)))

    def over(job: str, at_d: float) -> list[str]:
        decisions = engine.handle(Ended(at_d * DAY_S, JobId(job), "COMPLETED"))
        return [each.job for each in decisions if isinstance(each, Start)]

    submit("1", "a", 2.0, Mode.FIXED, 0.0)
    submit("2", "a", 1.0, Mode.FLEXIBLE, 1.0)
    submit("3", "b", 4.0, Mode.FLEXIBLE, 1.0)
    submit("4", "b", 1.0, Mode.FLEXIBLE, 1.0)
    assert over("1", 2.0) == ["3"]
    assert over("3", 6.0) == ["2"]


def test_factors_are_those_of_slurm() -> None:
    part = Multifactor(age=100.0, fair_share=1000.0, size=10.0, shares={"a": 3.0})
    engine = Engine(4, read_policy(FAIR))
    assert engine.state.usage is not None
    engine.state.usage.used.update({"a": 300.0, "b": 100.0})
    engine.handle(Submitted(0.0, (spec("0", "b", 4),)))
    engine.handle(Submitted(0.0, (spec("1", "a", 2), spec("2", "b", 4))))
    engine.state.now_s, engine.state.usage.at_s = 3.5 * DAY_S, 3.5 * DAY_S
    jobs = engine.state.pending
    first, second = (part.priority(engine.state, jobs[JobId(job)]) for job in "12")
    assert (first.usage, first.share) == (second.share * 3, 0.75)
    assert first.value == pytest.approx(100 * 0.5 + 1000 * 0.5 + 10 * 0.5)
    assert second.value == pytest.approx(100 * 0.5 + 1000 * 0.5 + 10 * 1.0)
    assert [job.spec.id for job in part(engine.state)] == ["2", "1"]
    assert first.words == (
        "priority 555 = age 50 + fair share 500 (has used 75 %, may 75 %) + size 5"
    )


def test_usage_counts_from_when_a_policy_goes_by_it() -> None:
    engine = Engine(4, named("easy"))
    engine.handle(Submitted(0.0, (spec("1", "a", 2),)))
    assert engine.state.usage is None
    engine.policy = read_policy(FAIR)
    engine.handle(Submitted(10.0, (spec("2", "b", 4),)))
    assert engine.state.usage is not None
    assert engine.state.usage.now() == {"a": pytest.approx(20.0, rel=1e-3), "b": 0.0}
    engine.policy = named("easy")
    assert engine.state.usage is None


@pytest.mark.parametrize("bad", [{"age": -1.0}, {"half_life_days": 0.0}, {"shares": {"a": -1.0}}])
def test_weights_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected (weights|days)"):
        Multifactor(**bad)


# --- what users see ------------------------------------------------------------------------------


@pytest.mark.promise("fair-share")
def test_users_see_account_and_priority(server: Routed) -> None:
    server.daemon.set_policy(read_policy(FAIR).key)
    server.submit(nodes=[2, 2], account="physics")
    server.submit(nodes=[2, 2], account="physics")
    rows = server.ask("GET", "/jobs")[1]
    assert [row["account"] for row in rows] == ["physics"] * 2
    assert [row["priority"] for row in rows] == [0.0, pytest.approx(10_000.0)]
    server.clock[0] += DAY_S
    server.submit()  # time goes on with what happens
    last = server.ask("GET", "/history/2")[1][-1]
    assert last["code"] == "Priority" and last["reason"].startswith("priority ")
    frozen = msgspec.to_builtins(server.daemon.context.state.usage)
    assert set(frozen["used"]) == {"physics", ""}
