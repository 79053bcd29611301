"""The activity of jobs: processor time by control groups and by processes, counters, reports."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from processes import until

import rms.power.activity as activity
from rms.launch.local import LocalLauncher
from rms.launch.processes import GROUP_VARIABLE, find_delegated
from rms.power.activity import (
    KEPT_S,
    NO_COUNTS,
    ActivityError,
    ActivityReader,
    Counters,
    Event,
    JobGroups,
    JobProcesses,
    _between,
)
from rms.power.agent import Agent, Daemon, _merged
from rms.power.choice import MeterChoice
from rms.power.meter import Ladder, Meter, MeterError, NodeMeter
from rms.wire.http import UnreachableError
from rms.wire.messages import (
    MARK_VARIABLE,
    METER_PATH,
    Activity,
    DeviceEnergy,
    MeterAnswer,
    Metered,
)

DEADLINE_S = 60.0
SOFTWARE = (Event(1, 0), Event(1, 3), Event(1, 2))
"""Processor time in ns, context switches and page faults: every kernel counts them."""

BUSY = "while :; do :; done"
SPAWNS = "while :; do /bin/sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done"


def _mounts() -> list[Path]:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(where) for _, where, kind, *_ in lines if kind == "cgroup2"]


@pytest.fixture
def groups() -> Iterator[Path]:
    """Make a control group; it is removed with all below it."""
    delegated = find_delegated(os.environ)
    for above in [delegated] if delegated is not None else _mounts():
        folder = above / f"rms-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            break
    else:
        pytest.skip("expected a cgroup2 that this user may make groups in")
    yield folder

    def removed() -> bool:
        for below in (*sorted(folder.rglob("*/"), reverse=True), folder):
            with contextlib.suppress(OSError):  # its processes have not ended yet
                below.rmdir()
        return not folder.exists()

    until(removed, "the groups could not be removed", deadline_s=DEADLINE_S)


@contextlib.contextmanager
def job(
    script: str, mark: str = "", group: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a shell with a mark, in a group; all of it is killed at the end."""
    join = "" if group is None else f"echo 0 > {group}/cgroup.procs || exit 1; "
    env = {**os.environ, **({MARK_VARIABLE: mark} if mark else {})}
    process = subprocess.Popen(["/bin/sh", "-c", join + script], env=env, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(DEADLINE_S)


def entries(folder: str) -> int:
    return len(list(Path(folder).iterdir()))


def of(reader: ActivityReader, owner: str) -> Activity | None:
    return next((own for own in reader.read() if own.owner == owner), None)


def spent_s(reader: ActivityReader, owner: str) -> float:
    own = of(reader, owner)
    return 0.0 if own is None else own.cpu_s


def rises(reader: ActivityReader, owner: str, to_s: float) -> list[float]:
    """Read until an owner has so much processor time; return all readings."""
    read: list[float] = []

    def reaches() -> bool:
        read.append(spent_s(reader, owner))
        return read[-1] >= to_s

    until(reaches, f"{owner} did not reach {to_s} s", every_s=0.05, deadline_s=DEADLINE_S)
    assert read == sorted(read)
    return read


# --- control groups ---------------------------------------------------------------------------


def test_groups_count_busy_children_and_groups_below(groups: Path) -> None:
    reader = ActivityReader(JobGroups(groups, None))
    assert [own.owner for own in reader.read()] == [""]
    below = groups / "1_2" / "own"
    below.mkdir(parents=True)
    with job(BUSY, group=below), job(SPAWNS, group=groups / "1_2"):
        rises(reader, "1_2", 0.4)
        kernel = (groups / "1_2" / "cpu.stat").read_text().split()[1]
        assert abs(spent_s(reader, "1_2") - int(kernel) * 1e-6) < 1.0
        assert spent_s(reader, "") > 0.0
    reader.close()


def test_a_group_that_was_there_counts_from_the_first_reading(groups: Path) -> None:
    (groups / "7").mkdir()
    with job(BUSY, group=groups / "7"):
        until(lambda: int((groups / "7" / "cpu.stat").read_text().split()[1]) > 200_000)
        reader = ActivityReader(JobGroups(groups, None))
        assert spent_s(reader, "7") == 0.0
        rises(reader, "7", 0.1)
    reader.close()


def test_a_removed_group_keeps_its_figures_and_one_made_again_goes_on(groups: Path) -> None:
    reader = ActivityReader(JobGroups(groups, None))
    reader.read()
    for _ in range(2):
        before_s = spent_s(reader, "7")
        (groups / "7").mkdir()
        with job(BUSY, group=groups / "7"):
            rises(reader, "7", before_s + 0.1)

        def removed() -> bool:
            with contextlib.suppress(OSError):
                (groups / "7").rmdir()
            return not (groups / "7").exists()

        last_s = spent_s(reader, "7")
        until(removed)
        assert spent_s(reader, "7") >= last_s
    reader.close()


def plain(folder: Path, name: str, usage_us: int) -> Path:
    """Write a group's file as the kernel does, in a plain folder."""
    file = folder / name / "cpu.stat"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"usage_usec {usage_us}\nuser_usec {usage_us}\nsystem_usec 0\n")
    return file


