"""Power of a GPU by NVML's counter, NVML's power and nvidia-smi, read beside each other."""

import math
import threading
import time
from bisect import bisect_right
from importlib.util import find_spec
from itertools import pairwise
from statistics import median

from rms.power.meter import PowerIntegral, UpdatePeriod, gain_j
from rms.power.nvidia_smi import NvidiaSmi
from rms.power.nvml import AVERAGE_S, COUNTER_PERIOD_S, INSTANT_S, instant_w, load

SMI_EVERY_S = 0.1
POWER_EVERY_S = 0.005
COUNTER_EVERY = 4
"""The counter is read at every so many readings of the power: it takes longer."""
IDLE_S = 2.0
"""Rest before the kernel is started: the power rises from a level that is known."""
SHORT = 0.1
"""A figure that is less certain than this part of itself is marked."""
MOST_POINTS = 600
RANKS = (1, 2, 4)
RANKS_S = 20.0
"""Time below which no further run on ranks is begun."""


def energy_under(curve, start_s, end_s):
    """Return the energy under a curve of (s, W), J, by the trapezoidal rule; 0 if reversed.

    Start and end are interpolated between readings; before the first reading and after the last the
    power is held (Iserte & Rojek, section 5.2: energy by integrating power curves).
    """
    curve = sorted(curve, key=lambda reading: reading[0])
    (first_s, first_w), (last_s, last_w) = curve[0], curve[-1]
    parts = [max(0.0, min(end_s, first_s) - start_s) * first_w]
    parts.append(max(0.0, end_s - max(start_s, last_s)) * last_w)
    for (at_s, watts), (next_s, next_w) in pairwise(curve):
        low_s, high_s = max(at_s, start_s), min(next_s, end_s)
        if low_s < high_s:
            slope = (next_w - watts) / (next_s - at_s)
            middle_s = ((low_s - at_s) + (high_s - at_s)) / 2  # of a trapezoid: its mean height
            parts.append((high_s - low_s) * (watts + slope * middle_s))
    return math.fsum(parts)


class Smi:
    """nvidia-smi's power, every 100 ms."""

    def __init__(self, gpu=0):
        self._gpu, self._readings = gpu, []
        self._sampler = NvidiaSmi(every_ms=int(SMI_EVERY_S * 1e3))
        self._sampler.start(self._readings.append)

    @property
    def error(self):
        return self._sampler.error

    def stop(self):
        self._sampler.close()

    def curves(self):
        """Return what was read: times of day (s) and power (W), by the name of the meter."""
        return {"nvidia-smi": [(r.at_s, r.power_w) for r in self._readings if r.gpu == self._gpu]}


class Nvml:
    """NVML's power, as fast as its sensor may change, and its energy counter."""

    def __init__(self, bus_id=None):
        self.index, self.error = 0, None
        self._instant, self._mean, self.counted = [], [], []
        self._ended, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read, args=(bus_id,), daemon=True)
        self._thread.start()
        self._begun.wait(30)

    def _read(self, bus_id):
        try:
            nvml = load()
            if bus_id is None:
                gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            else:
                gpu = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
            self.index = nvml.nvmlDeviceGetIndex(gpu)
            self._begun.set()
            number = 0
            while not self._ended.wait(POWER_EVERY_S):
                if (watts := instant_w(nvml, gpu)) is not None:
                    self._instant.append((time.time(), watts))
                self._mean.append((time.time(), nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3))
                if number % COUNTER_EVERY == 0:
                    self._count(nvml, gpu)
                number += 1
            nvml.nvmlShutdown()
        except Exception as error:  # no NVML, or no power: the rest goes on
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._begun.set()

    def _count(self, nvml, gpu):
        try:
            joules = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
        except nvml.NVMLError:
            return  # a device that does not count
        self.counted.append((time.time(), joules))

    def stop(self):
        self._ended.set()
        self._thread.join(5)

    def curves(self):
        """Return what was read: times of day (s) and power (W), by the name of the meter."""
        return {"nvml-power (instant)": list(self._instant), "nvml-power": list(self._mean)}


AVERAGED_S = {"nvml-power (instant)": INSTANT_S}
"""Over how long at most a meter's readings are means; the others' over a second."""


