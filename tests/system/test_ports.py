"""The worked ports: few changed lines, and the same bits whatever happens to their ranks."""

from __future__ import annotations

import difflib
import random
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Rms, lent, served
from processes import MPIEXEC, Run, program

PORTS = Path(__file__).parents[2] / "jobs" / "ports"
PACED = program("paced")[1]
NAMES = ("heat", "life", "particles")
MOST_ADDED = 20
STEPS = 120
RANKS = 4


def program(name: str) -> list[str]:
    return [sys.executable, str(PORTS / f"{name}.py")]


def answer(said: str) -> str:
    (found,) = re.findall(r"sha256 ([0-9a-f]{64})", said)
    return found


def draw(seed: int, count: int, steps: int, first: int) -> dict[int, int]:
    """Return random resizes, each to another size than the one before."""
    rng, sizes, size = random.Random(seed), {}, first
    for step in sorted(rng.sample(range(1, steps), count)):
        size = rng.choice([n for n in range(1, RANKS + 1) if n != size])
        sizes[step] = size
    return sizes


def test_few_lines_are_changed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for name in NAMES:
        plain, port = (
            # What is indented for a block counts as it was; so does the line that names the file.
            [line.strip() for line in (PORTS / f"{found}.py").read_text().splitlines()[1:]]
            for found in (f"{name}_plain", name)
        )
        changes = list(difflib.ndiff([n for n in plain if n], [n for n in port if n]))
        added, removed = (sum(line.startswith(sign) for line in changes) for sign in "+-")
        lines = [sum(map(bool, text)) for text in (plain, port)]
        rows.append((name, *lines, added, removed))
        assert 0 < added <= MOST_ADDED and lines[1] < lines[0]
    with capsys.disabled():
        print("\nport        lines plain   malleable   added or changed   taken away or changed")
        for name, alone, malleable, added, removed in rows:
            print(f"{name:10s} {alone:12d} {malleable:11d} {added:18d} {removed:23d}")


@pytest.mark.parametrize("strategy", ["spawn", "restart"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.promise("own-code", "bits-restart")
@pytest.mark.covering(1)
def test_random_resizes_under_mpirun_leave_the_bits(run: Run, name: str, strategy: str) -> None:
    plain = run(MPIEXEC, "-n", "2", *program(f"{name}_plain"), str(STEPS))
    assert plain.returncode == 0, plain.stdout + plain.stderr
    plan = draw(NAMES.index(name), 2, STEPS, 2)
    script = ",".join(f"{step}:{ranks}" for step, ranks in plan.items())
    env = {"DMR_RESIZE_AT": script, "DMR_STRATEGY": strategy}
    moved = run(MPIEXEC, "-n", "2", *program(name), str(STEPS), env=env)
    done = re.findall(r"resize at step (\d+): \d+ -> (\d+) ranks by (\w+)", moved.stdout)
    wanted = [(str(step), str(ranks), strategy) for step, ranks in plan.items()]
    assert done == wanted, moved.stdout + moved.stderr
    assert answer(moved.stdout) == answer(plain.stdout)
    assert f"{list(plan.values())[-1]} ranks, " in moved.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Rms]:
    """Let a user resize jobs on as many nodes as the widest wants."""
    with served(RANKS, "--policy", "fifo") as found:
        yield found


@pytest.fixture
def rms(daemon: Rms) -> Iterator[Rms]:
    with lent(daemon) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.wide
def test_random_resizes_under_the_rms_leave_the_bits(rms: Rms, run: Run, name: str) -> None:
    steps = 3000
    plain = run(MPIEXEC, "-n", "1", *program(f"{name}_plain"), str(steps))
    port = program(name)
    job = rms.submit(
        " ".join(["mpirun", port[0], str(PACED), port[1], str(steps)]),
        "--mode", "malleable", "--nodes", f"1-{RANKS}", "--preferred", "2",
    )  # fmt: skip
    rms.running(job)
    wanted = list(draw(7, 3, steps, 2).values())
    for count, size in enumerate(wanted, 1):
        assert rms.ask("resize", job, str(size))["decision"] == "Resize"
        rms.until(lambda count=count: settled(rms, job, count), f"resize {count}")
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    done = rms.row(job)["resizes"]
    assert [row["to"] for row in done] == wanted
    assert {row["strategy"] for row in done} == {"warm"}
    assert answer(rms.output(job)) == answer(plain.stdout)
    rms.nothing_left()


def settled(rms: Rms, job: str, count: int) -> bool:
    row = rms.row(job)
    assert not rms.rolled_back(job) and row["state"] == "RUNNING", rms.output(job)
    return len(row["resizes"]) == count and row["resizing"] == ""


@pytest.mark.wide
def test_a_task_farm_asks_for_ranks_and_gives_them_back(run: Run) -> None:
    farm = runpy.run_path(str(PORTS.parent / "farm.py"))
    alone = sum(farm["work"](task) for task in range(48))
    done = run(MPIEXEC, "-n", "1", sys.executable, str(PORTS.parent / "farm.py"), "48", "3")
    wanted = f"48 tasks, sum {alone}, 2 resizes, ranks of each round [1, 3, 3, 3, 2]"
    assert done.stdout.splitlines()[-1] == wanted, done.stdout + done.stderr
