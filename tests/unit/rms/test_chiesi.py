"""``rms reproduce chiesi``: its statements, workloads, bounds, and a cap that holds."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from stated import assert_statements

from rms.cli.main import main
from rms.core.model.jobs import JobSpec
from rms.studies import chiesi as study
from rms.studies import experiment
from rms.studies.chiesi import (
    CappedSchedule,
    MarkovWorkload,
    bounds,
    computed,
    energy_share,
    measured,
    run,
    schedule,
    site,
    weights,
    workload,
)


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return experiment.settings("chiesi")


@pytest.mark.promise("reproduce")
def test_every_statement_of_the_paper_has_its_recorded_status(data: dict[str, Any]) -> None:
    """All workloads under all caps; then each published value is changed."""
    runs = measured(data)
    assert study._must_hold(data, runs) == []
    assert_statements("chiesi", computed(data, runs))


def test_a_power_cap_holds_on_a_short_workload(data: dict[str, Any]) -> None:
    data = data | {"jobs": 120}
    specs, where = workload(data, 1), site(data)
    assert specs == workload(data, 1) != workload(data, 2)
    unaware = run(specs, where, "p-fifo", None)
    for policy in ("p-fifo", "p-bff"):
        aware = run(specs, where, policy, 850.0)
        assert aware.peak_w <= aware.scheduled_w <= 850.0 < unaware.peak_w
        assert aware.time_s > unaware.time_s
        assert run(specs, where, policy, 1120.0).time_s == unaware.time_s


@pytest.mark.parametrize("cap_w", [None, 850.0])
def test_a_schedule_gives_what_the_ledger_books(data: dict[str, Any], cap_w: float | None) -> None:
    """Indices of variants are computed without the ledger, from starts and ends."""
    data = data | {"jobs": 120}
    specs, where = workload(data, 3), site(data)
    booked = run(specs, where, "p-bff", cap_w)
    again = schedule(specs, where, "p-bff", cap_w).outcome(data["profile"])
    for name in ("time_s", "energy_j", "node_s", "peak_w", "scheduled_w"):
        assert getattr(again, name) == pytest.approx(getattr(booked, name), rel=1e-9), name


def test_a_schedule_by_hand() -> None:
    """Jobs of 100 and 200 W, a kernel in the middle half: 150 W of edges, then 300 W of kernels."""
    plan = CappedSchedule(((0, 0.0, 8.0, 100.0), (0, 0.0, 8.0, 200.0)), (10.0, 10.0))
    outcome = plan.outcome([(0.25, 0.5), (0.5, 1.0), (0.25, 0.5)])
    assert (outcome.peak_w, outcome.scheduled_w, outcome.time_s) == (310.0, 310.0, 8.0)
    assert outcome.energy_j == pytest.approx(300.0 * 0.75 * 8.0 + 10.0 * 8.0)
    half = CappedSchedule(((0, 0.0, 8.0, 100.0), (0, 4.0, 12.0, 200.0)), (10.0,))
    apart = half.outcome([(0.5, 1.0), (0.5, 0.0)])
    assert (apart.peak_w, apart.scheduled_w) == (210.0, 310.0)


def kernels(specs: list[JobSpec]) -> dict[float, float]:
    """Return the share of jobs of each power."""
    powers = [spec.power_w or 0.0 for spec in specs]
    return {watts: powers.count(watts) / len(powers) for watts in sorted(set(powers))}


def test_a_mix_has_the_mean_power_that_is_asked_for(data: dict[str, Any]) -> None:
    powers = list(data["power_w"].values())
    assert weights(powers, fmean(powers)) == pytest.approx([1.0 / 6.0] * 6)
    shares = weights(powers, 140.0)
    assert sum(shares) == pytest.approx(1.0)
    assert sum(s * w for s, w in zip(shares, powers, strict=True)) == pytest.approx(140.0)
    many = data | {"jobs": 20_000}
    for repeat in (0.0, 0.4):
        specs = workload(many, 1, MarkovWorkload(mean_w=140.0, repeat=repeat))
        got = kernels(specs)
        for watts, share in zip(powers, shares, strict=True):
            assert got[watts] == pytest.approx(share, abs=0.02)
        again = [a.power_w == b.power_w for a, b in pairwise(specs)]
        expected = repeat + (1.0 - repeat) * sum(share**2 for share in shares)
        assert fmean(again) == pytest.approx(expected, abs=0.02)
    with pytest.raises(ValueError, match="between 110 and 220 W, got 230"):
        weights(powers, 230.0)


def test_variants_of_lengths_and_arrival(data: dict[str, Any]) -> None:
    same = workload(data, 1, MarkovWorkload(duration_s=(70.0, 70.0)))
    assert {spec.run_s for spec in same} == {70.0}
    assert {spec.submit_s for spec in workload(data, 1)} == {0.0}
    later = workload(data, 1, MarkovWorkload(load=2.0))
    last_s = later[-1].submit_s
    assert last_s == pytest.approx(1000.0 * 70.0 / (2.0 * 16.0), rel=0.1)


def test_bounds_by_hand(data: dict[str, Any]) -> None:
    """610 W above idle at 850 W hold 3.55 jobs of 171.7 W: T is at least 12.6 %."""
    limits = bounds(data)
    row = next(r for r in limits["rows"] if (r["policy"], r["cap_w"]) == ("p-bff", 850.0))
    assert limits["mix_w"] == pytest.approx(1030.0 / 6.0)
    assert row["t_least_pct"] == pytest.approx(12.57, abs=0.01)
    assert row["mean_w"] == pytest.approx(1.044 * 610.0 / 4.0) == limits["mean_w"]
    assert row["peak_w"] == pytest.approx(850.0 / 0.868)
    assert row["gpu_w"] == pytest.approx(1.044 * (850.0 / 1.422 - 240.0) / 4.0)
    assert row["e_over_t_paper"] == pytest.approx(3.6 / 4.4)
    assert row["e_over_t"] == pytest.approx(240.0 * 1.495 / 850.0)
    assert energy_share(data["profile"]) == pytest.approx(0.79)


def test_the_command_fails_where_a_value_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two workloads of 60 jobs: the table comes first, then what differs."""
    text = (experiment.DATA / "chiesi.toml").read_text()
    for before, after in (
        ("\njobs = 1000", "\njobs = 60"),
        ("\nworkloads = 10", "\nworkloads = 2"),
        ("variant_workloads = 2", "variant_workloads = 1"),
    ):
        assert before in text
        text = text.replace(before, after)
    monkeypatch.setattr(experiment, "settings", lambda study: msgspec.toml.decode(text))
    out = tmp_path / "out.json"
    assert main(["reproduce", "chiesi", "--json", str(out), "--figures", str(tmp_path)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "statements of the paper:" in printed[0]
    result = json.loads(out.read_text())
    assert any("expected the recorded value 1000, got 60" in each for each in result["wrong"])
    tried = result["variants"]
    assert [row["assumed"] for row in tried["rows"]] == list(study.VARIANTS)
    assert all(
        len(each["misses"]) + each["inside_all"] == 32
        for row in tried["rows"]
        for each in row["shares"]
    )
    assert {"figure-6-PR.png", "figure-7.png"} <= {path.name for path in tmp_path.iterdir()}
