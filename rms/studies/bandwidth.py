"""Memory bandwidth that a process of a program asks for: ``rms profile --bandwidth``.

Copies of the program run side by side on the cores of this machine, one a core, and one copy beside
probes, which alone measure the bandwidth of the machine. All cases run in rounds, one after the
other, so that other work on the machine affects all alike; errors are from round to round.

The model is that of :mod:`rms.core.model.contention`: as long as the demand of all processes is
below the capacity, none is slowed; else all are, by the demand over the capacity. So with C the
capacity, p the rate of a probe alone, r that beside a copy, and k probes, the demand of a copy is
C p / r - k p; that of n copies that take T(n) is C T(n) / (n T(1)) per copy. If none is slowed,
these are upper bounds. A slowdown of copies but not of the probes beside them (shared caches,
threads of one core) is not due to bandwidth.

A probe is this module as a program: ``python -m rms.studies.bandwidth MIB FILE`` moves data until
its end. It computes a = a + s b over two arrays beyond the caches, as STREAM's triad, in blocks
that stay in a cache with the values between its two operations. The sum replaces a, so no line is
fetched only to be overwritten: exactly 24 bytes an element are moved. Ten times a second a line in
the file has the time, the processor time and the number of bytes so far, as waiting for a processor
is not waiting for memory.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from rms.client.commands import jobs, script_of, submit
from rms.client.connection import ask
from rms.core.model.jobs import Mode
from rms.formats.profiles import Bandwidth, SideBySide
from rms.studies.profile import LOOK_S, RESIZE_S, ProfilingError, ProfilingSetup
from rms.wire.users import OVER, JobIds, JobRow, JobSelection, Options

ROUNDS = 5
PROBE_S = 1.0
"""Run time of probes without copies."""

SHORTEST_S = 1.0
"""The least run time of a command: shorter runs are mostly start and end, with too few reports."""

SLOWED = 0.02
"""The least slowdown that counts, however small the errors."""

ERRORS = 2.0
"""The least difference that counts, and the margin of an upper bound, in standard errors."""

ROUNDING = 1e-9
"""Relative difference of an estimate and a bound that is due to rounding."""

Case = tuple[int, int]
"""The numbers of copies and of probes."""

ALONE = 0.9
"""A probe with a smaller share of its core does not have it alone."""

Ran = tuple[float, float, float]
"""Run time of a copy, GB/s of a probe, and the probe's share of its core."""

Round = Mapping[Case, Ran]
"""The results of one round by case."""


# --- Measuring ------------------------------------------------------------------------------------


def doublings(most: int) -> list[int]:
    """Return 1, 2, 4, ... and the most itself."""
    return sorted({most, *(1 << k for k in range(most.bit_length()))}) if most > 0 else []


def cases(cores: int) -> list[Case]:
    """Return the cases of a round."""
    alone = [(0, k) for k in doublings(cores)]
    copies = [(n, 0) for n in doublings(cores)]
    beside = [(1, k) for k in doublings(cores - 1)]
    return [*alone, *copies, *beside]


def measure(setup: ProfilingSetup) -> Bandwidth:
    """Run copies and probes on the cores of the setup's largest size."""
    cores, rounds = setup.sizes[-1], max(ROUNDS, setup.repeat)
    measured: list[Round] = []
    with setup.daemon("bandwidth") as server:
        took_s, _, _ = _run(setup, server, (1, 0))  # a warm-up
        if took_s < SHORTEST_S:
            raise ProfilingError(
                f"expected a command that takes at least {SHORTEST_S:g} s with --bandwidth, got "
                f"one that takes {took_s:.2g} s"
            )
        for number in range(rounds):
            setup.say(f"bandwidth, round {number + 1} of {rounds} ...")
            measured.append({case: _run(setup, server, case) for case in cases(cores)})
    return estimate(measured)


def _run(setup: ProfilingSetup, server: str, case: Case) -> Ran:
    """Run copies beside probes; return their means."""
    copies, probes = case
    started = list(_start_probes(setup, server, probes))
    begin_s = time.time()
    if copies:
        rows = _run_copies(setup, server, copies)
        begin_s = max(row.start_s or row.submit_s for row in rows)
        end_s = min(row.end_s or row.submit_s for row in rows)
        took_s = fmean([(row.end_s or 0.0) - (row.start_s or 0.0) for row in rows])
    else:
        time.sleep(PROBE_S)
        end_s, took_s = time.time(), 0.0
    rates = [rate(path.read_text(), begin_s, end_s) for _, path in started]
    for job, _ in started:
        ask(JobIds, server, "POST", "/cancel", JobSelection(job))
    for job, path in started:
        _over(server, [job])
        path.unlink()
    moved = [rate for rate in rates if rate is not None]
    if len(moved) < len(rates):
        raise ProfilingError("expected probes of memory bandwidth to run all the time, got silence")
    if not moved:
        return took_s, 0.0, 1.0
    return took_s, fmean([gb_s for gb_s, _ in moved]), fmean([share for _, share in moved])


