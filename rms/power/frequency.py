"""Frequencies of a machine's cores and GPUs: their steps, setting them, and restoring them.

Cores are set by cpufreq, by policies (groups of cores with one frequency), GPUs by NVML's locked
clocks; by root, or with write access.

A guard process of every domain restores the limits when this process ends, also by ``kill -9``. If
both are killed, the next :func:`available` or guard does so from its record. GPUs end unlocked, as
NVML does not report earlier locks. All errors are :class:`FrequencyError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rms.power.meter import MeterError, boot_id
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
    """Processors or a GPU that are set to one frequency together.

    Attributes:
        name: ``cpu``, all processors of this machine, or ``gpu-0`` and so on, as NVML counts.
        mhz: the frequencies it can be set to, MHz, ascending.
    """

    name: str
    mhz: tuple[int, ...] = ()
    settable: bool = False
    reason: str = ""


def available(env: Mapping[str, str] = os.environ) -> list[Domain]:
    """Return this machine's processors, whether they can be set or not, and its GPUs.

    Limits left by a holder and a guard that were both killed are restored first.
    """
    for record in _folder(env).glob(RECORD.format("*")):
        with contextlib.suppress(FrequencyError), _held(record):
            pass  # restores them
    return [_processors(env), *_gpus()]


@contextlib.contextmanager
def locked(domain: Domain, mhz: int, env: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Hold a domain at a frequency; its limits are restored afterwards, however this ends."""
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


# --- cores, by cpufreq ---------------------------------------------------------------------------


def policies_of(env: Mapping[str, str]) -> list[Path]:
    """Return cpufreq's policies: processors that have one frequency together."""
    folder = Path(env.get(CPUFREQ_VARIABLE) or CPUFREQ)
    paths = folder.glob("policy*")
    return sorted(path for path in paths if (path / "scaling_max_freq").exists())


def _processors(env: Mapping[str, str]) -> Domain:
    policies = policies_of(env)
    if not policies:
        folder = env.get(CPUFREQ_VARIABLE) or CPUFREQ
        return Domain("cpu", reason=f"no frequencies in {folder}: the kernel shows none here")
    try:
        steps = [steps_of(policy) for policy in policies]
    except FrequencyError as error:
        return Domain("cpu", reason=str(error))
    mhz = tuple(sorted(set[int].intersection(*steps)))
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
    """Refuse limits that the driver has changed: drivers do so without an error."""
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


# --- GPUs, by NVML -------------------------------------------------------------------------------


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


def lock_gpu(number: int, mhz: int) -> None:
    """Lock the clocks of a GPU, as NVML counts them."""
    with _nvml() as nvml:
        nvml.nvmlDeviceSetGpuLockedClocks(nvml.nvmlDeviceGetHandleByIndex(number), mhz, mhz)