def test_readings_of_files(tmp_path: Path) -> None:
    """Agents are no jobs, keepers are their job's, and a figure that falls adds nothing."""
    now_s = [0.0]
    (tmp_path / "cgroup.procs").write_text("")  # files of the group itself
    before = plain(tmp_path, "1", 5_000_000)
    reader = ActivityReader(JobGroups(tmp_path, None), clock=lambda: now_s[0])
    assert spent_s(reader, "1") == 0.0
    plain(tmp_path, "1", 6_000_000)
    plain(tmp_path, "1.keepers", 500_000)
    plain(tmp_path, "2_10", 250_000)
    plain(tmp_path, "meter", 9_000_000)
    assert {own.owner: own.cpu_s for own in reader.read() if own.owner} == {"1": 1.5, "2_10": 0.25}
    plain(tmp_path, "1", 1_000_000)
    assert spent_s(reader, "1") == 1.5
    before.write_text("nothing of the kernel's\n")
    assert spent_s(reader, "1") == 1.5
    (tmp_path / "3").mkdir()  # without a file: it vanishes while it is read, or cannot be read
    assert of(reader, "3") is None
    plain(tmp_path, "3", 2_000_000)
    assert spent_s(reader, "3") == 2.0
    reader.close()


def test_an_owner_that_has_ended_is_reported_for_a_minute_and_never_falls() -> None:
    """Nor where the clock stands still."""
    now_s, jobs = [0.0], [("5", 2.0)]

    class Played(JobProcesses):
        def read(self, now_s: float) -> Iterator[activity.Spent]:
            yield from (activity.Spent(*own) for own in jobs)

    reader = ActivityReader(Played("x"), clock=lambda: now_s[0])
    assert spent_s(reader, "5") == 2.0
    jobs.clear()
    for now_s[0] in (0.0, KEPT_S):
        assert spent_s(reader, "5") == 2.0
    now_s[0] = KEPT_S + 1.0
    assert of(reader, "5") is None
    jobs.append(("5", 1.0))  # it was requeued
    assert spent_s(reader, "5") == 3.0


def test_the_sums_of_ended_owners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MOST_ENDED", 10)
    names = iter(range(100))

    class Played(JobProcesses):
        def read(self, now_s: float) -> Iterator[activity.Spent]:
            yield activity.Spent(f"{next(names)}", 1.0)

    now_s = iter(range(100))
    reader = ActivityReader(Played("x"), clock=lambda: float(next(now_s)))
    for n in range(50):
        assert spent_s(reader, f"{n}") == 1.0
        assert len(reader._sums) <= 10


# --- processes --------------------------------------------------------------------------------


def test_processes_count_busy_children_and_children_that_have_ended() -> None:
    reader = ActivityReader(JobProcesses("cafe"))
    assert [own.owner for own in reader.read()] == [""]
    with job(f"({BUSY}) & {SPAWNS}", "cafe:1_2") as shell:
        rises(reader, "1_2", 0.5)
        stat = Path(f"/proc/{shell.pid}/stat").read_text().rpartition(")")[2].split()
        waited_s = sum(map(int, stat[13:15])) / activity.TICKS
        assert waited_s > 0.05 and spent_s(reader, "1_2") > waited_s
        assert spent_s(reader, "") >= 0.5
    last_s = spent_s(reader, "1_2")
    assert last_s >= 0.5  # it does not fall when all of them are gone
    reader.close()


