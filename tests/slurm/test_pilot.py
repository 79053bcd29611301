"""Engine slurm-pilot: jobs as steps of one allocation, resized, lost, found and continued."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, program
from slurm_bed import Slurm
from slurm_daemon import Pilot, bare, piloted

from rms.launch.processes import program_name
from rms.wire.messages import WORLD_VARIABLE

MPDATA = f"{sys.executable} -m mpdata"
PACED = f"{' '.join(program('paced'))} {ROOT / 'mpdata' / '__main__.py'}"
SMALL = "--case random --grid 24 20 8 --backend numpy --every 2"
STEPS = 600
WINDS = Path(os.environ.get("MPDATA_WINDS", ROOT / "demo" / "winds"))
MONTHS = (1, 2, 3, 4, 5)
DAYS = "12"
TABLE: list[tuple[str, str, str]] = []

# Node selection is no matter of a pilot's: its resizes are within one allocation. One variant does.
pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print what every fault has come to."""
    yield
    print("\n")
    widths = [max(map(len, column)) for column in zip(*TABLE, strict=True)]
    for row in TABLE:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, asked: None) -> str:
    return bare(tmp_path_factory.mktemp("alone"), *SMALL.split(), "--steps", str(STEPS))


def mpdata(*more: str, pace_s: float = 0.05) -> str:
    """Return a launcher line of a run that takes its time until there is a file ``go``."""
    words = ["mpirun", PACED, "run", SMALL, "--steps", str(STEPS), *more]
    return f"PACE_S={pace_s:g} {' '.join(words)}"


SAVING = ("--checkpoint-dir", "saved", "--checkpoint-every", "40", "--restart")


def completed(pilot: Pilot, job: str, bits: str) -> dict[str, Any]:
    (pilot.work / "go").touch()
    assert pilot.over(job) == ["COMPLETED"], pilot.row(job)["reason"] + pilot.said()
    row = pilot.row(job)
    assert row["answer"] == bits
    return row


# --- resizes --------------------------------------------------------------------------------


@pytest.mark.skipif(not (WINDS / "uwnd_mean.nc").exists(), reason="no wind data (scripts/demo)")
@pytest.mark.promise("slurm-bits", "slurm-pilot")
def test_the_winds_array_shares_its_nodes(slurm: Slurm, tmp_path: Path) -> None:
    script = str(ROOT / "jobs" / "winds.sh")
    months = f"{MONTHS[0]}-{MONTHS[-1]}"
    with piloted(slurm, 4) as pilot:
        wide = pilot.submit(mpdata(pace_s=0.1), "--nodes", "1-4", "--mode", "flexible")
        assert pilot.running(wide)["size"] == 4
        array = pilot.ask(
            *["submit", "--array", months, script],
            MPDATA_WINDS=str(WINDS),
            WINDS_DAYS=DAYS,
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        )["id"]
        assert pilot.over(array) == ["COMPLETED"] * len(MONTHS)
        pilot.until(lambda: any(a < b for a, b in pilot.resizes(wide)), "a widened job")
        (pilot.work / "go").touch()
        assert pilot.over(wide) == ["COMPLETED"]
        pairs = ["--winds", str(WINDS / "uwnd_mean.nc"), str(WINDS / "vwnd_mean.nc")]
        for month in MONTHS:
            grid = ["--grid", "144", "60", "16", "--days", DAYS, "--month", str(month)]
            assert pilot.row(f"{array}_{month}")["answer"] == bare(tmp_path, *pairs, *grid)
        resizes = [pair for row in pilot.rows() for pair in pilot.resizes(row["id"])]
        assert any(a < b for a, b in resizes) and any(a > b for a, b in resizes), resizes
        assert pilot.resizes(wide)[0][0] == 4
        pilot.nothing_left()

        def recorded(row: dict[str, Any]) -> bool:
            """Every world that took over is a step of its own, on its nodes."""
            sizes = [row["resizes"][0]["from"]] if row["resizes"] else []
            sizes += [resize["to"] for resize in row["resizes"]]
            found = iter(map(len, pilot.recorded(row["id"])))
            return all(size in found for size in sizes)

        for row in pilot.rows():
            slurm.wait_until(
                lambda row=row: recorded(row),
                lambda row=row: f"steps of {row['resizes']}: {pilot.recorded(row['id'])}",
            )
            assert row["energy_source"] == "model" and row["energy_j"] > 0
        acct = pilot.ask("acct")
        assert [len(row["resizes"]) for row in acct] == [len(r["resizes"]) for r in pilot.rows()]
        pilot.books_balance()
        assert "power is the model's on n" in pilot.said()  # once for all nodes
        assert pilot.said().count("power is the model's on n") == 1
        assert pilot.end(signal.SIGTERM) == 0
        pilot.replays()
        slurm.wait_until(lambda: not pilot.steps(), "no step left")


