"""Nodes powered off and on: by commands that the user names, or in the books only.

A command is run with the name of one node as its last argument, as Slurm runs its SuspendProgram
and ResumeProgram. One that powers a node on returns 0 once the node is up. A node whose command
fails, or takes longer than the deadline, is down until ``rms resume`` gives it to jobs again;
whoever waits for it waits for another one then.
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
from rms.launch.base import PowerCommands
from rms.power.frequency import FrequencyError
from rms.wire.messages import ClockOrders, ClockReport

NOTE = "powered-off"
"""Key of the note with the names of nodes whose command to power them off has come to its end."""


@dataclass
class _Running:
    """A command that runs for a node."""

    process: subprocess.Popen[bytes]
    powers_on: bool
    until_s: float


class PowerControl:
    """Powers nodes off and on as it is decided, and tells the scheduler how that went.

    Args:
        commands: None where nodes go off in the books only; they boot as long as the cluster file
            says then.
    """

    def __init__(self, context: Context, handle: Handle, commands: PowerCommands | None) -> None:
        self._context, self._handle, self._commands = context, handle, commands
        self._running: dict[Node, _Running] = {}
        self._off = set(context.journal.notes(NOTE).get(NOTE, {"names": []})["names"])

    def act(self, decision: PowerOff | PowerOn) -> None:
        """Begin to power nodes off or on."""
        names = ", ".join(self._context.cluster.hosts_of(decision.nodes))
        word = "off" if isinstance(decision, PowerOff) else "on"
        self._context.say(f"power {word}: {names} ({decision.reason})")
        for node in self._each_host(decision.nodes):
            self._begin(node)

    def resume(self) -> None:
        """Run again, after a restart, what an earlier daemon may not have seen the end of."""
        state, host_of = self._context.state, self._context.cluster.host_of
        for node in self._each_host([*sorted(state.booting), *sorted(state.off)]):
            if node in state.booting or host_of(node) not in self._off:
                self._begin(node)

    def watch(self) -> None:
        """Look at the commands that run, and at nodes that boot in the books only."""
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
        """Return those that stand for a host: nodes, or the first slot of each shared one."""
        cluster = self._context.cluster
        return [node for node in nodes if node == cluster.nodes_of[cluster.host_of(node)][0]]

    def _begin(self, node: Node) -> None:
        """Run the command for what a node is to be, unless one for it still runs."""
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
        self._running[node] = _Running(process, powers_on, until_s)

    def _ended(self, node: Node, running: _Running, code: int | None) -> None:
        """Take in that a command has ended, or has not in time."""
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
            self._context.journal.note(NOTE, {"names": sorted(self._off)})


# FUSED rms.daemon.nodes.switch: Frequencies that a policy decides, set for real where this user may.
#
# What a job is to have on each of its nodes is in the state (``Job.frequencies``); here the cores and
# GPUs of all nodes follow it, each at the highest that one of its users is to have, and are as they
# were found where nobody is to have less than the highest. Where they cannot be set, that is entered
# as an event: policies then count with the highest for everybody, which is what there is.

NOT_SET = "--set-frequencies no"


class FrequencyControl:
    """Has the frequencies of nodes follow the jobs there."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._set: dict[str, float | None] = {}

    def begin(self) -> None:
        """See whether frequencies can be set, if the policy decides any; again after a restart."""
        context = self._context
        settable = context.state.settable_frequencies
        if settable and not context.scheduler.engine.policy.clocked:
            return
        reason = NOT_SET
        if context.settings.set_frequencies:
            slots = [slot for each in context.cluster.slots for slot in each]
            reason = context.launcher.clocks.refusal(slots)
        if settable != (not reason):
            self._enter(reason)

    def watch(self) -> None:
        """Set what has changed."""
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

    def report(self, said: ClockReport) -> ClockOrders:
        """Take in whether a node's own process could set them; return what they are to be now."""
        if said.reason and self._context.state.settable_frequencies:
            self._set = {}
            self._enter(f"{said.node}: {said.reason}")
        return self._context.launcher.clocks.orders(said.node)

    def _wanted(self, state: State) -> dict[str, float | None]:
        """Return the highest that one of the users of each slot is to have, None without users."""
        slots = self._context.cluster.slots
        found: dict[str, float | None] = {slot: None for each in slots for slot in each}
        for job in state.running.values():
            shares = dict(zip(job.nodes, job.frequencies, strict=False))
            for node in job.held:
                share = shares.get(node, max(job.frequencies, default=1.0))
                for slot in slots[node]:
                    found[slot] = max(share, found[slot] or 0.0)
        return found

    def _enter(self, reason: str) -> None:
        """Let the scheduler know, and the operator."""
        if reason:
            self._context.say(f"frequencies are not set here: {reason}")
            with contextlib.suppress(FrequencyError):
                self._context.launcher.clocks.set({}, None)
        at_s = self._context.time()
        self._handle(FrequenciesSettable(at_s, not reason, reason))
