"""A training by ``torchrun --nnodes=1:4`` as a malleable job: PyTorch's own rendezvous and restart.

A resize is a restart of all ranks from the checkpoint. The batch of a step does not depend on the
number of ranks, so the loss is that of a run on one rank, to rounding.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import find_spec

import pytest
from daemon import Rms
from processes import ROOT, Run

PACKAGE = "torch"
if find_spec(PACKAGE) is None:
    pytest.skip("no torch in this environment; pip install torch", allow_module_level=True)

FILES = ROOT / "jobs" / "applications" / "torchrun"
STEPS, EVERY = 600, 20
LOSS = re.compile(r"^loss (\S+) after (\d+) steps on (\d+) ranks$", re.MULTILINE)
RESTART = re.compile(
    r"^restart at step (\d+): (\d+) -> (\d+) ranks, (\S+) s without a new step, (\d+) steps done "
    r"again$",
    re.MULTILINE,
)


def test_a_training_is_resized_by_its_own_restarts(run: Run, rms: Rms) -> None:
    for file in FILES.iterdir():
        shutil.copy(file, rms.work)
    words = [f"--steps={STEPS}", f"--every={EVERY}"]
    job = rms.submit(
        f"#RMS --resize-by=signal\nexec {sys.executable} agents.py train.py {' '.join(words)}",
        *("--mode", "malleable", "--nodes", "1-3", "--preferred", "2", "--time", "5"),
    )
    for size in (3, 1):
        rms.resized(job, size)
    assert rms.over(job) == ["COMPLETED"]
    output = rms.output(job)
    assert rms.resizes(job) == [(2, 3), (3, 1)], output
    restarts = [match.groups() for match in RESTART.finditer(output)]
    assert [(before, after) for _, before, after, _, _ in restarts] == [("2", "3"), ("3", "1")]
    for step, _, _, pause_s, again in restarts:
        assert int(step) % EVERY == 0 and 0 <= int(again) < EVERY
        assert 0.0 < float(pause_s) < 180.0
    ((loss, steps, ranks),) = LOSS.findall(output)
    assert (steps, ranks) == (str(STEPS), "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]
    alone = run(*torchrun, "--standalone", str(FILES / "train.py"), *words, "--pace=0")
    assert alone.returncode == 0, alone.stderr
    ((expected, _, _),) = LOSS.findall(alone.stdout)
    assert float(loss) == pytest.approx(float(expected), rel=1e-9)
    rms.books_balance()