def test_processes_that_were_there_count_from_the_first_reading() -> None:
    with job(BUSY, "cafe:7") as shell:
        stat = Path(f"/proc/{shell.pid}/stat")
        until(lambda: int(stat.read_text().rpartition(")")[2].split()[11]) > 30)
        reader = ActivityReader(JobProcesses("cafe"))
        assert of(reader, "7") == Activity("7", 0.0)
        assert rises(reader, "7", 0.1)[0] < 0.3
    reader.close()


def test_the_two_ways_agree(groups: Path) -> None:
    by_group = ActivityReader(JobGroups(groups, None))
    by_process = ActivityReader(JobProcesses("cafe"))
    by_group.read(), by_process.read()
    (groups / "1").mkdir()
    with job(f"({SPAWNS}) & {SPAWNS}", "cafe:1", groups / "1"):
        rises(by_process, "1", 1.0)
        assert spent_s(by_group, "1") == pytest.approx(spent_s(by_process, "1"), rel=0.15)
    by_group.close(), by_process.close()


def test_processes_of_agents_strangers_and_other_daemons_are_no_jobs() -> None:
    reader = ActivityReader(JobProcesses("cafe"))
    reader.read()
    sleep = "sleep 60"
    with (
        job(sleep, "cafe:meter"),
        job(sleep, "cafe:agent"),
        job(sleep, "cafes:1"),
        job(sleep, "beef:cafe:1"),
        job(sleep, "cafe:" + 300 * "1"),
        job(sleep, "cafe:3.keepers"),
        job("env -i /bin/sh -c 'sleep 60; :'", "cafe:4"),
    ):
        until(lambda: of(reader, "4") is not None, every_s=0.05, deadline_s=DEADLINE_S)
        until(lambda: of(reader, "3") is not None, every_s=0.05, deadline_s=DEADLINE_S)
        assert {own.owner for own in reader.read()} == {"", "3", "4"}
    reader.close()


def test_a_process_without_the_mark_is_its_parents() -> None:
    """A program may be started with an empty environment."""
    reader = ActivityReader(JobProcesses("cafe"))
    reader.read()
    with job(f"env -i /bin/sh -c '{BUSY}' & wait", "cafe:4"):
        rises(reader, "4", 0.3)
    reader.close()


THREADS = """
import threading
def spin():
    while True: pass
for _ in range(4): threading.Thread(target=spin).start()
"""


def test_threads_count_once(tmp_path: Path) -> None:
    """They have numbers like processes, and /proc has entries of these that it does not list."""
    reader = ActivityReader(JobProcesses("cafe"))
    reader.read()
    begun_s = time.monotonic()
    with job(f"exec {sys.executable} -c '{THREADS}'", "cafe:1") as process:
        rises(reader, "1", 0.3)
        until(lambda: entries(f"/proc/{process.pid}/task") == 5)
        for _ in range(5):
            time.sleep(0.05)
            reader.read()
        assert list(reader.jobs._own) == [process.pid]  # type: ignore[union-attr]
        most_s = (os.cpu_count() or 1) * (time.monotonic() - begun_s)
        assert spent_s(reader, "1") <= most_s + 0.1
    reader.close()


