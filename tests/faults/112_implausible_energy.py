"""Seconds of ``99999999.00`` from nvidia-smi, or a report of 1e15 J, stayed in the accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from device_runs import stand_in_nvml
from powercap import zone
from routed import Routed, routed

from rms.cli.main import main
from rms.power.choice import MeterChoice
from rms.power.command import Command
from rms.power.command import parse_line as parse_command
from rms.power.meter import GPU_LIMIT_W, Ladder, MeterError, NodeMeter
from rms.power.nvidia_smi import Devices, NvidiaSmi, PowerReading, parse_line
from rms.power.nvml import Counter, Nvml, limit_w
from rms.power.rapl import Rapl
from rms.wire.messages import NODE_LIMIT_W, DeviceEnergy, Metered


def line(second: float, watts: str) -> PowerReading:
    reading = parse_line(f"2026/11/23 12:00:{second:06.3f}, 0, {watts}, 700.00")
    assert reading is not None
    return reading


def test_a_power_above_twice_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NvidiaSmi, "start", lambda *_: None)
    for most_w, watts in ((None, "1401.00"), (None, "99999999.00"), (300.0, "310.00")):
        meter, node = Devices(most_w=most_w), NodeMeter([])
        node.ladders = [Ladder([meter])]
        for tenth in range(100):
            garbled = 30 <= tenth < 60
            meter._readings.put(line(tenth / 10, watts if garbled else "75.00"))
            if tenth % 10 == 9:
                devices = node.read(50.0 + tenth / 10)
                if garbled:
                    assert f"refused a power above {most_w or 1400:g} W" in node.reason
        (device,) = devices
        # All but the 3 s, and at most what is interpolated over them.
        assert device.joules + 75.0 * device.unseen_s == pytest.approx(75.0 * 9.9, rel=0.02)
        assert device.uncertainty_j < 75.0


@pytest.mark.parametrize(
    ("device", "unit", "watts", "most_w"),
    [
        ("node", "W", 1e8, None),
        ("node", "J", 20 * NODE_LIMIT_W, None),
        ("gpu-0", "W", 15_000.0, None),
        ("node", "W", 1000.0, 100.0),
    ],
)
def test_what_a_command_prints_is_bounded(
    device: str, unit: str, watts: float, most_w: float | None
) -> None:
    now_s, total_j = 100.0, 5.0
    command = Command("exec sleep 1000", clock=lambda: now_s)
    node = NodeMeter([Ladder([command])], most_w)
    try:
        for second in range(30):
            now_s += 1.0
            power_w = watts if 10 <= second < 13 else 60.0
            total_j += power_w
            text = f"{device} {power_w if unit == 'W' else total_j} {unit}"
            printed = parse_command(text, now_s)
            assert printed is not None
            command._lines.put(printed)
            (energy,) = node.read(now_s)
            if second == 13:
                assert f"{device}: refused a power above" in node.reason
        assert energy.joules + 60.0 * energy.unseen_s == pytest.approx(29 * 60.0, rel=0.1)
    finally:
        node.close()


def test_a_counter_of_a_gpu_is_bounded_by_its_limit() -> None:
    counter = Counter(most_w=400.0)
    for second, joules in enumerate((0.0, 300.0, 600.0, 1100.0, 1400.0)):
        counter.add(float(second), joules)
    assert (counter.joules, counter.unseen_s) == (900.0, 1.0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the stand-in for pynvml, whose GPUs state a limit of 700 W."""
    stand_in = stand_in_nvml(monkeypatch)
    limits = "nvmlDeviceGetPowerManagementLimitConstraints"
    monkeypatch.setattr(stand_in, limits, lambda _: (100_000, 700_000), raising=False)
    return stand_in


