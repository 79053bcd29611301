"""The adapter of a job that is notified of a new size by a signal or command (``--resize-by``).

``python -m rms.client.adapter HOW SHIMS SCRIPT ...`` runs the job's script and speaks to the daemon
in its place, by the messages of any malleable job: it polls for resize requests, passes them on to
the job, and reports the job's answer. Scheduler, books and resize machine do not know the
difference. When the script ends, so does the adapter, with its status.

By ``command:COMMAND`` a shell runs COMMAND for each request. By ``signal`` the job and the adapter
exchange files in the folder :data:`FOLDER_VARIABLE`, each of which is renamed into place:

========= ======== =================================================================
file      made by  contents
========= ======== =================================================================
pid       the job  the id of the process that gets SIGUSR1; from then on requests come
request   adapter  a :class:`Size`
taken     the job  the request, renamed; one that is not taken in time is withdrawn
answer    the job  an :class:`Answer`
========= ======== =================================================================

It runs on compute nodes, so it imports only :mod:`rms.wire` and the client of launcher lines.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rms.client.connection import server_address
from rms.client.launch import until_answered
from rms.wire.files import write_whole
from rms.wire.messages import (
    JOB_VARIABLE,
    MARK_VARIABLE,
    RUN_VARIABLE,
    SLOTS_VARIABLE,
    TOKEN_VARIABLE,
    Begun,
    Count,
    Done,
    Poll,
    PollAnswer,
    Report,
    ResizeReport,
    ResizeRequest,
    RolledBack,
    Strict,
    Text,
)
from rms.wire.terminal import CommandError

FOLDER_VARIABLE = "RMS_RESIZE"
"""Folder in which job and adapter exchange files; a folder of the script's host."""

TAKE_S = 1800.0
"""Time for the job to take a request: that for which a program of dmr may reach no resize point."""

LOOK_S = 0.1
"""Interval between two looks at the files."""

TRY_LATER = os.EX_TEMPFAIL
"""Exit status of a command that refuses a size now, not for good."""

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the script that reach the adapter in its place (``--signal B:``); SIGTERM reaches
all processes of a job."""


class Size(msgspec.Struct, frozen=True):
    """A size of the job.

    Attributes:
        number: of the resize request, 0 for the size at the start.
        ranks: number of slots.
        slots: such as ``cpu:0`` or ``n1/core:0``, in rank order.
        hosts: every host once, in this order; ``localhost`` where all slots are of one machine.
    """

    number: int
    ranks: int
    slots: tuple[str, ...]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, number: int, slots: Sequence[str]) -> Size:
        """Return the size of slots."""
        hosts = [slot.rpartition("/")[0] or "localhost" for slot in slots]
        return cls(number, len(slots), tuple(slots), tuple(dict.fromkeys(hosts)))

    def variables(self) -> dict[str, str]:
        """Return the variables of the script and of a command."""
        return {
            "RMS_RANKS": str(self.ranks),
            "RMS_SLOTS": " ".join(self.slots),
            "RMS_HOSTS": " ".join(self.hosts),
        }

    def bind(self, *processes: int) -> None:
        """Bind this thread and processes, and what these start from now on, to the size's cores."""
        cores = {int(slot.removeprefix("cpu:")) for slot in self.slots if slot.startswith("cpu:")}
        if cores and hasattr(os, "sched_setaffinity"):
            for process in (0, *processes):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(process, cores)


class Answer(Strict, frozen=True):
    """The job's answer to a request: it has the new size, or refuses it for a reason.

    A reason that begins with ``later: `` does not hold for good.
    """

    number: Count
    refused: Text = ""


class Notifier(Protocol):
    """A way to notify the job of a new size."""

    def is_ready(self) -> bool:
        """Return whether the job can be notified now."""

    def notify(self, size: Size, begun: Callable[[], None]) -> str:
        """Notify the job; return why it refuses, "" if it has the new size.

        Args:
            begun: to be called when the job begins to change.
        """


class ByCommand:
    """Notifies the job by a command; its exit status is the answer, 0 for the new size."""

    def __init__(self, command: str) -> None:
        self._command = command

    def is_ready(self) -> bool:
        """Return that it can be notified at any time."""
        return True

    def notify(self, size: Size, begun: Callable[[], None]) -> str:
        """Run the command for a new size."""
        begun()
        env = {**os.environ, **size.variables(), "RMS_RANKS_BEFORE": os.environ["RMS_RANKS"]}
        shell = ["/bin/sh", "-c", self._command]
        status = subprocess.run(shell, env=env, stdin=subprocess.DEVNULL, check=False).returncode
        if status == 0:
            return ""
        later = "later: " if status == TRY_LATER else ""
        return f"{later}command {self._command!r} ended with {status}"


