"""Tasks beside jobs, with a real daemon: processes that die, a daemon that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import remote_kernels
from daemon import DEADLINE_S, LocalRms, closing
from processes import program, started

from rms.kernels import (
    Affinity,
    Kernel,
    KernelCollection,
    Resource,
    TaskDroppedError,
    on_device,
    place,
)
from rms.kernels import connection as link
from rms.kernels.remote import RemoteError
from rms.kernels.scheduler import STRATEGIES


class Bed:
    """A daemon on two cores, and processes with a task each."""

    def __init__(self, rms: LocalRms, stack: ExitStack) -> None:
        self.rms, self._stack = rms, stack
        self._numbers = 0

    def task(self, *kinds: str) -> Task:
        """Start a process whose task runs until it is let go."""
        self._numbers += 1
        log = self.rms.work / f"log{self._numbers}"
        log.touch()
        command = [*program("kernels"), str(log), str(self.rms.work / f"go{self._numbers}"), *kinds]
        process = self._stack.enter_context(started(command, env=self.rms.env(), stdout=None))
        return Task(self.rms, process, log, Path(command[-len(kinds) - 1]))

    def started(self, command: list[str]) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start a program that has tasks."""
        return started(command, env=self.rms.env(), stdout=None)

    def held(self) -> set[str]:
        """Return the nodes that somebody has."""
        return {row["name"] for row in self.rms.get("/nodes") if row["state"] != "idle"}


class Task:
    """A process with one task."""

    def __init__(self, rms: LocalRms, process: subprocess.Popen[str], log: Path, go: Path) -> None:
        self.rms, self.process, self.log, self.go = rms, process, log, go

    def runs(self, times: int = 1) -> list[str]:
        """Wait until its kernels have begun so often; return on which devices."""
        self.rms.until(lambda: len(self._on()) >= times, f"run of {self.log.name}")
        return self._on()

    def _on(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line.removeprefix("on ") for line in lines if line.startswith("on ")]

    def end(self) -> None:
        """Let it come to its end."""
        self.go.touch()
        assert self.process.wait(DEADLINE_S) == 0
        assert self.log.read_text().endswith("done True\n")


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with closing(LocalRms(2)) as rms, ExitStack() as stack:
        monkeypatch.setenv("RMS_SERVER", rms.server)
        monkeypatch.setattr(link, "_connection", None)
        yield Bed(rms, stack)
        stack.close()
        rms.until(lambda: rms.get("/nodes")[0]["state"] == "idle", "free nodes")
        assert rms.end() == 0
        rms.replays()


@pytest.mark.promise("tasks-live")
def test_tasks_beside_jobs_and_through_the_end_of_a_daemon(bed: Bed) -> None:
    neither_tasks_nor_jobs_are_given_what_the_others_have(bed)
    tasks_go_on_while_a_killed_daemon_is_away(bed)


def neither_tasks_nor_jobs_are_given_what_the_others_have(bed: Bed) -> None:
    rms, first = bed.rms, bed.task("core")
    (device,) = first.runs()
    assert device == "n1" and bed.held() == {"n1"}
    both = rms.submit("true", "--mode", "fixed", "--nodes", "2")
    data: list[str] = []
    then = KernelCollection(data, Kernel(lambda found: found.append("ran"), Resource.CORE)).start()
    assert rms.row(both)["state"] == "PENDING" and not data  # a job that waits goes first
    first.process.kill()  # and its device is free at once
    assert rms.over(both) == ["COMPLETED"]
    owned = {row["owner"]: row["joules"] for row in rms.get("/acct")["rows"]}
    assert owned[f"task:kernels.py[{first.process.pid}]"] > 0.0
    assert then.result(DEADLINE_S) == ["ran"]
    with pytest.raises(TaskDroppedError, match="gpu"), on_device(Resource.GPU):
        pass


