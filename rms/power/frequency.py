"""Frequencies of processors and GPUs: those there are, and one held for a while.

Processors by cpufreq (``scaling_min_freq`` and ``scaling_max_freq`` of every policy), GPUs by
NVML's locked clocks; both are for root, or for whom a site lets write those files. What was found
is put back by a process of its own, which waits for the end of this one: however that comes, by
``kill -9`` too. Where both are killed, it is put back by the next call of :func:`available` or
:func:`locked`, out of a file that is there meanwhile; a restart of the machine makes all as
configured. NVML does not tell of a lock that was there before, so GPUs are left unlocked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rms.power.meter import MeterError
from rms.power.nvml import in_words, load, uuid_of

CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
CPUFREQ_VARIABLE = "RMS_CPUFREQ"
"""Names another folder than :data:`CPUFREQ`, for tests."""
STEP_MHZ = 100
"""Between the frequencies offered where a driver names its least and largest only."""
PACKAGES = Path(__file__).parents[2]
RECORD = "rms-frequency-{}.json"
READY = "ready"
END_S = 30.0


class FrequencyError(Exception):
    """A frequency cannot be set, or not be put back; one sentence."""


@dataclass(frozen=True)
class Domain:
    """What is set to one frequency together.

    Attributes:
        name: ``cpu``, all processors of this machine, or ``gpu-0`` and so on, as NVML counts.
        mhz: the frequencies it can be set to, MHz, ascending.
        settable: whether this user may, as far as can be told without trying.
        reason: why not.
    """

    name: str
    mhz: tuple[int, ...] = ()
    settable: bool = False
    reason: str = ""


def available(env: Mapping[str, str] = os.environ) -> list[Domain]:
    """Return this machine's processors, whether they can be set or not, and its GPUs.

    What a holder and its guard have left as they were killed is put back first.
    """
    for record in _folder(env).glob(RECORD.format("*")):
        with contextlib.suppress(FrequencyError), _held(record):
            pass  # that puts back what nobody else could
    return [_processors(env), *_gpus()]


@contextlib.contextmanager
def locked(domain: Domain, mhz: int, env: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Hold a domain at a frequency; afterwards it is as it was found, however this ends.

    Raises:
        FrequencyError: it cannot be set, or could not be put back.
    """
    if not domain.settable:
        raise FrequencyError(f"{domain.name} can not be set: {domain.reason}")
    if mhz not in domain.mhz:
        there = ", ".join(map(str, domain.mhz))
        raise FrequencyError(f"expected a frequency of {domain.name} ({there} MHz), got {mhz}")
    policies = policies_of(env) if domain.name == "cpu" else []
    with restored(domain, policies, env):
        for policy in policies:
            set_limits(policy, mhz * 1000, mhz * 1000)
            check_limits(policy, mhz)
        if not policies:
            lock_gpu(int(domain.name.removeprefix("gpu-")), mhz)
        yield


# ---------------------------------------------------------------- processors, by cpufreq


def policies_of(env: Mapping[str, str]) -> list[Path]:
    """Return cpufreq's policies: processors that have one frequency together."""
    folder = Path(env.get(CPUFREQ_VARIABLE) or CPUFREQ)
    found = folder.glob("policy*")
    return sorted(path for path in found if (path / "scaling_max_freq").exists())


def _processors(env: Mapping[str, str]) -> Domain:
    policies = policies_of(env)
    if not policies:
        folder = env.get(CPUFREQ_VARIABLE) or CPUFREQ
        return Domain("cpu", reason=f"no frequencies in {folder}: the kernel shows none here")
    try:
        each = [steps_of(policy) for policy in policies]
    except FrequencyError as error:
        return Domain("cpu", reason=str(error))
    mhz = tuple(sorted(set[int].intersection(*each)))
    if not mhz:
        return Domain("cpu", reason="its processors have no frequency in common")
    for policy in policies:
        for name in ("scaling_min_freq", "scaling_max_freq"):
            if not os.access(policy / name, os.W_OK):
                return Domain("cpu", mhz, False, f"this user may not write {policy / name}")
    return Domain("cpu", mhz, True)


