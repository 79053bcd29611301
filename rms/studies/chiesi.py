"""``rms reproduce chiesi``: power capping on GPU nodes (Chiesi et al., sections 3 to 5).

Ten workloads of 1,000 one-GPU jobs on four nodes of four GPUs, with and without knowledge of
power, under several caps. The paper gives neither its Markov chain nor durations, so its ranges
stand beside ours without ours being fitted to them. What must hold whatever the workload: the cap
is never passed; a lower cap costs time and takes away peak; backfilling waits no longer than FIFO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import msgspec

from rms.core.model import JobId, JobSpec, Mode, NodePower, Site
from rms.core.policies import adjusted, named
from rms.sim.simulator import Hooks, Simulation

DATA = Path(__file__).parent / "data"
POLICIES = ("p-fifo", "p-bff")
INDICES = ("PR", "T", "E", "MD")


@dataclass(frozen=True)
class Outcome:
    """What came of one workload.

    Attributes:
        time_s: until the last job has ended.
        energy_j: of each node until its own last job has ended (equation 10).
        node_s: those times, summed (denominator of equation 12).
        peak_w: highest power a node really had.
        scheduled_w: highest power a node had by equation 1, which the scheduler uses.
    """

    time_s: float
    energy_j: float
    node_s: float
    peak_w: float
    scheduled_w: float

    @property
    def deviation_pct(self) -> float:
        """MD: peak over average power (equation 11)."""
        average_w = self.energy_j / self.node_s
        return 100.0 * (self.peak_w - average_w) / average_w


def workload(data: Mapping[str, Any], seed: int) -> list[JobSpec]:
    """Return the jobs of one workload: a Markov chain over the six kinds, all handed in at once."""
    kinds = list(data["power_w"].values())
    low, high = data["duration_s"]
    profile = tuple((float(span), float(share)) for span, share in data["profile"])
    random = Random(seed)
    kind = int(random.random() * len(kinds))
    specs = []
    for number in range(1, data["jobs"] + 1):
        if number > 1 and random.random() >= data["stay"]:
            others = [other for other in range(len(kinds)) if other != kind]
            kind = others[int(random.random() * len(others))]
        run_s = low + (high - low) * random.random()
        specs.append(
            JobSpec(
                JobId(str(number)),
                0.0,
                1,
                1,
                1,
                Mode.FIXED,
                run_s=run_s,
                power_w=float(kinds[kind]),
                profile=profile,
            )
        )
    return specs


def site(data: Mapping[str, Any], gpus: int | None = None) -> Site:
    """Return the cluster: GPUs are slots, their nodes are power domains."""
    hosts, per = data["hosts"], gpus or data["gpus"]
    return Site(
        hosts * per,
        (NodePower(idle_w=data["idle_w"]),) * hosts,
        tuple(slot // per for slot in range(hosts * per)),
    )


def run(specs: list[JobSpec], where: Site, policy: str, cap_w: float | None) -> Outcome:
    """Run a workload under a cap, or without looking at power."""
    placement = {"part": "first-fit"} if cap_w is None else {"cap_w": cap_w}
    made = adjusted(named(policy), placement=placement)
    scheduled = ScheduledPower(where)
    hooks = Hooks(record=False, observer=scheduled.observe)
    simulation = Simulation(specs, where, made, hooks=hooks)
    simulation.run()
    ledger, jobs = simulation.ledger, simulation.engine.state.ended.values()
    ledger.check()
    last = [0.0] * len(where.power)
    for job in jobs:
        host = where.host[job.nodes[0]]
        last[host] = max(last[host], job.end_s or 0.0)
    time_s = max(last)
    after_j = sum(where.power[host].idle_w * (time_s - end_s) for host, end_s in enumerate(last))
    energy_j = ledger.cluster_j - after_j
    return Outcome(time_s, energy_j, sum(last), max(ledger.peak_w), scheduled.most_w)


class ScheduledPower:
    """The highest power of a node by equation 1, watched from outside the policy."""

    def __init__(self, where: Site) -> None:
        self._site, self.most_w = where, 0.0

    def observe(self, simulation: Simulation) -> None:
        """Sum up the power of each node after an event."""
        watts = [model.idle_w for model in self._site.power]
        for job in simulation.engine.state.running.values():
            watts[self._site.host[job.nodes[0]]] += job.spec.power_w or 0.0
        self.most_w = max(self.most_w, *watts)


def chiesi(figures: Path | None) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether all that must hold does."""
    data = msgspec.toml.decode((DATA / "chiesi.toml").read_bytes())
    where, caps = site(data), data["caps_w"]
    seeds = range(1, data["workloads"] + 1)
    specs = {seed: workload(data, seed) for seed in seeds}
    plain = {
        (policy, seed): run(specs[seed], where, policy, None)
        for policy in POLICIES
        for seed in seeds
    }
    rows, wrong = [], []
    means: dict[str, dict[float, dict[str, float]]] = {policy: {} for policy in POLICIES}
    for policy in POLICIES:
        for cap_w in caps:
            outcomes = [(run(specs[s], where, policy, cap_w), plain[policy, s]) for s in seeds]
            wrong += [
                f"{policy}, {cap_w:g} W: expected the cap to hold, got {aware.scheduled_w:g} W"
                for aware, _ in outcomes
                if max(aware.scheduled_w, aware.peak_w) > cap_w + 1e-6
            ]
            indices = [_indices(aware, unaware, data["worst_w"]) for aware, unaware in outcomes]
            means[policy][cap_w] = {k: fmean(i[k] for i in indices) for k in indices[0]}
            rows.append(_row(data, policy, cap_w, indices))
    wrong += _must_hold(means, caps, data["worst_w"])
    supply = _supply(data, specs[1])
    result = {
        "experiment": "chiesi",
        "rows": rows,
        "unaware_md_pct": fmean(outcome.deviation_pct for outcome in plain.values()),
        "supply": supply,
        "wrong": wrong,
    }
    if figures is not None:
        _draw(means, result, figures)
    return result, [*_printed(rows, means), "", *_supply_lines(data, supply), *wrong], not wrong


