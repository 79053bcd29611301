"""nvidia-smi's readings, from a real child that plays back a recording, and their integral."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import until

from rms.launch.processes import alive
from rms.power.meter import MeterError
from rms.power.nvidia_smi import Devices, NvidiaSmi, PowerReading, parse_line
from rms.wire.messages import DeviceEnergy

RECORDING = """\
2024/05/06 12:34:56.000, 0, 61.72
2024/05/06 12:34:56.001, 1, 58.10
2024/05/06 12:34:56.200, 0, 210.44
2024/05/06 12:34:56.201, 1, [N/A]
2024/05/06 12:34:56.400, 0, 402.90
2024/05/06 12:34:56.401, 1, 310.25
2024/05/06 12:34:56.600, 0, 188.03
2024/05/06 12:34:56.601, 1, 144.50
2024/05/06 12:34:56.800, 0, 62.01
2024/05/06 12:34:56.801, 1, 58.33
"""
START_S = datetime(2024, 5, 6, 12, 34, 56).timestamp()
PLAYED = [
    (0.0, 0, 61.72),
    (0.001, 1, 58.10),
    (0.2, 0, 210.44),
    (0.4, 0, 402.90),
    (0.401, 1, 310.25),
    (0.6, 0, 188.03),
    (0.601, 1, 144.50),
    (0.8, 0, 62.01),
    (0.801, 1, 58.33),
]
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


def stand_in(folder: Path, then: str, recording: str = RECORDING) -> str:
    """Write a program that plays the recording once without -lms; with it, does ``then`` after."""
    (folder / "recording").write_text(recording)
    program = folder / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
echo $$ > '{folder}/pid'
echo "$@" > '{folder}/arguments'
cat '{folder}/recording'
case "$*" in *-lms*) {then} ;; esac
"""
    )
    program.chmod(0o755)
    return str(program)


