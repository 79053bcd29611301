"""Nodes that are held for a time: jobs leave them in time, and launchers learn what waits."""

from __future__ import annotations

from collections import Counter
from math import inf

from rms.core.model.events import NodesLeased, ResizeAsked
from rms.core.model.jobs import Job, JobId, Node
from rms.core.rules.checks import LEAST_S, needs_s
from rms.daemon.context import Context, Handle
from rms.daemon.jobs import REQUEUED
from rms.daemon.scripts import Scripts
from rms.launch.demand import Demand, WaitingJob

EVERY_S = 0.5
"""Time between two looks at what waits."""

SAME_S = 5.0
"""Ends that differ by less are the same: the clocks of two machines are read."""


class Leases:
    """Tells the scheduler until when nodes are held, and the launcher what waits for nodes."""

    def __init__(self, context: Context, handle: Handle, scripts: Scripts) -> None:
        self._context, self._handle, self._scripts = context, handle, scripts
        self._next_s = self._first_s = -inf

    def watch(self) -> None:
        """Take in what is held; have jobs leave what goes back; tell what waits."""
        context = self._context
        now = context.now()
        if now < self._next_s:
            return
        found = context.launcher.leases()
        if found is None:
            self._next_s = inf
            return
        self._next_s, context.nodes_wait = now + EVERY_S, found.waits
        nodes_of, skew_s = context.cluster.nodes_of, context.skew_s
        until_s = {
            node: end_s - skew_s
            for host, end_s in sorted(found.until_s.items())
            for node in nodes_of.get(host, ())
        }
        new = NodesLeased(
            context.time(),
            tuple(until_s),
            tuple(until_s.values()),
            min(found.most * context.state.least_slots, context.state.nodes),
            found.longest_s,
        )
        if not _same(context.state.lease, new):
            self._handle(new)
        self._end_in_time(now, until_s)
        for words in context.launcher.follow(self._demand()):
            context.say(words)

    # --- jobs on nodes that go back ------------------------------------------------------------

    def _end_in_time(self, now: float, until_s: dict[Node, float]) -> None:
        """Have jobs go on with fewer nodes, or end at checkpoints, before theirs go back."""
        if min(until_s.values(), default=inf) > now + LEAST_S:
            return
        for job_id, running in list(self._context.state.running.items()):
            ends = [until_s.get(node, inf) for node in running.held]
            first_s = min(ends, default=inf)
            if first_s > now + LEAST_S:
                continue
            if first_s > now:
                self._leave(running, now, until_s)
            elif self._context.jobs[job_id].ending is None:
                self._end(job_id)

    def _leave(self, running: Job, now: float, until_s: dict[Node, float]) -> None:
        """Ask a job that can be resized to go on with its nodes that stay, if it may."""
        kept = tuple(n for n in running.nodes if until_s.get(n, inf) > now + LEAST_S)
        sizes = running.spec.sizes()
        size = max((n for n in sizes if n <= len(kept)), default=0)
        if size and running.resizable_now and size not in running.refused_sizes:
            self._handle(ResizeAsked(self._context.time(), running.spec.id, size, kept[:size]))

    def _end(self, job_id: JobId) -> None:
        job = self._context.jobs[job_id]
        if job.script is None:
            return
        again = job.note["requeue"]
        self._context.say(f"job {job_id}: told to end, as its allocation does")
        self._scripts.cancel(job, REQUEUED if again else "CANCELLED")

    # --- what waits ----------------------------------------------------------------------------

    def _demand(self) -> Demand:
        context, state = self._context, self._context.state
        hosts_of, down = context.cluster.hosts_of, state.down
        busy = {node for job in state.running.values() for node in job.held}
        busy.update(state.lent)
        closed = frozenset(hosts_of(tuple(down)))
        barred = context.drained | context.broken
        return Demand(self._waiting(), frozenset(hosts_of(tuple(busy))), closed, barred)

    def _waiting(self) -> list[WaitingJob]:
        """Return the jobs that wait for nodes, as far as their arrays let them run at once."""
        state = self._context.state
        if self._scripts.stopping:
            return []
        slots, found = state.least_slots, []
        running = Counter(job.spec.array for job in state.running.values())
        for job in state.pending.values():
            spec, limit = job.spec, job.spec.array_limit
            if limit is not None:
                running[spec.array] += 1
                if running[spec.array] > limit:
                    continue
            sizes = -(-job.least // slots), -(-spec.preferred // slots)
            found.append(WaitingJob(*sizes, needs_s(spec)))
        return found


def _same(known: NodesLeased | None, new: NodesLeased) -> bool:
    """Return whether an event says nothing new."""
    if known is None or known.nodes != new.nodes:
        return False
    if (known.most, known.longest_s) != (new.most, new.longest_s):
        return False
    pairs = zip(known.until_s, new.until_s, strict=True)
    return all(abs(before - after) < SAME_S for before, after in pairs)
