"""The typed commands against the real thing, and the check's verdicts against what happens."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator

import pytest
from accounting import records
from slurm_bed import NODES, brought_up
from slurm_bed import Slurm as Bed

from rms.launch.slurm import site
from rms.launch.slurm.commands import Meaning, Slurm, SlurmError
from rms.launch.slurm.output import QueuedJob

one_select = pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
"""For what does not depend on the way of selecting nodes."""


def commands(bed: Bed) -> Slurm:
    return Slurm(bed.environment, getpass.getuser())


def donors(slurm: Slurm) -> list[str]:
    """Return the states of donors that have not ended."""
    live = ("PENDING", "RUNNING", "COMPLETING")
    return [
        j.state
        for j in slurm.jobs("--states=all")
        if j.name.startswith("rms-donor") and j.state in live
    ]


@pytest.mark.promise("slurm-check")
def test_the_site_allows_all(slurm: Bed) -> None:
    found = site.inspect_site(commands(slurm))
    assert found.select == f"select/{slurm.record['select']}"
    assert len(found.fit) == NODES
    refused = [verdict.what for verdict in site.verdicts(found) if not verdict.allowed]
    assert refused == ["Slurm's own ConsumedEnergy"]


def test_trying_it_leaves_nothing(slurm: Bed) -> None:
    tried = site.try_resize(commands(slurm), "rms-donor-try", time.monotonic)
    assert [(v.what.split()[0], v.allowed) for v in tried] == [
        ("growing", True),
        ("shrinking", True),
    ]
    slurm.wait_until(lambda: len(slurm.idle()) == NODES, "all is idle again")
    assert donors(commands(slurm)) == []


@one_select
def test_an_array_in_the_queue_and_in_accounting(slurm: Bed) -> None:
    read = commands(slurm)
    job = read.submit(
        *["--nodes=2", "--exclusive", "--time=10", "--array=0-5", "--output=/dev/null"],
        *["--wrap", "sleep 600"],
    )

    def rows() -> list[QueuedJob]:
        return [row for row in read.jobs("--states=all") if row.array_id == job]

    def running() -> list[int]:
        return [row.job_id for row in rows() if row.state == "RUNNING"]

    slurm.wait_until(lambda: len(running()) == 2, "two run")
    assert sorted(row.task or 0 for row in rows()) == [0, 1, 2, 3, 4, 5]
    assert len(read.nodes()) == NODES
    raw = running()

    def known() -> bool:  # accounting hears of a job when it is submitted and when it begins
        return [record.state for record in records(read, raw)] == ["RUNNING"] * 2

    slurm.wait_until(known, lambda: f"accounting has both, {raw}: {records(read, raw)}")


def test_growing_and_shrinking(slurm: Bed) -> None:
    read = commands(slurm)
    job = int(slurm.submit("--nodes=1"))
    before = read.job(job)
    slurm.next_second()
    grown = read.grow(job, 2, f"rms-donor-{job}")
    assert len(grown.hosts) == 3
    assert set(before.hosts) < set(grown.hosts)
    slurm.next_second()
    assert before.batch_host is not None
    assert read.shrink(job, [before.batch_host]).hosts == before.hosts
    slurm.wait_until(lambda: len(records(read, [job])) == 3, "accounting has both")
    states = [(row.state, row.nodes) for row in records(read, [job])]
    assert states == [("RESIZING", 1), ("RESIZING", 3), ("RUNNING", 1)]
    assert donors(read) == []


def test_growing_where_no_node_is_free(slurm: Bed) -> None:
    """Whether somebody waits for them or not; no donor ever waits."""
    read = commands(slurm)
    job = int(slurm.submit("--nodes=1"))
    slurm.allocate(f"--nodes={NODES - 1}")
    for _ in range(2):
        with pytest.raises(SlurmError) as refused:
            read.grow(job, 1, f"rms-donor-{job}")
        assert refused.value.meaning is Meaning.LATER
        assert donors(read) == []
        read.submit("--nodes=1", "--exclusive", "--wrap", "true")


@one_select
def test_a_job_that_has_ended(slurm: Bed) -> None:
    read = commands(slurm)
    job = int(slurm.submit("--nodes=2"))
    host = read.job(job).hosts[0]
    read.cancel(job)
    slurm.wait_until(lambda: read.job(job).state == "CANCELLED", "it ended")
    for act in (lambda: read.grow(job, 1, f"rms-donor-{job}"), lambda: read.shrink(job, [host])):
        with pytest.raises(SlurmError) as refused:
            act()
        assert refused.value.meaning is Meaning.GONE
    with pytest.raises(SlurmError) as refused:
        read.job(4_000_000)
    assert refused.value.meaning is Meaning.GONE
    read.cancel(job)
    assert donors(read) == []


@one_select
def test_shrinking_to_nodes_it_has_not(slurm: Bed) -> None:
    read = commands(slurm)
    job = int(slurm.submit("--nodes=2"))
    other = sorted(slurm.idle())[0]
    with pytest.raises(SlurmError):
        read.shrink(job, [other])
    assert len(read.job(job).hosts) == 2


@pytest.fixture(scope="module")
def with_gres(asked: None) -> Iterator[Bed]:
    with brought_up("--hosts", "2", "--select", "cons_tres", "--tokens", "1") as slurm:
        yield slurm


def test_a_site_with_gres_is_refused_before_slurm_breaks_a_donor(with_gres: Bed) -> None:
    read = commands(with_gres)
    why = {verdict.what: verdict for verdict in site.verdicts(site.inspect_site(read))}
    assert not why["growing running jobs"].allowed
    assert why["shrinking running jobs"].allowed
    (tried,) = site.try_resize(read, "rms-donor-try", time.monotonic)
    assert not tried.allowed
    job = int(with_gres.submit("--nodes=1"))
    with pytest.raises(SlurmError, match="GRES"):
        read.grow(job, 1, f"rms-donor-{job}")
    assert donors(read) == []
    assert with_gres.idle() == {"n1", "n2"} - set(read.job(job).hosts)


def test_a_controller_that_is_away(asked: None) -> None:
    with brought_up("--hosts", "1") as slurm:
        read = commands(slurm)
        assert read.ping()
        slurm.stop("slurmctld")
        assert not read.ping()
        with pytest.raises(SlurmError) as refused:
            read.jobs("--states=all")
        assert refused.value.meaning is Meaning.UNREACHABLE
        slurm.repair()
        assert read.ping()
        assert read.job(int(slurm.submit("--nodes=1"))).hosts == ("n1",)