def _indices(aware: Outcome, unaware: Outcome, worst_w: float) -> dict[str, float]:
    """Return the indices of section 4.3, in per cent."""
    return {
        "PR": 100.0 * (unaware.peak_w - aware.peak_w) / unaware.peak_w,
        "T": 100.0 * (aware.time_s - unaware.time_s) / unaware.time_s,
        "E": 100.0 * (aware.energy_j - unaware.energy_j) / unaware.energy_j,
        "MD": aware.deviation_pct,
        "PW": 100.0 * (worst_w - aware.peak_w) / worst_w,
    }


def _row(
    data: Mapping[str, Any], policy: str, cap_w: float, indices: list[dict[str, float]]
) -> dict[str, Any]:
    published = data["published"][policy].get(f"{cap_w:g}", {})
    values: dict[str, Any] = {}
    for index in (*INDICES, "PW"):
        found = [each[index] for each in indices]
        paper = published.get(index)
        values[index] = {
            "paper": paper,
            "ours": [min(found), max(found)],
            "mean": fmean(found),
            "deviation_pct": None,
            "note": "ranges over ten workloads; those of the paper are not known",
        }
    return {"case": f"{cap_w:g} W", "mode": policy, "values": values}


def _must_hold(
    means: Mapping[str, Mapping[float, Mapping[str, float]]], caps: list[float], worst_w: float
) -> list[str]:
    wrong = []
    for policy, found in means.items():
        for low, high in pairwise(caps):
            wrong += [
                f"{policy}: expected {index} to fall from {low:g} to {high:g} W, got "
                f"{found[low][index]:.2f} and {found[high][index]:.2f} %"
                for index in ("PR", "T")
                if found[high][index] > found[low][index] + 1e-9
            ]
        if abs(found[worst_w]["T"]) > 1e-9:
            wrong.append(f"{policy}: expected T of 0 at {worst_w:g} W, got {found[worst_w]['T']}")
    for cap_w in caps:
        fifo, bff = means["p-fifo"][cap_w]["T"], means["p-bff"][cap_w]["T"]
        if bff > fifo + 1e-9:
            wrong.append(f"{cap_w:g} W: expected T of p-bff at most p-fifo's, got {bff} and {fifo}")
    return wrong


