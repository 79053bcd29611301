"""RAPL on a tree of files like the kernel's: what is counted, and what is known of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from powercap import RANGE_UJ, zone

import rms.power.rapl
from rms.power.meter import MeterError
from rms.power.rapl import LATE_S, Rapl, counted
from rms.wire.messages import DeviceEnergy

LIMIT_W = 200
MOST_W = 2 * LIMIT_W


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with their memory, a part of one, the platform, and one shown a second time."""
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 900_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 100_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:1:0", "dram", 200_000)
    zone(tmp_path, "intel-rapl:2", "psys", 7_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    return tmp_path


def joules(found: list[DeviceEnergy]) -> dict[str, float]:
    return {device.device: device.joules for device in found}


def advance(folder: Path, place: str, uj: int, range_uj: int = RANGE_UJ) -> None:
    file = folder / place / "energy_uj"
    zone(folder, place, "", (int(file.read_text()) + uj) % range_uj)


def test_packages_and_memory_are_counted_and_nothing_twice(powercap: Path) -> None:
    rapl = Rapl(powercap)
    devices = ["package-0", "dram-0", "package-1", "dram-1"]
    assert joules(rapl.read(10.0)) == dict.fromkeys(devices, 0.0)
    for place, uj in (
        ("intel-rapl:0", 40_000_000),
        ("intel-rapl:0:0", 30_000_000),
        ("intel-rapl:0:1", 2_000_000),
        ("intel-rapl:1", 20_000_000),
        ("intel-rapl:2", 99_000_000),
        ("intel-rapl-mmio:0", 40_000_000),
    ):
        advance(powercap, place, uj)
    found = rapl.read(12.0)
    assert joules(found) == {"package-0": 40.0, "dram-0": 2.0, "package-1": 20.0, "dram-1": 0.0}
    assert [d.source for d in found] == ["rapl", "rapl-dram", "rapl", "rapl-dram"]
    assert found[0].counter == 41.0 and 0 < found[0].uncertainty_j <= 1.0


@pytest.mark.parametrize(
    ("zones", "devices"),
    [
        ({"intel-rapl:0": "psys"}, ["psys"]),
        ({"intel-rapl-mmio:0": "package-0"}, ["package-0"]),
        ({"intel-rapl:1": "package-0", "intel-rapl:0": "psys"}, ["package-0"]),
    ],
)
def test_where_no_package_is_shown_there_may_be_another_way(
    tmp_path: Path, zones: dict[str, str], devices: list[str]
) -> None:
    for place, name in zones.items():
        zone(tmp_path, place, name, 5)
    assert list(joules(Rapl(tmp_path).read(0.0))) == devices


@given(
    at_uj=st.integers(0, RANGE_UJ - 1),
    spent_uj=st.integers(0, 10**12),
    most_uj=st.integers(0, 10**12),
)
def test_what_is_said_to_be_counted_was(at_uj: int, spent_uj: int, most_uj: int) -> None:
    """Under a right bound: the very number, or that it cannot be told."""
    found = counted(at_uj, (at_uj + spent_uj) % RANGE_UJ, RANGE_UJ, most_uj)
    if spent_uj <= most_uj:
        assert found in (spent_uj, None)
        if most_uj < RANGE_UJ:
            assert found == spent_uj
    else:
        assert found is None or found <= most_uj


@given(at_uj=st.integers(0, RANGE_UJ - 1), then_uj=st.integers(0, RANGE_UJ - 1))
def test_a_reset_is_none_unless_it_was_near_its_end(at_uj: int, then_uj: int) -> None:
    most_uj = MOST_W * 1.1e6
    found = counted(at_uj, then_uj, RANGE_UJ, most_uj)
    if then_uj < at_uj:
        assert (found is not None) == (RANGE_UJ - at_uj + then_uj <= most_uj)
    else:
        assert (found is not None) == (then_uj - at_uj <= most_uj)


def test_without_its_range_a_counter_that_falls_was_reset() -> None:
    assert counted(RANGE_UJ - 1, 1, 0, 1e9) is None
    assert counted(1, 5, 0, 1e9) == 4


STEP = st.tuples(
    st.sampled_from(["read", "read", "read", "unreadable", "reset", "asleep"]),
    st.floats(0.1, 20.0),
    st.floats(0.0, LIMIT_W),
)


@given(st.lists(STEP, min_size=1, max_size=20), st.integers(0, 65_000_000_000))
def test_no_joule_is_made_up_and_none_is_lost_outside_of_what_is_called_unseen(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float, float]], begun_uj: int
) -> None:
    """Against the true energy, over wraps, resets, unreadable samples and sleep."""
    range_uj = 65_532_610_987  # of AMD: 65.5 kJ
    folder = tmp_path_factory.mktemp("powercap")
    place = zone(folder, "intel-rapl:0", "package-0", begun_uj, range_uj, LIMIT_W)
    rapl, now_s, at_uj = Rapl(folder), 0.0, begun_uj
    rapl.read(now_s)
    true_j = since_j = 0.0
    since_s = 0.0
    clean = True
    for what, span_s, watts in steps:
        spent_uj = int(watts * span_s * 1e6)
        at_uj = (at_uj + spent_uj) % range_uj
        now_s += span_s
        since_j += spent_uj * 1e-6
        since_s += span_s
        if what == "reset":
            at_uj, clean = 0, False
        elif what == "asleep":  # longer than the counter takes to wrap around
            now_s, since_s, clean = now_s + 1_000.0, since_s + 1_000.0, False
        zone(folder, "intel-rapl:0", "", at_uj)
        if what == "unreadable":
            (place / "energy_uj").unlink()
            assert rapl.read(now_s) == []
            continue
        before = rapl._counting[0].energy()
        (found,) = rapl.read(now_s)
        gained_j, unseen_s = found.joules - before.joules, found.unseen_s - before.unseen_s
        if clean and MOST_W * (since_s + LATE_S) * 1e6 < range_uj:
            assert unseen_s == 0.0
        if unseen_s == 0.0:
            true_j += since_j if clean else gained_j
            assert gained_j <= MOST_W * (since_s + LATE_S)
        else:
            assert gained_j == 0.0 and unseen_s == pytest.approx(since_s)
        since_j = since_s = 0.0
        clean = True
        assert found.joules == pytest.approx(true_j, abs=1e-5)