def tasks_go_on_while_a_killed_daemon_is_away(bed: Bed) -> None:
    rms, go, found = bed.rms, threading.Event(), list[str]()

    def kernel(data: list[str]) -> None:
        where = place()
        assert where is not None
        data.append(where.device)
        assert go.wait(DEADLINE_S)

    one = KernelCollection(found, Kernel(kernel, Resource.CORE)).start()
    rms.until(lambda: found == ["n1"], "a running task")
    other = bed.task("core")
    assert other.runs() == ["n2"]
    waiting = KernelCollection(found, Kernel(kernel, Resource.CORE)).start()
    rms.until(lambda: len(rms.get("/tasks")) == 3, "three tasks")
    assert [row["state"] for row in rms.get("/tasks")] == ["RUNNING", "RUNNING", "WAITING"]
    assert rms.end(signal.SIGKILL) != 0
    other.process.kill()  # who dies meanwhile does not come back
    rms.start()
    rms.until(lambda: found == ["n1", "n2"], "the task that waited")
    assert [row["state"] for row in rms.get("/tasks")] == ["RUNNING", "RUNNING"]
    go.set()
    assert one.result(DEADLINE_S) is waiting.result(DEADLINE_S)


@pytest.mark.wide
@pytest.mark.promise("tasks-live")
def test_a_task_moves_to_all_cores_when_they_fall_free(bed: Bed) -> None:
    job = bed.rms.submit("read x < fifo || sleep 600", "--mode", "fixed", "--nodes", "1")
    bed.rms.until(lambda: bed.held(), "a running job")
    task = bed.task("cores", "core")
    assert len(task.runs()) == 1
    bed.rms.ask("cancel", job)
    assert task.runs(2)[-1] == "cores"
    task.end()


@pytest.mark.wide
@pytest.mark.promise("kernels-malleable")
def test_a_kernel_on_all_cores_makes_room_on_one_and_is_never_stopped(bed: Bed) -> None:
    import numba

    seen, go = list[tuple[str, int, int]](), threading.Event()
    begun = []

    def kernel(_: None) -> Iterator[None]:
        begun.append(place())
        while not go.wait(0.01):
            where = place()
            assert where is not None
            now = where.device, len(os.sched_getaffinity(0)), numba.get_num_threads()
            if [now] != seen[-1:]:
                seen.append(now)
            yield

    wide = KernelCollection(None, Kernel(kernel, Resource.CORES, malleable=True)).start()
    bed.rms.until(lambda: seen, "a kernel on all cores")
    other = bed.task("core")
    assert other.runs() == ["n2"] and bed.held() == {"n1", "n2"}
    other.end()
    bed.rms.until(lambda: len(seen) == 3, "a kernel on all cores again")
    go.set()
    wide.result(DEADLINE_S)
    assert seen == [("cores", 2, 2), ("n1", 1, 1), ("cores", 2, 2)] and len(begun) == 1


REMOTE = """
import sys
sys.path.insert(0, sys.argv[3])
from remote_kernels import steps
from rms.kernels import Kernel, KernelCollection, Resource
KernelCollection(dict(at=0, log=sys.argv[1], go=sys.argv[2]), Kernel(steps, Resource.NODE)).run()
"""


@pytest.mark.wide
@pytest.mark.promise("remote-kernels")
def test_a_kernel_on_another_node_whose_process_daemon_or_program_is_killed(bed: Bed) -> None:
    rms, log, go = bed.rms, bed.rms.work / "log", bed.rms.work / "go"

    def begun(times: int) -> int:
        """Wait until kernels have begun so often; return the last one's process."""
        rms.until(
            lambda: log.exists() and log.read_text().count("\n") >= times, "a kernel elsewhere"
        )
        device, pid = log.read_text().splitlines()[-1].split()
        assert device == "node-n1" and bed.held() == {"n1"}
        return int(pid)

    def collection() -> KernelCollection[dict[str, Any]]:
        data = {"at": 0, "log": str(log), "go": str(go)}
        return KernelCollection(data, Kernel(remote_kernels.steps, Resource.NODE))

    killed = collection().start()
    os.kill(begun(1), signal.SIGKILL)
    with pytest.raises(RemoteError, match="expected a result from another node, got none"):
        killed.result(DEADLINE_S)
    support = str(Path(remote_kernels.__file__).parent)
    with bed.started([sys.executable, "-c", REMOTE, str(log), str(go), support]) as program:
        pid = begun(2)
        program.kill()
        rms.until(lambda: not Path(f"/proc/{pid}").exists(), "an end of the kernel's process")
    going_on = collection().start()
    pid = begun(3)
    assert rms.end(signal.SIGKILL) != 0
    rms.start()
    rms.until(lambda: rms.get("/tasks"), "the task that went on")
    assert bed.held() == {"n1"}
    go.touch()
    assert going_on.result(DEADLINE_S)["at"] > 0
    rms.until(lambda: not Path(f"/proc/{pid}").exists(), "an end of the kernel's process")


