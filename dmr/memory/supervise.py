"""``dmr run``: a supervisor around mpiexec, which goes on after the death of a rank or a host.

It starts a keeper on each host (:mod:`dmr.memory.keeper`), then worlds, one after another, by
mpiexec. A world has ended once it has written its completion record. One that ends without a
record has died; the next world starts on the hosts that are left, and takes the newest whole
generation of copies from the keepers. A host is lost once its keeper has ended, or is silent for
longer than the limit: then the supervisor ends the world itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from dmr.boot.environment import RATE_VARIABLE
from dmr.boot.mpiexec import clean_environment
from dmr.memory.keeper import (
    LEAVE_S,
    REQUEST_S,
    Keeper,
    KeeperError,
    KeeperGoneError,
    Place,
    Pulse,
    base_folder,
    listed,
    places_of,
    sweep,
)
from dmr.memory.piece import Job, whole
from dmr.plan import fitting
from dmr.wire.channel import LOOPBACK
from rms.wire.files import OutputError
from rms.wire.messages import (
    COMPLETION_VARIABLE,
    KEEPERS_VARIABLE,
    MEMORY_VARIABLE,
    MTBF_VARIABLE,
    SUPERVISOR_VARIABLE,
    CompletionRecord,
    ProtocolError,
    read_completion,
    write_completion,
)
from rms.wire.mpiexec import host_options, mpiexec_command

HERE = ("localhost", LOOPBACK)
"""Names of this host, which is reached without a remote shell."""

START_S = 30.0
"""Timeout for a keeper to start."""

LOOK_S = 0.02
"""Interval of the checks of the launcher."""

NOTICED = 0.95
"""Share of the limit of a silent host after which it is given up: the rest is for the notice."""

BEATS = 10
"""Heartbeats within the time that a host may be silent."""

AGAIN_S = 10.0
"""Time from the loss of a host until a keeper is started there again, and timeout of that; twice as
long after each further loss."""

END_S = 5.0

TRIES = 5
"""Worlds in a row that may die without a new copy, until the job ends."""


KILLED = (-signal.SIGKILL, signal.SIGKILL, 128 + signal.SIGKILL, 255)
"""Statuses of mpiexec after a kill: of itself, of a rank, of a shell around that, of a host."""


class SuperviseError(Exception):
    """The job cannot be started, or cannot go on; one sentence."""


@dataclass(frozen=True)
class Settings:
    """The options of ``dmr run``.

    Attributes:
        ranks: of the first world.
        command: the program and its arguments.
        mpiexec: path of the launcher.
        hosts: names, and ranks that each has room for (0: an equal share); () for this host.
        least: ranks of a world, at least.
        every_s: seconds between copies, "auto", or None for those of the program's plan.
        gb_s: rate at which a rank sends its copies, at most; None for that of the program's plan.
        mtbf_h: mean time between failures of a host, in hours, for "auto"; None for a year.
        silent_s: a host that is silent for longer is lost.
        shell: remote shell, called as ``SHELL HOST COMMAND``.
        spares: hosts as in ``hosts``, which take the places of lost ones.
    """

    ranks: int
    command: tuple[str, ...]
    mpiexec: str
    hosts: tuple[tuple[str, int], ...] = ()
    least: int = 1
    every_s: float | str | None = None
    gb_s: float | None = None
    mtbf_h: float | None = None
    silent_s: float = 5.0
    shell: str = "ssh"
    spares: tuple[tuple[str, int], ...] = ()


def parse_hosts(text: str, option: str = "--hosts") -> tuple[tuple[str, int], ...]:
    """Read ``HOST[:RANKS][,...]``.

    Raises:
        ValueError: another syntax, or a host twice; one sentence.
    """
    hosts: dict[str, int] = {}
    for word in text.split(","):
        name, colon, count = word.strip().partition(":")
        good = name and not name.startswith("-") and not set(name) & set("= \t/")
        if not good or (colon and not (count.isdecimal() and 0 < int(count) < 10**6)):
            raise ValueError(f"expected {option} HOST[:RANKS][,...], got {word!r}")
        if name in hosts:
            raise ValueError(f"expected each host once in {option}, got {name} twice")
        hosts[name] = int(count or 0)
    return tuple(hosts.items())


class Restart(msgspec.Struct):
    """The end of a world, and the one after it. Times are seconds since the job was started.

    Attributes:
        why: a sentence.
        step: of the copy that the next world goes on from; None at the beginning.
        ranks: of the next world.
        reached: the newest step that the ended world had begun; None if it came to none.
        complete: step of the newest copy that all its ranks knew to be complete; None for none.
        nbytes: of that copy, in all.
        noticed_s: the supervisor noticed the end.
        started_s: it started the next world.
        restored_s: the state of the next world was that of the copy; None if it had none.
        computing_s: the first step of the next world began; None if it came to none.
        stepped_s: that step ended.
    """

    why: str
    step: int | None
    ranks: int
    reached: int | None
    complete: int | None
    nbytes: int
    noticed_s: float
    started_s: float | None = None
    restored_s: float | None = None
    computing_s: float | None = None
    stepped_s: float | None = None


class Report(msgspec.Struct):
    """What has become of a job.

    Attributes:
        exit_code: of the job.
        started_at: when it was started, in seconds since 1970.
        deaths: its worlds that have died.
        widened: its worlds that were ended to go on with more ranks.
    """

    exit_code: int
    started_at: float
    deaths: list[Restart]
    widened: list[Restart]


def supervise(settings: Settings, env: Mapping[str, str], say: Callable[[str], None]) -> Report:
    """Run a program to its end; return what has become of it.

    Args:
        env: the environment variables.
        say: prints a line for the user.

    Raises:
        SuperviseError: the job cannot be started, or cannot go on.
    """
    # Rank 0 writes its record there, on whatever host it is.
    base = Path.cwd() if settings.hosts else None
    if env.get(COMPLETION_VARIABLE):
        base = Path(env[COMPLETION_VARIABLE]).absolute().parent
    try:
        own = Path(tempfile.mkdtemp(prefix=".dmr-run-", dir=base))
    except OSError as error:
        raise SuperviseError(f"cannot make a folder in {base}: {error.strerror}") from None
    try:
        with Hosts(settings, env, say) as hosts:
            job = _Job(settings, env, hosts, own, say)
            job.report.exit_code = job.run()
            return job.report
    finally:
        shutil.rmtree(own, ignore_errors=True)


class _Job:
    """One job: its worlds, until one of them has ended it."""

    def __init__(
        self,
        settings: Settings,
        env: Mapping[str, str],
        hosts: Hosts,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.env, self.hosts = settings, env, hosts
        self._folder, self._say = folder, say
        self._zero_s = time.monotonic()
        self.report = Report(1, time.time(), [], [])
        self._restart: Restart | None = None  # that led to the present world
        self._wanted = settings.ranks  # of a world with room for all
        self._job: Job | None = None  # of the newest copy
        self._signal = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._shells: list[int] = []  # descriptors of what a killed mpiexec had started

    def run(self) -> int:
        """Start worlds until one has ended the job; return its exit status."""
        before = {one: signal.signal(one, self._note) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._worlds()
        finally:
            self._end_shells()
            for one, handler in before.items():
                signal.signal(one, handler)

    def _note(self, number: int, _: object) -> None:
        """Pass SIGTERM on to mpiexec; Ctrl-C reaches it by itself."""
        self._signal = number
        if number == signal.SIGTERM and self._process is not None:
            self._process.send_signal(number)

    def _since(self) -> float:
        return time.monotonic() - self._zero_s

    def _worlds(self) -> int:
        life, ranks = 0, self.settings.ranks
        tries, before = 0, None
        while True:
            world = self._world(life, ranks)
            status, lost = world.status, world.lost
            if world.record is not None:
                if life:
                    self.hosts.begin(life)
                    self._close_restart(life)
                return self._ended(status, world.record)
            if self._signal:
                return 128 + self._signal
            if not world.widens:
                lost += self.hosts.begin(life)  # and hear of its last step
            self._close_restart(life)
            came = self.hosts.came(life)
            fails = life == 0 and status not in KILLED  # by itself, as it will again
            if not (lost or world.widens or self.hosts.entered) and (fails or status == 0):
                return _exit_status(status)  # a program that has not come to its block
            life += 1
            lost += self.hosts.begin(life)  # ranks of the world before end, if any are left
            self._end_shells()
            why = _ending(status)
            if world.widens:
                why = f"there is room for {self._wanted} ranks"
            if lost:
                why = f"host {', '.join(lost)} is lost"
            self.hosts.fill()
            if not self.hosts.left:
                raise SuperviseError(f"expected a host that is left, got none: {why}")
            copy = newest_copy(self.hosts.left)
            at = "before a copy" if copy.step is None else f"at step {copy.step}"
            tries, before = tries + 1 if at == before else 1, at
            if tries > TRIES and not world.widens:
                raise SuperviseError(
                    f"expected a world that goes on, got {tries} in a row that died {at}: {why}"
                )
            self._job = copy.job
            ranks = self._next_size(ranks if copy.job is None else copy.job.ranks, ranks)
            reached = (came.step, came.copied)
            restart = Restart(why, copy.step, ranks, *reached, copy.nbytes, world.noticed_s)
            (self.report.widened if world.widens else self.report.deaths).append(restart)
            self._restart = restart
            where = "without a copy" if copy.step is None else f"from the copy at step {copy.step}"
            self._say(f"{why}; going on {where} with {ranks} ranks")

    def _end_shells(self) -> None:
        """End remote shells of a killed mpiexec that wait for a lost host."""
        for handle in self._shells:
            with contextlib.suppress(ProcessLookupError):
                if sys.platform == "linux":
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._shells.clear()

    def _close_restart(self, life: int) -> None:
        """Enter when the world of a life had begun to compute."""
        restart, came = self._restart, self.hosts.came(life)
        if restart is not None and came.begun_at is not None:
            restart.computing_s = came.begun_at - self._zero_s
            if came.restored_at is not None:
                restart.restored_s = came.restored_at - self._zero_s
            if came.stepped_at is not None:
                restart.stepped_s = came.stepped_at - self._zero_s
        self._restart = None

    def _next_size(self, taken: int, before: int) -> int:
        """Return the size of the next world: that of its copy, or wider where that was narrowed.

        Args:
            taken: ranks of the world that took the copy.
            before: ranks that the world that has ended was started with.
        """
        if taken != before:  # the program has resized itself since
            self._wanted = taken
        self._wanted = max(taken, self._wanted)
        room = self.hosts.room(max(self._wanted, self.settings.ranks))
        size = self._fitting(room)
        if size > room or size < self.settings.least:
            least = max(self.settings.least, size)
            raise SuperviseError(f"expected room for {least} ranks on the hosts left, got {room}")
        return size

    def _fitting(self, room: int) -> int:
        """Return the size of a world for so much room, as the program's plan allows it."""
        size, job = min(self._wanted, room), self._job
        return size if job is None else fitting(size, job.limits, job.sizes)

    def _widens(self, ranks: int) -> bool:
        """Return whether to end a world that is narrower than wanted, just after a copy."""
        if ranks >= self._wanted or not self.hosts.copied():
            return False
        room = self.hosts.room(max(self._wanted, self.settings.ranks), spares=True)
        return ranks < self._fitting(room) <= room

    def _world(self, life: int, ranks: int) -> _Ended:
        """Run a world; return how it has ended."""
        file = self._folder / f"completion-{life}"
        env = clean_environment(self.env) | {
            KEEPERS_VARIABLE: " ".join(map(str, self.hosts.left)),
            SUPERVISOR_VARIABLE: str(life),
            COMPLETION_VARIABLE: str(file),
        }
        if self.settings.every_s is not None:
            env[MEMORY_VARIABLE] = str(self.settings.every_s)
        if self.settings.gb_s is not None:
            env[RATE_VARIABLE] = str(self.settings.gb_s)
        if self.settings.mtbf_h is not None:
            env[MTBF_VARIABLE] = str(self.settings.mtbf_h)
        env |= _remote_shell(self.settings)
        where = self.hosts.options(ranks, env)
        command = mpiexec_command(self.settings.mpiexec, ranks, self.settings.command, where)
        if self._restart is not None:
            self._restart.started_s = self._since()
        try:
            process = subprocess.Popen(command, env=env)
        except OSError as error:
            raise SuperviseError(f"cannot start {command[0]}: {error.strerror}") from None
        self._process, lost, widens = process, list[str](), False
        while process.poll() is None and not lost and not widens:
            time.sleep(LOOK_S)
            lost += self.hosts.lost()
            widens = not self._signal and self._widens(ranks)
        noticed_s = self._since()
        if widens and not lost:
            # Ranks that have left their block are not ended: the job ends by itself.
            lost += self.hosts.begin(life + 1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        if lost or widens:
            self._shells += _children(process.pid)
            process.kill()  # it may wait for the lost host
        status = process.wait()
        self._process = None
        lost += self.hosts.lost()
        record = None
        with contextlib.suppress(FileNotFoundError, ProtocolError):
            record = read_completion(file)
        if lost and record is not None and record.state != "COMPLETED":
            record = None  # of ranks that missed the lost ones
        return _Ended(status, record, lost, widens, noticed_s)

    def _ended(self, status: int, record: CompletionRecord) -> int:
        """Pass the record on; return the exit status of the job."""
        target = self.env.get(COMPLETION_VARIABLE)
        if target:
            try:
                write_completion(Path(target), record)
            except OutputError as error:
                raise SuperviseError(str(error)) from None
        if record.state != "COMPLETED":
            return record.exit_code or 1
        return _exit_status(status)


@dataclass(frozen=True)
class _Ended:
    """How a world has ended.

    Attributes:
        status: of mpiexec.
        record: its completion record; None for a death.
        lost: hosts that were lost.
        widens: whether it was ended to go on with more ranks.
        noticed_s: when that was noticed.
    """

    status: int
    record: CompletionRecord | None
    lost: list[str]
    widens: bool
    noticed_s: float


def _children(pid: int) -> list[int]:
    """Return a descriptor of every child of a process, on Linux."""
    handles = []
    if sys.platform == "linux":
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                handles += [os.pidfd_open(int(child)) for child in path.read_text().split()]
    return handles


def _exit_status(status: int) -> int:
    """Return the status of a process as a shell has it."""
    return status if status >= 0 else 128 - status


def _ending(status: int) -> str:
    """Return how a launcher has ended without a record."""
    if status < 0:
        return f"mpiexec has ended by {signal.Signals(-status).name}"
    return f"a rank has ended without a completion record (status {status})"


@dataclass(frozen=True)
class Copy:
    """The newest whole generation that the keepers hold.

    Attributes:
        step: of it; None for no copy.
        job: of the world that took it.
        nbytes: of its cells.
    """

    step: int | None = None
    job: Job | None = None
    nbytes: int = 0


def newest_copy(places: Sequence[Place]) -> Copy:
    """Return the newest whole generation that the keepers hold."""
    held = listed(places).held
    newest = next(iter(whole(one.piece for one in held)), None)
    if newest is None:
        return Copy()
    pieces = {one.piece.rank: one.piece for one in held if one.piece.generation == newest}
    blocks = [block for piece in pieces.values() for block in piece.blocks.values()]
    nbytes = sum(block.box.size * block.itemsize for block in blocks)
    return Copy(newest.step, next((one.job for one in pieces.values() if one.job), None), nbytes)


def _remote_shell(settings: Settings) -> dict[str, str]:
    """Return the variables by which mpiexec uses the remote shell."""
    if not settings.hosts:
        return {}
    return {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": settings.shell,
        "PRTE_MCA_plm_ssh_agent": settings.shell,
    }


@dataclass
class Came:
    """How far the world of a life has come, as the keepers have reported.

    Attributes:
        step: the newest that it has begun; None before its first.
        begun_at, stepped_at: of its first step, on the supervisor's monotonic clock.
        restored_at: when its state was that of the copy.
        copied: step of the newest copy that its ranks knew to be complete.
    """

    step: int | None = None
    begun_at: float | None = None
    stepped_at: float | None = None
    restored_at: float | None = None
    copied: int | None = None


class Hosts:
    """The hosts of a job and its spares: a keeper on each, and a thread that follows it."""

    def __init__(
        self, settings: Settings, env: Mapping[str, str], say: Callable[[str], None] = print
    ) -> None:
        self.settings, self._env, self._say = settings, env, say
        self._count = len(settings.hosts) or 1
        self._hosts = dict(settings.hosts) or {LOOPBACK: 0}
        self._hosts |= dict(settings.spares)  # their room
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._slots: list[str | None] = [*(dict(settings.hosts) or {LOOPBACK: 0})]
        self._watches: dict[str, _Watch] = {}  # of hosts in use, in their ring
        self._spares: dict[str, _Watch] = {}
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._back: queue.SimpleQueue[_Watch] = queue.SimpleQueue()
        self._life, self._came, self._seen = 0, dict[int, Came](), Came()
        self._lock = threading.Lock()  # of what threads enter in _came
        self._ended = threading.Event()
        self._times: dict[str, int] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Hosts:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """Start the keepers, all at once."""
        for name in self._hosts:
            self._processes[name] = self._keeper(name)
        for name, process in self._processes.items():
            try:
                watch = self._watch(_place_of(name, process, START_S))
            except KeeperError as error:
                raise SuperviseError(f"expected a keeper on host {name}, got: {error}") from None
            (self._watches if name in self._slots else self._spares)[name] = watch

    def _keeper(self, name: str) -> subprocess.Popen[str]:
        """Start a keeper."""
        command = _keeper_command(name, self.settings, self._env)
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                env=dict(self._env),
                start_new_session=True,
            )
        except OSError as error:
            raise SuperviseError(f"cannot start {command[0]}: {error.strerror}") from None

    def _watch(self, place: Place) -> _Watch:
        return _Watch(place, self.settings.silent_s, self._lost, self._note)

    def _note(self, life: int, pulse: Pulse) -> None:
        """Enter what a keeper has reported; called by the threads."""
        now, steps = time.monotonic(), pulse.steps
        with self._lock:
            came = self._came.setdefault(life, Came())
            if steps is not None:
                came.step = max(steps.step, came.step or 0)
                begun_at = now - steps.begun_s
                came.begun_at = min(begun_at, came.begun_at or begun_at)
                if steps.restored_s is not None:
                    came.restored_at = came.restored_at or now - steps.restored_s
                if steps.done_s is not None:
                    came.stepped_at = came.stepped_at or now - steps.done_s
            if pulse.kept is not None and pulse.kept.life == life:
                came.copied = max(pulse.kept.step, came.copied or 0)

    def came(self, life: int) -> Came:
        """Return how far the world of a life has come."""
        with self._lock:
            return dataclasses.replace(self._came.get(life, Came()))

    def copied(self) -> bool:
        """Return whether a copy of the present life has become complete since the last call."""
        copied, self._seen.copied = self._seen.copied, self.came(self._life).copied
        return self._seen.copied is not None and self._seen.copied != copied

    @property
    def left(self) -> list[Place]:
        """The keepers of the hosts in use, in their ring."""
        return [watch.place for watch in self._watches.values()]

    @property
    def entered(self) -> bool:
        """Whether a rank of this life has entered its block."""
        return any(watch.entered for watch in self._watches.values())

    def begin(self, life: int) -> list[str]:
        """Have the keepers give up the ranks of earlier worlds; return hosts that were lost."""
        self._life, self._seen = life, Came()
        watches = [*self._watches.values(), *self._spares.values()]
        for watch in watches:
            watch.begin(life)
        for watch in watches:
            watch.wait()
        return self.lost()

    def lost(self) -> list[str]:
        """Return the hosts in use that were lost since the last call; look for new spares."""
        for watch in _all_of(self._back):
            self._spares[watch.place.host] = watch
            watch.begin(self._life)
            self._say(f"host {watch.place.host} is back, as a spare")
        names = []
        for name in _all_of(self._lost):
            if self._watches.pop(name, None) is not None:
                names.append(name)
                self._slots[self._slots.index(name)] = None
            elif self._spares.pop(name, None) is not None:
                self._say(f"spare host {name} is lost")
            else:
                continue
            self._processes[name].kill()
            if self.settings.hosts:
                thread = threading.Thread(target=self._call_back, args=(name,), daemon=True)
                thread.start()
                self._threads.append(thread)
        return names

    def _call_back(self, name: str) -> None:
        """Start a keeper on a lost host again and again, until it answers; of a thread."""
        self._times[name] = self._times.get(name, 0) + 1
        pause_s = AGAIN_S * 2 ** (self._times[name] - 1)  # a host that comes and goes
        while not self._ended.wait(pause_s):
            _reap(self._processes[name])
            with contextlib.suppress(KeeperError, SuperviseError):
                self._processes[name] = process = self._keeper(name)
                self._back.put(self._watch(_place_of(name, process, AGAIN_S, self._ended)))
                return

    def fill(self) -> None:
        """Put spares into the places of lost hosts."""
        for at, name in enumerate(self._slots):
            if name is None and self._spares:
                self._slots[at] = spare = next(iter(self._spares))
                self._watches[spare] = self._spares.pop(spare)
        self._watches = {name: self._watches[name] for name in self._slots if name is not None}

    def room(self, ranks: int, *, spares: bool = False) -> int:
        """Return how many ranks the hosts in use have room for, of a job of so many.

        Args:
            spares: whether spares are in the places of lost hosts.
        """
        names = [*self._watches]
        if spares:
            names += [*self._spares][: self._count - len(names)]
        if len(names) == self._count and not any(self._hosts[name] for name in names):
            return ranks
        share = -(-ranks // self._count)
        return sum(self._hosts[name] or share for name in names)

    def options(self, ranks: int, env: Mapping[str, str]) -> list[str]:
        """Return the options of mpiexec that place ranks on the hosts in use."""
        if not self.settings.hosts:
            return []
        names = placed(ranks, [(name, self._hosts[name]) for name in self._watches])
        return host_options(self.settings.mpiexec, names, env)

    def close(self) -> None:
        """End the keepers, and with them what they hold."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        watches = self._watches | self._spares
        watches |= {watch.place.host: watch for watch in _all_of(self._back)}
        for watch in watches.values():
            watch.end()
        for name, process in self._processes.items():
            if name not in watches:  # it has not started, or is lost
                process.kill()
            _reap(process)
        sweep(base_folder())  # of keepers that were killed here


Item = TypeVar("Item")


def _all_of(items: queue.SimpleQueue[Item]) -> Iterator[Item]:
    """Yield what is in a queue."""
    with contextlib.suppress(queue.Empty):
        while True:
            yield items.get_nowait()


def _reap(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a keeper, or of its remote shell."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def placed(ranks: int, hosts: Sequence[tuple[str, int]]) -> list[str]:
    """Return the host of every rank: blocks of equal size, or as many as a host has room for.

    Args:
        hosts: names, and ranks that each has room for; 0 for an equal share.
    """
    if any(count for _, count in hosts):
        filled = [name for name, count in hosts for _ in range(count or -(-ranks // len(hosts)))]
        turns = -(-ranks // len(filled))
        return sorted((filled * turns)[:ranks], key=[name for name, _ in hosts].index)
    share, more = divmod(ranks, len(hosts))
    return [name for at, (name, _) in enumerate(hosts) for _ in range(share + (at < more))]


def _keeper_command(name: str, settings: Settings, env: Mapping[str, str]) -> list[str]:
    """Return the command that starts a keeper on a host."""
    module = ["-m", "dmr.memory.keeper", name, "--silent", str(settings.silent_s)]
    command = [sys.executable, "-P", *module]
    if name in HERE or name == os.uname().nodename:
        return command
    paths = [f"PYTHONPATH={env['PYTHONPATH']}"] if env.get("PYTHONPATH") else []
    return [settings.shell, name, shlex.join(["env", *paths, *command])]


def _place_of(
    name: str, process: subprocess.Popen[str], wait_s: float, ended: threading.Event | None = None
) -> Place:
    """Return where a keeper is, from the line that it prints.

    Args:
        wait_s: for so long.
        ended: an event that ends the wait.
    """
    if process.stdout is None:
        raise SuperviseError(f"expected the output of the keeper of host {name}, got none")
    poller, line = select.poll(), ""
    poller.register(process.stdout, select.POLLIN)
    until = time.monotonic() + wait_s
    while (left := until - time.monotonic()) > 0 and not (ended is not None and ended.is_set()):
        if poller.poll(1000 * min(left, LOOK_S if ended else left)):
            line = process.stdout.readline().strip()
            break
    try:
        (place,) = places_of(line)
    except ValueError:
        process.kill()
        raise SuperviseError(
            f"expected a keeper on host {name} within {wait_s:g} s, got {line or 'none'!r}"
        ) from None
    return place


class _Watch:
    """Follows the heartbeat of a keeper in a thread.

    Attributes:
        place: of the keeper.
        entered: whether a rank of the present life has entered its block there.
    """

    def __init__(
        self,
        place: Place,
        silent_s: float,
        lost: queue.SimpleQueue[str],
        note: Callable[[int, Pulse], None],
    ) -> None:
        self.place, self.entered = place, False
        self._silent_s, self._lost, self._note = silent_s, lost, note
        self._life = 0
        self._wake, self._seen, self._stopped = (threading.Event() for _ in range(3))
        self._keeper = Keeper(place, min(REQUEST_S, silent_s))
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def begin(self, life: int) -> None:
        """Let the keeper know of a new life, or report on the present one."""
        self._seen.clear()
        self._life, self.entered = life, False
        self._wake.set()

    def wait(self) -> None:
        """Return once the keeper has answered, or is lost."""
        while not self._seen.wait(LOOK_S) and self._thread.is_alive():
            pass

    def end(self) -> None:
        """End the keeper."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(2 * self._silent_s)
        with contextlib.suppress(KeeperError), Keeper(self.place, 1.0) as keeper:
            keeper.end()

    def _follow(self) -> None:
        answered, before = time.monotonic(), 0
        while not self._stopped.is_set():
            self._wake.clear()
            life = self._life
            try:
                # A new life is answered once the ranks of earlier ones have ended.
                leave_s = 0.0 if life == before else LEAVE_S
                # What is left then is for another connection: one may wait long for lost packets.
                left_s = answered + 0.8 * self._silent_s - time.monotonic()
                pulse = self._keeper.beat(life, max(left_s, self._silent_s / 5) + leave_s)
                before = life
                answered = time.monotonic()
                self._note(life, pulse)
                if life == self._life:
                    self.entered |= pulse.entered
                    self._seen.set()
            except KeeperError as error:
                if not self._again(error, answered):
                    break
            self._wake.wait(self._silent_s / BEATS)
        if not self._stopped.is_set():
            self._lost.put(self.place.host)
        self._seen.set()
        self._keeper.close()

    def _again(self, error: KeeperError, answered: float) -> bool:
        """Connect once more, unless the keeper has been silent for too long, or has ended."""
        until = answered + NOTICED * self._silent_s
        while (left_s := until - time.monotonic()) > 0.0 and not self._stopped.is_set():
            self._keeper.close()
            try:
                self._keeper = Keeper(self.place, min(left_s, self._silent_s / 5))
                return True
            except KeeperGoneError:
                return False
            except KeeperError:
                continue
        return False
