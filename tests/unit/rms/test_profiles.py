"""Measured profiles: how they are kept and found, what follows from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.core.model.speedup import Speedup, corrected
from rms.formats import profiles
from rms.formats.config import FileError, read_workload
from rms.formats.profiles import Machine, Point, Profile, ProfileError, Program
from rms.studies.profile import differences, fit_power, fit_time, lines_of, operating_points

HERE = Machine("a processor", 8)
SIZES = (1, 2, 4, 8)
seconds = st.floats(0.1, 1e4)
watts = st.floats(1.0, 1e3)


def point(nodes: int, time_s: float, node_w: float, way: str = "separate") -> Point:
    return Point(nodes, way, (time_s,), (nodes * node_w * time_s,), "model")


def profile_of(
    *points: Point, name: str = "mine", words: tuple[str, ...] = ("prog", "-n")
) -> Profile:
    return Profile(name, Program(words, "f" * 64), HERE, points, measured="2026-01-01 12:00")


def place(base: Path, profile: Profile) -> Path:
    return profiles.path_of(base, profile.name, profile.program, profile.machine)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("./work.sh 3", "work.sh"),
        ("python3.11 -u solve/x.py --n 3", "x.py"),
        ("python -m mpdata run", "mpdata"),
        ("python -c pass", "python"),
        ("python", "python"),
        ("my+prog", "my-prog"),
        ("sh _x.json", "x-"),
    ],
)
def test_a_profile_is_named_by_the_program(command: str, name: str) -> None:
    assert profiles.check_name(profiles.name_of(command.split())) == name


# --- the laws ------------------------------------------------------------------------------------


@given(st.floats(0.0, 1e3), seconds)
def test_exact_times_give_the_exact_law(tc_s: float, t1_s: float) -> None:
    law = fit_time([point(n, tc_s + t1_s / n, 1.0) for n in SIZES])
    assert law.first == pytest.approx(t1_s, rel=1e-6, abs=1e-6)
    assert law.second == pytest.approx(tc_s, rel=1e-6, abs=1e-6 * (1 + t1_s))
    assert law.most_off < 1e-9 and law.first_error < 1e-6 * (1 + t1_s + tc_s)


@given(st.lists(seconds, min_size=4, max_size=4))
def test_the_deviation_is_that_of_the_points_from_the_law(time_s: list[float]) -> None:
    law = fit_time([point(n, t, 1.0) for n, t in zip(SIZES, time_s, strict=True)])
    off = [abs((law.second + law.first / n) / t - 1) for n, t in zip(SIZES, time_s, strict=True)]
    assert law.most_off == pytest.approx(max(off), abs=1e-6)
    assert law.mean_off == pytest.approx(sum(off) / 4, abs=1e-6)


def test_two_runs_tell_no_error_and_one_no_law() -> None:
    assert math.isnan(fit_time([point(1, 10.0, 1.0), point(2, 6.0, 1.0)]).first_error)
    with pytest.raises(ValueError, match="expected times at two sizes or more, got 1"):
        fit_time([point(2, 10.0, 1.0)])


def test_a_law_that_falls_is_printed_with_a_minus() -> None:
    lines = lines_of(profile_of(point(1, 4.0, 10.0), point(2, 4.5, 10.0)), 1.1)
    (law,) = [line for line in lines if line.startswith("t(n) = 5 s - 1 s/n, through two runs")]
    assert law.endswith("; no speedup law: more nodes took longer")


def test_repeated_runs_tell_an_error_of_two_sizes() -> None:
    times = {1: (11.0, 9.0), 2: (6.0, 6.0)}
    law = fit_time([Point(n, "separate", t, (1.0, 1.0), "rapl") for n, t in times.items()])
    assert (law.first, law.second) == pytest.approx((8.0, 2.0))
    assert law.first_error > 0 and law.second_error > 0 and law.most_off == pytest.approx(1 / 9)


@given(watts, st.floats(0.05, 20.0), st.floats(0.0, 100.0))
def test_exact_powers_give_the_exact_law(static_w: float, part: float, tc_s: float) -> None:
    found, dynamic_w = [], part * static_w
    for mhz in (1000.0, 2000.0):
        for n in SIZES:
            time_s = (tc_s + 50.0 / n) * 2000.0 / mhz
            efficiency = (tc_s + 50.0) / (n * (tc_s + 50.0 / n))
            node_w = static_w + dynamic_w * efficiency * (mhz / 2000.0) ** 3
            found.append(msgspec.structs.replace(point(n, time_s, node_w), mhz=mhz))
    law = fit_power(found)
    assert law is not None and law.most_off < 1e-6
    assert (law.first, law.second) == pytest.approx((dynamic_w, static_w), rel=1e-4, abs=1e-4)


def test_power_at_one_load_tells_no_two_parts() -> None:
    assert fit_power([point(n, 8.0 / n, 10.0) for n in SIZES]) is None
    assert fit_power([point(1, 8.0, 10.0)]) is None


# --- operating points ----------------------------------------------------------------------------

matrices = st.lists(
    st.tuples(st.integers(1, 64), seconds, watts), min_size=1, max_size=8, unique_by=lambda p: p[0]
)


@given(matrices, st.floats(1.0, 4.0))
def test_operating_points_are_those_of_a_search(
    matrix: list[tuple[int, float, float]], slowdown: float
) -> None:
    points = [point(*each) for each in matrix]
    found = operating_points(points, slowdown)
    fastest = min(p.run_s for p in points)
    assert found["fastest"].run_s == fastest
    assert found["energy"].run_j == min(p.run_j for p in points)
    assert found["energy_delay_product"].run_j * found["energy_delay_product"].run_s == min(
        p.run_j * p.run_s for p in points
    )
    allowed = [p for p in points if p.run_s <= slowdown * fastest]
    assert found["energy_bounded"] in allowed and found["energy_bounded"].run_j == min(
        p.run_j for p in allowed
    )


def test_differences_are_of_sizes_that_both_have() -> None:
    separate = [point(1, 10.0, 5.0), point(2, 6.0, 5.0)]
    other = [point(2, 6.6, 5.0, "malleable"), point(4, 3.0, 5.0, "malleable")]
    (found,) = differences(separate, other)
    assert found == pytest.approx({"nodes": 2, "time": 0.1, "power": 0.0, "energy": 0.1})


# --- a table for the scheduler -------------------------------------------------------------------


def test_repeated_runs_give_median_time_and_mean_power() -> None:
    found = Point(2, "separate", (3.0, 1.0, 2.0), (60.0, 30.0, 30.0), "rapl")
    assert (found.run_s, found.spread_s, found.node_w, found.run_j) == (2.0, 2.0, 10.0, 40.0)


@given(matrices, st.integers(1, 64), st.integers(1, 64))
def test_a_table_serves_every_size_asked_for(
    matrix: list[tuple[int, float, float]], low: int, high: int
) -> None:
    low, high = sorted((low, high))
    found = profile_of(*(point(*each) for each in matrix))
    speedup = found.speedup(low, high)
    for n in range(low, high + 1):
        assert speedup.allows(n) and speedup.time(n) > 0 and speedup.power(n) is not None
    for nodes, time_s, node_w in matrix:
        assert speedup.time(nodes) == time_s
        assert speedup.power(nodes) == pytest.approx(node_w)
    biggest = max(matrix)
    if high > biggest[0]:
        assert biggest[1] * biggest[0] / high <= speedup.time(high) * (1 + 1e-12)
        assert speedup.time(high) <= biggest[1]
    assert not found.speedup(low, high, power=False).power_w_per_node


def test_the_peak_of_a_profile_is_that_of_each_node_above_idle() -> None:
    peaks = [Point(n, "separate", (8.0 / n,), (10.0,), "rapl", peak_w=90.0 * n) for n in (1, 2)]
    speedup = profile_of(*peaks).speedup(1, 4)
    assert [speedup.peak(n) for n in (1, 2, 4)] == [90.0, 90.0, 90.0]
    assert profile_of(point(1, 10.0, 5.0)).speedup().peak(1) == 0.0  # too short to be seen
    assert profile_of(*peaks).speedup(power=False).peak(1) == 0.0


def test_separate_runs_go_before_a_malleable_one() -> None:
    both = profile_of(point(1, 10.0, 5.0), point(1, 9.0, 5.0, "malleable"))
    assert both.speedup().time(1) == 10.0
    assert profile_of(point(1, 9.0, 5.0, "malleable")).speedup().time(1) == 9.0


# --- what was seen -------------------------------------------------------------------------------


@given(st.floats(0.0, 100.0), seconds, st.floats(0.2, 5.0), st.sets(st.sampled_from(SIZES)))
def test_a_program_that_is_slower_by_a_factor_is_so_at_every_size(
    tc_s: float, t1_s: float, factor: float, at: set[int]
) -> None:
    law = Speedup(law=(t1_s, tc_s))
    found = corrected(law, range(1, 9), {n: factor * law.time(n) for n in at})
    assert found is not None
    for n in range(1, 9):
        expected = law.time(n) * (factor if at else 1.0)
        assert found.time(n) == pytest.approx(expected, rel=1e-9)


def test_what_was_seen_goes_before_a_table() -> None:
    table = Speedup((1, 2, 4), (100.0, 50.0, 25.0))
    found = corrected(table, table.nodes, {1: 100.0, 4: 50.0})
    assert found is not None
    assert (found.time(1), found.time(4)) == (100.0, 50.0)
    assert found.time(2) == pytest.approx(50.0 * (1 + 1 / 1.5))  # the ratio is linear in 1/n


def test_without_a_table_two_sizes_make_a_law() -> None:
    assert corrected(None, range(1, 5), {2: 60.0}) is None
    found = corrected(None, range(1, 5), {1: 100.0, 2: 60.0})
    assert found is not None and found.time(4) == pytest.approx(40.0)
    slower = corrected(None, range(1, 5), {1: 50.0, 2: 60.0})  # nodes do not help
    assert slower is not None and slower.time(1) == 50.0 and slower.time(4) >= 50.0


# --- kept in files -------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "prog"
    file.write_text("#!/bin/sh\necho\n")
    file.chmod(0o755)
    return file


def test_a_program_is_found_by_words_file_and_machine(tmp_path: Path, program: Path) -> None:
    base = tmp_path / "kept"

    def look(*words: str, machine: Machine = HERE) -> Profile | None:
        found = Program.find(words, tmp_path, str(tmp_path))
        return profiles.find(base, found, lambda: machine)

    assert look("prog", "-n") is None
    known = Program.find(["prog", "-n"], tmp_path, str(tmp_path))
    assert known is not None
    kept = msgspec.structs.replace(profile_of(point(1, 2.0, 3.0)), program=known)
    profiles.write(place(base, kept), kept)
    assert look("prog", "-n") == kept
    assert look("prog", "-m") is None and look("prog") is None
    assert look("prog", "-n", machine=Machine("another", 8)) is None
    assert look("prog", "-n", machine=Machine("a processor", 8, ("a GPU",))) is None
    program.write_text("#!/bin/sh\necho changed\n")
    assert look("prog", "-n") is None
    assert look("no-such-program") is None


def test_an_interpreters_script_is_part_of_the_program(tmp_path: Path) -> None:
    python = tmp_path / "python3.11"
    python.write_text("")
    python.chmod(0o755)
    script = tmp_path / "mine.py"
    script.write_text("1")
    words = ["python3.11", "-u", "mine.py", "5"]
    one = Program.find(words, tmp_path, str(tmp_path))
    script.write_text("2")
    two = Program.find(words, tmp_path, str(tmp_path))
    assert one is not None and two is not None and one.sha256 != two.sha256


def test_a_name_means_one_profile(tmp_path: Path) -> None:
    first = profile_of(point(1, 2.0, 3.0))
    profiles.write(place(tmp_path, first), first)
    assert profiles.named(tmp_path, "mine") == first
    second = profile_of(point(1, 2.0, 3.0), words=("prog", "-k"))
    profiles.write(place(tmp_path, second), second)
    with pytest.raises(ProfileError, match="the name of one profile, got 'mine' of: mine-"):
        profiles.named(tmp_path, "mine")
    stem = place(tmp_path, second).stem
    assert profiles.named(tmp_path, stem) == second
    with pytest.raises(ProfileError, match="got 'other' of: none"):
        profiles.named(None, "other")


def test_another_measurement_replaces_its_own_way_only() -> None:
    old = profile_of(point(1, 10.0, 5.0), point(1, 9.0, 5.0, "malleable"))
    new = profile_of(point(1, 11.0, 5.0), point(2, 6.0, 5.0))
    both = profiles.merged(old, new)
    assert [(p.nodes, p.run_s) for p in both.matrix("separate")] == [(1, 11.0), (2, 6.0)]
    assert [p.run_s for p in both.matrix("malleable")] == [9.0]
    assert profiles.merged(None, new) == new


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"nodes": [1], "time_s": [2]}',
        "\xff\xfe",
        "{bad",
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ProfileError, match=r"expected a profile, got .*bad\.json"):
        profiles.read(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "expected a profile of format 1, got 99"),
        ({"points": []}, "expected a profile with points at clocks as they are, got none"),
        (
            {
                "points": [
                    {"nodes": 1, "way": "separate", "time_s": [], "energy_j": [], "source": ""}
                ]
            },
            "expected nodes, and as many energies as times",
        ),
        (
            {
                "points": [
                    {"nodes": 1, "way": "separate", "time_s": [-1], "energy_j": [1], "source": ""}
                ]
            },
            "expected times above 0",
        ),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    file = tmp_path / "p.json"
    good = msgspec.to_builtins(profile_of(point(1, 2.0, 3.0)))
    file.write_text(json.dumps(good | change))
    with pytest.raises(ProfileError, match=said):
        profiles.read(file)
    with pytest.raises(ProfileError, match="which does not exist"):
        profiles.read(tmp_path / "none.json")


def test_nothing_is_half_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ProfileError, match="expected a place for a profile"):
        profiles.write(blocked / "p.json", profile_of(point(1, 2.0, 3.0)))
    assert sorted(tmp_path.iterdir()) == [blocked]


def test_the_folder_is_the_users_unless_it_is_named(tmp_path: Path) -> None:
    assert profiles.folder({}, tmp_path) == tmp_path / "profiles"
    assert profiles.folder({"RMS_PROFILES": "/kb"}, tmp_path) == Path("/kb")
    assert profiles.folder({"RMS_PROFILES": ""}, tmp_path) is None


# --- in a workload -------------------------------------------------------------------------------

WORKLOAD = '[[jobs]]\nnodes = [1, 2]\nspeedup = {{ profile = "{}" }}\n'


def test_a_workload_names_a_profile_or_its_file(tmp_path: Path) -> None:
    found = profile_of(point(1, 20.0, 3.0), point(2, 12.0, 4.0))
    base = tmp_path / "kept"
    profiles.write(place(base, found), found)
    profiles.write(tmp_path / "p.json", found)
    work = tmp_path / "w.toml"
    (tmp_path / "mine").write_text("the program itself")
    for name in ("mine", "p.json"):
        work.write_text(WORKLOAD.format(name))
        (spec,) = read_workload(work, profiles=base)
        assert spec.speedup is not None
        assert [spec.speedup.time(n) for n in (1, 2)] == [20.0, 12.0]
        assert [spec.speedup.power(n) for n in (1, 2)] == [3.0, 4.0]
        assert [spec.speedup.peak(n) for n in (1, 2)] == [0.0, 0.0]
    peaked = profile_of(*(msgspec.structs.replace(each, peak_w=8.0) for each in found.points))
    profiles.write(tmp_path / "p.json", peaked)
    (spec,) = read_workload(work, profiles=base)
    assert spec.speedup is not None and [spec.speedup.peak(n) for n in (1, 2)] == [8.0, 4.0]
    work.write_text(WORKLOAD.format("other"))
    with pytest.raises(FileError, match=r"w\.toml: expected a file or the name of one profile"):
        read_workload(work, profiles=base)
    (tmp_path / "bad.json").write_text('{"points": 3}')
    work.write_text(WORKLOAD.format("bad.json"))
    with pytest.raises(FileError, match=r"w\.toml: expected a profile, got .*bad\.json"):
        read_workload(work, profiles=base)
