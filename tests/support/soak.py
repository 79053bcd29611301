"""Random resizes of the random MPDATA case, all strategies mixed: soak.py RESIZES [SEED].

Prints the count of each strategy as executed, and what the job's processes hold at the start and
at the end; exits 1 if a resize is missing, the bits differ, something grows, or a process is left.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from daemon import Rms, served
from processes import MPDATA, MPIEXEC

NODES = 6
CASE = ["--case", "random", "--seed", "5", "--grid", "24", "20", "8", "--backend", "numpy"]
MIX = ("warm", "merge", "restart", "spawn", "merge", "warm")


class SoakError(Exception):
    """What went wrong."""


def soak(resizes: int, seed: int) -> dict[str, Any]:
    """Run it; return what was seen."""
    rng = random.Random(seed)
    with served(NODES, "--policy", "fifo", "--boot-deadline", "90") as rms:
        paced = rms.work / "paced.py"
        paced.write_text(PACED)
        words = ["mpirun", sys.executable, str(paced), "run", *CASE, "--every", "1"]
        job = rms.submit(
            " ".join([*words, "--steps", str(500 + 60 * resizes)]),
            "--mode", "malleable", "--nodes", f"1-{NODES}", "--preferred", "2",
        )  # fmt: skip
        rms.running(job)
        wanted: list[tuple[int, str]] = []
        held: list[tuple[int, int, int]] = []
        size = 2
        while len(wanted) < resizes:
            size = rng.choice([n for n in range(1, NODES + 1) if n != size])
            strategy = MIX[len(wanted) % len(MIX)]
            rms.ask("resize", job, str(size), "--strategy", strategy)
            wanted.append((size, strategy))
            rms.until(lambda: settled(rms, job, len(wanted)), f"resize {len(wanted)}")
            held.append(holding(rms))
        (rms.work / "go").touch()
        rms.over(job, deadline_s=600)
        row = rms.row(job)
        rms.nothing_left()
        return {"row": row, "wanted": wanted, "held": held, "said": rms.output(job)[-500:]}


PACED = """
import pathlib, sys, time
from mpdata.parallel.app import Advection
from mpdata.cli.main import main
true_step = Advection.step
def step(self, run):
    true_step(self, run)
    if not pathlib.Path("go").exists():
        time.sleep(0.02 if run.step < 400 + 60 * len(run.resizes) else 0.5)
Advection.step = step
sys.exit(main(sys.argv[1:]))
"""
"""The job takes its time until all resizes are done, however slow they are, and then ends soon."""


def settled(rms: Rms, job: str, count: int) -> bool:
    row = rms.row(job)
    if row["state"] != "RUNNING":
        raise SoakError(f"job is {row['state']}: {row['reason']}\n{rms.output(job)[-2000:]}")
    back = rms.rolled_back(job)
    if back:
        raise SoakError(f"rolled back: {back}")
    return len(row["resizes"]) == count and row["resizing"] == ""


def holding(rms: Rms) -> tuple[int, int, int]:
    """Return processes, most open files and most KiB of memory among the job's ranks."""
    files = memory = 0
    ranks = rms.ranks()
    for pid in ranks:
        with contextlib.suppress(OSError):
            files = max(files, len(list(Path(f"/proc/{pid}/fd").iterdir())))
            status = Path(f"/proc/{pid}/status").read_text()
            memory = max(memory, int(status.partition("VmRSS:")[2].split()[0]))
    return len(rms.processes()), files, memory


def alone(steps: int) -> str:
    """Return the bits of as many steps without a resize."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [MPIEXEC, "-n", "1", *MPDATA, "run", *CASE, "--steps", str(steps)]
        subprocess.run([*command, "--json", str(out)], check=True, capture_output=True)
        bits: str = json.loads(out.read_text())["sha256"]
        return bits


def judge(found: dict[str, Any]) -> list[str]:
    """Print what was seen; return what is wrong with it."""
    row, wanted, held = found["row"], found["wanted"], found["held"]
    wrong = []
    if row["state"] != "COMPLETED":
        return [f"job is {row['state']}: {row['reason']} {found['said']}"]
    sizes = [r["to"] for r in row["resizes"]]
    if sizes != [size for size, _ in wanted]:
        wrong.append("other resizes than asked for")
    asked = Counter(strategy for _, strategy in wanted)
    executed = Counter(r["strategy"] for r in row["resizes"])
    print(f"asked    {dict(asked)}\nexecuted {dict(executed)}")
    for strategy in set(MIX) - {"merge"}:
        if executed[strategy] < asked[strategy]:
            wrong.append(f"{strategy}: {executed[strategy]} of {asked[strategy]} executed")
    if not executed["merge"]:
        wrong.append("no merge was executed")
    tenth = max(5, len(held) // 10)
    for at, name, slack in ((0, "processes", 14), (1, "open files", 12), (2, "KiB", 30_000)):
        early = statistics.median(h[at] for h in held[:tenth])
        late = statistics.median(h[at] for h in held[-tenth:])
        print(f"{name:10s} first {tenth}: {early:g}, last {tenth}: {late:g}")
        if late > early + slack:
            wrong.append(f"{name} grew from {early:g} to {late:g}")
    for strategy in executed:
        stalls = [r["stall_s"] for r in row["resizes"] if r["strategy"] == strategy]
        print(
            f"{strategy:8s} stall median {statistics.median(stalls):.3f} s, most {max(stalls):.3f}"
        )
    steps = row["steps"]
    if alone(steps) != row["answer"]:
        wrong.append(f"other bits than {steps} steps without a resize")
    return wrong


def main() -> int:
    resizes = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    begun = time.monotonic()
    wrong = judge(soak(resizes, seed))
    print(f"{resizes} resizes in {time.monotonic() - begun:.0f} s; {wrong or 'nothing wrong'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
