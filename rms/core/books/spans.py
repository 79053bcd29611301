"""The holders of nodes over time, and the owners of their energy, with the sums.

A job holds a node from the decision on, and owns its energy from its start on: a span is a node
with one owner, a job (and one of its worlds, and a resize while that lasts), or idle, off, booting.
It begins and ends with a change of owners, so the number of spans does not depend on meters. Its
model energy is power times time, which a measurement replaces (:mod:`rms.core.books.measured`).
Energy is summed by owner and by node, independently, so that the two sums can be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import msgspec

from rms.core.model.jobs import JobId, Node
from rms.core.state import is_task
from rms.wire.users import EnergyRow, NodeSpan

IDLE = "idle"
"""Owner of the energy of idle nodes."""

OFF = "off"
"""Owner of the energy of nodes that are powered off."""

BOOT = "boot"
"""Owner of the energy of nodes that boot."""

PAST = "past"
"""Owner of the energy of forgotten jobs."""

MODEL = "model"
"""Source of energy that was not measured."""

WHOLE = "node"
"""Device of a span as a whole, for the model."""

MOST = 20_000
"""Least number of entries for charts that are kept when older ones are forgotten."""

RESOLUTION_S = 1.0
"""Of readings at shorter intervals, only the first and the newest are kept."""

LOST_S = 3600.0
"""Spans of running jobs are kept for this time longer than others: it may turn out as lost work."""

BALANCE = 1e-9
"""Two sums of the same energy may differ by this share of the cluster's energy."""


class BalanceError(RuntimeError):
    """Two sums of the same energy differ: a defect of the program."""


def check_balance(expected: str, got_j: float, expected_j: float, cluster_j: float) -> None:
    """Raise :class:`BalanceError` if two sums of the same energy differ by more than rounding."""
    if abs(got_j - expected_j) > BALANCE * max(1.0, cluster_j):
        raise BalanceError(f"expected {expected}, got {got_j} J and {expected_j} J")


@dataclass(slots=True)
class Share:
    """Measured energy of one owner or span from one source.

    Attributes:
        uncertainty_j: half-width of ``joules``, about 95 %, plus the largest possible error of the
            split for an estimate; a sum, as if all errors were fully correlated.
        estimate: part of it is from a device that several nodes share.
    """

    joules: float = 0.0
    uncertainty_j: float = 0.0
    estimate: bool = False

    def add(self, more: Share) -> None:
        """Add another measured energy."""
        self.joules += more.joules
        self.uncertainty_j += more.uncertainty_j
        self.estimate |= more.estimate


class LostTime(NamedTuple):
    """A time of lost work of a job: of lost steps, or of the ``recovery`` after a failure."""

    begin_s: float
    end_s: float
    recovery: bool


class Span(msgspec.Struct, array_like=True, eq=False):
    """The time in which a node has one owner.

    Attributes:
        owner: a job's id, or :data:`IDLE`.
        world: number of the job's launch on this node, or None.
        resize: number of the resize that the job is in, 0 for none.
        watts: power by the model.
        end_s: None while it lasts.
        booked_s: end of the meters' reports.
        replaced_j: the part of the model's energy that measurements replace.
        measured: by device and source.
        saved: rows of it were written.
        at_once_j: energy of the model that took no time: of a boot of a node that is up at once.
        lasted_s: its length in the journal from which it was read.
    """

    node: str
    owner: str
    world: int | None
    resize: int
    watts: float
    begin_s: float
    end_s: float | None = None
    booked_s: float = -inf
    replaced_j: float = 0.0
    measured: dict[tuple[str, str], Share] = {}
    saved: bool = False
    at_once_j: float = 0.0
    lasted_s: float = 0.0

    def seconds(self, since_s: float, until_s: float) -> float:
        """Return the length of its part of a time, in s."""
        end = until_s if self.end_s is None else min(self.end_s, until_s)
        return max(0.0, end - max(self.begin_s, since_s))

    def rows(self, now_s: float | None = None) -> Iterable[EnergyRow]:
        """Yield its rows: the model's, less the replaced part, and one per device.

        Args:
            now_s: the end of the model's row of an open span; None for the last report.
        """
        end_s = self.end_s
        if end_s is None:
            end_s = max(self.begin_s, self.booked_s if now_s is None else now_s)
        modelled_j = self.watts * (end_s - self.begin_s) + self.at_once_j
        model = Share(modelled_j - self.replaced_j)
        yield self._row(WHOLE, MODEL, end_s, model, self.replaced_j)
        measured_s = max(self.begin_s, min(end_s, self.booked_s))
        for (device, source), share in self.measured.items():
            yield self._row(device, source, measured_s, share, 0.0)

    def _row(
        self, device: str, source: str, end_s: float, share: Share, replaced_j: float
    ) -> EnergyRow:
        key = self.owner, self.world, self.resize, self.node
        sums = share.joules, share.uncertainty_j, share.estimate
        return EnergyRow(*key, device, source, self.begin_s, end_s, *sums, replaced_j)


