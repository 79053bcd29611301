"""Faults of tasks with a real daemon and real processes, as a table: no task lost, none twice."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S, LocalRms, closing
from processes import program, started

from rms.kernels import Affinity, Kernel, KernelCollection, Resource, on_device, place
from rms.kernels import connection as link
from rms.kernels.connection import frame
from rms.kernels.model import KernelSpec, TaskFinished, TaskId, TaskRegistered, TaskSpec
from rms.kernels.scheduler import STRATEGIES
from rms.wire.terminal import columns

CORE, CORES = Resource.CORE, Resource.CORES
NODES = {"n1": {"n1"}, "n2": {"n2"}, "cores": {"n1", "n2"}}
"""What each device is made of."""


class Victim:
    """A process with a task, as the program ``task_phases`` has it."""

    def __init__(self, process: subprocess.Popen[str], go: Path) -> None:
        self.process, self.go = process, go

    def freeze(self) -> None:
        """Stop the process: whatever it is told from now on waits in its socket."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def end(self) -> None:
        """Let it come to its end."""
        self.go.touch()
        assert self.process.wait(DEADLINE_S) == 0


class Bed:
    """A daemon on two cores; who had which device when; the table."""

    def __init__(self, rms: LocalRms, stack: ExitStack) -> None:
        self.rms, self._stack = rms, stack
        self.log = rms.work / "log"
        self.log.touch()
        self.table: list[list[str]] = []
        self._victims = 0
        self._open: list[Future[None]] = []

    # --- who runs --------------------------------------------------------------------------------

    def victim(self, phase: str, *kinds: Resource) -> Victim:
        """Start a process whose task stays in a phase."""
        self._victims += 1
        go = self.rms.work / f"go{self._victims}"
        command = [*program("task_phases"), str(self.log), phase, str(go), *kinds]
        process = self._stack.enter_context(started(command, env=self.rms.env(), stdout=None))
        return Victim(process, go)

    def survivor(self, *kinds: Resource) -> None:
        """Start a task of this process that must come to its end."""
        levels = (Affinity.HIGH, Affinity.MED)
        kernels = [Kernel(self._work, kind, level) for kind, level in zip(kinds, levels)]  # noqa: B905
        self._open.append(KernelCollection(None, *kernels).start())

    def _work(self, data: None) -> None:
        where = place()
        assert where is not None
        self.note("in", where.device)
        self.note("left", where.device)

    @contextlib.contextmanager
    def holding(self, kind: Resource) -> Iterator[None]:
        """Hold a device for a block."""
        with on_device(kind) as where:
            self.note("in", where.device)
            yield
            self.note("left", where.device)

    # --- what is seen ----------------------------------------------------------------------------

    def note(self, word: str, device: str, pid: int = 0) -> None:
        with self.log.open("a") as file:
            file.write(f"{pid} {word} {device}\n")

    def noted(self, victim: Victim) -> list[tuple[str, str]]:
        """Return what a process has noted: words and devices."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(word, device) for pid, word, device in lines if int(pid) == victim.process.pid]

    def until(self, victim: Victim, word: str, device: str) -> None:
        """Wait until a process has noted this."""
        self.rms.until(lambda: (word, device) in self.noted(victim), f"note {word} {device}")

    def tasks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.rms.get("/tasks")
        return found

    def sees(self, victim: Victim, state: str) -> None:
        """Wait until the daemon says so of a process's task."""
        key = victim.process.pid, state
        self.rms.until(
            lambda: key in [(row["pid"], row["state"]) for row in self.tasks()], f"task {key}"
        )

    def kill(self, victim: Victim) -> None:
        """Kill a process; from then on its device may be another's."""
        held = [device for word, device in self.noted(victim) if word in ("in", "left")]
        if len(held) % 2:
            self.note("left", held[-1], victim.process.pid)
        victim.process.kill()
        victim.process.wait(DEADLINE_S)

    def row(self, state: str, done: str, happened: str) -> None:
        """Enter a row of the table, once all tasks have ended that were to."""
        ended = 0
        for each in self._open:
            each.result(DEADLINE_S)
            ended += 1
        self.rms.until(lambda: not self.tasks(), "an end of all tasks")
        lost, twice = len(self._open) - ended, self.twice()
        self.table.append([state, done, happened, f"{lost} of {len(self._open)}", str(twice)])
        assert not lost and not twice, self.log.read_text()
        self._open.clear()
        self.log.write_text("")

    def twice(self) -> int:
        """Return how often a node was given to a task while another had it."""
        held, found = dict[str, int](), 0
        for line in self.log.read_text().splitlines():
            _, word, device = line.split()
            for node in NODES[device] if word in ("in", "left") else ():
                held[node] = held.get(node, 0) + (1 if word == "in" else -1)
                found += held[node] > 1
        return found


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with closing(LocalRms(2)) as rms, ExitStack() as stack:
        monkeypatch.setenv("RMS_SERVER", rms.server)
        monkeypatch.setattr(link, "_connection", None)
        yield Bed(rms, stack)
        stack.close()
        rms.until(lambda: rms.get("/nodes")[0]["state"] == "idle", "free nodes")
        rms.books_balance(jobs=False)
        assert rms.end() == 0
        rms.replays()


