"""The stand-in for slurmctld: against records of a real one, and as our commands see it."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.launch.slurm import output, site
from rms.launch.slurm.commands import Meaning, Slurm, SlurmError

BENCH = Path(__file__).parents[3] / "scripts" / "bench"
SAMPLES = Path(__file__).parent / "slurm_samples"
sys.path.append(str(BENCH))

import standin  # noqa: E402


class Clock:
    """Time goes on only where a command takes it."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Bed:
    """Four nodes, and the commands on them."""

    def __init__(self, nodes: int = 4) -> None:
        self.clock = Clock()
        names = [f"n{n}" for n in range(1, nodes + 1)]
        self.controller = standin.Controller(names, pause=self.clock.pause, now=self.clock)
        self.slurm = Slurm({"PATH": ""}, "root", self.controller)

    def running(self, *words: str) -> int:
        """Return a batch job that runs."""
        job = self.slurm.submit("--exclusive", "--job-name=wide | odd=name", *words, "job.sh")
        self.clock.pause(1.0)
        assert [each.number for each in self.controller.advance()] == [job]
        return job

    def idle(self) -> list[str]:
        """Return the nodes nobody has."""
        return [node.name for node in self.slurm.nodes() if node.state == "idle"]


@pytest.fixture
def bed() -> Bed:
    return Bed()


# -- As recorded -----------------------------------------------------------------------------


def test_a_row_of_the_queue_is_as_squeue_prints_it() -> None:
    rows = (SAMPLES / "squeue.txt").read_text().splitlines()
    recorded = next(line for line in rows if line.startswith("2|"))
    job = standin.Job(
        *(2, "wide | odd=name", "root", 1, "1-02:04:00", 1795283560, 0),
        state="RUNNING",
        hosts=("n4",),
        start_s=1795283562,
    )
    assert standin._printed(job, output.QUEUE_FORMAT) == f"{recorded}\n"


def test_details_of_a_job_read_as_those_of_a_real_one() -> None:
    job = standin.Job(
        *(11, "winds", "root", 2, "10", 1795283593, 0),
        state="RUNNING",
        hosts=("n1", "n3"),
        start_s=1795283593,
        end_s=1795284193,
        resized_s=1795283596,
    )
    recorded = output.details_from_text((SAMPLES / "job.txt").read_text())
    assert output.details_from_text(standin._details(job)) == recorded


def test_the_nodes_are_as_sinfo_prints_them(bed: Bed) -> None:
    bed.running("--nodelist=n1,n2", "--nodes=2")
    said = bed.slurm.call("sinfo", "--noheader", "--Node", f"--format={output.NODES_FORMAT}").out
    assert said.splitlines()[0] == "n1|all*|allocated|1|(null)|none"
    fewer = bed.slurm.call("sinfo", "--noheader", f"--format={output.NODES_FORMAT}").out
    assert fewer.splitlines() == [
        "n[1-2]|all*|allocated|1|(null)|none",
        "n[3-4]|all*|idle|1|(null)|none",
    ]
    assert output.nodes_from_text(said) == output.nodes_from_text(fewer)


@given(st.sets(st.integers(1, 300)))
def test_folded_names_are_the_same_when_they_are_read(numbers: set[int]) -> None:
    names = tuple(f"n{n}" for n in sorted(numbers))
    assert output.hosts(standin.fold(names)) == names


def test_the_probe_says_that_all_is_allowed(bed: Bed) -> None:
    bed.slurm.check_accounting = lambda job: None  # type: ignore[method-assign]
    found = site.inspect_site(bed.slurm)
    said = {verdict.what: verdict.allowed for verdict in site.verdicts(found)}
    assert said["growing running jobs"]
    assert said["shrinking running jobs"]
    assert said["engine slurm, jobs of their own"]


# -- A job's life ----------------------------------------------------------------------------


def test_a_job_waits_for_its_nodes_and_starts(bed: Bed) -> None:
    first = bed.running("--nodelist=n1,n2", "--nodes=2")
    second = bed.slurm.submit("--nodes=1", "--nodelist=n2", "job.sh")
    bed.clock.pause(1.0)
    assert bed.controller.advance() == []
    rows = {row.job_id: row for row in bed.slurm.jobs("--states=all")}
    assert (rows[second].state, rows[second].reason) == ("PENDING", "Resources")
    assert rows[first].name == "wide | odd=name"
    bed.controller.finish(first)
    assert [job.number for job in bed.controller.advance()] == [second]
    assert bed.slurm.job(first).state == "COMPLETED"
    assert bed.idle() == ["n1", "n3", "n4"]


def test_it_grows_by_a_donor_and_shrinks(bed: Bed) -> None:
    job = bed.running("--nodes=1")
    assert bed.slurm.grow(job, 2, "donor", on=["n3", "n4"]).hosts == ("n1", "n3", "n4")
    assert bed.idle() == ["n2"]
    assert bed.controller.donors == []
    assert bed.slurm.shrink(job, ["n1", "n4"]).hosts == ("n1", "n4")
    assert bed.idle() == ["n2", "n3"]
    assert bed.slurm.job(job).resized_s is not None


def test_nodes_that_are_not_free_are_refused_at_once(bed: Bed) -> None:
    job = bed.running("--nodes=3")
    bed.running("--nodes=1")
    with pytest.raises(SlurmError, match="nodes are busy") as refused:
        bed.slurm.grow(job, 1, "donor")
    assert refused.value.meaning is Meaning.LATER
    assert [row.state for row in bed.slurm.jobs("--states=all") if row.name == "donor"] == [
        "CANCELLED",
        "FAILED",
    ][1:]


