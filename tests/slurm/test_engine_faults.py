"""Faults under engine ``slurm``, on a real Slurm: what came of each, as a table."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from slurm_bed import NODES, Slurm, brought_up
from slurm_daemon import CASE, STEPS, SlurmRms, bare, serving, write_script

TABLE: list[tuple[str, str, str, str]] = []


# What goes wrong does so under either selection of nodes; that resizes work is tried under both.
one_select = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def table() -> Iterator[None]:
    """Print what every fault has come to."""
    yield
    rows = [("fault", "what came of it", "job", "donors, nodes"), *TABLE]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("\n")
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


@pytest.fixture
def rms(slurm: Slurm) -> Iterator[SlurmRms]:
    with serving(slurm, "--policy", "fifo", "--grace", "5") as found:
        yield found


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every job has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


def started(rms: SlurmRms, *lines: str, nodes: int = 2) -> str:
    """Have a malleable job compute on so many nodes."""
    write_script(rms, "#SBATCH --nodes=1-4", f"#RMS --mode=malleable --preferred={nodes}", *lines)
    job = rms.submit_file()
    rms.running(job)
    return job


def ends(
    rms: SlurmRms, fault: str, outcome: str, job: str, expected: str, answer: str = ""
) -> None:
    """See how a job ends, and that nothing is left of it; enter that in the table."""
    rms.hurry()
    (state,) = rms.over(job)
    assert state == expected, rms.said()
    if expected == "COMPLETED":
        assert rms.row(job)["answer"] == answer
    rms.nothing_left()
    TABLE.append((fault, outcome, state, f"no donor, {len(rms.bed.idle())} of {NODES} idle"))


def caught(rms: SlurmRms, job: str, state: str) -> None:
    """Wait until a resize is in this state."""
    rms.until(lambda: rms.row(job)["resizing"] == state, f"{state} of job {job}", every_s=0.002)


@one_select
@pytest.mark.parametrize("state", ["granting", "booting"])
@pytest.mark.promise("slurm-faults")
def test_scancel_in_a_resize(rms: SlurmRms, state: str) -> None:
    job = started(rms)
    rms.resize(job, 4)
    caught(rms, job, state)
    rms.bed("scancel", str(rms.number(job)))
    ends(rms, f"scancel while {state}", "the job ends, and its new world", job, "CANCELLED")


@one_select
def test_scancel_of_a_job_that_waits(rms: SlurmRms, answer: str) -> None:
    """By the hand of its owner: it is cancelled, not tried again."""
    rms.bed.run("scontrol", "update", "partitionname=all", "state=down")
    try:
        write_script(rms, "#SBATCH --nodes=2")
        job = rms.submit_file()
        rms.until(lambda: rms.row(job)["slurm"].get("slurm_job"), "number")
        time.sleep(7)  # longer than nodes are waited for: a partition that is down is no such wait
        assert rms.row(job)["state"] == "CONFIGURING"
        rms.bed("scancel", str(rms.number(job)))
        ends(rms, "scancel of a waiting job", "ended", job, "CANCELLED")
    finally:
        rms.bed.run("scontrol", "update", "partitionname=all", "state=up")


@one_select
def test_the_controller_is_away(rms: SlurmRms, answer: str) -> None:
    """While a running job is resized, and another is handed in."""
    job = started(rms, nodes=1)
    rms.bed.stop("slurmctld")
    rms.resize(job, 2)
    write_script(rms, "#SBATCH --nodes=1")
    other = rms.submit_file()
    rms.running(job, rms.row(job)["step"] + 20)  # it goes on all the time
    rms.bed.repair()
    rms.settled(job, 1)
    assert len(rms.row(job)["nodes"]) == 2
    rms.running(other)
    rms.hurry()
    assert rms.over(other) == ["COMPLETED"]
    ends(
        rms,
        "slurmctld away for a while",
        "went on; resized on its return",
        job,
        "COMPLETED",
        answer,
    )


@one_select
def test_a_node_dies(rms: SlurmRms, answer: str) -> None:
    """Its slurmd is killed, and what ran there: the job waits again and runs elsewhere."""
    job = started(rms, "#SBATCH --requeue")
    first, second = rms.row(job)["nodes"]
    before = rms.number(job)
    os.kill(rms.bed.record["running"].pop(second), signal.SIGKILL)
    rms.until(
        lambda: rms.row(job)["state"] == "RUNNING" and rms.number(job) != before,
        "the job on other nodes",
    )
    rms.running(job)
    assert second not in rms.row(job)["nodes"]
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"]
    rms.bed.repair()
    ends(rms, "slurmd killed", "requeued, on other nodes", job, "COMPLETED", answer)
    assert first


@one_select
@pytest.mark.promise("slurm-faults")
def test_others_took_the_nodes_of_a_resize(rms: SlurmRms, answer: str) -> None:
    """Before the next look at Slurm: it is refused in its words, and goes through later."""
    job = started(rms, nodes=1)
    with rms.without_a_look():
        by_hand = rms.bed.allocate("--nodes=3", "--job-name=byhand")
        rms.resize(job, 3)
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert "later: " in rms.rolled_back(job)[0]
    assert not rms.row(job)["resizing"]
    rms.bed("scancel", by_hand)
    rms.resize(job, 3)
    rms.settled(job, 1)
    ends(
        rms, "others took the nodes of a resize", rms.rolled_back(job)[0], job, "COMPLETED", answer
    )


@one_select
def test_others_took_the_nodes_of_a_start(rms: SlurmRms, answer: str) -> None:
    """It waits in Slurm for a while, then in the RMS, until there are others."""
    write_script(rms, "#SBATCH --nodes=2", steps=STEPS)
    with rms.without_a_look():
        by_hand = rms.bed.allocate("--nodes=4", "--job-name=byhand")
        job = rms.submit_now()
        rms.until(lambda: rms.row(job)["slurm"].get("slurm_job"), "number")
    rms.until(lambda: "requeued" in rms.said(), "pending again")
    assert rms.row(job)["state"] == "PENDING"
    rms.bed("scancel", by_hand)
    ends(rms, "others took the nodes of a start", "requeued", job, "COMPLETED", answer)


@one_select
def test_permission_is_refused(rms: SlurmRms, answer: str) -> None:
    """A site that lets no running job grow any more: rolled back, with Slurm's words."""
    job = started(rms)
    conf = rms.bed.folder / "etc" / "slurm.conf"
    text = conf.read_text()
    conf.write_text(text.replace("permit_job_expansion,", ""))
    try:
        rms.bed("scontrol", "reconfigure")
        rms.resize(job, 3)
        rms.until(lambda: rms.rolled_back(job), "rollback")
    finally:
        conf.write_text(text)
        rms.bed.stop("slurmctld")  # which takes it away at a word, but gives it at a start only
        rms.bed.repair()
    assert "salloc failed" in rms.rolled_back(job)[0]
    assert len(rms.row(job)["nodes"]) == 2
    ends(rms, "permission refused", rms.rolled_back(job)[0], job, "COMPLETED", answer)


