"""Where a full disk had no room for an empty file, the run blamed hosts that share no folder.

It ended at its start, instead of going on and warning at each checkpoint.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from dmr.checkpoint import store
from dmr.plan import Schedule
from dmr.world import World


class First:
    """As much of rank 0 of a world of two, and of its communicator, as the lock uses."""

    size, rank = 2, 0

    @property
    def internal_comm(self) -> First:
        return self

    def bcast(self, value: Any) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value, value]


def test_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "touch", full)
    store.lock(Schedule(tmp_path), cast(World, First())).release()
    assert list(tmp_path.iterdir()) == []
