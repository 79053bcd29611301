"""Frequencies on a tree of files like the kernel's, and on a stand-in for NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from cpufreq import tree
from device_runs import STAND_IN, stand_in_nvml
from processes import until

from rms.launch.processes import alive
from rms.power.frequency import (
    CPUFREQ_VARIABLE,
    Clocks,
    Domain,
    FrequencyError,
    SavedLimits,
    available,
    locked,
)

DEADLINE_S = 60.0
POLICIES = ("policy0", "policy1")


@pytest.fixture
def cpufreq(tmp_path: Path) -> Path:
    """Two policies with different limits, frequencies listed."""
    folder = tree(tmp_path / "cpufreq", {0: (0,), 1: (1,)})
    (folder / "policy1" / "scaling_min_freq").write_text("1000000\n")
    return folder


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU, to this process and to those that it starts; return where its clocks are noted."""
    (tmp_path / "gpus.json").write_text(json.dumps([{"uuid": "GPU-a"}]))
    monkeypatch.setenv("STAND_IN_NVML", str(tmp_path))
    monkeypatch.setenv(CPUFREQ_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
    stand_in_nvml(monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "clocks"


def env_of(folder: Path) -> dict[str, str]:
    return {CPUFREQ_VARIABLE: str(folder)}


def limits(folder: Path) -> list[tuple[int, int]]:
    def limit(policy: str, end: str) -> int:
        return int((folder / policy / f"scaling_{end}_freq").read_text() or -1)

    return [(limit(policy, "min"), limit(policy, "max")) for policy in POLICIES]


FOUND = [(800_000, 2_000_000), (1_000_000, 2_000_000)]


def processors(folder: Path) -> Domain:
    (domain,) = (one for one in available(env_of(folder)) if one.name == "cpu")
    return domain


def test_what_there_is(cpufreq: Path) -> None:
    assert processors(cpufreq) == Domain("cpu", (800, 1000, 1500, 2000), True)


def test_a_driver_that_lists_none_is_asked_in_steps(cpufreq: Path) -> None:
    for policy in POLICIES:
        (cpufreq / policy / "scaling_available_frequencies").unlink()
        (cpufreq / policy / "cpuinfo_min_freq").write_text("1750000\n")
    assert processors(cpufreq).mhz == (1750, 1800, 1900, 2000)


def test_a_machine_without_cpufreq_says_so(tmp_path: Path) -> None:
    domain = processors(tmp_path)
    assert not domain.settable and str(tmp_path) in domain.reason
    with pytest.raises(FrequencyError, match="cpu can not be set"), locked(domain, 1000):
        pass


def test_a_user_who_may_not_is_told(cpufreq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    domain = processors(cpufreq)
    assert not domain.settable and "this user may not write" in domain.reason
    assert domain.mhz == (800, 1000, 1500, 2000)


def test_held_and_left_as_found(cpufreq: Path) -> None:
    domain = processors(cpufreq)
    for mhz in (1500, 800, 2000):
        with locked(domain, mhz, env_of(cpufreq)):
            assert limits(cpufreq) == [(mhz * 1000,) * 2] * 2
        assert limits(cpufreq) == FOUND


def test_left_as_found_by_an_error(cpufreq: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        locked(processors(cpufreq), 1000, env_of(cpufreq)),
    ):
        raise ZeroDivisionError
    assert limits(cpufreq) == FOUND


def test_one_holder_at_a_time(cpufreq: Path) -> None:
    domain = processors(cpufreq)
    with locked(domain, 1500, env_of(cpufreq)):
        with (
            pytest.raises(FrequencyError, match="another process holds"),
            locked(domain, 1000, env_of(cpufreq)),
        ):
            pass
        assert limits(cpufreq) == [(1_500_000,) * 2] * 2
    assert limits(cpufreq) == FOUND


def test_a_frequency_that_there_is_not(cpufreq: Path) -> None:
    with (
        pytest.raises(FrequencyError, match=r"expected .* \(800, 1000, 1500, 2000 MHz\), got 1234"),
        locked(processors(cpufreq), 1234, env_of(cpufreq)),
    ):
        pass
    assert limits(cpufreq) == FOUND


def test_a_driver_that_takes_something_else(cpufreq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = processors(cpufreq)
    write = Path.write_text

    def rounded(path: Path, text: str) -> int:
        return write(path, "2000000\n" if path.name == "scaling_max_freq" else text)

    monkeypatch.setattr(Path, "write_text", rounded)
    with (
        pytest.raises(FrequencyError, match="to be held at 1000 MHz, got 1000 to 2000"),
        locked(domain, 1000, env_of(cpufreq)),
    ):
        pass
    assert limits(cpufreq) == FOUND


HOLDER = """
import sys, time
from rms.power.frequency import available, locked
domain = next(one for one in available() if one.name == sys.argv[1])
with locked(domain, int(sys.argv[2])):
    print("held", flush=True)
    for _ in range(6000):  # a SIGINT just before one long sleep would be handled after it
        time.sleep(0.1)
"""


@pytest.mark.promise("frequency")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_left_as_found_when_killed(cpufreq: Path, number: int) -> None:
    with started(cpufreq, "1500") as holder:
        assert limits(cpufreq) == [(1_500_000,) * 2] * 2
        os.killpg(holder.pid, number)
    until(lambda: limits(cpufreq) == FOUND)


@contextmanager
def started(folder: Path, mhz: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the processors at a frequency, and wait until it does."""
    command = [sys.executable, "-c", HOLDER, "cpu", mhz]
    with subprocess.Popen(
        command, env=os.environ | env_of(folder), stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, start_new_session=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder


def test_who_puts_back_may_be_killed(cpufreq: Path) -> None:
    with locked(processors(cpufreq), 1000, env_of(cpufreq)):
        for guard in guards(os.getpid()):
            os.kill(guard, signal.SIGKILL)
    assert limits(cpufreq) == FOUND


@pytest.mark.promise("frequency")
@pytest.mark.parametrize("by", ["who asks", "who holds next"])
def test_both_may_be_killed(cpufreq: Path, by: str) -> None:
    """What they left is put back by the next who comes, not by a start of the machine."""
    domain = processors(cpufreq)
    with started(cpufreq, "1500") as holder:
        killed = guards(holder.pid)
        for process in killed:
            os.kill(process, signal.SIGKILL)
        holder.kill()
    assert limits(cpufreq) == [(1_500_000,) * 2] * 2
    if by == "who asks":  # who was killed may take a moment to be gone
        until(lambda: processors(cpufreq) and limits(cpufreq) == FOUND)
    else:
        until(lambda: not running(killed))
        with locked(domain, 800, env_of(cpufreq)):
            assert limits(cpufreq) == [(800_000,) * 2] * 2
    assert limits(cpufreq) == FOUND
    (cpufreq / "policy0" / "scaling_min_freq").write_text("1000000\n")
    processors(cpufreq)  # what somebody else has set since then is left alone
    assert limits(cpufreq)[0] == (1_000_000, 2_000_000)


def test_what_was_left_before_the_machine_was_started_is_not_put_back(cpufreq: Path) -> None:
    left = SavedLimits("another boot", {str(cpufreq / "policy0"): (1, 2)})
    (cpufreq / "rms-frequency-cpu.json").write_bytes(msgspec.json.encode(left))
    processors(cpufreq)
    assert limits(cpufreq) == FOUND


def running(processes: list[int]) -> bool:
    return any(alive(process) for process in processes)


def guards(parent: int) -> list[int]:
    """Return a process's children that put frequencies back."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            words = (place / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == parent and "rms.power.frequency" in words:
            found.append(int(place.name))
    assert found
    return found


def test_a_gpu_is_locked_and_reset(gpu: Path) -> None:
    (domain,) = (one for one in available() if one.name == "gpu-0")
    assert domain == Domain("gpu-0", (600, 900, 1200), True)
    with locked(domain, 900):
        assert gpu.read_text() == "lock GPU-a 900 900\n"
    assert gpu.read_text() == "lock GPU-a 900 900\nreset GPU-a\n"


def test_a_gpu_is_held_for_who_uses_it(gpu: Path) -> None:
    clocks = Clocks()
    assert clocks.refusal(["gpu:0"]) == ""
    clocks.set({"gpu:0": 0.7})
    clocks.set({"gpu:0": 0.7})
    assert gpu.read_text() == "lock GPU-a 900 900\n" and clocks.mhz == {"gpu:0": 900}
    clocks.set({"gpu:0": 0.5})
    clocks.set({"gpu:0": 1.0})
    assert gpu.read_text() == "lock GPU-a 900 900\nlock GPU-a 600 600\nreset GPU-a\n"
    assert clocks.mhz == {}
    with pytest.raises(FrequencyError, match="expected frequencies of gpu-1, got none here"):
        clocks.set({"gpu:0": 0.5, "gpu:1": 0.5})
    assert gpu.read_text().endswith("lock GPU-a 600 600\nreset GPU-a\n")


def test_a_gpu_is_reset_when_its_holder_is_killed(gpu: Path) -> None:
    holder = HOLDER.replace("import sys", "import os, sys").replace(
        "domain =", "os.geteuid = lambda: 0\ndomain ="
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, "gpu-0", "600"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.kill()
    until(lambda: gpu.read_text() == "lock GPU-a 600 600\nreset GPU-a\n")


def test_a_gpu_that_refuses(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (domain,) = (one for one in available() if one.name == "gpu-0")
    import pynvml

    monkeypatch.setitem(pynvml.gpus[0].refuses, "nvmlDeviceSetGpuLockedClocks", 4)
    with pytest.raises(FrequencyError, match="this user may not"), locked(domain, 900):
        pass
    assert gpu.read_text() == "reset GPU-a\n"


def test_a_user_may_not_lock_gpus(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (domain,) = (one for one in available() if one.name == "gpu-0")
    assert not domain.settable and "root" in domain.reason
