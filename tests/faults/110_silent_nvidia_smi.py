"""A hanging nvidia-smi, or one that prints ``[N/A]``, was not noticed: its source stayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import until

from rms.power.meter import AGAIN_S, Ladder, MeterError
from rms.power.nvidia_smi import PROBE_S, SILENT_S, Devices, NvidiaSmi, PowerReading
from rms.wire.messages import DeviceEnergy

DEADLINE_S = 60.0
NA = "2026/11/23 12:00:00.000, 1, [N/A], 400.00"


@dataclass
class Samplers:
    """Stand-ins for nvidia-smi: the newest one, and when each was started."""

    now_s: float = 50.0
    started_s: list[float] = field(default_factory=list)
    newest: NvidiaSmi = field(default_factory=NvidiaSmi)


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Samplers]:
    samplers = Samplers()

    class Fake(NvidiaSmi):
        def start(self, on_reading: Callable[[PowerReading], None]) -> None:
            samplers.started_s.append(samplers.now_s)
            samplers.newest = self

    monkeypatch.setattr("rms.power.nvidia_smi.NvidiaSmi", Fake)
    yield samplers


@pytest.mark.parametrize(
    ("going_on", "printed"), [((), ""), ((), NA), ((0,), NA)], ids=["hangs", "N/A", "one N/A"]
)
def test_silence_is_detected_within_10_s(
    samplers: Samplers, going_on: tuple[int, ...], printed: str
) -> None:
    meter, news = Devices(), dict[str, DeviceEnergy]()
    detected_s = model_s = None

    def second(gpus: tuple[int, ...]) -> set[str]:
        samplers.now_s += 1.0
        for gpu in gpus:
            for tenth in range(10):
                at_s = 1.7e9 + samplers.now_s - 1.0 + tenth / 10
                meter._readings.put(PowerReading(at_s, gpu, 75.0, 400.0))
        devices = meter.read(samplers.now_s)
        news.update((device.device, device) for device in devices)
        return {device.device for device in devices}

    for _ in range(5):
        second((0, 1))
    assert news.keys() == {"gpu-0", "gpu-1"} and meter.trouble == "" and not news["gpu-1"].unseen_s
    silent_s, seen_j = samplers.now_s, news["gpu-1"].joules
    samplers.newest.unreadable = printed
    while detected_s is None and samplers.now_s < silent_s + 10.0:
        fresh = second(going_on)
        if model_s is None and "gpu-1" in fresh and news["gpu-1"].unseen_s:
            model_s = samplers.now_s
        if len(samplers.started_s) > 1:
            detected_s = samplers.now_s
    assert detected_s is not None and model_s is not None and model_s < silent_s + 5.0
    names = "gpu-1" if going_on else "gpu-0, gpu-1"
    assert f"no power of {names} for {SILENT_S:g} s and is started again" in meter.trouble
    assert ("[N/A]" in meter.trouble) == bool(printed)
    assert news["gpu-1"].joules == seen_j
    assert news["gpu-1"].unseen_s == pytest.approx(detected_s - silent_s, abs=1.5)
    second((0, 1))
    assert meter.trouble == "" and len(samplers.started_s) == 2
    troubles = set()
    for number in range(300):  # it stays silent: it is neither started nor logged all the time
        samplers.newest.unreadable = f"{number} {printed}" if printed else ""
        second(going_on)
        troubles.add(meter.trouble)
    assert 5 <= len(samplers.started_s) < 16 and len(troubles) == 2


def test_no_power_from_the_start_is_reported_within_10_s(samplers: Samplers) -> None:
    meter = Devices()
    assert meter.read(50.0) == []
    samplers.newest.unreadable = NA
    with pytest.raises(MeterError, match=r"prints no power of any device; it printed .*\[N/A\]"):
        meter.read(50.0 + SILENT_S + 1.0)


def test_a_program_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    line = "2026/11/23 12:00:0$n.000, 0, 75.00, 400.00"
    program.write_text(
        f"#!/bin/sh\necho $$ >> '{tmp_path}/pids'\nn=$(wc -l < '{tmp_path}/pids')\n"
        f'echo "{line}"\nexec sleep 1000\n'
    )
    program.chmod(0o755)

    with closing(Devices(str(program))) as meter:
        until(lambda: meter.read(50.0))
        meter.read(56.0)
        assert "is started again" in meter.trouble
        until(lambda: meter.read(57.0) and not meter.trouble)
        first, _ = (tmp_path / "pids").read_text().split()
        assert not Path("/proc", first).exists()


def test_only_one_process_hangs_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    started, hanging = list[NvidiaSmi](), [True]

    class Hanging(NvidiaSmi):
        """A stand-in whose process outlives SIGKILL as long as the driver hangs."""

        def start(self, on_reading: Callable[[PowerReading], None]) -> None:
            started.append(self)

        def close(self) -> None:
            self.error = "nvidia-smi did not end" if hanging[0] else None

        @property
        def hangs(self) -> bool:
            return self.error is not None

    monkeypatch.setattr("rms.power.nvidia_smi.NvidiaSmi", Hanging)
    meter = Devices()
    ladder, now_s = Ladder([meter]), 50.0
    while now_s < 50.0 + 10 * (PROBE_S + AGAIN_S):
        now_s += 1.0
        ladder.read(now_s)
    assert len(started) == 1 and ladder.reason == "nvidia-smi did not end"
    hanging[0] = False
    while len(started) == 1:
        now_s += 1.0
        ladder.read(now_s)
        assert now_s < 50.0 + 11 * (PROBE_S + AGAIN_S)
    meter._readings.put(PowerReading(1.7e9, 0, 75.0, 400.0))
    assert ladder.read(now_s + 1.0) is not None and ladder.reason == ""