def test_the_batch_host_stays(bed: Bed) -> None:
    job = bed.running("--nodes=2")
    with pytest.raises(SlurmError, match="Invalid node name specified"):
        bed.slurm.shrink(job, ["n2"])
    assert bed.slurm.job(job).hosts == ("n1", "n2")


def test_nothing_is_merged_into_a_job_that_ends_while_its_donor_starts(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 22.05 leaves the nodes with a COMPLETING job until an administrator frees them."""
    job = bed.running("--nodes=1")
    allocate = bed.slurm.allocate

    def granted(nodes: int, name: str, *options: str) -> int:
        donor = allocate(nodes, name, *options)
        bed.controller.finish(job)
        return donor

    monkeypatch.setattr(bed.slurm, "allocate", granted)
    with pytest.raises(SlurmError, match="no longer RUNNING") as refused:
        bed.slurm.grow(job, 1, "donor")
    assert refused.value.meaning is Meaning.GONE
    bed.controller.advance()
    assert len(bed.idle()) == 4
    assert bed.controller.donors == []


def test_a_job_that_is_over_is_neither_expanded_nor_merged_into(bed: Bed) -> None:
    job = bed.running("--nodes=1")
    donor = bed.slurm.allocate(1, "donor", f"--dependency=expand:{job}")
    bed.controller.finish(job)
    bed.controller.advance()
    bed.slurm.call("scontrol", "update", f"jobid={donor}", "NumNodes=0")  # success, and in vain
    assert len(bed.idle()) == 4
    with pytest.raises(SlurmError) as refused:
        bed.slurm.allocate(1, "donor", f"--dependency=expand:{job}")
    assert refused.value.meaning is Meaning.GONE
    with pytest.raises(SlurmError) as refused:
        bed.slurm.call("scontrol", "update", f"jobid={donor}", "NumNodes=0")
    assert refused.value.meaning is Meaning.GONE


def test_a_donor_with_a_batch_step_cannot_be_merged(bed: Bed) -> None:
    job = bed.running("--nodes=1")
    with pytest.raises(SlurmError, match="Job step already exists"):
        bed.slurm.call("scontrol", "update", f"jobid={job}", "NumNodes=0")


def test_a_granted_donor_outlives_its_job_until_it_is_cancelled(bed: Bed) -> None:
    job = bed.running("--nodes=1")
    donor = bed.slurm.allocate(1, "donor", f"--dependency=expand:{job}")
    bed.controller.finish(job)
    bed.controller.advance()
    bed.clock.pause(60.0)
    assert [each.number for each in bed.controller.donors] == [donor]
    bed.slurm.cancel_named("donor")
    assert len(bed.idle()) == 4


def test_only_what_waits_is_taken_out_of_the_queue(bed: Bed) -> None:
    first = bed.running("--nodes=4")
    second = bed.slurm.submit("--nodes=1", "job.sh")
    bed.slurm.cancel(first, second, only_pending=True)
    assert [row.state for row in bed.slurm.jobs("--states=all")] == ["RUNNING", "CANCELLED"]
    bed.slurm.cancel(77)  # gone, which is no failure


# -- Time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "jobs", "measured_s"),
    [(4, 0, 0.0066), (10_004, 0, 0.0046), (1_004, 1_000, 0.0150), (10_004, 2_000, 0.0249)],
)
def test_a_listing_of_the_queue_takes_what_it_took(
    nodes: int, jobs: int, measured_s: float
) -> None:
    bed = Bed(nodes)
    for number in range(jobs):
        bed.controller._jobs[number] = standin.Job(
            *(number, "x", "root", 1, "10", 0.0, 0.0), reason="JobHeldAdmin"
        )
    begun = bed.clock.now
    assert len(bed.slurm.jobs("--states=all")) == jobs
    assert bed.clock.now - begun == pytest.approx(measured_s, rel=0.5)


@pytest.mark.parametrize(("nodes", "measured_s"), [(4, 0.0060), (1_004, 0.0074), (10_004, 0.0360)])
def test_a_listing_of_nodes_takes_what_it_took(nodes: int, measured_s: float) -> None:
    bed = Bed(nodes)
    begun = bed.clock.now
    assert len(bed.slurm.nodes()) == nodes
    assert bed.clock.now - begun == pytest.approx(measured_s, rel=0.5)


def test_changes_of_jobs_go_one_by_one_and_others_wait() -> None:
    flying, most, order = [0], [0], []

    def pause(seconds: float) -> None:
        if seconds in (costs.merge_held_s, costs.shrink_held_s):
            flying[0] += 1
            most[0] = max(most[0], flying[0])
            merging.set()
            time.sleep(0.05)
            order.append("change")
            flying[0] -= 1

    costs, merging = standin.Costs(), threading.Event()
    controller = standin.Controller(["n1", "n2", "n3", "n4"], costs=costs, pause=pause)
    slurm = Slurm({"PATH": ""}, "root", controller)
    jobs = [slurm.allocate(1, "job") for _ in range(2)]
    donors = [slurm.allocate(1, "donor", f"--dependency=expand:{job}") for job in jobs]
    threads = [
        threading.Thread(
            target=slurm.call, args=("scontrol", "update", f"jobid={donor}", "NumNodes=0")
        )
        for donor in donors
    ]
    for thread in threads:
        thread.start()
    assert merging.wait(120)
    assert slurm.jobs("--states=RUNNING")
    order.append("listing")
    for thread in threads:
        thread.join()
    assert most == [1]
    assert order[0] == "change"
    assert controller.held_s == pytest.approx(2 * costs.merge_held_s + 4 * costs.allocate_held_s)
