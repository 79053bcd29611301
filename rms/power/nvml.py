"""Energy of GPUs by NVML: the driver's own counter, else the integral of its readings of power.

The counter (mJ since the driver was loaded) is renewed every 20 to 100 ms. Without one the power is
integrated, by the instantaneous field if there is one: the plain call gives the mean of a second.

pynvml, of the package nvidia-ml-py, is imported at its first use.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rms.power.meter import (
    ABOVE_LIMIT,
    GPU_LIMIT_W,
    Meter,
    MeterError,
    PowerIntegral,
    Refusals,
    Tally,
    gain_j,
)
from rms.wire.messages import DeviceEnergy

COUNTER, POWER = "nvml-counter", "nvml-power"
COUNTER_PERIOD_S = 0.1
"""The longest time between two changes of the counter (measured on H100 and others)."""
INSTANT_S, AVERAGE_S = 0.1, 1.0
"""The longest time over which a reading of power is a mean, s."""
RETRY_S = 5.0  # time until a lost GPU is tried again
STUCK_S = 10.0
"""A counter that stands still for so long, of a GPU that draws power, counts nothing."""
POWER_EVERY_S = 0.1
COUNTER_LEAST_S, COUNTER_MOST_S = 0.45, 60.0
"""Shortest and longest time between two readings of a counter, which take milliseconds."""
NO_SAMPLES = 6  # NVML_ERROR_NOT_FOUND: nothing has used the GPU since then
REFUSALS = (2, 3, 4, 13)
"""Permanent errors: invalid argument, not supported, no permission, no such function."""
WORDS = {
    1: "NVML is not initialised",
    3: "it is not supported on this GPU (a virtual one, or too old)",
    4: "this user may not",
    6: "there is no such GPU any more",
    9: "the NVIDIA driver is not loaded",
    12: "libnvidia-ml.so, a part of the driver, is missing",
    15: "the GPU has fallen off the bus or is not reachable",
    16: "the GPU needs a reset",
    18: "the driver and its library have different versions",
    999: "NVML failed without saying why",
}


def load() -> Any:
    """Return pynvml, ready for use; its ``nvmlShutdown`` is to be called after that."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise MeterError(
            "expected the package nvidia-ml-py to read GPUs by NVML, got none "
            "(pip install 'malleable-mpi[nvml]')"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise MeterError(in_words(nvml, error)) from None
    return nvml


def in_words(nvml: Any, error: Exception) -> str:
    """Return an error of NVML in words."""
    code = getattr(error, "value", None)
    return WORDS.get(code if isinstance(code, int) else -1, f"NVML says: {error}")


@dataclass
class Counter:
    """The joules of a counter since its first reading.

    One that rises implausibly fast belongs to another GPU, or was reset.

    Attributes:
        unseen_s: time that was lost as the counter began anew.
    """

    joules: float = 0.0
    unseen_s: float = 0.0
    at_s: float | None = None
    counted_j: float = 0.0
    changed_s: float = 0.0
    most_w: float = ABOVE_LIMIT * GPU_LIMIT_W
    _mean_w: float = 0.0
    _behind_j: float = 0.0

    def add(self, at_s: float, counted_j: float) -> bool:
        """Take a reading; return whether its power is within the bound."""
        if self.at_s is None:
            self.at_s, self.counted_j, self.changed_s = at_s, counted_j, at_s
            return True
        if at_s <= self.at_s:
            return True
        read_s, self.at_s = at_s - self.at_s, at_s
        seconds, spent = at_s - self.changed_s, counted_j - self.counted_j
        if not spent:
            return True
        self.changed_s, self.counted_j = at_s, counted_j
        most_j = self.most_w * (seconds + COUNTER_PERIOD_S)
        if 0 <= spent <= most_j:
            self.joules += spent
            # A counter that stood still is renewed rarely, or the power was 0: the larger change.
            mean_w = spent / max(read_s, 2 * COUNTER_PERIOD_S)
            self._behind_j += COUNTER_PERIOD_S * abs(mean_w - self._mean_w)
            self._mean_w = mean_w
        else:  # the driver was loaded anew: its count until then is unknown
            self.unseen_s += seconds
        return spent <= most_j

    def uncertainty_j(self) -> float:
        """Return the sensor's gain, and all changes of power times the counter's delay, J."""
        return gain_j(self.joules) + self._behind_j


