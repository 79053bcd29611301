"""Who held which node when, with the energy of each such span: modelled, measured, and the sums.

A span is a node in one pair of hands: those of a job (and of one of its worlds, and of a resize
while that lasts) or nobody's. It begins and ends with a change of hands, so there are as many as
there are changes, however often a meter reports. By the model it has its power times its time; what
was measured takes the place of that (:mod:`rms.core.measured`). All that is said of one owner and
all that is said of one node are summed apart, so that the two sums can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from rms.core.joules import BOOT, IDLE, MODEL, OFF, Share, Span, Totals
from rms.core.model import JobId
from rms.wire.users import EnergyRow

Carry = tuple[float, float] | None
"""Until when meters have reported after the end of a span, and what share of the model's energy
they replaced: the next span's from its beginning."""


class Spans:
    """The spans of all nodes, and their sums.

    Attributes:
        totals: see there.
        changed: spans with rows to be written.
        held: the nodes of each job.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.changed: dict[Span, None] = {}
        self._of: dict[str, list[Span]] = {}
        self.held: dict[JobId, Sequence[str]] = {}
        self._worlds: dict[JobId, dict[str, int]] = {}
        self._over: set[str] = set()

    # --- changes of hands --------------------------------------------------------------------

    def open(self, at_s: float, watts: Mapping[str, float]) -> None:
        """Begin with nodes that nobody holds, which draw this power."""
        self.held.clear()
        self._worlds.clear()
        for node, power_w in watts.items():
            self._begin(Span(node, IDLE, None, 0, power_w, at_s), None)

    def close(self, at_s: float) -> None:
        """End all spans: these nodes are gone, or nobody's concern any more."""
        for spans in self._of.values():
            if spans and spans[-1].end_s is None:
                self._end(spans[-1], at_s)

    def follow(
        self,
        at_s: float,
        holdings: Mapping[JobId, tuple[Sequence[str], int]],
        watts: Callable[[str], float],
    ) -> None:
        """Enter which nodes some jobs hold from now on, and in which resize (0 for none).

        Args:
            watts: power of a node by the model.
        """
        changes: dict[str, tuple[str, int]] = {}
        for job in holdings:
            changes.update(dict.fromkeys(self.held.get(job, ()), (IDLE, 0)))
        for job, (nodes, resize) in holdings.items():
            changes.update(dict.fromkeys(nodes, (job, resize)))
            if nodes:
                self.held[job] = nodes
            else:
                self.held.pop(job, None)
                self._worlds.pop(job, None)
        for node, (owner, resize) in changes.items():
            power_w, now = watts(node), self._of[node][-1]
            if (now.owner, now.resize, now.watts) != (owner, resize, power_w):
                world = self._world(owner, node)
                self._replace(now, Span(node, owner, world, resize, power_w, at_s))

    def switch(self, at_s: float, owners: Mapping[str, str], watts: Callable[[str], float]) -> None:
        """Enter that nodes were powered off or on, or have booted: by whom each is owned now.

        Those that a job holds by now are left as they are.

        Args:
            owners: of each node :data:`IDLE`, :data:`OFF` or :data:`BOOT`.
            watts: power of a node by the model.
        """
        for node, owner in owners.items():
            power_w, now = watts(node), self._of[node][-1]
            if now.owner in (IDLE, OFF, BOOT) and (now.owner, now.watts) != (owner, power_w):
                self._replace(now, Span(node, owner, None, 0, power_w, at_s))

    def booted(self, at_s: float, node: str, joules: float) -> None:
        """Enter the energy of a boot that takes no time."""
        span = Span(node, BOOT, None, 0, 0.0, at_s, at_s, at_once_j=joules)
        self._of[node].insert(-1, span)
        self._over.add(node)
        self.changed[span] = None

    def launched(self, at_s: float, job: JobId, worlds: Mapping[str, int]) -> None:
        """Enter which launch of a job is on which node; on others it is the newest."""
        self._worlds.setdefault(job, {}).update(worlds)
        for node in self.held.get(job, ()):
            now, world = self._of[node][-1], self._world(job, node)
            if now.world is None:
                now.world = world
            elif now.world != world:
                self._replace(now, Span(node, job, world, now.resize, now.watts, at_s))

    def split(self, nodes: Iterable[str], at_s: float) -> None:
        """Let a new span begin on each of these nodes, in the same hands."""
        for node in nodes:
            spans = self._of.get(node)
            if spans and spans[-1].end_s is None and spans[-1].begin_s < at_s:
                now = spans[-1]
                new = Span(node, now.owner, now.world, now.resize, now.watts, at_s)
                self._replace(now, new)

    def _world(self, owner: str, node: str) -> int | None:
        known = self._worlds.get(JobId(owner))
        return known.get(node, max(known.values())) if known else None

    def _replace(self, now: Span, new: Span) -> None:
        carry = self._end(now, new.begin_s)
        if now in self.changed and (now.begin_s, now.owner) == (new.begin_s, new.owner):
            self._drop(now)  # rows are told apart by what these have in common
            del self.changed[now]
            new.measured, new.saved = now.measured, now.saved
        self._begin(new, carry)

    def _end(self, span: Span, at_s: float) -> Carry:
        """End a span, even at a time that a meter has already spoken of."""
        span.end_s = end_s = max(span.begin_s, at_s)
        self.changed[span] = None
        self._over.add(span.node)
        carry, until_s = None, span.booked_s
        if until_s > end_s:
            late_s = until_s - end_s
            joules = span.replaced_j * late_s / (until_s - span.begin_s)
            self.replaced(span, -joules, end_s)
            span.booked_s = end_s
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
        """Return all spans that are kept in mind, those of a node rising."""
        return [span for spans in self._of.values() for span in spans]

    def keep(self, span: Span, *, changed: bool) -> None:
        """Keep a span in mind again, the next of its node."""
        self._of.setdefault(span.node, []).append(span)
        if changed:
            self.changed[span] = None
        if span.end_s is not None:
            self._over.add(span.node)

    # --- energy ------------------------------------------------------------------------------

    def count_from(self, at_s: float, booked_s: float) -> None:
        """Let the totals count from a time on.

        Args:
            booked_s: until when meters have reported.
        """
        self.totals.count_from(at_s)
        if booked_s > at_s:
            since_j = self.totals.since_j
            for span in self.kept():
                if span.begin_s >= at_s:
                    joules = sum(share.joules for share in span.measured.values())
                    more_j = joules - span.replaced_j
                    since_j[span.owner] = since_j.get(span.owner, 0.0) + more_j

    def pieces(self, node: str, since_s: float, until_s: float) -> list[tuple[Span, float]]:
        """Return the spans of a time on a node, each with the seconds it has of it, rising.

        Of no time at all it is the present span, with none.
        """
        spans = self._of.get(node, [])
        if until_s <= since_s:
            return [(spans[-1], 0.0)] if spans and spans[-1].end_s is None else []
        found = []
        for span in reversed(spans):
            if span.end_s is not None and span.end_s <= since_s:
                break
            seconds = span.seconds(since_s, until_s)
            if seconds > 0.0:
                found.append((span, seconds))
        return found[::-1]

    def replaced(self, span: Span, joules: float, until_s: float) -> None:
        """Take from a span what of the model's energy a measurement stands for."""
        span.replaced_j += joules
        span.booked_s = max(span.booked_s, until_s)
        self.totals.enter(span, -joules)
        self.totals.enter_node(span.node, -joules)
        self.changed[span] = None

    def measured(self, span: Span, device: str, source: str, more: Share) -> None:
        """Add to a span, and to its owner, what was measured; its node is summed apart."""
        span.measured.setdefault((device, source), Share()).add(more)
        self.totals.enter(span, more.joules)
        self.totals.enter_source(span.owner, source, more)
        self.changed[span] = None

    # --- rows --------------------------------------------------------------------------------

    def on(self, node: str) -> Sequence[Span]:
        """Return the spans of a node that are kept in mind, rising."""
        return self._of.get(node, ())

    def present(self, now_s: float, jobs: Iterable[str] | None = None) -> list[EnergyRow]:
        """Return the rows of spans that are not written as they are now, up to now.

        Args:
            jobs: of these only; of all owners where None.
        """
        found: Iterable[Span]
        if jobs is None:
            found = self.kept()
        else:
            owners = frozenset(jobs)
            held = [self._of[node][-1] for job in owners for node in self.held.get(JobId(job), ())]
            found = dict.fromkeys([*(s for s in self.changed if s.owner in owners), *held])
        return [row for span in found for row in span.rows(now_s)]

    def rows(self, now_s: float | None = None) -> list[EnergyRow]:
        """Return the rows that are new or have changed since they were last asked for.

        Args:
            now_s: spans that last have rows too, up to then; None for those that meters spoke of.
        """
        if now_s is not None:
            lasting = (spans[-1] for spans in self._of.values() if spans)
            self.changed.update(dict.fromkeys(s for s in lasting if s.end_s is None))
        found = [row for span in self.changed for row in span.rows(now_s)]
        for span in self.changed:
            span.saved = True
        self.changed.clear()
        return found

    def forget(self, kept_s: Mapping[str, float]) -> None:
        """Drop spans that are over and written.

        Args:
            kept_s: of nodes that have meters, the time from which spans are kept: a report may
                tell of it.
        """
        for node in list(self._over):
            from_s = kept_s.get(node, inf)
            left = [
                span
                for span in self._of[node]
                if not span.saved or span.end_s is None or span.end_s > from_s
            ]
            self._of[node] = left
            if all(span.end_s is None for span in left):
                self._over.discard(node)

    def restore(self, rows: Iterable[EnergyRow], booked_s: Mapping[str, float]) -> None:
        """Go on from the newest rows that were written, after all events were followed again.

        What was written has worlds, which no event has; before it nothing is of interest any more.

        Args:
            rows: of each node the last span's at least; rising in time. They are in ``totals``.
            booked_s: until when meters have reported, for nodes that have any.
        """
        written: dict[str, dict[tuple[float, str], list[EnergyRow]]] = {}
        for row in rows:
            of_node = written.setdefault(row.node, {})
            of_node.setdefault((row.begin_s, row.owner), []).append(row)
        for node, groups in written.items():
            followed = self._of.get(node)
            if not followed:
                continue
            from_s = followed[0].begin_s  # a snapshot has none of those before
            known = [rows for (at_s, _), rows in groups.items() if at_s >= from_s]
            if known:
                booked = booked_s.get(node, -inf)
                self._restore_node(node, [_written(rows, booked) for rows in known])

    def _restore_node(self, node: str, written: Sequence[Span]) -> None:
        """Let what was written of a node take the place of what was followed of that time."""
        followed, known, carry = self._of[node], list[Span](), None
        self._of[node] = known
        under = {span: _at(followed, span.begin_s) for span in written}
        lasted = [s for s, found in under.items() if found is not None and found.owner == s.owner]
        for span in written:  # others have lasted no time, by events that came late
            if span not in lasted and span.lasted_s:
                known.append(span)
                carry = self._end(span, span.begin_s)
        from_s = written[0].begin_s  # what was before is written
        for number, span in enumerate(lasted, 1):
            found = under[span]
            assert found is not None
            span.watts = found.watts
            known.append(span)
            next_s = lasted[number].begin_s if number < len(lasted) else inf
            from_s = min(next_s, inf if found.end_s is None else found.end_s)
            carry = carry if from_s == inf else self._end(span, from_s)
        rest = [span for span in followed if span.begin_s >= from_s]
        for span in set(followed).difference(rest):
            self.changed.pop(span, None)
        known.extend(rest)
        known.sort(key=lambda span: span.begin_s)  # those without time before others
        for span in rest:
            if carry is not None and carry[0] > span.begin_s:
                seconds = span.seconds(span.begin_s, carry[0])
                self.replaced(span, carry[1] * span.watts * seconds, span.begin_s + seconds)


def _written(rows: Sequence[EnergyRow], booked_s: float) -> Span:
    """Return a span as its rows have it, without its end."""
    first = rows[0]
    whose = first.node, first.owner, first.world, first.resize
    span = Span(*whose, 0.0, first.begin_s, saved=True)
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
    """Return the span of a time, None where there is none."""
    for span in reversed(spans):
        if span.begin_s <= at_s:
            return span if span.end_s is None or span.end_s > at_s else None
    return None
