"""A user could not give jobs a priority; beyond the depth of an order it had no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from routed import SCRIPT, routed
from specs import job_spec

from rms.core.model.events import Ended, Submitted, Ticked
from rms.core.model.jobs import JobId, JobSpec, Mode, Site
from rms.core.policies import POLICIES, named
from rms.core.scheduler.engine import Engine
from rms.formats.jobscript import Options, ScriptError, read_option

PLAIN = sorted(
    name
    for name in POLICIES
    if not (named(name).placement.shared or named(name).clocked or named(name).placement.counted)
)


def spec(number: int, priority: int = 0, **options: Any) -> JobSpec:
    nodes = options.pop("nodes", 2)
    sizes = (options.pop("least", nodes), nodes, nodes)
    return job_spec(number, sizes, priority=priority, **options)


def order(engine: Engine, first: str, jobs: list[JobSpec]) -> list[str]:
    """Return the order in which jobs start that wait behind one of all nodes."""
    engine.handle(Submitted(0.0, (spec(int(first), limit_s=100.0),)))
    engine.handle(Ticked(0.0))
    assert set(engine.state.running) == {first}
    for at, each in enumerate(jobs):
        engine.handle(Submitted(1.0 + at, (each,)))
    started, at_s = [first], 100.0
    while engine.state.running:
        engine.handle(Ended(at_s, JobId(started[-1]), "COMPLETED"))
        engine.handle(Ticked(at_s))
        started += [job for job in engine.state.running if job not in started]
        at_s += 100.0
    return started[1:]


@pytest.mark.parametrize("policy", PLAIN)
@pytest.mark.parametrize("mode", [Mode.FIXED, Mode.FLEXIBLE])
def test_the_highest_goes_first_under_every_policy(policy: str, mode: Mode) -> None:
    """The jobs take all nodes, so one runs at a time; of equal ones the first comes first."""
    jobs = [
        spec(number, priority, mode=mode, limit_s=50.0 + number, power_w=None)
        for number, priority in enumerate([0, -5, 7, 0, 7, 90], start=2)
    ]
    started = order(Engine(Site(2), named(policy)), "1", jobs)
    assert started == ["7", "4", "6", "2", "5", "3"]


def test_a_job_beyond_the_depth_of_an_order() -> None:
    """``smallest`` looks at so many jobs only; none that is raised is among them."""
    policy = named('{"name":"x","order":{"part":"smallest","depth":2}}')
    jobs = [spec(number, limit_s=50.0) for number in range(2, 8)]
    raised = spec(8, 1, limit_s=5000.0)
    assert order(Engine(Site(2), policy), "1", [*jobs, raised])[0] == "8"


def test_no_smaller_one_overtakes_it() -> None:
    """It gets the first reservation: what would delay it waits."""
    engine = Engine(Site(2), named("backfill-share"))
    engine.handle(Submitted(0.0, (spec(1, nodes=1, limit_s=100.0),)))
    engine.handle(Submitted(1.0, (spec(2, nodes=2, limit_s=100.0),)))
    engine.handle(Submitted(2.0, (spec(3, 5, nodes=2, limit_s=100.0),)))
    engine.handle(Submitted(3.0, (spec(4, nodes=1, limit_s=500.0),)))
    assert set(engine.state.running) == {"1"}
    engine.handle(Ended(50.0, JobId("1"), "COMPLETED"))
    assert set(engine.state.running) == {"3"}


def test_the_daemon_keeps_it(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        server.submit(nodes=[2, 2])
        low, high = server.submit(nodes=[2, 2]), server.submit(nodes=[2, 2], priority=3)
        text = "#!/bin/sh\n#SBATCH --nice -N 2\n#RMS --nice=4\ntrue\n"
        assert server.ask("POST", "/jobs", SCRIPT | {"text": text})[0] == 200
        history = server.ask("GET", f"/history/{high}")[1]
        assert "priority 3: jobs of a higher priority start first" in history[-1]["reason"]
    with routed(tmp_path) as server:
        rows = {row["id"]: row["priority"] for row in server.ask("GET", "/jobs")[1]}
        assert rows == {"1": 0.0, low: 0.0, high: 3.0, "4": -4.0}
        server.ask("POST", "/cancel", {"id": "1"})
        assert set(server.daemon.context.state.running) == {high}


def test_options_of_a_priority() -> None:
    assert read_option("priority", "12") == Options(priority=12)
    assert read_option("nice", "12") == Options(priority=-12)
    assert read_option("nice", "-3").priority == 3
    for text in ("x", "1.5", "2147483646", ""):
        with pytest.raises(ScriptError, match="--priority: expected a whole number from"):
            read_option("priority", text)


def queue(*waiting: JobSpec, policy: str) -> list[str]:
    """Return the queue while a job has all nodes."""
    engine = Engine(Site(2), named(policy))
    engine.handle(Submitted(0.0, (spec(1, limit_s=100.0),)))
    engine.handle(Ticked(0.0))
    for each in waiting:
        engine.handle(Submitted(1.0, (each,)))
    view = engine.policy.view(engine.state)
    return [] if view is None else [job.spec.id for job in view.queue]


DEPTH = 5
ORDER = {"part": "smallest", "depth": DEPTH}
SMALLEST = json.dumps({"name": "x", "order": ORDER})


@pytest.mark.parametrize("policy", [SMALLEST, "backfill-share"])
def test_a_job_behind_many_of_a_lower_priority(policy: str) -> None:
    low = [spec(number, -100, nodes=1, limit_s=50.0) for number in range(2, 302)]
    found = queue(*low, spec(8000, limit_s=5000.0), policy=policy)
    # Of fixed jobs the default policy looks at all, as EASY does.
    assert found[0] == "8000" and len(found) == (DEPTH if policy is SMALLEST else 301)


def test_the_depth_of_an_order_holds_beside_a_lower_priority() -> None:
    jobs = [spec(number, -1 if number == 3 else 0) for number in range(2, 30)]
    assert queue(*jobs, policy=SMALLEST) == ["2", "4", "5", "6", "7"]


def test_tasks_of_a_full_array_keep_no_lower_job_out() -> None:
    tasks = [
        spec(number, 5, nodes=1, array="a", array_limit=1) for number in range(10, 10 + 2 * DEPTH)
    ]
    engine = Engine(Site(2), named(SMALLEST))
    engine.handle(Submitted(0.0, tuple(tasks)))
    engine.handle(Submitted(0.0, (spec(50, nodes=1), spec(51, nodes=1))))
    engine.handle(Ticked(0.0))
    assert len(engine.state.running) == 2 and "50" in engine.state.running