def test_merge_and_spawn_reach_the_new_nodes(slurm: Slurm, alone: str) -> None:
    with piloted(slurm, 4, "--policy", "fifo") as pilot:
        options = ("--nodes", "1-3", "--preferred", "1", "--mode", "malleable")
        ways = {
            pilot.submit(mpdata("--strategy", way), *options): way for way in ("merge", "spawn")
        }
        for job in ways:
            pilot.running(job)
            pilot.resized(job, 2)
        nodes = {job: set(pilot.row(job)["nodes"]) for job in ways}
        wanted = sorted((job, node) for job in ways for node in nodes[job])
        pilot.until(lambda: ran(pilot) == wanted, f"{wanted}")  # the old ranks are leaving yet
        for job in ways:
            pilot.resized(job, 1)
        for job, way in ways.items():
            row = completed(pilot, job, alone)
            assert pilot.resizes(job) == [(1, 2), (2, 1)]
            assert [resize["strategy"] for resize in row["resizes"]] == [way, way]
        options = ("--nodes", "1-3", "--preferred", "3", "--mode", "malleable")
        per_node = pilot.submit(mpdata(), *options, DMR_LAUNCHES="node")
        pilot.running(per_node)
        nodes = pilot.row(per_node)["nodes"]
        pilot.resized(per_node, 1)
        pilot.until(lambda: ran(pilot) == [(per_node, nodes[0])], "one rank on its first node")
        (resize,) = completed(pilot, per_node, alone)["resizes"]
        assert (resize["from"], resize["to"]) == (3, 1)
        assert resize["strategy"] == "merge" and resize["boot_s"] == 0.0
        pilot.nothing_left()


def ran(pilot: Pilot) -> list[tuple[str, str]]:
    """Return the job and the node of each MPI rank there is, sorted."""
    found = []
    for pid in pilot.processes():
        try:
            items = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        except OSError:
            continue
        env = dict(item.split("=", 1) for item in items if "=" in item)
        if "PMI_RANK" in env:
            found.append((env["RMS_JOB_ID"], env["SLURMD_NODENAME"]))
    return sorted(found)


def test_another_way_to_reach_nodes_and_powers_by_name(slurm: Slurm, alone: str) -> None:
    file = slurm.folder / "tmp" / "powers.toml"
    file.write_text(
        'name = "x"\n[[nodes]]\nname = "n[1,3-4]"\ncores = 2\n'
        "power = { idle_w = 10.0, static_w = 40.0, dynamic_w = 50.0 }\n"
        '[[nodes]]\nname = "n2"\npower = { idle_w = 1.0, static_w = 2.0, dynamic_w = 3.0 }\n'
    )
    with piloted(slurm, 2, "--reach", "fork", "--cluster", str(file), "--policy", "fifo") as pilot:
        names = [node["name"] for node in pilot.ask("nodes")]
        job = pilot.submit(mpdata(), "--nodes", "2")
        completed(pilot, job, alone)
        row = pilot.row(job)
        watts = 90.0 + (5.0 if "n2" in names else 90.0)
        assert row["energy_j"] == pytest.approx(watts * (row["end_s"] - row["start_s"]))
        pilot.books_balance()


