"""A command that printed ``node ... J`` each 10 s was booked beside the packages of that time."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import routed

from rms.wire.messages import DeviceEnergy, Metered


def test_the_parts_of_a_node_are_not_added_to_it(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        server.submit()
        begun_s = server.clock[0]
        for second in range(41):
            devices = [DeviceEnergy("package-0", "rapl", 30.0 * second)]
            if second % 10 == 0:
                devices.append(DeviceEnergy("node", "command", 50.0 * second))
            metered = Metered("n1", "a", second, server.clock[0], "boot", devices if second else [])
            if second == 1:
                devices.append(DeviceEnergy("node", "command", 50.0))
            server.daemon.meters.take_report(metered)
            server.clock[0] += 1.0
        server.clock[0] -= 1.0
        books = server.daemon.context.scheduler.books(server.clock[0])
        parts = {part.source: part.joules for part in books.sources}
        assert server.clock[0] - begun_s == 40.0
        assert parts["command"] == pytest.approx(50.0 * 40, rel=0.06)
        assert parts.get("rapl", 0.0) == 0.0
