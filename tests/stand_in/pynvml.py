"""A stand-in for pynvml (nvidia-ml-py): the few functions that are called, on GPUs that tests set.

``STAND_IN_NVML`` names a folder, as several processes see the same GPUs: its ``gpus.json`` has one
object for each, with fields of :class:`Gpu`, and ``clocks`` gets a line when clocks are locked or
reset. Without it there is one GPU. Tests in the same process set ``gpus`` and ``now`` themselves.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

NVML_SUCCESS = 0
NVML_ERROR_NOT_SUPPORTED = 3
NVML_FI_DEV_POWER_INSTANT = 186
NVML_VALUE_TYPE_UNSIGNED_INT = 1
NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3


class NVMLError(Exception):
    """As pynvml has it."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Gpu:
    """A GPU.

    Attributes:
        idle_w, busy_w: its power while this process computes nothing, and all the time.
        watts, joules: its power and its counter at a time, where a test sets them.
        samples: times, processes and their utilization, %.
        refuses: the error of each function that does not work; of ``*`` if none does.
    """

    uuid: str = "GPU-0"
    idle_w: float = 60.0
    busy_w: float = 300.0
    watts: Callable[[float], float] | None = None
    joules: Callable[[float], float] | None = None
    samples: Sequence[tuple[float, int, int]] = ()
    clocks: Sequence[int] = (1200, 900, 600)
    mig: bool = False
    refuses: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    at_s: float = 0.0
    counted_j: float = 0.0
    last_w: float = 0.0


gpus: list[Gpu] = []
now: Callable[[], float] = time.time
_inits = 0


def _folder() -> Path | None:
    given = os.environ.get("STAND_IN_NVML")
    return Path(given) if given else None


def nvmlInit() -> None:  # noqa: N802 - as pynvml has it
    global _inits
    folder = _folder()
    if not gpus:
        given = json.loads((folder / "gpus.json").read_text()) if folder else [{}]
        gpus.extend(Gpu(**one) for one in given)
    if any("nvmlInit" in gpu.refuses for gpu in gpus):
        raise NVMLError(gpus[0].refuses["nvmlInit"])
    _inits += 1


def nvmlShutdown() -> None:  # noqa: N802
    global _inits
    _check(None, "nvmlShutdown")
    _inits -= 1


def _check(gpu: Gpu | None, name: str) -> None:
    if not _inits:
        raise NVMLError(1)
    if gpu is not None:
        code = gpu.refuses.get(name, gpu.refuses.get("*"))
        if code is not None:
            raise NVMLError(code)


def nvmlDeviceGetCount() -> int:  # noqa: N802
    _check(None, "nvmlDeviceGetCount")
    return len(gpus)


def nvmlDeviceGetHandleByIndex(number: int) -> Gpu:  # noqa: N802
    _check(gpus[number], "nvmlDeviceGetHandleByIndex")
    return gpus[number]


def nvmlDeviceGetHandleByPciBusId(bus_id: bytes) -> Gpu:  # noqa: N802
    return nvmlDeviceGetHandleByIndex(0)


def nvmlDeviceGetHandleByUUID(uuid: bytes) -> Gpu:  # noqa: N802
    _check(None, "nvmlDeviceGetHandleByUUID")
    found = [gpu for gpu in gpus if gpu.uuid == uuid.decode()]
    if not found:
        raise NVMLError(6)
    return found[0]


def nvmlDeviceGetIndex(gpu: Gpu) -> int:  # noqa: N802
    return gpus.index(gpu)


def nvmlDeviceGetUUID(gpu: Gpu) -> str:  # noqa: N802
    _check(gpu, "nvmlDeviceGetUUID")
    return gpu.uuid


def _watts(gpu: Gpu) -> float:
    if gpu.watts is not None:
        return gpu.watts(now())
    at_s, cpu_s = now(), time.process_time()
    seconds = at_s - gpu.at_s
    if seconds >= 0.02:
        busy = min(1.0, (cpu_s - gpu.cpu_s) / seconds) if gpu.at_s else 0.0
        gpu.last_w = gpu.idle_w + busy * (gpu.busy_w - gpu.idle_w)
        gpu.counted_j += gpu.last_w * seconds if gpu.at_s else 0.0
        gpu.at_s, gpu.cpu_s = at_s, cpu_s
    return gpu.last_w


def nvmlDeviceGetProcessUtilization(gpu: Gpu, since_us: int) -> list[SimpleNamespace]:  # noqa: N802
    _check(gpu, "nvmlDeviceGetProcessUtilization")
    found = [
        SimpleNamespace(timeStamp=int(at_s * 1e6), pid=pid, smUtil=percent)
        for at_s, pid, percent in gpu.samples
        if since_us < at_s * 1e6 <= now() * 1e6
    ]
    if not found:
        raise NVMLError(6)
    return found


def nvmlDeviceGetTotalEnergyConsumption(gpu: Gpu) -> int:  # noqa: N802
    _check(gpu, "nvmlDeviceGetTotalEnergyConsumption")
    if gpu.joules is not None:
        return int(gpu.joules(now()) * 1e3)
    _watts(gpu)
    return int(gpu.counted_j * 1e3)


def nvmlDeviceGetPowerUsage(gpu: Gpu) -> int:  # noqa: N802
    _check(gpu, "nvmlDeviceGetPowerUsage")
    return int(_watts(gpu) * 1e3)


def nvmlDeviceGetFieldValues(gpu: Gpu, fields: Sequence[int]) -> list[SimpleNamespace]:  # noqa: N802
    found = []
    for number in fields:
        refused = gpu.refuses.get("nvmlDeviceGetFieldValues", gpu.refuses.get("*", NVML_SUCCESS))
        if number != NVML_FI_DEV_POWER_INSTANT:
            refused = NVML_ERROR_NOT_SUPPORTED
        milliwatts = 0 if refused else int(_watts(gpu) * 1e3)
        found.append(
            SimpleNamespace(
                nvmlReturn=refused,
                valueType=NVML_VALUE_TYPE_UNSIGNED_INT,
                value=SimpleNamespace(uiVal=milliwatts, ullVal=-1),
            )
        )
    return found


def nvmlDeviceGetMigMode(gpu: Gpu) -> list[int]:  # noqa: N802
    _check(gpu, "nvmlDeviceGetMigMode")
    return [int(gpu.mig), int(gpu.mig)]


def nvmlDeviceGetSupportedMemoryClocks(gpu: Gpu) -> list[int]:  # noqa: N802
    _check(gpu, "nvmlDeviceGetSupportedMemoryClocks")
    return [2619, 1593]


def nvmlDeviceGetSupportedGraphicsClocks(gpu: Gpu, memory_mhz: int) -> list[int]:  # noqa: N802
    _check(gpu, "nvmlDeviceGetSupportedGraphicsClocks")
    return list(gpu.clocks)


def nvmlDeviceSetGpuLockedClocks(gpu: Gpu, low_mhz: int, high_mhz: int) -> None:  # noqa: N802
    _check(gpu, "nvmlDeviceSetGpuLockedClocks")
    _note(f"lock {gpu.uuid} {low_mhz} {high_mhz}")


def nvmlDeviceResetGpuLockedClocks(gpu: Gpu) -> None:  # noqa: N802
    _check(gpu, "nvmlDeviceResetGpuLockedClocks")
    _note(f"reset {gpu.uuid}")


def _note(line: str) -> None:
    folder = _folder()
    if folder is not None:
        with (folder / "clocks").open("a") as file:
            file.write(line + "\n")
