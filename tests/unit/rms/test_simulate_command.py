"""``rms simulate``: options, runtime models, failures, and a trace made malleable in part."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from processes import called
from specs import job_spec

from rms.cli.main import main
from rms.core.model.jobs import JobSpec, NodePower, Site
from rms.core.policies import POLICIES
from rms.sim.run import failing
from rms.sim.simulator import Simulation
from rms.studies.malleability import MalleableChange, malleable, study

JOBS = Path(__file__).parents[3] / "jobs"
WORKLOAD = """[[jobs]]
count = 3
nodes = [1, 4]
speedup = { nodes = [1, 2, 4], time_s = [100.0, 60.0, 40.0], fit = "law" }
"""


NINE = ["--workload", str(JOBS / "nine-k80.toml"), "--cluster", str(JOBS / "k80.toml")]


def rigid(count: int, processors: int) -> list[JobSpec]:
    return [
        job_spec(n, 1 + n % processors, at_s=40.0 * n, limit_s=900.0, run_s=100.0 + 7.0 * (n % 50))
        for n in range(count)
    ]


def test_a_fitted_law_says_how_far_it_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.toml"
    path.write_text(WORKLOAD)
    assert main(["simulate", "--workload", str(path), "--processors", "4", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["jobs"] == 3
    # t(n) = 20 + 80 / n exactly.
    assert "t(n) = 20 s + 80 s / n, off by 0.0 % on average, 0.0 % at most" in err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--trace", "none.swf"], "does not exist"),
        ([], "one of --trace FILE.swf, --sacct FILE and --workload"),
        (["--workload", str(JOBS / "nine-k80.toml")], "--processors P, got neither"),
        (["--workload", str(JOBS / "nine-k80.toml"), "--processors", "0"], "at least 1"),
        (
            ["--workload", str(JOBS / "nine-k80.toml"), "--processors", "9", "--policy", "none"],
            "array-share",
        ),
        (
            [*NINE, "--policy", "fifo", "--order", "sjbf"],
            "no choice of order",
        ),
        (
            ["--workload", str(JOBS / "nine-k80.toml"), "--processors", "9", "--malleable", "50"],
            "expected --trace or --sacct with --malleable",
        ),
        (
            ["--workload", str(JOBS / "nine-k80.toml"), "--processors", "9", "--figure", "f.png"],
            "expected --malleable with --figure",
        ),
        (["--trace", "t.swf", "--malleable", "50", "--per-job", "x.csv"], "--per-job, got both"),
        (["--trace", "t.swf", "--malleable", "50", "--mtbf-node", "5"], "--mtbf-node, got both"),
        (
            ["--trace", "t.swf", "--malleable", "50", "--passes", "per-timestamp"],
            "--passes per-event",
        ),
        (
            ["--workload", str(JOBS / "nine-k80.toml"), "--processors", "9", "--mtbf-node", "5"],
            "counted processors do not fail",
        ),
        (
            ["--workload", str(JOBS / "nine-k80.toml"), "--processors", "9", "--power-cap", "1e3"],
            "expected a power cap in watts like 250, or none, got '1e3'",
        ),
        ([*NINE, "--power-cap", "600"], "above the 600 W of idle nodes, got 600 W"),
        ([*NINE, "--power-cap", "610"], "waiting for ever: PowerCap: it never fits under the cap"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], expected: str) -> None:
    done = called(main, "simulate", *options)
    assert done.returncode == 2
    assert expected in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("policy", ["easy", "backfill-share"])
def test_the_order_of_backfilling_is_one_of_these_policies(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node comes free at 20 s, behind a job that waits for all four until 100 s."""
    rest, log = " -1" * 9, tmp_path / "log.swf"
    jobs = [(1, 0, 100, 3), (2, 0, 20, 1), (3, 1, 10, 4), (4, 2, 40, 1), (5, 3, 30, 1)]
    log.write_text("".join(f"{n} {at} 0 {s} {p} -1 -1 {p} {s}{rest}\n" for n, at, s, p in jobs))
    waits = {}
    for order in ("fcfs", "sjbf"):
        command = ["simulate", "--trace", str(log), "--processors", "4", "--policy", policy]
        assert main([*command, "--order", order, "--json", "-"]) == 0
        waits[order] = json.loads(capsys.readouterr().out)["mean_wait_s"]
    assert waits == {
        "fcfs": pytest.approx((99 + 18 + 57) / 5),
        "sjbf": pytest.approx((99 + 48 + 17) / 5),
    }


