"""Reports of meters on their way to the energy books, and the books' rows on theirs to the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import msgspec

from rms.core.books.measured import Measured, MeteredHost
from rms.core.books.spans import WHOLE
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Event,
    PowerMeasured,
)
from rms.core.rules.powercap import expected_w, matters
from rms.core.scheduler.scheduler import Scheduler
from rms.daemon.store.context import Context, Handle, warning
from rms.daemon.store.journal import Journal
from rms.wire.messages import MeterAnswer, Metered

STALE_S = 60.0
"""What a node draws is the model's again where its meters have not reported for so long, or for
three times as long as between the last two reports: there are many nodes where they are rare."""

LONGEST_STALE_S = 600.0

FORGET_S = 10.0
"""How often spans are forgotten that no report can be about any more."""

NOTE = "meter/"
"""What keys of notes begin with that hold what is known of a host's meters."""


class Meters:
    """Takes reports, and writes what they change before they are answered."""

    def __init__(self, context: Context) -> None:
        self._context, self._scheduler = context, context.scheduler
        self._heard: dict[str, tuple[float, float]] = {}
        self._reasons: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self._silent: dict[str, set[str]] = {}
        self._forgot_s = -inf

    def node(self, report: Metered) -> MeterAnswer:
        """Take in a report; what it told is kept when this returns.

        Raises:
            ValueError: of a node that there is not, or of an agent that another one has replaced.
        """
        context, where = self._context, report.node or "this machine"
        nodes = devices_of(report, context.cluster, self._scheduler.energy.measured)
        for reason in [each for each, host in self._reasons.items() if host == report.node]:
            if reason != report.reason:
                del self._reasons[reason]
        if report.reason and report.reason not in self._reasons:
            self._reasons[report.reason] = report.node
            what = "not all is measured on" if report.devices else "power is the model's on"
            context.say(f"{what} {where}, and others alike: {report.reason}")
        news = self._scheduler.report(report, context.time(), nodes)
        host = self._scheduler.energy.measured.hosts[report.node]
        if news:
            self._say_refused(report)
            self._say_silent(report)
            if report.devices:
                self._hear(report.node, context.now())
            self._write(None, {f"{NOTE}{report.node}": msgspec.to_builtins(host)})
        return MeterAnswer() if report.number else host.answer

    def _say_refused(self, report: Metered) -> None:
        """Log each device when its energy is refused for the first time in a row."""
        measured, where = self._scheduler.energy.measured, report.node or "this machine"
        for device in report.devices:
            key = report.node, device.device
            if device.device not in measured.refused:
                self._refused.discard(key)
            elif key not in self._refused:
                self._refused.add(key)
                words = f"{where}: refused energy of {device.device} above {measured.most_w:g} W"
                self._context.say(warning(f"{words} (--meter-limit): by the model"))

    def _say_silent(self, report: Metered) -> None:
        """Log the devices that an agent no longer reports, if it gives no reason."""
        silent = self._scheduler.energy.measured.silent(report.node)
        new = silent - self._silent.get(report.node, set())
        self._silent[report.node] = silent
        if new and not report.reason:
            where = report.node or "this machine"
            words = f"no readings of {', '.join(sorted(new))} of {where}: by the model"
            self._context.say(warning(words))

    def heard(self, said: Metered, told: Callable[[Metered], object]) -> MeterAnswer:
        """Take in a report of the time of day, and tell who else is to know; as :meth:`node`."""
        skew_s = self._context.skew_s
        if skew_s:
            said = msgspec.structs.replace(said, at_s=said.at_s - skew_s)
        answer = self.node(said)
        told(said)
        return msgspec.structs.replace(answer, at_s=answer.at_s + skew_s) if skew_s else answer

    def watch(self) -> None:
        """Write what events have changed; let the model speak where meters have fallen silent."""
        spans = self._scheduler.energy.measured.spans
        if spans.changed:
            self._write(None, {})
        now_s = self._context.now()
        silent = [name for name, heard in self._heard.items() if now_s > sum(heard)]
        for host in silent:
            _, for_s = self._heard.pop(host)
            where = host or "this machine"
            self._context.say(
                warning(f"no report of the meters of {where} for {for_s:g} s: by the model")
            )
            self._scheduler.forget_meter(host, self._context.time())

    def _hear(self, host: str, now_s: float) -> None:
        """Note that a host has reported, and for how long that will do."""
        before_s, _ = self._heard.get(host, (now_s, 0.0))
        self._heard[host] = now_s, min(max(STALE_S, 3 * (now_s - before_s)), LONGEST_STALE_S)

    def write_all(self) -> None:
        """Write rows of what lasts too, up to now: then they add up to the books."""
        energy = self._scheduler.energy
        if energy.begun:
            self._write(max(self._context.time(), energy.measured.until_s), {})

    def node_w(self, name: str) -> float | None:
        """Return the newest mean power of a node, W; None where it is not measured."""
        return self._scheduler.energy.measured.node_w.get(name)

    @property
    def cluster_w(self) -> float:
        """What the cluster draws, W: measured nodes as last read, the others by the model."""
        return self._scheduler.energy.power_w

    def _write(self, now_s: float | None, notes: dict[str, dict[str, object]]) -> None:
        measured = self._scheduler.energy.measured
        self._context.journal.book(measured.spans.rows(now_s), notes)
        if self._context.now() >= self._forgot_s + FORGET_S:  # it looks at all hosts
            self._forgot_s = self._context.now()
            measured.spans.forget(measured.kept_s)