# --- the allocation ends --------------------------------------------------------------------


@pytest.mark.promise("slurm-pilot")
def test_it_goes_on_in_the_next_allocation(slurm: Slurm, alone: str) -> None:
    note = 'echo "$SLURM_JOB_ID" >> starts\n'
    with piloted(slurm, 3, "--policy", "fifo", "--grace", "5", "--margin", "26") as pilot:
        job = pilot.submit(
            note + mpdata(*SAVING), "--nodes", "1-3", "--mode", "flexible", "--preferred", "2"
        )
        lost = pilot.submit("#SBATCH --no-requeue\nexec sleep 300")
        wide = pilot.submit(note, "--nodes", "3")
        last = pilot.submit(f"{note}sleep 0.1", "--nodes", "1-2")
        pilot.running(job, 120)
        # Slurm would end it in half a minute: read again, and acted on in time.
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 28))
        slurm("scontrol", "update", f"jobid={pilot.allocation}", f"EndTime={end}")
        assert pilot.process is not None
        assert pilot.process.wait(180) == 0, pilot.said()
        (left_s,) = re.findall(r"ends in (\d+) s", pilot.said())
        assert 5 < int(left_s) <= 28 and f"job {job}: requested to end" in pilot.said()
        assert slurm.show(pilot.allocation)["JobState"] == "RUNNING"
        slurm.wait_until(lambda: not pilot.steps(), "no step left")
        assert not pilot.processes()
        pilot.replays()
        ended_s = time.time()
        slurm("scancel", pilot.allocation)
        slurm.wait_until(lambda: len(slurm.idle()) == 4, "idle nodes")

        time.sleep(2.0)  # without an allocation no time is booked
        pilot.allocate(2, "--nodelist=n3,n4")
        begun_s = time.time()
        pilot.start()
        assert [node["name"] for node in pilot.ask("nodes")] == ["n3", "n4"]
        assert pilot.row(lost)["state"] == "CANCELLED"
        assert "needs 3 nodes, the cluster has 2 nodes" in pilot.row(wide)["reason"]
        assert pilot.row(wide)["state"] == "PENDING"
        pilot.running(job, 120)
        output = Path(pilot.row(job)["output"]).read_text()
        (resumed,) = set(re.findall(r"continuing at step (\d+)|at step (\d+)", output)) or {
            ("", "")
        }
        assert any(int(step) >= 40 for step in resumed if step), output
        # Slurm's own warning (--signal) is heeded alike.
        assert pilot.end(signal.SIGUSR1) == 0
        pilot.replays()

        pilot.start()  # in the same allocation: what was decided is done
        row = completed(pilot, job, alone)
        assert pilot.over(last) == ["COMPLETED"]
        pilot.books_balance()
        assert row["energy_j"] > 0
        assert pilot.end(signal.SIGTERM) == 0

        slurm("scancel", pilot.allocation)
        slurm.wait_until(lambda: len(slurm.idle()) == 4, "idle nodes")
        pilot.allocate(4)
        pilot.start()
        assert pilot.over(wide) == ["COMPLETED"]
        assert (pilot.work / "starts").read_text().split() == [job, job, job, last, wide]
        pilot.books_balance()
        booked = books(pilot)
        most = 4 * 2.0 * (time.time() - begun_s) + 3 * 2.0 * (ended_s - booked["first_s"])
        assert booked["idle_j"] < most
        assert pilot.end(signal.SIGTERM) == 0
        pilot.replays()


def books(pilot: Pilot) -> dict[str, float]:
    found = pilot.get("/books")
    return {**found["energy"], "first_s": min(row["submit_s"] for row in pilot.rows())}


