"""Nodes: down or drained, leased, powered off and on, their frequencies, and those lent to tasks.

Nodes are powered by a user's commands, or in the books only. A command is run with the name of one
node as its last argument, as Slurm runs its SuspendProgram and ResumeProgram. A command that powers
a node on returns 0 once the node is up. A node whose command fails, or misses its deadline, is down
until ``rms resume``; jobs that wait for it wait for another node then.

The frequencies of a job's nodes are in the state (``Job.frequencies``). Cores and GPUs are set to
the highest frequency among the jobs there, and reset if none of the jobs has a lower one. Where
they cannot be set, that is entered as an event: policies then plan with the highest.

Free nodes are lent to the tasks of :mod:`rms.kernels.served`, and taken back when a job needs them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path

from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    FrequenciesSettable,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodeUp,
    PowerOff,
    PowerOn,
    ResizeAsked,
    TasksHold,
)
from rms.core.model.jobs import JobId, Node
from rms.core.policies import Policy, PolicyError
from rms.core.rules.checks import LEAST_S, needs_s
from rms.core.rules.powercap import tasks_in_the_way, under_cap
from rms.core.state import State
from rms.daemon.store.context import Context, Handle, log
from rms.daemon.store.notes import DrainedNote, PoweredOffNote, StrategyNote
from rms.daemon.store.sandbox import FileStrategy, StrategyFiles
from rms.kernels.model import Resource, TaskDevice
from rms.kernels.record import UnitPower
from rms.kernels.scheduler import Strategy
from rms.kernels.served import NodeLender, Tasks
from rms.launch.base import Demand, WaitingJob
from rms.power.frequency import FrequencyError
from rms.wire.messages import ClockOrders, ClockReport

MOST_CHECKED = 100  # number of waiting jobs that are checked for tasks in their way

POWERED_ELSEWHERE = (
    "expected --power-off and --power-on for a policy that powers nodes off, where these are not "
    "of this machine, got none"
)


def check_placement(policy: Policy, cluster: Cluster) -> None:
    """Raise a PolicyError for a policy that does not match the daemon's nodes."""
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
    """Tells the scheduler which nodes are down: drained, broken or unavailable."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._away: frozenset[str] | None = None
        self._asleep = frozenset[Node]()
        self._silent_s = 0.0

    def tick(self) -> None:
        """Tell the scheduler which nodes have become unavailable, or available."""
        context, launcher = self._context, self._context.launcher
        silent_s, before_s = launcher.nodes.silent_s(), self._silent_s
        self._silent_s = silent_s
        if silent_s and not before_s:
            words = f"slurmctld has not answered for {silent_s:.0f} s"
            log.warning(f"{words}: starts and resizes wait, running jobs go on")
        elif before_s and not silent_s:
            log.info(f"slurmctld answers again, after {before_s:.0f} s")
        for words in launcher.nodes.complaints():
            log.warning(words)
        away, now, suspects = launcher.nodes.unavailable(), context.now(), context.suspects
        for name in [name for name, until_s in suspects.items() if until_s <= now]:
            del suspects[name]
        if away is not None:
            away = frozenset((*away, *suspects))
        # A node that is off may be drained for that, and may still be so for a moment after it.
        asleep = frozenset((*context.state.off, *context.state.booting))
        if away is None or (self._away, self._asleep) == (away, asleep):
            return
        gone = sorted(set(away) - (self._away or set()))
        nodes = launcher.nodes
        if gone and nodes.requeue_on_shutdown and not nodes.logs_nodes and nodes.leases() is None:
            log.warning(f"not to be had now: {', '.join(gone)}")
        self._away, self._asleep = frozenset(away), asleep
        self._close_and_open(self._context.cluster.hosts, asleep)

    def resume(self) -> None:
        """Enter nodes that a killed daemon may not have entered, after a restart."""
        context, state = self._context, self._context.state
        looked_up = context.launcher.shared_filesystem  # remote nodes
        unpowered = {*state.off, *state.booting}
        self._close_and_open(context.cluster.hosts, unpowered, opens=not looked_up)

    def drain(self, names: Sequence[str], *, drained: bool) -> None:
        """Drain nodes, or resume them. Jobs that run there are not affected."""
        context = self._context
        unknown = [name for name in names if name not in context.cluster.hosts]
        if unknown:
            raise ValueError(f"expected nodes of this cluster, got {', '.join(unknown)}")
        before = context.drained
        context.drained = before.union(names) if drained else before.difference(names)
        context.journal.note(DrainedNote(names=sorted(context.drained)))
        if not drained and context.broken.intersection(names):
            context.set_broken(context.broken.difference(names))
        self._close_and_open(names)

    def _close_and_open(
        self, names: Sequence[str], closed: Collection[Node] = (), *, opens: bool = True
    ) -> None:
        """Tell the scheduler which of these nodes are down now, and then which are up.

        One decision is made on all that are up. The first slot of a shared node stands for the
        whole node. Nodes that are ``closed`` already stay as they are.
        """
        context, down, up = self._context, list[Node](), list[Node]()
        unfit = context.drained | context.broken | (self._away or frozenset())
        for name in dict.fromkeys(names):
            node = context.cluster.nodes_of[name][0]
            is_down = node in context.state.down
            if name in unfit and not is_down and node not in closed:
                down.append(node)
            elif name not in unfit and is_down and opens:
                up.append(node)
        for node in down:
            self._handle(NodeDown(self._context.time(), node))
        for left, node in zip(reversed(range(len(up))), up, strict=True):
            self._handle(NodeUp(self._context.time(), node, more=left > 0))


# --- leases --------------------------------------------------------------------------------------

EVERY_S = 0.5  # interval between two ticks of the leases
SAME_S = 5.0  # ends that differ by less are equal, as they are read from the clocks of two machines


class LeaseWatch:
    """Tells the scheduler until when nodes are leased, and the launcher which jobs wait."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._next_s = -inf

    def tick(self, *, starts: bool) -> list[JobId]:
        """Enter the leases, tell the launcher the demand; return the jobs whose leases end.

        A job that can be resized is to go on with the nodes that stay. The caller ends the jobs
        that are returned, at checkpoints.
        """
        context = self._context
        now = context.now()
        if now < self._next_s:
            return []
        leases = context.launcher.nodes.leases()
        if leases is None:
            self._next_s = inf
            return []
        self._next_s, context.nodes_wait = now + EVERY_S, leases.waits
        nodes_of, skew_s = context.cluster.nodes_of, context.skew_s
        until_s = {
            node: end_s - skew_s
            for host, end_s in sorted(leases.until_s.items())
            for node in nodes_of.get(host, ())
        }
        new = NodesLeased(
            context.time(),
            tuple(until_s),
            tuple(until_s.values()),
            min(leases.most * context.state.least_slots, context.state.nodes),
            leases.longest_s,
        )
        if not _same(context.state.lease, new):
            self._handle(new)
        ends = self._leave(now, until_s)
        for words in context.launcher.nodes.follow(self._demand(starts=starts)):
            log.info(words)
        return ends

    def _leave(self, now: float, until_s: dict[Node, float]) -> list[JobId]:
        """Ask jobs to go on with the nodes that stay; return the jobs that have to end."""
        context, ends = self._context, list[JobId]()
        if min(until_s.values(), default=inf) > now + LEAST_S:
            return ends
        for job_id, running in list(context.state.running.items()):
            first_s = min((until_s.get(node, inf) for node in running.held), default=inf)
            if now < first_s <= now + LEAST_S:
                kept = tuple(n for n in running.nodes if until_s.get(n, inf) > now + LEAST_S)
                size = max((n for n in running.spec.sizes() if n <= len(kept)), default=0)
                if size and running.resizable_now and size not in running.refused_sizes:
                    self._handle(ResizeAsked(context.time(), job_id, size, kept[:size]))
            elif first_s <= now and context.jobs[job_id].ending is None:
                ends.append(job_id)
        return ends

    def _demand(self, *, starts: bool) -> Demand:
        context, state = self._context, self._context.state
        hosts_of, waiting = context.cluster.hosts_of, self._waiting() if starts else []
        busy = {node for job in state.running.values() for node in job.held} | state.lent.keys()
        held, closed = (frozenset(hosts_of(tuple(nodes))) for nodes in (busy, state.down))
        return Demand(waiting, held, closed, context.drained | context.broken)

    def _waiting(self) -> list[WaitingJob]:
        """Return the jobs that wait for nodes, up to the limits of their arrays."""
        state = self._context.state
        slots, waiting = state.least_slots, []
        running = Counter(job.spec.array for job in state.running.values())
        for job in state.pending.values():
            spec, limit = job.spec, job.spec.array_limit
            if limit is not None:
                running[spec.array] += 1
                if running[spec.array] > limit:
                    continue
            sizes = -(-job.least // slots), -(-spec.preferred // slots)
            waiting.append(WaitingJob(*sizes, needs_s(spec)))
        return waiting


def _same(old: NodesLeased | None, new: NodesLeased) -> bool:
    if old is None or old.nodes != new.nodes:
        return False
    if (old.most, old.longest_s) != (new.most, new.longest_s):
        return False
    pairs = zip(old.until_s, new.until_s, strict=True)
    return all(abs(before - after) < SAME_S for before, after in pairs)


# --- power ---------------------------------------------------------------------------------------


@dataclass
class _PowerCommand:
    """A running command for a node."""

    process: subprocess.Popen[bytes]
    powers_on: bool
    until_s: float


class NodeSwitch:
    """Powers nodes off and on, and enters the outcome.

    Without commands nodes are off in the books only, and boot for the time in the cluster file.
    """

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._commands = context.settings.power_commands
        self._running: dict[Node, _PowerCommand] = {}
        self._off = set(context.journal.noted(PoweredOffNote).names)

    def switch(self, decision: PowerOff | PowerOn) -> None:
        """Begin to power nodes off or on."""
        names = ", ".join(self._context.cluster.hosts_of(decision.nodes))
        word = "off" if isinstance(decision, PowerOff) else "on"
        log.info(f"power {word}: {names} ({decision.reason})")
        for node in self._each_host(decision.nodes):
            self._begin(node)

    def resume(self) -> None:
        """Run the commands again, after a restart, whose end an earlier daemon may have missed."""
        state, host_of = self._context.state, self._context.cluster.host_of
        for node in self._each_host([*sorted(state.booting), *sorted(state.off)]):
            if node in state.booting or host_of(node) not in self._off:
                self._begin(node)

    def tick(self) -> None:
        """Take in the ends of commands, and of boots in the books."""
        state, now_s = self._context.state, self._context.now()
        for node, running in list(self._running.items()):
            code = running.process.poll()
            if code is None and now_s <= running.until_s:
                continue
            del self._running[node]
            self._ended(node, running, code)
        if self._commands is None:
            for node in self._each_host(list(state.booting)):
                if now_s >= state.booting[node]:
                    self._handle(NodeBooted(self._context.time(), node))

    def _each_host(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes that stand for a host: whole nodes, or first slots of shared ones."""
        cluster = self._context.cluster
        return [node for node in nodes if node == cluster.nodes_of[cluster.host_of(node)][0]]

    def _begin(self, node: Node) -> None:
        """Run the command for a node's next state, unless a command for the node still runs."""
        commands, state = self._commands, self._context.state
        if commands is None or node in self._running:
            return
        powers_on, name = node in state.booting, self._context.cluster.host_of(node)
        if powers_on:
            self._note(name, is_off=False)
        words = [*(commands.on if powers_on else commands.off), name]
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self._fail(node, str(error))
            return
        until_s = self._context.now() + commands.deadline_s
        self._running[node] = _PowerCommand(process, powers_on, until_s)

    def _ended(self, node: Node, running: _PowerCommand, code: int | None) -> None:
        """Enter the end of a command; ``code`` is None if it has missed its deadline."""
        state = self._context.state
        if code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()
        if running.powers_on is not (node in state.booting):
            if node in state.booting or node in state.off:
                self._begin(node)  # the other was decided meanwhile
            return
        if code == 0 and running.powers_on:
            self._handle(NodeBooted(self._context.time(), node))
        elif code == 0:
            self._note(self._context.cluster.host_of(node), is_off=True)
        elif node in state.booting or node in state.off:
            word, late = "on" if running.powers_on else "off", "is not done in time"
            how = late if code is None else f"ended with {code}"
            self._fail(node, f"the command to power it {word} {how}")

    def _fail(self, node: Node, reason: str) -> None:
        context, name = self._context, self._context.cluster.host_of(node)
        words = f"{name} is down: {reason}; rms resume {name} gives it to jobs again"
        log.warning(words)
        context.set_broken([*context.broken, name])
        self._note(name, is_off=False)
        self._handle(NodePowerFailed(context.time(), node, reason))

    def _note(self, name: str, *, is_off: bool) -> None:
        before = set(self._off)
        self._off = before | {name} if is_off else before - {name}
        if self._off != before:
            self._context.journal.note(PoweredOffNote(names=sorted(self._off)))


# --- frequencies ---------------------------------------------------------------------------------

NOT_SET = "--set-frequencies no"


class FrequencyControl:
    """Sets the frequencies of nodes for the jobs there."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._set: dict[str, float | None] = {}

    def begin(self) -> None:
        """Enter whether frequencies can be set, if the policy decides any."""
        context = self._context
        settable = context.state.settable_frequencies
        if settable and not context.scheduler.engine.policy.clocked:
            return
        reason = NOT_SET
        if context.settings.set_frequencies:
            slots = [slot for node in context.cluster.slots for slot in node]
            reason = context.launcher.clocks.refusal(slots)
        if settable != (not reason):
            self._enter(reason)

    def tick(self) -> None:
        """Set the frequencies that have changed."""
        state = self._context.state
        if not self._set and not any(job.frequencies for job in state.running.values()):
            return
        wanted = self._wanted(state)
        if wanted == self._set:
            return
        reason = "" if self._context.settings.set_frequencies else NOT_SET
        if not reason:
            try:
                levels = state.site.levels
                highest_mhz = levels[-1][0] * 1000.0 if levels else None
                self._context.launcher.clocks.set(wanted, highest_mhz)
            except FrequencyError as error:
                reason = str(error)
        lower = any((share or 1.0) < 1.0 for share in wanted.values())
        self._set = wanted if lower and not reason else {}
        if reason:
            self._enter(reason)

    def report(self, report: ClockReport) -> ClockOrders:
        """Take in whether a node's clock agent could set its frequencies; return its orders."""
        if report.reason and self._context.state.settable_frequencies:
            self._set = {}
            self._enter(f"{report.node}: {report.reason}")
        return self._context.launcher.clocks.orders(report.node)

    def _wanted(self, state: State) -> dict[str, float | None]:
        """Return the highest frequency share of the jobs by slot, None without jobs."""
        slots = self._context.cluster.slots
        highest: dict[str, float | None] = {slot: None for node in slots for slot in node}
        for job in state.running.values():
            shares = dict(zip(job.nodes, job.frequencies, strict=False))
            for node in job.held:
                share = shares.get(node, max(job.frequencies, default=1.0))
                for slot in slots[node]:
                    highest[slot] = max(share, highest[slot] or 0.0)
        return highest

    def _enter(self, reason: str) -> None:
        """Enter and log whether frequencies can be set."""
        if reason:
            log.info(f"frequencies are not set here: {reason}")
            with contextlib.suppress(FrequencyError):
                self._context.launcher.clocks.set({}, None)
        at_s = self._context.time()
        self._handle(FrequenciesSettable(at_s, not reason, reason))


# --- nodes lent to tasks --------------------------------------------------------------------------


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
