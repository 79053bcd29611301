"""Public programs with our few lines in them: what they compute is what they compute without.

Their sources are not here: PUBLIC_PROGRAMS names a folder with a checkout of each at its revision,
by its name in jobs/ports/public/programs.toml.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon import Rms, lent, served
from processes import MPIEXEC, Run, program

PORTS = Path(__file__).parents[2] / "jobs" / "ports"
PUBLIC = runpy.run_path(str(PORTS / "public.py"))
PROGRAMS: dict[str, dict[str, Any]] = PUBLIC["programs"]()
MOST_CHANGED, MEDIAN_CHANGED = 10, 6
RMS_STEPS, RMS_SIZES = 3000, [3, 1, 2]  # from 2
PACE_S = 0.1
NUMBERS = re.compile(r"[-+.\deE ]*\d")


def test_patches_hold_few_lines() -> None:
    counts = []
    for name in PROGRAMS:
        last = max(
            max(first, end) for first, end, _, _ in PUBLIC["hunks"](PUBLIC["patch_of"](name))
        )
        source = "\n".join(f"line {n}" for n in range(1, last + 1))
        assert "import dmr" in PUBLIC["patched"](source, PUBLIC["patch_of"](name)).splitlines()
        counts.append(PUBLIC["changed"](PUBLIC["patch_of"](name)))
        assert 0 < counts[-1] <= MOST_CHANGED
    assert statistics.median(counts) <= MEDIAN_CHANGED


def stated(name: str, steps: int | None = None) -> dict[str, Any]:
    """Return what is known of a program that makes so many steps."""
    many = steps or PROGRAMS[name].get("steps", 0)
    text = json.dumps(PROGRAMS[name]).replace("STEPS", str(many)).replace("LAST", str(many - 1))
    known: dict[str, Any] = json.loads(text)
    return known


def copied(name: str, folder: Path, known: dict[str, Any]) -> Path:
    """Copy a program and what it needs into a folder, its malleable version beside it."""
    source = Path(os.environ.get("PUBLIC_PROGRAMS", "none")) / name
    if not (source / known["program"]).is_file():
        pytest.skip(f"PUBLIC_PROGRAMS has no {name}: {known['repository']} at {known['revision']}")
    for package in known.get("packages", []):
        pytest.importorskip(package)
    for needed in (source / path for path in known.get("needs", [])):
        if needed.is_dir():
            shutil.copytree(needed, folder / needed.name)
        else:
            shutil.copy(needed, folder)
    text = (source / known["program"]).read_text()
    for old, new in known.get("instead", {}).items():
        assert old in text
        text = text.replace(old, new, 1)
    original = folder / Path(known["program"]).name
    original.write_text(text)
    (folder / "malleable.py").write_text(PUBLIC["patched"](text, PUBLIC["patch_of"](name)))
    return original


def printed(said: str) -> set[str]:
    """Return the lines that are not about time."""
    return {line for line in said.splitlines() if not re.search(r"[Tt]ime|\d s|second", line)}


def numbers(said: str) -> list[float]:
    """Return what stands in the lines that are numbers only."""
    lines = filter(NUMBERS.fullmatch, said.splitlines())
    return [float(word) for line in lines for word in line.split()]


def assert_same(moved: str, plain: str, tolerance: float | None) -> None:
    """Find in one output what another has printed, or its numbers within a relative tolerance."""
    if tolerance is None:
        assert printed(plain) <= set(moved.splitlines())
    else:
        np.testing.assert_allclose(numbers(moved), numbers(plain), rtol=tolerance)
        assert numbers(plain)


def assert_same_files(moved: Path, plain: Path, paths: list[str], tolerance: float | None) -> None:
    """Compare files in two folders: their bytes, or their numbers within a relative tolerance."""
    for path in paths:
        if tolerance is None:
            assert (moved / path).read_bytes() == (plain / path).read_bytes()
        else:
            assert_same((moved / path).read_text(), (plain / path).read_text(), tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.wide
def test_the_answer_is_the_unmodified_program_s(run: Run, name: str, tmp_path: Path) -> None:
    known = stated(name)
    original = copied(name, tmp_path, known)
    words, files = known.get("args", []), known.get("writes", [])
    plain = run(MPIEXEC, "-n", "2", sys.executable, original.name, *words)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    for path in files:
        (tmp_path / "plain" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).rename(tmp_path / "plain" / path)
    for resizes in filter(None, (known.get("rehearsal"), known["resizes"])):
        env = {"DMR_RESIZE_AT": resizes}
        moved = run(MPIEXEC, "-n", "2", sys.executable, "malleable.py", *words, env=env)
        said = moved.stdout + moved.stderr
        assert moved.stdout.count("ranks by spawn") == resizes.count(":"), said
        assert moved.returncode == 0 and "Error" not in moved.stdout, said
        about = known.get("tolerance") if resizes == known["resizes"] else None
        assert_same_files(tmp_path, tmp_path / "plain", files, about)
        for path in files:
            (tmp_path / path).unlink()
        if not files:  # of those that write some, lines of several ranks may run into each other
            assert_same(moved.stdout, plain.stdout, about)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Rms]:
    if "PUBLIC_PROGRAMS" not in os.environ:
        pytest.skip("expected a folder of public programs in PUBLIC_PROGRAMS")
    with served(3, "--policy", "fifo") as found:
        yield found


@pytest.fixture
def rms(daemon: Rms) -> Iterator[Rms]:
    with lent(daemon) as found:
        yield found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.wide
def test_and_so_it_is_under_the_rms(rms: Rms, run: Run, name: str, tmp_path: Path) -> None:
    known = stated(name, PROGRAMS[name].get("rms_steps", RMS_STEPS))
    original, words = copied(name, tmp_path, known), known.get("args", [])
    plain = run(MPIEXEC, "-n", "2", sys.executable, original.name, *words)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    copied(name, rms.work, known)
    pace = f"PACE_S={known.get('pace_s', PACE_S)}"
    job = rms.submit(
        " ".join([pace, "mpirun", *program("paced"), "malleable.py", *words]),
        *("--mode", "malleable", "--nodes", "1-3", "--preferred", "2"),
    )
    rms.running(job)
    for size in RMS_SIZES:
        rms.resized(job, size)
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    done = [(row["to"], row["strategy"]) for row in rms.row(job)["resizes"]]
    assert done == [(size, "warm") for size in RMS_SIZES], rms.output(job)
    about = known.get("tolerance")
    assert_same_files(rms.work, tmp_path, known.get("writes", []), about)
    if "writes" not in known:
        assert_same(rms.output(job), plain.stdout, about)
    rms.nothing_left()
