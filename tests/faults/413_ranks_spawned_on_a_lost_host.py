"""A host was lost onto which a job had grown by ``spawn``, and the job waited until it was back.

The launch does not name that host in its environment, so it was not ended with the others there
(``scripts/simulate-faults --survivors --first 700 --seeds 12 --hours 0.5``).
"""

from __future__ import annotations

import pytest
from virtual import acts
from virtual.world import played


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_job_that_has_grown_by_spawn_goes_on_without_a_lost_host(node: int) -> None:
    line = acts.Line(steps=1000, step_s=0.5, strategy="spawn", saves=True)
    plan = acts.Plan(parts=(line,), code=0, stubborn=False)
    first = acts.Submit(
        at_s=5.0,
        key="first",
        nodes=(2, 2),
        plan=acts.Plan(parts=(40.0,), code=0, stubborn=False),
        mode="fixed",
    )
    grows = acts.Submit(at_s=10.0, key="k", nodes=(1, 3), plan=plan, survive="10")
    cut = acts.Host(at_s=100.0, node=node, for_s=300.0, how="cut")
    setup = acts.Setup(nodes=3, policy="backfill-share", keep=None, engine="hosts", survivors=True)
    world = played([first, grows, cut], setup, 413)
    assert not world.wrong
    assert world.counted["resizes"] >= 1  # to three nodes, before the host is lost
