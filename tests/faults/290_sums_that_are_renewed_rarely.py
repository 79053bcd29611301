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
            (found,) = chain.node._last.values()
        finally:
            chain.node.close()
        # The sum rose in the first second of the first period, and not in its others.
        assert (found.last.joules, found.last.unseen_s) == (1200.0, 2 * period - 1)
        assert chain.cluster_j - begun_j == pytest.approx(period * 10.0)
        assert any("node: refused a power above" in message for message in server.messages)


def test_the_bound_of_a_gpus_counter_counts_from_the_last_change() -> None:
    counter = Counter(most_w=400.0)
    for half in range(41):
        counter.add(half / 2, half // 10 * 10 * 150.0)
    assert (counter.joules, counter.unseen_s) == (6000.0, 0.0)
    assert counter.add(24.5, 6000.0) and not counter.add(25.0, 1e6)
    assert (counter.joules, counter.unseen_s) == (6000.0, 5.0)
