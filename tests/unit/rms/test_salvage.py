"""Journals that were cut, zeroed or deleted: what is left goes on, what is missing is said."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults import Fault
from routed import Idle, Routed
from said import Said
from sentences import one_sentence

from rms.core.model.cluster import Cluster
from rms.core.model.events import Ended
from rms.core.model.jobs import JobId, NodePower
from rms.daemon.restart.recover import open_journal, restore_notes, resume, settle
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal, JournalError
from rms.launch.local import LocalLauncher
from rms.launch.processes import INSTANCE_VARIABLE
from rms.wire.marks import environment

JOBS = 40
CLUSTER = Cluster(("n1", "n2"), (("cpu:0",), ("cpu:1",)), (NodePower(5.0, 5.0),) * 2)


class Finds(Idle):
    """Starts nothing, but finds what runs."""

    members = LocalLauncher.members


@dataclass
class Back:
    """A daemon that has come back to a folder, and what it said."""

    server: Routed
    said: list[str] = field(default_factory=list)

    @property
    def known(self) -> set[str]:
        """All jobs that it knows."""
        state = self.server.daemon.context.state
        return {*state.pending, *state.running, *state.ended}


@contextlib.contextmanager
def back(folder: Path, instance: str = "instance") -> Iterator[Back]:
    """Start a daemon in a folder as ``rms serve`` does."""
    said = Said()
    with open_journal(folder / "journal.sqlite") as journal:
        restore_notes(journal, folder / "jobs")
        settings = Settings(policy="fifo", now=lambda: 1_000.0)
        daemon = resume(CLUSTER, journal, Finds(folder, instance, "unix:none"), settings)
        settle(daemon)
        server = Routed(daemon, [1_000.0])
        try:
            yield Back(server, said)
        finally:
            server.loop.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a daemon that was killed: half of its jobs are over."""
    folder, copied = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("copy")
    with back(folder) as found:
        server = found.server
        server.daemon.journal._db.execute("PRAGMA wal_autocheckpoint = 20")  # both files have some
        for _ in range(JOBS):
            server.submit()
        for number in range(1, JOBS // 2):
            server.daemon.handle(Ended(1_000.0, JobId(str(number)), "COMPLETED"))
        server.daemon.journal.flush()
        shutil.copytree(folder, copied, dirs_exist_ok=True)
    return copied


def harm(file: Path, how: str, part: float) -> None:
    """Do to a file what disks and people do."""
    data = bytearray(file.read_bytes())
    at = int(part * len(data)) // 4096 * 4096
    if how == "deleted":
        file.unlink()
        return
    if how == "cut":
        del data[at:]
    else:
        data[at : at + (4096 if how == "a page zeroed" else len(data))] = bytes(
            min(4096 if how == "a page zeroed" else len(data), len(data) - at)
        )
    file.write_bytes(data)


HARMS = [
    ("", "untouched", 0.0),
    *[("-wal", how, part) for how in ("cut", "zeroed") for part in (0.0, 0.5)],
    ("-wal", "deleted", 0.0),
    *[("", "cut", part) for part in (0.0, 0.3, 0.9)],
    *[("", "a page zeroed", part) for part in (0.0, 0.2, 0.5, 0.9)],
    ("", "zeroed", 0.0),
    ("", "deleted", 0.0),
]


@pytest.mark.promise("damaged-journal")
@pytest.mark.parametrize(("which", "how", "part"), HARMS)
def test_what_is_left_goes_on(
    killed: Path, tmp_path: Path, which: str, how: str, part: float, fault: Fault
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(killed, folder)
    if how != "untouched":
        harm(folder / f"journal.sqlite{which}", how, part)
    with back(folder) as found:
        known, said = found.known, "\n".join(found.said)
        numbers = {str(n) for n in range(1, JOBS + 1)}
        assert known <= numbers
        if known < numbers:
            assert "missing" in said and "or refused when submitted" in said, said
        assert found.server.submit() == str(JOBS + 1)
        rows = found.server.ask("GET", "/jobs")[1]
        assert {row["id"] for row in rows} == known | {str(JOBS + 1)}
    with back(folder) as again:
        assert again.known == known | {str(JOBS + 1)}
        assert again.server.submit() == str(JOBS + 2)
    if how == "untouched":
        assert known == numbers and "missing" not in said
    else:
        where = "WAL" if which else "database"
        fault(f"{where} {how}", "the rest goes on, no number twice", lost="said by number")


def test_jobs_whose_notes_are_gone_fail_or_run_on(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shutil.copytree(killed, folder)
    with Journal.open(folder / "journal.sqlite") as journal:
        journal._run("UPDATE notes SET value = '{}' WHERE key IN ('job/1', 'job/40')")
    with back(folder) as found:
        rows = {row["id"]: row for row in found.server.ask("GET", "/jobs")[1]}
        assert [rows[n]["state"] for n in ("1", "40")] == ["COMPLETED", "FAILED"]
        assert rows["40"]["reason"] == "its submission is missing from the journal"


def test_what_runs_of_unknown_jobs_is_ended(tmp_path: Path, fault: Fault) -> None:
    env = {**os.environ, INSTANCE_VARIABLE: "of-this-test:9"}
    process = subprocess.Popen(["sleep", "600"], env=env)
    try:
        end = time.monotonic() + 120  # Popen returns before the environment is the new one
        while b"RMS_MARK=of-this-test:9" not in (environment(process.pid) or []):
            assert time.monotonic() < end
            time.sleep(0.001)
        with back(tmp_path, "of-this-test") as found:
            assert process.wait(120) == -9
            assert "job 9: killed its remaining processes, as it does not run" in found.said
    finally:
        process.kill()
        process.wait()
    fault("processes of a job that the journal lost", "ended, and said")


def test_what_may_be_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_text("[cluster]\nnodes = 4\n" * 100)
    before = path.read_bytes()
    with one_sentence(JournalError, "file is not a database"):
        open_journal(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
