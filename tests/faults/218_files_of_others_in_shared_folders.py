"""Machine code and records of frequencies that others had left in a shared folder were used."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mpdata.numerics.numba import kernel_cache
from rms.power import frequency
from rms.power.frequency import FrequencyError, SavedLimits
from rms.power.meter import boot_id

KEPT = "symbol", b"code"


def test_machine_code_that_others_can_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernel"
    assert kernel_cache._write(path, KEPT) and kernel_cache._read(path) == KEPT
    path.chmod(0o666)
    assert kernel_cache._read(path) is None
    path.chmod(0o644)
    monkeypatch.setattr(kernel_cache, "SOURCES", (Path("/proc/1/status"),))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    is_roots = path.stat().st_uid == 0
    assert kernel_cache._read(path) == (KEPT if is_roots else None)
    if is_roots:  # only root may make a file of another user
        os.chown(path, 54321, -1)
        assert kernel_cache._read(path) is None


def test_neither_lock_nor_code_is_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "compiling.lock").symlink_to(other)
    with kernel_cache._compiling():
        assert other.read_text() == "precious"


def test_a_record_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "policy0"
    limits.mkdir()
    for name in ("scaling_min_freq", "scaling_max_freq"):
        (limits / name).write_text("1000")
    record = tmp_path / "rms-frequency-processors.json"
    left = SavedLimits(boot_id(), {str(limits): (7, 7)})
    record.write_bytes(msgspec.json.encode(left))
    monkeypatch.setattr(os, "geteuid", lambda: record.stat().st_uid + 1)
    with pytest.raises(FrequencyError, match="a record of this user"), frequency._held(record):
        pass
    assert (limits / "scaling_max_freq").read_text() == "1000"
    monkeypatch.undo()
    with frequency._held(record):
        assert (limits / "scaling_max_freq").read_text().strip() == "7"
