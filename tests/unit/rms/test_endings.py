"""The line at the end of a job's output: where it goes, when, and that it is written once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from idle import Bench
from routed import Routed, routed
from submissions import hand_in

from rms.core.model.cluster import Cluster
from rms.core.model.events import Reopened
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.core.policies.admission import InOrder
from rms.daemon.jobs import scripts
from rms.daemon.restart import recover
from rms.daemon.store.journal import Journal
from rms.formats.prices import Prices, Series
from rms.launch.base import PendingCall
from rms.wire.users import ResizeRow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Routed]:
    with routed(tmp_path / "state") as found:
        yield found


def finished(server: Routed, output: Path, status: int = 0, nodes: int = 2) -> str:
    """Let a job run for 4 s and end; return its line."""
    job = server.submit(nodes=[nodes, nodes])
    known = server.daemon.jobs[JobId(job)]  # as it is by now, whatever it was at submission
    known.submission.output, known.files = str(output), (output, None)
    server.daemon.context.journal.note(known.submission)
    server.clock[0] += 4.0
    server.daemon.scripts.end(known, status)
    return line(server, job)


def line(server: Routed, job: str) -> str:
    said: str = server.ask("GET", f"/jobs?id={job}")[1][0]["summary"]
    return said


def test_it_is_a_line_of_its_own_behind_what_the_job_printed(
    server: Routed, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    for before, between in (("", ""), ("one\n", ""), ("half", "\n")):
        output.write_text(before)
        said = finished(server, output)
        assert output.read_text() == f"{before}{between}rms: {said}\n"
    assert said == "job 3 COMPLETED: 4.0 s on 2 nodes, 40.0 J (model)"
    assert finished(server, output, 3, 1) == "job 4 FAILED: 4.0 s on 1 node, 20.0 J (model)"


def test_resizes_and_costs_are_in_it(server: Routed, tmp_path: Path) -> None:
    context = server.daemon.context
    prices = Prices("p", "EUR", "UTC", Series((3600.0,)), Series((36.0,)))
    object.__setattr__(context.settings, "prices", prices)
    job = server.submit(nodes=[1, 1], output=str(tmp_path / "none"))
    known = server.daemon.jobs[JobId(job)]
    known.resizes = [
        ResizeRow(1.0, 10, before, after, "warm", 0.1, 0.1, 0.1, 8, 1.0)
        for before, after in ((1, 2), (2, 1))
    ]
    server.clock[0] += 4.0
    server.daemon.scripts.end(known, 0)
    said = "2 resizes (1 to 2 to 1 ranks), 20.0 J (model), 0.02 EUR, 0.0002 g CO2"
    assert line(server, job) == f"job {job} COMPLETED: 4.0 s on 1 node, {said}"
    assert not (tmp_path / "none").exists()


def test_places_that_take_no_line_stop_nobody(server: Routed, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path / "none", tmp_path, Path("/dev/full")):
        assert finished(server, place).endswith("40.0 J (model)")


def test_a_job_that_never_ran_has_none(server: Routed, tmp_path: Path) -> None:
    first = server.submit(nodes=[2, 2])
    waits = server.submit(nodes=[2, 2], output=str(tmp_path / "out"))
    assert server.ask("POST", "/cancel", {"id": waits})[0] == 200
    assert line(server, waits) is None and line(server, first) is None


def test_a_job_that_fails_with_its_nodes_has_one(server: Routed, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.touch()
    job = JobId(server.submit(nodes=[2, 2], output=str(output)))
    server.clock[0] += 4.0
    power = (NodePower(idle_w=5.0),)
    moved = Reopened(server.daemon.time(), "elsewhere", ("m1",), power, (1,), (), (job,))
    server.daemon.scripts.forget(server.daemon.jobs[job])
    server.daemon.handle(moved)
    assert line(server, job).startswith("job 1 FAILED: ")
    assert output.read_text() == f"rms: {line(server, job)}\n"


@pytest.mark.parametrize("answer", ["n2 has failed", ""])
def test_a_job_that_fails_ends_once_it_is_known_whether_its_nodes_were_lost(
    server: Routed, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The job waits again if they were; the answer takes two rounds."""
    answers, of = iter([None, answer]), list[tuple[str, ...]]()

    def diagnose(job: str, hosts: Sequence[str]) -> PendingCall:
        of.append((job, *hosts))
        return lambda: next(answers)

    monkeypatch.setattr(server.daemon.launcher.nodes, "diagnose_failure", diagnose)
    job, state = JobId(server.submit(nodes=[2, 2], requeue=True)), server.daemon.context.state
    known = server.daemon.jobs[job]
    server.daemon.scripts.end(known, 3)
    assert job in state.running
    server.daemon.scripts.end(known, 3)
    assert of == [(job, "n1", "n2")]  # asked for once
    assert (known.run, job in state.ended) == ((1, False) if answer else (0, True))
    assert server.daemon.scheduler.reasons[job] == (answer or "script ended with 3")


