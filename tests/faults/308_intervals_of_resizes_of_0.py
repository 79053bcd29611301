"""A workload file with a resize interval of 0 kept ``rms simulate`` busy without end."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentences import one_sentence

from rms.formats.config import FileError, read_workload


@pytest.mark.parametrize("every_s", [0.0, -5.0])
def test_intervals_are_above_0(tmp_path: Path, every_s: float) -> None:
    path = tmp_path / "w.toml"
    speedup = "speedup = { t1_s = 100.0, tc_s = 1.0 }"
    path.write_text(f"[[jobs]]\nnodes = [1, 4]\n{speedup}\nresize = {{ every_s = {every_s} }}\n")
    with one_sentence(FileError, f"expected resize_every_s above 0, got {every_s:g}"):
        read_workload(path)
