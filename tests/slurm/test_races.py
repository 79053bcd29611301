"""Races that resource managers of elastic jobs have had, each held open by a shim of a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from shims import ODD
from slurm_bed import Slurm
from slurm_daemon import CASE, STEPS, SlurmRms, bare, serving, write_script

# What happens between two commands is the same under either selection of nodes.
pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)

MERGE = "NumNodes=0"
"""The call by which a donor's nodes become those of a job."""


@pytest.fixture
def rms(slurm: Slurm) -> Iterator[SlurmRms]:
    with serving(slurm, "--policy", "fifo", "--grace", "5") as found:
        assert found.shims
        yield found


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every job has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


def started(rms: SlurmRms, nodes: int = 2, least: int = 1) -> str:
    """Have a malleable job compute on so many nodes."""
    lines = f"#SBATCH --nodes={least}-4", f"#RMS --mode=malleable --preferred={nodes}"
    write_script(rms, *lines, "echo $SLURM_JOB_ID >> runs")
    job = rms.submit_file()
    rms.running(job)
    return job


def ends(rms: SlurmRms, answer: str, jobs: dict[str, list[tuple[int, int]]]) -> None:
    """Jobs complete after these resizes; each ran once, so no step of it is lost.

    Nothing is left, and the journal replays.
    """
    rms.hurry()
    assert set(rms.over(*jobs)) == {"COMPLETED"}, rms.said()
    for job, resizes in jobs.items():
        row = rms.row(job)
        assert rms.resizes(job) == resizes, rms.said()
        assert row["answer"] == answer and row["step"] == row["steps"], row
    assert sorted((rms.work / "runs").read_text().split()) == sorted(jobs)
    rms.nothing_left()
    rms.books_balance()
    assert rms.end() == 0
    rms.replays()


def test_a_shrink_is_begun_while_a_grow_is_under_way(rms: SlurmRms, answer: str) -> None:
    """It waits for the grow, and both take place."""
    job = started(rms)
    with rms.shims.held("scontrol", MERGE) as reached:
        rms.resize(job, 4)
        reached()
        assert rms.post("/resize", {"id": job, "nodes": 1})["decision"] != "Resize"
        assert rms.row(job)["resizing"] == "granting"
    rms.settled(job, 1)
    rms.resize(job, 1)
    rms.settled(job, 2)
    ends(rms, answer, {job: [(2, 4), (4, 1)]})


@pytest.mark.promise("races")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_ends_while_its_grow_is_under_way(rms: SlurmRms, answer: str, when: str) -> None:
    """Before its donor is granted, or after: the donor's nodes are not kept."""
    job = started(rms)
    with rms.shims.held("salloc", hold=when) as reached:
        rms.resize(job, 4)
        reached()
        rms.hurry()
        number = str(rms.number(job))
        rms.bed.wait_until(lambda: rms.bed.show(number)["JobState"] == "COMPLETED", "its end")
    ends(rms, answer, {job: []})
    assert not rms.shims.calls("scontrol", MERGE)


def test_a_grow_is_granted_before_its_nodes_can_be_used(rms: SlurmRms, answer: str) -> None:
    """Slurm starts no step there yet: the nodes go back, the job goes on, the next resize works."""
    job = started(rms)
    unready = "srun: error: Unable to create step: Requested nodes are not available"
    with rms.shims.rule("srun", rf"rms\.\w+\.{job}\.\d", message=unready, times=1) as rule:
        rms.resize(job, 4)
        rms.until(lambda: rms.rolled_back(job) and not rms.row(job)["resizing"], "rollback")
        assert rule.met() == 1
    rms.bed.wait_until(lambda: len(rms.bed.hosts(str(rms.number(job)))) == 2, "nodes given back")
    rms.resize(job, 4)
    rms.settled(job, 1)
    assert [len(entry["nodes"]) for entry in rms.row(job)["slurm"]["held"]] == [2, 4, 2, 4]
    ends(rms, answer, {job: [(2, 4)]})