def _start_probes(setup: ProfilingSetup, server: str, number: int) -> Iterator[tuple[str, Path]]:
    """Start probes; yield their jobs and files once all have begun."""
    folder = (setup.folder / "bandwidth").absolute()
    mib, paths, ids = arrays_mib(max(1, number)), [], []
    for at in range(number):
        path = folder / f"probe-{at + 1}"
        path.unlink(missing_ok=True)
        words = [sys.executable, "-P", "-m", "rms.studies.bandwidth", str(mib), str(path)]
        text = f"#!/bin/sh\nexec {shlex.join(words)}\n"
        options = Options(nodes=(1, 1), mode=Mode.FIXED, output=f"{folder}/probe-{at + 1}.out")
        ids += submit(server, text, "probe", options, setup.env).ids
        paths.append(path)
    until = time.monotonic() + RESIZE_S
    while not all(path.exists() and path.stat().st_size for path in paths):
        if time.monotonic() > until or any(row.state in OVER for row in _rows(server, ids)):
            raise ProfilingError(
                f"expected probes of memory bandwidth to run, got none; see {folder}/probe-*.out"
            )
        time.sleep(LOOK_S)
    yield from zip(ids, paths, strict=True)


def _run_copies(setup: ProfilingSetup, server: str, number: int) -> list[JobRow]:
    """Run copies of the command to their ends; return their jobs."""
    output = str((setup.folder / "bandwidth" / "copy-%A-%a.out").absolute())
    options = Options(nodes=(1, 1), mode=Mode.FIXED, array=f"1-{number}", output=output)
    text = script_of(setup.command)
    rows = _over(server, submit(server, text, "copy", options, setup.env).ids)
    for row in rows:
        if row.state != "COMPLETED":
            raise ProfilingError(
                f"expected {number} copies of the command to end with status 0, got {row.state}; "
                f"its output is in {row.output}"
            )
    return rows


def _over(server: str, ids: Sequence[str]) -> list[JobRow]:
    while True:
        rows = _rows(server, ids)
        if all(row.state in OVER for row in rows):
            return rows
        time.sleep(LOOK_S)


def _rows(server: str, ids: Sequence[str]) -> list[JobRow]:
    return [row for row in jobs(server) if row.id in ids]


# --- Estimates ------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Value:
        """Return the mean of rounds."""
        spread = stdev(values) if len(values) > 1 else 0.0
        return cls(fmean(values), spread / sqrt(len(values)))

    @property
    def above(self) -> float:
        """Its upper bound, by its error."""
        return max(0.0, self.mean) + ERRORS * self.error

    def exceeds(self, other: float, least: float = 0.0) -> bool:
        """Return whether it is more than another value, by its error and by ``least``."""
        return self.mean - other > max(ERRORS * self.error, least)


def estimate(rounds: Sequence[Round]) -> Bandwidth:
    """Return the demand of a process and the capacity of a node, by the model of the module."""
    alone = sorted(k for n, k in rounds[0] if n == 0)
    probe = Value.of([case[0, 1][1] for case in rounds])
    totals = {k: Value.of([k * case[0, k][1] for case in rounds]) for k in alone}
    best = max(alone, key=lambda k: totals[k].mean)
    limits = {  # numbers of probes that slow one another: their demand is above the capacity
        k
        for k in alone
        if k > 1 and Value.of([r[0, 1][1] / r[0, k][1] for r in rounds]).exceeds(1.0, SLOWED)
    }
    estimates, most, notes = [], [probe.above], []
    for copies, probes in rounds[0]:
        if not copies or copies + probes == 1 or not limits:
            continue
        capacity = probes if probes in limits else best
        pairs = [_process(case, copies, probes, capacity) for case in rounds]
        value, slowed = Value.of([v for v, _ in pairs]), Value.of([s for _, s in pairs])
        if slowed.exceeds(1.0, SLOWED) and value.exceeds(0.0):
            estimates.append(value)
        else:
            most.append(value.above)
    bound = min(most)
    kept = [v for v in estimates if (1.0 - ROUNDING) * v.mean - ERRORS * v.error <= bound]
    slow = [
        n
        for n, _ in rounds[0]
        if n > 1 and Value.of([r[n, 0][0] / r[1, 0][0] for r in rounds]).exceeds(1.0, SLOWED)
    ]
    if slow and (len(kept) < len(estimates) or not limits):
        notes.append(
            "copies slow one another by more than memory bandwidth can: caches or cores are shared"
        )
    if not limits:
        notes.append("probes on all cores do not slow one another: no contention can be seen")
    shares = [ran[2] for results in rounds for (_, probes), ran in results.items() if probes]
    if fmean(shares) < ALONE:
        notes.append(
            f"others used these cores too, probes had {100 * fmean(shares):.0f} % of theirs: "
            "measure again when nobody does"
        )
    process = _combined(kept)
    return Bandwidth(
        process_gb_s=bound if process is None else process.mean,
        process_error_gb_s=0.0 if process is None else process.error,
        process_at_most=process is None,
        node_gb_s=totals[best].mean,
        node_error_gb_s=totals[best].error,
        node_at_least=not limits,
        probe_gb_s=probe.mean,
        rounds=len(rounds),
        runs=tuple(
            SideBySide(*case, *(fmean([ran[case][at] for ran in rounds]) for at in (0, 1)))
            for case in rounds[0]
        ),
        notes=tuple(notes),
    )