@pytest.mark.parametrize("counter", [True, False])
def test_a_power_by_nvml_above_twice_the_limit_is_refused_and_logged(
    nvml: Any, counter: bool
) -> None:
    now_s, total_j, watts = 100.0, 5e6, 0.0
    nvml.now = lambda: now_s
    refuses = {} if counter else {"nvmlDeviceGetTotalEnergyConsumption": 3}
    gpu = nvml.Gpu("GPU-0", watts=lambda _: watts, joules=lambda _: total_j, refuses=refuses)
    nvml.gpus.append(gpu)
    node = NodeMeter([Ladder([Nvml()])])
    for tenth in range(1000):
        high_w = 10_000.0 if counter else 1600.0
        watts = high_w if 300 <= tenth < 340 else 75.0
        now_s, total_j = now_s + 0.1, total_j + watts * 0.1
        devices = node.read(now_s)
        if tenth in (339, 999):
            assert ("gpu-0: refused a power above 1400 W" in node.reason) == (tenth == 339)
        if devices:
            (device,) = devices
    assert device.joules + 75.0 * device.unseen_s == pytest.approx(75.0 * 99.9, rel=0.01)
    assert 3.5 < device.unseen_s < 5.0


def test_a_stated_limit_of_0_w_refuses_nothing(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "nvmlDeviceGetPowerManagementLimitConstraints"
    monkeypatch.setattr(nvml, limits, lambda _: (0, 0))
    assert limit_w(nvml, None) == GPU_LIMIT_W


def test_a_power_by_rapl_above_twice_the_limit_is_refused_and_logged(tmp_path: Path) -> None:
    node, counted_j = NodeMeter([Ladder([Rapl(tmp_path)])]), 5.0
    for second in range(100):
        counted_j += 450.0 if second == 30 else 50.0
        zone(tmp_path, "intel-rapl:0", "package-0", round(counted_j * 1e6), limit_w=200)
        (device,) = node.read(float(second))
        if second in (29, 30, 99):
            assert ("package-0: refused a power above 400 W" in node.reason) == (second == 30)
    assert (device.joules, device.unseen_s) == (98 * 50.0, 1.0)


def report(server: Routed, number: int, joules: float) -> float:
    server.clock[0] += 1.0
    energy = DeviceEnergy("package-0", "rapl", joules)
    metered = Metered("n1", "a", number, server.clock[0], "boot", [energy] if number else [])
    server.daemon.meters.take_report(metered)
    server.daemon.context.scheduler.energy.check(server.clock[0])
    return server.daemon.context.scheduler.books(server.clock[0]).cluster_j


@pytest.mark.parametrize(
    ("extra_j", "most_w"), [(1e15, None), (20 * NODE_LIMIT_W * 2, None), (2000.0, 100.0)]
)
def test_a_report_of_more_is_refused_and_logged(
    tmp_path: Path, extra_j: float, most_w: float | None
) -> None:
    with routed(tmp_path) as server:
        if most_w is not None:
            server.daemon.context.scheduler.energy.measured.most_w = most_w
        server.submit()
        for number in range(6):
            before_j = report(server, number, 40.0 * number)
        after_j = report(server, 6, 240.0 + extra_j)
        assert after_j - before_j < 100.0  # of both nodes by the model, 5 W each
        assert sum("refused energy of package-0" in words for words in server.messages) == 1
        assert report(server, 7, 280.0 + extra_j) - after_j == pytest.approx(40.0 + 5.0)
        assert server.daemon.scheduler.energy.measured.node_w["n1"] == pytest.approx(40.0)
        report(server, 8, 280.0 + 2.1 * extra_j)  # and again
        assert sum("refused energy of package-0" in words for words in server.messages) == 2


def test_a_steady_power_above_the_bound_is_refused_too(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        server.daemon.context.scheduler.energy.measured.most_w = 100.0
        server.submit()
        for number in range(60):
            total_j = report(server, number, 200.0 * number)
        assert total_j < 60.0 * 110.0 + 1000.0


def test_the_bound_can_be_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    choice = MeterChoice.parse("rapl", None, 250.0)
    assert choice.arguments == ["--meters", "rapl", "--meter-limit", "250"]
    assert choice.open({}).most_w == 250.0
    with pytest.raises(MeterError, match="expected a --meter-limit above 0 W, got -1"):
        MeterChoice.parse("auto", None, -1.0)
    serve = ["serve", "--state", str(tmp_path / "state"), "--meter-limit", "nan"]
    with pytest.raises(SystemExit) as ended:
        main(serve)
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert "--meter-limit: expected a number above 0, got 'nan'" in message
    assert not (tmp_path / "state").exists()
