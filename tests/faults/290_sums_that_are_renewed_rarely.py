"""A counter that is renewed less often than it is read was refused for ever: 0 J of 360 kJ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from routed import Routed, routed

from rms.power.command import Command, parse_line
from rms.power.meter import Ladder, NodeMeter
from rms.power.nvml import Counter
from rms.wire.messages import DeviceEnergy, Metered

LIMITS = [(60, None), (10, 3000.0)]


class Chain:
    """A command that prints the same sum each second until it is renewed, and a daemon's books."""

    def __init__(self, server: Routed, most_w: float | None) -> None:
        self.server, self.number = server, 0
        self.command = Command("exec sleep 1000", clock=lambda: server.clock[0])
        self.node = NodeMeter([Ladder([self.command])], most_w)
        if most_w is not None:
            server.daemon.context.scheduler.energy.measured.most_w = most_w
        server.submit()  # the books begin
        self.report()

    def report(self, devices: Sequence[DeviceEnergy] = ()) -> None:
        now_s = self.server.clock[0]
        self.server.daemon.meters.take_report(
            Metered("n1", "a", self.number, now_s, "boot", list(devices), self.node.reason)
        )
        self.number += 1
        self.server.daemon.context.scheduler.energy.check(now_s)

    def seconds(self, number: int, joules: float) -> None:
        for _ in range(number):
            self.server.clock[0] += 1.0
            line = parse_line(f"node {joules} J", self.server.clock[0])
            assert line is not None
            self.command._lines.put(line)
            self.report(self.node.read(self.server.clock[0]))

    @property
    def cluster_j(self) -> float:
        return self.server.daemon.context.scheduler.books(self.server.clock[0]).cluster_j


@pytest.mark.parametrize(("period", "most_w"), LIMITS)
def test_all_of_it_is_booked(tmp_path: Path, period: int, most_w: float | None) -> None:
    with routed(tmp_path) as server:
        chain = Chain(server, most_w)
        try:
            chain.seconds(1, 0.0)
            begun_j = chain.cluster_j
            for renewal in range(300 // period):
                chain.seconds(period - 1, renewal * period * 1200.0)
                chain.seconds(1, (renewal + 1) * period * 1200.0)
                assert server.daemon.scheduler.energy.measured.node_w["n1"] == pytest.approx(1200.0)
        finally:
            chain.node.close()
        assert chain.cluster_j - begun_j == pytest.approx(360e3 + 300 * 5.0)  # n2 by the model
        assert not any("refused" in message for message in server.messages)
        assert sum("no readings of node" in message for message in server.messages) <= 1


@pytest.mark.parametrize(("period", "most_w"), LIMITS)
def test_the_time_since_the_last_change_of_a_refused_one_is_the_models(
    tmp_path: Path, period: int, most_w: float | None
) -> None:
    with routed(tmp_path) as server:
        chain = Chain(server, most_w)
        try:
            chain.seconds(1, 0.0)
            chain.seconds(period, 1200.0)
            begun_j = chain.cluster_j
            chain.seconds(period - 1, 1200.0)
            chain.seconds(1, 1e9)
            (found,) = chain.node._given.values()
        finally:
            chain.node.close()
        # The sum rose in the first second of the first period, and not in its others.
        assert (found.last.joules, found.last.unseen_s) == (1200.0, 2 * period - 1)
        assert chain.cluster_j - begun_j == pytest.approx(period * 10.0)
        assert any("node: refused a power above" in message for message in server.messages)


class Played:
    """A meter that reports the same joules until they are renewed."""

    sources, every_s, trouble = ("played",), 1.0, ""
    joules = 0.0

    def read(self, now_s: float) -> list[DeviceEnergy]:
        return [DeviceEnergy("node", "played", self.joules)]

    def resume(self, known: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None: ...

    def close(self) -> None: ...


def test_the_bound_of_a_meter_counts_from_the_last_change() -> None:
    meter = Played()
    node = NodeMeter([Ladder([meter])], 3000.0)
    for second in range(301):
        meter.joules = second // 60 * 60 * 1200.0
        (energy,) = node.read(float(second))
    assert (energy.joules, energy.unseen_s) == (360e3, 0.0)
    for second in range(301, 360):
        node.read(float(second))
    meter.joules = 1e9
    (energy,) = node.read(360.0)
    assert (energy.joules, energy.unseen_s) == (360e3, 60.0)


def test_the_bound_of_a_report_counts_from_the_last_change(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        energy = server.daemon.context.scheduler.energy
        energy.measured.most_w = 100.0
        server.submit()
        for second in range(301):
            server.clock[0] += 1.0
            device = DeviceEnergy("package-0", "rapl", second // 60 * 60 * 80.0)
            report = Metered("n1", "a", second, server.clock[0], "boot", [device] if second else [])
            server.daemon.meters.take_report(report)
        energy.check(server.clock[0])
        books = energy.books(server.clock[0])
        assert sum(p.joules for p in books.sources if p.source == "rapl") == 300 * 80.0


def test_the_bound_of_a_gpus_counter_counts_from_the_last_change() -> None:
    counter = Counter(most_w=400.0)
    for half in range(41):
        counter.add(half / 2, half // 10 * 10 * 150.0)
    assert (counter.joules, counter.unseen_s) == (6000.0, 0.0)
    assert counter.add(24.5, 6000.0) and not counter.add(25.0, 1e6)
    assert (counter.joules, counter.unseen_s) == (6000.0, 5.0)
