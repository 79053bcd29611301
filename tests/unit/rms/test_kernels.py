"""Collections of kernels in one process, without a daemon: what runs, and where its data is."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rms.kernels import (
    Affinity,
    Kernel,
    KernelCollection,
    Resource,
    TaskDroppedError,
    on_device,
    place,
)
from rms.kernels import collection as collections
from rms.kernels import connection as link
from rms.kernels.model import (
    KernelSpec,
    KernelTask,
    TaskDevice,
    TaskGoOn,
    TaskId,
    TaskRun,
    TaskSpec,
    TaskStart,
    TaskState,
)
from rms.kernels.places import Place, bound

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "jobs"
STAND_IN = Path(__file__).parents[2] / "stand_in" / "cupy" / "__init__.py"


@pytest.fixture(autouse=True)
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMS_SERVER", f"unix:{tmp_path / 'socket'}")
    monkeypatch.setattr(link, "_connection", None)
    monkeypatch.delenv("RMS_JOB_ID", raising=False)
    collections._alone_logged.clear()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("cupy", STAND_IN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cupy", module)
    spec.loader.exec_module(module)
    return module


def where(data: list[Resource]) -> None:
    found = place()
    assert found is not None
    data.append(found.resource)


def test_without_a_daemon_the_best_kernel_runs_here_and_that_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = (
        Kernel(where, Resource.NODE),
        Kernel(where, Resource.CORES, Affinity.NEVER),
        Kernel(where, Resource.CORE, Affinity.LOW),
    )
    first = KernelCollection[list[Resource]]([], *kernels)
    assert first.run() == [Resource.CORE] and place() is None
    assert KernelCollection[list[Resource]]([], *kernels, after=[first]).start().result() == [
        Resource.CORE
    ]
    assert asyncio.run(KernelCollection[list[Resource]]([], *kernels).run_async())
    with on_device(Resource.CORE) as found:
        assert found.resource is Resource.CORE and place() == found
    assert capsys.readouterr().err == "rms.kernels: no daemon answers: on core here\n"
    collections._alone_logged.clear()
    monkeypatch.setenv("RMS_JOB_ID", "1")  # whose devices they are
    KernelCollection[list[Resource]]([], *kernels).run()
    assert capsys.readouterr().err == "rms.kernels: in a job: on core here\n"


def test_what_cannot_run_says_why() -> None:
    def fails(data: object) -> None:
        raise KeyError("no")

    with pytest.raises(ValueError, match="expected kernels, one for a resource, got core, core"):
        KernelCollection([], *[Kernel(where, Resource.CORE)] * 2)
    with pytest.raises(ValueError, match="got none"):
        KernelCollection([])
    with pytest.raises(TaskDroppedError, match="expected a kernel for this machine, got node"):
        KernelCollection([], Kernel(where, Resource.NODE)).run()
    failing = KernelCollection([], Kernel(fails, Resource.CORE))
    with pytest.raises(ValueError, match="that were started"):
        KernelCollection([], Kernel(where, Resource.CORE), after=[failing]).run()
    with pytest.raises(KeyError):
        failing.run()
    with pytest.raises(ValueError, match="not run before"):
        failing.run()
    with pytest.raises(TaskDroppedError, match="comes after has failed"):
        KernelCollection([], Kernel(where, Resource.CORE), after=[failing]).run()


def test_an_interrupted_kernel_goes_on_with_its_data_on_another_device() -> None:
    def steps(data: dict[str, int]) -> Iterator[None]:
        while data["at"] < 10:
            data["at"] += 1
            yield

    data, asked = {"at": 0}, iter([False, False, True, *[False] * 10])
    assert not Kernel(steps, Resource.CORE).work(data, lambda: next(asked))
    assert data["at"] == 3
    assert Kernel(steps, Resource.CORES).work(data, lambda: next(asked))
    assert data["at"] == 10


@pytest.mark.parametrize("kind", [dict, SimpleNamespace], ids=["items", "attributes"])
def test_arrays_are_on_the_gpu_while_its_kernel_runs(cupy: Any, kind: type) -> None:
    u, v = np.arange(4.0), np.zeros(2)
    data = kind(u=u, v=v, at=0, name="plate")
    items = data if kind is dict else vars(data)

    def kernel(moved: Any) -> None:
        found = moved if kind is dict else vars(moved)
        assert isinstance(found["u"], cupy.ndarray) and found["name"] == "plate"
        found["u"][:1] = 7.0
        found["v"] = cupy.asarray(np.ones(3))
        found["at"] = 5

    assert Kernel(kernel, Resource.GPU).work(data, lambda: False)
    assert items["u"] is u and list(u) == [7.0, 1.0, 2.0, 3.0]
    assert list(items["v"]) == [1.0] * 3 and items["at"] == 5
    alone = np.zeros(2)

    def fill(moved: Any) -> None:
        moved[:1] = 1.0

    Kernel(fill, Resource.GPU).work(alone, lambda: False)
    assert list(alone) == [1.0, 0.0]


def test_a_malleable_kernel_goes_on_with_other_cores_at_a_yield_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[int]()
    numba = SimpleNamespace(
        set_num_threads=threads.append, config=SimpleNamespace(NUMBA_NUM_THREADS=8)
    )
    monkeypatch.setitem(sys.modules, "numba", numba)

    class Daemon:
        """A connection to a daemon that has one task, on one core at first."""

        entry: link.OpenTask

        def open(self, entry: link.OpenTask, after: object) -> None:
            self.entry = entry
            entry.deliver(TaskRun(TaskId(1), "n1", Resource.CORES, ("cpu:0",)))

        def resized(self, entry: link.OpenTask) -> TaskGoOn | None:
            coming, entry.coming = entry.coming, None
            return coming

        def close(self, entry: link.OpenTask, *, failed: bool) -> None:
            assert not failed

    daemon, seen = Daemon(), list[tuple[str, ...]]()
    monkeypatch.setattr(collections, "connection", lambda: daemon)

    def steps(data: None) -> Iterator[None]:
        for cores in (("cpu:0",), ("cpu:0", "cpu:1"), ()):
            found = place()
            assert found is not None
            seen.append(found.slots)
            daemon.entry.coming = TaskGoOn(TaskId(1), "there", cores) if cores else None
            yield

    KernelCollection(None, Kernel(steps, Resource.CORES, malleable=True)).run()
    assert seen == [("cpu:0",), ("cpu:0",), ("cpu:0", "cpu:1")] and threads == [1, 1, 2]
    with pytest.raises(ValueError, match="expected a malleable kernel to be one for cores"):
        KernelCollection(None, Kernel(steps, Resource.CORE, malleable=True))


def test_data_is_moved_as_a_kernel_says() -> None:
    data: dict[str, Any] = {"host": 1}

    def copy_in(data: dict[str, Any]) -> list[int]:
        return [data["host"]]

    def copy_out(moved: list[int], data: dict[str, Any]) -> None:
        data["host"] = moved[0]

    def kernel(moved: list[int]) -> None:
        moved[0] += 1

    Kernel(kernel, Resource.GPU, copy_in=copy_in, copy_out=copy_out).work(data, lambda: False)
    assert data == {"host": 2}


@pytest.mark.wide
@pytest.mark.promise("kernels-moved")
@pytest.mark.parametrize(
    ("name", "size", "result"),
    [
        ("matmul", 200, "c"),
        ("heat", 64, "old"),
        ("cg", 8, "x"),
        ("add", 200, "c"),
        ("hashes", 1 << 20, "best"),
        ("mpdata", 16, "psi"),
    ],
)
def test_a_computation_that_is_moved_gives_the_same_answer(
    monkeypatch: pytest.MonkeyPatch, name: str, size: int, result: str
) -> None:
    monkeypatch.syspath_prepend(str(JOBS))
    kernels = importlib.import_module("kernels")
    places = (Place(Resource.CORE, "", ("cpu:0",)), Place(Resource.CORES, "", ("cpu:0", "cpu:1")))

    def run(every: int) -> Any:
        """Stop at each so many yield points, and go on elsewhere."""
        data = kernels.data_of(name, size)
        made = kernels.collection(name, data).kernels
        for turn in range(1000):
            where, left = places[turn % 2], [every]

            def stop(left: list[int] = left) -> bool:
                left[0] -= 1
                return not left[0]

            with bound(where):
                if made[where.resource].work(data, stop):
                    assert bool(turn) == (every < 1000)
                    return data[result]
        raise AssertionError("expected an end, got none")

    assert np.array_equal(run(1), run(10**9))


def test_the_page_has_a_computation_in_fifteen_lines_and_a_strategy_in_twenty() -> None:
    text = (ROOT / "docs" / "rms" / "kernels.md").read_text()

    def shown(file: str) -> str:
        """Return the code of a block without blank lines."""
        code = text.split(f"```python\n# {file}\n")[1].split("```")[0]
        return "\n".join(line for line in code.splitlines() if line.strip())

    computation, strategy = shown("steps.py"), shown("fewest.py")
    assert len(computation.splitlines()) <= 15 and len(strategy.splitlines()) <= 20
    found: dict[str, Any] = {}
    exec(computation.replace("512, 512", "64, 64"), found)
    assert found["data"]["step"] == 200 and 0.0 < found["data"]["u"][1, 32] < 1.0
    own: dict[str, Any] = {}
    exec(strategy, own)
    state = TaskState({"n1": TaskDevice("n1", Resource.CORE, (0,))})
    state.wait(KernelTask(TaskId(0), TaskSpec(0, (KernelSpec(Resource.CORE),))))
    assert own["schedule"](state) == [TaskStart(TaskId(0), "n1")]
