"""Nodes of the cluster that tasks hold (:mod:`rms.core.tasks`), and the power they take there."""

from __future__ import annotations

from rms.core.cluster import Cluster
from rms.core.events import TasksHold
from rms.core.model import Job, JobId, JobSpec, Mode, Node
from rms.core.state import State
from rms.core.tasks import Device, Resource

TASKS = "task:"
"""What the owners of tasks' energy begin with: ``task:mine.py[4711]``, program and process."""

TASK = JobSpec(JobId(TASKS), 0.0, 1, 1, 1, Mode.FIXED)
"""A task as a job of which nothing is known, on one slot."""


def is_task(owner: str) -> bool:
    """Return whether an owner of energy is a program with tasks."""
    return owner.startswith(TASKS)


def devices_of(cluster: Cluster) -> list[Device]:
    """Return the devices of this machine: GPU nodes, all cores together, each core, each node.

    A node here is a virtual one: a kernel for another node runs there in a process of its own.
    """
    gpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("gpu") for s in slots)]
    cpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("cpu") for s in slots)]
    found = [Device(cluster.names[n], Resource.GPU, (n,)) for n in gpus]
    if cpus:
        found.append(Device("cores", Resource.CORES, tuple(cpus)))
    found += [Device(cluster.names[n], Resource.CORE, (n,)) for n in cpus]
    return found + [each for each in nodes_as_devices(cluster) if set(cpus).issuperset(each.units)]


def nodes_as_devices(cluster: Cluster) -> list[Device]:
    """Return each node, or host that jobs share, as a device of kernels for another node."""
    return [
        Device(f"node-{host}", Resource.NODE, tuple(map(int, cluster.nodes_of[host])))
        for host in cluster.hosts
    ]


def can_hold(state: State, event: TasksHold) -> bool:
    """Return whether tasks may hold these nodes: each is free, or theirs already."""
    vacant, lent = state.vacant, state.lent
    if state.counted or len(event.owners) not in (0, len(event.nodes)):
        return False
    return all(node in lent or (0 <= node < len(vacant) and vacant[node]) for node in event.nodes)


def hold(state: State, event: TasksHold) -> None:
    """Give tasks these nodes and no others, and let the books know whose energy that is."""
    before = state.lent
    state.lent = held = dict(
        zip(event.nodes, event.owners or ("",) * len(event.nodes), strict=True)
    )
    more, less = sorted(held.keys() - before.keys()), sorted(before.keys() - held.keys())
    state.free_count += len(less) - len(more)
    state.take(tuple(more))
    state.give_back(tuple(less))
    for owner in owners_changed(before, held):
        state.changed[owner] = as_job(state, owner)


def owners_changed(before: dict[Node, str], now: dict[Node, str]) -> list[JobId]:
    """Return the programs that hold other nodes than before."""
    both = sorted(before.keys() | now.keys())
    pairs = [(before.get(node, ""), now.get(node, "")) for node in both]
    owners = [owner for pair in pairs if pair[0] != pair[1] for owner in pair if owner]
    return [JobId(owner) for owner in dict.fromkeys(owners)]


def as_job(state: State, owner: JobId) -> Job:
    """Return what a program's tasks hold in the form in which the energy books know jobs.

    Its power is that of a job of which nothing is known.
    """
    nodes = tuple([node for node, who in sorted(state.lent.items()) if who == owner])
    spec = JobSpec(owner, 0.0, 1, 1, 1, Mode.FIXED)
    return Job(spec, nodes=nodes, size=len(nodes), start_s=state.now_s)


def task_w(state: State) -> float:
    """Return what a task is expected to add to the idle power of a node, in W, at most."""
    return max(model.slot_w(TASK, 1, state.least_slots) for model in state.power_models)


def tasks_w(state: State) -> float:
    """Return what tasks are expected to add to the idle power of the nodes they hold, in W."""
    if not state.lent:
        return 0.0
    return task_w(state) * sum([bool(owner) for owner in state.lent.values()])
