"""What users of other elastic runtimes report as open, done here under the RMS.

- No process can be spawned on a node that has no rank of the job, or none any more
  (open-mpi/ompi 13427, openpmix/prrte 401).
- A job that has shrunk does not grow again; a worker that died is not let in again, nor is its host
  (pytorch/pytorch 67742, 91943, 147064; horovod/horovod 2652, 3319).
- Signals of a timer in the program, as a sampling profiler has one, break what waits for others.
- Workers are started and ended all the time: see ``unit/rms/test_thrashing.py``.
"""

from __future__ import annotations

import json

import pytest
from daemon import Rms, served
from faulty_jobs import FAULTY, SMALL, STEPS
from processes import MPDATA, MPIEXEC, Run, program


def nodes_of(rms: Rms, job: str) -> set[str]:
    """Return the nodes that a job holds."""
    return {node["name"] for node in rms.ask("nodes") if node["job"] == job}


@pytest.mark.wide
@pytest.mark.promise("elastic")
def test_in_and_out_and_onto_new_nodes_while_a_timer_ticks(run: Run) -> None:
    """By merge: ranks that stay are interrupted in all that they wait for."""
    steps = [*SMALL, "--steps", STEPS, "--json", "-"]
    alone = json.loads(run(MPIEXEC, "-n", "1", *MPDATA, "run", *steps).stdout)["sha256"]
    ticking = [*program("ticking"), FAULTY[1], "'new rank killed at boot'", "run", *SMALL]
    words = ["mpirun", *ticking, "--steps", STEPS, "--strategy", "merge"]
    with served(4, "--policy", "fifo", "--boot-deadline", "120") as rms:
        sizes = ["--nodes", "1-4", "--preferred", "1"]
        job = rms.submit(" ".join(words), "--mode", "malleable", *sizes)
        rms.running(job)
        begun = nodes_of(rms, job)

        rms.ask("resize", job, "2")  # the joiner dies, and comes again
        rms.until(lambda: rms.rolled_back(job), "rollback")
        rms.resized(job, 2)
        wide = nodes_of(rms, job)
        rms.resized(job, 1)

        left = nodes_of(rms, job)
        (had_ranks,) = wide - left
        rms.ask("drain", had_ranks)
        rms.resized(job, 3)
        joined = nodes_of(rms, job) - left
        assert len(joined) == 2 and not joined & (begun | wide)

        rms.hurry()
        assert rms.over(job) == ["COMPLETED"], rms.row(job)["reason"] + rms.said()
        assert rms.resizes(job) == [(1, 2), (2, 1), (1, 3)]
        assert {row["strategy"] for row in rms.row(job)["resizes"]} == {"merge"}
        assert rms.row(job)["answer"] == alone
        rms.nothing_left()