def devices_of(
    report: Metered, cluster: Cluster, measured: Measured
) -> Mapping[str, Sequence[str]]:
    """Return which nodes each device belongs to; where jobs share them, to hosts and their slots.

    On a machine whose cores and GPUs are nodes (it reports by no name), ``gpu-0`` is the node with
    the slot ``gpu:0``; all else is shared by the nodes of cores, if there are any. ``node`` holds
    all other devices, which then belong to none.

    Raises:
        ValueError: the report is of a node that there is not.
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
    found: dict[str, Sequence[str]] = {}
    for device in devices:
        kind, _, number = device.partition("-")
        slot = f"gpu:{number}"
        of_gpu = [n for n, own in zip(names, slots, strict=True) if slot in own]
        found[device] = of_gpu if kind == "gpu" else cores or here
    return found


def restore_energy(scheduler: Scheduler, journal: Journal) -> None:
    """Bring back what was measured and written before, once all events were followed again."""
    energy, notes = scheduler.energy, journal.notes(NOTE)
    measured = energy.measured
    for key, note in notes.items():
        measured.hosts[key.removeprefix(NOTE)] = msgspec.convert(note, MeteredHost)
    sums = journal.energy_sums(measured.spans.totals.since_s)
    energy.restore(sums, journal.newest_energy(min(measured.kept_s.values(), default=inf)))


# FUSED rms.daemon.nodes.energy: What meters say of the cluster's power, on its way to the scheduler while a power cap holds.

LOOK_S = 1.0
"""How often readings are held against the cap."""

LAG_S = 10.0
"""A reading that is in part of before jobs drew less counts only if none has for so long."""

CAP_STALE_S = 60.0
"""Meters that have not reported for so long say nothing of the cluster's power.

Where they report more rarely, this and :data:`LAG_S` are at least :data:`REPORTS` times as long as
between two reports.
"""

REPORTS = 3


class PowerWatch:
    """Enters measured power as an event where it changes what is left of the cap.

    So it is in the journal, and what was decided on it is decided again by a replay.
    """

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._reports: dict[str, tuple[float, float]] = {}
        self._less_s, self._looked_s, self._counted_s = -inf, -inf, -inf
        self._begun_s = context.now()

    def report(self, said: Metered) -> None:
        """Take in that meters have read what was drawn since their last report."""
        if said.devices:
            _, before_s = self._reports.get(said.node, (0.0, said.at_s))
            self._reports[said.node] = before_s, said.at_s

    def followed(self, event: Event) -> None:
        """Take in that an event has been followed."""
        if event.lowers_power:
            self._less_s = event.at_s

    def look(self) -> None:
        """Tell the scheduler what the cluster draws, if that matters to the cap."""
        state, now_s = self._context.state, self._context.now()
        if state.power_cap_w is None or now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        rarely_s = REPORTS * max([end_s - s for s, end_s in self._reports.values()], default=0.0)
        from_s = now_s - max(CAP_STALE_S, rarely_s)
        heard = [since_s for since_s, end_s in self._reports.values() if end_s > from_s]
        if heard:
            due_s = self._counted_s + max(LAG_S, rarely_s)
            if min(heard) < self._less_s and now_s < due_s:
                return
            self._counted_s = now_s
            watts = self._context.scheduler.energy.power_w
        elif now_s < self._begun_s + CAP_STALE_S:
            return  # what was read before a restart holds until meters report again
        else:
            watts = expected_w(state)
        if matters(state, watts):
            self._handle(PowerMeasured(self._context.time(), watts))