def test_foreign_processes_are_read_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes have thousands of them."""
    read: list[int] = []

    def counting(pid: int, instance_id: str) -> None:
        read.append(pid)

    monkeypatch.setattr(activity, "owner_of", counting)
    reader = JobProcesses("cafe")
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        for now_s in range(3600):
            list(reader.read(float(now_s)))
        assert 1 <= read.count(sleeper.pid) <= 8
        assert read.count(os.getpid()) <= 8
    finally:
        sleeper.kill()
        sleeper.wait()
    reader.close()


def test_ids_that_were_given_since() -> None:
    assert [pid for pid in range(10) if _between(3, pid, 5)] == [4, 5]
    assert [pid for pid in range(10) if _between(7, pid, 2)] == [0, 1, 2, 8, 9]
    assert [pid for pid in range(10) if _between(4, pid, 4)] == []


class Tree:
    """Processes that a test plays: times of each, in ticks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader = JobProcesses("cafe")
        self.reader._begun = True
        self.times: dict[int, tuple[int, int]] = {}
        monkeypatch.setattr(activity._Process, "ticks", self.ticks())
        monkeypatch.setattr(JobProcesses, "_find", self.find)
        monkeypatch.setattr(os, "close", lambda file: None)

    def ticks(self) -> Callable[[activity._Process], tuple[int, int] | None]:
        def read(process: activity._Process) -> tuple[int, int] | None:
            if process.file not in self.times:
                return None
            own, waited = self.times[process.file]
            new = own - process.own, waited - process.waited
            process.own, process.waited = own, waited
            return new

        return read

    def find(self, now_s: float) -> Iterator[activity._Process]:
        for pid, (own, waited) in self.times.items():
            if pid not in self.reader._own:
                process = activity._Process(pid, "1", own, waited)
                self.reader._own[pid] = process
                yield process

    def read(self, **times: tuple[int, int]) -> int:
        self.times = {int(name[1:]): own for name, own in times.items()}
        return round(sum(own.cpu_s for own in self.reader.read(0.0)) * activity.TICKS)


def test_a_child_that_was_waited_for_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(monkeypatch)
    assert tree.read(p1=(10, 0), p2=(50, 0)) == 60
    assert tree.read(p1=(12, 0), p2=(90, 0)) == 42
    assert tree.read(p1=(13, 95)) == 6  # 1 of its own, and 5 of the child's end
    assert tree.read(p1=(13, 100)) == 5  # of one that came and went in between


def test_a_child_that_is_waited_for_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent is read, it is waited for, and then it is gone."""
    tree = Tree(monkeypatch)
    assert tree.read(p1=(10, 0), p2=(50, 0)) == 60
    assert tree.read(p1=(10, 0)) == 0
    assert tree.read(p1=(10, 57)) == 7


def test_a_tree_that_nothing_waits_for_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(monkeypatch)
    assert tree.read(p1=(10, 0), p2=(50, 1000)) == 1060
    assert tree.read(p1=(20, 0)) == 10
    assert tree.read(p1=(30, 5)) == 10  # and the 5 are lost
    assert tree.read(p1=(30, 10)) == 5


# --- counters ---------------------------------------------------------------------------------


def test_software_events_of_a_group_are_counted(groups: Path) -> None:
    (groups / "1").mkdir()
    try:
        Counters(groups / "1", SOFTWARE).close()
    except ActivityError as error:
        pytest.skip(str(error))
    files = entries("/proc/self/fd")
    reader = ActivityReader(JobGroups(groups, SOFTWARE), log=pytest.fail)
    reader.read()
    with job(SPAWNS, group=groups / "1"):
        rises(reader, "1", 0.5)
        own, host = of(reader, "1"), of(reader, "")
        assert own is not None and host is not None
        assert own.instructions == pytest.approx(own.cpu_s * 1e9, rel=0.3)
        assert own.misses and host.misses and own.misses <= host.misses  # page faults
    reader.close()
    assert entries("/proc/self/fd") == files


def test_a_removed_group_is_counted_to_its_end(groups: Path) -> None:
    (groups / "1").mkdir()
    reader = ActivityReader(JobGroups(groups, SOFTWARE))
    before = of(reader, "1")
    if before is None or before.instructions is None:
        pytest.skip(reader.jobs.refused)
    with job(BUSY, group=groups / "1"):
        until(lambda: int((groups / "1" / "cpu.stat").read_text().split()[1]) > 300_000)

    def removed() -> bool:
        with contextlib.suppress(OSError):
            (groups / "1").rmdir()
        return not (groups / "1").exists()

    until(removed)
    own = of(reader, "1")
    assert own is not None and own.instructions is not None
    assert own.cpu_s == 0.0 and own.instructions > 2e8  # the time is lost, the counts are not
    reader.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOENT, "expected counters of the processors, got none (as on most virtual"),
        (errno.ENOSYS, "expected counters of the processors, got none (as on most virtual"),
        (errno.EACCES, "expected CAP_PERFMON or a kernel.perf_event_paranoid of at most 0 to"),
        (errno.EMFILE, "expected counters of the processors, got: Too many open files"),
    ],
)
def test_refused_counters_are_none_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(activity, "_open_event", refuse)
    said: list[str] = []
    plain(tmp_path, "1", 0)
    reader = ActivityReader(JobGroups(tmp_path), said.append)
    for usage_us in (0, 1_000_000, 2_000_000):
        plain(tmp_path, "1", usage_us)
        own = of(reader, "1")
        assert own == Activity("1", usage_us * 1e-6, *NO_COUNTS)
    assert len(said) == 1 and said[0].startswith(words)
    reader.close()


def played(monkeypatch: pytest.MonkeyPatch, *readings: Sequence[int], fails: int = -1) -> None:
    """Let one processor's counters be read from a pipe; the event of a place cannot be counted."""
    import struct

    def opened(event: Event, target: int, cpu: int, leader: int, flags: int) -> int:
        if event.config == fails:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        read, write = os.pipe()
        if leader < 0:
            for reading in readings:
                os.write(write, struct.pack(f"={len(reading)}Q", *reading))
        os.close(write)
        return read

    monkeypatch.setattr(activity, "_open_event", opened)
    monkeypatch.setattr(activity, "_cpus", lambda: [0])