def _sums() -> defaultdict[Any, float]:
    return defaultdict(float)


@dataclass
class Totals:
    """Energy that measurements add to the model's books, and take from them.

    Attributes:
        measured: by owner and source.
        owner_j: by owner, measured less replaced.
        node_j: the same by node, summed independently.
        resize_j: the same by job and resize.
        resize_measured: measured energy by job and resize, and by source.
        lost_j: the same by job, of its lost work: of lost steps, and (True) of recoveries.
        since_s: the time since which ``since_j`` counts.
        since_j: the same by owner, of spans that began then or later.
    """

    measured: dict[str, dict[str, Share]] = field(default_factory=dict)
    owner_j: defaultdict[str, float] = field(default_factory=_sums)
    node_j: defaultdict[str, float] = field(default_factory=_sums)
    resize_j: defaultdict[tuple[str, int], float] = field(default_factory=_sums)
    resize_measured: dict[tuple[str, int], dict[str, Share]] = field(default_factory=dict)
    lost_j: defaultdict[tuple[str, bool], float] = field(default_factory=_sums)
    since_s: float = inf
    since_j: defaultdict[str, float] = field(default_factory=_sums)

    def enter(self, span: Span, joules: float) -> None:
        """Add a measurement's difference to the model's energy to the sums of a span's owner."""
        self.owner_j[span.owner] += joules
        if span.resize:
            self.resize_j[span.owner, span.resize] += joules
        if span.begin_s >= self.since_s:
            self.since_j[span.owner] += joules

    def enter_source(self, owner: str, source: str, more: Share, resize: int = 0) -> None:
        """Add measured energy to the sums of an owner, and of its resize, from a source."""
        self.measured.setdefault(owner, {}).setdefault(source, Share()).add(more)
        if resize:
            of_resize = self.resize_measured.setdefault((owner, resize), {})
            of_resize.setdefault(source, Share()).add(more)

    def forget(self, owner: str) -> None:
        """Merge a finished owner's energy into the sum of forgotten jobs."""
        for sums in (self.owner_j, self.since_j):
            if owner in sums:
                sums[PAST] += sums.pop(owner)
        for source, share in self.measured.pop(owner, {}).items():
            self.enter_source(PAST, source, share)
        for recovery in (False, True):
            self.lost_j.pop((owner, recovery), None)

    def load(self, row: EnergyRow) -> None:
        """Add a written row, or the sum of several of one owner, node and resize."""
        span = Span(row.node, row.owner, None, row.resize, 0.0, row.begin_s)
        joules = -row.replaced_j
        if row.source != MODEL:
            joules = row.joules
            share = Share(row.joules, row.uncertainty_j, row.estimate)
            self.enter_source(row.owner, row.source, share, row.resize)
        self.enter(span, joules)
        self.node_j[row.node] += joules


Carry = tuple[float, float] | None
"""The end of reports that go beyond the end of a span, and the share of the model's energy that
they replaced: both apply to the next span."""


