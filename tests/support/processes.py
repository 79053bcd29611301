"""Start real processes in tests; whatever is left of them is killed at the end."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MPIEXEC = str(BIN / "mpiexec")
MPDATA = [sys.executable, "-m", "mpdata"]
RMS = [sys.executable, "-m", "rms"]
DEADLINE_S = 300
"""For what takes seconds on a machine that has nothing else to do: others may need it too."""

MARK = "MALLEABLE_TEST_MARK"

Run = Callable[..., subprocess.CompletedProcess[str]]
"""The fixture ``run``: a command to its end, in a folder of its own."""
Mpirun = Callable[..., dict[str, Any]]
"""The fixture ``mpdata_run``: ``mpdata run`` on so many ranks; its JSON."""
Refused = Callable[..., str]
"""The fixture ``refused``: a command of ``mpdata`` in this process; its one sentence."""
Steady = Callable[..., dict[str, Any]]
"""The fixture ``steady``: ``mpdata run`` on one rank, once for the same options; its JSON."""


def until(
    happens: Callable[[], Any],
    otherwise: str | Callable[[], object] = "nothing happened in time",
    every_s: float = 0.01,
    deadline_s: float = DEADLINE_S,
) -> Any:
    """Wait until something happens; return its value. ``otherwise`` is said at the deadline."""
    end = time.monotonic() + deadline_s
    while not (value := happens()):
        assert time.monotonic() < end, otherwise() if callable(otherwise) else otherwise
        time.sleep(every_s)
    return value


def program(name: str) -> list[str]:
    """Return the command of one of the programs in ``tests/support/programs``."""
    return [sys.executable, str(Path(__file__).parent / "programs" / f"{name}.py")]


def called(
    main: Callable[[Sequence[str]], int], *words: str, deadline_s: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, by its own function, as if it were one of its own."""
    out, err = io.StringIO(), io.StringIO()

    def late(*_: object) -> NoReturn:
        raise AssertionError(f"not over within {deadline_s:g} s: {' '.join(words)}")

    usual = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, deadline_s)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: object = main(words)
    except SystemExit as ended:
        status = ended.code or 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, usual)
    assert isinstance(status, int), status
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def marked(mark: str) -> list[int]:
    """Return the live processes whose environment carries a mark (zombies have none).

    Sessions and groups would not do: mpiexec's proxies and ranks each make their own.
    """
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command; whatever is left of it, wherever, is killed at the end."""
    mark = uuid.uuid4().hex
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
    options["env"] = {**(options.get("env") or os.environ), MARK: mark}
    process = subprocess.Popen(command, start_new_session=True, **options)
    process.mark = mark  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        for pid in [process.pid, *marked(mark)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
