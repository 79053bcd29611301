"""Processes of tasks on other nodes: started as a job's script would be, ended with their turn."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rms.daemon.context import Context
from rms.kernels import wire
from rms.kernels.model import TaskId
from rms.launch.base import LaunchError, ManagedProcess, ScriptLaunch

PRINTED = 4096
"""So much of what a process printed last is looked at for why it ended."""


@dataclass
class _Process:
    name: str
    folder: Path
    process: ManagedProcess


class TaskProcesses:
    """The processes that tasks had started, one for each at most.

    What they print is in ``tasks.log`` of the state folder once they are over.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._of: dict[TaskId, _Process] = {}

    def begin(self, task: TaskId, message: wire.Begin, slots: Sequence[str]) -> None:
        """Start a task's command on slots of one node.

        Raises:
            LaunchError: it could not be started.
        """
        self.end(task)
        launcher = self._context.launcher
        name = f"task-{secrets.token_hex(4)}"  # no other daemon has used it before
        folder = launcher.status_file(name).parent
        try:
            folder.mkdir(parents=True, mode=0o700)
            script = folder / "script"
            script.write_text(f"#!/bin/sh\nexec {shlex.join(message.command)}\n")
            script.chmod(0o700)
            output = folder / "output"
            launch = ScriptLaunch(script, message.cwd, message.env, output, [slots])
            self._of[task] = _Process(name, folder, launcher.start_script(name, launch))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LaunchError(str(error)) from None

    def end(self, task: TaskId) -> None:
        """End a task's process, if it has one."""
        known = self._of.pop(task, None)
        if known is None:
            return
        self._context.launcher.kill(known.name)
        with contextlib.suppress(OSError):
            printed = (known.folder / "output").read_bytes()
            if printed:
                with (self._context.launcher.state / "tasks.log").open("ab") as log:
                    log.write(printed)
        shutil.rmtree(known.folder, ignore_errors=True)

    def ended(self) -> Iterator[tuple[TaskId, str]]:
        """Yield the tasks whose processes are over, each once, and why."""
        for task, known in list(self._of.items()):
            status = known.process.status()
            if status is None:
                continue
            reason = known.process.end_reason or self._last_line(known)
            self.end(task)
            yield task, reason or f"exit status {status}"

    def close(self) -> None:
        """End all of them."""
        for task in list(self._of):
            self.end(task)

    def _last_line(self, known: _Process) -> str:
        with contextlib.suppress(OSError):
            text = (known.folder / "output").read_bytes()[-PRINTED:].decode(errors="replace")
            return next((line for line in reversed(text.splitlines()) if line.strip()), "")
        return ""
