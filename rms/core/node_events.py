"""How the state follows what happens to nodes: down and up, off and booting, lent to tasks,
held for a time."""

from __future__ import annotations

from rms.core.events import (
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodeUp,
    TasksHold,
)
from rms.core.idle import Idle
from rms.core.lending import can_hold, hold
from rms.core.model import Node, Site
from rms.core.state import State


class TransitionError(RuntimeError):
    """An event that cannot have happened in this state."""


def down(state: State, event: NodeDown) -> None:
    """Take a node from those that jobs are given."""
    state.now_s = event.at_s
    if event.node in state.down:
        raise TransitionError(f"expected a node that is up, got {event.node}")
    for node in state.together(event.node):
        state.down.add(node)
        if state.vacant[node]:
            state.take((node,))
            state.free_count -= 1


def up(state: State, event: NodeUp) -> None:
    """Give a node to jobs again."""
    state.now_s = event.at_s
    if event.node not in state.down:
        raise TransitionError(f"expected a node that is down, got {event.node}")
    slots = set(state.together(event.node))
    state.down -= slots
    slots -= state.off | state.booting.keys() | state.lent.keys()
    slots = slots.difference(*(job.held for job in state.running.values()))
    state.free_count += len(slots)
    state.give_back(tuple(slots))


def booted(state: State, event: NodeBooted) -> None:
    """Give a node to jobs that was off."""
    state.now_s = event.at_s
    if event.node not in state.booting:
        raise TransitionError(f"expected a node that is booting, got {event.node}")
    slots = state.together(event.node)
    for node in slots:
        del state.booting[node]
    state.switched.update(slots)
    state.free_count += len(slots)
    state.give_back(slots)


def power_failed(state: State, event: NodePowerFailed) -> None:
    """Take a node for down that was to be powered off or on."""
    state.now_s, node = event.at_s, event.node
    if node not in state.off and node not in state.booting:
        raise TransitionError(f"expected a node that is off or booting, got {node}")
    slots = state.together(node)
    for each in slots:
        state.booting.pop(each, None)
    state.off.difference_update(slots)
    state.down.update(slots)
    state.switched.update(slots)


def tasks_hold(state: State, event: TasksHold) -> None:
    """Let tasks have these nodes and no others."""
    state.now_s = event.at_s
    if not can_hold(state, event):
        raise TransitionError(f"expected free nodes for tasks, got {event.nodes}")
    hold(state, event)


def boots(state: State, node: Node) -> None:
    """Mark a node that is off as booting from now on."""
    state.off.remove(node)
    state.booting[node] = state.now_s + state.model(node).boot_s
    state.switched.add(node)
    if state.idle is not None and node == state.together(node)[0]:
        state.idle.switch(state.now_s, on=True)


def power_off(state: State, nodes: tuple[Node, ...]) -> None:
    """Mark free nodes as off."""
    state.take(nodes)
    state.free_count -= len(nodes)
    state.off.update(nodes)
    state.switched.update(nodes)
    if state.idle is not None:
        for _ in dict.fromkeys(map(state.together, nodes)):
            state.idle.switch(state.now_s, on=False)


def leased(state: State, event: NodesLeased) -> None:
    """Take in until when which nodes are held."""
    if len(event.nodes) != len(event.until_s) or not all(0 <= n < state.nodes for n in event.nodes):
        raise TransitionError(f"expected nodes of this cluster, each with a time, got {event}")
    state.now_s, state.lease = event.at_s, event


def use_cluster(state: State, site: Site, lost: set[Node]) -> None:
    """Take another cluster, all of it free; nothing runs on the one before any more."""
    state.site, state.down, state.releasing, state.lease = site, lost, 0, None
    state.off.clear()
    state.booting.clear()
    state.switched.clear()
    state.lent.clear()
    state.idle = None if state.idle is None else Idle()
    state.measured_w, state.idle_above_w = None, 0.0
    state.use_site()
    state.vacant = bytearray(b"\x01" * site.nodes)
    state.free_count = site.nodes - len(lost)
    state.take(tuple(lost))
    waiting = [*state.pending.values(), *state.too_wide.values()]
    state.too_wide.clear()
    for job in waiting:
        if job.least <= site.nodes and job.spec.id not in state.pending:
            state.enqueue(job)
        elif job.least > site.nodes:
            state.too_wide[job.spec.id] = job
            if job.spec.id in state.pending:
                state.dequeue(job.spec.id)