def test_the_shipped_script_serves_again_and_again(slurm: Slurm, tmp_path: Path) -> None:
    state = Path(tempfile.mkdtemp(prefix="pilot-", dir="/tmp"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"RMS_STATE": str(state), "PATH": path}
    output = tmp_path / "pilot.out"

    def serve(times: int) -> str:
        """Submit the script; return the number of its job once that serves."""
        script = str(ROOT / "jobs" / "pilot.sh")
        options = ["--parsable", "--nodes=2", "--time=10", f"--output={output}"]
        job = slurm("sbatch", *options, script, **env).strip()
        slurm.wait_until(
            lambda: output.exists() and output.read_text().count("serving at") == times,
            "a serving daemon",
        )
        return job

    def rms(*words: str) -> Any:
        command = [sys.executable, "-m", "rms", *words, "--json", "-"]
        done = slurm.run(*command, deadline_s=60, **env)
        assert done.returncode == 0, done.stderr + output.read_text()
        return json.loads(done.stdout)

    try:
        first = serve(1)
        body = tmp_path / "job.sh"
        body.write_text("#!/bin/sh\necho begun >> begun\nuntil [ -e go ]; do sleep 0.1; done\n")
        job = rms("submit", str(body))["id"]
        begun = slurm.folder / "tmp" / "begun"
        slurm.wait_until(begun.exists, "a begun script")
        assert len(rms("nodes")) == 2
        slurm("scancel", "--batch", "--signal=TERM", first)
        slurm.wait_until(lambda: slurm.show(first)["JobState"] == "COMPLETED", "its end")
        serve(2)
        (slurm.folder / "tmp" / "go").touch()
        slurm.wait_until(lambda: rms("show", job)[0]["state"] == "COMPLETED", "the job's end")
        assert begun.read_text() == "begun\nbegun\n"
    finally:
        slurm.run("scancel", "--name=pilot")
        slurm.wait_until(lambda: not slurm("squeue", "--noheader", "--name=pilot"), "no pilot")
        shutil.rmtree(state, ignore_errors=True)


def test_a_killed_daemon_comes_back_to_the_same_resize(slurm: Slurm, alone: str) -> None:
    with piloted(slurm, 3, "--policy", "fifo") as pilot:
        options = ("--nodes", "1-3", "--preferred", "1", "--mode", "malleable")
        job = pilot.submit(mpdata(), *options)
        for size, until in ((3, {"booting"}), (2, {"ready", "moving", "leaving"})):
            pilot.running(job)
            pilot.until(
                lambda size=size: not pilot.rms("resize", job, str(size)).returncode, "resize"
            )
            pilot.until(lambda until=until: pilot.row(job)["resizing"] in until, str(until))
            pilot.end(signal.SIGKILL)
            pilot.start()
            pilot.until(lambda size=size: pilot.row(job)["size"] == size, f"size {size}")
        assert pilot.said().count(f"job {job}: adopted") == 2
        completed(pilot, job, alone)
        assert pilot.resizes(job) == [(1, 3), (3, 2)]
        pilot.nothing_left()
        pilot.ends_well()


# --- nodes ----------------------------------------------------------------------------------


def test_drained_nodes_are_left_alone(slurm: Slurm, alone: str) -> None:
    with piloted(slurm, 2, "--policy", "fifo") as pilot:
        job = pilot.submit(mpdata())
        on = pilot.running(job)["nodes"][0]
        both = [node["name"] for node in pilot.ask("nodes")]
        other = both[both[0] == on]
        pilot.ask("drain", on)
        states = {node["name"]: node["state"] for node in pilot.ask("nodes")}
        assert states == {on: "draining", other: "idle"}
        pilot.ask("drain", ",".join(both))
        waits = pilot.submit("true")
        completed(pilot, job, alone)
        assert pilot.row(waits)["state"] == "PENDING"
        assert {node["state"] for node in pilot.ask("nodes")} == {"drained"}
        pilot.end(signal.SIGKILL)
        pilot.start()
        assert {node["state"] for node in pilot.ask("nodes")} == {"drained"}
        bad = pilot.rms("drain", "n9")
        assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "n9" in bad.stderr
        pilot.ask("resume", other)
        assert pilot.over(waits) == ["COMPLETED"]


# --- faults ---------------------------------------------------------------------------------


def test_cancelled_steps(slurm: Slurm, alone: str) -> None:
    with piloted(slurm, 2, "--policy", "fifo") as pilot:
        options = ("--nodes", "1-2", "--preferred", "1", "--mode", "malleable")
        job = pilot.submit(mpdata(*SAVING), *options)
        pilot.running(job, 60)
        old, new = pilot.world(job, 0), pilot.world(job, 1)
        pilot.ask("resize", job, "2")
        step, _ = pilot.until(lambda: pilot.steps().get(new), "step of the new world")
        slurm("scancel", step)
        pilot.until(lambda: pilot.rolled_back(job), "rollback")
        why = pilot.rolled_back(job)[0]
        TABLE.append(("scancel of the new world's step", "rolled back, same bits", why))
        pilot.until(lambda: not pilot.rms("resize", job, "2").returncode, "resize")
        slurm("scancel", pilot.steps()[old][0])
        pilot.until(lambda: "requeued" in pilot.said(), "requeue")
        completed(pilot, job, alone)
        why = re.findall(rf"job {job}: (.*; requeued)", pilot.said())[0]
        TABLE.append(("scancel of the running world's step", "requeued, same bits", why))
        pilot.nothing_left()


def test_a_world_that_is_ended_before_its_ranks_start(slurm: Slurm, alone: str) -> None:
    """Slurm keeps a step for good whose srun is killed before it has started its tasks."""
    with piloted(slurm, 2, "--policy", "fifo") as pilot:
        hold, waits, tools = (pilot.folder / name for name in ("hold", "waits", "tools"))
        tools.mkdir()
        prolog = tools / "prolog"  # runs between the creation of a step and the start of its tasks
        prolog.write_text(f"#!/bin/sh\nwhile [ -e {hold} ]; do : > {waits}; sleep 0.05; done\n")
        srun = tools / "srun"
        srun.write_text(f'#!/bin/sh\nexec {shutil.which("srun")} --prolog={prolog} "$@"\n')
        for tool in (prolog, srun):
            tool.chmod(0o755)
        options = ("--nodes", "1-2", "--preferred", "1", "--mode", "malleable")
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        job = pilot.submit(mpdata(), *options, PATH=path)
        pilot.running(job, 20)
        hold.touch()
        pilot.ask("resize", job, "2")
        pilot.until(waits.exists, "step of the new world")
        (pilot.work / "go").touch()

        def only_srun() -> bool:
            new = [pid for pid, env in pilot.processes().items() if env.get(WORLD_VARIABLE) == "1"]
            return {program_name(pid) for pid in new} <= {"srun", "prolog", "sleep", ""}

        pilot.until(only_srun, "end of the new world's mpiexec")
        hold.unlink()
        # The job may end before Slurm answers that the node of the new world is released.
        assert completed(pilot, job, alone)["resizes"] == []
        pilot.nothing_left()


def test_a_controller_that_is_away(slurm: Slurm, alone: str) -> None:
    short = ("--policy", "fifo", "--boot-deadline", "8")
    with piloted(slurm, 3, *short) as pilot:
        options = ("--nodes", "1-2", "--preferred", "1", "--mode", "malleable")
        job = pilot.submit(mpdata(pace_s=0.2), *options)
        pilot.running(job)
        slurm.stop("slurmctld")
        try:
            pilot.ask("resize", job, "2")
            late = pilot.submit(mpdata())  # its srun fails, or waits for the controller
            pilot.until(lambda: pilot.row(job)["resizing"] == "closing", "end of the boot")
            pilot.running(job, pilot.row(job)["step"] + 20)  # it goes on all the time
        finally:
            slurm.repair()
        pilot.until(lambda: pilot.rolled_back(job), "rollback")
        pilot.end(signal.SIGKILL)
        pilot.start("--boot-deadline", "120")
        pilot.resized(job, 2)
        completed(pilot, job, alone)
        completed(pilot, late, alone)
        why = pilot.rolled_back(job)[0]
        TABLE.append(("slurmctld away: a running job", "went on, same bits", ""))
        TABLE.append(("  its resize", "rolled back", why))
        TABLE.append(("  a new job", "began when it was back, same bits", ""))
        pilot.nothing_left()


def test_a_node_that_goes_down(slurm: Slurm, alone: str) -> None:
    with contextlib.ExitStack() as mend, piloted(slurm, 3, "--policy", "fifo") as pilot:
        lines = [mpdata(*SAVING, pace_s=0.2).replace("saved", name) for name in ("one", "two")]
        jobs = [pilot.submit(line) for line in lines]
        opted = pilot.submit("#SBATCH --no-requeue\nexec sleep 300")
        for job in jobs:
            pilot.running(job)
        pilot.until(lambda: pilot.row(opted)["state"] == "RUNNING", "start")
        (down,) = pilot.row(jobs[1])["nodes"]
        slurm.stop(down)
        mend.callback(slurm.repair)
        pilot.until(
            lambda: {n["name"]: n["state"] for n in pilot.ask("nodes")}[down] == "down",
            "a node that is down",
        )
        pilot.until(lambda: f"job {jobs[1]}: lost its nodes" in pilot.said(), "requeue")
        assert pilot.row(jobs[0])["state"] == "RUNNING"
        pilot.until(lambda: pilot.row(jobs[1])["state"] == "PENDING", "end of the lost run")
        pilot.ask("cancel", opted)
        pilot.until(lambda: pilot.row(jobs[1])["state"] == "RUNNING", "start elsewhere")
        assert down not in pilot.row(jobs[1])["nodes"]
        pilot.ask("cancel", jobs[0])
        pilot.ask("cancel", jobs[1])
        pilot.over(*jobs)
        why = re.findall(rf"job {jobs[1]}: (lost .*)", pilot.said())[0]
        TABLE.append(("slurmd killed", "requeued, then on another node", why))
        TABLE.append(("  a job on another node", "went on", ""))


def test_an_allocation_that_is_cancelled(slurm: Slurm, alone: str) -> None:
    with piloted(slurm, 2, "--policy", "fifo") as pilot:
        options = ("--nodes", "1-2", "--preferred", "1", "--mode", "malleable")
        job = pilot.submit(mpdata(*SAVING), *options)
        opted = pilot.submit("#SBATCH --no-requeue\nexec sleep 300")
        pilot.running(job, 60)
        pilot.until(lambda: pilot.row(opted)["state"] == "RUNNING", "start")
        slurm("scancel", pilot.allocation)
        assert pilot.process is not None
        assert pilot.process.wait(180) == 0, pilot.said()
        pilot.replays()
        slurm.wait_until(lambda: len(slurm.idle()) == 4, "idle nodes")
        pilot.allocate(1)
        pilot.start()
        completed(pilot, job, alone)
        assert pilot.over(opted)[0] in ("CANCELLED", "FAILED")  # which of two was seen first
        TABLE.append(("scancel of the allocation", "requeued, continued in the next", ""))
        pilot.books_balance()


# --- files ----------------------------------------------------------------------------------


def test_a_record_that_is_seen_late(slurm: Slurm, alone: str) -> None:
    with piloted(slurm, 1) as pilot:
        # Written elsewhere and moved into place some seconds later, as a shared folder may show it.
        late = 'R=$DMR_COMPLETION; export DMR_COMPLETION=$R.late; exec "$@"'
        (pilot.work / "late.sh").write_text(f"#!/bin/sh\n{late}\n")
        (pilot.work / "late.sh").chmod(0o755)
        where = pilot.state / "jobs" / "1" / "completion-0.json"
        move = f"(until [ -e {where}.late ]; do sleep 0.2; done; sleep 4; mv {where}.late {where})"
        line = mpdata().replace("mpirun", "mpirun ./late.sh")
        job = pilot.submit(f"{move} &\n{line}\nwait")
        completed(pilot, job, alone)
