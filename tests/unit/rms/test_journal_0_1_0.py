"""A journal that version 0.1.0 wrote (``journal_0_1_0.sql``, a dump of its database) is read.

Four nodes of 5 W idle and 10 W busy; in order: job 1 is resized from two nodes to one and ends;
job 2 is refused a third node by a rollback, and its resize to one node is ready when the daemon is
killed; job 3 runs; job 4 waits; job 5 was cancelled; node n4 is drained.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rms.core.model.cluster import Cluster
from rms.core.model.events import Resized
from rms.core.model.jobs import JobId, NodePower
from rms.daemon.ask import views
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import replay, resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import FORMAT, Journal, Seen
from rms.launch.base import ManagedProcess
from rms.launch.local import LocalLauncher
from rms.wire.messages import Begun, BootedWorld, Done, Resize, ResizeRequest

DUMP = Path(__file__).with_name("journal_0_1_0.sql")
TWO = JobId("2")
ALIVE = (103, 104, 106, 107)


class Alive(ManagedProcess):
    def status(self) -> int | None:
        return None


class Found(LocalLauncher):
    """Finds the scripts that ran, and no worlds that have ended."""

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        return Alive(pid or 0)

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return list(ALIVE) if launch is None else []


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    path = tmp_path / "journal"
    database = sqlite3.connect(path)
    database.executescript(DUMP.read_text())
    database.close()
    with Journal.open(path) as opened:
        yield opened


def resumed(journal: Journal, said: list[str]) -> Daemon:
    names = ("n1", "n2", "n3", "n4")
    cluster = Cluster(names, tuple((f"cpu:{n}",) for n in range(4)), (NodePower(5.0, 10.0),) * 4)
    launcher = Found(journal.path.parent, "cafe", "unix:none")
    return resume(
        cluster, journal, launcher, Settings(policy="fifo", now=lambda: 1020.0, say=said.append)
    )


def test_it_decides_what_was_recorded_and_books_what_was_booked(journal: Journal) -> None:
    found = replay(journal.read())
    assert (found.events, found.differing, found.refused) == (19, [], [])
    books = found.scheduler.books(1015.5)
    assert (books.busy_j, books.cluster_j) == (320.0, 470.0)
    assert [entry.kind for entry in found.scheduler.history[TWO]] == [
        "start",
        "resize",
        "rolledback",
        "resize",
    ]


def test_its_jobs_are_adopted(journal: Journal) -> None:
    said: list[str] = []
    daemon = resumed(journal, said)
    rows = {row.id: row for row in views.jobs(daemon.context)}
    assert {name: row.state for name, row in rows.items()} == {
        "1": "COMPLETED",
        "2": "RUNNING",
        "3": "RUNNING",
        "4": "PENDING",
        "5": "CANCELLED",
    }
    assert (rows["1"].answer, [r.stall_s for r in rows["1"].resizes]) == ("sha256 ab", [0.5])
    assert (rows["2"].name, rows["2"].size, rows["2"].resizing) == ("case2", 2, "ready")
    assert [node.state for node in views.nodes(daemon.context)][3] == "draining"
    assert daemon.admission.next_id() == 6
    assert said == [
        "job 2: adopted, 4 processes still run",
        "job 2: its resize goes on, ready",
        "job 3: adopted, 4 processes still run",
    ]


def test_its_resize_in_flight_goes_on_to_its_end(journal: Journal) -> None:
    daemon = resumed(journal, [])
    world = BootedWorld(2, 1, "127.0.0.1:5555", "tag0", 1.0)
    assert daemon.jobs[TWO].request_after(1) == ResizeRequest(2, ("cpu:0",), "warm", (world,))
    step = daemon.jobs[TWO].steps[0]
    assert {launch: process.pid for launch, process in step.worlds.items()} == {0: 104, 2: 106}
    daemon.worlds.report(daemon.jobs[TWO], Begun(2))
    daemon.worlds.report(
        daemon.jobs[TWO], Done(2, Resize(9, 2, 1, "warm", 1.0, 0.1, 0.1, 8, 1.0), (2,))
    )
    (*_, last) = (entry for entry in journal.read() if isinstance(entry, Seen))
    assert last.event == Resized(1020.0, TWO)
    assert (daemon.jobs[TWO].resize, list(step.worlds)) == (None, [2])
    assert replay(journal.read()).differing == []


def test_no_older_program_takes_it_for_its_own(journal: Journal) -> None:
    assert journal._run("PRAGMA user_version")[0] == [(FORMAT,)]
    assert FORMAT > 3