@pytest.mark.wide
def test_many_tasks_of_one_process(bed: Bed) -> None:
    lock, found = threading.Lock(), list[str]()

    def kernel(name: str) -> None:
        with lock:
            found.append(name)

    async def all_of_them() -> None:
        kernels = [
            Kernel(kernel, Resource.CORES),
            Kernel(kernel, Resource.CORE, Affinity.MED),
        ]
        await asyncio.gather(*(KernelCollection(str(n), *kernels).run_async() for n in range(200)))

    asyncio.run(all_of_them())
    assert sorted(found) == sorted(str(n) for n in range(200))

    with on_device(Resource.CORE) as where:
        assert where.device == "n1"
        bed.rms.ask("drain", "n1")  # whoever holds it keeps it
        KernelCollection("beside", Kernel(kernel, Resource.CORE)).run()  # n1 is seen drained, held
    with on_device(Resource.CORE) as where:
        assert where.device == "n2"
    bed.rms.ask("resume", "n1")

    def fails(_: str) -> None:
        raise KeyError("no")

    first = KernelCollection("a", Kernel(fails, Resource.CORE))
    failed = first.start()
    second = KernelCollection("b", Kernel(kernel, Resource.CORE), after=[first]).start()
    with pytest.raises(KeyError):
        failed.result(DEADLINE_S)
    with pytest.raises(TaskDroppedError, match="comes after has failed"):
        second.result(DEADLINE_S)


@pytest.mark.wide
@pytest.mark.promise("governor")
def test_tasks_under_a_price_and_a_power_cap(bed: Bed) -> None:
    rms = bed.rms
    assert "--prices FILE with price_per_kwh" in rms.rms("policy", "--governor", "price").stderr
    assert rms.end() == 0
    (rms.work / "p.toml").write_text('currency = "EUR"\nprice_per_kwh = 0.2\n')
    rms.start("--prices", "p.toml", "--governor", "price:0.15")
    assert "governor of tasks low: 0.2 EUR/kWh, above 0.15" in rms.said()
    assert rms.end(signal.SIGKILL) != 0
    rms.start("--prices", "p.toml")  # by the rule of the daemon before
    assert rms.ask("policy")["governor"] == "low"
    assert rms.ask("policy", "--governor", "price:0.25")["governor"] == "high"
    assert rms.ask("policy", "--governor", "cap") == {
        **rms.ask("policy"),
        "governor": "high",
        "governor_rule": "cap",
    }
    rms.ask("power-cap", "20")  # 6 W idle, 9 W more for a core with a task
    rms.until(lambda: rms.get("/policy")["governor"] == "low", "low governor")
    with on_device(Resource.CORE):
        later = KernelCollection([], Kernel(lambda found: found.append(1), Resource.CORE)).start()
        rms.until(lambda: len(rms.get("/tasks")) == 2, "a task that waits")
        assert [row["state"] for row in rms.get("/tasks")] == ["RUNNING", "WAITING"]
        rms.ask("power-cap", "25")
        assert later.result(DEADLINE_S) == [1]
    rms.until(lambda: rms.get("/policy")["governor"] == "high", "high governor")


@pytest.mark.wide
@pytest.mark.promise("tasks-live")
def test_strategies_are_swapped_under_load(bed: Bed) -> None:
    rms, found = bed.rms, list[int]()
    names = sorted(STRATEGIES)
    kernels = [Kernel(found.append, Resource.CORES), Kernel(found.append, Resource.CORE)]
    running = []
    for n in range(100):
        running.append(KernelCollection(n, *kernels).start())
        governor = ("high", "low")[n % 2]
        rms.post("/policy", {"strategy": names[n % len(names)], "governor": governor})
    rms.ask("policy", "short-term", "--governor", "high")
    for each in running:
        each.result(DEADLINE_S)
    assert sorted(found) == list(range(100))
    tried = rms.ask("simulate", "--strategy", "banking")
    assert tried["record"]["tasks"] == 100 and not tried["record"]["left_out"]
    assert [row["strategy"] for row in tried["rows"]] == ["as it happened", "short-term", "banking"]
    assert rms.end(signal.SIGKILL) != 0
    past = ["--journal", str(rms.state / "journal.sqlite"), "--strategy", "banking"]
    assert rms.ask("simulate", *past) == tried  # it was entered when it was asked for
    rms.start()  # with the strategy of the daemon before
    assert rms.get("/policy")["strategy"] == "short-term"
