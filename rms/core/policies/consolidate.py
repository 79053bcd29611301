"""Placement ``consolidate``: jobs are moved together, so that hosts can go off (Chauhan et al.).

After every event at which a policy decides (the paper: at submissions and ends of jobs), hosts with
free slots are gone through as figure 9 has it: those of one are moved to another wherever they fit,
by figure 10 to the one whose operating point matches best. A migration is a resize to the same size
on other slots. The host that is left goes off by part ``node_power`` (figures 11 and 12). Only
programs that use dmr can be moved; the paper moves any program with DMTCP.

How the pseudocode is read, which has slips. Figure 9: ``top`` and ``bottom`` are the ends of what
is left of the sorted list. ``Migration_feasibility`` takes a node and a list: the bottom one and
those above it, not the top one and one node. The ELSE with "Set top to 0" is that of a destination
that still has free cores: it stays in the list, which is sorted anew. The ELSE after the loop is
that of a bottom node for which nothing is feasible: it leaves the list. Figure 10: where the bottom
node could both give and take, it gives, as printed; ``ovfs`` of a host is the highest frequency
that its jobs ask for; raising the destination's needs no step of its own, as a host runs at the
highest one asked for there. M. Chauhan, N. Parveen, S. K. Saurav, Ganga Prasad G. L.: "Energy
Efficient Rescheduling Algorithm for High Performance Computing".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import msgspec

from rms.core.events import Decision, Never, Reason, Resize, Start
from rms.core.model import Job, JobId, Node
from rms.core.policies.placement import Lowest
from rms.core.powercap import PowerBudget, growth_w, mean_w
from rms.core.state import State


@dataclass(slots=True)
class Host:
    """A host with jobs, as planned so far.

    Attributes:
        used: how many of its slots are held.
        clock: the highest frequency that its jobs ask for, over the highest there is.
        ends_s: when the last of its jobs is expected to end.
        movable: whether all its jobs may be moved.
        jobs: those that run there.
    """

    at: int
    free: list[Node]
    used: int
    clock: float = 1.0
    ends_s: float = inf
    movable: bool = True
    jobs: list[Job] = field(default_factory=list)


def migrations(hosts: Sequence[Host]) -> Iterator[tuple[Host, Host]]:
    """Yield which host is emptied into which, one after the other (figure 9).

    Whoever takes a pair moves the slots: ``used`` and ``free`` are up to date when it goes on; or
    sets the source's ``movable`` to False, where the migration is not wanted.
    """
    left = sorted((host for host in hosts if host.free), key=_by_free)
    while len(left) > 1:
        bottom = left[-1]
        pair = feasible(bottom, left[:-1])
        if pair is None:
            left.pop()
            continue
        source, destination = pair
        yield pair
        if not source.used:
            left.remove(source)
        if not destination.free:
            left.remove(destination)
        left.sort(key=_by_free)


def feasible(node: Host, others: Sequence[Host]) -> tuple[Host, Host] | None:
    """Return which of two hosts can be emptied into which, None where none can (figure 10)."""
    takes, gives = [], []
    for other in others:
        if node.movable and node.used <= len(other.free):
            takes.append(other)
        elif other.movable and other.used <= len(node.free):
            gives.append(other)
    if takes:
        return node, min(takes, key=lambda other: _match(other, node))
    return (min(gives, key=lambda other: _match(other, node)), node) if gives else None


def _by_free(host: Host) -> tuple[int, int]:
    return len(host.free), host.at


def _match(other: Host, host: Host) -> tuple[float, bool, int, int]:
    """Return how well two hosts' operating points match: of equals the higher, then the fuller."""
    return abs(other.clock - host.clock), other.clock < host.clock, len(other.free), other.at


class Consolidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest free slots; jobs that run are moved together where a host can go off for that.

    A migration has to save more, by what is known of ends, than it and a boot cost.

    Attributes:
        moves: how often a job is resized at most (0 for never).
        narrow: a job is also narrowed, where that frees a host and no free slot would, nobody waits
            and it saves energy by what is known of its run times. Not in the paper.
    """

    moves: int = 10
    narrow: bool = False

    shared: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.moves < 0:
            raise ValueError(f"expected moves of at least 0, got {self.moves}")

    def __call__(self, state: State) -> Lowest:
        """Open the room of a pass."""
        return Lowest(state)

    def migrations(
        self,
        state: State,
        free: Sequence[Node],
        decided: Sequence[Decision],
        budget: PowerBudget | None,
    ) -> list[Resize]:
        """Return the migrations of a pass.

        Args:
            free: what starts and resizes of the pass have left.
            decided: these.
            budget: what is left of the power cap, None where there is none.
        """
        hosts = self._hosts(state, free, decided)
        gone = {each.job for each in decided if isinstance(each, Start | Never)}
        until_s = state.ends[0][0] if state.pending.keys() - gone and state.ends else inf
        left = state.resizes_left - sum(isinstance(each, Resize) for each in decided)
        found: list[Resize] = []
        for source, destination in migrations(hosts):
            if (
                len(source.jobs) > left - len(found)
                or not _pays(state, source, min(until_s, destination.ends_s))
                or not _within(state, source, budget)
            ):
                source.movable = False
                continue
            moved = source.jobs
            for job in moved:
                nodes = _moved(state, job, source, destination)
                found.append(Resize(job.spec.id, nodes, _TEXT, Reason.CONSOLIDATES))
            destination.clock = max(destination.clock, source.clock)
            destination.ends_s = max(destination.ends_s, source.ends_s)
            destination.jobs = [*destination.jobs, *moved]
            source.used, source.jobs = 0, []
            for host in hosts:  # one resize of a job at a time
                host.movable &= not any(job in moved for job in host.jobs)
        if self.narrow and not found and left > 0 and until_s == inf:
            found = _narrowed(state, hosts, left)
        return found

    def _hosts(self, state: State, free: Sequence[Node], decided: Sequence[Decision]) -> list[Host]:
        """Return the hosts that are up and have jobs."""
        at, spare = state.site.host, set(free)
        asleep = {at[node] for node in (*state.off, *state.booting)}
        hosts: dict[int, Host] = {}
        movable: dict[int, int] = {}
        known: dict[int, int] = {}
        emptied = {
            at[node]
            for job in state.running.values()
            for node in set(job.nodes).difference(job.requested_nodes or job.nodes)
        }
        resized = {each.job for each in decided if isinstance(each, Resize)}
        for job in state.running.values():
            moves = (
                job.resizable_now and job.resize_count < self.moves and job.spec.id not in resized
            )
            for node, share in zip(job.nodes, job.asked or (1.0,) * job.size, strict=True):
                host = hosts.get(at[node])
                if host is None:
                    slots = state.host_slots[at[node]]
                    open_slots = [slot for slot in slots if slot in spare]
                    used = len(slots) - len(open_slots)
                    host = hosts[at[node]] = Host(at[node], open_slots, used, 0.0, -inf)
                host.clock = max(host.clock, share)
                host.ends_s = max(host.ends_s, job.expected_end_s)
                if job not in host.jobs:
                    host.jobs.append(job)
                known[host.at] = known.get(host.at, 0) + 1
                movable[host.at] = movable.get(host.at, 0) + moves
        for host in hosts.values():
            host.movable = movable[host.at] == host.used
            if known[host.at] < host.used:  # others start there, or are moved there
                host.ends_s = inf
            if host.at in emptied:  # nobody is moved to where others are moved away
                host.free = []
        return [host for host in hosts.values() if host.at not in asleep]


_TEXT = "moved together: a host can go off"


def _moved(state: State, job: Job, source: Host, destination: Host) -> tuple[Node, ...]:
    """Return a job's slots once those on one host are on another; take them there."""
    kept = [node for node in job.nodes if state.site.host[node] != source.at]
    number = len(job.nodes) - len(kept)
    taken, destination.free = destination.free[:number], destination.free[number:]
    destination.used += number
    return tuple(sorted((*kept, *taken)))


def _pays(state: State, source: Host, until_s: float) -> bool:
    """Return whether a host's being off saves more than moving its jobs away costs.

    One of two hosts would go off without that when the last of its jobs has ended. While a job is
    moved both its old and its new slots draw power.

    Args:
        until_s: when the other host's jobs will have ended, or both may be needed.
    """
    model, now = state.model(state.host_slots[source.at][0]), state.now_s
    price_s = max(job.spec.resize_price_s for job in source.jobs)
    gap_s = min(until_s, source.ends_s) - now - price_s
    if not model.off_pays(gap_s):
        return False
    cost_j = sum(
        [2.0 * job.spec.resize_price_s * mean_w(state, job.spec, job.size) for job in source.jobs]
    )
    boot_j = 0.0 if gap_s == inf else model.boot_j
    return (model.idle_w - model.off_w) * gap_s - boot_j > cost_j


def _within(state: State, source: Host, budget: PowerBudget | None) -> bool:
    """Return whether the power cap has room for both worlds of a host's jobs; take it."""
    if budget is None:
        return True
    more_w = sum([growth_w(state, job, job.size, (Node(-1),)) for job in source.jobs])
    if not budget.covers(more_w):
        return False
    budget.take(more_w)
    return True


def _narrowed(state: State, hosts: Sequence[Host], left: int) -> list[Resize]:
    """Return resizes of malleable jobs that free one host, where that saves energy."""
    for host in sorted(hosts, key=lambda each: (each.used, each.at)):
        if not host.movable or len(host.jobs) > left:
            continue
        smaller = {job.spec.id: _without(state, job, host) for job in host.jobs}
        if all(smaller.values()) and _narrow_pays(state, host, smaller):
            text = "narrowed: a host can go off"
            return [
                Resize(job_id, nodes, text, Reason.CONSOLIDATES)
                for job_id, nodes in smaller.items()
            ]
    return []


def _without(state: State, job: Job, host: Host) -> tuple[Node, ...]:
    """Return the slots of a job that gives up those on a host, none where it cannot."""
    kept = [node for node in job.nodes if state.site.host[node] != host.at]
    sizes = [n for n in job.spec.sizes() if n <= len(kept) and n not in job.refused_sizes]
    return tuple(kept[: sizes[-1]]) if sizes else ()


def _narrow_pays(state: State, host: Host, smaller: dict[JobId, tuple[Node, ...]]) -> bool:
    """Return whether a host's being off saves more than its jobs' longer run times cost."""
    model = state.model(state.host_slots[host.at][0])
    cost_j, off_s = 0.0, 0.0
    for job in host.jobs:
        nodes = smaller[job.spec.id]
        now_s = job.remaining_s(job.size, state.now_s)
        then_s = job.remaining_s(len(nodes), state.now_s)
        if now_s is None or then_s is None:
            return False
        others = len({state.site.host[node] for node in nodes})
        own_j = then_s * mean_w(state, job.spec, len(nodes)) - now_s * mean_w(
            state, job.spec, job.size
        )
        cost_j += own_j + others * model.idle_w * (then_s + job.spec.resize_price_s - now_s)
        off_s = max(off_s, now_s - job.spec.resize_price_s)
    return model.off_pays(off_s) and (model.idle_w - model.off_w) * off_s - model.boot_j > cost_j
