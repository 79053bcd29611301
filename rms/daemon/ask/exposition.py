"""``/metrics``: queue, waits, power, energy and resizes for Prometheus; looking changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rms.core.books.spans import MODEL
from rms.core.model.events import Ended, Event, Resized, ResizeRolledBack, Started, Withdrawn
from rms.daemon.store.context import Context, family, histogram, label


def observe(context: Context, event: Event, took_s: float) -> None:
    """Count an event that has been followed and decided on, in so many seconds."""
    metrics, state = context.metrics, context.state
    metrics.passes_s.observe(took_s)
    if isinstance(event, Started):
        job = state.running.get(event.job)
        if job is not None:
            metrics.waits_s.observe(max(0.0, event.at_s - job.spec.submit_s))
    elif isinstance(event, Resized):
        metrics.resizes["done"] += 1
        known = context.jobs.get(event.job)
        if known is not None and known.resizes:
            metrics.stalls_s.observe(known.resizes[-1].stall_s)
    elif isinstance(event, ResizeRolledBack):
        metrics.resizes["rolled_back"] += 1
    elif isinstance(event, Ended):
        metrics.ended[event.state] += 1
    elif isinstance(event, Withdrawn):
        metrics.ended["CANCELLED"] += len(event.jobs)


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