@pytest.mark.wide
@pytest.mark.promise("task-faults")
def test_table_of_faults(bed: Bed) -> None:
    a_process_killed_that_waits(bed)
    a_process_killed_that_has_a_device(bed)
    a_daemon_killed(bed)
    a_process_that_talks_nonsense(bed)
    strategies_that_go_wrong(bed)
    heads = ["state of the task", "what was done", "what happened", "lost", "twice"]
    print(*columns(heads, bed.table), sep="\n")


def a_process_killed_that_waits(bed: Bed) -> None:
    for strategy, state in (("short-term", "WAITING"), ("long-term", "QUEUED")):
        bed.rms.ask("policy", strategy)
        with bed.holding(CORES):
            victim = bed.victim("on", CORE)
            bed.sees(victim, state)
            bed.survivor(CORES, CORE)
            bed.kill(victim)
        bed.row(state.lower(), "process killed", "forgotten; the next one ran")
    bed.rms.ask("policy", "short-term")


def a_process_killed_that_has_a_device(bed: Bed) -> None:
    def killed(victim: Victim, state: str) -> None:
        bed.survivor(CORES)  # needs every device
        bed.kill(victim)
        bed.row(state, "process killed", "its device went to the next one")

    with bed.holding(CORES):
        victim = bed.victim("on", CORE)
        bed.sees(victim, "WAITING")
        victim.freeze()
    bed.sees(victim, "RUNNING")
    assert not bed.noted(victim)
    killed(victim, "granted, not yet running")
    for phase, state in (("in", "moving its data there"), ("on", "running")):
        victim = bed.victim(phase, CORE)
        bed.until(victim, phase, "n1")
        killed(victim, state)
    for phase, word, device, state in (
        ("stuck", "on", "n2", "interrupted, no yield point yet"),
        ("out", "out", "n2", "interrupted, moving its data back"),
        ("on", "on", "cores", "moved, running elsewhere"),
    ):
        with bed.holding(CORE):
            victim = bed.victim(phase, CORES, CORE)
            bed.until(victim, "on", "n2")
        bed.sees(victim, "RUNNING" if device == "cores" else "STOPPING")
        bed.until(victim, word, device)
        killed(victim, state)


