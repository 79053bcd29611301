"""Public programs with our few lines in them: what they compute is what they compute without.

Their sources are not here: PUBLIC_PROGRAMS names a folder with a checkout of each at its revision,
by its name in jobs/ports/public/programs.toml.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import MPIEXEC, Run

PORTS = Path(__file__).parents[2] / "jobs" / "ports"
PUBLIC = runpy.run_path(str(PORTS / "public.py"))
PROGRAMS: dict[str, dict[str, Any]] = PUBLIC["programs"]()
MOST_CHANGED = 10


def patch_of(name: str) -> str:
    return (PORTS / "public" / f"{name}.patch").read_text()


def test_patches_hold_few_lines() -> None:
    for name in PROGRAMS:
        last = max(max(first, end) for first, end, _, _ in PUBLIC["hunks"](patch_of(name)))
        source = "\n".join(f"line {n}" for n in range(1, last + 1))
        text, changed = PUBLIC["patched"](source, patch_of(name))
        assert 0 < changed <= MOST_CHANGED and "import dmr" in text.splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.wide
def test_the_answer_is_the_unmodified_program_s(run: Run, name: str, tmp_path: Path) -> None:
    known = PROGRAMS[name]
    source = Path(os.environ.get("PUBLIC_PROGRAMS", "none")) / name
    if not (source / known["program"]).is_file():
        pytest.skip(f"PUBLIC_PROGRAMS has no {name}: {known['repository']} at {known['revision']}")
    for path in (known["program"], *known.get("needs", [])):
        shutil.copy(source / path, tmp_path)
    original = tmp_path / Path(known["program"]).name
    text, _ = PUBLIC["patched"](original.read_text(), patch_of(name))
    (tmp_path / "malleable.py").write_text(text)

    plain = run(MPIEXEC, "-n", "2", sys.executable, original.name)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    written = known.get("writes")
    wanted = (tmp_path / written).read_bytes() if written else b""
    env = {"DMR_RESIZE_AT": known["resizes"]}
    moved = run(MPIEXEC, "-n", "2", sys.executable, "malleable.py", env=env)
    assert moved.stdout.count("ranks by spawn") == known["resizes"].count(":"), (
        moved.stdout + moved.stderr
    )
    assert "Error" not in moved.stdout
    assert not written or (tmp_path / written).read_bytes() == wanted
    kept = [
        line for line in plain.stdout.splitlines() if not re.search(r"[Tt]ime|\d s|second", line)
    ]
    assert set(kept) <= set(moved.stdout.splitlines())
