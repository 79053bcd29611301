"""``rms reproduce varysched``: statements of Süß et al. on strategies, and the simulated values.

The tasks of both applications on the three devices of a Jetson TK1, under all strategies and
governors, by the scheduler that decides live (section 5). The paper prints no run times of its
kernels. Six were chosen so that its text holds, so what depends on them is ``fitted``, and
:func:`moved` counts how often the text still holds with other run times. Table 1 and figures 12
and 14 (section 6) are simulated on the same devices.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rms.kernels.model import (
    Affinity,
    Governor,
    GovernorSet,
    KernelSpec,
    Resource,
    TaskDevice,
    TaskEvent,
    TaskFinished,
    TaskId,
    TaskRegistered,
    TaskRun,
    TaskSpec,
    Woken,
)
from rms.kernels.scheduler import (
    STRATEGIES,
    Banking,
    Constraint,
    LongTerm,
    ShortTerm,
    Strategy,
    TaskScheduler,
)
from rms.plots import Panel, draw_panels
from rms.studies import experiment
from rms.studies.experiment import Data, Result, StudyReport
from rms.wire.terminal import columns

# --- Tasks on the devices of one machine, on a virtual clock --------------------------------------

DEVICES = (
    TaskDevice("gpu", Resource.GPU, (0,)),
    TaskDevice("cores", Resource.CORES, (1,)),
    TaskDevice("core", Resource.CORE, (2,)),
)
AFFINITIES = (Affinity.HIGH, Affinity.MED, Affinity.LOW)
NAMES = tuple(device.name for device in DEVICES)


@dataclass(frozen=True)
class SimulatedTasks:
    """The result of one simulation; times in s.

    Attributes:
        makespan_s: from the registration of all tasks to the end of the last one.
        median_s: median run time of a kernel.
        tasks: number of tasks by device.
        last: device of the task that ended last.
        spans: intervals with the same devices in use, and these devices, in order.
    """

    makespan_s: float
    median_s: float
    tasks: Mapping[str, int]
    last: str
    spans: Sequence[tuple[float, tuple[str, ...]]]

    @property
    def together(self) -> int:
        """Largest number of devices in use at once."""
        return max(len(devices) for _, devices in self.spans)


def simulate(
    strategy: Strategy,
    governor: Governor,
    allowed: Sequence[Collection[str]],
    times: Mapping[str, float],
    machine: Mapping[str, Any],
    *,
    exact: bool = False,
) -> SimulatedTasks:
    """Run tasks, all registered at time 0, to their end.

    Kernels on the CPU share its cores: where they keep more of them busy than there are, they run
    slower, in equal proportion. A kernel on the GPU is not slowed down.

    Args:
        allowed: the devices of :data:`NAMES` that a task has kernels for, task by task.
        times: run time alone by device, in s.
        machine: ``cores``, their number, and ``host``, the busy ones of a kernel by device.
        exact: the scheduler has the run times.
    """
    scheduler, now_s = TaskScheduler(DEVICES, strategy), 0.0
    left, begun, running = dict[TaskId, float](), dict[TaskId, float](), dict[TaskId, str]()
    runs, count, last = list[float](), dict[str, int](), ""
    spans: list[tuple[float, tuple[str, ...]]] = []

    def feed(event: TaskEvent) -> None:
        for decision in scheduler.handle(event):
            if isinstance(decision, TaskRun):
                device = decision.device
                left[decision.task], begun[decision.task] = times[device], now_s
                running[decision.task] = device
                count[device] = count.get(device, 0) + 1

    kernels = {
        device.name: KernelSpec(device.resource, affinity, times[device.name] if exact else 0.0)
        for device, affinity in zip(DEVICES, AFFINITIES, strict=True)
    }
    specs = {
        names: TaskSpec(0, tuple(kernels[name] for name in NAMES if name in names))
        for names in map(frozenset, allowed)
    }
    for number, names in enumerate(allowed):
        scheduler.apply(TaskRegistered(0.0, TaskId(number), specs[frozenset(names)]))
    feed(GovernorSet(0.0, governor))
    while scheduler.state.tasks:
        busy = sum(machine["host"][device] for device in running.values())
        share = min(1.0, machine["cores"] / busy) if busy else 1.0
        rates = {task: 1.0 if device == "gpu" else share for task, device in running.items()}
        ends = {task: now_s + left[task] / rates[task] for task in running}
        first = min(ends, key=ends.__getitem__, default=None)
        wake_s = scheduler.wake_s
        then_s = ends[first] if first is not None else wake_s
        if then_s is None or (wake_s is not None and wake_s < then_s):
            assert wake_s is not None, "tasks wait, and no event is to come"
            first, then_s = None, wake_s
        spans.append((then_s - now_s, tuple(running.values())))
        for task in running:
            left[task] -= rates[task] * (then_s - now_s)
        now_s = then_s
        if first is None:
            feed(Woken(now_s))
        else:
            last = running.pop(first)
            runs.append(now_s - begun[first])
            feed(TaskFinished(now_s, first))
    return SimulatedTasks(now_s, median(runs), count, last, spans)


# --- The study ------------------------------------------------------------------------------------

ENERGY = (("system_j", 0), ("application_j", 0), ("mean_w", 1), ("time_s", 0))
"""Columns of table 1, and their decimals; the paper prints all but the time."""

VARIANTS: Mapping[str, Strategy] = {
    "long-term, run times known": LongTerm(),
    "constraint, 9 credits pay for the GPU": Constraint(gpu_when_low=True),
}
Results = Mapping[tuple[str, Governor, str], SimulatedTasks]
"""Outcomes by application, governor and strategy."""

Energy = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Values of table 1 by column, side (``paper`` or ``ours``) and quantity."""

