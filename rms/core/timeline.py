"""Who held which node when, and the cluster's power over time: of a daemon and of a simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rms.core.joules import BOOT, OFF
from rms.core.model import JobId, Node
from rms.core.state import State
from rms.wire.users import NodeSpan

MOST = 20_000
"""How many points and spans are kept at least when older ones are forgotten."""

RESOLUTION_S = 1.0
"""Of readings that follow one another faster than this, the first and the newest are kept."""

_NONE: frozenset[Node] = frozenset()


class Timeline:
    """What has happened on the nodes of a cluster.

    Args:
        names: the nodes.

    Attributes:
        spans: in the order in which they began.
        past: those of them that are over, in the order in which they ended.
        power_spans: of nodes that were off or booted, in that order too.
        power_w: ``(time, power of the cluster from then on)``, rising in time, each time once.
        open, asleep: of each node, its span that lasts, of ``spans`` and ``power_spans``.
        held: the nodes of each job.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.spans: list[NodeSpan] = []
        self.past: list[NodeSpan] = []
        self.power_spans: list[NodeSpan] = []
        self.power_w: list[tuple[float, float]] = []
        self.open: dict[Node, NodeSpan] = {}
        self.held: dict[JobId, frozenset[Node]] = {}
        self.asleep: dict[Node, NodeSpan] = {}
        self._ends_with_reading = False

    def hold(self, state: State, now_s: float, jobs: Iterable[JobId]) -> None:
        """Enter who holds which node now, after something has happened to ``jobs``.

        A job holds its nodes; while it is being resized, those of both worlds.
        """
        now: dict[JobId, frozenset[Node]] = {}
        for job_id in dict.fromkeys(jobs):
            job = state.running.get(job_id)
            nodes = () if job is None else job.held if job.resize_begun else job.nodes
            now[job_id] = frozenset(nodes)
            for node in self.held.get(job_id, frozenset()) - now[job_id]:
                span = self.open.pop(node)
                span.end_s = now_s
                self.past.append(span)
        for job_id, held in now.items():
            for node in sorted(held - self.held.get(job_id, _NONE)):
                span = NodeSpan(self.names[node], str(job_id), now_s, None)
                self.open[node] = span
                self.spans.append(span)
            if held:
                self.held[job_id] = held
            else:
                self.held.pop(job_id, None)

    def switch(self, state: State, now_s: float) -> None:
        """Enter which nodes are off or boot now."""
        now = dict.fromkeys(sorted(state.off), OFF) | dict.fromkeys(sorted(state.booting), BOOT)
        for node, span in list(self.asleep.items()):
            if now.get(node) == span.job:
                del now[node]
            else:
                self.asleep.pop(node).end_s = now_s
        for node, what in now.items():
            self.asleep[node] = NodeSpan(self.names[node], what, now_s, None)
            self.power_spans.append(self.asleep[node])

    def present(self) -> list[NodeSpan]:
        """Return the spans of jobs that last."""
        return list(self.open.values())

    def holders(self) -> list[JobId]:
        """Return the jobs that held nodes when they were last looked at."""
        return list(self.held)

    def power(self, now_s: float, watts: float) -> None:
        """Enter what the cluster draws from now on, after an event."""
        self._ends_with_reading = False
        if self.power_w and self.power_w[-1][0] == now_s:
            self.power_w[-1] = now_s, watts
        else:
            self.power_w.append((now_s, watts))

    def reading(self, now_s: float, watts: float) -> None:
        """Enter what the cluster draws from now on, after a meter was read."""
        curve = self.power_w
        if self._ends_with_reading and len(curve) > 1 and now_s < curve[-2][0] + RESOLUTION_S:
            curve.pop()
        self.power(now_s, watts)
        self._ends_with_reading = True

    def forget(self, jobs: Collection[str]) -> None:
        """Drop what jobs that are over held, and what is longest ago of all else."""
        self.spans = [span for span in self.spans if span.job not in jobs or span.end_s is None]
        del self.past[:-MOST]
        del self.power_w[:-MOST]
        old = self.power_spans[:-MOST]
        if old:
            left = [span for span in old if span.end_s is None]
            self.power_spans = left + self.power_spans[-MOST:]

    def reopen(self, names: Sequence[str], at_s: float | None) -> None:
        """Go on with the nodes of another cluster; nothing holds those before after ``at_s``."""
        for span in (*self.open.values(), *self.asleep.values()):
            span.end_s = at_s
        self.past += self.open.values()
        self.open.clear()
        self.asleep.clear()
        self.held.clear()
        self.names = names