def test_counts_are_scaled_to_the_time_in_which_nothing_was_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played(
        monkeypatch,
        (3, 100, 100, 10, 20, 30),
        (3, 300, 200, 110, 220, 330),  # counted in half of the time
        (3, 400, 200, 110, 220, 330),  # not counted
        (3, 500, 250, 120, 220, 330),  # in a quarter of the time since the last counts
    )
    counters = Counters(None)
    assert counters.read() == (10, 20, 30)
    assert counters.read() == (200, 400, 600)
    assert counters.read() == (0, 0, 0)
    assert counters.read() == (40, 0, 0)
    assert counters.read() == (0, 0, 0)  # a processor that was switched off
    counters.close()


def test_an_event_that_a_processor_has_not_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, (2, 100, 100, 10, 20), fails=activity.EVENTS[2].config)
    counters = Counters(None)
    assert counters.read() == (10, 20, None)
    counters.close()


def test_processors_that_are_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "online"
    file.write_text("0-2,5,7-8\n")
    monkeypatch.setattr(activity, "_CPUS", file)
    assert activity._cpus() == [0, 1, 2, 5, 7, 8]
    monkeypatch.setattr(activity, "_CPUS", tmp_path / "none")
    with pytest.raises(ActivityError, match="expected counters of the processors, got"):
        Counters(None)


# --- the agent --------------------------------------------------------------------------------


class Steady(Meter):
    """A device of no power."""

    every_s = 0.01

    def read(self, now_s: float) -> list[DeviceEnergy]:
        return [DeviceEnergy("gpu-0", "nvml-counter", 1.0)]


ANSWER = b'{"known":[],"boot":"","at_s":0.0}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class Server:
    """Stands in for the daemon: counts connections, and closes each after so many requests."""

    def __init__(self, path: Path, requests: int) -> None:
        self.reports: list[Metered] = []
        self.connections, self._requests = 0, requests
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self.env = {"RMS_SERVER": f"unix:{path}", "RMS_TOKEN": "-"}
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        import msgspec

        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                self.connections += 1
                with accepted, accepted.makefile("rb") as sent:
                    for _ in range(self._requests):
                        length = 0
                        while (line := sent.readline()) not in (b"\r\n", b""):
                            if line.lower().startswith(b"content-length:"):
                                length = int(line.partition(b":")[2])
                        if not line:
                            break
                        self.reports.append(msgspec.json.decode(sent.read(length), type=Metered))
                        accepted.sendall(HEAD + ANSWER)

    def close(self) -> None:
        self._listening.close()


