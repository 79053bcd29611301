"""Traces in the standard workload format: in, out, and what is wrong with them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rms.core.model.jobs import Site
from rms.core.policies import named
from rms.formats.config import FileError
from rms.formats.swf import read_trace, write_trace
from rms.sim.run import chosen, simulated

LINES = """; MaxProcs: 8
; Note: made for this test
1 0 -1 100 4 -1 -1 4 120 -1 1 1 1 1 1 -1 -1 -1
2 10 -1 50 8 -1 -1 -1 -1 -1 1 1 1 1 1 -1 -1 -1
3 20 -1 30 1 -1 -1 2 20 -1 1 1 1 1 1 -1 -1 -1

4 30 -1 -1 1 -1 -1 1 20 -1 1 1 1 1 1 -1 -1 -1
5 40 -1 10 -1 -1 -1 -1 20 -1 1 1 1 1 1 -1 -1 -1
"""


def test_records_become_jobs(tmp_path: Path) -> None:
    path = tmp_path / "t.swf.gz"
    path.write_bytes(gzip.compress(LINES.encode()))
    found = read_trace(path)
    assert (found.processors, found.skipped, found.raised) == (8, 2, 1)
    assert [(s.id, s.submit_s, s.preferred, s.run_s, s.limit_s) for s in found.specs] == [
        ("1", 0.0, 4, 100.0, 120.0),
        ("2", 10.0, 8, 50.0, None),  # size as given, no time requested
        ("3", 20.0, 2, 30.0, 30.0),  # it requested less than it ran
    ]


def test_a_schedule_written_as_a_trace_reads_as_the_same_jobs(tmp_path: Path) -> None:
    path, out = tmp_path / "t.swf", tmp_path / "out.swf"
    path.write_text(LINES)
    trace = read_trace(path)
    policy = chosen(named("easy"), counted=True)
    simulation, _ = simulated(trace.specs, Site(8), policy)
    ended = simulation.engine.state.ended
    write_trace(out, (ended[spec.id] for spec in trace.specs), 8, "test")
    assert read_trace(out).specs == trace.specs
    waits = [float(line.split()[2]) for line in out.read_text().splitlines()[2:]]
    assert waits == [0.0, 90.0, 0.0]


@pytest.mark.parametrize("text", ["1 2 three", "", "; only a header\n", "1 2 3 4\n"])
def test_what_is_not_a_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.swf"
    path.write_text(text)
    with pytest.raises(FileError, match="expected"):
        read_trace(path)
    with pytest.raises(FileError, match="does not exist"):
        read_trace(tmp_path / "none.swf")
    (tmp_path / "t.swf.gz").write_text("not compressed")
    with pytest.raises(FileError, match="expected a trace"):
        read_trace(tmp_path / "t.swf.gz")
