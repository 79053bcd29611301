"""A cooldown under the RMS: the job is not asked, and how many resizes happened is counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from daemon import Rms, served
from faulty_jobs import SMALL, faulty
from processes import MPDATA
from selection import all_wide_but

from rms.core.policies import DEFAULT

COOLDOWN_S = 3.0


def resizes(rms: Rms, job: str) -> list[tuple[int, int]]:
    return [(row["from"], row["to"]) for row in rms.row(job)["resizes"]]


@pytest.mark.wide
def test_a_cooldown_ends() -> None:
    with served(2, "--policy", "fifo") as rms:
        job = faulty(rms, "none", "--cooldown", str(COOLDOWN_S))
        rms.running(job)
        for size in (2, 1, 2):
            rms.until(lambda size=size: rms.rms("resize", job, str(size)).returncode == 0, "grant")
            rms.until(lambda size=size: rms.row(job)["size"] == size, "resize")
        (rms.work / "go").touch()
        assert rms.over(job) == ["COMPLETED"], rms.said()
        assert resizes(rms, job) == [(1, 2), (2, 1), (1, 2)]
        at = [row["at_s"] for row in rms.row(job)["resizes"]]
        assert all(b - a >= COOLDOWN_S for a, b in pairwise(at))


@pytest.mark.parametrize("policy", all_wide_but(["array-share", DEFAULT], DEFAULT))
def test_a_policy_resizes_once_and_waits_with_the_rest(policy: str) -> None:
    """A second job makes room, its end would have the first widened again: not while it rests."""
    with served(2, "--policy", policy) as rms:
        wide = faulty(rms, "none", options=("--preferred", "2", "--cooldown", "1000"))
        rms.running(wide)
        words = ["mpirun", *MPDATA, "run", *SMALL, "--steps", "3"]
        other = rms.submit(" ".join(words), "--mode", "fixed", "--nodes", "1")
        assert rms.over(other) == ["COMPLETED"]
        (rms.work / "go").touch()
        assert rms.over(wide) == ["COMPLETED"], rms.said()
        assert resizes(rms, wide) == [(2, 1)]
