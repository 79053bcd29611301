"""A keeper ended itself after ten minutes without ranks, while those of its job were still set up.

The program died when it came to its block, or began anew after a death. A job that is suspended
before its block shows it (``scripts/simulate-faults --survivors --first 3020 --seeds 1``).
"""

from __future__ import annotations

from virtual import acts
from virtual.world import played


def test_a_job_that_is_suspended_at_its_start_goes_on() -> None:
    line = acts.Line(steps=1000, step_s=0.2, strategy="warm", saves=False, dies_at=0, code=0)
    plan = acts.Plan(parts=(2.0, line), code=0, stubborn=False)
    submit = acts.Submit(
        at_s=485.0,
        key="k",
        nodes=(1, 4),
        plan=plan,
        mode="flexible",
        tasks=1,
        requeue=True,
        hold=False,
        time_s=None,
        after="",
        survive="auto",
    )
    suspend = acts.Ask(at_s=489.7, what="suspend", key="k", task=0, size=None, strategy=None)
    later = acts.Ask(at_s=1143.0, what="resize", key="other", task=0, size=4, strategy=None)
    setup = acts.Setup(
        nodes=6,
        policy="easy-share",
        keep=300,
        stall_s=None,
        meters=False,
        slots=1,
        engine="hosts",
        survivors=True,
        mild=True,
    )
    assert not played([submit, suspend, later], setup, 3020).wrong
