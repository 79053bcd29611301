"""A daemon in this process that is killed at any write of its journal, and processes that are not.

The launcher starts nothing: what counts as a process is a number that lives on when the daemon is
gone, as real ones do, and is found again by its job and launch.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from said import Said
from submissions import hand_in

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.launch.base import EngineNodes, LaunchCommand, ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import LocalLauncher, keepers_of

NAMES = ("n1", "n2", "n3", "n4")
COMMAND = LaunchCommand(["a.out"], "/", {}, "/dev/null", "/dev/null")


class KilledError(BaseException):
    """The daemon is gone, in the middle of whatever it did."""


class Dying:
    """A database's connection whose process is killed before or after one of its writes."""

    def __init__(self, db: sqlite3.Connection, at: int | None, *, after: bool) -> None:
        self.db, self.writes = db, 0
        self._at, self._after, self._dead = at, after, False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self._dead:
            raise KilledError
        alone = statement.startswith("INSERT") and not self.db.in_transaction
        if not alone and statement != "COMMIT":
            return self.db.execute(statement, *values)
        self.writes += 1
        self._dead = self.writes == self._at
        if self._dead and not self._after:
            raise KilledError
        found = self.db.execute(statement, *values)
        if self._dead:
            raise KilledError
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


@dataclass
class Machine:
    """Processes by number: job, launch (None for a script), and the file for their status."""

    live: dict[int, tuple[str, int | None, Path]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(100))
    begun: list[tuple[str, int | None]] = field(default_factory=list)
    refusal: str = ""

    def start(self, job: str, launch: int | None, file: Path) -> ManagedProcess:
        pid = next(self.numbers)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        self.live[pid] = job, launch, file
        self.begun.append((job, launch))
        return ManagedProcess(pid, status_file=file)

    def of(self, job: str | None, launch: int | None = None) -> list[int]:
        return [
            pid
            for pid, (own, number, _) in self.live.items()
            if job in (None, own) and launch in (None, number)
        ]

    def end(self, job: str, launch: int | None, status: int = 0) -> None:
        """Let a script (launch None) or a world come to its end, if it runs."""
        for pid, (own, number, file) in list(self.live.items()):
            if (own, number) == (job, launch):
                file.write_text(str(status))
                del self.live[pid]


@dataclass
class Refusing(EngineNodes):
    """Nodes that jobs cannot move to if their machine refuses."""

    machine: Machine

    def resize_refusal(self, job: str, have: Any, wanted: Any) -> str:
        return self.machine.refusal


@dataclass
class Outliving(LocalLauncher):
    """Starts numbers on a machine."""

    machine: Machine = field(default_factory=Machine, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nodes = Refusing(self.machine)

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        return self.machine.start(job, None, self.status_file(job))

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        if not launch.resize:
            self.completion_file(job, launch.step).unlink(missing_ok=True)
        kept = self.world_status_file(job, launch.launch)
        return self.machine.start(job, launch.launch, kept)

    def start_keeper(self, job: str, number: int, host: str) -> None:
        file = self.keeper_file(job, number)
        self.machine.start(keepers_of(job), number, file.with_suffix(".status"))
        file.write_text("host=address:1:token=/folder\n")

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return self.machine.of(job, launch)

    def kill(self, job: str, launch: int | None = None) -> None:
        for pid in self.members(job, launch):
            del self.machine.live[pid]

    def terminate(self, job: str, worlds: Any) -> None:
        pass


class Bench:
    """A machine of four nodes and whichever daemon there is; a clock that stands unless it is set.

    Args:
        at: at which write of the first daemon's journal that is killed, None for never.
        after: after that write, not before it.
        keep: how many entries the journal keeps, None for all.
    """

    def __init__(
        self,
        folder: Path,
        policy: str = "fifo",
        at: int | None = None,
        keep: int | None = None,
    ) -> None:
        self.folder, self.policy, self.now_s, self.said = folder, policy, 1000.0, Said()
        self.keep = keep
        self.machine, self.restarts, self.db = Machine(), -1, None
        self.start(at)

    db: Dying | None
    journal: Journal
    first: Dying
    daemon: Daemon

    def start(self, at: int | None = None, *, after: bool = False) -> None:
        """Start a daemon, the one before having been killed."""
        self.close()
        journal = self.journal = Journal.open(self.folder / "journal")
        self.db = Dying(journal._db, at, after=after)
        if at is not None or self.restarts == 0:
            self.first = self.db
        journal._db = self.db  # type: ignore[assignment]
        cluster = Cluster(
            NAMES, tuple((f"cpu:{n}",) for n in range(4)), (NodePower(5.0, 10.0),) * 4
        )
        self.launcher = Outliving(self.folder, "instance", "unix:none", machine=self.machine)
        settings = Settings(
            policy=self.policy,
            now=lambda: self.now_s,
            keep_entries=self.keep,
        )
        self.restarts += 1
        self.daemon = resume(cluster, journal, self.launcher, settings)

    def close(self) -> None:
        """Give back the files of a daemon that was killed, as its system would."""
        if self.db is None:
            return
        journal = self.journal
        journal._db, self.db = self.db.db, None
        journal._db.close()
        journal._count.close()
        if journal._log >= 0:
            os.close(journal._log)

    def submit(self, name: str, sizes: tuple[int, int, int], mode: Mode, **more: Any) -> None:
        """Hand in a job of so many nodes: least, most, preferred."""
        spec = JobSpec(JobId(name), self.now_s, *sizes, mode, **more)
        hand_in(self.daemon, [spec], requeue=True)


@contextmanager
def bench(folder: Path, policy: str = "fifo", keep: int | None = None) -> Iterator[Bench]:
    """Open a bench; its numbers count as processes meanwhile."""
    found = Bench(folder, policy, keep=keep)
    with (
        patch("rms.launch.base.alive", lambda pid: pid in found.machine.live),
        patch("os.fsync", lambda file: None),
    ):
        yield found
    found.close()