def test_a_power_cap_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Nine jobs on 20 nodes of 30 W idle, under any policy: less power at once, more time."""

    def makespan_s(policy: str, *more: str) -> float:
        command = ["simulate", *NINE, "--mode", "flexible", "--policy", policy, "--json", "-"]
        assert main([*command, *more]) == 0
        return float(json.loads(capsys.readouterr().out)["makespan_s"])

    for policy in ("easy", "array-share", "backfill-share"):
        free_s = makespan_s(policy)
        assert makespan_s(policy, "--power-cap", "none") == free_s
        assert makespan_s(policy, "--power-cap", "1200") > free_s
    command = ["simulate", *NINE, "--mode", "flexible", "--power-cap", "1200", "--json", "-"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert 600.0 < found["peak_power_w"] <= found["power_cap_w"] == 1200.0


def test_rows_and_a_policy_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, rows = tmp_path / "mine.toml", tmp_path / "rows.csv"
    policy.write_text('sizing = { part = "equal-share", energy = 1.0 }\n')
    command = ["simulate", "--workload", str(JOBS / "nine-k80.toml"), "--mode", "flexible"]
    command += ["--cluster", str(JOBS / "k80.toml"), "--policy", str(policy)]
    assert main([*command, "--per-job", str(rows), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["energy_j"]["cluster"] <= 2640e3
    with rows.open() as file:
        read = list(csv.DictReader(file))
    assert [row["job"] for row in read] == [str(n) for n in range(1, 10)]
    total_j = sum(float(row["energy_j"]) for row in read)
    assert total_j == pytest.approx(found["energy_j"]["busy"], rel=1e-9)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"p-fifo", "p-bff"}))
def test_jobs_outlive_failing_nodes(policy: str) -> None:
    specs = [spec for spec in rigid(60, 6) if spec.preferred <= 5]
    failures = failing(6, mtbf_s=4000.0, repair_s=300.0, horizon_s=1e5, seed=2)
    power = (NodePower(10.0, 20.0, 0.0),) * 6
    simulation = Simulation(specs, power, POLICIES[policy], failures=failures)
    simulation.run()
    state, ledger = simulation.engine.state, simulation.ledger
    assert simulation.failed >= 3
    assert {job.state for job in state.ended.values()} == {"COMPLETED"}
    assert len(state.ended) == len(specs)
    assert ledger.owned_j == pytest.approx(ledger.cluster_j, rel=1e-9)
    again = Simulation(specs, power, POLICIES[policy], failures=failures)
    again.run()
    assert again.decisions == simulation.decisions


def test_a_larger_share_contains_a_smaller_one() -> None:
    specs = rigid(200, 16)
    some, more = (malleable(specs, share, 16, MalleableChange()) for share in (0.2, 0.6))
    of_some = {spec.id for spec in some if spec.speedup is not None}
    assert 20 < len(of_some) < 60
    assert of_some < {spec.id for spec in more if spec.speedup is not None}
    for before, after in zip(specs, more, strict=True):
        assert after.time_s(after.preferred) == pytest.approx(before.run_s)


@pytest.mark.promise("malleable-share")
def test_malleable_jobs_wait_less() -> None:
    rows = study(rigid(300, 16), Site(16), (0.0, 1.0), MalleableChange(every_s=50.0, price_s=1.0))
    rigid_, all_ = rows
    assert rigid_["resizes"] == 0 and all_["resizes"] > 10
    assert all_["mean_wait_s"] < rigid_["mean_wait_s"]
    assert all_["energy_j"]["cluster"] > 0


# --- power caps -----------------------------------------------------------------------------

CAPPED = """[[jobs]]
count = 2
nodes = [1, 1]
speedup = {{ nodes = [1], time_s = [100.0] }}
power_w = {power_w}
"""
TWO_NODES = """name = "two"
[[nodes]]
name = "n[1-2]"
power = { idle_w = 100.0, static_w = 50.0 }
"""
RACK = """admission = {{ part = "{admission}" }}
placement = {{ part = "rms.studies.chiesi:PowerSlot", cap_w = 500.0, per = "rack" }}
"""


def capped(folder: Path, power_w: float, policy: str) -> list[str]:
    """Return the options of two jobs on two idle nodes of 100 W each."""
    (folder / "w.toml").write_text(CAPPED.format(power_w=power_w))
    (folder / "c.toml").write_text(TWO_NODES)
    named = ["--workload", str(folder / "w.toml"), "--cluster", str(folder / "c.toml")]
    return ["simulate", *named, "--policy", policy, "--json", "-"]


@pytest.mark.parametrize("admission", ["in-order", "first-fit"])
@pytest.mark.parametrize(("power_w", "makespan_s"), [(150.0, 100.0), (200.0, 200.0)])
def test_a_workloads_power_counts_under_a_cap(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    admission: str,
    power_w: float,
    makespan_s: float,
) -> None:
    """200 W idle: two jobs of 150 W fit under 500 W, of 200 W one after the other."""
    policy = tmp_path / "mine.toml"
    policy.write_text(RACK.format(admission=admission))
    assert main(capped(tmp_path, power_w, str(policy))) == 0
    assert json.loads(capsys.readouterr().out)["makespan_s"] == makespan_s


@pytest.mark.parametrize("policy", ["p-fifo", "p-bff"])
@pytest.mark.parametrize(("power_w", "refused"), [(750.0, 0), (751.0, 2)])
def test_a_job_over_the_cap_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, power_w: float, refused: int
) -> None:
    """The cap of 850 W is that of each node, which draws 100 W where nothing runs."""
    assert main(capped(tmp_path, power_w, policy)) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == refused


@pytest.mark.parametrize("policy", ["p-fifo", "p-bff"])
def test_jobs_without_power_count_as_busy_nodes_or_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    """Two slots on a node of 800 W idle: 20 W each when busy by the model, under a cap of 850 W."""
    command = capped(tmp_path, 0.0, policy)
    jobs = CAPPED.format(power_w=0.0).replace("power_w = 0.0\n", "").replace("= 2", "= 3")
    (tmp_path / "w.toml").write_text(jobs)
    cluster = TWO_NODES.replace("[1-2]", "1").replace('"two"', '"one"')
    cluster = cluster.replace("power", "slots = 4\npower").replace("100.0, static_w = 50.0", "{}")
    (tmp_path / "c.toml").write_text(cluster.replace("{}", "800.0, static_w = 880.0"))
    assert main(command) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["makespan_s"] == 200.0 and not answer.err  # two, then one
    (tmp_path / "c.toml").write_text(cluster.replace("{}", "800.0"))
    assert main(command) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["makespan_s"] == 100.0
    assert "3 of 3 jobs state no power and their nodes no power model: they" in answer.err


def test_processors_have_the_cap_of_a_node_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.toml").write_text(CAPPED.format(power_w=900.0))
    command = ["simulate", "--workload", str(tmp_path / "w.toml"), "--processors", "2"]
    for policy, refused in (("fifo", 0), ("p-fifo", 2)):
        assert main([*command, "--policy", policy, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["refused"] == refused


def test_jobs_that_wait_for_ever_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(
        RACK.format(admission="in-order") + 'passes = { part = "ticks", every_s = 10.0 }\n'
    )
    command = capped(tmp_path, 200.0, str(tmp_path / "mine.toml"))
    wide = CAPPED.format(power_w=400.0).replace("[1, 1]", "[2, 2]").replace("[1]", "[2]")
    (tmp_path / "w.toml").write_text(wide)  # 200 W a node: one fits, and not the other
    assert main(command) == 2
    assert "waiting for ever: PowerCap" in capsys.readouterr().err


KINDS = """name = "kinds"
[[nodes]]
name = "n[1-2]"
memory_bandwidth_gb_s = 12.0
processors = [{ count = 1 }, { count = 1, factor = 3.0, socket_gb_s = 2.0, name = "gpu" }]
"""


@pytest.mark.promise("shared-nodes")
@pytest.mark.parametrize(
    ("gb_s", "first_s", "least_s"), [(0.0, 300.0, 300.0), (6.0, 300.0, 300.0), (9.0, 450.0, 100.0)]
)
def test_a_cluster_of_two_kinds_of_processors(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    gb_s: float,
    first_s: float,
    least_s: float,
) -> None:
    """The second job of 100 s: first fit gives it the slower processor of the first node.

    There it takes three times as long; of 9 GB/s it asks for 3 there, of which the socket has 2.
    LessConsume has it on the other node then.
    """
    cluster, workload, policy = (tmp_path / name for name in ("c.toml", "w.toml", "p.toml"))
    cluster.write_text(KINDS)
    jobs = "[[jobs]]\ncount = 2\nnodes = [1, 1]\nspeedup = { nodes = [1], time_s = [100.0] }\n"
    workload.write_text(f"{jobs}memory_bandwidth_gb_s = {gb_s}\n")
    for part, makespan_s in (("first-fit-shared", first_s), ("less-consume", least_s)):
        policy.write_text(f'placement = {{ part = "{part}" }}\n')
        words = ["--workload", str(workload), "--cluster", str(cluster), "--policy", str(policy)]
        assert main(["simulate", *words, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["makespan_s"] == pytest.approx(makespan_s)


SHARED = """name = "two"
[[nodes]]
name = "n[1-2]"
slots = 2
memory_bandwidth_gb_s = 10.0
power = { idle_w = 10.0, static_w = 40.0, off_w = 1.0 }
"""
FOUR = """[[jobs]]
count = 2
nodes = [1, 1]
speedup = { t1_s = 100.0, tc_s = 0.0 }
memory_bandwidth_gb_s = 9.0
[[jobs]]
count = 2
nodes = [1, 1]
speedup = { t1_s = 100.0, tc_s = 0.0 }
"""


@pytest.mark.promise("shared-nodes")
def test_a_cluster_whose_nodes_jobs_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two jobs that ask for 9 GB/s each share 10 GB/s of one node, or have one each."""
    cluster, workload, policy = (tmp_path / name for name in ("c.toml", "w.toml", "p.toml"))
    cluster.write_text(SHARED)
    workload.write_text(FOUR)

    def simulated(part: str, *more: str) -> int:
        policy.write_text(f'placement = {{ part = "{part}" }}\n')
        words = ["--workload", str(workload), "--policy", str(policy), "--json", "-", *more]
        return main(["simulate", *words])

    for part, makespan_s in (("first-fit-shared", 180.0), ("less-consume", 100.0)):
        assert simulated(part, "--cluster", str(cluster)) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["makespan_s"] == pytest.approx(makespan_s)
        assert result["energy_j"]["idle"] == pytest.approx(20.0 * makespan_s)
        assert result["energy_j"]["busy"] == pytest.approx(15.0 * 2 * (100.0 + makespan_s))
    assert simulated("less-consume", "--processors", "4") == 2
    assert "expected --cluster FILE.toml with a policy of shared nodes" in capsys.readouterr().err
    assert simulated("less-consume", "--cluster", str(cluster), "--mode", "malleable") == 0
    assert json.loads(capsys.readouterr().out)["makespan_s"] == pytest.approx(100.0)
    trace = ["simulate", "--trace", "no-such.swf", "--malleable", "100", "--policy", str(policy)]
    assert main(trace) == 2
    assert "expected a policy that gives whole nodes with --malleable" in capsys.readouterr().err
    for words, got in (
        (("--mtbf-node", "1"), "--mtbf-node"),
        (("--passes", "per-timestamp"), "per-time"),
    ):
        assert simulated("less-consume", "--cluster", str(cluster), *words) == 2
        assert f"got {got}" in capsys.readouterr().err


@pytest.mark.promise("shared-nodes")
def test_slurms_own_jobs_have_whole_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = str(JOBS / "less-consume.toml")
    words = ["--engine", "slurm", "--policy", policy, "--state", str(tmp_path / "s")]
    assert main(["serve", *words]) == 2
    assert "expected a policy that gives whole nodes with Slurm's, got" in capsys.readouterr().err
