"""DOLFINx and petsc4py from their wheels: bits on equal ranks, sums to 12 digits on others."""

from __future__ import annotations

import re
import sys

import pytest
from daemon import Rms
from processes import MPIEXEC, ROOT, Run, program

PACKAGE = "dolfinx"
FOLDER = ROOT / "jobs" / "applications" / "dolfinx"
NAMES = ("heat", "poisson", "dmda")
RESIZES = {
    "equal": dict.fromkeys(range(2, 14, 2), 2),
    "other": {2: 3, 4: 1, 6: 2, 8: 3, 10: 2, 12: 1},
}

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="the wheels of DOLFINx need Python 3.12 or newer"
)


def answer(output: str) -> tuple[float, str]:
    """Return the sum of all values, and their hash."""
    ((total, values),) = re.findall(r"^sum (\S+) of \d+ points, (\w+)$", output, re.MULTILINE)
    return float(total), values


def command(name: str) -> list[str]:
    return [sys.executable, str(FOLDER / f"{name}.py")]


@pytest.mark.parametrize("ranks", RESIZES)
@pytest.mark.parametrize("name", NAMES)
def test_resizes_leave_the_values(run: Run, name: str, ranks: str) -> None:
    plain = run(MPIEXEC, "-n", "2", *command(name))
    assert plain.returncode == 0, plain.stdout + plain.stderr
    wanted = RESIZES[ranks]
    script = ",".join(f"{step}:{size}" for step, size in wanted.items())
    moved = run(MPIEXEC, "-n", "2", *command(name), env={"DMR_RESIZE_AT": script})
    done = re.findall(r"resize at step (\d+): \d+ -> (\d+) ranks by spawn", moved.stdout)
    assert {int(step): int(size) for step, size in done} == wanted, moved.stdout + moved.stderr
    (total, values), (own_total, own_values) = answer(plain.stdout), answer(moved.stdout)
    if ranks == "equal" or name == "dmda":  # explicit steps have no sums over the ranks
        assert own_values == values
    assert own_total == pytest.approx(total, rel=1e-11, abs=1e-11)


def test_resizes_of_a_job_leave_the_values(rms: Rms, run: Run) -> None:
    sizes = [2, 1, 2, 3, 1, 2]
    plain = run(MPIEXEC, "-n", "2", *command("dmda"), "3000")
    python, path = command("dmda")
    line = f"PACE_S=1 PACE_LATE_S=1 mpirun {python} {program('paced')[1]} {path} 3000"
    job = rms.submit(line, "--mode", "malleable", "--nodes", "1-3", "--preferred", "3")
    rms.running(job)
    for count, size in enumerate(sizes, 1):
        assert rms.ask("resize", job, str(size))["decision"] == "Resize"

        def settled(count: int = count) -> bool:
            row = rms.row(job)
            assert not rms.rolled_back(job) and row["state"] == "RUNNING", rms.output(job)
            return len(row["resizes"]) == count and row["resizing"] == ""

        rms.until(settled, f"resize {count}")
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    done = rms.row(job)["resizes"]
    assert [row["to"] for row in done] == sizes and {row["strategy"] for row in done} == {"warm"}
    assert answer(rms.output(job)) == answer(plain.stdout)
    rms.nothing_left()
