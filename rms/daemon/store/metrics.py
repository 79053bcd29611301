"""Metrics of a daemon for Prometheus (``GET /metrics``), counted since its start."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from rms.core.books.spans import MODEL
from rms.core.model.events import Ended, Event, Resized, ResizeRolledBack, Started, Withdrawn
from rms.core.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from rms.daemon.store.context import Context

WAITS_S = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 172800.0)
PASSES_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
STALLS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

_without_created: Callable[[], None] = disable_created_metrics  # which has no annotations
_without_created()


class Metrics:
    """Counters, histograms and gauges of one daemon.

    The daemon counts events as they happen; gauges are set when the text is requested.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, label: str | None = None) -> Gauge:
            return Gauge(name, text, [label] if label else [], registry=registry)

        def counter(name: str, text: str, label: str, values: tuple[str, ...]) -> Counter:
            metric = Counter(name, text, [label], registry=registry)
            for value in values:
                metric.labels(value)
            return metric

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._jobs = gauge("rms_jobs", "Jobs that are not over, by state.", "state")
        self._ended = counter(
            "rms_jobs_ended",
            "Jobs that have ended since the daemon was started, by state.",
            "state",
            ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"),
        )
        self._waits_s = histogram("rms_wait_seconds", "From submission to start of a job.", WAITS_S)
        self._passes_s = histogram(
            "rms_pass_seconds", "An event, and what is decided on it.", PASSES_S
        )
        self._nodes = gauge("rms_nodes", "Nodes, or slots of shared ones.")
        self._free = gauge("rms_nodes_free", "Those that are free.")
        self._power_w = gauge("rms_power_watts", "Power by its source.", "source")
        self._energy_j = gauge(
            "rms_energy_joules",
            "Energy of the cluster by its source; what meters report later replaces the model's.",
            "source",
        )
        self._resizes = counter(
            "rms_resizes",
            "Resizes that are over, by outcome.",
            "outcome",
            ("done", "rolled_back"),
        )
        self._stalls_s = histogram(
            "rms_stall_seconds", "A job stands still for a resize.", STALLS_S
        )

    def on_event(self, context: Context, event: Event, pass_s: float) -> None:
        """Count an event after its scheduling pass.

        Args:
            pass_s: duration of the pass.
        """
        self._passes_s.observe(pass_s)
        if isinstance(event, Started):
            job = context.state.running.get(event.job)
            if job is not None:
                self._waits_s.observe(max(0.0, event.at_s - job.spec.submit_s))
        elif isinstance(event, Resized):
            self._resizes.labels("done").inc()
            runtime = context.jobs.get(event.job)
            if runtime is not None and runtime.resizes:
                self._stalls_s.observe(runtime.resizes[-1].stall_s)
        elif isinstance(event, ResizeRolledBack):
            self._resizes.labels("rolled_back").inc()
        elif isinstance(event, Ended):
            self._ended.labels(event.state).inc()
        elif isinstance(event, Withdrawn):
            self._ended.labels("CANCELLED").inc(len(event.jobs))

    def text(self, scheduler: Scheduler, at_s: float) -> str:
        """Return all metrics at a time in Prometheus' text format 0.0.4."""
        state = scheduler.engine.state
        states = Tally(str(job.state) for job in state.running.values())
        jobs = {
            "PENDING": len(state.pending) + len(state.too_wide),
            "HELD": len(state.held),
            "CONFIGURING": states["CONFIGURING"],
            "RUNNING": states["RUNNING"],
        }
        sources = scheduler.books(at_s).sources
        _set(self._jobs, jobs)
        _set(self._power_w, watts_by_source(scheduler))
        _set(self._energy_j, {part.source: part.joules for part in sources})
        self._nodes.set(state.nodes)
        self._free.set(state.free_count)
        return generate_latest(self._registry).decode()


def watts_by_source(scheduler: Scheduler) -> dict[str, float]:
    """Return the present power of the cluster by its source: meters and the model."""
    energy, watts = scheduler.energy, dict[str, float]()
    for node, power_w in energy.measured.node_w.items():
        source = energy.measured.sources.get(node, "measured")
        watts[source] = watts.get(source, 0.0) + power_w
    rest_w = energy.power_w - sum(watts.values())
    if not set(energy.measured.node_w) >= set(scheduler.cluster.hosts):
        watts[MODEL] = max(0.0, rest_w)
    return watts


def _set(gauge: Gauge, values: Mapping[str, float]) -> None:
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)
