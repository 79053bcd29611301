"""Nodes: given whole or slot by slot; given to nobody, as drained ones and those not to be had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from rms.core.model.cluster import Cluster
from rms.core.model.events import NodeDown, NodesLeased, NodeUp, ResizeAsked
from rms.core.model.jobs import Job, JobId, Node
from rms.core.policies import Policy, PolicyError
from rms.core.rules.checks import LEAST_S, needs_s
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.store.context import Context, Handle, warning
from rms.daemon.store.record import REQUEUED
from rms.launch.base import Demand, WaitingJob

POWERED_BY_SLURM = (
    "expected node_power always-on with Slurm's nodes, which Slurm itself powers off "
    "(SuspendProgram), got another"
)


def check_placement(policy: Policy, cluster: Cluster) -> None:
    """Refuse a policy that gives nodes in another way than a daemon does from its first start on.

    Raises:
        PolicyError: it lets jobs share nodes that are given whole, or the other way round, or
            places them by a memory bandwidth that nobody has stated.
    """
    if policy.placement.pooled and not cluster.shared:
        got = f"{policy.name}, whose jobs share nodes"
        raise PolicyError(f"expected a policy that gives whole nodes, as here, got {got}")
    if cluster.shared and not policy.placement.shared:
        got = f"{policy.name}, which gives whole nodes"
        raise PolicyError(f"expected a policy whose jobs share nodes, as here, got {got}")
    if policy.clocked and not cluster.levels:
        got = f"{policy.name}, and nodes that state none"
        raise PolicyError(f"expected frequencies of nodes for a policy that sets them, got {got}")
    if policy.placement.least_bandwidth and not cluster.bandwidth_gb_s:
        raise PolicyError(
            f"expected memory_bandwidth_gb_s of nodes in the cluster file for {policy.name}, which "
            "places jobs by it, got none"
        )


class Nodes:
    """Tells the scheduler which nodes are down."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._away: frozenset[str] | None = None
        self._silent_s = 0.0

    def watch(self) -> None:
        """Tell the scheduler of nodes that are not to be had, or are again."""
        launcher = self._context.launcher
        silent_s, before_s = launcher.silent_s(), self._silent_s
        self._silent_s = silent_s
        if silent_s and not before_s:
            words = f"slurmctld has not answered for {silent_s:.0f} s"
            self._context.say(warning(f"{words}: starts and resizes wait, running jobs go on"))
        elif before_s and not silent_s:
            self._context.say(f"slurmctld answers again, after {before_s:.0f} s")
        found = launcher.unavailable()
        if found is None or self._away == found:
            return
        gone = sorted(set(found) - (self._away or set()))
        if gone and launcher.requeue_on_shutdown and launcher.leases() is None:
            self._context.say(warning(f"not to be had now: {', '.join(gone)}"))
        self._away = frozenset(found)
        self._close_and_open(self._context.cluster.hosts)

    def resume(self) -> None:
        """Tell the scheduler what a daemon that was killed had no time to tell."""
        context, state = self._context, self._context.state
        unfit, remote = context.drained | context.broken, context.launcher.shared_filesystem
        down, up = list[Node](), list[Node]()
        for name in context.cluster.hosts:
            node = context.cluster.nodes_of[name][0]
            if name in unfit and node not in {*state.down, *state.off, *state.booting}:
                down.append(node)
            elif name not in unfit and node in state.down and not remote:
                up.append(node)  # of others it is seen what is up
        self._enter(down, up)

    def drain(self, names: Sequence[str], *, drained: bool) -> None:
        """Give nodes to no more jobs, or to jobs again; who runs there is left alone.

        Raises:
            ValueError: there are no such nodes.
        """
        context = self._context
        unknown = [name for name in names if name not in context.cluster.hosts]
        if unknown:
            raise ValueError(f"expected nodes of this cluster, got {', '.join(unknown)}")
        before = context.drained
        context.drained = before.union(names) if drained else before.difference(names)
        context.journal.note("drained", {"names": sorted(context.drained)})
        if not drained and context.broken.intersection(names):
            context.set_broken(context.broken.difference(names))
        self._close_and_open(names)

    def _close_and_open(self, names: Sequence[str]) -> None:
        """Tell the scheduler which of these nodes are down now, and which are up.

        Where jobs share nodes the first slot of each stands for all of it.
        """
        context, away = self._context, self._away
        unfit, down, up = context.drained | context.broken, list[Node](), list[Node]()
        for name in dict.fromkeys(names):
            node = context.cluster.nodes_of[name][0]
            if name in unfit or (away is not None and name in away):
                if node not in context.state.down:
                    down.append(node)
            elif node in context.state.down:
                up.append(node)
        self._enter(down, up)

    def _enter(self, down: Sequence[Node], up: Sequence[Node]) -> None:
        """Tell the scheduler of nodes that go or come back together: it decides on all at once."""
        for node in down:
            self._handle(NodeDown(self._context.time(), node))
        for left, node in zip(reversed(range(len(up))), up, strict=True):
            self._handle(NodeUp(self._context.time(), node, more=left > 0))


# FUSED rms.daemon.nodes.nodes: Nodes that are held for a time: jobs leave them in time, and launchers learn what waits.

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
