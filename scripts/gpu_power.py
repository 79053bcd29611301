"""Power of a GPU by NVML's counter, NVML's power and nvidia-smi, read beside each other."""

import threading
import time

import numpy as np

from rms.power.meter import PowerIntegral, UpdatePeriod, gain_j
from rms.power.nvidia_smi import NvidiaSmi
from rms.power.nvml import AVERAGE_S, COUNTER_PERIOD_S, INSTANT_S, instant_w, load

COUNTER, INSTANT, MEAN, SMI = "nvml-counter", "nvml-power (instant)", "nvml-power", "nvidia-smi"
AVERAGED_S = {INSTANT: INSTANT_S, MEAN: AVERAGE_S, SMI: AVERAGE_S}
"""Over how long at most a reading of the power is a mean."""

POWER_EVERY_S, SMI_EVERY_MS = 0.005, 100
COUNTER_EVERY = 4
"""The counter is read at every so many readings of the power: it takes longer."""
IDLE_S = 2.0
"""Before and after that time the power tells how far the sensor may have been behind."""
SHORT = 0.1
"""A figure that is less certain than this part of itself is marked."""


class Meters:
    """All meters of one GPU; ``readings`` has (time of day, W) by meter, of the counter (s, J)."""

    def __init__(self, bus_id=None):
        self.readings = {name: [] for name in (COUNTER, INSTANT, MEAN, SMI)}
        self.errors, self._bus_id, self._index = {}, bus_id, 0
        self._ended, self._begun = threading.Event(), threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._read_nvml, daemon=True)
        self._thread.start()
        self._begun.wait(30)
        self._smi = NvidiaSmi(every_ms=SMI_EVERY_MS)
        self._smi.start(self._printed)
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join(5)
        self._smi.close()

    def _printed(self, reading):
        if reading.gpu == self._index:
            self.readings[SMI].append((reading.at_s, reading.power_w))

    def _read_nvml(self):
        """Read NVML's power as fast as its sensor may change, and its counter."""
        try:
            nvml = load()
            if self._bus_id is None:
                gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            else:
                gpu = nvml.nvmlDeviceGetHandleByPciBusId(self._bus_id.encode())
            self._index, number = nvml.nvmlDeviceGetIndex(gpu), 0
            self._begun.set()
            while not self._ended.wait(POWER_EVERY_S):
                if (watts := instant_w(nvml, gpu)) is not None:
                    self.readings[INSTANT].append((time.time(), watts))
                self.readings[MEAN].append((time.time(), nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3))
                if number % COUNTER_EVERY == 0 and COUNTER not in self.errors:
                    try:
                        joules = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
                        self.readings[COUNTER].append((time.time(), joules))
                    except nvml.NVMLError:
                        self.errors[COUNTER] = "no energy counter on this GPU"
                number += 1
            nvml.nvmlShutdown()
        except Exception as error:  # no NVML, or no power: the rest goes on
            words = f"{type(error).__name__}: {error}"
            self.errors |= dict.fromkeys((COUNTER, INSTANT, MEAN), words)
        finally:
            self._begun.set()

    def per_update(self, start_s, end_s, updates):
        """Return the energy by each meter from one time of day to another, and of 1e9 updates."""
        self.errors |= {SMI: self._smi.error} if self._smi.error else {}
        rows = {}
        for name, readings in self.readings.items():
            inside = [reading for reading in readings if start_s <= reading[0] <= end_s]
            if not inside or end_s <= start_s:
                rows[name] = {"error": self.errors.get(name, "no readings")}
                continue
            work = counted if name == COUNTER else under
            rows[name] = work(readings, start_s, end_s, AVERAGED_S.get(name, COUNTER_PERIOD_S))
            rows[name]["readings"] = len(inside)
            rows[name]["j_per_1e9_updates"] = rows[name]["energy_j"] / (updates / 1e9)
        return rows


def under(readings, start_s, end_s, averaged_s):
    """Return the energy under the readings of one meter.

    What was read before and after tells how far the power may have been from what was read in
    between, where that was too short for the sensor to follow.
    """
    area, seconds = PowerIntegral(averaged_s), end_s - start_s
    for at_s, watts in readings:
        if start_s <= at_s <= end_s:
            area.add(at_s, watts)
    joules = energy_under(readings, start_s, end_s)
    around = [watts for at_s, watts in readings if start_s - IDLE_S <= at_s <= end_s + IDLE_S]
    behind_j = min(area.behind_s, seconds) * (max(around) - min(around))
    row = figures(joules, max(area.uncertainty_j(), gain_j(joules) + behind_j), seconds)
    short = row["short"] or seconds < 2 * area.behind_s
    return row | {"short": short, "period_s": area.period.seconds}


def energy_under(readings, start_s, end_s):
    """Return the energy under a curve of (s, W), J, by the trapezoidal rule; 0 if reversed.

    Start and end are interpolated between readings; before the first reading and after the last the
    power is held (Iserte & Rojek, section 5.2: energy by integrating power curves).
    """
    if end_s <= start_s:
        return 0.0
    times, watts = np.array(sorted(readings, key=lambda reading: reading[0])).T
    inside = (start_s < times) & (times < end_s)
    first, last = np.interp([start_s, end_s], times, watts)
    heights = np.concatenate([[first], watts[inside], [last]])
    return float(np.trapezoid(heights, np.concatenate([[start_s], times[inside], [end_s]])))


def counted(readings, start_s, end_s, delay_s):
    """Return the energy by a counter, taken to rise evenly between its readings."""
    period = UpdatePeriod()
    for reading in readings:
        period.add(*reading)
    first, last = np.interp([start_s, end_s], *np.array(readings).T)
    joules, seconds = float(last - first), end_s - start_s
    behind_s = max(delay_s, period.seconds or 0.0)
    row = figures(joules, gain_j(joules) + behind_s * joules / seconds, seconds)
    return row | {"period_s": period.seconds}


def figures(joules, uncertainty_j, seconds):
    return {
        "energy_j": joules,
        "uncertainty_j": uncertainty_j,
        "short": uncertainty_j > SHORT * joules,
        "mean_w": joules / seconds,
    }
