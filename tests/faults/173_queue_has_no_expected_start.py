"""``rms queue`` and ``rms show`` did not show when a waiting job is expected to start."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from routed import routed

from rms.cli.queue import FIELDS, job_lines
from rms.wire.users import JobRow


def test_a_row_of_a_job_that_waits_has_its_expected_start(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        first = server.submit(nodes=[2, 2], time_s=100.0)
        second = server.submit(nodes=[2, 2], time_s=50.0)
        rows = msgspec.convert(server.ask("GET", "/jobs")[1], list[JobRow])
    starts = {row.id: row.expected_start_s for row in rows}
    assert starts == {first: None, second: 1100.0}
    at = time.localtime(1100.0)
    assert FIELDS["S"][1](second, rows[1]) == time.strftime("%Y-%m-%dT%H:%M:%S", at)
    assert any(line.startswith("expected start") for line in job_lines(rows[1]))
