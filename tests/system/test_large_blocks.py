"""Blocks that are large enough for their memory to be touched beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmr.bench.bench import bench
from dmr.system import libc

MIB = 4 * (libc.LEAST_BYTES >> 20)


@pytest.mark.parametrize("strategy", ["merge", "restart"])
def test_every_cell_is_there_after_a_resize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the checkpoint of a restart is written here
    found = bench(1, 2, MIB, strategy, None)
    assert found["strategy"] == strategy and found["right"]
    assert list(tmp_path.iterdir()) == []