def steps_of(policy: Path) -> set[int]:
    """Return a policy's frequencies, MHz, as its driver lists them, else in steps."""
    with contextlib.suppress(OSError, ValueError):
        listed = (policy / "scaling_available_frequencies").read_text().split()
        if listed:
            return {int(khz) // 1000 for khz in listed}
    low, high = (_khz(policy / f"cpuinfo_{end}_freq") // 1000 for end in ("min", "max"))
    first = -(-low // STEP_MHZ) * STEP_MHZ
    return {low, high, *range(first, high, STEP_MHZ)}


def limits_of(policy: Path) -> tuple[int, int]:
    """Return a policy's least and largest frequency as set, kHz."""
    return _khz(policy / "scaling_min_freq"), _khz(policy / "scaling_max_freq")


def set_limits(policy: Path, low_khz: int, high_khz: int) -> None:
    """Set a policy's limits in the order in which the lower one is never above the upper one."""
    names = [("scaling_min_freq", low_khz), ("scaling_max_freq", high_khz)]
    if low_khz > limits_of(policy)[1]:
        names.reverse()
    for name, khz in names:
        try:
            (policy / name).write_text(f"{khz}\n")
        except OSError as error:
            raise FrequencyError(f"could not write {policy / name}: {error.strerror}") from None


def check_limits(policy: Path, mhz: int) -> None:
    """Drivers take what they like and say nothing: see what they took."""
    got = [khz // 1000 for khz in limits_of(policy)]
    if any(abs(limit - mhz) > STEP_MHZ // 2 for limit in got):
        raise FrequencyError(
            f"expected {policy} to be held at {mhz} MHz, got {got[0]} to {got[1]} MHz"
        )


def _khz(path: Path) -> int:
    try:
        return int(path.read_text())
    except OSError as error:
        raise FrequencyError(f"could not read {path}: {error.strerror}") from None
    except ValueError:
        raise FrequencyError(f"expected a frequency in {path}, got something else") from None


# ---------------------------------------------------------------- GPUs, by NVML


def _gpus() -> list[Domain]:
    try:
        nvml = load()
    except MeterError as error:
        driver = Path("/proc/driver/nvidia/version").exists()
        return [Domain("gpu", reason=str(error))] if driver else []
    try:
        return [gpu_domain(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return [Domain("gpu", reason=in_words(nvml, error))]
    finally:
        nvml.nvmlShutdown()


def gpu_domain(nvml: Any, number: int) -> Domain:
    """Return a GPU with the clocks of its highest memory clock."""
    name = f"gpu-{number}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        mhz = tuple(sorted(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory)))
    except nvml.NVMLError as error:
        return Domain(name, reason=in_words(nvml, error))
    if os.geteuid() != 0:
        return Domain(name, mhz, False, "only root may lock the clocks of a GPU")
    return Domain(name, mhz, True)


def _uuid(number: int) -> str:
    with _nvml() as nvml:
        return uuid_of(nvml, nvml.nvmlDeviceGetHandleByIndex(number))


def lock_gpu(number: int, mhz: int) -> None:
    """Lock the clocks of a GPU, as NVML counts them."""
    with _nvml() as nvml:
        nvml.nvmlDeviceSetGpuLockedClocks(nvml.nvmlDeviceGetHandleByIndex(number), mhz, mhz)


def _unlock(uuid: str) -> None:
    with _nvml() as nvml:
        nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Give NVML, and say in a sentence what it refuses.

    Raises:
        FrequencyError: there is none, or it raised an error inside.
    """
    try:
        nvml = load()
    except MeterError as error:
        raise FrequencyError(str(error)) from None
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise FrequencyError(
            f"the GPU's clocks could not be set: {in_words(nvml, error)}"
        ) from None
    finally:
        nvml.nvmlShutdown()


# ---------------------------------------------------------------- who puts back what was found


class Found(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        boot: of the machine, as nothing has to be put back after the next.
        policies: of cpufreq, each with its limits, kHz.
        gpus: by NVML's names, whose clocks are to be unlocked.
    """

    boot: str
    policies: dict[str, tuple[int, int]] = {}
    gpus: list[str] = []


class Task(msgspec.Struct, frozen=True):
    """What a guard is to look after: policies or a GPU, and the file in which it notes them."""

    record: str
    policies: list[str] = []
    gpu: int = 0


@contextlib.contextmanager
def restored(domain: Domain, policies: Sequence[Path], env: Mapping[str, str]) -> Iterator[None]:
    """Start the process that puts back what it finds, and have it do so at the end.

    Raises:
        FrequencyError: it could not start, or something could not be put back.
    """
    record = _folder(env) / RECORD.format(domain.name)
    gpu = 0 if policies else int(domain.name.removeprefix("gpu-"))
    task = Task(str(record), [str(policy) for policy in policies], gpu)
    path = os.pathsep.join([str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "rms.power.frequency"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert guard.stdin is not None and guard.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.write(msgspec.json.encode(task).decode() + "\n")
            guard.stdin.flush()
        said = guard.stdout.readline().strip()
        if said != READY:
            raise FrequencyError(f"nothing was set: {said or 'no process could stand by'}")
        yield
    except BaseException as error:
        if said := _end(guard, record):
            error.add_note(said)
        raise
    if said := _end(guard, record):
        raise FrequencyError(said)


def _end(guard: subprocess.Popen[str], record: Path) -> str:
    """Have all put back; return what went wrong, in a sentence, or nothing."""
    try:
        said, _ = guard.communicate(timeout=END_S)  # closes its input, for which it waits
    except subprocess.TimeoutExpired:
        guard.kill()
        said, _ = guard.communicate()
    if guard.returncode == 0:
        return said.strip()
    try:  # it was killed, or failed
        with _held(record):
            return ""
    except FrequencyError as error:
        return str(error)


def _folder(env: Mapping[str, str]) -> Path:
    """Return where records are: it need not outlive the machine, and is not for others to write."""
    if given := env.get(CPUFREQ_VARIABLE):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run")
    return Path(env.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


@contextlib.contextmanager
def _held(record: Path) -> Iterator[BinaryIO]:
    """Give a record to nobody else, after what an earlier holder has left there is put back.

    Raises:
        FrequencyError: another process has it, or something could not be put back.
    """
    try:
        file = os.fdopen(os.open(record, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "rb+")
    except OSError as error:
        raise FrequencyError(f"could not open {record}: {error.strerror}") from None
    with file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():  # its paths and values are written
            raise FrequencyError(f"expected a record of this user, got {record} of another one")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FrequencyError(f"another process holds it, with {record}") from None
        with contextlib.suppress(msgspec.DecodeError):  # nothing is there, or half of it
            left = msgspec.json.decode(file.read(), type=Found)
            if left.boot == _boot():
                restore(left)
        file.seek(0)
        file.truncate()
        yield file


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def restore(found: Found) -> None:
    """Put back what was found.

    Raises:
        FrequencyError: something could not be; the rest is put back nevertheless.
    """
    wrong = []
    for policy, limits in found.policies.items():
        try:
            set_limits(Path(policy), *limits)
        except FrequencyError as error:
            wrong.append(str(error))
    for uuid in found.gpus:
        try:
            _unlock(uuid)
        except FrequencyError as error:
            wrong.append(str(error))
    if wrong:
        raise FrequencyError(f"what was found could not be put back: {'; '.join(wrong)}")


def guard() -> int:
    """Wait for the end of who started this, then put back what was found; 0 if that went well."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    set_yet = False
    try:
        task = msgspec.json.decode(sys.stdin.readline(), type=Task)
        with _held(Path(task.record)) as record:
            policies = {policy: limits_of(Path(policy)) for policy in task.policies}
            found = Found(_boot(), policies, [] if policies else [_uuid(task.gpu)])
            record.write(msgspec.json.encode(found))
            record.flush()
            print(READY, flush=True)
            set_yet = True
            sys.stdin.read()  # until the other end is closed, by its end if by nothing else
            restore(found)
            record.truncate(0)
    except FrequencyError as error:
        with contextlib.suppress(OSError):
            print(error, flush=True)
        return 1 if set_yet else 0
    return 0


if __name__ == "__main__":
    sys.exit(guard())
