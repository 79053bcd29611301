"""Meters: their reports into the energy books, the books' rows to disk, the cap on power."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import msgspec

from rms.core.books.measured import Measured
from rms.core.books.spans import WHOLE
from rms.core.model.cluster import Cluster
from rms.core.model.events import Event, PowerMeasured
from rms.core.rules.powercap import expected_w, matters
from rms.core.scheduler.scheduler import Scheduler
from rms.daemon.store.context import Context, Handle, log
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import MeterNote
from rms.wire.messages import MeterAnswer, Metered

# Time without a report after which a node's power is the model's again. It is three times the
# interval of the last two reports if that is longer, as reports are rare on large clusters.
STALE_S = 60.0
LONGEST_STALE_S = 600.0
FORGET_S = 10.0  # interval at which spans are forgotten that no report can concern any more


class Meters:
    """Takes reports, and writes the changes before a report is answered."""

    def __init__(self, context: Context, on_report: Callable[[Metered], None]) -> None:
        self._context, self._scheduler = context, context.scheduler
        self._on_report = on_report
        self._reported: dict[str, tuple[float, float]] = {}
        self._reasons: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self._silent: dict[str, set[str]] = {}
        self._forgot_s = -inf

    def take_report(self, report: Metered) -> MeterAnswer:
        """Take in a report, which follows the time of day; it is on disk when this returns."""
        skew_s = self._context.skew_s
        if skew_s:
            report = msgspec.structs.replace(report, at_s=report.at_s - skew_s)
        answer = self._book(report)
        self._on_report(report)
        return msgspec.structs.replace(answer, at_s=answer.at_s + skew_s) if skew_s else answer

    def _book(self, report: Metered) -> MeterAnswer:
        context = self._context
        nodes = devices_of(report, context.cluster, self._scheduler.energy.measured)
        for reason in [old for old, host in self._reasons.items() if host == report.node]:
            if reason != report.reason:
                del self._reasons[reason]
        if report.reason and report.reason not in self._reasons:
            self._reasons[report.reason] = report.node
            what = "not all is measured on" if report.devices else "power is the model's on"
            log.info(f"{what} {_where(report.node)}, and others alike: {report.reason}")
        is_new = self._scheduler.report(report, context.time(), nodes)
        host = self._scheduler.energy.measured.hosts[report.node]
        if is_new:
            self._say_refused(report)
            self._say_silent(report)
            if report.devices:
                now_s = context.now()
                before_s, _ = self._reported.get(report.node, (now_s, 0.0))
                for_s = min(max(STALE_S, 3 * (now_s - before_s)), LONGEST_STALE_S)
                self._reported[report.node] = now_s, for_s
            self._write(None, MeterNote(report.node, host))
        return MeterAnswer() if report.number else host.answer

    def _say_refused(self, report: Metered) -> None:
        """Log a device when its energy is refused for the first time in a row."""
        measured, where = self._scheduler.energy.measured, _where(report.node)
        for device in report.devices:
            key = report.node, device.device
            if device.device not in measured.refused:
                self._refused.discard(key)
            elif key not in self._refused:
                self._refused.add(key)
                words = f"{where}: refused energy of {device.device} above {measured.most_w:g} W"
                log.warning(f"{words} (--meter-limit): by the model")

    def _say_silent(self, report: Metered) -> None:
        """Log the devices that an agent no longer reports, if it gives no reason."""
        silent = self._scheduler.energy.measured.silent(report.node)
        new = silent - self._silent.get(report.node, set())
        self._silent[report.node] = silent
        if new and not report.reason:
            words = f"no readings of {', '.join(sorted(new))} of {_where(report.node)}"
            log.warning(f"{words}: by the model")

    def tick(self) -> None:
        """Write the rows that events have changed; leave hosts without reports to the model."""
        spans = self._scheduler.energy.measured.spans
        if spans.changed:
            self._write(None)
        now_s = self._context.now()
        silent = [name for name, times in self._reported.items() if now_s > sum(times)]
        for host in silent:
            _, for_s = self._reported.pop(host)
            words = f"no report of the meters of {_where(host)} for {for_s:g} s"
            log.warning(f"{words}: by the model")
            self._scheduler.forget_meter(host, self._context.time())

    def write_all(self) -> None:
        """Write all rows, also unfinished ones up to now, so that they add up to the books."""
        energy = self._scheduler.energy
        if energy.begun:
            self._write(max(self._context.time(), energy.measured.until_s))

    def _write(self, now_s: float | None, *notes: MeterNote) -> None:
        measured = self._scheduler.energy.measured
        self._context.journal.book(measured.spans.rows(now_s), notes)
        if self._context.now() >= self._forgot_s + FORGET_S:  # it looks at all hosts
            self._forgot_s = self._context.now()
            measured.spans.forget(measured.kept_s)


def _where(host: str) -> str:
    return host or "this machine"


def devices_of(
    report: Metered, cluster: Cluster, measured: Measured
) -> Mapping[str, Sequence[str]]:
    """Return the nodes of the devices, or hosts and slots if jobs share nodes.

    On a machine whose cores and GPUs are nodes (its reports have no name), ``gpu-0`` is the node
    with the slot ``gpu:0``, and other devices belong to the nodes of cores, if there are any.
    ``node`` includes all other devices, which then belong to no node.
    """
    booked = cluster.booked
    if report.node and report.node not in cluster.hosts:
        raise ValueError(f"expected a node of this cluster, got {report.node}")
    here = [
        name for host in ([report.node] if report.node else cluster.hosts) for name in booked(host)
    ]
    devices = [device.device for device in report.devices]
    if WHOLE in devices or measured.whole(report.node):
        return {WHOLE: here}
    if report.node:
        return dict.fromkeys(devices, here)
    names, slots = cluster.names, cluster.slots
    of_gpus = {cluster.host_of(n) for n, own in enumerate(slots) if own[0].startswith("gpu:")}
    cores = [name for host in cluster.hosts if host not in of_gpus for name in booked(host)]
    nodes: dict[str, Sequence[str]] = {}
    for device in devices:
        kind, _, number = device.partition("-")
        slot = f"gpu:{number}"
        of_gpu = [n for n, own in zip(names, slots, strict=True) if slot in own]
        nodes[device] = of_gpu if kind == "gpu" else cores or here
    return nodes


def restore_energy(scheduler: Scheduler, journal: Journal) -> None:
    """Restore the measured energy from the journal, once all events were replayed."""
    energy = scheduler.energy
    measured = energy.measured
    for name, note in journal.notes(MeterNote).items():
        if note.host is not None:
            measured.hosts[name] = note.host
    sums = journal.energy_sums(measured.spans.totals.since_s)
    newest = journal.newest_energy(min(measured.kept_s.values(), default=inf))
    lost = [row for job in energy.ledger.lost for row in journal.energy(job)]
    energy.restore(sums, newest, lost)


# --- the power cap -------------------------------------------------------------------------------

LOOK_S = 1.0  # interval at which readings are compared with the cap
# A report that overlaps a drop in power is used only if no other arrived for this long.
LAG_S = 10.0
CAP_STALE_S = 60.0
"""Time without reports after which meters say nothing about the cluster's power.

