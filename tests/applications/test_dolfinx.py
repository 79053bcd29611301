"""DOLFINx and petsc4py from their wheels: bits on equal ranks, sums to 14 digits on others.

Dot products depend on the number of ranks, with and without resizes. The explicit steps of
``dmda.py`` have none: there the bits are compared on any ranks.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest
from daemon import Rms
from processes import DEADLINE_S, MPIEXEC, ROOT, Run, program

PACKAGE = "dolfinx"
FOLDER = ROOT / "jobs" / "applications" / "dolfinx"
NAMES = ("heat", "poisson", "dmda")
RESIZES = {
    "equal": dict.fromkeys(range(2, 14, 2), 2),
    "other": {2: 3, 4: 1, 6: 2, 8: 3, 10: 2, 12: 1},
}
SIZES = [1, 3, 2, 1, 3, 2]
STEPS = {"heat": 150, "poisson": 80, "dmda": 300}
MOST_OWN = 15

Answer = tuple[float, str]

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="the wheels of DOLFINx need Python 3.12 or newer"
)


def answer(output: str) -> Answer:
    """Return the sum of all values, and their hash."""
    ((total, values),) = re.findall(r"^sum (\S+) of \d+ points, (\w+)$", output, re.MULTILINE)
    return float(total), values


def command(name: str, *words: object) -> list[str]:
    return [sys.executable, str(FOLDER / f"{name}.py"), *map(str, words)]


@pytest.fixture(scope="module")
def plain(package: str) -> Callable[..., Answer]:
    """Return the answer of the program without dmr on 2 ranks, computed once."""

    @cache
    def call(name: str, *words: int) -> Answer:
        line = [MPIEXEC, "-n", "2", *command(f"{name}_plain", *words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return answer(done.stdout)

    return call


@pytest.mark.promise("applications")
@pytest.mark.parametrize("ranks", RESIZES)
@pytest.mark.parametrize("name", NAMES)
def test_resizes_leave_the_values(
    run: Run, plain: Callable[..., Answer], name: str, ranks: str
) -> None:
    wanted = RESIZES[ranks]
    script = ",".join(f"{step}:{size}" for step, size in wanted.items())
    moved = run(MPIEXEC, "-n", "2", *command(name), env={"DMR_RESIZE_AT": script})
    done = re.findall(r"resize at step (\d+): \d+ -> (\d+) ranks by spawn", moved.stdout)
    assert {int(step): int(size) for step, size in done} == wanted, moved.stdout + moved.stderr
    same(answer(moved.stdout), plain(name), bits=ranks == "equal" or name == "dmda")


def same(found: Answer, expected: Answer, *, bits: bool) -> None:
    if bits:
        assert found == expected
    assert found[0] == pytest.approx(expected[0], rel=2e-14)


@pytest.mark.promise("applications")
@pytest.mark.parametrize("name", NAMES)
def test_resizes_of_a_job_leave_the_values(
    rms: Rms, plain: Callable[..., Answer], name: str
) -> None:
    words = [*program("paced"), *command(name, STEPS[name])[1:]]
    line = " ".join(["PACE_S=1 PACE_LATE_S=1 mpirun", *words])
    job = rms.submit(line, "--mode", "malleable", "--nodes", "1-3", "--preferred", "2")
    rms.running(job)
    for count, size in enumerate(SIZES, 1):
        rms.resized(job, size)
        rms.until(lambda count=count: len(rms.row(job)["resizes"]) == count, f"resize {count}")
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    done = rms.row(job)["resizes"]
    assert [(row["to"], row["strategy"]) for row in done] == [(size, "warm") for size in SIZES]
    same(answer(rms.output(job)), plain(name, STEPS[name]), bits=name == "dmda")
    rms.nothing_left()


@pytest.mark.promise("applications")
@pytest.mark.wide
@pytest.mark.parametrize("name", NAMES)
def test_check_finds_nothing_forgotten(run: Run, name: str) -> None:
    check = [sys.executable, "-m", "dmr", "check", "--", "mpirun", "-n", "2", *command(name)]
    done = run(*check)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^rehearsal \(.*\): the same$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_own_lines_are_few(name: str) -> None:
    plain, own = (
        # What is indented for a block counts as it was; the docstring does not count.
        [line.strip() for line in path.read_text().partition('"""\n\nimport')[2].splitlines()]
        for path in (FOLDER / f"{name}_plain.py", FOLDER / f"{name}.py")
    )
    code = ([line for line in text if line] for text in (plain, own))
    assert 0 < sum(line.startswith("+") for line in difflib.ndiff(*code)) <= MOST_OWN