def a_daemon_killed(bed: Bed) -> None:
    rms = bed.rms
    rms.ask("policy", "--governor", "low")
    with bed.holding(CORES):
        one, other = bed.victim("on", CORE), bed.victim("on", CORE)
        for each in (one, other):
            bed.sees(each, "WAITING")
        other.freeze()
    bed.sees(other, "RUNNING")
    bed.rms.until(lambda: bed.noted(one), "a running task")
    ((_, device), *_) = bed.noted(one)
    bed.survivor(CORES)
    assert rms.end(signal.SIGKILL) != 0
    other.process.send_signal(signal.SIGCONT)  # it finds in its socket what the daemon said
    rms.start()
    assert rms.get("/policy")["governor"] == "low"
    for each in (one, other):
        bed.sees(each, "RUNNING")
    found = {row["pid"]: row["device"] for row in bed.tasks()}
    assert found[one.process.pid] == device
    for each in (one, other):
        each.end()
    state = "running; granted, not yet running; waiting"
    bed.row(state, "daemon killed", "each said hello again and went on where it was")
    with bed.holding(CORE):
        victim = bed.victim("out", CORES, CORE)
        bed.until(victim, "on", "n2")
    bed.until(victim, "out", "n2")
    bed.survivor(CORES)
    assert rms.end(signal.SIGKILL) != 0
    rms.start()
    victim.end()
    bed.row("interrupted, moving its data back", "daemon killed", "it went on elsewhere")


def a_process_that_talks_nonsense(bed: Bed) -> None:
    twice = frame(TaskRegistered(0.0, TaskId(1), TaskSpec(0, (KernelSpec(CORE),)))) * 2
    for words, said in (
        ("no message", b"\xff" * 8),
        ("of a task there is not", frame(TaskFinished(0.0, TaskId(7)))),
        ("a task twice", twice),
    ):
        process = socket.socket(socket.AF_UNIX)
        process.connect(f"{bed.rms.server.removeprefix('unix:')}-tasks")
        process.sendall(said)
        process.close()
        bed.survivor(CORES)
        bed.row("any", f"process says {words}", "not listened to")


SHORT_TERM = (
    "from rms.kernels.scheduler import ShortTerm\nfrom rms.kernels.model import TaskStart\n"
)
WRONG = {
    "raises": ("    raise KeyError('queue')", "it raised KeyError('queue')"),
    "loops for ever": ("    while state.tasks: pass", "expected an answer within 2 s, got none"),
    "answers a taken device": (
        "    return [TaskStart(state.waiting[0].id, 'cores')]",
        "expected a free device for task",
    ),
    "answers nonsense": (
        "    return [17]",
        "expected choices (TaskStart, TaskEnqueue, ...), got 17",
    ),
    "ends its interpreter": ("    import os; os._exit(3)", "got the end of its process"),
    "raises after a while": (
        "    if len(state.tasks) < 3: raise KeyError('few')\n    return ShortTerm()(state)",
        "it raised KeyError('few')",
    ),
}
TASKS = 5


def strategies_that_go_wrong(bed: Bed) -> None:
    rms = bed.rms
    for words, (body, said) in WRONG.items():
        (rms.work / "wrong.py").write_text(f"{SHORT_TERM}def schedule(state):\n{body}\n")
        with bed.holding(CORES):
            for _ in range(TASKS):
                bed.survivor(CORES, CORE)
            rms.until(lambda: len(bed.tasks()) == TASKS + 1, "tasks that wait")
            refused = rms.rms("policy", "wrong.py")
        later = words == "raises after a while"
        assert refused.returncode == (0 if later else 2) and (later or said in refused.stderr)
        bed.row(f"{TASKS} waiting, 1 running", f"strategy {words}", "the one before decided again")
        assert rms.get("/policy")["strategy"] == "short-term" and said in rms.said()
    names = sorted(STRATEGIES)
    for n in range(100):
        bed.survivor(CORES, CORE)
        governor = ("high", "low")[n % 2]
        rms.post("/policy", {"strategy": names[n % len(names)], "governor": governor})
    rms.ask("policy", "short-term", "--governor", "high")
    bed.row("100, running or not", "strategy swapped 100 times", "all of them ran")
    assert "no/such.py, which does not exist" in rms.rms("policy", "no/such.py").stderr