class Meters:
    """All of them, started together."""

    def __init__(self, bus_id=None):
        self.nvml = Nvml(bus_id)
        self.smi = Smi(self.nvml.index)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.nvml.stop()
        self.smi.stop()

    def between(self, start_s, end_s):
        """Return the energy by each meter from one time of day to another."""
        found = {"nvml-counter": counted(self.nvml.counted, start_s, end_s)}
        for meter in (self.nvml, self.smi):
            for name, readings in meter.curves().items():
                averaged_s = AVERAGED_S.get(name, AVERAGE_S)
                found[name] = under(readings, start_s, end_s, averaged_s, meter.error)
        return found

    def per_update(self, start_s, end_s, updates):
        """Return the same, with the energy of 1e9 cell updates."""
        found = self.between(start_s, end_s)
        for row in found.values():
            if "energy_j" in row:
                row["j_per_1e9_updates"] = row["energy_j"] / (updates / 1e9)
        return found

    def curves(self, start_s, end_s):
        """Return P(t): seconds since the start and W by each meter, thinned out."""
        found = self.nvml.curves() | self.smi.curves()
        return {name: thin(curve, start_s, end_s) for name, curve in found.items() if curve}


def under(readings, start_s, end_s, averaged_s, error=None):
    """Return the energy and the mean power under the readings of one meter.

    What was read before and after tells how far the power may have been from what was read in
    between, where that was too short for the sensor to follow.
    """
    inside = [(at_s, watts) for at_s, watts in readings if start_s <= at_s <= end_s]
    if not inside or end_s <= start_s:
        return {"error": error or "no readings"}
    area, seconds = PowerIntegral(averaged_s), end_s - start_s
    for at_s, watts in inside:
        area.add(at_s, watts)
    joules = energy_under(readings, start_s, end_s)
    around = [watts for at_s, watts in readings if start_s - IDLE_S <= at_s <= end_s + IDLE_S]
    behind_j = min(area.behind_s, seconds) * (max(around) - min(around))
    found = figures(joules, max(area.uncertainty_j(), gain_j(joules) + behind_j), seconds)
    return found | {
        "short": found["short"] or seconds < 2 * area.behind_s,
        "readings": len(inside),
        "period_s": area.period.seconds,
        "max_w": max(watts for _, watts in inside),
    }


def counted(readings, start_s, end_s):
    """Return the energy by a counter, taken to rise evenly between its readings."""
    times = [at_s for at_s, _ in readings]
    inside = bisect_right(times, end_s) - bisect_right(times, start_s)
    if not inside or end_s <= start_s:
        return {"error": "no energy counter on this GPU" if not readings else "no readings"}
    period = UpdatePeriod()
    for at_s, joules in readings:
        period.add(at_s, joules)
    joules = at(readings, end_s) - at(readings, start_s)
    behind_s = max(COUNTER_PERIOD_S, period.seconds or 0.0)
    uncertainty_j = gain_j(joules) + behind_s * joules / (end_s - start_s)
    return figures(joules, uncertainty_j, end_s - start_s) | {
        "readings": inside,
        "period_s": period.seconds,
    }


def at(readings, now_s):
    """Return a counter at a time of day, by the readings before and after it."""
    after = bisect_right(readings, now_s, key=lambda reading: reading[0])
    if after in (0, len(readings)):
        return readings[min(after, len(readings) - 1)][1]
    (one_s, one), (other_s, other) = readings[after - 1 : after + 1]
    return one + (other - one) * (now_s - one_s) / (other_s - one_s)


def figures(joules, uncertainty_j, seconds):
    return {
        "energy_j": joules,
        "uncertainty_j": uncertainty_j,
        "short": uncertainty_j > SHORT * joules,
        "mean_w": joules / seconds,
    }


