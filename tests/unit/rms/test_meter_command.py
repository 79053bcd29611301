"""A program of the user's as a meter: its lines, its end, its silence."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.launch.processes import alive
from rms.power.command import GAP_S, Command, Line, parse_line
from rms.power.meter import MeterError, boottime
from rms.wire.messages import DeviceEnergy

DEADLINE_S = 60.0


def fed(command: Command, *lines: tuple[str, float], now_s: float = 0.0) -> list[DeviceEnergy]:
    """Return what is read after these lines, without a program."""
    command._start_s = 1e9
    for text, at_s in lines:
        command._lines.put(parse_line(text, at_s) or text)
    return command.read(now_s)


def until(command: Command, devices: int) -> list[DeviceEnergy]:
    """Read until so many devices have been told of."""
    end_s, found = time.monotonic() + DEADLINE_S, dict[str, DeviceEnergy]()
    while len(found) < devices:
        assert time.monotonic() < end_s, command.trouble
        found.update((device.device, device) for device in command.read(boottime()))
        threading.Event().wait(0.01)
    return list(found.values())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node 4711 J", Line("node", 4711.0, "J", 2.0)),
        (" gpu-0\t61.7  W\n", Line("gpu-0", 61.7, "W", 2.0)),
        ("gpu-0 -1 W", None),
        ("gpu-0 nan W", None),
        ("gpu-0 inf J", None),
        ("gpu-0 61.7", None),
        ("gpu-0 61.7 kW", None),
        ("gpu 0 61.7 W", None),
        ("gpu-0 much W", None),
        ("", None),
    ],
)
def test_lines(text: str, line: Line | None) -> None:
    assert parse_line(text, 2.0) == line


def test_joules_are_counted_from_the_first_line_and_a_fall_is_a_gap() -> None:
    lines = [("node 100 J", 0.0), ("node 130 J", 1.0), ("node 5 J", 2.0), ("node 25 J", 4.0)]
    (found,) = fed(Command("-"), *lines)
    assert (found.device, found.source) == ("node", "command")
    assert (found.joules, found.unseen_s, found.uncertainty_j) == (50.0, 1.0, 0.0)


# Sums of spans are rounded, so a span of just GAP_S may be a longer one.
spans_s = st.floats(0.01, 0.999 * GAP_S)


@given(st.lists(st.tuples(spans_s, st.floats(0, 1e4)), min_size=2, max_size=20))
def test_watts_are_integrated_and_any_curve_between_lines_is_within_the_uncertainty(
    steps: list[tuple[float, float]],
) -> None:
    at_s, lines, low_j, high_j = 0.0, [], 0.0, 0.0
    for n, (span_s, watts) in enumerate(steps):
        if n:
            at_s += span_s
            low_j += min(watts, steps[n - 1][1]) * span_s
            high_j += max(watts, steps[n - 1][1]) * span_s
        lines.append((f"node {watts!r} W", at_s))
    (found,) = fed(Command("-"), *lines)
    assert found.joules - found.uncertainty_j == pytest.approx(low_j, rel=1e-6, abs=1e-6)
    assert found.joules + found.uncertainty_j == pytest.approx(high_j, rel=1e-6, abs=1e-6)
    assert found.unseen_s <= 1e-6


def test_a_long_silence_is_a_gap() -> None:
    command = Command("-")
    (found,) = fed(command, ("node 100 W", 0.0), ("node 100 W", GAP_S + 1))
    assert (found.joules, found.unseen_s) == (0.0, GAP_S + 1)
    assert fed(command) == []  # no news
    (found,) = fed(command, ("node 100 W", GAP_S + 2))
    assert (found.joules, found.unseen_s) == (100.0, GAP_S + 1)


def test_a_later_agent_goes_on_and_the_time_between_is_a_gap() -> None:
    command = Command("-")
    command.resume([DeviceEnergy("node", "command", 40.0, 1.0, 2.0)], 3.0, True)
    (found,) = fed(command, ("node 7 J", 11.0), ("node 9 J", 12.0), now_s=10.0)
    assert (found.joules, found.unseen_s, found.uncertainty_j) == (42.0, 5.0, 2.0)


def test_a_bad_line_is_said_once() -> None:
    command = Command("-")
    assert fed(command, ("power is 5", 0.0), ("node 1 J", 1.0)) != []
    assert "expected lines such as 'node 61.7 W' or" in command.trouble
    assert "'power is 5'" in command.trouble
    command.trouble = ""
    fed(command, ("power is 6", 2.0))
    assert command.trouble == ""


def test_a_program_that_has_said_nothing_is_what_lacks() -> None:
    command = Command("-")
    assert fed(command) == [] and command.trouble == "the meter command has printed no reading yet"
    assert fed(command, ("node 1 J", 1.0)) != [] and command.trouble == ""


def test_a_program_that_ends_is_started_again(tmp_path: Path) -> None:
    again = tmp_path / "again"
    command = Command(f"if [ -e {again} ]; then echo b 2 J; exec sleep 600; fi; echo a 1 J")
    try:
        assert [device.device for device in until(command, 1)] == ["a"]
        again.touch()
        assert [device.device for device in until(command, 1)] == ["b"]
        assert "ended with status 0" in command.trouble
    finally:
        command.close()


def test_one_that_cannot_be_started_is_an_error() -> None:
    command = Command("no-such-program 2> /dev/null")
    with pytest.raises(MeterError, match="could not start the meter command 'no-such-program"):
        until(command, 1)


def test_the_program_and_what_it_started_end_with_the_meter(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = Command(f"sleep 600 & echo $! > {pid_file}; echo node 1 J; wait")
    until(command, 1)
    command.close()
    pid = int(pid_file.read_text())
    end_s = time.monotonic() + DEADLINE_S
    while alive(pid):
        assert time.monotonic() < end_s
        os.sched_yield()
