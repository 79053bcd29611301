"""Nodes: given whole or slot by slot; given to nobody, as drained ones and those not to be had."""

from __future__ import annotations

from collections.abc import Sequence

from rms.core.model.cluster import Cluster
from rms.core.model.events import NodeDown, NodeUp
from rms.core.model.jobs import Node
from rms.core.policies import Policy, PolicyError
from rms.daemon.context import Context, Handle
from rms.daemon.log import warning

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
    if policy.pooled and not cluster.shared:
        got = f"{policy.name}, whose jobs share nodes"
        raise PolicyError(f"expected a policy that gives whole nodes, as here, got {got}")
    if cluster.shared and not policy.shared:
        got = f"{policy.name}, which gives whole nodes"
        raise PolicyError(f"expected a policy whose jobs share nodes, as here, got {got}")
    if policy.clocked and not cluster.levels:
        got = f"{policy.name}, and nodes that state none"
        raise PolicyError(f"expected frequencies of nodes for a policy that sets them, got {got}")
    if getattr(policy.placement, "least_bandwidth", False) and not cluster.bandwidth_gb_s:
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
