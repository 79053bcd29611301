"""Veros with its own set-ups: the bits of Veros' own restarts at the steps of resizes.

Without resizes the bits are those of the run with resizes to as many ranks; on other numbers of
ranks Veros' sums differ by rounding, with or without resizes. Overlap beyond the edges of the grid
is compared only with the former: Veros refreshes it as it reads a restart file.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from daemon import Rms
from processes import DEADLINE_S, MPIEXEC, ROOT, Run, program

PACKAGE = "veros"
MALLEABLE = ROOT / "jobs" / "applications" / "veros" / "malleable.py"
SUMS = program("veros_sums")
STEPS, STEP_S = 16, 43200
RESIZES = {2: 3, 4: 1, 6: 2, 9: 3, 11: 2, 14: 1}
FEWER = {4: 3, 8: 1, 12: 2}
MOST_OWN = 15
NOT_CANCELLING = ("core-temp", "core-salt", "core-rho", "averages-temp", "averages-salt")
"""Variables of one sign: sums of others lose digits."""
QUIET = ("-v", "warning")

Sums = dict[str, tuple[str, str, float]]
"""For each variable the digest of its array, that without overlap, and the sum of the latter."""


def sums(output: str) -> Sums:
    """Return what rank 0 of the last set of ranks has printed."""
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    return {name: (whole, cells, total) for name, (whole, cells, total) in json.loads(line).items()}


def whole(found: Sums) -> dict[str, str]:
    return {name: digest for name, (digest, _, _) in found.items()}


def cells(found: Sums) -> dict[str, str]:
    return {name: digest for name, (_, digest, _) in found.items()}


def setup_of(name: str) -> str:
    """Return the path of a set-up that Veros brings."""
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "setups" / name / f"{name}.py")


def options(name: str, steps: int) -> list[str]:
    return [setup_of(name), "-s", "runlen", str(steps * STEP_S), *QUIET]


@pytest.fixture(scope="module")
def plain(package: str) -> Callable[[str], Sums]:
    """Return the result of ``veros run`` on 2 ranks, computed once for each set-up."""

    @functools.cache
    def call(name: str) -> Sums:
        words = [MPIEXEC, "-n", "2", *SUMS, "run", *options(name, STEPS), "--diskless-mode"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return sums(done.stdout)

    return call


def restarted(run: Run, name: str, resizes: Mapping[int, int], steps: int = STEPS) -> Sums:
    """Return the result of ``veros run`` with a restart from disk at the step of each resize."""
    at, ranks, start, output = 0, 2, list[str](), ""
    for step, size in [*resizes.items(), (steps, 0)]:
        file = f"restart-{step}.h5"
        words = [*options(name, step - at), *start, "-s", "restart_output_filename", file]
        done = run(MPIEXEC, "-n", str(ranks), *SUMS, "run", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        start = ["-s", "restart_input_filename", file]
        at, ranks, output = step, size, done.stdout
    return sums(output)


def resized(run: Run, name: str, resizes: str) -> tuple[Sums, dict[int, int], str]:
    """Return the result of a run on 2 ranks, its resizes and its output."""
    words = [str(MALLEABLE), *options(name, STEPS), "--diskless-mode"]
    done = run(MPIEXEC, "-n", "2", *SUMS, *words, env={"DMR_RESIZE_AT": resizes})
    assert done.returncode == 0, done.stdout + done.stderr
    moves = re.findall(r"resize at step (\d+): \d+ -> (\d+) ranks by spawn", done.stdout)
    return sums(done.stdout), {int(step): int(ranks) for step, ranks in moves}, done.stdout


@pytest.mark.promise("applications")
@pytest.mark.parametrize(
    ("name", "resizes"),
    [
        ("acc_basic", FEWER),
        pytest.param("acc_basic", RESIZES, marks=pytest.mark.wide),
        pytest.param("acc", RESIZES, marks=pytest.mark.wide),
    ],
)
def test_resizes_leave_the_bits_of_restarts(
    run: Run, plain: Callable[[str], Sums], name: str, resizes: dict[int, int]
) -> None:
    script = ",".join(f"{step}:{ranks}" for step, ranks in resizes.items())
    found, done, _ = resized(run, name, script)
    assert done == resizes
    assert {"overturning-trans", "energy-nitts", "averages-average_nitts"} < set(found)
    assert cells(found) == cells(restarted(run, name, resizes))
    for variable in NOT_CANCELLING:
        expected = plain(name)[variable][2]
        assert found[variable][2] == pytest.approx(expected, rel=1e-15), variable


@pytest.mark.promise("applications")
@pytest.mark.parametrize("name", ["acc_basic", pytest.param("acc", marks=pytest.mark.wide)])
def test_moves_to_as_many_ranks_leave_the_bits(
    run: Run, plain: Callable[[str], Sums], name: str
) -> None:
    """Veros refuses 4 ranks, which do not divide the 42 rows: the run goes on."""
    found, done, said = resized(run, name, "2:4,4:2,10:2")
    assert "resize to 4 ranks rolled back" in said and done == {4: 2, 10: 2}, said
    assert whole(found) == whole(plain(name))


@pytest.mark.promise("applications")
def test_resizes_of_a_job_leave_the_bits_of_restarts(rms: Rms, run: Run) -> None:
    steps, sizes = 120, [3, 1, 2, 3, 2, 1]
    words = [*program("paced"), SUMS[1], str(MALLEABLE), *options("acc_basic", steps)]
    line = " ".join(["PACE_S=1 PACE_LATE_S=4 mpirun", *words, "--diskless-mode"])
    job = rms.submit(line, "--mode", "malleable", "--nodes", "1-3", "--preferred", "2")
    rms.running(job)
    for count, size in enumerate(sizes, 1):
        rms.resized(job, size)
        rms.until(lambda count=count: len(rms.row(job)["resizes"]) == count, f"resize {count}")
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    done = rms.row(job)["resizes"]
    assert [(row["to"], row["strategy"]) for row in done] == [(size, "warm") for size in sizes]
    resizes = {row["step"]: row["to"] for row in done}
    assert len(resizes) == len(sizes), done  # no two at one step
    assert cells(sums(rms.output(job))) == cells(restarted(run, "acc_basic", resizes, steps))
    rms.nothing_left()


@pytest.mark.promise("applications")
@pytest.mark.wide
def test_check_finds_nothing_forgotten(run: Run) -> None:
    words = [str(MALLEABLE), *options("acc_basic", STEPS), "--diskless-mode"]
    check = [sys.executable, "-m", "dmr", "check", "--", "mpirun", "-n", "2", sys.executable]
    done = run(*check, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^rehearsal \(.*\): the same$", done.stdout, re.MULTILINE), done.stdout
    end = "right; sums depend on the number of ranks, without resizes as well"
    assert done.stdout.splitlines()[-1] == end


def test_own_lines_are_few() -> None:
    plain, own = (
        [line for line in path.read_text().partition('"""\n\nimport')[2].splitlines() if line]
        for path in (MALLEABLE.with_name("plain.py"), MALLEABLE)
    )
    assert 0 < sum(line.startswith("+") for line in difflib.ndiff(plain, own)) <= MOST_OWN
