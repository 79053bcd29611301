"""A daemon on the virtual loop: its journal, routes and rounds, killed at any of its points."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from routed import answered

from rms.core.model.cluster import Cluster
from rms.daemon.ask.routes import Routes
from rms.daemon.heart import Daemon
from rms.daemon.restart import recover
from rms.daemon.store.context import BootClock, Settings
from rms.daemon.store.journal import Journal
from rms.launch.base import EngineNodes, ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import LocalLauncher, keepers_of
from virtual.loop import KilledError, Life, VirtualLoop
from virtual.machine import Machine, Process

SOCKET = "socket"
LONGEST_LOG = 1 << 20
FIRST_S, LONGEST_S = 0.05, 10.0
"""Pauses between rounds: after a change, and at most; each is four times the one before."""


class Files:
    """The files of a daemon on a disk, which a loss of power takes back to what was flushed.

    Attributes:
        full: whether nothing can be written.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self._rng, self.full = folder, rng, False
        self._flushed = 0

    @property
    def log(self) -> Path:
        return self.folder / "journal.sqlite-wal"

    @property
    def base(self) -> Path:
        return self.folder / "journal.sqlite"

    def sync(self, file: int) -> None:
        """Flush an open file, in place of ``os.fsync``."""
        life = Life.running
        if life is not None:
            life.point("before a flush")
        if self.full:
            raise OSError(28, "No space left on device")
        if Path(f"/proc/self/fd/{file}").readlink().name.endswith("-wal"):
            self._flushed = self.log.stat().st_size
        if life is not None:
            life.point("after a flush")

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Move a long log into the database, which is flushed, as SQLite does by itself.

        It is done here only, so that the log only grows in between.
        """
        if not db.in_transaction and self.log.stat().st_size > LONGEST_LOG:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._flushed = 0

    def lose_power(self) -> None:
        """Take back a part of what was not flushed: its end is missing, or is not whole."""
        if not self.log.exists():
            return
        now = self.log.read_bytes()
        kept = min(self._flushed, len(now))
        end = self._rng.choice((kept, len(now), self._rng.randint(kept, len(now))))
        torn = now[:end]
        if end < len(now) and self._rng.random() < 0.5:
            torn += self._rng.randbytes(min(512, len(now) - end))
        self.log.write_bytes(torn)
        self._flushed = len(torn)


class Database:
    """A connection of a process that may be killed before or after any of its writes."""

    def __init__(self, db: sqlite3.Connection, life: Life, files: Files) -> None:
        self.db, self._life, self._files = db, life, files

    def execute(self, statement: str, *values: Any) -> Any:
        return self._guarded(self.db.execute, statement, *values)

    def executemany(self, statement: str, *values: Any) -> Any:
        return self._guarded(self.db.executemany, statement, *values)

    def _guarded(self, call: Callable[..., sqlite3.Cursor], statement: str, *values: Any) -> Any:
        if self._life.dead:
            raise KilledError
        reads = statement.startswith("SELECT")
        writes = statement == "COMMIT" or not (
            reads or self.db.in_transaction or statement == "BEGIN"
        )
        if not reads and self._files.full and statement not in ("BEGIN", "ROLLBACK"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        if writes:
            self._life.point("before a write")
            self._files.checkpoint(self.db)
        found = call(statement, *values)
        if writes:
            self._life.point("after a write")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


@dataclass
class Nodes(EngineNodes):
    """Nodes that jobs cannot move to while their machine refuses."""

    machine: Machine

    def resize_refusal(self, job: str, have: Any, wanted: Any) -> str:
        return ""


@dataclass
class Launcher(LocalLauncher):
    """Starts coroutines on a machine that outlives the daemon."""

    machine: Machine = field(kw_only=True)
    life: Life = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nodes = Nodes(self.machine)

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        self.life.point("before a fork")
        file = self.status_file(job)
        process = self.machine.start_script(job, self.run_of(job), launch, file)
        self.life.point("after a fork")
        return ManagedProcess(process.pid, status_file=file)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        self.life.point("before a fork")
        kept = self.world_status_file(job, launch.launch)
        record = self.completion_file(job, launch.step)
        process = self.machine.start_launch(job, launch, self.run_of(job), kept, record)
        self.life.point("after a fork")
        return ManagedProcess(process.pid, status_file=kept)

    def start_keeper(self, job: str, number: int, host: str) -> None:
        self._begin_keeper(job, number, host)

    def _begin_keeper(self, job: str, number: int, host: str) -> Process:
        self.life.point("before a fork")
        file = self.keeper_file(job, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.touch()
        process = self.machine.start_keeper(keepers_of(job), number, host, file)
        self.life.point("after a fork")
        return process

    def joins_launches(self, command: Any) -> bool:
        return True

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return [process.pid for process in self.machine.of(job, launch)]

    def jobs(self) -> list[str]:
        return list(dict.fromkeys(process.job for process in self.machine.live.values()))

    def kill(self, job: str, launch: int | None = None) -> None:
        self.life.point("before a kill")
        self.machine.kill(job, launch)

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        self.life.point("before a signal")
        self.machine.terminate(job, [world.pid for world in worlds])

    def signal_all(self, job: str, number: int) -> None:
        self.machine.signal(job, stop=number == 19)

    def limit_memory(self, job: str, most_mib: float | None = None) -> int | None:
        return None

    def bury(self) -> None:
        """Free what is left of a daemon that is gone."""


class Server:
    """A daemon's process, from its start to its end.

    Attributes:
        over: set at its end.
        begun_s: when it was started.
        longest_s: the longest pause between its rounds.
        launcher: makes its launcher, with the mark of its processes.
        observe: called after each of its rounds and answers.
    """

    daemon: Daemon

    def __init__(self, loop: VirtualLoop, folder: Path, machine: Machine, files: Files) -> None:
        self.loop, self.machine, self.files, self.folder = loop, machine, files, folder
        self.life, self.over = Life(loop), asyncio.Event()
        self.life.on_death.append(self.over.set)
        self._kicked, self.stopping = asyncio.Event(), False
        self.journal: Journal | None = None
        self.begun_s = loop.now_s
        self.longest_s = LONGEST_S
        self.launcher: Callable[[str], Launcher] = self._local
        self._own: Launcher | None = None
        self.observe: Callable[[], None] = lambda: None

    @property
    def serves(self) -> bool:
        return not self.life.dead

    def start(
        self,
        cluster: Cluster,
        settings: Settings,
        of_day: Callable[[], float],
        boot: str,
        kill_at: int | None,
    ) -> None:
        """Start it, in the order of :func:`rms.daemon.serve.run_daemon`."""
        before, Life.running, self.life.kill_at = Life.running, self.life, kill_at
        try:
            self.journal = journal = recover.open_journal(self.files.base)
            journal._db.execute("PRAGMA wal_autocheckpoint = 0")
            journal._db = Database(journal._db, self.life, self.files)  # type: ignore[assignment]
            recover.restore_notes(journal, self.folder / "jobs")
            mark = recover.own_mark(journal, self.folder)
            launcher = self._own = self.launcher(mark)
            launcher.meter_token = "token of meters"
            clock = BootClock(journal, uptime=self.loop.time, of_day=of_day, boot=boot)
            settings = replace(settings, now=clock, clock=clock)
            self.daemon = recover.resume(cluster, journal, launcher, settings)
            recover.settle(self.daemon)
            launcher.open()
            self.daemon.frequencies.begin()
            self.app = Routes(self.daemon, self._stop, "token", [SOCKET]).app()
        finally:
            Life.running = before
        self.life.kill_at = None
        self.machine.changed = self.kick
        self.life.start(self._rounds())

    def _local(self, mark: str) -> Launcher:
        return Launcher(self.folder, mark, "unix:none", machine=self.machine, life=self.life)

    def _stop(self) -> None:
        self.stopping = True
        self.kick()

    def kick(self) -> None:
        """Let the next round begin soon, as something has happened."""
        self._kicked.set()

    async def _rounds(self) -> None:
        daemon, pause_s, ending = self.daemon, FIRST_S, False
        while not (ending and daemon.idle):
            daemon.tick()
            await daemon.flush()
            self.observe()
            if self.stopping and not ending:
                ending = True
                daemon.stop()
            if daemon.scripts.starting:
                await asyncio.sleep(0.0)
            elif self._kicked.is_set():
                self._kicked.clear()
                pause_s = FIRST_S
                await asyncio.sleep(pause_s)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kicked.wait(), pause_s)
                pause_s = min(4 * pause_s, self.longest_s)
        self.over.set()

    async def request(
        self, method: str, path: str, body: bytes, token: str | None = None
    ) -> tuple[int, bytes]:
        """Answer a request at the Unix socket, with the token of a job."""
        shown = f"Bearer {token}" if token else None
        status, _, text = await answered(self.app, method, path, body, shown, (SOCKET, None))
        self.observe()
        if method != "GET" and not path.partition("?")[0].endswith("/poll"):
            self.kick()
        return status, text

    # --- its end --------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Free the files of a process that is gone, as its system does; its log stays as it is."""
        self.life.dead = True
        if self._own is not None:
            self._own.bury()
        journal = self.journal
        if journal is None:
            return
        names = ("journal.sqlite", "journal.sqlite-wal")
        kept = [(self.folder / name, (self.folder / f"{name}.kept")) for name in names]
        db = journal._db.db if isinstance(journal._db, Database) else journal._db
        if db.in_transaction:
            db.execute("ROLLBACK")
        for file, copy in kept:
            if file.exists():
                shutil.copyfile(file, copy)
        db.close()
        journal._count.close()
        if journal._log >= 0:
            os.close(journal._log)
        for file, copy in kept:
            file.unlink(missing_ok=True)
            if copy.exists():
                copy.rename(file)
        self.life.bury()
