"""``dmr check``: whether a program has the same result with and without resizes.

It runs plain, then with rehearsals (resizes into as many new ranks, which must keep every bit,
sums over ranks included), then with resizes to other sizes. The check compares its output, a file
that it writes, and all data that it has declared. Where something differs, it runs the program
plain once more, and plain on the other sizes: what differs there, too, is not due to a resize.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
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

from dmr.boot.environment import CHECK_STEPS_VARIABLE, CHECK_VARIABLE, SCRIPT_VARIABLE
from dmr.boot.mpiexec import end_process
from dmr.check.digests import Digests, values_folder
from dmr.check.tolerance import close_arrays, close_lines, close_texts, close_values
from rms.wire.files import remove_output

SHOWN = 3
"""Number of differing lines of output that are printed."""

LEAST_S, TIMES = 60.0, 10.0
"""Timeout of a run with resizes: a constant, and a multiple of the time without resizes."""

LEAST_STEPS, TIMES_STEPS = 10, 3
"""Limit of its steps, alike: such a run is stopped, and its data are compared all the same."""

LATE = (
    "expected the program to end {what} within {limit:.0f} s, got a program that is still running; "
    "without resizes it takes {plain:.1f} s: its loop may depend on variables that a resize "
    "loses: declare arrays as fields (with rebind after a swap), other variables in state={{...}}"
)
ENDLESS = (
    "stopped at step {step}, as without resizes it ends after {steps}: its loop may depend on what "
    "was forgotten"
)
STALE_STATE = (
    "{names}: the value that it began with. A constant needs no cure; where the program computes "
    "with a variable of its own, set run.state.{first} in save= of dmr.malleable, or before each "
    "resize point"
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
NAMED = (
    "{names}: not declared, and not the same at the end: declare those that a step needs of the "
    "step before, arrays as fields, counters, random generators and all else in state={{...}} of "
    "dmr.malleable"
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
DEPENDS = "without any resize the same differs on {sizes} ranks: sums depend on the number of ranks"
BOUNDARY = (
    "{what}: the same on {sizes} ranks without any resize: a boundary or a halo that is set before "
    "the loop only on some ranks is a usual cause"
)
SAME, RIGHT, DIFFERENT = (
    "the same whatever happens to its ranks",
    "right; sums depend on the number of ranks, without resizes as well",
    "not the same: see above",
)
"""Verdicts; the first two have status 0."""

LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun"}
RANKS_OPTIONS = {"-n", "-np", "--np", "--n", "--ntasks"}


class CheckError(Exception):
    """The program cannot be checked; one sentence."""


class NoProgramError(CheckError):
    """The program could not be started."""


@dataclass(frozen=True)
class Outcome:
    """One run of the program.

    Attributes:
        script: its resizes.
        output: of standard output.
        end: hashes of its declared data at its end.
        file: content of the file that it wrote, None if none is compared.
        values: folder with the values of its fields, None without a tolerance.
    """

    script: str
    output: bytes
    end: Digests
    wall_s: float
    file: bytes | None = None
    values: Path | None = None


@dataclass
class Difference:
    """The difference between a run and the plain one.

    Attributes:
        lines: of the output, as text.
        file: lines of the file, or where its bytes differ.
        fields, state: names of data that differ at the end.
        variables: names of variables of the program, not declared, that differ at the end.
        causes: sentences.
        stopped: whether the run was stopped, after far more steps than without resizes.
    """

    script: str
    lines: list[str] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def none(self) -> bool:
        """Whether nothing differs."""
        return not (self.stopped or self.lines or self.file or self.fields or self.state)

    def without(self, other: Difference, *, counted: bool) -> Difference:
        """Return the difference without what another one has, too.

        Args:
            counted: whether lines are left out only if the other one has as many.
        """

        def left(mine: list[str], theirs: list[str]) -> list[str]:
            enough = len(theirs) >= len(mine) if counted else bool(theirs)
            return [] if enough else mine

        return dataclasses.replace(
            self,
            lines=left(self.lines, other.lines),
            file=left(self.file, other.file),
            fields=[name for name in self.fields if name not in other.fields],
            state=[name for name in self.state if name not in other.state],
            variables=[name for name in self.variables if name not in other.variables],
        )

    def words(self) -> str:
        """Return what differs, in words."""
        parts = [f"field {name}" for name in self.fields] + [f"state {name}" for name in self.state]
        parts += [f"{len(self.lines)} lines of the output"] if self.lines else []
        return ", ".join(parts + (["the file"] if self.file else []))


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


def differing_lines(plain: bytes, other: bytes, tolerance: float = 0.0) -> list[str]:
    """Return lines that only one of two outputs has, in any number and order.

    Every new set of ranks prints again what the program prints before the loop.
    """
    one, two = (text.decode(errors="replace").splitlines() for text in (plain, other))
    missing = [f"- {line}" for line in close_lines(one, two, tolerance)]
    return missing + [f"+ {line}" for line in close_lines(two, one, tolerance)]


def differing_bytes(plain: bytes, other: bytes, tolerance: float = 0.0) -> list[str]:
    """Return where two files differ: lines of texts with a tolerance, else the first byte."""
    if plain == other or (tolerance and close_texts(plain, other, tolerance)):
        return []
    pairs = zip(plain, other, strict=False)
    shorter = min(len(plain), len(other))
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
    return [f"the file differs from byte {at} on"]


def compare(plain: Outcome, other: Outcome, tolerance: float = 0.0) -> Difference:
    """Return the difference between a run and the plain one."""
    difference = Difference(other.script, stopped=other.end.stopped)
    if difference.stopped:
        causes = difference.causes
        causes.append(ENDLESS.format(step=other.end.step, steps=plain.end.step))
    else:
        difference.lines = differing_lines(plain.output, other.output, tolerance)
        difference.file = differing_bytes(plain.file or b"", other.file or b"", tolerance)
    one, two = plain.end, other.end
    difference.fields = [
        name
        for name in _differing_names(one.fields, two.fields)
        if not (tolerance and _are_close(plain, other, name, tolerance))
    ]
    difference.state = [
        name
        for name in _differing_names(one.state, two.state)
        if not (tolerance and close_values(one.values.get(name), two.values.get(name), tolerance))
    ]
    if one.ranks == two.ranks:
        pairs = zip(one.variables, two.variables, strict=False)
        names = (name for mine, theirs in pairs for name in _differing_names(mine, theirs))
        difference.variables = list(dict.fromkeys(names))
    return difference


def _are_close(plain: Outcome, other: Outcome, name: str, tolerance: float) -> bool:
    """Return whether a field has about the same values in two runs."""
    if plain.values is None or other.values is None or name not in other.end.fields:
        return False
    numbers = (list(one.end.fields).index(name) for one in (plain, other))
    folders = (plain.values, other.values)
    one, two = (folder / f"{at}.npy" for folder, at in zip(folders, numbers, strict=True))
    return one.exists() and two.exists() and close_arrays(one, two, tolerance)


def _differing_names(plain: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [name for name in plain if plain[name] != other.get(name)]


def explain(plain: Outcome, difference: Difference, *, rehearsal: bool) -> None:
    """Add the usual causes of a difference."""
    if difference.none:
        return
    causes, end = difference.causes, plain.end
    if end.unchanged:
        names = ", ".join(f"field {name}" for name in end.unchanged)
        causes.append(STALE.format(names=names, first=end.unchanged[0]))
    if end.unchanged_state:
        names = ", ".join(f"state {name}" for name in end.unchanged_state)
        causes.append(STALE_STATE.format(names=names, first=end.unchanged_state[0]))
    if not rehearsal:
        sizes = [part.partition(":")[2] for part in difference.script.split(",")]
        causes.append(SIZES.format(sizes=" and on ".join(dict.fromkeys(sizes))))
    elif difference.variables:
        causes.append(NAMED.format(names=", ".join(difference.variables)))
    elif difference.fields or difference.state:
        causes.append(FORGOTTEN)
    elif not causes or difference.stopped:
        causes.append(UNDECLARED)


def command_on(command: Sequence[str], ranks: int) -> list[str] | None:
    """Return the command for another number of ranks, None if it does not state one."""
    words = list(command)
    for at, word in enumerate(words[:-1] if Path(words[0]).name in LAUNCHERS else ()):
        if word in RANKS_OPTIONS and words[at + 1].isdecimal():
            return [*words[: at + 1], str(ranks), *words[at + 2 :]]
        if match := re.fullmatch(r"(-n|--np=|--n=|--ntasks=)\d+", word):
            return [*words[:at], f"{match[1]}{ranks}", *words[at + 1 :]]
    return None


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
    command: Sequence[str],
    script: str,
    compared: Path | None,
    plain_s: float | None = None,
    values: Path | None = None,
    steps: int = 0,
) -> Outcome:
    """Run the program with these resizes.

    Args:
        compared: a file that it writes.
        steps: it does without resizes; 0 for no limit.
        plain_s: its time without resizes; None for no timeout.
        values: folder that gets the values of its fields; None for hashes alone.
    """
    what = f"with {SCRIPT_VARIABLE}={script}" if script else "without resizes"
    with tempfile.TemporaryDirectory(prefix="dmr-check-") as folder:
        record = Path(folder) / "end.json"
        env = {**os.environ, SCRIPT_VARIABLE: script, CHECK_VARIABLE: str(record)}
        if steps:
            env[CHECK_STEPS_VARIABLE] = str(LEAST_STEPS + TIMES_STEPS * steps)
        limit_s = None if plain_s is None else LEAST_S + TIMES * plain_s
        if values is not None:
            values.mkdir()
            values_folder(record).symlink_to(values)
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
        end = None
        if record.exists():
            end = msgspec.json.decode(record.read_bytes(), type=Digests)
        # After a resize mpirun's own status says nothing.
        if end is None or (status and not script and not end.stopped):
            got = f"status {status}" if status else "a program that exited with status 0 before it"
            raise CheckError(
                f"expected the program to come to the end of a block of dmr.malleable or of "
                f"dmr.run {what}, got {': '.join([got, *lines[-1:]])}"
            )
    for line in lines:
        if "rolled back" in line:
            raise CheckError(f"expected every resize to be done {what}, got: {line}")
    if len(end.sizes) != script.count(":"):
        raise CheckError(
            f"expected {script.count(':')} resizes {what}, got {len(end.sizes)}: a program that is "
            "checked has none of its own in its plan, and asks for none"
        )
    if compared is not None and not compared.is_file() and not end.stopped:
        raise CheckError(f"expected the program to write {compared}, got no such file")
    file = compared.read_bytes() if compared is not None and compared.is_file() else None
    return Outcome(script, output, end, wall_s, file, values)


@_terminable()
def check(
    command: Sequence[str],
    sizes: Sequence[int],
    compared: Path | None,
    say: Callable[[str], None],
    tolerance: float = 0.0,
) -> dict[str, Any]:
    """Run a program plain, with rehearsals and with resizes; return the differences.

    Args:
        sizes: numbers of ranks of the run with resizes.
        compared: a file that the program writes, compared beside its output.
        tolerance: relative difference of numbers that counts as none, 0 for bits.
    """
    with tempfile.TemporaryDirectory(prefix="dmr-check-") as folder:
        return _Check(command, compared, say, tolerance, Path(folder)).run(sizes)


class _Check:
    """The runs of one check."""

    def __init__(
        self,
        command: Sequence[str],
        compared: Path | None,
        say: Callable[[str], None],
        tolerance: float,
        folder: Path,
    ) -> None:
        self._command, self._compared, self._say = command, compared, say
        self._tolerance, self._folder = tolerance, folder
        self._runs = 0
        self._varying: Difference | None = None
        self._steps = 0
        self._plain = self._run("", None)
        self._steps = self._plain.end.step

    def _run(
        self, script: str, plain_s: float | None, command: Sequence[str] | None = None
    ) -> Outcome:
        self._runs += 1
        values = self._folder / str(self._runs) if self._tolerance else None
        words = command or self._command
        return run_once(words, script, self._compared, plain_s, values, self._steps)

    def run(self, sizes: Sequence[int]) -> dict[str, Any]:
        """Run and compare; return the result."""
        plain, say = self._plain, self._say
        steps, ranks = plain.end.step, plain.end.ranks
        say(f"plain: {steps} steps on {ranks} ranks, {plain.wall_s:.1f} s")
        rehearsal = self._compared_with(rehearsal_script(steps, ranks))
        explain(plain, rehearsal, rehearsal=True)
        self._print("rehearsal", rehearsal)
        resizes = self._compared_with(resizes_script(steps, sizes))
        depends = False
        if not resizes.none and rehearsal.none:
            depends = self._look_at_sizes(resizes, [size for size in sizes if size != ranks])
        self._print("resizes", resizes)
        if plain.end.unchanged_state and rehearsal.none:
            names = ", ".join(plain.end.unchanged_state)
            say(f"note: run.state never changes here: {names}")
        varying = self._varying or Difference("")
        if not varying.none:
            say(
                f"note: the program is not the same in two plain runs, so this was not compared: "
                f"{varying.words()}"
            )
        same = rehearsal.none and resizes.none
        verdict = SAME if same else RIGHT if rehearsal.none and depends else DIFFERENT
        say(verdict)
        rows = [
            {"name": name, "same": one.none, **vars(one)}
            for name, one in (("rehearsal", rehearsal), ("resizes", resizes))
        ]
        return {
            "same": same,
            "right": verdict != DIFFERENT,
            "verdict": verdict,
            "steps": steps,
            "ranks": ranks,
            "not_compared": [*varying.fields, *varying.state],
            "unchanged_state": plain.end.unchanged_state,
            "runs": rows,
        }

    def _compared_with(self, script: str) -> Difference:
        """Run with resizes; return what differs, without what two plain runs differ by, too."""
        other = self._run(script, self._plain.wall_s)
        difference = compare(self._plain, other, self._tolerance)
        if difference.none:
            return difference
        if self._varying is None:
            again = self._run("", self._plain.wall_s)
            self._varying = compare(self._plain, again, self._tolerance)
        return difference.without(self._varying, counted=True)

    def _look_at_sizes(self, difference: Difference, sizes: Sequence[int]) -> bool:
        """Run plain on other numbers of ranks; return whether all of a difference is there, too."""
        left, differing = difference, list[str]()
        for size in dict.fromkeys(sizes):
            command = command_on(self._command, size)
            if command is None:
                explain(self._plain, difference, rehearsal=False)
                return False
            try:
                other = self._run("", self._plain.wall_s, command)
            except CheckError as error:
                difference.causes.append(f"on {size} ranks without any resize: {error}")
                continue
            found = compare(self._plain, other, self._tolerance)
            if not found.none:
                differing.append(str(size))
            left = left.without(found, counted=False)
        if left.none:
            difference.causes.append(DEPENDS.format(sizes=" and ".join(differing)))
            return True
        among = " and ".join(map(str, dict.fromkeys(sizes)))
        difference.causes.append(BOUNDARY.format(what=left.words(), sizes=among))
        return False

    def _print(self, name: str, difference: Difference) -> None:
        say = self._say
        result = "the same" if difference.none else "DIFFERS"
        say(f"{name} ({SCRIPT_VARIABLE}={difference.script}): {result}")
        for lines in (difference.lines, difference.file):
            for line in lines[:SHOWN]:
                say(f"  {line}")
            if len(lines) > SHOWN:
                say(f"  ... and {len(lines) - SHOWN} lines more")
        for kind, names in (("fields", difference.fields), ("state", difference.state)):
            if names:
                say(f"  {kind} that differ at the end: {', '.join(names)}")
        for cause in difference.causes:
            say(f"  {cause}")
