"""How often to copy: Daly's interval against the minimum itself, and the two levels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.cli import main
from dmr.memory.copies import Copies, Terms
from dmr.memory.interval import Site, interval_s, levels, lost_share
from dmr.memory.keeper import Place
from dmr.plan import AUTO, Schedule

SITE = Site(
    nodes=100,
    ranks=4,
    bytes=1e9,
    mtbf_s=1e7,
    partners=1,
    memory_bytes_s=5e9,
    network_bytes_s=1e9,
    disk_bytes_s=1e10,
    memory_back_s=6.0,
    disk_back_s=120.0,
)


def test_young_s_formula_is_its_limit() -> None:
    """For a copy that costs little, the square root of twice the cost times the mean time."""
    assert interval_s(1e-3, 1e6) == pytest.approx(np.sqrt(2e3), rel=1e-4)
    assert interval_s(500.0, 100.0) == 100.0  # as often as it fails


@given(st.floats(1e-3, 1e3), st.floats(10.0, 1e5), st.floats(0.0, 1e3))
def test_it_loses_hardly_more_than_the_best_interval(
    cost_s: float, ratio: float, back_s: float
) -> None:
    mtbf_s = ratio * cost_s
    own_s = interval_s(cost_s, mtbf_s)
    best = min(
        lost_share(own_s * factor, cost_s, mtbf_s, back_s) for factor in np.linspace(0.5, 2.0, 301)
    )
    assert lost_share(own_s, cost_s, mtbf_s, back_s) <= best + 2e-4


def test_what_is_lost_without_failures_is_the_cost_of_the_copies() -> None:
    assert lost_share(99.0, 1.0, 1e12) == pytest.approx(0.01, rel=1e-6)


def test_two_levels_by_hand() -> None:
    """A node of the job fails every 1e5 s; 4 GB are sent in 4 s.

    A copy takes 0.2 s, so it is due every 200 s. Copies are not whole for 6 + 200 + 4 s after a
    failure: a node and one of its two neighbours fail in that time every 1e5 / (2 * 210 / 1e7) s.
    """
    memory, disk = levels(SITE)
    assert (memory.cost_s, memory.mtbf_s) == (pytest.approx(0.2), pytest.approx(1e5))
    assert memory.every_s == pytest.approx(np.sqrt(2 * 0.2 * 1e5), rel=2e-3)
    assert memory.lost == pytest.approx(0.2 / 200 + 100 / 1e5 + 6 / 1e5, rel=1e-2)
    assert (disk.cost_s, disk.mtbf_s) == (pytest.approx(40.0), pytest.approx(2.38e9, rel=1e-2))
    assert disk.every_s == pytest.approx(np.sqrt(2 * 40.0 * disk.mtbf_s), rel=2e-3)
    assert disk.lost < memory.lost


def test_without_partners_the_disk_is_for_every_failure() -> None:
    (disk,) = levels(replace(SITE, partners=0))
    assert (disk.name, disk.mtbf_s) == ("disk", pytest.approx(1e5))
    assert [level.name for level in levels(replace(SITE, disk_bytes_s=None))] == ["memory"]
    two = levels(replace(SITE, partners=2))
    assert two[1].mtbf_s > 1000 * levels(SITE)[1].mtbf_s


def test_an_automatic_interval_follows_the_time_of_a_copy(tmp_path: Path) -> None:
    """Two hosts of 4e4 s: one of them fails every 2e4 s, so a copy of 10 ms is due after 20 s."""
    now = [0.0]
    terms = Terms(Schedule(every_s=AUTO), 1, {}, (1, None), (), mtbf_s=4e4)
    places = [Place(name, "", tmp_path) for name in ("a", "b")]
    copies = Copies(places, 0, 0, 0, terms, lambda: now[0], lambda _: None)
    copies._world = SimpleNamespace(rank=0)  # type: ignore[assignment]
    assert copies.is_due(1)  # the first
    copies._begun_s, copies._cost_s = 0.0, 0.01
    now[0] = 19.5
    assert not copies.is_due(2)
    now[0] = 20.5
    assert copies.is_due(3)
    copies._cost_s = 0.04
    assert not copies.is_due(4)
    now[0] = 40.5
    assert copies.is_due(5)


WORDS = ["plan", "--mib", "64", "--mtbf", "4380", "--nodes", "128", "--ranks-per-node", "4"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--memory-gb-s", "4", "--network-gb-s", "10", "--disk-gb-s", "20"]
    assert main([*WORDS, *rates]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "128 nodes with 4 ranks of 64 MiB each; a node fails every 4380 h in the mean"
    )
    assert [line.split()[0] for line in lines[-2:]] == ["memory", "disk"]
    assert main([*WORDS, "--directory", str(tmp_path), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["site"]["memory_bytes_s"] > 1e7 and found["site"]["disk_bytes_s"] > 1e3
    assert [level["name"] for level in found["levels"]] == ["memory", "disk"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--mtbf", "0"], "--mtbf"),
        (["--nodes", "0"], "--nodes"),
        (["--partners", "128"], "fewer partners than the 128 nodes"),
        (["--directory", "gone"], "--directory"),
        (["--directory", ".", "--disk-gb-s", "1"], "either --directory or --disk-gb-s"),
    ],
)
def test_wrong_options(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main([*WORDS, *words])
    except SystemExit as exit_:
        status = int(str(exit_.code))
    assert status == 2 and expected in capsys.readouterr().err
