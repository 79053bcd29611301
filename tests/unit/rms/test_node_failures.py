"""Jobs on nodes that fail: by hand, for any failures, and the table of ``rms simulate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec

from rms.cli.main import main
from rms.core.model.events import (
    NodeDown,
    NodesLost,
    NodeUp,
    Resize,
    Started,
    Submitted,
    WorkLost,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import named
from rms.core.rules.transition import TransitionError, apply, check, take
from rms.core.scheduler.engine import Engine
from rms.sim.run import failing
from rms.sim.simulator import Recovery, Simulation
from rms.studies.failures import on_nodes

POWER = NodePower(100.0, 200.0, 0.0)
NARROWER = Recovery(10.0, back_s=2.0, narrower=True)


def run(
    recovery: Recovery | None, *fails: tuple[float, int], mode: Mode = Mode.MALLEABLE
) -> Simulation:
    """Run a job of 100 s on 4 nodes (400 s on one), of which nodes fail for good."""
    failures = [NodeDown(at_s, Node(node)) for at_s, node in fails]
    failures += [NodeUp(1000.0, Node(node)) for _, node in fails]
    law = Speedup(law=(400.0, 0.0))
    spec = job_spec(1, (1, 4, 4), mode, 0.0, speedup=law, resize_every_s=5.0)
    made = Simulation(
        [spec], (POWER,) * 4, named("easy-share"), failures=failures, recovery=recovery
    )
    made.run()
    made.ledger.check()
    return made


def end_s(simulation: Simulation) -> float:
    job = simulation.engine.state.ended[JobId("1")]
    assert job.end_s is not None
    return job.end_s


def test_without_copies_a_job_begins_again() -> None:
    made = run(None, (50.0, 0), mode=Mode.FIXED)
    assert (made.failed, made.narrowed) == (1, 0)
    assert made.recomputed_node_s == 4 * 50.0
    assert end_s(made) == pytest.approx(1000.0 + 100.0)


def test_from_a_copy_a_job_goes_on_from_the_queue() -> None:
    """The copy of 30 s is the newest at 50 s: 20 s of four nodes are done again."""
    made = run(Recovery(30.0), (50.0, 0), mode=Mode.FIXED)
    assert (made.failed, made.narrowed) == (1, 0)
    assert made.recomputed_node_s == pytest.approx(4 * 20.0)
    assert end_s(made) == pytest.approx(1000.0 + 70.0)


def test_a_malleable_job_goes_on_at_once_with_three_nodes() -> None:
    """Half is left for three nodes, 66.7 s, after 2 s in which it stands still."""
    made = run(NARROWER, (50.0, 0))
    assert (made.failed, made.narrowed) == (0, 1)
    assert made.recomputed_node_s == 0.0 and made.recovery_node_s == 6.0
    assert end_s(made) == pytest.approx(50.0 + 200.0 / 3.0 + 2.0)


def test_it_survives_two_failures() -> None:
    """The second comes 25 s after the first, 5 s after a copy: 15 node seconds are done again."""
    made = run(NARROWER, (50.0, 0), (75.0, 1))
    assert (made.failed, made.narrowed) == (0, 2)
    assert made.recomputed_node_s == pytest.approx(15.0)
    done = 0.5 + (20.0 - 2.0) * 3.0 / 400.0
    assert end_s(made) == pytest.approx(75.0 + (1.0 - done) * 200.0 + 2.0)


def test_a_fixed_job_waits_for_its_nodes() -> None:
    made = run(NARROWER, (50.0, 0), mode=Mode.FIXED)
    assert (made.failed, made.narrowed) == (1, 0)
    assert end_s(made) == pytest.approx(1000.0 + 50.0 + 2.0)


def test_energy_of_lost_steps_and_of_recoveries() -> None:
    """A node of a job draws 200 W."""
    for recovery, fails, mode, recomputed_j, recovery_j in (
        (None, [(50.0, 0)], Mode.FIXED, 4 * 50.0 * 200.0, 0.0),
        (Recovery(30.0, back_s=2.0), [(50.0, 0)], Mode.FIXED, 4 * 20.0 * 200.0, 4 * 2.0 * 200.0),
        (NARROWER, [(50.0, 0)], Mode.MALLEABLE, 0.0, 3 * 2.0 * 200.0),
        (
            *(NARROWER, [(50.0, 0), (75.0, 1)], Mode.MALLEABLE),
            *(3 * 5.0 * 200.0, (3 + 2) * 2.0 * 200.0),
        ),
        # The second fails during the recovery from the first, of which 1 s is lost too.
        (
            *(NARROWER, [(55.0, 0), (56.0, 1)], Mode.MALLEABLE),
            *((4 * 5.0 + 3 * 1.0) * 200.0, 2 * 2.0 * 200.0),
        ),
    ):
        made = run(recovery, *fails, mode=mode)
        lost = made.ledger.lost[JobId("1")]
        assert lost.recomputed_j == pytest.approx(recomputed_j)
        assert lost.recovery_j == pytest.approx(recovery_j)
        assert lost.energy_j < made.ledger.busy_j[JobId("1")]


@pytest.mark.parametrize(
    ("job", "times_s", "steps"),
    [
        ("1", (3.0, 2.0, 5.0), 1),
        ("1", (2.0, 6.0, 5.0), 1),
        ("1", (2.0, float("nan"), 5.0), 1),
        ("1", (2.0, 3.0, 5.0), -1),
        ("2", (2.0, 3.0, 5.0), 1),  # it does not run
    ],
)
def test_work_that_cannot_be_lost(
    job: str, times_s: tuple[float, float, float], steps: int
) -> None:
    engine = holding()
    engine.handle(Submitted(0.0, (job_spec(2, (4, 4, 4), Mode.FIXED, 0.0),)))
    since_s, until_s, at_s = times_s
    with pytest.raises(TransitionError, match="expected"):
        check(engine.state, WorkLost(at_s, JobId(job), since_s, until_s, steps))
    assert not engine.handle(WorkLost(5.0, JobId("1"), 2.0, 3.0, 0, "node n3 is lost"))


def test_copies_take_time() -> None:
    spec = job_spec(1, (1, 4, 4), Mode.FIXED, 0.0, speedup=Speedup(law=(400.0, 20.0)))
    slowed = Recovery(10.0, cost_s=0.5).slowed(spec)
    assert slowed.speedup is not None and slowed.speedup.time(4) == pytest.approx(126.0)
    plain = job_spec(1, 4, Mode.FIXED, 0.0, run_s=100.0)
    assert Recovery(3600.0, cost_s=36.0).slowed(plain).run_s == pytest.approx(101.0)


def holding(mode: Mode = Mode.MALLEABLE) -> Engine:
    """Return an engine with job 1 on four of five nodes."""
    engine = Engine(Site(5, (POWER,) * 5), named("fifo"))
    engine.handle(Submitted(0.0, (job_spec(1, (2, 4, 4), mode, 0.0, resize_every_s=5.0),)))
    engine.handle(Started(0.0, JobId("1")))
    return engine


@pytest.mark.parametrize(
    ("mode", "nodes"),
    [
        (Mode.MALLEABLE, (0, 1, 2, 3)),  # none is lost
        (Mode.MALLEABLE, (0, 4)),  # not its own
        (Mode.MALLEABLE, (0, 0)),
        (Mode.MALLEABLE, (0,)),  # fewer than its least
        (Mode.FIXED, (0, 1, 2)),
    ],
)
def test_other_nodes_cannot_be_kept(mode: Mode, nodes: tuple[int, ...]) -> None:
    engine = holding(mode)
    with pytest.raises(TransitionError, match="expected"):
        check(engine.state, NodesLost(1.0, JobId("1"), tuple(map(Node, nodes))))


def test_a_resize_under_way_is_dropped() -> None:
    """The node that an expansion holds is free again, the one that failed is not."""
    engine = holding()
    state, job = engine.state, JobId("1")
    take(state, Resize(job, tuple(map(Node, (1, 2, 3, 4))), ""))
    assert (state.free_count, state.releasing) == (0, 1)
    apply(state, NodeDown(1.0, Node(3)))
    apply(state, NodesLost(1.0, job, (Node(0), Node(1), Node(2)), 0.5))
    running = state.running[job]
    assert (running.nodes, running.size, running.done) == ((0, 1, 2), 3, 0.5)
    assert running.requested_size is None and state.releasing == 0
    assert state.free_count == 1 and list(state.free) == [4]
    apply(state, NodeUp(2.0, Node(3)))
    assert state.free_count == 2 and list(state.free) == [3, 4]


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for number in range(1, draw(st.integers(2, 10)) + 1):
        low = draw(st.integers(1, 4))
        most = draw(st.integers(low, 5))
        law = Speedup(law=(draw(st.floats(50.0, 2000.0)), draw(st.floats(0.0, 20.0))))
        mode = draw(st.sampled_from([Mode.FIXED, Mode.MALLEABLE, Mode.FLEXIBLE]))
        every = {"resize_every_s": 7.0, "resize_price_s": draw(st.sampled_from([0.0, 3.0]))}
        at_s = float(draw(st.integers(0, 200)))
        sizes = (low, draw(st.integers(low, most)), most)
        found.append(job_spec(number, sizes, mode, at_s, speedup=law, **every))
    return found


@settings(max_examples=60, deadline=None)
@given(
    streams(),
    st.sampled_from(["easy", "backfill-share", "array-share"]),
    st.sampled_from([None, Recovery(50.0, 1.0, 5.0), NARROWER]),
    st.integers(1, 99),
)
def test_every_job_ends_and_the_books_balance(
    specs: list[JobSpec], policy: str, recovery: Recovery | None, seed: int
) -> None:
    failures = failing(6, mtbf_s=400.0, repair_s=60.0, horizon_s=2000.0, seed=seed)
    power = (POWER,) * 6
    made = Simulation(specs, power, named(policy), failures=failures, recovery=recovery)
    made.run()
    made.ledger.check()
    state = made.engine.state
    assert {job.state for job in state.ended.values()} == {"COMPLETED"}
    assert len(state.ended) == len(specs) and state.free_count == 6 - len(state.down)
    assert made.narrowed == 0 or recovery is NARROWER
    held = made.ledger.busy_node_s
    assert 0.0 <= made.recomputed_node_s <= held + 1e-6
    for job_id, lost in made.ledger.lost.items():
        whole_j = made.ledger.busy_j[job_id] * (1.0 + 1e-9)
        assert 0.0 <= min(lost.recomputed_j, lost.recovery_j) <= lost.energy_j <= whole_j
    assert (not made.ledger.lost) is (made.failed + made.narrowed == 0)
    again = Simulation(specs, power, named(policy), failures=failures, recovery=recovery)
    again.run()
    assert again.decisions == made.decisions


# --- the command ---------------------------------------------------------------------------------

TRACE = "".join(
    f"{n} {9000 * n} 0 18000 32 -1 -1 32 36000 -1 1 1 1 1 1 1 -1 -1\n" for n in range(1, 41)
)


def test_the_table_of_recoveries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies in memory lose less than checkpoints, and those less than a new beginning."""
    trace = tmp_path / "t.swf"
    trace.write_text(f"; MaxProcs: 64\n{TRACE}")
    figure = tmp_path / "f.png"
    words = ["simulate", "--trace", str(trace), "--per-node", "8", "--mtbf-node", "20"]
    words += ["--recovery", "beginning,disk,memory,narrower", "--figure", str(figure)]
    assert main([*words, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["recovery"] for row in rows] == ["beginning", "disk", "memory", "narrower"]
    again = [row["lost_node_h"]["recomputed"] for row in rows]
    assert again[0] > again[1] > again[2] > 0.0
    lost_j = [row["lost_j"] for row in rows]
    assert lost_j[0]["recomputed"] > lost_j[1]["recomputed"] > lost_j[2]["recomputed"] > 0.0
    assert lost_j[0]["recovery"] == 0.0 < lost_j[3]["recovery"] < lost_j[2]["recovery"]
    assert rows[3]["narrowed"] > 0 and rows[3]["restarts"] < rows[2]["restarts"]
    assert all(row["jobs"] == 40 for row in rows)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == [row["recovery"] for row in rows]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--recovery", "disk"), "--mtbf-node H with --recovery"),
        (("--recovery", "tape", "--mtbf-node", "5"), "a recovery of beginning, disk"),
        (("--per-node", "8"), "--recovery with --per-node"),
        (("--days", "8"), "--recovery with --days"),
        (("--recovery", "disk", "--mtbf-node", "5", "--malleable", "0,100"), "one share"),
        (("--recovery", "disk", "--mtbf-node", "5", "--power-cap", "9kW"), "--power-cap, got both"),
    ],
)
def test_options_that_do_not_fit(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--trace", "t.swf", *words]) == 2
    assert expected in capsys.readouterr().err


def test_sizes_become_whole_nodes() -> None:
    (spec,) = on_nodes([job_spec(1, (1, 8, 17), Mode.MALLEABLE, 0.0)], 8)
    assert (spec.nodes_min, spec.preferred, spec.nodes_max) == (1, 1, 3)