class Spans:
    """The holders of all nodes, the spans of their energy with the sums, and data of charts.

    Attributes:
        names: the nodes.
        lost: times of lost work by job (:attr:`rms.core.books.ledger.Ledger.lost_times`).
        changed: spans with rows to be written.
        held: nodes by job, or by program with tasks.
        spans: the times in which jobs held nodes, in the order in which they began.
        past: the finished ones of them, in the order in which they ended.
        power_spans: of nodes that were off or booted, in the order in which they began.
        power_w: ``(time, power of the cluster from then on)``, strictly rising in time.
        present_spans, asleep: by node, those of ``spans`` and of ``power_spans`` without an end.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.use(names)
        self.totals = Totals()
        self.lost: Mapping[JobId, Sequence[LostTime]] = {}
        self.changed: dict[Span, None] = {}
        self._of: dict[str, list[Span]] = {}
        self.held: dict[JobId, Sequence[str]] = {}
        self._worlds: dict[JobId, dict[str, int]] = {}
        self._over: set[str] = set()
        self.spans: list[NodeSpan] = []
        self.past: list[NodeSpan] = []
        self.power_spans: list[NodeSpan] = []
        self.power_w: list[tuple[float, float]] = []
        self.present_spans: dict[str, NodeSpan] = {}
        self.asleep: dict[str, NodeSpan] = {}
        self._ends_with_reading = False

    def use(self, names: Sequence[str]) -> None:
        """Go on with these nodes."""
        self.names, self._at = names, {name: at for at, name in enumerate(names)}

    # --- changes of holders and owners ---------------------------------------------------------

    def open(self, at_s: float, watts: Mapping[str, float]) -> None:
        """Begin with idle nodes, which draw this power."""
        for node, power_w in watts.items():
            self._begin(Span(node, IDLE, None, 0, power_w, at_s), None)

    def close(self, at_s: float) -> None:
        """End all spans."""
        for spans in self._of.values():
            if spans and spans[-1].end_s is None:
                self._end(spans[-1], at_s)
        for held in (*self.present_spans.values(), *self.asleep.values()):
            held.end_s = at_s
        self.past += self.present_spans.values()
        for by_name in (self.present_spans, self.asleep, self.held, self._worlds):
            by_name.clear()

    def follow(
        self,
        at_s: float,
        holdings: Mapping[JobId, tuple[Sequence[str], int | None]],
        watts: Callable[[str], float],
    ) -> None:
        """Enter the nodes that jobs hold from now on, and the resize.

        The resize is 0 for none, and None for a job that has not started: it draws no power yet.
        """
        changes: dict[str, tuple[str, int]] = {}
        moved = [
            job
            for job, (nodes, _) in holdings.items()
            if nodes != self.held.get(job, ()) and not is_task(job)
        ]
        for job in holdings:
            before = self.held.get(job, ())
            if before and self._of[before[0]][-1].owner == job:
                changes.update(dict.fromkeys(before, (IDLE, 0)))
        for job in moved:
            left = set(holdings[job][0])
            for node in [node for node in self.held.get(job, ()) if node not in left]:
                span = self.present_spans.pop(node)
                span.end_s = at_s
                self.past.append(span)
        for job in moved:
            new = set(holdings[job][0]).difference(self.held.get(job, ()))
            for node in sorted(new, key=self._at.__getitem__):
                span = self.present_spans[node] = NodeSpan(node, job, at_s, None)
                self.spans.append(span)
        for job, (nodes, resize) in holdings.items():
            if resize is None:
                self._worlds.pop(job, None)
            else:
                changes.update(dict.fromkeys(nodes, (job, resize)))
            if nodes:
                self.held[job] = nodes
            else:
                self.held.pop(job, None)
        for node, (owner, resize) in changes.items():
            power_w, now = watts(node), self._of[node][-1]
            if (now.owner, now.resize, now.watts) != (owner, resize, power_w):
                world = self._world(owner, node)
                self._replace(now, Span(node, owner, world, resize, power_w, at_s))

    def switch(self, at_s: float, owners: Mapping[str, str], watts: Callable[[str], float]) -> None:
        """Enter the owners (idle, off, boot) of nodes that were switched or have booted.

        Nodes that a job holds by now do not change.
        """
        for node, owner in owners.items():
            power_w, now = watts(node), self._of[node][-1]
            if now.owner in (IDLE, OFF, BOOT) and (now.owner, now.watts) != (owner, power_w):
                self._replace(now, Span(node, owner, None, 0, power_w, at_s))

    def sleep(self, at_s: float, owners: Mapping[Node, str]) -> None:
        """Enter the nodes, or slots, that are off or boot from now on."""
        asleep = {self.names[node]: owner for node, owner in owners.items()}
        for node, span in list(self.asleep.items()):
            if asleep.get(node) != span.job:
                self.asleep.pop(node).end_s = at_s
        for node, owner in asleep.items():
            if node not in self.asleep:
                self.asleep[node] = NodeSpan(node, owner, at_s, None)
                self.power_spans.append(self.asleep[node])

    def booted(self, at_s: float, node: str, joules: float) -> None:
        """Enter the energy of a boot that takes no time."""
        span = Span(node, BOOT, None, 0, 0.0, at_s, at_s, at_once_j=joules)
        self._of[node].insert(-1, span)
        self._over.add(node)
        self.changed[span] = None

    def launched(self, at_s: float, job: JobId, worlds: Mapping[str, int]) -> None:
        """Enter the launches of a job by node; other nodes have the newest."""
        self._worlds.setdefault(job, {}).update(worlds)
        for node in self.held.get(job, ()):
            now, world = self._of[node][-1], self._world(job, node)
            if now.owner != job:
                continue
            if now.world is None:
                now.world = world
            elif now.world != world:
                self._replace(now, Span(node, job, world, now.resize, now.watts, at_s))

    def split(self, nodes: Iterable[str], at_s: float) -> None:
        """Begin new spans on nodes, with the same owners."""
        for node in nodes:
            spans = self._of.get(node)
            if spans and spans[-1].end_s is None and spans[-1].begin_s < at_s:
                now = spans[-1]
                new = Span(node, now.owner, now.world, now.resize, now.watts, at_s)
                self._replace(now, new)

    def _world(self, owner: str, node: str) -> int | None:
        worlds = self._worlds.get(JobId(owner))
        return worlds.get(node, max(worlds.values())) if worlds else None

    def _replace(self, now: Span, new: Span) -> None:
        carry = self._end(now, new.begin_s)
        if now in self.changed and (now.begin_s, now.owner) == (new.begin_s, new.owner):
            self._drop(now)  # rows are distinguished by these fields
            del self.changed[now]
            new.measured, new.saved = now.measured, now.saved
        self._begin(new, carry)

    def _end(self, span: Span, at_s: float) -> Carry:
        """End a span, even before the end of a meter's report."""
        span.end_s = end_s = max(span.begin_s, at_s)
        self.changed[span] = None
        self._over.add(span.node)
        carry, until_s = None, span.booked_s
        if until_s > end_s:
            late_s = until_s - end_s
            joules = span.replaced_j * late_s / (until_s - span.begin_s)
            self.replaced(span, -joules, end_s)
            self.enter_lost(span, -1)
            span.booked_s = end_s
            self.enter_lost(span)
            carry = until_s, joules / (span.watts * late_s) if span.watts else 1.0
        if end_s == span.begin_s and not (span.measured or span.saved):
            self._drop(span)
            del self.changed[span]
        return carry

    def _drop(self, span: Span) -> None:
        own = self._of[span.node]
        if own[-1] is span:  # a restart keeps thousands before it
            own.pop()
        else:
            own.remove(span)

    def _begin(self, span: Span, carry: Carry) -> None:
        self._of.setdefault(span.node, []).append(span)
        if carry is not None and carry[0] > span.begin_s:
            until_s, share = carry
            self.replaced(span, share * span.watts * (until_s - span.begin_s), until_s)

    def kept(self) -> Iterable[Span]:
        """Return all spans in memory, in the order of time by node."""
        return [span for spans in self._of.values() for span in spans]

    def keep(self, spans: Iterable[Span]) -> None:
        """Add the spans of a snapshot, by node in the order of time; changed ones are not saved."""
        for span in spans:
            self._of.setdefault(span.node, []).append(span)
            if not span.saved:
                self.changed[span] = None
            span.saved = False
            if span.end_s is not None:
                self._over.add(span.node)

    # --- data of charts ----------------------------------------------------------------------

    def power(self, now_s: float, watts: float) -> None:
        """Enter the power of the cluster from now on, after an event."""
        self._ends_with_reading = False
        if self.power_w and self.power_w[-1][0] == now_s:
            self.power_w[-1] = now_s, watts
        else:
            self.power_w.append((now_s, watts))

    def reading(self, now_s: float, watts: float) -> None:
        """Enter the power of the cluster from now on, after a meter was read."""
        curve = self.power_w
        if self._ends_with_reading and len(curve) > 1 and now_s < curve[-2][0] + RESOLUTION_S:
            curve.pop()
        self.power(now_s, watts)
        self._ends_with_reading = True

    def forget_jobs(self, jobs: Collection[str]) -> None:
        """Drop the held nodes of finished jobs, and the oldest of all other data of charts."""
        self.spans = [span for span in self.spans if span.job not in jobs or span.end_s is None]
        del self.past[:-MOST]
        del self.power_w[:-MOST]
        old = self.power_spans[:-MOST]
        if old:
            left = [span for span in old if span.end_s is None]
            self.power_spans = left + self.power_spans[-MOST:]

    # --- energy ------------------------------------------------------------------------------

    def count_from(self, at_s: float, booked_s: float) -> None:
        """Let the totals count from a time on; reports end at ``booked_s``."""
        since_j, self.totals.since_s = self.totals.since_j, at_s
        since_j.clear()
        if booked_s > at_s:
            for span in self.kept():
                if span.begin_s >= at_s:
                    joules = sum(share.joules for share in span.measured.values())
                    since_j[span.owner] += joules - span.replaced_j

    def pieces(self, node: str, since_s: float, until_s: float) -> list[tuple[Span, float]]:
        """Return the spans of a time on a node with the seconds of their parts, rising.

        For an empty time it is the present span, with 0 s.
        """
        spans = self._of.get(node, [])
        if until_s <= since_s:
            return [(spans[-1], 0.0)] if spans and spans[-1].end_s is None else []
        pieces = []
        for span in reversed(spans):
            if span.end_s is not None and span.end_s <= since_s:
                break
            seconds = span.seconds(since_s, until_s)
            if seconds > 0.0:
                pieces.append((span, seconds))
        return pieces[::-1]

    def replaced(self, span: Span, joules: float, until_s: float) -> None:
        """Subtract the model's energy that a measurement replaces from a span."""
        self.enter_lost(span, -1)
        span.replaced_j += joules
        span.booked_s = max(span.booked_s, until_s)
        self.enter_lost(span)
        self.totals.enter(span, -joules)
        self.totals.node_j[span.node] -= joules
        self.changed[span] = None

    def measured(self, span: Span, device: str, source: str, more: Share) -> None:
        """Add measured energy to a span and its owner, but not to its node."""
        self.enter_lost(span, -1)
        span.measured.setdefault((device, source), Share()).add(more)
        self.enter_lost(span)
        self.totals.enter(span, more.joules)
        self.totals.enter_source(span.owner, source, more, span.resize)
        self.changed[span] = None

    def enter_lost(self, span: Span, sign: int = 1) -> None:
        """Add the part of a span's measured less replaced energy that is lost work, or subtract it.

        A measurement counts evenly over its span: a change of the span changes its lost part.
        """
        booked_s = span.booked_s - span.begin_s
        if span.owner not in self.lost or booked_s <= 0.0:
            return
        more_j = sum(share.joules for share in span.measured.values()) - span.replaced_j
        for begin_s, end_s, recovery in self.lost[JobId(span.owner)]:
            seconds = min(end_s, span.booked_s) - max(begin_s, span.begin_s)
            if seconds > 0.0:
                joules = sign * more_j * seconds / booked_s
                self.totals.lost_j[span.owner, recovery] += joules

    # --- rows --------------------------------------------------------------------------------

    def on(self, node: str) -> Sequence[Span]:
        """Return the spans of a node in memory, rising."""
        return self._of.get(node, ())

    def present(self, now_s: float, jobs: Iterable[str] | None = None) -> list[EnergyRow]:
        """Return the rows that differ from the written ones, of jobs or (None) of all owners."""
        spans: Iterable[Span]
        if jobs is None:
            spans = self.kept()
        else:
            owners = frozenset(jobs)
            held = [self._of[node][-1] for job in owners for node in self.held.get(JobId(job), ())]
            own = [span for span in (*self.changed, *held) if span.owner in owners]
            spans = dict.fromkeys(own)
        return [row for span in spans for row in span.rows(now_s)]

    def rows(self, now_s: float | None = None) -> list[EnergyRow]:
        """Return the rows that are new or have changed since the last call.

        Args:
            now_s: open spans have rows up to then; where None, only spans with reports.
        """
        if now_s is not None:
            lasting = (spans[-1] for spans in self._of.values() if spans)
            self.changed.update(dict.fromkeys(s for s in lasting if s.end_s is None))
        rows = [row for span in self.changed for row in span.rows(now_s)]
        for span in self.changed:
            span.saved = True
        self.changed.clear()
        return rows

    def forget(self, kept_s: Mapping[str, float]) -> None:
        """Drop spans that are over and written, except those that end after ``kept_s``.

        Its entry "" is for nodes without one.

        Spans of running jobs are kept for :data:`LOST_S` longer, with all later ones of the node.
        """
        for node in list(self._over):
            from_s, spans = kept_s.get(node, kept_s.get("", inf)), self._of[node]
            kept = (
                at
                for at, span in enumerate(spans)
                if not span.saved
                or span in self.changed
                or span.end_s is None
                or span.end_s > from_s - (LOST_S if span.owner in self.held else 0.0)
            )
            left = self._of[node] = spans[next(kept, len(spans)) :]
            if all(span.end_s is None for span in left):
                self._over.discard(node)

    def load_lost(self, rows: Iterable[EnergyRow], booked_s: Mapping[str, float]) -> None:
        """Count the lost work in all written rows of the jobs that have lost some."""
        groups: dict[tuple[str, float, str], list[EnergyRow]] = {}
        for row in rows:
            groups.setdefault((row.node, row.begin_s, row.owner), []).append(row)
        for (node, _, _), own in groups.items():
            self.enter_lost(_written(own, booked_s.get(node, -inf)))

    def restore(self, rows: Iterable[EnergyRow], booked_s: Mapping[str, float]) -> None:
        """Go on from the newest written rows, after all events were followed again.

        Written rows have worlds, which events do not have; spans before them are dropped.

        Args:
            rows: at least those of the last span by node; rising in time, and in ``totals``.
            booked_s: end of the meters' reports by node.
        """
        written: dict[str, dict[tuple[float, str], list[EnergyRow]]] = {}
        for row in rows:
            of_node = written.setdefault(row.node, {})
            of_node.setdefault((row.begin_s, row.owner), []).append(row)
        for node, groups in written.items():
            followed = self._of.get(node)
            if not followed:
                continue
            from_s = followed[0].begin_s  # a snapshot has no spans before that
            newest = [rows for (at_s, _), rows in groups.items() if at_s >= from_s]
            if newest:
                booked = booked_s.get(node, -inf)
                self._restore_node(node, [_written(rows, booked) for rows in newest])

    def _restore_node(self, node: str, written: Sequence[Span]) -> None:
        """Replace the followed spans of a node by the written ones of that time."""
        followed, spans, carry = self._of[node], list[Span](), None
        self._of[node] = spans
        under = {span: _at(followed, span.begin_s) for span in written}
        lasted = [s for s, same in under.items() if same is not None and same.owner == s.owner]
        for span in written:  # others have lasted no time, by events that came late
            if span not in lasted and span.lasted_s:
                spans.append(span)
                carry = self._end(span, span.begin_s)
        from_s = written[0].begin_s  # earlier spans are written
        for number, span in enumerate(lasted, 1):
            same = under[span]
            assert same is not None
            span.watts = same.watts
            spans.append(span)
            next_s = lasted[number].begin_s if number < len(lasted) else inf
            from_s = min(next_s, inf if same.end_s is None else same.end_s)
            carry = carry if from_s == inf else self._end(span, from_s)
        rest = [span for span in followed if span.begin_s >= from_s]
        for span in set(followed).difference(rest):
            self.changed.pop(span, None)
        spans.extend(rest)
        spans.sort(key=lambda span: span.begin_s)  # spans without time before others
        for span in rest:
            if carry is not None and carry[0] > span.begin_s:
                seconds = span.seconds(span.begin_s, carry[0])
                self.replaced(span, carry[1] * span.watts * seconds, span.begin_s + seconds)


def _written(rows: Sequence[EnergyRow], booked_s: float) -> Span:
    """Return the span of some rows, without its end."""
    first = rows[0]
    key = first.node, first.owner, first.world, first.resize
    span = Span(*key, 0.0, first.begin_s, saved=True)
    for row in rows:
        span.replaced_j += row.replaced_j
        span.lasted_s = max(span.lasted_s, row.end_s - row.begin_s)
        if row.source != MODEL:
            share = Share(row.joules, row.uncertainty_j, row.estimate)
            span.measured[row.device, row.source] = share
        elif row.end_s > row.begin_s:
            span.watts = (row.joules + row.replaced_j) / (row.end_s - row.begin_s)
    if span.replaced_j or span.measured:
        span.booked_s = min(booked_s, max(row.end_s for row in rows))
    return span


def _at(spans: Sequence[Span], at_s: float) -> Span | None:
    """Return the span at a time, or None."""
    for span in reversed(spans):
        if span.begin_s <= at_s:
            return span if span.end_s is None or span.end_s > at_s else None
    return None