class BySignal:
    """Notifies the job by a file and SIGUSR1; it answers by a file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._complaint = folder, ""

    def is_ready(self) -> bool:
        """Return whether the process that is to get the signal has said so."""
        return self._pid() is not None

    def notify(self, size: Size, begun: Callable[[], None]) -> str:
        """Write the request, send the signal, also to a process that follows; wait for an answer.

        Once the job has taken the request, the daemon has a deadline for its answer.
        """
        request, taken = self._folder / "request", self._folder / "taken"
        for left in (taken, self._folder / "answer"):
            left.unlink(missing_ok=True)
        write_whole(request, msgspec.json.encode(size) + b"\n")
        until_s, signalled, has_begun = time.monotonic() + TAKE_S, None, False
        while (answer := self._answer(size.number)) is None:
            if not has_begun and not request.exists():
                has_begun = True
                begun()
            if not has_begun and time.monotonic() > until_s:
                with contextlib.suppress(FileNotFoundError):  # taken just now
                    request.rename(self._folder / "withdrawn")
                    return f"the job did not take the request within {TAKE_S:g} s"
            pid = self._pid()
            if pid not in (None, signalled) and not has_begun:
                signalled = pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid or 0, signal.SIGUSR1)
            time.sleep(LOOK_S)
        request.unlink(missing_ok=True)
        return answer.refused

    def _pid(self) -> int | None:
        """Return the live process of this job that gets the signal."""
        text = self._read("pid")
        if text is None:
            return None
        try:
            pid = int(text)
            if pid <= 1:
                raise ValueError
        except ValueError:
            self._complain(f"expected a process id in {self._folder}/pid, got {text[:60]!r}")
            return None
        environment = Path(f"/proc/{pid}/environ")
        mark = f"{MARK_VARIABLE}={os.environ.get(MARK_VARIABLE, '')}".encode()
        try:
            if mark in environment.read_bytes().split(b"\0"):
                return pid
        except PermissionError:
            pass
        except OSError:  # it has ended, or this system has no such files
            return None if Path("/proc/self").exists() else pid
        self._complain(f"expected a process of this job in {self._folder}/pid, got {pid}")
        return None

    def _answer(self, number: int) -> Answer | None:
        """Return the answer to a request; one to another request, or no answer, is dropped."""
        text = self._read("answer")
        if text is None:
            return None
        try:
            answer = msgspec.json.decode(text.encode(), type=Answer)
            if answer.number == number:
                return answer
            got = f"one to request {answer.number}"
        except (msgspec.DecodeError, UnicodeEncodeError):
            got = repr(text[:60])
        form = f'{{"number": {number}}} or {{"number": {number}, "refused": "WHY"}}'
        self._complain(f"expected {form} in {self._folder}/answer, got {got}")
        return None

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(errors="replace").strip() or None
        except OSError:
            return None

    def _complain(self, words: str) -> None:
        if words != self._complaint:
            self._complaint = words
            print(f"rms: {words}", file=sys.stderr, flush=True)


class Conversation:
    """Passes requests of the daemon on to the job, and its answers back.

    Args:
        script: the process of the job's script.
    """

    def __init__(self, how: str, notifier: Notifier, size: Size, script: int) -> None:
        env = os.environ
        self._how, self._notifier, self._size, self._script = how, notifier, size, script
        self._server, self._token = server_address(None, env), env.get(TOKEN_VARIABLE, "")
        self._path = f"/jobs/{env.get(JOB_VARIABLE, '')}/{{}}?run={env.get(RUN_VARIABLE, '0')}"

    def run(self) -> None:
        """Pass requests on, as long as the daemon accepts this job's messages."""
        newest = 0
        try:
            while True:
                if not self._notifier.is_ready():
                    time.sleep(LOOK_S)
                    continue
                answer = self._ask(PollAnswer, "poll", Poll(0, 0, newest))
                if answer.request is not None and answer.request.number > newest:
                    newest = answer.request.number
                    self._resize(answer.request)
                time.sleep(answer.pause_s)
        except CommandError as error:
            print(f"rms: the job keeps its size: {error}", file=sys.stderr, flush=True)

    def _resize(self, request: ResizeRequest) -> None:
        number, begun_s = request.number, time.monotonic()
        size, before = Size.of(number, request.slots), self._size
        size.bind(self._script)
        try:
            refused = self._notifier.notify(size, lambda: self._report(Begun(number)))
        except OSError as error:
            refused = f"could not be notified: {error}"
        if refused:
            before.bind(self._script)
            self._report(RolledBack(number, refused, "spawn"))
            return
        self._size, span_s = size, time.monotonic() - begun_s
        os.environ.update(size.variables())
        row = ResizeReport(0, before.ranks, size.ranks, self._how, 0.0, span_s, 0.0, 0, 0.0)
        self._report(Done(number, row))

    def _report(self, report: Report) -> None:
        self._ask(Any, "report", report)

    def _ask(self, answer: Any, what: str, body: object) -> Any:
        path = self._path.format(what)
        return until_answered(answer, self._server, "POST", path, body, self._token)


def main(words: Sequence[str]) -> int:
    """Run a script with its adapter; return its exit status."""
    how, _, command = words[0].partition(":")
    size = Size.of(0, os.environ.get(SLOTS_VARIABLE, "").split())
    folder = Path(tempfile.mkdtemp(prefix="rms-resize-"))
    # The job starts its processes itself, with the system's mpirun in place of the daemon's.
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(part for part in folders if part != words[1])
    os.environ.update({"PATH": path, FOLDER_VARIABLE: str(folder), **size.variables()})
    size.bind()
    notifier = ByCommand(command) if how == "command" else BySignal(folder)
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)
        # A shell also runs a script without a first line that names its interpreter.
        script = subprocess.Popen(["/bin/sh", "-c", 'exec "$@"', "job", *words[2:]])
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: script.send_signal(number))
        conversation = Conversation(how, notifier, size, script.pid)
        threading.Thread(target=conversation.run, name="adapter", daemon=True).start()
        code = script.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