def test_zones_that_mirror_one_another_are_counted_once(tmp_path: Path) -> None:
    for die in range(4):
        zone(tmp_path, f"intel-rapl:{die}", f"package-0-die-{die}", 68_000_000)
    rapl = Rapl(tmp_path)
    for second in range(1, 5):
        found = rapl.read(float(second))
        assert joules(found) == {"package-0-die-0": pytest.approx(68.0 * (second - 1))}
        for die in range(4):
            advance(tmp_path, f"intel-rapl:{die}", 68_000_000)


def test_dies_with_counters_of_their_own_are_counted_each(tmp_path: Path) -> None:
    """Also one that showed the same at first: it is counted from its first reading on."""
    for die in range(2):
        zone(tmp_path, f"intel-rapl:{die}", f"package-0-die-{die}", 1_000_000)
    rapl = Rapl(tmp_path)
    assert list(joules(rapl.read(0.0))) == ["package-0-die-0"]
    advance(tmp_path, "intel-rapl:0", 70_000_000)
    advance(tmp_path, "intel-rapl:1", 60_000_000)
    assert joules(rapl.read(1.0)) == {"package-0-die-0": 70.0, "package-0-die-1": 60.0}
    advance(tmp_path, "intel-rapl:0", 1_000_000)
    advance(tmp_path, "intel-rapl:1", 11_000_000)  # the same by chance
    assert len(rapl.read(2.0)) == 2


