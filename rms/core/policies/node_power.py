"""Part ``node_power``: which idle nodes are powered off, and which are powered on again.

The other parts decide as if every node that is off or booting were on already: sizes, reservations
and the order of starts are those of a cluster that is always on. What they decide on nodes that
are off is put off until those have booted, and decided anew then; nobody else is given the nodes
that it needs meanwhile. So a job waits longer by a boot, and no policy knows of it.
Chauhan et al., figures 11 (power off) and 12 (power on).

Where a part looks at the time, it has a method ``look_s``: drivers let the policy decide then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import Protocol

import msgspec

from rms.core.events import Decision, Never, PowerOff, PowerOn, Reason, Resize, Start
from rms.core.model import Node
from rms.core.powercap import PowerBudget, boot_extra_w, growth_w
from rms.core.state import State

Switches = tuple[Sequence[Node], Sequence[Node]]
"""Nodes to be powered off, and on."""


class PowerPart(Protocol):
    """Part ``node_power``."""

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


class AlwaysOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No node is powered off; those that another policy has left off are powered on."""

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return all nodes that are off, to be powered on."""
        return (), sorted(state.off - state.down)


ALWAYS_ON = AlwaysOn()


class OffWhenIdle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        found, known, now = [], state.idle, state.now_s
        if known is not None and self.delay_s:
            for slots in _hosts(state, state.free_nodes()):
                since_s = known.whole_since_s(slots)
                if since_s + self.delay_s > now and all(state.vacant[node] for node in slots):
                    found.append(since_s + self.delay_s)
        if known is not None and self.at_most:
            found.append(known.next_s(self.at_most, now))
        if self.ahead and state.pending and state.off:
            boot_s = longest_boot_s(state)
            ends = (end_s - boot_s for end_s, _, _ in state.ends if end_s - boot_s > now)
            found.append(next(ends, inf))
        return min(found, default=inf)


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
    view.only({name: job for name, job in state.pending.items() if name not in gone})
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
    part: PowerPart,
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
    budget, found = PowerBudget(state), []
    for each in now:
        if isinstance(each, Start):
            budget.take(budget.start_w(state.pending[each.job], each.size))
        elif isinstance(each, Resize):
            budget.take(growth_w(state, state.running[each.job], each.size, each.nodes))
    for nodes in on:
        more_w = boot_extra_w(state, nodes)
        if budget.covers(more_w):
            budget.take(more_w)
            found.append(nodes)
    return found
