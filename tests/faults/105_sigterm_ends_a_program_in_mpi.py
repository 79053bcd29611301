"""SIGTERM did not end a program that waits in MPI, or reaches no resize point."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
import warnings
from pathlib import Path

import pytest
from mpi4py import MPI
from mpi_runs import runtime_on
from processes import DEADLINE_S, MPIEXEC, program, started

import dmr
from dmr.system.watch import WATCH
from rms.wire.messages import read_completion

WORDS = program("missing_rank")


@pytest.mark.parametrize("what", ["deaf", "deaf-hook", "wait"])
def test_it_ends_within_the_limit(tmp_path: Path, what: str) -> None:
    record = tmp_path / "end.json"
    env = {
        **os.environ,
        "DMR_SIGTERM_S": "1",
        "DMR_COMPLETION": str(record),
        "BEGUN": str(tmp_path / "begun"),
    }
    with started([MPIEXEC, "-n", "2", *WORDS, what], cwd=tmp_path, env=env) as job:
        end = time.monotonic() + DEADLINE_S
        while not (tmp_path / "begun").exists():
            assert job.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        rest = job.communicate(timeout=DEADLINE_S)[0]
    completion = read_completion(record)
    assert job.returncode == completion.exit_code == 143 and completion.state == "CANCELLED"
    limit = re.search(r"has not ended within ([\d.]+) s of SIGTERM", rest)
    assert limit is not None and float(limit[1]) >= 1, rest  # five times the mean step if longer
    assert "expected a resize point (DMR_SIGTERM_S sets this limit)" in rest


def test_sigterm_of_a_forked_process_does_not_end_the_program() -> None:
    usual = signal.getsignal(signal.SIGTERM)
    with dmr.malleable(runtime_on(MPI.COMM_SELF)) as run:
        fork = multiprocessing.get_context("fork")
        ready = fork.Event()

        def sleep() -> None:
            ready.set()
            time.sleep(600)

        child = fork.Process(target=sleep)
        with warnings.catch_warnings():  # the child does not need the watch thread
            warnings.simplefilter("ignore", DeprecationWarning)
            child.start()
        assert ready.wait(DEADLINE_S)
        child.terminate()
        child.join(DEADLINE_S)
        assert child.exitcode == -signal.SIGTERM
        for _ in run.loop(20):
            pass
        assert WATCH._sigterm_at is None
    assert signal.getsignal(signal.SIGTERM) == usual


def test_the_limit_follows_the_interval_of_resize_points() -> None:
    with dmr.malleable(runtime_on(MPI.COMM_SELF), plan=dmr.Plan(every=10)) as run:
        for _ in range(20):
            run.resize_point()
        calls_s, every_call_s = WATCH.between_s(), run.elapsed_s / 20
        for _ in run.loop(20):
            pass
        loop_s, every_step_s = WATCH.between_s(), run.elapsed_s / 40
    assert calls_s == every_call_s and loop_s == pytest.approx(10 * every_step_s)