@dataclass
class _Gpu:
    """One GPU: its energy so far, its meter, its handle, and the report of an earlier agent."""

    name: str
    handle: Any
    source: str = ""
    report: DeviceEnergy | None = None
    before: Tally = field(default_factory=Tally)
    counter: Counter = field(default_factory=Counter)
    integral: PowerIntegral | None = None
    instant: bool = False
    trouble: str = ""
    lists: bool = True
    """Whether its processes can be read."""
    listed: tuple[float, int] | None = None
    """When they were read last, and the driver's time of the newest sample by then, us."""
    newest_us: int = 0

    def energy(self, now_s: float) -> DeviceEnergy:
        tally = Tally(
            self.before.joules + self.counter.joules,
            self.before.unseen_s + self.counter.unseen_s,
            self.before.uncertainty_j + self.counter.uncertainty_j(),
        )
        if self.integral is not None:
            tally.joules += self.integral.joules
            tally.unseen_s += self.integral.unseen_s(now_s)
            tally.uncertainty_j += self.integral.uncertainty_j()
        counted_j = self.counter.counted_j if self.source == COUNTER else None
        return tally.energy(self.name, self.source, counted_j)


@dataclass
class Nvml(Meter):
    """The GPUs of this machine, by their counters or else by their power.

    Attributes:
        most_w: bound of the power of a GPU; None for twice its limit.
    """

    every_s: float = COUNTER_MOST_S
    most_w: float | None = None
    _refusals: Refusals = field(default_factory=Refusals)
    _nvml: Any = None
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _again_s: float = -math.inf

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the GPUs with new readings; none while they are lost."""
        lost = any(gpu.handle is None for gpu in self._gpus.values())
        if (self._nvml is None or lost) and now_s >= self._again_s:
            self._open(now_s)
        gpus = self._gpus.values()
        devices = [gpu.energy(now_s) for gpu in gpus if self._read(gpu, now_s)]
        if self._nvml is not None:
            troubles = [f"{gpu.name}: {gpu.trouble}" for gpu in gpus if gpu.trouble]
            self.trouble = "; ".join(filter(None, (*troubles, self._refusals.words(now_s))))
            if not any(gpu.source or gpu.handle is None for gpu in gpus):
                raise MeterError(self.trouble or "NVML shows no GPU")
        return devices

    def processes(self, now_s: float) -> dict[str, dict[int, float]]:
        """Return the time in which each GPU computed for each process since the last call, s.

        The driver samples the utilization by process several times a second. A GPU whose processes
        cannot be read is left out.
        """
        busy_s = {}
        for gpu in self._gpus.values():
            if gpu.handle is None or gpu.lists is False:
                continue
            since_s, since_us = gpu.listed or (now_s, 0)
            try:
                samples = self._nvml.nvmlDeviceGetProcessUtilization(gpu.handle, since_us)
            except self._nvml.NVMLError as error:
                if getattr(error, "value", None) != NO_SAMPLES:
                    gpu.lists = False
                    continue
                samples = []
            busy: dict[int, list[float]] = {}
            for sample in samples:
                if sample.timeStamp > since_us:
                    busy.setdefault(sample.pid, []).append(min(100, sample.smUtil) / 100)
                    gpu.newest_us = max(gpu.newest_us, sample.timeStamp)
            gpu.listed = now_s, gpu.newest_us
            span_s = max(0.0, now_s - since_s)
            busy_s[gpu.name] = {pid: span_s * fmean(parts) for pid, parts in busy.items()}
        return busy_s

    def close(self) -> None:
        """Close NVML; a later reading opens it again."""
        self._shut()
        self._again_s = -math.inf

    def _shut(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None
        for gpu in self._gpus.values():
            gpu.handle = None

    def _open(self, now_s: float) -> None:
        """Find the GPUs, again after some were lost by a reset, or by a reload of the driver."""
        self._shut()
        self._again_s = now_s + RETRY_S
        try:
            self._nvml = nvml = load()
        except MeterError as error:
            if not self._gpus:
                raise
            self.trouble = str(error)
            return
        for number in range(nvml.nvmlDeviceGetCount()):
            name = f"gpu-{number}"
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                uuid = uuid_of(nvml, handle)  # its number may be another one by now
                if uuid not in self._gpus:
                    report = self._reported.pop(name, None)
                    self._gpus[uuid] = _Gpu(name, None, "", report, Tally.after(report))
                gpu = self._gpus[uuid]
                gpu.handle, gpu.trouble = handle, ""
                gpu.counter.most_w = self.most_w or ABOVE_LIMIT * limit_w(nvml, handle)
                if not gpu.source:
                    self._choose(gpu)
            except nvml.NVMLError as error:
                self.trouble = f"{name}: {in_words(nvml, error)}"

    def _choose(self, gpu: _Gpu) -> None:
        """Take the first way in which this GPU can be read."""
        trouble = ""
        try:
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
            gpu.source = COUNTER
        except self._nvml.NVMLError:
            trouble = self._choose_power(gpu)
        if gpu.source and divided(self._nvml, gpu.handle):
            trouble = "it is divided by MIG, and its readings are of all its parts"
        if gpu.source == POWER and gpu.report is not None:
            gpu.before.unseen_s += self._gap_s
            gpu.report = None
        gpu.trouble = trouble

    def _choose_power(self, gpu: _Gpu) -> str:
        """Read the power from now on; return the reason if that is impossible, or ""."""
        try:
            gpu.instant = instant_w(self._nvml, gpu.handle) is not None
            if not gpu.instant:
                self._nvml.nvmlDeviceGetPowerUsage(gpu.handle)
        except self._nvml.NVMLError as error:
            return f"neither its energy nor its power can be read: {in_words(self._nvml, error)}"
        gpu.source, self.every_s = POWER, POWER_EVERY_S
        gpu.integral = PowerIntegral(INSTANT_S if gpu.instant else AVERAGE_S)
        return ""

    def _read(self, gpu: _Gpu, now_s: float) -> bool:
        """Read one GPU; return whether there is a new reading."""
        if gpu.handle is None or not gpu.source:
            return False
        try:
            if gpu.integral is None:
                return self._count(gpu, now_s)
            watts = power_w(self._nvml, gpu.handle, gpu.instant)
        except self._nvml.NVMLError as error:
            gpu.handle, gpu.trouble = None, in_words(self._nvml, error)
            self._again_s = max(self._again_s, now_s + RETRY_S)
            return False
        if watts > gpu.counter.most_w:
            self._refusals.add(gpu.name, gpu.counter.most_w, now_s)
            return False
        gpu.integral.add(now_s, watts)
        return True

    def _count(self, gpu: _Gpu, now_s: float) -> bool:
        """Read a counter, unless its last reading was just before."""
        counter = gpu.counter
        if counter.at_s is not None and now_s < counter.at_s + COUNTER_LEAST_S:
            return False
        counted_j = self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle) / 1e3
        if gpu.report is not None:  # begin where an earlier agent left, if it is the same counter
            if self._same_boot and gpu.report.counter is not None:
                counter.add(now_s - max(self._gap_s, COUNTER_PERIOD_S), gpu.report.counter)
            else:
                gpu.before.unseen_s += self._gap_s
            gpu.report = None
        if not counter.add(now_s, counted_j):
            self._refusals.add(gpu.name, counter.most_w, now_s)
        still_s = now_s - counter.changed_s
        if still_s > STUCK_S and power_w(self._nvml, gpu.handle, False) > 0:
            trouble = self._choose_power(gpu)
            gpu.trouble = f"its energy counter stands still; {trouble}".rstrip("; ")
            if gpu.source == POWER:
                gpu.before.unseen_s += still_s
        return True


def uuid_of(nvml: Any, handle: Any) -> str:
    """Return the UUID of a GPU."""
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def power_w(nvml: Any, handle: Any, instant: bool) -> float:
    """Return a GPU's power, W: on request of the instantaneous field, if there is one."""
    watts = instant_w(nvml, handle) if instant else None
    return nvml.nvmlDeviceGetPowerUsage(handle) / 1e3 if watts is None else watts


def instant_w(nvml: Any, handle: Any) -> float | None:
    """Return the instantaneous power, W; None if GPU, driver or pynvml lack the field."""
    name = getattr(nvml, "NVML_FI_DEV_POWER_INSTANT", None)
    if name is None:
        return None
    try:
        (field_value,) = nvml.nvmlDeviceGetFieldValues(handle, [name])
    except nvml.NVMLError as error:
        if getattr(error, "value", None) in REFUSALS:
            return None
        raise
    if field_value.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    value = field_value.value
    wide = field_value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    milliwatts = value.ullVal if wide else value.uiVal
    return milliwatts / 1e3 if milliwatts > 0 else None


def limit_w(nvml: Any, handle: Any) -> float:
    """Return the highest settable power limit of a GPU, W, or the default limit."""
    try:
        stated_w = float(nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1]) / 1e3
    except (nvml.NVMLError, AttributeError):  # AttributeError: an old library
        stated_w = 0.0
    return stated_w or GPU_LIMIT_W


def divided(nvml: Any, handle: Any) -> bool:
    """Return whether a GPU is divided by MIG."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False
