"""``dmr check``: does a program give the same answer whatever happens to its ranks?

It runs plain, then with rehearsals (resizes into as many fresh ranks, which must leave every bit,
sums over ranks included), then with resizes to other sizes. What it prints, or a file it writes,
is compared, and so is all that it has declared.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dmr.boot.environment import CHECK_VARIABLE, SCRIPT_VARIABLE
from dmr.boot.mpiexec import end_process
from dmr.check.digests import Digests
from rms.wire.files import remove_output

SHOWN = 3
"""Lines of output that are shown where they differ."""

LEAST_S, TIMES = 60.0, 10.0
"""Timeout of a run with resizes: a constant, and a multiple of the time without resizes."""

LATE = (
    "expected the program to end {what} within {limit:.0f} s, got a program that is still running; "
    "without resizes it takes {plain:.1f} s: its loop may depend on variables that a resize "
    "loses: declare arrays as fields (with rebind after a swap), other variables in state={{...}}"
)
STALE = (
    "{names}: the declared array has the bytes that it began with. Constant data needs no cure; "
    "where the program swaps two arrays, add run.fields[{first!r}].rebind(ARRAY) after the swap"
)
FORGOTTEN = (
    "what differs was computed from a variable that did not travel: declare arrays as fields, and "
    "counters, random generators and all else in state={...} of dmr.malleable; after a swap of "
    "two arrays call run.fields[NAME].rebind(ARRAY)"
)
UNDECLARED = (
    "all that is declared is the same, so what is printed or written comes from another variable, "
    "or from what every new set of ranks does before the loop (see run.restored)"
)
SIZES = (
    "run it on {sizes} ranks without any resize: if that differs as well, sums over ranks or "
    "something else depend on their number; if not, a boundary or a halo that is set before the "
    "loop only on some ranks is a usual cause"
)


class CheckError(Exception):
    """The program cannot be checked; one sentence."""


class NoProgramError(CheckError):
    """There is no such program."""


@dataclass(frozen=True)
class Outcome:
    """One run of the program.

    Attributes:
        script: its resizes.
        output: what it printed, or the file it wrote.
        end: all that it had declared, at its end.
    """

    script: str
    output: bytes
    end: Digests
    wall_s: float


@dataclass
class Difference:
    """How a run with resizes differs from the plain one.

    Attributes:
        lines: of its output, as text.
        fields, state: names of what differs at the end.
        causes: in words.
    """

    script: str
    lines: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)

    @property
    def none(self) -> bool:
        """Whether nothing differs."""
        return not (self.lines or self.fields or self.state)


def rehearsal_script(steps: int, ranks: int) -> str:
    """Return resizes to as many ranks, after an odd and an even number of steps.

    Raises:
        CheckError: there are too few steps.
    """
    if steps < 2:
        raise CheckError(f"expected a program of at least 2 steps to check, got {steps}")
    odd = steps // 3 | 1
    even = max(odd + 1, 2 * steps // 3 & ~1)
    return ",".join(f"{step}:{ranks}" for step in (odd, even) if step < steps)


def resizes_script(steps: int, sizes: Sequence[int]) -> str:
    """Return resizes to these sizes, evenly over the run."""
    at = sorted({max(1, (n + 1) * steps // (len(sizes) + 1)) for n in range(len(sizes))})
    return ",".join(f"{step}:{size}" for step, size in zip(at, sizes, strict=False) if step < steps)


def differing_lines(plain: bytes, other: bytes) -> list[str]:
    """Return lines that only one of two outputs has; how often and in which order is no matter.

    What stands before the loop is printed by every new set of ranks again.
    """
    one, two = (text.decode(errors="replace").splitlines() for text in (plain, other))
    missing = [f"- {line}" for line in dict.fromkeys(one) if line not in set(two)]
    return missing + [f"+ {line}" for line in dict.fromkeys(two) if line not in set(one)]


def compare(plain: Outcome, other: Outcome, *, text: bool, varying: int = 0) -> Difference:
    """Return how a run differs from the plain one.

    Args:
        text: whether the output is lines; else its bytes are compared.
        varying: lines that differ between two plain runs as well.
    """
    found = Difference(other.script)
    if text:
        lines = differing_lines(plain.output, other.output)
        found.lines = [] if len(lines) <= varying else lines
    elif plain.output != other.output:
        pairs = zip(plain.output, other.output, strict=False)
        shorter = min(len(plain.output), len(other.output))
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
        found.lines = [f"the file differs from byte {at} on"]
    for mine, theirs, names in (
        (plain.end.fields, other.end.fields, found.fields),
        (plain.end.state, other.end.state, found.state),
    ):
        names += [name for name in mine if mine[name] != theirs.get(name)]
    return found


def explain(plain: Outcome, found: Difference, *, rehearsal: bool) -> None:
    """Add the usual causes of a difference."""
    if found.none:
        return
    if plain.end.unchanged:
        names = ", ".join(f"field {name}" for name in plain.end.unchanged)
        found.causes.append(STALE.format(names=names, first=plain.end.unchanged[0]))
    if not rehearsal:
        sizes = [part.partition(":")[2] for part in found.script.split(",")]
        found.causes.append(SIZES.format(sizes=" and on ".join(dict.fromkeys(sizes))))
    elif found.fields or found.state:
        found.causes.append(FORGOTTEN)
    else:
        found.causes.append(UNDECLARED)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that child processes are ended."""
    usual = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