def thin(readings, start_s, end_s):
    """Return at most so many readings as a plot can show, from a start on."""
    inside = [(at_s - start_s, watts) for at_s, watts in readings if start_s <= at_s <= end_s]
    every = max(1, -(-len(inside) // MOST_POINTS))
    return [[round(at_s, 4), watts] for at_s, watts in inside[::every]]


def rise(readings, start_s, end_s):
    """Return how a sensor follows the kernel's start: lag to half of the rise, and 10 to 90 %.

    The lag has the start of the kernel in it; the rest is the sensor's mean over what was before.
    """
    before = [watts for at_s, watts in readings if start_s - IDLE_S / 2 <= at_s < start_s]
    middle_s = (start_s + end_s) / 2
    plateau = [watts for at_s, watts in readings if middle_s <= at_s < end_s]
    if not before or not plateau:
        return {}
    low, high = median(before), median(plateau)
    if high <= low:
        return {}

    def passed(part):
        level = low + part * (high - low)
        return next(at_s for at_s, watts in readings if at_s >= start_s and watts >= level)

    return {
        "idle_w": low,
        "plateau_w": high,
        "lag_s": passed(0.5) - start_s,
        "rise_s": passed(0.9) - passed(0.1),
    }


def side_by_side(kernel, windows_s, cells, left_s, bus_id=None):
    """Yield the energy of the kernel by every meter, for one length of time after another.

    Args:
        kernel: runs so many seconds of steps to their end, and returns how many those were.
        windows_s: how long.
        cells: of the grid.
        left_s: how much time there is still, s.
    """
    for seconds in windows_s:
        if left_s() < seconds + 2 * IDLE_S:
            yield {"seconds": seconds, "skipped": "no time left"}
            continue
        with Meters(bus_id) as meters:
            idle = min(IDLE_S, max(seconds, 0.2))
            time.sleep(idle)
            start_s = time.time()
            steps = kernel(seconds)
            end_s = time.time()
            time.sleep(min(1.0, idle))  # what sensors bring late
        yield {
            "seconds": end_s - start_s,
            "steps": steps,
            "gcells_s": steps * cells / 1e9 / (end_s - start_s),
            "meters": meters.per_update(start_s, end_s, steps * cells),
            "rise": {
                name: rise(curve, start_s, end_s)
                for name, curve in (meters.nvml.curves() | meters.smi.curves()).items()
            },
            "curves": meters.curves(start_s - idle, end_s + idle),
        }


def on_ranks(job, cells, left_s, bus_id=None):
    """Yield the power and the energy of the job on more and more ranks.

    Args:
        job: runs it on so many ranks, and returns at which times which steps were done.
        cells: of the grid.
        left_s: how much time there is still, s.
    """
    for ranks in RANKS:
        row = {"ranks": ranks}
        if left_s() < RANKS_S:
            yield row | {"skipped": "no time left"}
            continue
        with Meters(bus_id) as meters:
            begun_s = time.time()
            try:
                marks = job(ranks)
            except RuntimeError as error:
                yield row | {"skipped": str(error)}
                continue
        (first, start_s), (last, end_s) = marks[0], marks[-1]
        if last == first:
            yield row | {"skipped": "too few steps"}
            continue
        yield row | {
            "seconds": end_s - start_s,
            "meters": meters.per_update(start_s, end_s, (last - first) * cells),
            "curves": meters.curves(begun_s, end_s),
        }


def plot(found, name, path):
    """Draw P(t) into a file; return its name, or why not."""
    if find_spec("matplotlib") is None:
        return "no matplotlib here: the curves are in the JSON"
    import gpu_plot

    gpu_plot.draw(found, name, path)
    return path.name


class Steps:
    """Steps of the paper's job in this process: its kernels and halo, without MPI."""

    def __init__(self, session):
        from mpdata.grid import fill_halo

        self.fill_halo, self.synchronize = fill_halo, session.cupy.cuda.Device().synchronize
        self.block = session.bench.rough_block(session.cupy, session.grid, "f8")
        self.stepper = session.bench.stepper_on(self.block, "auto", session.tuned)
        self.psi, self.out = self.block.psi, self.block.allocate()
        self.run(0)  # compiled, and all memory touched

    def step(self):
        self.fill_halo(self.psi, self.block.geo)
        self.stepper.advance(self.psi, self.out, self.block.C)
        self.psi, self.out = self.out, self.psi

    def marked(self, steps):
        """Make so many steps; return the time of day after each tenth of them."""
        marks = []
        for done in range(1, steps + 1):
            self.step()
            if done * 10 // steps > (done - 1) * 10 // steps:
                self.synchronize()
                marks.append((done, time.time()))
        return marks

    def run(self, seconds):
        """Make steps for so long, at least one; return how many those were."""
        until, steps, some = time.monotonic() + seconds, 0, 1
        while True:
            begun = time.monotonic()
            for _ in range(some):
                self.step()
            self.synchronize()
            steps += some
            now = time.monotonic()
            if now >= until:
                return steps
            # As many as take a twentieth of a second, so that the GPU is hardly ever idle.
            least = min(0.05, until - now)
            some = max(1, int(some * least / max(now - begun, 1e-6)))
