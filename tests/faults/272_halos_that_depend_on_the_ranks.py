"""A halo that depends on the number of ranks had every resize refused, or its rows mixed up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, Run

PROGRAM = """
import sys
from pathlib import Path
import numpy as np, dmr
from mpi4py import MPI

N, M, WHAT = 8, 5, sys.argv[1]
comm = MPI.COMM_WORLD
cut = comm.size > 1
halo = {
    "all": ((1, 1), (1, 1)) if cut else ((0, 0), (0, 0)),
    "cut": ((1, 1), (0, 0)) if cut else ((0, 0), (0, 0)),
    "spec": ((2, 2), (2, 2)) if cut else ((1, 1), (1, 1)),
    "kept": ((1, 1), (2, 1)) if cut else ((2, 0), (1, 1)),
}[WHAT]
(low, high), (left, right) = halo
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.full((end - begin + low + high, M + left + right), -1.0)
inside = u[low : len(u) - high, left : left + M]
inside[...] = np.arange(begin * M, end * M).reshape(-1, M)
here = {}

def build(run):
    here["u"] = run.fields["u"].padded

plan = dmr.Plan()
if len(sys.argv) > 3:
    plan = dmr.Plan(checkpoint=dmr.Schedule(Path("saved"), 3), restart=sys.argv[3] == "again")
merge = build if sys.argv[2] == "merge" else None
field = dmr.adapt(u, (N, M), halo=halo)
if WHAT == "spec":  # the library allocates
    field = dmr.FieldSpec((N, M), "f8", lambda box: inside, halo=halo, split=(0,))
with dmr.malleable(comm, {"u": field}, plan, build=merge) as run:
    build(run)
    if WHAT == "kept" and comm.rank == 0 and not run.restored:
        u[low - 1, left], u[low, left - 1] = 50.0, 60.0
    for step in run.loop(6):
        if sys.argv[3:] == ["save"] and step == 4:
            raise SystemExit("stopped on purpose")
        run.fields["u"].interior[...] += 1
    whole = run.fields["u"].gather()
    if whole is not None:
        wanted = np.arange(N * M).reshape(N, M) + 6
        (low, _), (left, _) = run.fields["u"].memory_layout.halo
        kept = WHAT != "kept" or (here["u"][low - 1, left], here["u"][low, left - 1]) == (50, 60)
        print("right" if (whole == wanted).all() and kept else f"wrong {here['u']} {whole}")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the program: MPI_Comm_spawn takes no arguments of several lines."""
    (path := tmp_path / "program.py").write_text(PROGRAM)
    return path


@pytest.mark.parametrize("what", ["all", "cut", "kept", "spec"])
@pytest.mark.parametrize("strategy", ["spawn", "restart", "merge"])
@pytest.mark.parametrize(("ranks", "then"), [(1, 2), (2, 1)])
def test_the_interior_and_the_common_edge_travel(
    run: Run, file: Path, what: str, strategy: str, ranks: int, then: int
) -> None:
    if strategy == "merge" and ranks > then:
        pytest.skip("a world that one mpirun has started cannot shrink by merge")
    env = {"DMR_RESIZE_AT": f"3:{then}", "DMR_STRATEGY": strategy}
    words = [sys.executable, str(file), what, strategy]
    done = run(MPIEXEC, "-n", str(ranks), *words, env=env)
    assert done.stdout.count(f"ranks by {strategy}") == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "right", done.stdout


@pytest.mark.parametrize("what", ["all", "kept"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_is_continued_with_another_halo(
    run: Run, file: Path, what: str, ranks: int
) -> None:
    words = [sys.executable, str(file), what, "none"]
    stopped = run(MPIEXEC, "-n", str(ranks), *words, "save")
    assert "stopped on purpose" in stopped.stderr
    done = run(MPIEXEC, "-n", str(3 - ranks), *words, "again")
    assert "step 3" in done.stdout and done.stdout.splitlines()[-1] == "right", done.stdout
