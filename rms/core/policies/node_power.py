"""Parts that save energy: ``node_power``, placement ``consolidate`` and ``frequency``.

Part ``node_power``: which idle nodes are powered off, and which are powered on again.

The other parts decide as if every node that is off or booting were on already: sizes, reservations
and the order of starts are those of a cluster that is always on. What they decide on nodes that
are off is put off until those have booted, and decided anew then; nobody else is given the nodes
that it needs meanwhile. So a job waits longer by a boot, and no policy knows of it.
Chauhan et al., figures 11 (power off) and 12 (power on).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import ClassVar

import msgspec

from rms.core.model.events import Decision, Never, PowerOff, PowerOn, Reason, Resize, Start
from rms.core.model.jobs import Job, JobId, Node
from rms.core.model.speedup import drawn, longer
from rms.core.policies.placement import Lowest, Placement, Room, RoomWithin
from rms.core.policies.shared import SharedRoom
from rms.core.rules.powercap import PowerBudget, boot_extra_w, growth_w, mean_w
from rms.core.state import State

Switches = tuple[Sequence[Node], Sequence[Node]]
"""Nodes to be powered off, and on."""


class NodePowerPart:
    """Part ``node_power``: which nodes are powered off and on.

    Attributes:
        always_on: no node is powered off.
    """

    __slots__ = ()

    always_on: ClassVar[bool] = False

    @property
    def ahead(self) -> bool:
        """Whether nodes are powered on before the end of a job after which they will be needed."""
        return False

    def look_s(self, state: State) -> float:
        """Return when the policy is to decide even if nothing happens before, inf for never."""
        return inf

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return which idle nodes are to be powered off, and which of those off are to be on.

        A node stands for its whole host here: of shared ones the first slot is named.

        Args:
            idle: free nodes that nobody is about to be given, rising.
            needed: nodes that are off and wanted now.
            until_s: the earliest time at which idle nodes may be needed, as far as is known.
        """
        raise NotImplementedError