Saving = Mapping[str, Mapping[str, Sequence[float]]]
"""Lists over the numbers of jobs (figure 12) by the title of the run times."""

BANKING_TERMS = ("most", "every_s", "refill high", "refill low", *NAMES)

HIGH, LOW = Governor.HIGH, Governor.LOW
SHORT, LONG, BANKING, CONSTRAINT = STRATEGIES


def varysched(figures: Path | None) -> Result:
    """Run the study; draw figures 6 to 9, 12 and 14 in a folder, if there is one."""
    data = experiment.settings("varysched")
    results = outcomes(data, {**STRATEGIES, **VARIANTS})
    energy, shares, hashes = _energy(data["table1"]), saving(data), hash_rates(data)
    values = _of_strategies(results) | _inputs(data, results) | _of_energy(data, energy)
    values |= _of_saving(data, shares) | _of_hashes(hashes)
    report = StudyReport("varysched", values)
    kept, numbers = moved(data, report.rows), instances(data)
    result = {
        "values": values,
        "rows": _rows(results, energy),
        "table1": energy,
        "figure12": shares,
        "figure14": hashes,
        "moved": kept,
        "instances": numbers,
        "times_s": data["applications"],
        "notes": data["notes"],
    }
    parts = (
        *(_print_outcomes(name, results) for name in data["applications"]),
        data["notes"],
        _print_moved(data, kept),
        _print_instances(numbers),
        [*_print_energy(energy), *data["energy_notes"]],
        _print_saving(shares),
        _print_hashes(hashes),
    )

    def draw(folder: Path) -> None:
        _draw(data["applications"], results, folder)
        _draw_section_6(shares, hashes, folder)

    return report.result(result, parts, draw, figures)


def outcomes(
    data: Data,
    strategies: Mapping[str, Strategy],
    factors: Mapping[tuple[str, str], float] | None = None,
) -> dict[tuple[str, Governor, str], SimulatedTasks]:
    """Run both applications under all strategies and governors.

    Args:
        strategies: by title; those with "known" in the title have the run times.
        factors: multipliers of run times by application and device.
    """
    results = {}
    for name, application in data["applications"].items():
        times = {
            device: application[f"{device}_s"] * (factors[name, device] if factors else 1.0)
            for device in NAMES
        }
        allowed = [NAMES] * application["instances"]
        for governor in Governor:
            for title, strategy in strategies.items():
                results[name, governor, title] = simulate(
                    strategy, governor, allowed, times, data, exact="known" in title
                )
    return results