def test_a_donor_is_cancelled_from_outside_as_it_is_merged(rms: SlurmRms, answer: str) -> None:
    """The grow is rolled back or repeated, never half done."""
    job = started(rms)
    with rms.shims.held("scontrol", MERGE) as reached:
        rms.resize(job, 4)
        reached()
        (granted,) = rms.shims.calls("salloc")
        rms.bed("scancel", granted.err.split()[-1])
    rms.until(lambda: rms.rolled_back(job) or rms.resizes(job), "end of the grow")
    if not rms.resizes(job):
        rms.until(lambda: not rms.row(job)["resizing"], "rollback")
        rms.resize(job, 4)
    rms.settled(job, 1)
    ends(rms, answer, {job: [(2, 4)]})


@pytest.mark.parametrize("grows", [False, True], ids=["a new job", "a grow"])
def test_nodes_that_are_leaving_are_not_used(rms: SlurmRms, answer: str, grows: bool) -> None:
    """Those that a job gives up are mapped to others once Slurm has them back, and then at once."""
    leaving = started(rms, 3 if grows else 4)
    command = "salloc" if grows else "sbatch"
    other = started(rms, 1) if grows else ""
    with rms.shims.held("scontrol", "NodeList=") as reached:
        rms.resize(leaving, 1)
        reached()
        before = len(rms.shims.calls(command))
        if grows:
            rms.post("/resize", {"id": other, "nodes": 3})
        else:
            write_script(rms, "#SBATCH --nodes=3", "echo $SLURM_JOB_ID >> runs")
            other = rms.submit_now()
        since = len(rms.shims.calls("squeue"))
        rms.until(lambda: len(rms.shims.calls("squeue")) > since + 2, "another look at Slurm")
        assert len(rms.shims.calls(command)) == before
    if grows:
        rms.resize(other, 3)
        rms.settled(other, 1)
    else:
        rms.running(other)
    (left,), used = rms.shims.calls("scontrol", "NodeList="), rms.shims.calls(command)[before]
    assert left.ended_s < used.began_s
    ends(rms, answer, {leaving: [(3 if grows else 4, 1)], other: [(1, 3)] if grows else []})


def test_a_host_dies_between_mapping_and_launch(rms: SlurmRms, answer: str) -> None:
    """The job waits for it in Slurm for a while, then starts on others, once."""
    write_script(rms, "#SBATCH --nodes=2", "echo $SLURM_JOB_ID >> runs")
    with rms.shims.held("sbatch", times=1) as reached:
        job = rms.submit_now()
        reached()
        dead = rms.row(job)["nodes"][-1]
        rms.bed.stop(dead)
        rms.bed("scontrol", "update", f"nodename={dead}", "state=down", "reason=test")
    rms.running(job)
    assert dead not in rms.row(job)["nodes"]
    rms.bed.repair()
    ends(rms, answer, {job: []})


@pytest.mark.promise("races")
def test_a_job_that_completed_dies_too(rms: SlurmRms, answer: str) -> None:
    """Slurm reports a failed node for a job whose script has ended well: it has ended once."""
    job = started(rms)
    with rms.shims.rule("squeue", "--user=", garble=(r"\|COMPLETED\|", "|NODE_FAIL|")):
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        rms.end(signal.SIGKILL)
        rms.start()
        since = len(rms.shims.calls("squeue"))
        rms.until(lambda: len(rms.shims.calls("squeue")) > since + 2, "another look at Slurm")
    assert rms.said().count(f"job {job} COMPLETED") == 1
    ends(rms, answer, {job: []})


