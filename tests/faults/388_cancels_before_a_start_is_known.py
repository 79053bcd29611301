"""A cancel was lost under engine slurm, if the daemon was killed before it knew of the job's start.

Found by a seed of ``scripts/simulate-faults``: a restart went on with the end of a job only if it
was known to have started.
"""

from __future__ import annotations

from virtual import acts
from virtual.world import played


def test_the_job_ends_as_cancelled() -> None:
    job = acts.Submit(at_s=1.0, key="s", nodes=(1, 1), plan=acts.Plan((5.0,)))
    world = played(
        [
            job,
            acts.Controller(at_s=1.6, for_s=60.0, refuses=1.0),
            acts.Ask(at_s=3.5, what="cancel", key="s"),
            acts.Kill(at_s=5.0, points=1, away_s=1.0),
        ],
        acts.Setup(nodes=2, engine="slurm"),
    )
    assert not world.wrong
    assert world.counted["cancel: ok"] == world.counted["job CANCELLED"] == 1
