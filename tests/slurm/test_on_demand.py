"""``rms pilot``: allocations come and go with what waits, whatever dies of them or beside them."""

from __future__ import annotations

import re
import signal

import pytest
from on_demand import on_demand
from processes import ROOT, program
from slurm_bed import Slurm
from slurm_daemon import bare

PACED = f"PACE_S=0.05 mpirun {' '.join(program('paced'))} {ROOT / 'mpdata' / '__main__.py'}"
SMALL = "--case random --grid 24 20 8 --backend numpy --every 2 --steps 300"
MPDATA = f"{PACED} run {SMALL}"
SAVING = "--checkpoint-dir saved --checkpoint-every 20 --restart"

# How Slurm chooses nodes is no matter of a pilot's. One variant does.
pytestmark = [
    pytest.mark.promise("pilot-on-demand"),
    pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, asked: None) -> str:
    return bare(tmp_path_factory.mktemp("alone"), *SMALL.split())


def another(slurm: Slurm, nodes: int) -> str:
    """Return a job of another user's, which runs."""
    slurm.folder.parent.chmod(0o711)  # they are to reach the script in there
    return slurm.submit("--uid=nobody", f"--nodes={nodes}", "--chdir=/tmp", "--output=/dev/null")


def shown(slurm: Slurm, job: str) -> dict[str, str]:
    """Return what must not change of a job that is left alone."""
    known = slurm.show(job)
    return {key: known[key] for key in ("JobState", "UserId", "StartTime", "NodeList", "Restarts")}


def test_allocations_follow_the_queue_beside_another_users_job(slurm: Slurm) -> None:
    other = another(slurm, 1)
    before = shown(slurm, other)
    with on_demand(slurm, "--on-demand", "--max-nodes", "3") as rms:
        assert not rms.allocations()
        table: list[tuple[int, int, int]] = []

        def look() -> tuple[int, int, int]:
            """Return how many jobs wait and run, and how many nodes are held."""
            before, held, after = rms.rows(), rms.held(), {row["id"]: row for row in rms.rows()}
            for row in before:  # jobs that run before and after the nodes are counted
                if row["state"] == after[row["id"]]["state"] == "RUNNING":
                    assert set(row["nodes"]) <= held
            states = [row["state"] for row in before]
            runs = states.count("CONFIGURING") + states.count("RUNNING")
            now = states.count("PENDING"), runs, len(held)
            if not table or table[-1] != now:
                table.append(now)
            return now

        one = rms.submit("sleep 1", "--nodes", "1", "--time", "1")
        rms.until(lambda: look()[2] == 1, "an allocation")
        array = rms.submit("sleep 1", "--array", "1-9", "--nodes", "1", "--time", "1")
        wide = rms.submit("sleep 1", "--nodes", "3", "--time", "1")
        refused = rms.rms("submit", "--nodes", "4", "--time", "1", "--", "true")
        assert refused.returncode == 2 and "at most 3 nodes, as are held" in refused.stderr
        waits = ("--time", "600", "--wait-for-nodes")
        never = rms.submit("true", "--nodes", "4", "--time", "1", "--wait-for-nodes")
        long = rms.submit("true", "--nodes", "1", *waits)
        rms.until(lambda: look()[2] == 3, "as many nodes as it may have")
        rms.until(lambda: look() == (2, 0, 0), "a queue that is empty, and no node held")
        assert rms.over(one, wide) == ["COMPLETED"] * 2
        assert rms.over(array) == ["COMPLETED"] * 9
        assert "TooWide: needs 4 nodes, at most 3 are held" in rms.row(never)["reason"]
        why = rms.ask("explain", long)[-1]["reason"]
        assert why == "AllocationEnds: needs 36000 s to end, allocations last for 3560 s"
        assert max(held for _, _, held in table) == 3
        print("\n  wait   run  held")
        for row in table:
            print("".join(f"{number:6}" for number in row))
        print(rms.said())
        assert shown(slurm, other) == before
        rms.ask("cancel", never, long)
        assert rms.end(signal.SIGTERM) == 0
        rms.replays()