def _process(case: Round, copies: int, probes: int, capacity: int) -> tuple[float, float]:
    """Return the demand of a process by one round, GB/s, and the slowdown behind it.

    So many probes as ``capacity`` measure the capacity of the node.
    """
    capacity_gb_s, alone = capacity * case[0, capacity][1], case[0, 1][1]
    if not probes:
        slowed = case[copies, 0][0] / case[1, 0][0]
        return capacity_gb_s * slowed / copies, slowed
    slowed = alone / case[copies, probes][1]
    return capacity_gb_s * slowed - probes * alone, slowed


def _combined(values: Sequence[Value]) -> Value | None:
    """Return the mean of estimates, weighted by their errors.

    If they differ by more than their errors, the error is that of their differences.
    """
    if not values:
        return None
    weights = [1.0 / max(value.error, 1e-3 * value.mean) ** 2 for value in values]
    mean = sum(w * v.mean for w, v in zip(weights, values, strict=True)) / sum(weights)
    error = 1.0 / sqrt(sum(weights))
    if len(values) > 1:
        off = sum(w * (v.mean - mean) ** 2 for w, v in zip(weights, values, strict=True))
        error *= max(1.0, sqrt(off / (len(values) - 1)))
    return Value(mean, error)


# --- The probe ------------------------------------------------------------------------------------

BLOCK = 1 << 14
"""Elements of a block: 128 KiB of an array."""

TELL_S = 0.1
BYTES = 24
"""Bytes moved per element: two values are read, one is written."""

LEAST_MIB = 32


def last_level_mib(cpus: Path = Path("/sys/devices/system/cpu")) -> float:
    """Return the size of all caches of the last level, MiB; 0 if the kernel states none."""
    caches: dict[str, tuple[int, float]] = {}
    for cache in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level = int((cache / "level").read_text())
            size = (cache / "size").read_text().strip()
            caches[f"{level} {(cache / 'shared_cpu_list').read_text()}"] = level, _mib(size)
        except (OSError, ValueError):
            continue
    last = max((level for level, _ in caches.values()), default=0)
    return sum(mib for level, mib in caches.values() if level == last)


def _mib(size: str) -> float:
    return float(size[:-1]) * {"K": 2.0**-10, "M": 1.0, "G": 2.0**10}[size[-1]]


def arrays_mib(probes: int) -> int:
    """Return the size of an array of a probe, in MiB.

    All together are four times the caches, but at most a quarter of the free memory.
    """
    free_mib = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    wanted = max(LEAST_MIB, 4.0 * last_level_mib() / probes)
    return max(1, int(min(wanted, free_mib / 4 / probes)))


def rate(lines: str, begin_s: float, end_s: float) -> tuple[float, float] | None:
    """Return the rate of a probe in a span of time, GB/s of processor time, and its share of that.

    The last line may be incomplete. None with fewer than two reports.
    """
    reports = [[float(word) for word in line.split()] for line in lines.split("\n")[:-1]]
    inside = [line for line in reports if begin_s <= line[0] <= end_s]
    if len(inside) < 2:
        return None
    span_s, taken_s, moved = (b - a for a, b in zip(inside[0], inside[-1], strict=True))
    return moved / taken_s / 1e9, taken_s / span_s


def main(argv: list[str]) -> int:
    """Move data until the process is ended."""
    mib, path = int(argv[0]), Path(argv[1])
    elements = max(BLOCK, mib * 2**20 // 16)
    a, b, between = np.ones(elements), np.ones(elements), np.empty(BLOCK)
    ends = range(BLOCK, elements + 1, BLOCK)
    blocks = [(a[end - BLOCK : end], b[end - BLOCK : end]) for end in ends]
    moved, due_s = 0, 0.0
    with path.open("w", buffering=1) as file:
        while True:
            for of_a, of_b in blocks:
                np.multiply(of_b, 0.5, out=between)
                np.add(of_a, between, out=of_a)
                moved += BLOCK * BYTES
                now_s = time.time()
                if now_s >= due_s:
                    file.write(f"{now_s:.6f} {time.process_time():.6f} {moved}\n")
                    due_s = now_s + TELL_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