def _of_strategies(results: Results) -> dict[str, float]:
    names = list(dict.fromkeys(name for name, *_ in results))

    def makespans(name: str, governor: Governor) -> dict[str, float]:
        return {title: results[name, governor, title].makespan_s for title in STRATEGIES}

    def worst(name: str, governor: Governor, title: str) -> float:
        """Return a strategy's makespan over the longest of the others."""
        times = makespans(name, governor)
        return times.pop(title) / max(times.values())

    spreads = {
        (name, governor): max(times.values()) / min(times.values())
        for name in names
        for governor in Governor
        for times in [makespans(name, governor)]
    }
    values = {
        "largest factor": max(spreads.values()),
        "matmul high longest over shortest": spreads["matmul", HIGH],
        "matmul high long-term over next": worst("matmul", HIGH, LONG),
        "lama high long-term over next": worst("lama", HIGH, LONG),
        "lama low long-term over next": worst("lama", LOW, LONG),
    }
    low = makespans("matmul", LOW)
    for words in ("over", "like"):
        values[f"matmul low long-term {words} constraint"] = low[LONG] / low[CONSTRAINT]
    low = makespans("lama", LOW)
    values["lama low constraint over banking"] = low[CONSTRAINT] / low[BANKING]
    for name in names:
        for title in STRATEGIES:
            before, after = (results[name, governor, title] for governor in (HIGH, LOW))
            values[f"{name} {title} makespan"] = after.makespan_s / before.makespan_s
            values[f"{name} {title} median"] = after.median_s / before.median_s
    others = [values[f"lama {title} makespan"] for title in STRATEGIES if title != CONSTRAINT]
    values["lama constraint makespan over next"] = values["lama constraint makespan"] / max(others)
    values["lama medians that vary"] = float(
        sum(abs(values[f"lama {title} median"] - 1.0) > 0.01 for title in STRATEGIES)
    )
    return values


def _inputs(data: Data, results: Results) -> dict[str, float]:
    """Return the values of the statements of sections 4 and 5 on inputs and decisions, by key."""
    banking, constraint = Banking(), Constraint()
    matmul, last = data["applications"]["matmul"], results["matmul", HIGH, LONG].last
    values = {
        **{f"banking {name}": getattr(banking, name.replace(" ", "_")) for name in BANKING_TERMS},
        **{f"constraint {device}": getattr(constraint, device) for device in NAMES},
        "constraint limit high": constraint.limit_high,
        "constraint limit low": constraint.limit_low,
        "constraint low cores at once": constraint.limit_low // constraint.core,
        "banking gpu and cores": banking.gpu + banking.cores,
        "banking cores and core": banking.cores + banking.core,
        "tk1 cores": float(data["cores"]),
        "tk1 cores of a gpu kernel": float(data["host"]["gpu"]),
        "long-term low gpu": float(results["matmul", LOW, LONG].tasks.get("gpu", 0)),
        "constraint low gpu": float(results["matmul", LOW, CONSTRAINT].tasks.get("gpu", 0)),
        **{
            f"constraint {governor} devices": float(
                results["matmul", governor, CONSTRAINT].together
            )
            for governor in Governor
        },
        "matmul high long-term last rank": float(
            sorted(NAMES, key=lambda name: matmul[f"{name}_s"]).index(last) + 1
        ),
    }
    for name in data["applications"]:
        values[f"{name} tasks"] = float(sum(results[name, HIGH, SHORT].tasks.values()))
    values["lama tasks of section 5"] = values["lama tasks of figure 8"] = values["lama tasks"]
    for governor in Governor:
        credits_ = (
            sum(getattr(constraint, device) for device in devices)
            for name in data["applications"]
            for _, devices in results[name, governor, CONSTRAINT].spans
        )
        values[f"constraint {governor} credits"] = max(credits_)
    return values