def group_members(group: int) -> list[int]:
    """Return the live processes of a process group."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(place.name))
    return found


@pytest.mark.parametrize("then", ["exec sleep 1000", "sleep 1000; echo never"])
def test_readings_arrive_and_nothing_is_left(tmp_path: Path, then: str) -> None:
    threads = set(threading.enumerate())
    got: list[PowerReading] = []
    with closing(NvidiaSmi(stand_in(tmp_path, then), every_ms=50)) as sampler:
        sampler.start(got.append)
        until(lambda: len(got) >= len(PLAYED))
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid)
        assert sampler.error is None
    assert [(r.gpu, r.power_w) for r in got] == [(gpu, power) for _, gpu, power in PLAYED]
    assert [r.at_s - START_S for r in got] == pytest.approx([t for t, _, _ in PLAYED], abs=1e-6)
    assert (tmp_path / "arguments").read_text().split() == [
        "--query-gpu=timestamp,index,power.draw,power.max_limit",
        "--format=csv,noheader,nounits",
        "-lms",
        "50",
    ]
    assert threads.issuperset(threading.enumerate())
    until(lambda: not group_members(pid))  # who was killed takes a moment to be gone
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # reaped, not a zombie
    assert sampler.error is None
    sampler.close()


def test_missing_program_is_a_sentence(tmp_path: Path) -> None:
    program = str(tmp_path / "nvidia-smi")
    with closing(NvidiaSmi(program)) as sampler:
        sampler.start(lambda _: None)
        assert sampler.error == f"could not start {program}: No such file or directory"


@pytest.mark.parametrize(
    ("then", "end"),
    [
        (f'echo "{NO_DRIVER}"; echo; exit 9', "with status 9: " + NO_DRIVER.partition(". ")[0]),
        ("echo 'Unknown Error' >&2; exit 15", "with status 15: Unknown Error"),
        ("exit 0", "with status 0"),
        ("kill -TERM $$", "by signal 15"),
    ],
)
def test_program_that_ends_is_a_sentence(tmp_path: Path, then: str, end: str) -> None:
    program = stand_in(tmp_path, then, recording="")
    with closing(NvidiaSmi(program)) as sampler:
        sampler.start(lambda _: None)
        until(lambda: sampler.error)
        pid = int((tmp_path / "pid").read_text())
    assert sampler.error == f"{program} ended on its own {end}"
    assert not group_members(pid)


class News:
    """What a meter has told last of each device, read at one time until that is as wanted."""

    def __init__(self, meter: Devices) -> None:
        self.meter, self.last = meter, dict[str, DeviceEnergy]()

    def read(self, now_s: float, happens: Callable[[], object]) -> None:
        def wanted() -> object:
            self.last |= {device.device: device for device in self.meter.read(now_s)}
            return happens()

        until(wanted)

    def joules(self, gpu: int) -> float:
        device = self.last.get(f"gpu-{gpu}")
        return device.joules if device else 0.0


WHOLE_J = 0.2 * (61.72 / 2 + 210.44 + 402.90 + 188.03 + 62.01 / 2)
"""The energy of GPU 0 in the recording."""


def test_devices_are_integrated(tmp_path: Path) -> None:
    with closing(Devices(stand_in(tmp_path, "exec sleep 1000"))) as meter:
        news = News(meter)
        news.read(50.0, lambda: news.joules(0) > 0.99 * WHOLE_J)
        first, second = news.last["gpu-0"], news.last["gpu-1"]
        assert (first.source, second.source) == ("nvidia-smi", "nvidia-smi")
        assert first.joules == pytest.approx(WHOLE_J, rel=1e-5)
        assert first.unseen_s == 0.0 and first.uncertainty_j > 0.1 * first.joules
        later = meter.read(60.0)  # it has reported nothing since
        assert [device.device for device in later] == ["gpu-0", "gpu-1"]
        assert all(device.unseen_s == pytest.approx(10.0, abs=1.0) for device in later)
        assert later[0].joules == first.joules


def test_devices_of_a_program_that_ends_are_a_gap(tmp_path: Path) -> None:
    with closing(Devices(stand_in(tmp_path, "exit 9"))) as meter:
        news = News(meter)
        news.read(50.0, lambda: meter.trouble)
        assert "ended on its own with status 9" in meter.trouble
        stand_in(tmp_path, "exec sleep 1000", RECORDING.replace("12:34:56", "12:34:59"))
        meter.read(51.0)
        assert meter.trouble  # not at once
        news.read(53.0, lambda: news.joules(0) > 1.99 * WHOLE_J)
        assert meter.trouble == ""
        assert news.joules(0) == pytest.approx(2 * WHOLE_J, rel=1e-5)
        assert news.last["gpu-0"].unseen_s == pytest.approx(2.2, abs=0.01)


@pytest.mark.parametrize(
    ("recording", "words"),
    [("", "ended on its own with status 9"), (NO_DRIVER + "\n", "ended on its own .* NVIDIA-SMI")],
)
def test_devices_that_tell_nothing(tmp_path: Path, recording: str, words: str) -> None:
    meter = Devices(stand_in(tmp_path, "exit 9", recording))
    with pytest.raises(MeterError, match=words):
        until(lambda: meter.read(0.0))
    with pytest.raises(MeterError, match="could not start"):
        Devices(str(tmp_path / "missing")).read(0.0)


def test_devices_go_on_from_what_is_known(tmp_path: Path) -> None:
    with closing(Devices(stand_in(tmp_path, "exec sleep 1000"))) as meter:
        meter.resume([DeviceEnergy("gpu-0", "nvidia-smi", 500.0, 2.0, 9.0)], 7.0, True)
        news = News(meter)
        news.read(50.0, lambda: len(news.last) == 2)
        first, second = news.last["gpu-0"], news.last["gpu-1"]
        assert first.joules >= 500.0 and first.unseen_s == 9.0 and first.uncertainty_j >= 9.0
        assert second.unseen_s == 0.0


class Silent(NvidiaSmi):
    """Starts nothing."""

    def start(self, on_reading: Callable[[PowerReading], None]) -> None:
        pass


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 0.7, -0.7])
def test_a_clock_that_is_set_costs_no_energy(
    monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """As when summer time ends: readings come on, at times of day that were before."""
    monkeypatch.setattr("rms.power.nvidia_smi.NvidiaSmi", Silent)
    meter, stamp_s = Devices(), 1.7e9
    for tenth in range(600):
        if tenth == 255:
            stamp_s += jump_s
        meter._readings.put(PowerReading(stamp_s + tenth / 10, 0, 100.0))
        if tenth % 10 == 0:
            (device,) = meter.read(50.0 + tenth / 10)
    assert device.joules + 100.0 * device.unseen_s == pytest.approx(5900.0, abs=200.0)


def test_a_line() -> None:
    at_s = datetime(2024, 5, 6, 12, 34, 56, 789000).timestamp()
    assert parse_line("2024/05/06 12:34:56.789, 0, 61.72") == PowerReading(at_s, 0, 61.72)
    assert parse_line("2024/05/06 12:34:56.789, 11, 300\r\n") == PowerReading(at_s, 11, 300.0)
    assert parse_line("2024/05/06 12:34:56.789, 0, 61.72, 400.00") == PowerReading(
        at_s, 0, 61.72, 400.0
    )
    assert parse_line("2024/05/06 12:34:56.789, 0, 61.72, [N/A]") == PowerReading(at_s, 0, 61.72)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "2024/05/06 12:34:56.789, 0, [N/A]",
        "2024/05/06 12:34:56.789, 0, [Not Supported]",
        "2024/05/06 12:34:56.789, 0, [Unknown Error]",
        "2024/05/06 12:34:56.789, 0, nan",
        "2024/05/06 12:34:56.789, 0, -1",
        "2024/05/06 12:34:56.789, 0",
        "2024/05/06 12:34:56.789, 0, 61.72, 3, 4",
        "2024/05/06 12:34:56.789, 0, 61.72, x",
        "2024/13/06 12:34:56.789, 0, 61.72",
        "2024/05/06 12:34:5",
        "timestamp, index, power.draw [W]",
        NO_DRIVER,
    ],
)
def test_lines_that_are_no_reading(line: str) -> None:
    assert parse_line(line) is None


@given(st.text())
def test_garbage_never_raises(line: str) -> None:
    parse_line(line)
