"""Node hours that failures of nodes cost, by what jobs have left and where they go on.

Nodes fail after exponentially distributed times. A job of which a node fails starts again from its
beginning, or goes on from a checkpoint on disk or a copy in the memory of other nodes: in the
queue again, or at once on the nodes that are left. Copies and checkpoints stop the job, so its run
times are longer by that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model.jobs import JobSpec, Site
from rms.core.policies import DEFAULT, named
from rms.plots import Panel, draw_panels
from rms.sim.run import chosen, failing, figures, simulated
from rms.sim.simulator import Recovery
from rms.studies.malleability import MalleableChange, malleable, powered
from rms.wire.users import LostWork

YEAR_S = 365 * 86400.0
RECOVERIES: dict[str, Recovery | None] = {
    "beginning": None,
    "disk": Recovery(every_s=3600.0, cost_s=60.0, back_s=120.0),
    "memory": Recovery(every_s=10.0, cost_s=0.05, back_s=120.0),
    "narrower": Recovery(every_s=10.0, cost_s=0.05, back_s=8.0, narrower=True),
}
"""By name; the times are assumptions, which the result states."""

Row = dict[str, Any]


class FailureQuestion(msgspec.Struct, frozen=True):
    """The cases of a comparison.

    Attributes:
        recoveries: names of :data:`RECOVERIES`, one row each.
        mtbf_s: mean time between failures of a node.
        repair_s: time until a node is back.
        share: of the jobs, how many become malleable, 0 to 1.
        seed: of the failures.
    """

    recoveries: tuple[str, ...]
    mtbf_s: float
    repair_s: float
    share: float = 1.0
    seed: int = 1
    policy: str = DEFAULT


def on_nodes(specs: Sequence[JobSpec], processors: int) -> list[JobSpec]:
    """Return jobs whose sizes count processors with sizes in whole nodes of so many."""

    def nodes(size: int) -> int:
        return -(-size // processors)

    return [
        msgspec.structs.replace(
            spec,
            nodes_min=nodes(spec.nodes_min),
            nodes_max=nodes(spec.nodes_max),
            preferred=nodes(spec.preferred),
        )
        for spec in specs
    ]


def answer(
    specs: Sequence[JobSpec],
    site: Site,
    question: FailureQuestion,
    *,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return the study as JSON: rows by recovery, and the assumptions.

    Node hours are those that jobs held: of work that was done again, of jobs that stood still
    before they went on, and of copies. Energy is that of the first two, without copies.
    """
    change = MalleableChange()
    site = powered(site)
    jobs = malleable(specs, question.share, site.nodes, change)
    policy = chosen(named(question.policy), counted=False)
    last_s = max(spec.submit_s for spec in specs)
    failures = failing(
        site.nodes,
        mtbf_s=question.mtbf_s,
        repair_s=question.repair_s,
        horizon_s=last_s + YEAR_S,
        seed=question.seed,
    )
    rows = []
    for name in question.recoveries:
        if progress is not None:
            progress(f"recovery {name}")
        recovery = RECOVERIES[name]
        own = jobs if recovery is None else [recovery.slowed(spec) for spec in jobs]
        simulation, wall_s = simulated(own, site, policy, failures=failures, recovery=recovery)
        longer = 0.0 if recovery is None else recovery.cost_s / (recovery.every_s + recovery.cost_s)
        busy_h = simulation.ledger.busy_node_s / 3600.0
        losses = sum(simulation.ledger.lost.values(), LostWork())
        again_h = simulation.recomputed_node_s / 3600.0
        still_h = simulation.recovery_node_s / 3600.0
        lost = {
            "recomputed": again_h,
            "recovery": still_h,
            "copies": longer * (busy_h - again_h - still_h),
        }
        rows.append(
            {
                "recovery": name,
                **figures(simulation, own, policy, wall_s),
                "narrowed": simulation.narrowed,
                "node_h": busy_h,
                "lost_node_h": {**lost, "all": sum(lost.values())},
                "lost_j": {"recomputed": losses.recomputed_j, "recovery": losses.recovery_j},
            }
        )
    return {
        "policy": question.policy,
        "model": _model(question, change),
        "rows": rows,
    }


def _model(question: FailureQuestion, change: MalleableChange) -> list[str]:
    """Return the assumptions, in words."""
    lines = [
        f"failures: of a node every {question.mtbf_s / 3600:g} h in the mean (exponential, seed "
        f"{question.seed}), back after {question.repair_s / 3600:g} h",
    ]
    if question.share:
        lines.append(
            f"jobs: {100 * question.share:g} % are malleable ({change.mode}), serial part "
            f"{change.serial:g}, resize points {change.every_s:g} s apart, a resize costs "
            f"{change.price_s:g} s"
        )
    for name in question.recoveries:
        recovery = RECOVERIES[name]
        if recovery is None:
            lines.append(f"{name}: jobs wait again, and start from their beginning")
            continue
        where = "at once on the nodes that are left" if recovery.narrower else "from the queue"
        lines.append(
            f"{name}: a copy every {recovery.every_s:g} s stops a job for {recovery.cost_s:g} s; "
            f"it goes on {where}, {recovery.back_s:g} s after the failure or its start"
        )
    return lines


def table(result: dict[str, Any]) -> list[str]:
    """Return the study as lines of text."""
    lines = [
        f"policy {result['policy']}",
        *result["model"],
        "",
        "recovery   requeued  narrower  node hours lost: recomputed  recovery  copies      all  "
        "of all  mean wait  energy (GJ)  energy lost (GJ)",
    ]
    for row in result["rows"]:
        lost = row["lost_node_h"]
        lines.append(
            f"{row['recovery']:9s}  {row['restarts']:8d}  {row['narrowed']:8d}  "
            f"{lost['recomputed']:27.0f}  {lost['recovery']:8.0f}  {lost['copies']:6.0f}  "
            f"{lost['all']:7.0f}  {100 * lost['all'] / row['node_h']:4.2f} %  "
            f"{row['mean_wait_s']:7.0f} s  {row['energy_j']['cluster'] / 1e9:11.3f}  "
            f"{sum(row['lost_j'].values()) / 1e9:16.4f}"
        )
    return lines


def draw(result: dict[str, Any], path: Path, title: str) -> None:
    """Draw the study: node hours lost, restarts, waits and energy by recovery."""
    rows = result["rows"]
    names = [row["recovery"] for row in rows]
    kinds = {"recomputed": "recomputed work", "recovery": "recovery", "copies": "copies"}
    lost = {
        label: (names, [row["lost_node_h"][kind] for row in rows]) for kind, label in kinds.items()
    }
    panels = [
        Panel("node hours lost", lost, ""),
        Panel("jobs requeued", {"": (names, [row["restarts"] for row in rows])}, ""),
        Panel("mean wait (h)", {"": (names, [row["mean_wait_s"] / 3600 for row in rows])}, ""),
    ]
    draw_panels(panels, path, title)
