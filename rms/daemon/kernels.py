"""Tasks beside jobs: the daemon lends nodes to :mod:`rms.kernels.served`, and takes them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

from rms.core.model.cluster import Cluster
from rms.core.model.events import TasksHold
from rms.core.model.jobs import Node
from rms.core.rules.powercap import tasks_in_the_way, under_cap
from rms.daemon.store.context import Context, Handle
from rms.daemon.store.notes import StrategyNote
from rms.daemon.store.sandbox import FileStrategy, StrategyFiles
from rms.kernels.model import Resource, TaskDevice
from rms.kernels.record import UnitPower
from rms.kernels.scheduler import Strategy
from rms.kernels.served import NodeLender, Tasks

MOST_CHECKED = 100  # number of waiting jobs that are checked for tasks in their way


def tasks_of(context: Context, handle: Handle) -> Tasks:
    """Return the tasks of a daemon."""
    files = StrategyFiles(context.launcher.state / "strategies")
    return Tasks(NodesForTasks(context, handle, files), files)


class NodesForTasks(NodeLender):
    """The nodes of a daemon, lent to tasks."""

    def __init__(self, context: Context, handle: Handle, files: StrategyFiles) -> None:
        self._context, self._handle, self._files = context, handle, files
        self.now, self.prices = context.now, context.settings.prices
        self.record, self.recorded = context.journal.record, context.journal.recorded
        self.launcher, cluster = context.launcher, context.cluster
        self.devices = []
        if self.launcher.nodes.starts_steps:
            remote = self.launcher.shared_filesystem
            self.devices = (nodes_as_devices if remote else devices_of)(cluster)
        self.power = power_of(cluster)

    def lent(self) -> Mapping[int, str]:
        """Return the nodes that tasks hold, with the owners of their energy, or ""."""
        return {int(node): owner for node, owner in self._context.state.lent.items()}

    def lend(self, units: Mapping[int, str]) -> None:
        """Lend these nodes and no others; jobs may start on those that are taken back."""
        nodes = sorted(units)
        owners = tuple(units[unit] for unit in nodes)
        self._handle(TasksHold(self._context.time(), tuple(map(Node, nodes)), owners))

    def free(self, units: Iterable[int]) -> set[int]:
        """Return the nodes among these that are up and not a job's."""
        state = self._context.state
        return {n for n in units if state.vacant[n] or n in state.lent} - state.down

    def under_cap(self, units: Iterable[int]) -> set[int]:
        """Return the nodes among these on which tasks could run within the power cap."""
        return under_cap(self._context.state, units)

    def power_cap_w(self) -> float | None:
        """Return the power cap of the cluster."""
        return self._context.state.power_cap_w

    def jobs_wait(self) -> bool:
        """Return whether tasks hold the nodes, or the power, for which a job waits."""
        state = self._context.state
        return tasks_in_the_way(state, islice(state.pending.values(), MOST_CHECKED))

    def slots_of(self, units: Iterable[int]) -> tuple[str, ...]:
        """Return the slots of nodes."""
        return self._context.cluster.slots_of(Node(unit) for unit in units)

    def keep(self, strategy: Strategy, governor: str) -> None:
        """Note a strategy and the governor's rule for the next daemon."""
        file = str(strategy.path) if isinstance(strategy, FileStrategy) else ""
        self._context.journal.note(StrategyNote(name=strategy.name, governor=governor, file=file))

    def kept(self) -> tuple[Callable[[], Strategy], str] | None:
        """Return a loader of the strategy, and the governor's rule, of the previous daemon."""
        note = self._context.journal.noted(StrategyNote)
        if not note.name:
            return None

        def load() -> Strategy:
            if note.file:
                return FileStrategy(Path(note.file), note.name)
            return self._files.load(note.name, "")

        return load, note.governor


def devices_of(cluster: Cluster) -> list[TaskDevice]:
    """Return the devices of this machine: GPU nodes, all cores together, single cores and nodes.

    A node here is a virtual one: a kernel for another node runs there in a process of its own.
    """
    gpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("gpu") for s in slots)]
    cpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("cpu") for s in slots)]
    devices = [TaskDevice(cluster.names[n], Resource.GPU, (n,)) for n in gpus]
    if cpus:
        devices.append(TaskDevice("cores", Resource.CORES, tuple(cpus)))
    devices += [TaskDevice(cluster.names[n], Resource.CORE, (n,)) for n in cpus]
    nodes = nodes_as_devices(cluster)
    return devices + [device for device in nodes if set(cpus).issuperset(device.units)]


def nodes_as_devices(cluster: Cluster) -> list[TaskDevice]:
    """Return all nodes, or hosts that jobs share, as devices of kernels for another node."""
    return [
        TaskDevice(f"node-{host}", Resource.NODE, tuple(map(int, cluster.nodes_of[host])))
        for host in cluster.hosts
    ]


def power_of(cluster: Cluster) -> dict[int, UnitPower]:
    """Return the power of all nodes by their model; the power of a shared host is divided."""
    if not cluster.power:
        return {}
    at = {host: number for number, host in enumerate(cluster.hosts)}
    powers = {}
    for unit in range(len(cluster.names)):
        host = cluster.host_of(unit)
        model, slots = cluster.power[at[host]], len(cluster.nodes_of[host]) if cluster.shared else 1
        added_w = max(0.0, model.static_w + model.dynamic_w - model.idle_w)
        powers[unit] = UnitPower(model.idle_w / slots, added_w / slots)
    return powers
