"""A job that was to be resized showed nothing of it until the resize had begun."""

from __future__ import annotations

from pathlib import Path

import msgspec
from routed import Routed, routed

from rms.cli.queue import job_lines
from rms.cli.screen import cells
from rms.web.views import PageQuery, content, query
from rms.wire.live import JobLine, Live


def live(server: Routed) -> Live:
    body = msgspec.to_builtins(query(PageQuery("jobs"), 0, 0.0, server.clock[0]))
    return msgspec.convert(server.ask("POST", "/live", body)[1], Live)


def test_the_row_of_a_job_shows_the_size_that_it_will_have(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job = server.submit(nodes=[1, 2], preferred=1, mode="flexible")
        assert server.ask("POST", "/resize", {"id": job, "nodes": 2})[0] == 200
        now = live(server)
        assert now.jobs is not None
        (line,) = now.jobs.lines
        row = content(PageQuery("jobs"), now).parts[f"jobs/{job}"]
    assert line.job.resize_to == 2 and f">{line.job.size} → 2 pending</td>" in row
    assert f"{line.job.size}→2" in cells(JobLine(job, 1, line.job), now.now_s, 2, 12)[3]
    assert any("RUNNING, resize to 2: pending" in each for each in job_lines(line.job))
