"""What ``dmr bench`` holds a stall against."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmr.bench.bench import bound_s, disk_rates


def test_a_stall_is_held_against_plain_sends_or_the_disk() -> None:
    found = {"strategy": "warm", "from": 1, "to": 2, "bytes": 9e9, "raw_gb_per_s": 10.0}
    assert bound_s(found) == pytest.approx(0.020 + 1.0)
    assert bound_s(found | {"to": 3}) is None
    assert bound_s(found | {"strategy": "merge"}) is None
    disk = {"disk_write_gb_per_s": 2.0, "disk_read_gb_per_s": 5.0}
    restart = {**found, "strategy": "restart", "bytes": 8e9, **disk}
    assert bound_s(restart) == pytest.approx(0.020 + 5.0 + 2.0)


def test_the_disks_rates_leave_no_file(tmp_path: Path) -> None:
    rates = disk_rates(tmp_path, 5 << 20)
    assert min(rates.values()) > 0
    assert not list(tmp_path.iterdir())
