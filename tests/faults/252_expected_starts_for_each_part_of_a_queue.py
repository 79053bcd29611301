"""The daemon computed the expected starts again for every 100 rows of ``rms queue``."""

from __future__ import annotations

from unittest.mock import patch

from driven import Driven, job

from rms.core.model.events import Ticked
from rms.core.scheduler import engine


def test_they_are_computed_once_after_each_change() -> None:
    driven = Driven(1)
    driven.submit(job(1, (1,), limit_s=100.0), job(2, (1,)))
    with patch.object(engine, "expected_starts", wraps=engine.expected_starts) as computed:
        starts = driven.engine.expected_starts(10)
        assert starts and driven.engine.expected_starts(10) == starts and computed.call_count == 1
        assert driven.engine.expected_starts(1) == starts and computed.call_count == 2
        driven.happen(Ticked(50.0))
        assert driven.engine.expected_starts(10) == starts and computed.call_count == 3
