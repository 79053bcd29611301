"""Nodes powered off and on, and their frequencies set, as a policy decides.

Nodes are powered by a user's commands, or in the books only. A command is run with the name of one
node as its last argument, as Slurm runs its SuspendProgram and ResumeProgram. A command that powers
a node on returns 0 once the node is up. A node whose command fails, or misses its deadline, is down
until ``rms resume``; jobs that wait for it wait for another node then.

The frequencies of a job's nodes are in the state (``Job.frequencies``). Cores and GPUs are set to
the highest frequency among the jobs there, and reset if none of the jobs has a lower one. Where
they cannot be set, that is entered as an event: policies then plan with the highest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from rms.core.model.events import (
    FrequenciesSettable,
    NodeBooted,
    NodePowerFailed,
    PowerOff,
    PowerOn,
)
from rms.core.model.jobs import Node
from rms.core.state import State
from rms.daemon.store.context import Context, Handle, warning
from rms.daemon.store.notes import PoweredOffNote
from rms.power.frequency import FrequencyError
from rms.wire.messages import ClockOrders, ClockReport


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
        self._context.say(f"power {word}: {names} ({decision.reason})")
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
        """Return the nodes, or the first slot of each shared node, that stand for a host."""
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
        context.say(warning(words))
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
        """Return the highest frequency share among the jobs of each slot, None without jobs."""
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
            self._context.say(f"frequencies are not set here: {reason}")
            with contextlib.suppress(FrequencyError):
                self._context.launcher.clocks.set({}, None)
        at_s = self._context.time()
        self._handle(FrequenciesSettable(at_s, not reason, reason))