class AlwaysOn(NodePowerPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No node is powered off; those that another policy has left off are powered on."""

    always_on: ClassVar[bool] = True

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return all nodes that are off, to be powered on."""
        return (), sorted(state.off - state.down)


ALWAYS_ON = AlwaysOn()


class OffWhenIdle(NodePowerPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes go off as soon as that saves energy, and come back when a job waits for them.

    Attributes:
        keep: how many idle nodes stay on, for jobs to come.
        delay_s: a node goes off once it has been idle for so long (Slurm's SuspendTime).
        ahead: nodes are powered on a boot before the expected end of a running job after which
            somebody who waits will be given them; else when he is.
        at_most: how many hosts are powered off in any minute at most, and how many on (Slurm's
            SuspendRate and ResumeRate); 0 for any number.
    """

    keep: int = 0
    delay_s: float = 0.0
    ahead: bool = False
    at_most: int = 0

    def __post_init__(self) -> None:
        for name in ("keep", "delay_s", "at_most"):
            if not 0 <= (value := getattr(self, name)) < inf:
                raise ValueError(f"expected {name} of at least 0, got {value:g}")

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return idle nodes whose time off saves more than the boot costs, and needed ones."""
        gap_s = until_s - state.now_s
        off = [node for node in idle[self.keep :] if state.model(node).off_pays(gap_s)]
        known = state.idle
        if known is None:
            return off, needed
        if self.delay_s:
            since_s = {node: known.whole_since_s(state.together(node)) for node in off}
            off = [node for node in off if since_s[node] + self.delay_s <= state.now_s]
        if self.at_most:
            off = off[: max(0, known.switches_left(self.at_most, state.now_s, on=False))]
            needed = needed[: max(0, known.switches_left(self.at_most, state.now_s, on=True))]
        return off, needed

    def look_s(self, state: State) -> float:
        """Return when there may be something to do even if nothing happens before, else inf."""
        times, known, now = [], state.idle, state.now_s
        if known is not None and self.delay_s:
            for slots in _hosts(state, state.free_nodes()):
                since_s = known.whole_since_s(slots)
                if since_s + self.delay_s > now and all(state.vacant[node] for node in slots):
                    times.append(since_s + self.delay_s)
        if known is not None and self.at_most:
            times.append(known.next_s(self.at_most, now))
        if self.ahead and state.pending and state.off:
            boot_s = longest_boot_s(state)
            ends = (end_s - boot_s for end_s, _, _ in state.ends if end_s - boot_s > now)
            times.append(next(ends, inf))
        return min(times, default=inf)


def all_on(state: State) -> State:
    """Return the state as it were if nodes that are off or booting were on, and free.

    They are taken last, those that boot before those that are off.
    """
    asleep = tuple(
        node for node in (*sorted(state.booting), *sorted(state.off)) if node not in state.down
    )
    view = copy.copy(state)
    view.idle = None
    view.vacant, view.asleep, view.needs_pass = bytearray(state.vacant), asleep, True
    view.pool_free = list(state.pool_free)
    view.free_count += len(asleep)
    view.give_back(asleep)
    return view


def longest_boot_s(state: State) -> float:
    """Return how long the nodes that are off take to boot at most."""
    return max([model.boot_s for model in set(map(state.model, state.off))], default=0.0)


def after_ends(state: State, wanted: Sequence[Decision]) -> State | None:
    """Return the state as it will be once jobs have ended that are expected to within a boot.

    All nodes are on in it, and what starts now has started. None where no such job, nobody who
    waits or no node that is off makes it matter.
    """
    gone = {each.job for each in wanted if isinstance(each, Start | Never)}
    if not state.off or state.pending.keys() <= gone:
        return None
    boot_s = longest_boot_s(state)
    over = {job.spec.id: job for end_s, _, job in state.ends if end_s - boot_s <= state.now_s}
    if not over:
        return None
    view = all_on(state)
    used = {node for each in wanted if isinstance(each, Start) for node in each.nodes}
    view.take(tuple(used))
    view.free_count -= len(used)
    view.asleep = tuple(node for node in view.asleep if node not in used)
    view.set_pending({name: job for name, job in state.pending.items() if name not in gone})
    view.running = {name: job for name, job in state.running.items() if name not in over}
    view.ends = [entry for entry in state.ends if entry[2].spec.id not in over]
    view.keep_sizes()
    for job in over.values():
        view.free_count += job.size + job.gain
        view.releasing -= job.loss
        view.give_back(job.held)
    view.now_s = max(state.now_s, *[job.expected_end_s for job in over.values()])
    return view


def switched(
    part: NodePowerPart,
    state: State,
    wanted: Sequence[Decision],
    *,
    soon: Iterable[Node] = (),
    starts: bool,
    widens: bool,
) -> list[Decision]:
    """Return what of the decisions of a pass can be done now, and nodes to be powered off or on.

    Args:
        wanted: what the policy decides for :func:`all_on`.
        soon: nodes that somebody who waits will be given before they could boot.
        starts: the pass was one that starts jobs.
        widens: the policy may widen running jobs.
    """
    asleep = (state.off | state.booting.keys()) - state.down
    goes = [each for each in wanted if isinstance(each, Start | Resize)]
    now: list[Decision] = [
        each
        for each in wanted
        if not (isinstance(each, Start | Resize) and asleep.intersection(each.nodes))
    ]
    used = {node for each in goes for node in each.nodes}
    idle: list[Node] = []
    if starts and not any(each.code is Reason.POWER for each in goes):
        idle = [node for node in state.free_nodes() if node not in used]
        idle = idle[_widening(state) :] if widens else idle
    free = set(idle)
    idle = [slots[0] for slots in _hosts(state, idle) if free.issuperset(slots)]
    early = set(soon) - used
    needed = [slots[0] for slots in _hosts(state, sorted(used & state.off))]
    needed += [s[0] for s in _hosts(state, sorted(early & state.off)) if s[0] not in needed]
    off, on = part(state, idle, needed, _next_need_s(state, wanted))
    if off:
        nodes = tuple(chain(*_hosts(state, off)))
        now.append(PowerOff(nodes, "idle: being off saves more than a boot costs"))
    hosts = _within_cap(state, now, _hosts(state, on))
    if hosts:
        nodes = tuple(chain(*hosts))
        why = "wanted by jobs" if used & set(nodes) else "nodes stay on"
        why = "wanted soon" if early & set(nodes) and not used & set(nodes) else why
        now.append(PowerOn(nodes, why))
    return now


def _hosts(state: State, nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Return all slots of each host of which one is named; each node where none are shared."""
    return list(dict.fromkeys([state.together(node) for node in nodes]))


def _next_need_s(state: State, wanted: Sequence[Decision]) -> float:
    """Return the earliest time at which idle nodes may be needed by whoever waits after a pass.

    Nobody who waits then can use them before something ends: a running job, or one that starts
    now; a shrink or a boot under way. Where nobody waits, they may not be needed at all.
    """
    gone = {each.job for each in wanted if isinstance(each, Start | Never)}
    if state.pending.keys() <= gone:
        return inf
    if state.releasing:
        return state.now_s
    ends = [state.ends[0][0]] if state.ends else []
    ends += state.booting.values()
    for each in wanted:
        if isinstance(each, Start):
            spec = state.pending[each.job].spec
            span_s = spec.expected_s(each.size, exact=state.exact) * each.slowdown
            ends.append(state.now_s + span_s)
    return min(ends, default=inf)


def _widening(state: State) -> int:
    """Return onto how many more nodes running jobs could be widened so that it pays."""
    jobs = [job for until_s, _, job in state.expandable if until_s > state.now_s]
    return sum(job.spec.sizes()[-1] - job.size for job in jobs)


def _within_cap(
    state: State, now: Sequence[Decision], on: Sequence[tuple[Node, ...]]
) -> list[tuple[Node, ...]]:
    """Return as many of the hosts to be powered on as the power cap leaves room to boot."""
    if state.power_cap_w is None:
        return list(on)
    budget, within = PowerBudget(state), []
    for each in now:
        if isinstance(each, Start):
            budget.take(budget.start_w(state.pending[each.job], each.size))
        elif isinstance(each, Resize):
            budget.take(growth_w(state, state.running[each.job], each.size, each.nodes))
    for nodes in on:
        more_w = boot_extra_w(state, nodes)
        if budget.covers(more_w):
            budget.take(more_w)
            within.append(nodes)
    return within


# --- placement ``consolidate``: jobs are moved together, so that hosts can go off ----------------
#
# After every event at which a policy decides (the paper: at submissions and ends of jobs), hosts
# with free slots are gone through as in figure 9: the jobs of one host move to another wherever
# they fit, by figure 10 to the one whose operating point matches best. A migration is a resize to
# the same size on other slots. The emptied host goes off by part ``node_power`` (figures 11, 12).
# Only programs that use dmr can be moved; the paper moves any program with DMTCP.
#
# The pseudocode has slips and is read like this. Figure 9: ``top`` and ``bottom`` are the ends of
# the rest of the sorted list. ``Migration_feasibility`` takes a node and a list: the bottom one and
# those above it, not the top one and one node. The ELSE with "Set top to 0" is that of a
# destination that still has free cores: it stays in the list, which is sorted anew. The ELSE after
# the loop is that of a bottom node for which nothing is feasible: it leaves the list. Figure 10:
# where the bottom node could both give and take, it gives, as printed; ``ovfs`` of a host is the
# highest frequency that its jobs ask for; raising the destination's needs no step of its own, as a
# host runs at the highest one asked for there. M. Chauhan, N. Parveen, S. K. Saurav, Ganga Prasad
# G. L.: "Energy Efficient Rescheduling Algorithm for High Performance Computing".


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


class Consolidate(Placement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    migrates: ClassVar[bool] = True

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
        resizes: list[Resize] = []
        for source, destination in migrations(hosts):
            if (
                len(source.jobs) > left - len(resizes)
                or not _pays(state, source, min(until_s, destination.ends_s))
                or not _within(state, source, budget)
            ):
                source.movable = False
                continue
            moved = source.jobs
            for job in moved:
                nodes = _moved(state, job, source, destination)
                resizes.append(Resize(job.spec.id, nodes, _TEXT, Reason.CONSOLIDATES))
            destination.clock = max(destination.clock, source.clock)
            destination.ends_s = max(destination.ends_s, source.ends_s)
            destination.jobs = [*destination.jobs, *moved]
            source.used, source.jobs = 0, []
            for host in hosts:  # one resize of a job at a time
                host.movable &= not any(job in moved for job in host.jobs)
        if self.narrow and not resizes and left > 0 and until_s == inf:
            resizes = _narrowed(state, hosts, left)
        return resizes

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


# --- part ``frequency``: at which frequency jobs start, where nodes have several -----------------
#
# A part takes the room of each pass and returns one whose starts have frequencies. A job gets the
# highest frequency that a job on its host asks for (:mod:`rms.core.rules.transition`).


class FrequencyPart:
    """Part ``frequency``: at which frequency jobs start.

    Attributes:
        sets: it sets frequencies, which nodes have to state.
    """

    __slots__ = ()

    sets: ClassVar[bool] = True

    def __call__(self, state: State, room: Room) -> Room:
        """Return a room whose starts have frequencies."""
        raise NotImplementedError


class Nominal(FrequencyPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at the highest frequency."""

    sets: ClassVar[bool] = False

    def __call__(self, state: State, room: Room) -> Room:
        """Return the room as it is."""
        return room


NOMINAL = Nominal()


class PowerAware(FrequencyPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes that would wait for slower ones of their job run slower (Guim et al., IV-A-2).

    On nodes whose processes share bandwidth, each of which has a frequency of its own: what
    ``power_aware = true`` of a placement there does too.
    """

    def __call__(self, state: State, room: Room) -> Room:
        """Let the room of shared nodes set frequencies."""
        if isinstance(room, SharedRoom):
            room.power_aware = state.settable_frequencies
        return room


class OptimalOperatingPoint(FrequencyPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at the frequency at which it needs least energy (Chauhan et al., section III).

    By its time and power over frequency; one of which these are not known asks for the highest.

    Attributes:
        slowdown: run time there over that at the highest frequency is at most this.
    """

    slowdown: float = inf

    def __post_init__(self) -> None:
        if not self.slowdown >= 1.0:
            raise ValueError(f"expected a slowdown of at least 1, got {self.slowdown}")

    def __call__(self, state: State, room: Room) -> Room:
        """Return a room whose starts ask for the frequency."""
        return ClockedRoom(room, state, self) if state.settable_frequencies else room

    def asks(self, state: State, job: Job) -> float:
        """Return the frequency for a job, over the highest one; of equal ones the higher.

        Energy is that of its own power and of its share of its host's idle power.
        """
        levels, points = state.site.levels, job.spec.operating_points
        if not points:
            return 1.0
        slots = state.least_slots
        model = state.power_models[0]
        own_w = model.slot_w(job.spec, job.spec.preferred, slots) or 1.0
        best, least = 1.0, inf
        for ghz, _ in reversed(levels):
            share = ghz / levels[-1][0]
            time = longer(levels, points, share)
            energy = time * (model.idle_w / slots + own_w * drawn(levels, points, share))
            if time <= self.slowdown * (1.0 + 1e-12) and energy < least:
                best, least = share, energy
        return best


class ClockedRoom(RoomWithin):
    """A room in which every start has a frequency."""

    __slots__ = ("_part", "_state")

    def __init__(self, room: Room, state: State, part: OptimalOperatingPoint) -> None:
        super().__init__(room, varies=True)
        self._state, self._part = state, part

    def slowdown(self, job: Job, size: int) -> float:
        """Return how much longer the job is expected to run."""
        share = self._part.asks(self._state, job)
        own = longer(self._state.site.levels, job.spec.operating_points, share)
        return own * self._room.slowdown(job, size)

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take nodes for a job that fits; return the frequency on each too."""
        nodes, _ = self._room.take(job, size)
        share = self._part.asks(self._state, job)
        return nodes, () if share == 1.0 else (share,) * len(nodes)