With rare reports, this and :data:`LAG_S` are at least :data:`REPORTS` intervals between two.
"""

REPORTS = 3


class CapWatch:
    """Enters measured power as an event if it changes the power left under the cap.

    The event is in the journal, so that a replay makes the same decisions.
    """

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._reports: dict[str, tuple[float, float]] = {}
        self._less_s, self._looked_s, self._counted_s = -inf, -inf, -inf
        self._begun_s = context.now()

    def on_report(self, report: Metered) -> None:
        """Note the interval between two reports of a host."""
        if report.devices:
            _, before_s = self._reports.get(report.node, (0.0, report.at_s))
            self._reports[report.node] = before_s, report.at_s

    def on_event(self, event: Event) -> None:
        """Note the time of an event that may reduce the power."""
        if event.lowers_power:
            self._less_s = event.at_s

    def tick(self) -> None:
        """Enter the cluster's power, if it matters to the cap."""
        state, now_s = self._context.state, self._context.now()
        if state.power_cap_w is None or now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        rarely_s = REPORTS * max([end_s - s for s, end_s in self._reports.values()], default=0.0)
        from_s = now_s - max(CAP_STALE_S, rarely_s)
        recent = [since_s for since_s, end_s in self._reports.values() if end_s > from_s]
        if recent:
            due_s = self._counted_s + max(LAG_S, rarely_s)
            if min(recent) < self._less_s and now_s < due_s:
                return
            self._counted_s = now_s
            watts = self._context.scheduler.energy.power_w
        elif now_s < self._begun_s + CAP_STALE_S:
            return  # readings from before a restart hold until meters report again
        else:
            watts = expected_w(state)
        if matters(state, watts):
            self._handle(PowerMeasured(self._context.time(), watts))