def moved(data: Data, compared: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Multiply the six run times by random factors and count the statements that still hold.

    Returns:
        By change in per cent, numbers of draws in which the statements of figures 6 to 9 that hold
        with the chosen run times still hold: ``all``, all with a range (``orderings``), and
        every one by itself (``alone``).
    """
    holding = {row["key"] for row in compared if row["status"] in ("met", "fitted")}
    keys = set(_of_strategies(outcomes(data, STRATEGIES))) & holding
    stated = [entry for entry in experiment.statements("varysched") if entry.key in keys]
    orderings = {entry.key for entry in stated if isinstance(entry.paper, tuple)}
    every = [(pct, draw) for pct in data["moved"]["pct"] for draw in range(data["moved"]["draws"])]

    def held(draw: tuple[float, int]) -> set[str]:
        return _held(data, stated, *draw)

    by_draw = dict(experiment.run_all(held, every, os.cpu_count() or 1))
    counted = {}
    for pct in data["moved"]["pct"]:
        draws = [keys for (own, _), keys in by_draw.items() if own == pct]
        counted[f"{pct}"] = {
            "all": sum(len(keys) == len(stated) for keys in draws),
            "orderings": sum(orderings <= keys for keys in draws),
            "alone": {
                f"{entry.where}, {entry.says}": sum(entry.key in keys for keys in draws)
                for entry in stated
            },
        }
    return counted


def _held(data: Data, stated: Sequence[experiment.Statement], pct: float, seed: int) -> set[str]:
    """Return the keys of the statements that hold in one draw, by its largest change and seed."""
    random = Random(seed)
    factors = {
        (name, device): 1.0 + random.uniform(-pct, pct) / 100.0
        for name in data["applications"]
        for device in NAMES
    }
    values = _of_strategies(outcomes(data, STRATEGIES, factors))
    return {
        entry.key
        for entry in stated
        if not entry.computed(values[entry.key]).startswith("missed by ")
    }


def instances(data: Data) -> dict[str, dict[str, float]]:
    """Return the published factors of LAMA by number of instances.

    The paper states 25 in section 4.5, 24 in section 5, and 100 below figure 8.
    """
    by_number = {}
    for number in (25, 24, 100):
        every = data["applications"]
        changed = {"applications": every | {"lama": every["lama"] | {"instances": number}}}
        values = _of_strategies(outcomes({**data, **changed}, STRATEGIES))
        by_number[f"{number}"] = {
            "constraint over banking, low": values["lama low constraint over banking"],
            "constraint, low over high": values["lama constraint makespan"],
            "long-term over the next, low": values["lama low long-term over next"],
        }
    return by_number


def _energy(data: Data) -> dict[str, dict[str, dict[str, float]]]:
    """Return table 1: energy, mean power and time of ten runs by column.

    Where all runs are on one device the time is the paper's, total energy over mean power, and
    the powers in ``data`` are fitted to these columns. The other columns are checks: of the power
    model (GPU and 2 cores, whose time is the paper's too), and of the scheduler (VarySched).
    """
    columns_ = data["columns"]
    time_s = {name: column["system_j"] / column["mean_w"] for name, column in columns_.items()}
    ran = simulate(ShortTerm(), HIGH, [NAMES] * data["runs"], cg_times(data), data)
    energy = {}
    for name, column in columns_.items():
        spans = [(time_s[name], tuple(column["runs_on"]))] if column["runs_on"] else ran.spans
        ours_s = sum(span_s for span_s, _ in spans)
        busy_j = sum(span_s * _busy_w(data, devices) for span_s, devices in spans)
        ours = {
            "system_j": busy_j + ours_s * data["idle_w"],
            "application_j": busy_j,
            "mean_w": busy_j / ours_s + data["idle_w"],
            "time_s": ours_s,
            "peak_w": data["idle_w"] + max(_busy_w(data, devices) for _, devices in spans),
        }
        energy[name] = {
            "paper": {key: column.get(key, time_s[name]) for key, _ in ENERGY},
            "ours": ours,
        }
    return energy


def cg_times(data: Data) -> dict[str, float]:
    """Return the run time of a CG of table 1 by device: energy over mean power, in s."""
    return {
        column["runs_on"][0]: column["system_j"] / column["mean_w"] / data["runs"]
        for column in data["columns"].values()
        if len(column["runs_on"]) == 1
    }


def _busy_w(data: Data, devices: Sequence[str]) -> float:
    """Return the power of devices in use above the idle power of the machine of table 1, in W."""
    threads = min(data["cores"], sum(data["host"][device] for device in devices))
    gpu_w: float = data["gpu_w"] if "gpu" in devices else 0.0
    cpu_w: float = data["cpu_w"] + data["thread_w"] * threads if threads else 0.0
    return cpu_w + gpu_w


def _of_energy(data: Data, energy: Energy) -> dict[str, float]:
    ours = {name: column["ours"] for name, column in energy.items()}
    values = {
        f"table 1 {name} {key}": column[key] for name, column in ours.items() for key, _ in ENERGY
    }
    own = ours.pop("VarySched")
    for key in ("system_j", "time_s"):
        least = min(column[key] for column in ours.values())
        values[f"table 1 VarySched over least {key}"] = own[key] / least
    peak_w = max(column["peak_w"] for column in ours.values())
    values["table 1 VarySched over greatest peak_w"] = own["peak_w"] / peak_w
    values["table 1 VarySched over GPU and 2 cores application_j"] = (
        own["application_j"] / ours["GPU and 2 cores"]["application_j"]
    )
    table1 = data["table1"]
    values |= {f"table 1 {key}": float(table1[key]) for key in ("runs", "cores", "idle_w", "gpu_w")}
    return values


def saving(data: Data) -> dict[str, dict[str, list[float]]]:
    """Return times of many jobs one after the other and beside one another, by run times.

    One after the other a job has the fastest device. Beside one another 70 % of the jobs have the
    GPU, 25 % the cores and 5 % one core, as in the paper; with ``free``, short-term chooses.
    """
    machine = data["figure12"]
    every = dict(machine["times"]) | {"CG of table 1": cg_times(data["table1"])}
    by_times = {}
    for title, times in every.items():
        lists: dict[str, list[float]] = {"jobs": [], "sequential": [], "shares": [], "free": []}
        for jobs in machine["jobs"]:
            shares = [
                (device,)
                for device, share in machine["shares"].items()
                for _ in range(round(share * jobs))
            ]
            lists["jobs"].append(jobs)
            lists["sequential"].append(jobs * min(times.values()))
            for name, allowed in (("shares", shares), ("free", [NAMES] * jobs)):
                ran = simulate(ShortTerm(), HIGH, allowed, times, machine)
                lists[name].append(ran.makespan_s)
        by_times[title] = lists
    return by_times


def _of_saving(data: Data, by_times: Saving) -> dict[str, float]:
    machine = data["figure12"]
    lists = by_times[next(iter(machine["times"]))]
    saved = [a - b for a, b in zip(lists["sequential"], lists["shares"], strict=True)]
    return {
        "figure 12 threads": float(machine["host"]["cores"]),
        **{f"figure 12 {name}": 100.0 * share for name, share in machine["shares"].items()},
        "figure 12 least rise": min(b / a for a, b in pairwise(lists["shares"])),
        "figure 12 longest over sequential": max(
            b / a for a, b in zip(lists["sequential"], lists["shares"], strict=True)
        ),
        "figure 12 least rise of saving": min(b / a for a, b in pairwise(saved)),
    }


def hash_rates(data: Data) -> dict[str, list[float]]:
    """Return hashes/s of a CPU, a GPU and both under short-term, the CPU's alone being 1.

    They are lists over the assumed ratios of the GPU's rate to the CPU's.
    """
    machine = data["figure14"]
    by_device: dict[str, list[float]] = {"gpu_over_cpu": [], "cpu": [], "gpu": [], "both": []}
    for ratio in machine["gpu_over_cpu"]:
        times = {"gpu": 1.0 / ratio, "cores": 1.0}
        by_device["gpu_over_cpu"].append(ratio)
        for name, devices in (("cpu", ("cores",)), ("gpu", ("gpu",)), ("both", ("gpu", "cores"))):
            ran = simulate(ShortTerm(), HIGH, [devices] * machine["tasks"], times, machine)
            by_device[name].append(machine["tasks"] / ran.makespan_s)
    return by_device


def _of_hashes(by_device: Mapping[str, Sequence[float]]) -> dict[str, float]:
    every = list(zip(by_device["cpu"], by_device["gpu"], by_device["both"], strict=True))
    return {
        "figure 14 least both over sum": min(both / (cpu + gpu) for cpu, gpu, both in every),
        "figure 14 greatest both over sum": max(both / (cpu + gpu) for cpu, gpu, both in every),
        "figure 14 longest over faster": max(max(cpu, gpu) / both for cpu, gpu, both in every),
    }


# --- Tables and figures ---------------------------------------------------------------------------


def _rows(results: Results, energy: Energy) -> list[dict[str, Any]]:
    rows = []
    for (name, governor, title), outcome in results.items():
        ours = {"makespan_s": outcome.makespan_s, "median_s": outcome.median_s}
        case = f"{name}, governor {governor}"
        rows.append(experiment.row(case, title, ours, tasks=outcome.tasks))
    for mode, both in energy.items():
        ours = {column: both["ours"][column] for column in both["paper"]}
        rows.append(experiment.row("table 1", mode, ours, both["paper"]))
    return rows


def _print_outcomes(name: str, results: Results) -> list[str]:
    cells = []
    for title in {**STRATEGIES, **VARIANTS}:
        both = [results[name, governor, title] for governor in Governor]
        cells.append(
            [
                title,
                *(f"{outcome.makespan_s:.0f} s" for outcome in both),
                *(f"{outcome.median_s:.1f} s" for outcome in both),
                *(" ".join(f"{outcome.tasks.get(name, 0)}" for name in NAMES) for outcome in both),
            ]
        )
    heads = ("strategy", "high", "low", "median, high", "low", "on gpu, cores, core: high", "low")
    return [f"{name}: makespan, median run time of a kernel", *columns(heads, cells)]


def _print_moved(data: Data, kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    draws = data["moved"]["draws"]
    names = list(dict.fromkeys(name for counts in kept.values() for name in counts["alone"]))
    cells = [
        ["all of these", *(str(counts["all"]) for counts in kept.values())],
        ["all orderings", *(str(counts["orderings"]) for counts in kept.values())],
    ]
    cells += [[name, *(str(counts["alone"][name]) for counts in kept.values())] for name in names]
    title = f"Of {draws} draws of the six run times, in so many a statement that holds above holds"
    return [title, *columns(["moved by up to", *(f"{pct} %" for pct in kept)], cells)]


def _print_instances(by_number: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(next(iter(by_number.values())))
    cells = [
        [number, *(f"{factors[name]:.2f}" for name in names)]
        for number, factors in by_number.items()
    ]
    return ["lama: makespans by number of instances", *columns(["instances", *names], cells)]


def _print_energy(energy: Energy) -> list[str]:
    cells = [
        [name]
        + [f"{both[side][key]:,.{digits}f}" for key, digits in ENERGY for side in ("paper", "ours")]
        for name, both in energy.items()
    ]
    kinds = ("system, J", "application, J", "mean power, W", "time, s")
    heads = [f"{kind} ({side})" for kind in kinds for side in ("paper", "ours")]
    title = "table 1: energy of ten runs of LAMA's CG"
    return [title, *columns(["", *heads], cells)]


def _print_saving(by_times: Saving) -> list[str]:
    cells = []
    for title, lists in by_times.items():
        for name, words in (("shares", "70, 25, 5 %"), ("free", "short-term")):
            saved = [
                f"{100.0 * (1.0 - time_s / alone_s):.1f} %"
                for time_s, alone_s in zip(lists[name], lists["sequential"], strict=True)
            ]
            cells.append([title, words, *saved])
    jobs = next(iter(by_times.values()))["jobs"]
    heads = ["run times", "devices", *(f"{number} jobs" for number in jobs)]
    title = "figure 12: time saved beside one job after the other on the fastest device (simulated)"
    return [
        title,
        *columns(heads, cells),
        "The paper states no run times. Those of the first row follow from its shares, which are",
        "chosen to keep all devices busy; with the other two the same shares save little, or lose.",
    ]


def _print_hashes(by_device: Mapping[str, Sequence[float]]) -> list[str]:
    cells = [
        [
            f"{ratio:g}",
            *(f"{rate:.3f}" for rate in rates),
            f"{rates[2] / (rates[0] + rates[1]):.3f}",
        ]
        for ratio, *rates in zip(*by_device.values(), strict=True)
    ]
    heads = ("GPU over CPU (assumed)", "CPU", "GPU", "both", "both over sum")
    return [
        "figure 14: hashes/s, the CPU's alone being 1 (simulated)",
        *columns(heads, cells),
        "The rest is the core that a kernel on the GPU keeps busy, and the last tasks.",
        "scripts/bench/kernels --only figures measures it on two cores.",
    ]


def _draw(applications: Mapping[str, Any], results: Results, folder: Path) -> None:
    """Draw figures 6 and 8 (makespan), 7 and 9 (median run time)."""
    for name, application in applications.items():
        for number, column in zip(application["figures"], ("makespan_s", "median_s"), strict=True):
            series = {
                f"governor {governor}": (
                    list(STRATEGIES),
                    [getattr(results[name, governor, title], column) for title in STRATEGIES],
                )
                for governor in Governor
            }
            label = "makespan (s)" if column == "makespan_s" else "median run time (s)"
            panel = Panel(label, series, "strategy")
            draw_panels([panel], folder / f"figure-{number}.png", application["title"])


def _draw_section_6(shares: Saving, hashes: Mapping[str, Sequence[float]], folder: Path) -> None:
    """Draw figure 12 (time over the number of jobs) and figure 14 (hashes/s)."""
    labels = {"sequential": "one after the other", "shares": "70, 25, 5 %", "free": "short-term"}
    panels = [
        Panel(
            f"time (s), {title}",
            {label: (lists["jobs"], lists[key]) for key, label in labels.items()},
            "jobs",
        )
        for title, lists in shares.items()
    ]
    draw_panels(panels, folder / "figure-12.png", "saved time (simulated)")
    kinds = ("cpu", "gpu", "both")
    series = {
        f"GPU {ratio:g} times the CPU": (list(kinds), [hashes[kind][at] for kind in kinds])
        for at, ratio in enumerate(hashes["gpu_over_cpu"])
    }
    panel = Panel("hashes/s, the CPU alone being 1", series, "devices")
    draw_panels([panel], folder / "figure-14.png", "hashes (simulated)")