@one_select
def test_the_batch_host_stays(rms: SlurmRms, answer: str) -> None:
    """The node of a job's script cannot be taken from it: refused before anything is done."""
    job = started(rms)
    rms.post("/resize", {"id": job, "nodes": 2, "on": "n3,n4"})
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert "Slurm cannot take" in rms.rolled_back(job)[0]
    ends(rms, "a resize off the batch host", rms.rolled_back(job)[0], job, "COMPLETED", answer)


@one_select
def test_the_time_limit(rms: SlurmRms) -> None:
    write_script(rms, "#SBATCH --nodes=2", "#SBATCH --time=0:06", steps=100_000)
    job = rms.submit_file()
    (state,) = rms.over(job)
    rms.nothing_left()
    TABLE.append(
        ("time limit reached", rms.row(job)["reason"][:40], state, "no donor, 4 of 4 idle")
    )
    assert state == "TIMEOUT"


@one_select
@pytest.mark.parametrize("state", ["granting", "booting", "leaving", "releasing"])
@pytest.mark.promise("slurm-faults")
def test_the_daemon_is_killed_in_a_resize(rms: SlurmRms, answer: str, state: str) -> None:
    grows = state in ("granting", "booting")
    job = started(rms, nodes=2 if grows else 3)
    rms.resize(job, 4 if grows else 1)
    caught(rms, job, state)
    rms.end(signal.SIGKILL)
    rms.start()
    rms.until(lambda: not rms.row(job)["resizing"], "the end of the resize")
    size = len(rms.row(job)["nodes"])
    assert size == (4 if grows else 1), rms.rolled_back(job)
    held = [len(entry["nodes"]) for entry in rms.row(job)["slurm"]["held"]]
    assert held[-1] == size
    fault = f"daemon killed -9 while {state}"
    ends(rms, fault, f"adopted, {held[0]} -> {size} nodes", job, "COMPLETED", answer)


