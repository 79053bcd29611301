"""``dmr check``: whether a program has the same result with and without resizes.

It runs plain, then with rehearsals (resizes into as many new ranks, which must keep every bit,
sums over ranks included), then with resizes to other sizes. The check compares its output, or a
file that it writes, and all data that it has declared.
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
"""Number of differing lines of output that are printed."""

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
    """The program could not be started."""


@dataclass(frozen=True)
class Outcome:
    """One run of the program.

    Attributes:
        script: its resizes.
        output: of standard output, or of the file that it wrote.
        end: hashes of its declared data at its end.
    """

    script: str
    output: bytes
    end: Digests
    wall_s: float


@dataclass
class Difference:
    """The difference between a run with resizes and the plain one.

    Attributes:
        lines: of the output, as text.
        fields, state: names of data that differ at the end.
        causes: sentences.
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
    """Return resizes to as many ranks, after an odd and an even number of steps."""
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
    """Return lines that only one of two outputs has, in any number and order.

    Every new set of ranks prints again what the program prints before the loop.
    """
    one, two = (text.decode(errors="replace").splitlines() for text in (plain, other))
    missing = [f"- {line}" for line in dict.fromkeys(one) if line not in set(two)]
    return missing + [f"+ {line}" for line in dict.fromkeys(two) if line not in set(one)]


def compare(plain: Outcome, other: Outcome, *, text: bool, varying: int = 0) -> Difference:
    """Return the difference between a run and the plain one.

    Args:
        text: whether the output is lines; else its bytes are compared.
        varying: lines that differ between two plain runs as well.
    """
    difference = Difference(other.script)
    if text:
        lines = differing_lines(plain.output, other.output)
        difference.lines = [] if len(lines) <= varying else lines
    elif plain.output != other.output:
        pairs = zip(plain.output, other.output, strict=False)
        shorter = min(len(plain.output), len(other.output))
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
        difference.lines = [f"the file differs from byte {at} on"]
    difference.fields = _differing_names(plain.end.fields, other.end.fields)
    difference.state = _differing_names(plain.end.state, other.end.state)
    return difference


def _differing_names(plain: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [name for name in plain if plain[name] != other.get(name)]


def explain(plain: Outcome, difference: Difference, *, rehearsal: bool) -> None:
    """Add the usual causes of a difference."""
    if difference.none:
        return
    causes = difference.causes
    if plain.end.unchanged:
        names = ", ".join(f"field {name}" for name in plain.end.unchanged)
        causes.append(STALE.format(names=names, first=plain.end.unchanged[0]))
    if not rehearsal:
        sizes = [part.partition(":")[2] for part in difference.script.split(",")]
        causes.append(SIZES.format(sizes=" and on ".join(dict.fromkeys(sizes))))
    else:
        declared = difference.fields or difference.state
        causes.append(FORGOTTEN if declared else UNDECLARED)


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
    """Return the exit status, stdout and stderr of a command; end its processes on any error."""
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
    """Kill the processes with this variable in their environment: ranks without a launcher."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)


def run_once(
    command: Sequence[str], script: str, compared: Path | None, plain_s: float | None = None
) -> Outcome:
    """Run the program with these resizes.

    Args:
        plain_s: its time without resizes; None for no timeout.
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
            got = f"status {status}" if status else "a program that exited with status 0 before it"
            raise CheckError(
                f"expected the program to come to the end of a block of dmr.malleable or of "
                f"dmr.run {what}, got {': '.join([got, *lines[-1:]])}"
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
    """Run a program plain, with rehearsals and with resizes; return the differences."""
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
        difference = compare(plain, other, text=text, varying=varying or 0)
        if difference.lines and text and varying is None:
            varying = len(differing_lines(plain.output, run_once(command, "", None).output))
            difference = compare(plain, other, text=text, varying=varying)
        explain(plain, difference, rehearsal=name == "rehearsal")
        _print(name, difference, say)
        rows.append({"name": name, "same": difference.none, **vars(difference)})
    if varying:
        say(f"note: as many as {varying} lines differ between two plain runs, too, and were let be")
    same = all(row["same"] for row in rows)
    say("the same whatever happens to its ranks" if same else "not the same: see above")
    return {"same": same, "steps": steps, "ranks": ranks, "runs": rows}


def _print(name: str, difference: Difference, say: Callable[[str], None]) -> None:
    result = "the same" if difference.none else "DIFFERS"
    say(f"{name} ({SCRIPT_VARIABLE}={difference.script}): {result}")
    for line in difference.lines[:SHOWN]:
        say(f"  {line}")
    if len(difference.lines) > SHOWN:
        say(f"  ... and {len(difference.lines) - SHOWN} lines more")
    for kind, names in (("fields", difference.fields), ("state", difference.state)):
        if names:
            say(f"  {kind} that differ at the end: {', '.join(names)}")
    for cause in difference.causes:
        say(f"  {cause}")