def test_a_mirror_read_late_is_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node much may be counted between the readings of two zones."""
    for die in range(2):
        zone(tmp_path, f"intel-rapl:{die}", f"package-0-die-{die}", 0)
    reads, read = [0], rms.power.rapl._text

    def counting(path: str) -> str | None:
        if not path.endswith("/energy_uj"):
            return read(path)
        reads[0] += 1
        return f"{reads[0] * 50_000_000}"

    monkeypatch.setattr(rms.power.rapl, "_text", counting)
    rapl = Rapl(tmp_path)
    for second in range(5):
        assert list(joules(rapl.read(10.0 * second))) == ["package-0-die-0"]


def test_two_packages_that_draw_the_same_are_two(tmp_path: Path) -> None:
    for package in range(2):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}", 5)
    assert len(Rapl(tmp_path).read(0.0)) == 2


def test_one_unreadable_sample_loses_nothing(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl = Rapl(powercap)
    rapl.read(0.0)
    open_file = os.open

    def broken(path: str, flags: int) -> int:
        if path.endswith("/intel-rapl:1/energy_uj"):
            raise OSError(errno.EIO, "Input/output error")
        return open_file(path, flags)

    advance(powercap, "intel-rapl:1", 3_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", broken)
        assert list(joules(rapl.read(1.0))) == ["package-0", "dram-0", "dram-1"]
        assert "could not be read" in rapl.trouble
    advance(powercap, "intel-rapl:1", 3_000_000)
    assert joules(rapl.read(2.0))["package-1"] == 6.0 and rapl.trouble == ""


def test_a_package_that_is_unplugged_and_comes_back_goes_on(powercap: Path) -> None:
    rapl = Rapl(powercap)
    rapl.read(0.0)
    (powercap / "intel-rapl:1").rename(powercap / "gone")
    assert "package-1" not in joules(rapl.read(1.0))
    (powercap / "gone").rename(powercap / "intel-rapl:1")
    advance(powercap, "intel-rapl:1", 8_000_000)
    assert joules(rapl.read(3.0))["package-1"] == 8.0
    zone(powercap, "intel-rapl:3", "package-3", 9_000_000)
    assert joules(rapl.read(4.0))["package-3"] == 0.0


@pytest.mark.parametrize(
    ("counter_j", "gap_s", "same_boot", "joules_then", "unseen_s"),
    [
        (0.25, 30.0, True, 500.75, 4.0),  # its counter went on
        (0.25, 30.0, False, 500.0, 34.0),  # another boot: it began anew
        (None, 30.0, True, 500.0, 34.0),  # another meter, without a counter
        (0.25, 3_000.0, True, 500.0, 3_004.0),  # it may have wrapped around
        (200.0, 30.0, True, 500.0, 34.0),  # it was reset
    ],
)
def test_a_later_agent_goes_on(
    tmp_path: Path,
    counter_j: float | None,
    gap_s: float,
    same_boot: bool,
    joules_then: float,
    unseen_s: float,
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    rapl = Rapl(tmp_path)
    known = DeviceEnergy("package-0", "rapl", 500.0, 4.0, 0.5, counter_j)
    rapl.resume([known], gap_s, same_boot)
    (found,) = rapl.read(100.0)
    assert (found.joules, found.unseen_s) == (pytest.approx(joules_then), unseen_s)
    advance(tmp_path, "intel-rapl:0", 7_000_000)
    assert rapl.read(101.0)[0].joules == pytest.approx(joules_then + 7.0)


LIFE = st.tuples(
    st.sampled_from(["read", "report", "killed"]), st.floats(0.1, 5.0), st.floats(0.0, LIMIT_W)
)


@given(st.lists(LIFE, max_size=25), st.integers(0, RANGE_UJ - 1))
def test_agents_one_after_the_other_count_every_joule_once(
    tmp_path_factory: pytest.TempPathFactory, life: list[tuple[str, float, float]], begun_uj: int
) -> None:
    """Each goes on from the last report of the one before, whatever that had read since."""
    folder = tmp_path_factory.mktemp("powercap")
    zone(folder, "intel-rapl:0", "package-0", begun_uj, RANGE_UJ, LIMIT_W)
    rapl, now_s, true_uj = Rapl(folder), 0.0, 0
    known, known_s = rapl.read(0.0), 0.0
    for what, span_s, watts in life:
        spent_uj = int(watts * span_s * 1e6)
        now_s, true_uj = now_s + span_s, true_uj + spent_uj
        advance(folder, "intel-rapl:0", spent_uj)
        if what == "killed":
            rapl = Rapl(folder)
            rapl.resume(known, now_s - known_s, True)
        found = rapl.read(now_s)
        if what == "report":
            known, known_s = found, now_s
    (found_last,) = rapl.read(now_s)
    assert found_last.joules == pytest.approx(true_uj * 1e-6, abs=1e-6)
    assert found_last.unseen_s == 0.0


def test_counters_for_root_alone_say_how_a_site_opens_them(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    def unreadable(path: str) -> str | None:
        return None if path.endswith("/energy_uj") else "package-0"

    monkeypatch.setattr(Path, "read_bytes", refused)
    monkeypatch.setattr(rms.power.rapl, "_text", unreadable)
    with pytest.raises(MeterError, match=r"CVE-2020-8694.* tmpfiles.d: z .*energy_uj 0440 root"):
        Rapl(powercap).read(0.0)


def test_where_there_is_no_package_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="no processor package"):
        Rapl(tmp_path / "nothing").read(0.0)
    zone(tmp_path, "intel-rapl:0", "core", 5)
    with pytest.raises(MeterError, match="no processor package"):
        Rapl(tmp_path).read(0.0)
