"""Power of the first GPU by NVML and by nvidia-smi, read beside each other."""

import threading
import time

from rms.power.nvidia_smi import NvidiaSmi, Reading, integrate

EVERY_S = 0.1


class Smi:
    """nvidia-smi's power, every 100 ms."""

    name = "nvidia-smi"

    def __init__(self):
        self.readings, self._sampler = [], NvidiaSmi(every_ms=int(EVERY_S * 1e3))
        self._sampler.start(self.readings.append)

    def stop(self):
        self._sampler.close()

    def between(self, start_s, end_s):
        """Return the mean power and the energy from one time of day to another."""
        first = [reading for reading in self.readings if reading.gpu == 0]
        return curve(first, start_s, end_s, self._sampler.error)


class Nvml:
    """NVML's power, every 100 ms, and its energy counter."""

    name = "nvml"

    def __init__(self):
        self.readings, self.counted, self.error = [], [], None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            import pynvml

            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._ended.wait(EVERY_S):
                now = time.time()
                watts = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
                self.readings.append(Reading(now, 0, watts))
                millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
                self.counted.append((time.time(), millijoules / 1e3))
        except Exception as error:  # no NVML, or a device that does not count: the rest goes on
            self.error = f"{type(error).__name__}: {error} (pip install nvidia-ml-py)"

    def stop(self):
        self._ended.set()
        self._thread.join(5)

    def between(self, start_s, end_s):
        """Return the mean power and the energy, integrated and by the counter."""
        found = curve(self.readings, start_s, end_s, self.error)
        inside = [(at, joules) for at, joules in self.counted if start_s <= at <= end_s]
        if len(inside) > 1:
            (first_s, first_j), (last_s, last_j) = inside[0], inside[-1]
            found["counter_mean_w"] = (last_j - first_j) / (last_s - first_s)
        return found


def curve(readings, start_s, end_s, error):
    """Return the mean power and the energy under the readings of one GPU."""
    inside = [reading.power_w for reading in readings if start_s <= reading.at_s <= end_s]
    if not inside or end_s <= start_s:
        return {"error": error or "no readings"}
    joules = integrate(readings, start_s, end_s)[0]
    return {
        "readings": len(inside),
        "energy_j": joules,
        "mean_w": joules / (end_s - start_s),
        "max_w": max(inside),
    }