def test_it_waits_for_the_last_readings_but_not_for_ever_and_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: set[str] = set()
    monkeypatch.setattr(scripts, "is_settled", lambda context, job: job.spec.id in settled)
    output = tmp_path / "out"
    output.touch()
    with routed(tmp_path / "state") as server:
        assert finished(server, output) == ""
        settled.add("1")
        server.daemon.endings.tick()
        assert line(server, "1").startswith("job 1 COMPLETED")
        assert finished(server, output) == ""
        server.clock[0] += scripts.SETTLE_S + 0.1
        server.daemon.endings.tick()
        assert line(server, "2").startswith("job 2 COMPLETED")
        assert finished(server, output) == ""
    settled.add("3")
    with routed(tmp_path / "state") as server:  # the one before was killed
        assert line(server, "3") == ""
        server.daemon.endings.tick()
        assert line(server, "3").startswith("job 3 COMPLETED")
        assert finished(server, output) == ""
        server.daemon.endings.close()  # it ends: what is known by now
        assert line(server, "4").startswith("job 4 COMPLETED")
    with routed(tmp_path / "state") as server:
        server.daemon.endings.tick()
    assert [said.split()[2] for said in output.read_text().splitlines()] == ["1", "2", "3", "4"]


def test_what_meters_say_is_waited_for_and_told_with_its_uncertainty(
    server: Routed, tmp_path: Path
) -> None:
    def report(number: int, joules: float, uncertainty_j: float) -> None:
        known = {"device": "package-0", "source": "rapl", "joules": joules}
        said = {"node": "n1", "agent": "a", "number": number, "at_s": server.clock[0], "boot": "b"}
        said["devices"] = [known | {"uncertainty_j": uncertainty_j}] if number else []
        assert server.ask("POST", "/meter", said, token="of the meters")[0] == 200
        server.daemon.endings.tick()

    output = tmp_path / "out"
    output.touch()
    job = server.submit(nodes=[1, 1], output=str(output))
    report(0, 0.0, 0.0)
    report(1, 0.0, 0.0)
    server.clock[0] += 4.0
    report(2, 100.0, 2.0)
    server.clock[0] += 2.0
    server.daemon.scripts.end(server.daemon.jobs[JobId(job)], 0)
    server.daemon.endings.tick()
    assert line(server, job) == "" and not output.read_text()
    server.clock[0] += 1.0
    report(3, 190.0, 5.0)  # in these 3 s the job had the node for 2 s
    said = "job 1 COMPLETED: 6.0 s on 1 node, 160.0 +- 4.0 J (rapl)"
    assert line(server, job) == said and output.read_text() == f"rms: {said}\n"
    found = server.ask("GET", "/acct")[1]
    energy = found["energy"]
    assert energy["cluster_j"] == pytest.approx(190.0 + 35.0, rel=1e-12)
    assert sum(row["joules"] for row in found["rows"]) == pytest.approx(225.0, rel=1e-12)


def test_a_job_that_ended_before_its_nodes_were_taken_away_has_ended_then(tmp_path: Path) -> None:
    """The daemon was away: it goes on much later, with other nodes."""
    with Journal.open(tmp_path / "journal") as journal:
        bench = Bench(journal, tmp_path, Cluster(("a",), (("cpu:0",),), (NodePower(),)), "fifo")
        hand_in(bench.daemon, [JobSpec(JobId("1"), 1000.0, 1, 1, 1, Mode.FIXED)])
        status = bench.launcher.status_file("1")
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text("0")
        os.utime(status, (1050.0, 1050.0))
        bench.now_s, bench.cluster = 5000.0, Cluster(("b",), (("cpu:0",),), (NodePower(),))
        daemon = bench.resumed(where="elsewhere")
        over = daemon.context.state.ended[JobId("1")]
        assert (str(over.state), over.end_s) == ("COMPLETED", 1050.0)


def test_a_restart_follows_recorded_decisions_whatever_a_policy_decides_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(("a", "b"), (("cpu:0",), ("cpu:1",)), (NodePower(),) * 2)
    with Journal.open(tmp_path / "journal") as journal:
        bench = Bench(journal, tmp_path, cluster, "fifo")
        hand_in(bench.daemon, [JobSpec(JobId("1"), 1000.0, 1, 1, 1, Mode.FIXED)])
        monkeypatch.setattr(InOrder, "__call__", lambda *_: [])
        found = recover.restored(journal, cluster).engine.state
        assert [job.nodes for job in found.running.values()] == [(0,)] and not found.pending