def test_names_with_characters_of_a_shell(rms: SlurmRms, answer: str) -> None:
    """A folder, a script and a job named so; others' jobs with a line of their own in the name."""
    rms.bed.submit("--nodes=1", f"--job-name={ODD}\n1|1|N/A|RUNNING|1|n1|x", script="sleep 600")
    since = len(rms.shims.calls("squeue"))
    rms.until(lambda: len(rms.shims.calls("squeue")) > since + 3, "a look at that job")
    folder = rms.work / ODD
    folder.mkdir()
    lines = "#SBATCH --nodes=1-2", "#RMS --mode=malleable --preferred=1"
    write_script(rms, *lines, "echo $SLURM_JOB_ID >> runs")
    script = (rms.work / "job.sh").rename(folder / f"{ODD} job.sh")
    options = "--job-name", ODD, "--output", f"{ODD}.out"
    job = rms.submit_file(*options, script=script, folder=folder)
    rms.running(job)
    rms.resize(job, 2)
    rms.settled(job, 1)
    (folder / "go").touch()
    rms.over(job)
    (folder / "runs").rename(rms.work / "runs")
    rms.bed("scancel", "--user=root", "--state=RUNNING")
    ends(rms, answer, {job: [(1, 2)]})
    assert not list(rms.folder.rglob("pwned"))
    assert "no clear answer" not in rms.said()


def test_cut_lists_of_jobs(rms: SlurmRms, answer: str) -> None:
    """No job has ended because a list lacks it; one line in the log tells of the list."""
    job = started(rms)
    for times, cut in enumerate((0.0, 0.4, 0.97), 1):  # nothing, a part of a row, of a name
        with rms.shims.rule("squeue", "--user=", cut=cut) as rule:
            rms.until(lambda rule=rule: rule.met() >= 2, "lists that are cut")
            assert rms.row(job)["state"] == "RUNNING"
        since = len(rms.shims.calls("squeue"))
        rms.until(lambda since=since: len(rms.shims.calls("squeue")) > since + 1, "whole lists")
        assert rms.said().count("squeue gave no clear answer") == times
    ends(rms, answer, {job: []})
    assert len(rms.shims.calls("sbatch")) == 1


CUT_ANSWERS: list[tuple[str, str, dict[str, Any]]] = [
    ("salloc", "", {"lose": True}),
    ("salloc", "", {"garble": (r"allocation (\d)\d*\n", r"allocation \1")}),
    ("salloc", "", {"garble": (r"allocation \d+", "allocation OWN")}),
    ("scontrol", MERGE, {"lose": True, "status": 1}),
    ("scontrol", "show job", {"cut": 0.6}),
    ("scontrol", "show job", {"lose": True}),
]


def test_cut_answers_in_a_grow(rms: SlurmRms, answer: str) -> None:
    """Nothing is done to another job; each grow takes place, once."""
    job, resizes = started(rms, 1), list[tuple[int, int]]()

    def resized(size: int) -> None:
        resizes.append((rms.row(job)["size"], size))
        rms.resize(job, size)
        rms.settled(job, len(resizes))

    number = rms.number(job)
    for command, pattern, rule in CUT_ANSWERS:
        fault = dict(rule)
        if "garble" in fault:  # another job than the donor, which there is
            wrong, other = fault["garble"]
            fault["garble"] = wrong, other.replace("OWN", str(number))
        if rms.row(job)["size"] == 4:
            resized(1)
        with rms.shims.rule(command, pattern, times=1, **fault) as met:
            resized(rms.row(job)["size"] + 1)
            assert met.met() == 1
    merged = [call.words for call in rms.shims.calls("scontrol", MERGE)]
    assert not [words for words in merged if f"jobid={number} " in words]
    ends(rms, answer, {job: resizes})


@pytest.mark.parametrize("fault", [{"lose": True, "status": 1}, {"cut": 0.5}])
def test_an_answer_of_sbatch_that_is_lost(
    rms: SlurmRms, answer: str, fault: dict[str, Any]
) -> None:
    """The job is looked for, as it may be submitted, and is submitted once."""
    with rms.shims.rule("sbatch", times=1, **fault):
        job = started(rms)
    assert len(rms.shims.calls("sbatch")) == 1, rms.shims.calls("sbatch")
    ends(rms, answer, {job: []})
