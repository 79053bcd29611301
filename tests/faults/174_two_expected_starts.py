"""A job had a reservation "in 60 s" and, in the same row of the page, a start two hours later."""

from __future__ import annotations

import re

import pytest
from driven import FLEXIBLE, MALLEABLE, Driven, job

from rms.core.model.events import Ticked
from rms.core.model.jobs import JobId, Mode


@pytest.mark.parametrize("mode", [MALLEABLE, FLEXIBLE])
def test_the_expected_start_is_not_after_the_reservation(mode: Mode) -> None:
    driven = Driven(4)
    driven.submit(job(1, (1, 3, 3), mode, run_s=7200.0, limit_s=7200.0, price_s=5.0))
    driven.submit(job(2, (1,), limit_s=60.0), job(3, (3,), limit_s=100.0), job(4, (4,)))
    driven.happen(Ticked(1.0))
    later, starts = driven.engine.explain(JobId("3")), driven.engine.expected_starts(10)
    assert later is not None
    reserved = re.search("reserved in ([0-9]+) s", later.reason)
    assert reserved is not None and starts[JobId("3")] <= 1.0 + float(reserved[1]) + 0.5