def _supply(data: Mapping[str, Any], specs: list[JobSpec]) -> list[dict[str, Any]]:
    """Return what more GPUs in each node bring, capped at what its supply gives (section 5.1)."""
    found: list[dict[str, Any]] = []
    most_w, supply_w = max(data["power_w"].values()), data["supply_w"]
    base_s = 0.0
    for gpus in range(data["gpus"], 2 * data["gpus"] + 1):
        aware = run(specs, site(data, gpus), "p-bff", supply_w)
        unaware = run(specs, site(data, gpus), "p-bff", None)
        base_s = base_s or aware.time_s
        found.append(
            {
                "gpus": gpus,
                "worst_w": data["idle_w"] + gpus * most_w,
                "peak_w": aware.peak_w,
                "speedup": base_s / aware.time_s,
                "slowdown_pct": 100.0 * (aware.time_s / unaware.time_s - 1.0),
            }
        )
    return found


def _supply_lines(data: Mapping[str, Any], supply: list[dict[str, Any]]) -> list[str]:
    supply_w = data["supply_w"]
    lines = [f"More GPUs on a supply of {supply_w:g} W a node (p-bff, first workload)"]
    for entry in supply:
        fits = "fits" if entry["worst_w"] <= supply_w else "over it"
        lines.append(
            f"  {entry['gpus']} GPUs  worst case {entry['worst_w']:5.0f} W ({fits:7s})  "
            f"capped peak {entry['peak_w']:5.0f} W  speedup {entry['speedup']:.3f}  "
            f"lost to the cap {entry['slowdown_pct']:.1f} %"
        )
    return lines


def _printed(
    rows: list[dict[str, Any]], means: Mapping[str, Mapping[float, Mapping[str, float]]]
) -> list[str]:
    lines = ["Indices in per cent: mean (least to most) of ten workloads; paper: least to most", ""]
    for row in rows:
        parts = []
        for index in (*INDICES, "PW"):
            value = row["values"][index]
            low, high = value["ours"]
            paper = value["paper"]
            beside = "" if paper is None else f" paper {paper[0]:.1f} to {paper[1]:.1f}"
            parts.append(f"{index} {value['mean']:.1f} ({low:.1f} to {high:.1f}){beside}")
        lines.append(f"  {row['mode']:6s} {row['case']:7s} " + ";  ".join(parts))
    return lines


def _draw(
    means: Mapping[str, Mapping[float, Mapping[str, float]]],
    result: Mapping[str, Any],
    folder: Path,
) -> None:
    from rms.plots import lines

    titles = {
        "PR": "peak reduction (figure 6a)",
        "T": "increase in time (figure 6b)",
        "E": "increase in energy (figure 6c)",
        "PW": "peak reduction against the worst case (figure 6d)",
    }
    for index, title in titles.items():
        series = {
            policy: (list(found), [entry[index] for entry in found.values()])
            for policy, found in means.items()
        }
        lines(series, folder / f"figure-6-{index}.png", ("cap (W)", f"{index} (%)", title))
    series = {
        policy: ([e["T"] for e in found.values()], [e["MD"] for e in found.values()])
        for policy, found in means.items()
    }
    unaware = result["unaware_md_pct"]
    lines(
        {**series, "no cap": ([0.0], [unaware])},
        folder / "figure-7.png",
        ("T (%)", "MD (%)", "peak over average against time (figure 7)"),
    )
