"""A recording as a meter."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.power.command import Curve, ReplayMeter
from rms.power.meter import MeterError
from rms.wire.messages import DeviceEnergy

JOULES = """at_s,device,joules
1000.0,node,50
1000.0,gpu-0,5
1002.0,node,150
1004.0,node,150
1005.0,gpu-0,15
"""
WATTS = "at_s,device,watts\n0,node,0\n2,node,100\n4,node,100\n"


def recording(folder: Path, text: str) -> Path:
    file = folder / "recording.csv"
    file.write_text(text)
    return file


def joules(found: list[DeviceEnergy]) -> dict[str, float]:
    return {device.device: device.joules for device in found}


def test_sums_rise_evenly_between_rows_and_the_last_is_told_once(tmp_path: Path) -> None:
    replay = ReplayMeter(recording(tmp_path, JOULES))
    assert joules(replay.read(7.0)) == {"node": 0.0, "gpu-0": 0.0}
    assert joules(replay.read(8.0)) == {"node": 50.0, "gpu-0": 2.0}
    assert joules(replay.read(11.5)) == {"node": 100.0, "gpu-0": 9.0}
    assert joules(replay.read(99.0)) == {"gpu-0": 10.0}
    with pytest.raises(MeterError, match=r"recording\.csv has ended"):
        replay.read(100.0)


def test_watts_are_trapezoids(tmp_path: Path) -> None:
    replay = ReplayMeter(recording(tmp_path, WATTS))
    found = [replay.read(at_s)[0].joules for at_s in (0.0, 1.0, 2.0, 3.0, 9.0)]
    assert found == [0.0, 25.0, 100.0, 200.0, 300.0]


def test_a_later_agent_goes_on_where_it_is_by_now(tmp_path: Path) -> None:
    file = recording(tmp_path, JOULES)
    first = ReplayMeter(file)
    first.read(0.0)
    known, later = first.read(1.0), ReplayMeter(file)
    later.resume(known, 0.5, True)
    assert joules(later.read(500.0)) == {"node": 75.0, "gpu-0": 3.0}


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1e3)), min_size=2, max_size=10))
def test_a_curve_of_power_has_the_area_under_it(steps: list[tuple[float, float]]) -> None:
    curve, at_s = Curve("watts"), 0.0
    for span_s, watts in steps:
        curve.add(at_s, watts)
        at_s += span_s
    end_s = curve.at_s[-1]
    parts = [curve.spent(end_s * n / 64) for n in range(65)]
    assert all(b >= a - 1e-9 * max(parts) for a, b in pairwise(parts))
    area = sum((w0 + w1) / 2 * span for (span, w0), (_, w1) in pairwise(steps))
    assert curve.spent(end_s) == pytest.approx(area)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected columns at_s,device,joules or at_s,device,watts"),
        ("time,joules\n", "expected columns"),
        ("at_s,device,joules\n", "expected at least one row, got none"),
        ("at_s,device,joules\n1,node\n", "expected three values in line 2, got 2"),
        ("at_s,device,joules\n1,node,many\n", "expected numbers in line 2, got '1' and 'many'"),
        ("at_s,device,joules\n1,node,-5\n", "expected a time and a reading"),
        ("at_s,device,joules\n1,node,nan\n", "expected a time and a reading"),
        ("at_s,device,joules\n1,node,5\n0,node,6\n", "expected times that never go back"),
        ("at_s,device,joules\n1,node,5\n2,node,4\n", "expected joules that never fall"),
        ("at_s,device,watts\nnow,node,4\n", "expected numbers in line 2, got 'now'"),
    ],
)
def test_what_is_no_recording_is_refused_in_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(MeterError) as error:
        ReplayMeter(recording(tmp_path, text)).open()
    assert said in str(error.value) and "\n" not in str(error.value)
