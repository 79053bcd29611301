"""The first lines of GUIDE.md, as a new user types them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, ROOT, Run

BEFORE = """
import numpy as np
from mpi4py import MPI
comm, N, M = MPI.COMM_WORLD, 30, 20
begin, end = dmr.split_range(N, comm.size, comm.rank)
rows = end - begin
"""
STENCIL = "t[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:] + step) / 4"
AFTER = """
    whole = run.fields["t"].gather()
    if run.comm.rank == 0:
        print(run.comm.size, "rank(s), sum", float(whole.sum()).hex())
"""


@pytest.mark.wide
def test_five_lines_in_a_program_make_it_malleable(run: Run, tmp_path: Path) -> None:
    text = (ROOT / "dmr" / "GUIDE.md").read_text()
    block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (asked,) = re.findall(r"DMR_RESIZE_AT=(\S+) mpirun -n 2 python mine.py", text)
    first, rest = block.split("\n", 1)
    program = first + BEFORE + rest.replace("...  # your stencil", STENCIL) + AFTER
    (tmp_path / "mine.py").write_text(program)
    plain = run(MPIEXEC, "-n", "1", sys.executable, "mine.py")
    assert plain.returncode == 0 and plain.stdout.startswith("1 rank(s), sum "), plain.stderr
    done = run(MPIEXEC, "-n", "2", sys.executable, "mine.py", env={"DMR_RESIZE_AT": asked})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ranks by spawn") == asked.count(":") > 0
    assert done.stdout.splitlines()[-1] == plain.stdout.strip()