def _unlock(uuid: str) -> None:
    with _nvml() as nvml:
        nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Open NVML; raise its errors as a sentence."""
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


# --- frequencies of slots, for their users -------------------------------------------------------

Shares = Mapping[str, float | None]
"""The frequency of slots (``cpu:3``, ``gpu:0``) over the highest, None for unused slots."""


class Clocks:
    """Frequencies of this machine's slots, set for their users.

    A group of cores runs at the highest share of its users; without users, or with one at the
    highest, it keeps its earlier limits, and no guard process runs.

    Attributes:
        mhz: frequencies of the slots that are set, MHz.
    """

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self._guards: dict[str, contextlib.ExitStack] = {}
        self._before: dict[Path, tuple[int, int]] = {}
        self._set: dict[Path, int] = {}
        self._gpu_mhz: dict[str, Sequence[int]] = {}
        self.mhz: dict[str, int] = {}

    def refusal(self, slots: Iterable[str]) -> str:
        """Return why the frequencies of slots cannot be set, "" where they can."""
        kinds = {slot.partition(":")[0] for slot in slots}
        wanted = [d for d in available(self._env) if d.name.partition("-")[0] in kinds]
        if not wanted:
            return f"expected frequencies of {' and '.join(sorted(kinds))}, got none here"
        return "; ".join(f"{d.name}: {d.reason}" for d in wanted if not d.settable)

    def set(self, shares: Shares, highest_mhz: float | None = None) -> None:
        """Set the frequencies of all slots of the machine.

        Args:
            highest_mhz: the frequency of a share of 1; None for the highest of the slot itself.

        Raises:
            FrequencyError: one could not be set; the limits of all are restored.
        """
        try:
            cores = {slot: share for slot, share in shares.items() if slot.startswith("cpu:")}
            self._set_cores(cores, highest_mhz)
            for slot, share in shares.items():
                if slot.startswith("gpu:"):
                    self._set_gpu(slot, share, highest_mhz)
        except FrequencyError:
            with contextlib.suppress(FrequencyError):  # the first error has the reason
                self.close()
            raise

    def close(self) -> None:
        """Restore all limits."""
        errors = _errors(self._release, list(self._guards))
        self.mhz.clear()
        if errors:
            raise FrequencyError("; ".join(errors))

    def _set_cores(self, shares: Shares, highest_mhz: float | None) -> None:
        slots = _by_policy(shares, self._env)
        without = set(shares).difference(*slots.values())
        if any((shares[slot] or 1.0) < 1.0 for slot in without):
            reason = self.refusal(shares) or f"no frequencies of {', '.join(sorted(without))} here"
            raise FrequencyError(reason)
        wanted = {}
        for policy, own in slots.items():
            used = [share for slot in own if (share := shares[slot]) is not None]
            if used and max(used) < 1.0:
                wanted[policy] = _step(steps_of(policy), max(used), highest_mhz)
        if not wanted:
            self._release("cpu")
        elif "cpu" not in self._guards:
            self._guard(Domain("cpu"), list(slots))
            self._before = {policy: limits_of(policy) for policy in slots}
        for policy in self._set.keys() - wanted.keys():
            set_limits(policy, *self._before[policy])
            del self._set[policy]
        for policy, mhz in wanted.items():
            if self._set.get(policy) != mhz:
                set_limits(policy, mhz * 1000, mhz * 1000)
                check_limits(policy, mhz)
                self._set[policy] = mhz
        held = {slot: wanted[policy] for policy in wanted for slot in slots[policy]}
        self.mhz = {**{s: mhz for s, mhz in self.mhz.items() if s not in shares}, **held}

    def _set_gpu(self, slot: str, share: float | None, highest_mhz: float | None) -> None:
        name = slot.replace(":", "-")
        if share is None or share >= 1.0:
            self._release(name)
            self.mhz.pop(slot, None)
            return
        if name not in self._guards:
            domains = [d for d in available(self._env) if d.name == name and d.mhz]
            if not domains:
                raise FrequencyError(f"expected frequencies of {name}, got none here")
            self._guard(domains[0], [])
            self._gpu_mhz[name] = domains[0].mhz
        mhz = _step(self._gpu_mhz[name], share, highest_mhz)
        if self.mhz.get(slot) != mhz:
            lock_gpu(int(slot.removeprefix("gpu:")), mhz)
            self.mhz[slot] = mhz

    def _guard(self, domain: Domain, policies: list[Path]) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(restored(domain, policies, self._env))
            self._guards[domain.name] = stack.pop_all()

    def _release(self, name: str) -> None:
        guard = self._guards.pop(name, None)
        if guard is None:
            return
        if name == "cpu":
            self._set.clear()
        guard.close()


def _by_policy(slots: Iterable[str], env: Mapping[str, str]) -> dict[Path, list[str]]:
    """Return the slots of the policies of cpufreq."""
    of_core: dict[int, Path] = {}
    for policy in policies_of(env):
        try:
            cores = [int(core) for core in (policy / "related_cpus").read_text().split()]
        except (OSError, ValueError):
            cores = [int(policy.name.removeprefix("policy"))]  # as the kernel names it: its first
        of_core.update(dict.fromkeys(cores, policy))
    slots_of: dict[Path, list[str]] = {}
    for slot in slots:
        slot_policy = of_core.get(int(slot.removeprefix("cpu:")))
        if slot_policy is not None:
            slots_of.setdefault(slot_policy, []).append(slot)
    return slots_of


def _step(steps: Iterable[int], share: float, highest_mhz: float | None) -> int:
    """Return the lowest step that is at least ``share`` of the highest frequency, MHz.

    Args:
        highest_mhz: frequency of a share of 1, None for the highest step.
    """
    rising = sorted(steps)
    least = share * (highest_mhz or rising[-1])
    return next((mhz for mhz in rising if mhz >= least - 0.5), rising[-1])


# --- the guard process ---------------------------------------------------------------------------


class SavedLimits(msgspec.Struct, frozen=True):
    """Limits that a guard restores.

    Attributes:
        boot: the kernel's id of this boot; a later boot has the configured limits.
        policies: the limits of the policies of cpufreq, kHz.
        gpus: UUIDs of the GPUs whose clocks are unlocked.
    """

    boot: str
    policies: dict[str, tuple[int, int]] = {}
    gpus: list[str] = []


class GuardOrder(msgspec.Struct, frozen=True):
    """Policies or a GPU that a guard restores, and the file for their saved limits."""

    record: str
    policies: list[str] = []
    gpu: int = 0


@contextlib.contextmanager
def restored(domain: Domain, policies: Sequence[Path], env: Mapping[str, str]) -> Iterator[None]:
    """Start the guard of a domain; it restores the limits at the end."""
    record = _folder(env) / RECORD.format(domain.name)
    gpu = 0 if policies else int(domain.name.removeprefix("gpu-"))
    order = GuardOrder(str(record), [str(policy) for policy in policies], gpu)
    path = os.pathsep.join([str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "rms.power.frequency"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert guard.stdin is not None and guard.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.write(msgspec.json.encode(order).decode() + "\n")
            guard.stdin.flush()
        answer = guard.stdout.readline().strip()
        if answer != READY:
            raise FrequencyError(f"nothing was set: {answer or 'no process could stand by'}")
        yield
    except BaseException as error:
        if trouble := _end(guard, record):
            error.add_note(trouble)
        raise
    if trouble := _end(guard, record):
        raise FrequencyError(trouble)


def _end(guard: subprocess.Popen[str], record: Path) -> str:
    """End a guard, which restores the limits; return its error, "" without one."""
    try:
        printed, _ = guard.communicate(timeout=END_S)  # closes its input, for which it waits
    except subprocess.TimeoutExpired:
        guard.kill()
        printed, _ = guard.communicate()
    if guard.returncode == 0:
        return printed.strip()
    try:  # it was killed, or failed
        with _held(record):
            return ""
    except FrequencyError as error:
        return str(error)


def _folder(env: Mapping[str, str]) -> Path:
    """Return the folder of the records, which a restart of the machine may empty."""
    if named := env.get(CPUFREQ_VARIABLE):
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run")
    return Path(env.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


@contextlib.contextmanager
def _held(record: Path) -> Iterator[BinaryIO]:
    """Lock a record, and restore the limits that an earlier holder has left in it."""
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
            left = msgspec.json.decode(file.read(), type=SavedLimits)
            if left.boot == boot_id():
                restore(left)
        file.seek(0)
        file.truncate()
        yield file


def restore(saved: SavedLimits) -> None:
    """Restore saved limits, all that can be."""
    errors = _errors(
        lambda policy: set_limits(Path(policy), *saved.policies[policy]), saved.policies
    )
    errors += _errors(_unlock, saved.gpus)
    if errors:
        raise FrequencyError(f"the earlier limits could not be restored: {'; '.join(errors)}")


def _errors(act: Callable[[str], None], names: Iterable[str]) -> list[str]:
    """Call ``act`` for all names; return the errors of those that fail."""
    errors = []
    for name in names:
        try:
            act(name)
        except FrequencyError as error:
            errors.append(str(error))
    return errors


def guard() -> int:
    """Save the limits, wait for the end of the parent, restore them; return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ready = False
    try:
        order = msgspec.json.decode(sys.stdin.readline(), type=GuardOrder)
        with _held(Path(order.record)) as record:
            policies = {policy: limits_of(Path(policy)) for policy in order.policies}
            saved = SavedLimits(boot_id(), policies)
            if not policies:
                with _nvml() as nvml:
                    handle = nvml.nvmlDeviceGetHandleByIndex(order.gpu)
                    saved = SavedLimits(boot_id(), gpus=[uuid_of(nvml, handle)])
            record.write(msgspec.json.encode(saved))
            record.flush()
            print(READY, flush=True)
            ready = True
            sys.stdin.read()  # until the other end is closed, by its end if by nothing else
            restore(saved)
            record.truncate(0)
    except FrequencyError as error:
        with contextlib.suppress(OSError):
            print(error, flush=True)
        return 1 if ready else 0
    return 0


if __name__ == "__main__":
    sys.exit(guard())
