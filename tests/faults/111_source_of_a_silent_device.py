"""Of a device that was not reported any more, ``rms nodes`` kept the meter and its last power."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import Routed, routed

from rms.core.books.spans import MODEL
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.ask import views
from rms.wire.messages import DeviceEnergy, Metered

POWER = NodePower(idle_w=50.0, static_w=100.0)
CLUSTER = Cluster(("n1", "g1"), (("cpu:0",), ("gpu:0",)), (POWER,) * 2)


class Reports:
    """An agent that reports each second."""

    def __init__(self, server: Routed, host: str) -> None:
        self.server, self.host, self.number = server, host, 0
        server.submit()  # the books begin
        self.report()

    def report(self, *devices: DeviceEnergy) -> None:
        now_s = self.server.clock[0]
        metered = Metered(self.host, "a", self.number, now_s, "boot", list(devices))
        self.server.daemon.meters.take_report(metered)
        self.number += 1
        self.server.daemon.context.scheduler.energy.check(now_s)

    def seconds(self, number: int, **watts: float) -> None:
        """Report devices of so many watts, of which -1 is not seen and -2 is left out."""
        joules = self.__dict__.setdefault("joules", dict.fromkeys(watts, (0.0, 0.0)))
        for _ in range(number):
            self.server.clock[0] += 1.0
            devices = []
            for name, power_w in watts.items():
                had_j, unseen_s = joules[name]
                if power_w >= 0.0:
                    joules[name] = had_j + power_w, unseen_s
                elif power_w == -1.0:
                    joules[name] = had_j, unseen_s + 1.0
                if power_w != -2.0:
                    devices.append(DeviceEnergy(f"{name}-0", "nvidia-smi", *joules[name]))
            self.report(*devices)

    def source(self, node: str) -> str:
        rows = views.nodes(self.server.daemon.context)
        return next(row.power_source for row in rows if row.name == node)

    def watts(self, node: str) -> float | None:
        return self.server.daemon.scheduler.energy.measured.node_w.get(node)


def test_a_device_that_was_not_seen_is_the_models(tmp_path: Path) -> None:
    with routed(tmp_path, CLUSTER) as server:
        reports = Reports(server, "")
        reports.seconds(5, package=30.0, gpu=75.0)
        assert (reports.source("g1"), reports.watts("g1")) == ("nvidia-smi", pytest.approx(75.0))
        reports.seconds(3, package=30.0, gpu=-1.0)
        assert (reports.source("g1"), reports.watts("g1")) == (MODEL, None)
        assert reports.watts("n1") == pytest.approx(30.0)
        assert server.daemon.scheduler.energy.power_w == pytest.approx(30.0 + 50.0)
        reports.seconds(2, package=30.0, gpu=75.0)
        assert (reports.source("g1"), reports.watts("g1")) == ("nvidia-smi", pytest.approx(75.0))


def test_a_device_that_is_left_out_is_the_models_after_10_s(tmp_path: Path) -> None:
    with routed(tmp_path, CLUSTER) as server:
        reports = Reports(server, "")
        reports.seconds(5, package=30.0, gpu=75.0)
        reports.seconds(20, package=30.0, gpu=-2.0)
        assert (reports.source("g1"), reports.watts("g1")) == (MODEL, None)
        assert (
            sum("no readings of gpu-0 of this machine" in words for words in server.messages) == 1
        )


@pytest.mark.parametrize("gone", [-1.0, -2.0])
def test_of_a_node_with_other_devices_the_model_tells_its_share(
    tmp_path: Path, gone: float
) -> None:
    with routed(tmp_path, CLUSTER) as server:
        reports = Reports(server, "n1")
        reports.seconds(10, package=50.0, gpu=50.0)
        assert (reports.source("n1"), reports.watts("n1")) == ("nvidia-smi", pytest.approx(100.0))
        reports.seconds(11, package=50.0, gpu=gone)
        assert reports.source("n1") == "nvidia-smi and model"
        share = 500.0 / 1550.0  # of all that was measured, of the 100 W by the model
        assert reports.watts("n1") == pytest.approx(50.0 + share * 100.0)
