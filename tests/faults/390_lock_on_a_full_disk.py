"""On a full disk a run under an RMS was refused its own folder of checkpoints, and ended."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dmr.checkpoint import store


def test_the_lock_of_the_file_system_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(store, "write_whole", full)
    own = store.Lock(tmp_path, ("rms:1", 0))
    assert own.acquire() and not own.is_lost()
    assert not store.Lock(tmp_path, ("rms:2", 0)).acquire()
    own.release()
    assert store.Lock(tmp_path).acquire()


def test_without_that_lock_the_name_of_the_owner_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = store.Lock(tmp_path, ("rms:1", 0))
    assert earlier.acquire()

    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(store, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        store.Lock(tmp_path, ("rms:1", 1)).acquire()
    assert not earlier.is_lost()
