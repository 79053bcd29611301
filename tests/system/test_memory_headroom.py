"""Strategy auto where a second copy of the job would not fit into memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cuda_on_host import compiler
from daemon import served
from device_runs import CUPY, RANDOM, environment
from faulty_jobs import FAULTY, SMALL
from own_loops import PROGRAM, lines, report
from processes import MPDATA, MPIEXEC, Run, program

LITTLE_MEMORY = program("little_memory")[1]
NO_CACHE = {"XDG_CACHE_HOME": "/nonexistent"}  # what dmr probe may have found does not matter


def own_loop(run: Run, mib: int, what: str) -> list[str]:
    words = [PROGRAM[0], LITTLE_MEMORY, str(mib), PROGRAM[1], what, "40"]
    done = run(MPIEXEC, "-n", "2", *words, env=NO_CACHE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("mib", "strategy"), [(0, "merge"), (2**20, "spawn")])
@pytest.mark.wide
@pytest.mark.promise("memory")
def test_under_mpirun(run: Run, mib: int, strategy: str) -> None:
    steady = report(lines(run, 1, "plain"))[1]
    found = own_loop(run, mib, "room")
    said, digest = report(found)
    resizes = [line.split(" ranks by ")[1].split(",")[0] for line in found if " by " in line]
    # The last cuts the first launch in two: there merge would be no way at all.
    assert resizes == ([strategy, strategy, "spawn"])
    assert said.startswith("[[10, 2, 4], [20, 4, 2], [30, 2, 1]]") and digest == steady
    told = [line for line in found if line.startswith("strategy merge from here on: ")]
    assert bool(told) == (mib == 0)
    assert all("a second copy of this world needs" in line for line in told)


@pytest.mark.wide
def test_ranks_that_cannot_stay_are_replaced_all_the_same(run: Run) -> None:
    found = own_loop(run, 0, "script")
    assert report(found)[0].startswith("[[10, 2, 3], [20, 3, 1]]")
    assert sum("ranks by spawn," in line for line in found) == 2
    assert any("a resize may be rolled back for it" in line for line in found)


@pytest.mark.parametrize(("mib", "strategy"), [(0, "merge"), (2**20, "warm")])
@pytest.mark.wide
@pytest.mark.promise("memory")
def test_under_the_rms(mib: int, strategy: str) -> None:
    with served(2, "--policy", "fifo") as rms:
        words = [sys.executable, LITTLE_MEMORY, str(mib), FAULTY[1], "none", "run", *SMALL]
        body = " ".join(["mpirun", *words, "--steps", "600"])
        job = rms.submit(body, "--mode", "malleable", "--nodes", "1-2", "--preferred", "1")
        rms.until(lambda: rms.row(job)["step"] > 40, "a look at the memory")
        rms.ask("resize", job, "2")
        rms.until(lambda: rms.row(job)["resizes"], "resize")
        (rms.work / "go").touch()
        assert rms.over(job) == ["COMPLETED"], rms.output(job)
        assert [row["strategy"] for row in rms.row(job)["resizes"]] == [strategy]
        assert ("a second copy of this world needs" in rms.output(job)) == (mib == 0)
        rms.nothing_left()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("times", "strategy"), [(1.3, "merge"), (4.0, "spawn")])
@pytest.mark.wide
def test_on_a_device(run: Run, tmp_path: Path, times: float, strategy: str) -> None:
    def mpdata(bytes_: float, *more: str) -> tuple[int, str, str]:
        words = [*MPDATA, "run", *RANDOM, *CUPY, "--json", "out.json", *more]
        env = environment(2, STAND_IN_GPU_BYTES=f"{bytes_:.0f}") | NO_CACHE
        done = run(MPIEXEC, "-n", "1", *words, env=env)
        return done.returncode, done.stdout, done.stderr

    _, _, said = mpdata(9)
    needed = float(said.split("expected ")[1].split()[0]) * 2**30
    bits = []
    for more in ([], ["--resize-at", "5:2"]):
        status, out, err = mpdata(times * needed, *more)
        assert status == 0, err
        found = json.loads((tmp_path / "out.json").read_text())
        bits.append(found["sha256"])
    assert [row["strategy"] for row in found["resizes"]] == [strategy]
    assert bits[0] == bits[1] and ("GiB on GPU 0 of node" in out) == (strategy == "merge")
