"""``dmr run``: a supervisor around mpiexec, which goes on after the death of a rank or a host.

It starts a keeper on each host (:mod:`dmr.memory.keeper`), then worlds, one after another, by
mpiexec. A world has ended once it has written its completion record. One that ends without a
record has died; the next world starts on the hosts that are left, and takes the newest whole
generation of copies from the keepers. A host is lost once its keeper has ended, or is silent for
longer than the limit: then the supervisor ends the world itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    base_folder,
    listed,
    places_of,
    sweep,
)
from dmr.memory.piece import Generation, Job, whole
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


def parse_hosts(text: str) -> tuple[tuple[str, int], ...]:
    """Read ``HOST[:RANKS][,...]``.

    Raises:
        ValueError: another syntax, or a host twice; one sentence.
    """
    hosts: dict[str, int] = {}
    for word in text.split(","):
        name, colon, count = word.strip().partition(":")
        good = name and not name.startswith("-") and not set(name) & set("= \t/")
        if not good or (colon and not (count.isdecimal() and 0 < int(count) < 10**6)):
            raise ValueError(f"expected --hosts HOST[:RANKS][,...], got {word!r}")
        if name in hosts:
            raise ValueError(f"expected each host once in --hosts, got {name} twice")
        hosts[name] = int(count or 0)
    return tuple(hosts.items())


class Death(msgspec.Struct):
    """A world that has died.

    Attributes:
        why: a sentence.
        step: of the copy that the next world goes on from; None at the beginning.
        ranks: of the next world.
    """

    why: str
    step: int | None
    ranks: int


def supervise(
    settings: Settings, env: Mapping[str, str], say: Callable[[str], None]
) -> tuple[int, list[Death]]:
    """Run a program to its end; return the exit status of the job, and its worlds that have died.

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
        with Hosts(settings, env) as hosts:
            job = _Job(settings, env, hosts, own, say)
            return job.run(), job.deaths
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
        self.deaths: list[Death] = []
        self._signal = 0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Start worlds until one has ended the job; return its exit status."""
        before = {one: signal.signal(one, self._note) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._worlds()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _note(self, number: int, _: object) -> None:
        """Pass SIGTERM on to mpiexec; Ctrl-C reaches it by itself."""
        self._signal = number
        if number == signal.SIGTERM and self._process is not None:
            self._process.send_signal(number)

    def _worlds(self) -> int:
        life, ranks = 0, self.settings.ranks
        tries, before = 0, None
        while True:
            status, record, lost = self._world(life, ranks)
            if record is not None:
                return self._ended(status, record)
            if self._signal:
                return 128 + self._signal
            lost += self.hosts.begin(life)
            fails = life == 0 and status not in KILLED  # by itself, as it will again
            if not lost and not self.hosts.entered and (fails or status == 0):
                return _exit_status(status)  # a program that has not come to its block
            life += 1
            lost += self.hosts.begin(life)  # ranks of the world before end, if any are left
            why = f"host {', '.join(lost)} is lost" if lost else _ending(status)
            if not self.hosts.left:
                raise SuperviseError(f"expected a host that is left, got none: {why}")
            newest, job = newest_generation(self.hosts.left)
            at = "before a copy" if newest is None else f"at step {newest.step}"
            tries, before = tries + 1 if at == before else 1, at
            if tries > TRIES:
                raise SuperviseError(
                    f"expected a world that goes on, got {tries} in a row that died {at}: {why}"
                )
            ranks = self._next_size(newest_ranks(newest, job, ranks), job)
            self.deaths.append(Death(why, None if newest is None else newest.step, ranks))
            where = "without a copy" if newest is None else f"from the copy at step {newest.step}"
            self._say(f"{why}; going on {where} with {ranks} ranks")

    def _next_size(self, ranks: int, job: Job | None) -> int:
        """Return the size of the next world: that of its copy, as far as there is room."""
        room = self.hosts.room(max(ranks, self.settings.ranks))
        size = min(ranks, room)
        fitted = size if job is None else fitting(size, job.limits, job.sizes)
        if fitted > room or fitted < self.settings.least:
            least = max(self.settings.least, fitted)
            raise SuperviseError(f"expected room for {least} ranks on the hosts left, got {room}")
        return fitted

    def _world(self, life: int, ranks: int) -> tuple[int, CompletionRecord | None, list[str]]:
        """Run a world; return the status of mpiexec, its record, and the hosts that were lost."""
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
        try:
            process = subprocess.Popen(command, env=env)
        except OSError as error:
            raise SuperviseError(f"cannot start {command[0]}: {error.strerror}") from None
        self._process, lost = process, list[str]()
        while process.poll() is None and not lost:
            time.sleep(LOOK_S)
            lost += self.hosts.lost()
        if lost:
            process.kill()  # it may wait for the lost host
        status = process.wait()
        self._process = None
        lost += self.hosts.lost()
        record = None
        with contextlib.suppress(FileNotFoundError, ProtocolError):
            record = read_completion(file)
        if lost and record is not None and record.state != "COMPLETED":
            record = None  # of ranks that missed the lost ones
        return status, record, lost

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


def _exit_status(status: int) -> int:
    """Return the status of a process as a shell has it."""
    return status if status >= 0 else 128 - status


def _ending(status: int) -> str:
    """Return how a launcher has ended without a record."""
    if status < 0:
        return f"mpiexec has ended by {signal.Signals(-status).name}"
    return f"a rank has ended without a completion record (status {status})"


def newest_generation(places: Sequence[Place]) -> tuple[Generation | None, Job | None]:
    """Return the newest whole generation that the keepers hold, and its job; None for none."""
    held = listed(places).held
    newest = next(iter(whole(one.piece for one in held)), None)
    jobs = [one.piece.job for one in held if one.piece.generation == newest]
    return newest, next((job for job in jobs if job is not None), None)


def newest_ranks(newest: Generation | None, job: Job | None, ranks: int) -> int:
    """Return the ranks of the world that took a generation; ``ranks`` without one."""
    return ranks if newest is None or job is None else job.ranks


def _remote_shell(settings: Settings) -> dict[str, str]:
    """Return the variables by which mpiexec uses the remote shell."""
    if not settings.hosts:
        return {}
    return {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": settings.shell,
        "PRTE_MCA_plm_ssh_agent": settings.shell,
    }


class Hosts:
    """The hosts of a job: a keeper on each, and a thread that follows its heartbeat."""

    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        self.settings, self._env = settings, env
        self._hosts = dict(settings.hosts) or {LOOPBACK: 0}
        self._count = len(self._hosts)
        self._processes: list[subprocess.Popen[str]] = []
        self._watches: dict[str, _Watch] = {}
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()

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
            command = _keeper_command(name, self.settings, self._env)
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=dict(self._env),
                    start_new_session=True,
                )
            except OSError as error:
                raise SuperviseError(f"cannot start {command[0]}: {error.strerror}") from None
            self._processes.append(process)
        for name, process in zip(self._hosts, self._processes, strict=True):
            place = _place_of(name, process)
            try:
                watch = _Watch(place, self.settings.silent_s, self._lost)
            except KeeperError as error:
                raise SuperviseError(f"expected a keeper on host {name}, got: {error}") from None
            self._watches[name] = watch

    @property
    def left(self) -> list[Place]:
        """The keepers of the hosts that are left, in their ring."""
        return [watch.place for watch in self._watches.values()]

    @property
    def entered(self) -> bool:
        """Whether a rank of this life has entered its block."""
        return any(watch.entered for watch in self._watches.values())

    def begin(self, life: int) -> list[str]:
        """Have the keepers give up the ranks of earlier worlds; return hosts that were lost."""
        for watch in self._watches.values():
            watch.begin(life)
        return self.lost()

    def lost(self) -> list[str]:
        """Return the hosts that were lost since the last call."""
        names = []
        with contextlib.suppress(queue.Empty):
            while True:
                name = self._lost.get_nowait()
                if self._watches.pop(name, None) is not None:
                    names.append(name)
                    self._processes[list(self._hosts).index(name)].kill()
        return names

    def room(self, ranks: int) -> int:
        """Return how many ranks the hosts left have room for, of a job of so many."""
        if len(self._watches) == self._count and not any(self._hosts.values()):
            return ranks
        share = -(-ranks // self._count)
        return sum(self._hosts[name] or share for name in self._watches)

    def options(self, ranks: int, env: Mapping[str, str]) -> list[str]:
        """Return the options of mpiexec that place ranks on the hosts that are left."""
        if not self.settings.hosts:
            return []
        names = placed(ranks, [(name, self._hosts[name]) for name in self._watches])
        return host_options(self.settings.mpiexec, names, env)

    def close(self) -> None:
        """End the keepers, and with them what they hold."""
        for watch in self._watches.values():
            watch.end()
        for name, process in zip(self._hosts, self._processes, strict=False):
            if name not in self._watches:  # it has not started, or is lost
                process.kill()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        sweep(base_folder())  # of keepers that were killed here


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


def _place_of(name: str, process: subprocess.Popen[str]) -> Place:
    """Return where a keeper is, from the line that it prints."""
    if process.stdout is None:
        raise SuperviseError(f"expected the output of the keeper of host {name}, got none")
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    try:
        line = process.stdout.readline().strip()
    finally:
        timer.cancel()
    try:
        (place,) = places_of(line)
    except ValueError:
        raise SuperviseError(
            f"expected a keeper on host {name} within {START_S:g} s, got {line or 'none'!r}"
        ) from None
    return place


class _Watch:
    """Follows the heartbeat of a keeper in a thread.

    Attributes:
        place: of the keeper.
        entered: whether a rank of the present life has entered its block there.
    """

    def __init__(self, place: Place, silent_s: float, lost: queue.SimpleQueue[str]) -> None:
        self.place, self.entered = place, False
        self._silent_s, self._lost = silent_s, lost
        self._life = 0
        self._wake, self._seen, self._stopped = (threading.Event() for _ in range(3))
        self._keeper = Keeper(place, min(REQUEST_S, silent_s))
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def begin(self, life: int) -> None:
        """Let the keeper know of a new life; return once it has answered, or is lost."""
        self._seen.clear()
        self._life, self.entered = life, False
        self._wake.set()
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
                pulse = self._keeper.beat(life, self._silent_s + leave_s)
                before = life
                answered = time.monotonic()
                if life == self._life:
                    self.entered |= pulse.entered
                    self._seen.set()
            except KeeperError as error:
                if not self._again(error, answered):
                    break
            self._wake.wait(self._silent_s / 5)
        if not self._stopped.is_set():
            self._lost.put(self.place.host)
        self._seen.set()
        self._keeper.close()

    def _again(self, error: KeeperError, answered: float) -> bool:
        """Connect once more, unless the keeper has been silent for too long, or has ended."""
        while time.monotonic() - answered < self._silent_s and not self._stopped.is_set():
            self._keeper.close()
            try:
                self._keeper = Keeper(self.place, self._silent_s / 5)
                return True
            except KeeperGoneError:
                return False
            except KeeperError:
                continue
        return False
