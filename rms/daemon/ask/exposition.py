"""``/metrics``: queue, waits, power, energy and resizes for Prometheus; looking changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rms.core.books.spans import MODEL
from rms.daemon.store.context import Context, family, histogram, label


def exposition(context: Context) -> str:
    """Return all metrics in Prometheus' text format 0.0.4."""
    metrics, state = context.metrics, context.state
    states = Counter(str(job.state) for job in state.running.values())
    jobs = [
        ("PENDING", len(state.pending) + len(state.too_wide)),
        ("HELD", len(state.held)),
        ("CONFIGURING", states["CONFIGURING"]),
        ("RUNNING", states["RUNNING"]),
    ]
    sources = context.scheduler.books(context.time()).sources
    lines = [
        *family("rms_jobs", "gauge", "Jobs that are not over, by state.", _by("state", jobs)),
        *family(
            "rms_jobs_ended_total",
            "counter",
            "Jobs that have ended since the daemon was started, by state.",
            _by("state", metrics.ended.items()),
        ),
        *histogram("rms_wait_seconds", "From submission to start of a job.", metrics.waits_s),
        *histogram("rms_pass_seconds", "An event, and what is decided on it.", metrics.passes_s),
        *family("rms_nodes", "gauge", "Nodes, or slots of shared ones.", [("", state.nodes)]),
        *family("rms_nodes_free", "gauge", "Those that are free.", [("", state.free_count)]),
        *family("rms_power_watts", "gauge", "Power by its source.", _by("source", watts(context))),
        *family(
            "rms_energy_joules",
            "gauge",
            "Energy of the cluster by its source; what meters report later replaces the model's.",
            _by("source", [(part.source, part.joules) for part in sources]),
        ),
        *family(
            "rms_resizes_total",
            "counter",
            "Resizes that are over, by outcome.",
            _by("outcome", metrics.resizes.items()),
        ),
        *histogram("rms_stall_seconds", "A job stands still for a resize.", metrics.stalls_s),
    ]
    return "\n".join(lines) + "\n"


def watts(context: Context) -> list[tuple[str, float]]:
    """Return what the cluster draws now, by what says so."""
    energy, found = context.scheduler.energy, dict[str, float]()
    for node, power_w in energy.measured.node_w.items():
        source = energy.measured.sources.get(node, "measured")
        found[source] = found.get(source, 0.0) + power_w
    rest_w = energy.power_w - sum(found.values())
    measured = set(energy.measured.node_w) >= set(context.cluster.hosts)
    return [*sorted(found.items()), *([] if measured else [(MODEL, max(0.0, rest_w))])]


def _by(name: str, values: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(label(name, key), value) for key, value in values]