@pytest.mark.parametrize(("requests", "connections"), [(1000, 1), (3, 4)])
def test_reports_have_the_activity_and_go_over_one_connection(
    tmp_path: Path, requests: int, connections: int
) -> None:
    server, over = Server(tmp_path / "socket", requests), threading.Event()
    daemon, readings = Daemon(server.env), iter(range(1000))

    def read() -> list[Activity]:
        return [Activity("", float(next(readings))), Activity("1", 0.0)]

    def send(report: Metered, timeout_s: float) -> MeterAnswer:
        if report.number > 8:
            over.set()
        return daemon.exchange(METER_PATH, MeterAnswer, report, DEADLINE_S)

    Agent("n1", NodeMeter([Ladder([Steady()])]), send, 0.02, over, read).run()
    daemon.close()
    server.close()
    first, *reports = server.reports
    assert first.activity == [] and len(reports) > 8
    assert all([own.owner for own in report.activity] == ["", "1"] for report in reports)
    sums = [report.activity[0].cpu_s for report in reports]
    assert sums == sorted(sums) and server.connections >= connections
    if requests == 1000:
        assert server.connections == 1


def test_a_daemon_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    report = Metered("n1", "a", 1, 0.0, "")
    server = Server(path, 1000)
    daemon = Daemon(server.env)
    daemon.exchange(METER_PATH, MeterAnswer, report, DEADLINE_S)
    daemon.exchange(METER_PATH, MeterAnswer, report, 1.0)  # another time limit
    assert server.connections == 2
    path.unlink()
    daemon.close()
    with pytest.raises(UnreachableError, match="no answer"):
        daemon.exchange(METER_PATH, MeterAnswer, report, 1.0)
    again = Server(path, 1000)
    assert daemon.exchange(METER_PATH, MeterAnswer, report, DEADLINE_S) == MeterAnswer()
    daemon.close(), server.close(), again.close()


def test_waiting_reports_are_one_with_the_newest_of_each_owner() -> None:
    first = Metered("n1", "a", 1, 0.0, "", [], "", [Activity("1", 1.0), Activity("", 5.0)])
    second = Metered("n1", "a", 2, 1.0, "", [], "", [Activity("", 6.0), Activity("2", 1.0)])
    merged = _merged(first, second)
    assert merged is not None and merged.number == 2
    expected = [Activity("1", 1.0), Activity("", 6.0), Activity("2", 1.0)]
    assert merged.activity == expected


def test_agents_on_shared_hosts_are_told_to_read_jobs(
    groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []

    def start(self: LocalLauncher, command: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(command)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(LocalLauncher, "start_agent", start)
    for named in (str(groups), str(tmp_path / "none")):
        monkeypatch.setenv(GROUP_VARIABLE, named)
        launcher = LocalLauncher(tmp_path, "cafe", "unix:none", meters=MeterChoice.parse("rapl"))
        launcher.open()
        launcher.close()
    by_groups, by_processes = started
    assert by_groups[-2:] == ["--activity", f"{groups}/rms-cafe"]
    assert by_processes[-1] == "--activity"


def test_a_reader_of_processes_needs_the_agents_own_mark() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert ActivityReader.of("", {}, print) is None
        own = ActivityReader.of("", {MARK_VARIABLE: "ca:fe:meter"}, print)
        assert own is not None and isinstance(own.jobs, JobProcesses)
        assert own.jobs.instance_id == "ca:fe"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_meter_errors_of_the_daemon_end_an_agent(tmp_path: Path) -> None:
    server = Server(tmp_path / "socket", 0)
    with pytest.raises(UnreachableError):
        Daemon(server.env).exchange(METER_PATH, MeterAnswer, Metered("n", "a", 0, 0.0, ""), 1.0)
    with pytest.raises(MeterError, match="expected unix:PATH"):
        Daemon({"RMS_SERVER": "x", "RMS_TOKEN": ""}).exchange(METER_PATH, MeterAnswer, None, 1.0)
    server.close()


def test_time_of_gpus_counts_to_the_jobs_of_their_processes() -> None:
    with job("sleep 60", "cafe:7_1") as process:
        busy = {"gpu-0": {process.pid: 1.5, 1: 0.5}, "gpu-1": dict[int, float]()}
        reader = ActivityReader.of("", {MARK_VARIABLE: "cafe:meter"}, print, lambda: busy)
        assert reader is not None
        reader.read()
        found = {own.owner: own.gpu_s for own in reader.read()}
        reader.close()
    assert found["7_1"] == {"gpu-0": 3.0}
    assert found[""] == {"gpu-0": 4.0, "gpu-1": 0.0}