def _output_of(
    command: Sequence[str], env: Mapping[str, str], limit_s: float | None
) -> tuple[int, bytes, bytes]:
    """Return the exit status, stdout and stderr of a command; end its processes on any error.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            output, messages = process.communicate(timeout=limit_s)
        except BaseException:
            end_process(process)
            _end_marked(f"{CHECK_VARIABLE}={env[CHECK_VARIABLE]}")
            raise
    return process.returncode, output, messages


def _end_marked(mark: str) -> None:
    """Kill the processes that have this variable in their environment: ranks without launcher."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)


def run_once(
    command: Sequence[str], script: str, compared: Path | None, plain_s: float | None = None
) -> Outcome:
    """Run the program with these resizes.

    Args:
        plain_s: its time without resizes; None for no timeout.

    Raises:
        NoProgramError: it could not be started.
        CheckError: it failed, or has not come to the end of a block of dmr.malleable.
    """
    what = f"with {SCRIPT_VARIABLE}={script}" if script else "without resizes"
    with tempfile.TemporaryDirectory(prefix="dmr-check-") as folder:
        record = Path(folder) / "end.json"
        env = {**os.environ, SCRIPT_VARIABLE: script, CHECK_VARIABLE: str(record)}
        limit_s = None if plain_s is None else LEAST_S + TIMES * plain_s
        if compared is not None:
            remove_output(compared)
        begun = time.perf_counter()
        try:
            status, output, messages = _output_of(command, env, limit_s)
        except subprocess.TimeoutExpired:
            raise CheckError(LATE.format(what=what, limit=limit_s, plain=plain_s)) from None
        except OSError as error:
            raise NoProgramError(
                f"expected a command that can be run, got {command[0]}: {error.strerror}"
            ) from None
        wall_s = time.perf_counter() - begun
        lines = messages.decode(errors="replace").strip().splitlines()
        # After a resize mpirun's own status says nothing.
        if not record.exists() or (status and not script):
            last = f": {lines[-1]}" if lines else ""
            raise CheckError(
                f"expected the program to come to the end of a block of dmr.malleable or of "
                f"dmr.run {what}, got {_end(status)}{last}"
            )
        end = msgspec.json.decode(record.read_bytes(), type=Digests)
    for line in lines:
        if "rolled back" in line:
            raise CheckError(f"expected every resize to be done {what}, got: {line}")
    if len(end.sizes) != script.count(":"):
        raise CheckError(
            f"expected {script.count(':')} resizes {what}, got {len(end.sizes)}: a program that is "
            "checked has none of its own in its plan, and asks for none"
        )
    if compared is None:
        return Outcome(script, output, end, wall_s)
    if not compared.is_file():
        raise CheckError(f"expected the program to write {compared}, got no such file")
    return Outcome(script, compared.read_bytes(), end, wall_s)


@_terminable()
def check(
    command: Sequence[str],
    sizes: Sequence[int],
    compared: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run a program plain, with rehearsals and with resizes; return what differs.

    Raises:
        NoProgramError: it could not be started.
        CheckError: it cannot be checked.
    """
    plain = run_once(command, "", compared)
    steps, ranks, text = plain.end.step, plain.end.ranks, compared is None
    say(f"plain: {steps} steps on {ranks} ranks, {plain.wall_s:.1f} s")
    varying: int | None = None
    rows = []
    for name, script in (
        ("rehearsal", rehearsal_script(steps, ranks)),
        ("resizes", resizes_script(steps, sizes)),
    ):
        other = run_once(command, script, compared, plain.wall_s)
        found = compare(plain, other, text=text, varying=varying or 0)
        if found.lines and text and varying is None:
            varying = len(differing_lines(plain.output, run_once(command, "", None).output))
            found = compare(plain, other, text=text, varying=varying)
        explain(plain, found, rehearsal=name == "rehearsal")
        _tell(name, found, say)
        rows.append({"name": name, "same": found.none, **vars(found)})
    if varying:
        say(f"note: as many as {varying} lines differ between two plain runs, too, and were let be")
    same = all(row["same"] for row in rows)
    say("the same whatever happens to its ranks" if same else "not the same: see above")
    return {"same": same, "steps": steps, "ranks": ranks, "runs": rows}


def _end(status: int) -> str:
    """Describe how a program ended without a record."""
    return f"status {status}" if status else "a program that exited with status 0 before it"


def _tell(name: str, found: Difference, say: Callable[[str], None]) -> None:
    say(f"{name} ({SCRIPT_VARIABLE}={found.script}): {'the same' if found.none else 'DIFFERS'}")
    for line in found.lines[:SHOWN]:
        say(f"  {line}")
    if len(found.lines) > SHOWN:
        say(f"  ... and {len(found.lines) - SHOWN} lines more")
    for kind, names in (("fields", found.fields), ("state", found.state)):
        if names:
            say(f"  {kind} that differ at the end: {', '.join(names)}")
    for cause in found.causes:
        say(f"  {cause}")
