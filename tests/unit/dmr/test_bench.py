"""The disk rates that ``dmr bench`` prints beside a restart."""

from __future__ import annotations

from pathlib import Path

from dmr.bench.bench import disk_rates


def test_the_disks_rates_leave_no_file(tmp_path: Path) -> None:
    rates = disk_rates(tmp_path, 5 << 20)
    assert min(rates.values()) > 0
    assert not list(tmp_path.iterdir())