def test_a_job_has_nodes_of_several_allocations(slurm: Slurm, alone: str) -> None:
    with on_demand(slurm, "--keep", "1", "--on-demand", "--max-nodes", "3") as rms:
        rms.until(lambda: len(rms.held()) == 1, "the node that is kept")
        job = rms.submit(MPDATA, "--nodes", "1-3", "--preferred", "2", "--mode", "malleable")
        assert rms.running(job)["size"] == 2
        assert sorted(map(len, rms.allocations("RUNNING").values())) == [1, 1]
        assert set(rms.row(job)["nodes"]) == rms.held()
        first, last = sorted(rms.allocations("RUNNING"), key=int)
        (kept,) = rms.allocations("RUNNING")[first]
        end = slurm("date", "-d", "+95 seconds", "+%Y-%m-%dT%H:%M:%S").strip()
        slurm("scontrol", "update", f"jobid={last}", f"EndTime={end}")
        rms.until(lambda: rms.row(job)["nodes"] == [kept], "the job on the node that stays")
        rms.until(lambda: rms.held() == {kept}, "the end of one allocation, before its time")
        assert rms.resizes(job) == [(2, 1)] and "requested to end" not in rms.said()
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        assert rms.row(job)["answer"] == alone
        rms.nothing_left()
        rms.until(lambda: rms.held() == {kept}, "the node that is kept, alone")
        rms.ask("drain", kept)
        rms.until(lambda: len(rms.held() - {kept}) == 1, "another node instead of a drained one")
        rms.until(lambda: len(rms.held()) == 1, "no more nodes than are kept")
        assert rms.end(signal.SIGTERM) == 0
        assert not rms.allocations()


def test_it_goes_on_with_what_the_one_before_had(slurm: Slurm, alone: str) -> None:
    another(slurm, 2)
    with on_demand(slurm, "--on-demand") as rms:
        job = rms.submit(MPDATA, "--nodes", "1", "--mode", "fixed")
        rms.running(job)
        wide = rms.submit("true", "--nodes", "2")
        rms.until(lambda: len(rms.allocations()) == 2, "an allocation that waits")
        rms.until(lambda: "waits in Slurm: Resources" in rms.row(wide)["reason"], "why it waits")
        before = rms.allocations()
        rms.end(signal.SIGKILL)
        rms.start()
        rms.until(lambda: f"job {job}: adopted" in rms.said(), "the job")
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        assert rms.row(job)["answer"] == alone and not rms.row(job)["resizes"]
        assert rms.over(wide) == ["COMPLETED"]  # one node was left, and one came
        rms.all_let_go()
        assert re.findall(r"allocation (\d+) asked for", rms.said()) == sorted(before, key=int)


def test_an_allocation_that_dies_costs_no_job(slurm: Slurm, alone: str) -> None:
    with on_demand(slurm, "--on-demand", "--max-nodes", "2") as rms:
        job = rms.submit(f"{MPDATA} {SAVING}", "--nodes", "1-2", "--mode", "flexible")
        rms.running(job, 40)
        first = set(rms.allocations())
        slurm("scancel", *first)
        rms.until(lambda: "requeued" in rms.said(), "a job that waits again")
        rms.until(lambda: set(rms.allocations("RUNNING")) - first, "another allocation")
        slurm.stop("slurmctld")
        later = rms.submit("true", "--nodes", "1")
        slurm.repair()
        rms.hurry()
        assert rms.over(job, later) == ["COMPLETED"] * 2
        assert rms.row(job)["answer"] == alone
        rms.all_let_go()
        assert rms.end(signal.SIGTERM) == 0
        rms.replays()


def test_before_an_allocation_ends_its_jobs_go_on_elsewhere(slurm: Slurm, alone: str) -> None:
    options = ("--on-demand", "--max-nodes", "2", "--grace", "5", "--margin", "26")
    with on_demand(slurm, *options) as rms:
        job = rms.submit(f"{MPDATA} {SAVING}", "--nodes", "1-2", "--mode", "flexible")
        rms.running(job, 40)
        (first,) = rms.allocations()
        end = slurm("date", "-d", "+40 seconds", "+%Y-%m-%dT%H:%M:%S").strip()
        slurm("scontrol", "update", f"jobid={first}", f"EndTime={end}")
        late = rms.submit("true", "--nodes", "1", "--time", "10")
        rms.until(
            lambda: f"job {job}: requested to end, as its allocation ends" in rms.said(), "its end"
        )
        assert slurm.show(first)["JobState"] == "RUNNING"
        rms.until(lambda: set(rms.allocations("RUNNING")) - {first}, "another allocation")
        rms.hurry()
        assert rms.over(job, late) == ["COMPLETED"] * 2
        assert rms.row(job)["answer"] == alone


def test_what_slurm_refuses_is_said_and_not_asked_for_all_the_time(slurm: Slurm) -> None:
    with on_demand(slurm, "--on-demand", "--", "--licenses=none_such:1") as rms:
        job = rms.submit("true")
        rms.until(lambda: "Slurm refuses an allocation" in rms.row(job)["reason"], "the refusal")
        assert "the next is asked for in 30 s" in rms.said()
        rms.ask("cancel", job)