@one_select
def test_the_daemon_is_killed_as_it_submits(rms: SlurmRms, answer: str) -> None:
    """The job is submitted once, whether the daemon had its number already or not."""
    write_script(rms, "#SBATCH --nodes=2")
    job = rms.submit_now()
    rms.end(signal.SIGKILL)
    rms.start()
    rms.running(job)
    names = rms.bed("squeue", "--noheader", "--states=all", "--format=%j").split()
    assert len([name for name in names if name == rms.name(job)]) == 1
    ends(rms, "daemon killed -9 as it submits", "submitted once", job, "COMPLETED", answer)


@one_select
@pytest.mark.promise("slurm-faults")
def test_a_stray_donor(rms: SlurmRms, answer: str) -> None:
    """What a daemon that was killed between donor and merge has left is found by its name."""
    job = started(rms)
    number, donor = rms.number(job), rms.name(job).replace("rms.", "rms-donor.", 1)
    rms.end(signal.SIGKILL)
    expand = f"--dependency=expand:{number}"
    rms.bed.allocate("--nodes=2", f"--job-name={donor}", expand)
    rms.start()
    rms.resize(job, 4)
    rms.settled(job, 1)
    ends(rms, "donor left by a killed daemon", "cancelled; then grown", job, "COMPLETED", answer)


@one_select
def test_a_shrink_waits_for_the_controller(rms: SlurmRms, answer: str) -> None:
    """Nodes are given back once Slurm hears of it; until then they are the job's."""
    job = started(rms, nodes=3)
    rms.resize(job, 1)
    caught(rms, job, "leaving")
    controller = rms.bed.record["running"]["slurmctld"]
    os.kill(controller, signal.SIGSTOP)
    try:
        caught(rms, job, "releasing")
        time.sleep(2)  # to see that nothing comes of it
        assert rms.row(job)["resizing"] == "releasing"
        assert len(rms.row(job)["nodes"]) == 3
    finally:
        os.kill(controller, signal.SIGCONT)
    rms.settled(job, 1)
    assert [len(entry["nodes"]) for entry in rms.row(job)["slurm"]["held"]] == [3, 1]
    ends(rms, "slurmctld silent in a shrink", "shrunk later", job, "COMPLETED", answer)


@pytest.fixture(scope="module")
def rigid(asked: None) -> Iterator[Slurm]:
    with brought_up("--hosts", str(NODES), "--no-expand") as found:
        yield found


def test_a_site_without_permission_relaunches(rigid: Slurm, answer: str) -> None:
    """Jobs that can go on from a checkpoint are resized all the same; others are told why not."""
    with serving(rigid, "--policy", "fifo", "--grace", "60") as rms:
        lines = ("#SBATCH --nodes=1-4", "#RMS --mode=malleable --preferred=1")
        write_script(rms, *lines, more="--checkpoint-dir checkpoints --restart")
        able = rms.submit_file()
        rms.running(able)
        write_script(rms, *lines)
        unable = rms.submit_file()
        rms.running(unable)
        first = rms.number(able)
        rms.resize(unable, 2)
        rms.until(lambda: rms.rolled_back(unable), "rollback")
        assert "permit_job_expansion" in rms.rolled_back(unable)[0]
        assert "--restart" in rms.rolled_back(unable)[0]
        rms.resize(able, 3)
        rms.settled(able, 1)
        row = rms.row(able)
        (resize,) = row["resizes"]
        assert (resize["from"], resize["to"], resize["strategy"]) == (1, 3, "relaunch")
        assert resize["step"] > 0
        assert len(row["nodes"]) == 3
        assert rms.number(able) != first
        assert [len(entry["nodes"]) for entry in row["slurm"]["held"]] == [1, 0, 3]
        rms.resize(able, 2)  # a shrink needs no permission
        rms.settled(able, 2)
        assert rms.row(able)["resizes"][1]["strategy"] == "warm"
        rms.hurry()
        assert rms.over(able, unable) == ["COMPLETED"] * 2
        assert {rms.row(job)["answer"] for job in (able, unable)} == {answer}
        rms.nothing_left()


def test_a_relaunch_outlives_the_daemon(rigid: Slurm, answer: str) -> None:
    with serving(rigid, "--policy", "fifo", "--grace", "60") as rms:
        lines = ("#SBATCH --nodes=1-4", "#RMS --mode=malleable --preferred=1")
        write_script(rms, *lines, more="--checkpoint-dir checkpoints --restart")
        job = rms.submit_file()
        rms.running(job)
        rms.resize(job, 3)
        for state in ("stopping", "starting"):
            caught(rms, job, state)
            rms.end(signal.SIGKILL)
            rms.start()
        rms.settled(job, 1)
        assert len(rms.row(job)["nodes"]) == 3
        ends(rms, "daemon killed -9 twice in a relaunch", "adopted", job, "COMPLETED", answer)
