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

from rms.core.model.events import NodeBooted, NodePowerFailed, PowerOff, PowerOn
from rms.core.model.jobs import Node
from rms.daemon.context import Context, Handle
from rms.daemon.log import warning
from rms.launch.power import PowerCommands

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
