"""Rounds, ranges and differences of ``rms compare``, on times that are given."""

from __future__ import annotations

import itertools
import json
import random
from math import comb
from pathlib import Path
from typing import Any

import pytest

from rms.cli.main import main
from rms.core.model.jobs import Mode
from rms.studies.compare import causes, draw, middle, orders, problems, relations, table

FOUR = list(Mode)


def run(number: int, time_s: float, *, resizes: int = 0, sha256: str = "a") -> dict[str, Any]:
    """Return a run of one job on two nodes that draw 20 W together."""
    resize = {"at_s": 1.0, "from": 2, "to": 1, "bytes": 8, "stall_s": 0.1}
    job = {
        "id": "1",
        "name": "job",
        "state": "COMPLETED",
        "start_s": 0.0,
        "end_s": time_s,
        "energy_j": 20.0 * time_s,
        "sha256": sha256,
        "resizes": [resize] * resizes,
    }
    return {
        "round": number,
        "time_s": time_s,
        "busy_j": 20.0 * time_s,
        "idle_j": 0.0,
        "off_j": 0.0,
        "boot_j": 0.0,
        "cluster_j": 20.0 * time_s,
        "allocation": 1.0,
        "jobs": [job],
        "note": "" if resizes else "no resize: the policy saw nothing to gain",
        "spans": [{"node": "n1", "job": "1", "start_s": 0.0, "end_s": time_s}],
        "power_spans": [],
        "power_w": [[0.0, 20.0]],
        "nodes": ["n1", "n2"],
    }


def comparison(times: dict[str, list[float]], resizes: dict[str, int]) -> dict[str, Any]:
    """Return the JSON of a comparison in which each mode took these times, round by round."""
    rows = [
        {"mode": mode}
        | middle([run(n, t, resizes=resizes.get(mode, 0)) for n, t in enumerate(of_mode, 1)])
        for mode, of_mode in times.items()
    ]
    rounds = len(next(iter(times.values())))
    return {
        "engine": "local",
        "nodes": 2,
        "policy": "array-share",
        "power_source": "model",
        "times": rounds,
        "rounds": [[str(m) for m in order] for order in orders([Mode(m) for m in times], rounds)],
        "warm_up": {"jobs": 1, "time_s": 1.0, "states": ["COMPLETED"]},
        "differs": relations(rows),
        "rows": rows,
    }


NOISY = {
    "fixed": [10.0, 11.0, 10.5],
    "moldable": [8.0, 8.2, 8.1],
    "malleable": [12.0, 10.2, 10.4],  # one round 20 % longer, by noise: the ranges overlap
    "flexible": [7.0, 7.5, 7.2],
}


@pytest.mark.parametrize("modes", [FOUR[:1], FOUR[:2], FOUR[:3], FOUR])
def test_a_linear_drift_hits_all_modes_alike(modes: list[Mode]) -> None:
    rounds = orders(modes, 2 * len(modes))
    assert rounds[0] == modes and all(sorted(order) == sorted(modes) for order in rounds)
    at = {mode: [order.index(mode) for order in rounds] for mode in modes}
    for places in at.values():
        assert sorted(places) == sorted([*range(len(modes))] * 2)
        assert {a + b for a, b in itertools.zip_longest(places[::2], places[1::2])} == {
            len(modes) - 1
        }


def test_a_row_is_the_run_of_the_median_time() -> None:
    row = middle([run(1, 12.0), run(2, 10.0, resizes=1), run(3, 11.0)])
    assert (row["round"], row["time_s"], row["cluster_j"]) == (3, 11.0, 220.0)
    assert row["ranges"]["time_s"] == {"least": 10.0, "median": 11.0, "most": 12.0}
    assert [each["time_s"] for each in row["runs"]] == [12.0, 10.0, 11.0]
    assert middle([run(1, 12.0), run(2, 10.0)])["time_s"] == 10.0


@pytest.mark.promise("compare")
def test_only_ranges_that_do_not_overlap_are_differences() -> None:
    result = comparison(NOISY, {"flexible": 2})
    differs = {
        (pair["mode"], pair["than"])
        for pair in result["differs"]
        if pair["quantity"] == "time_s" and pair["differs"]
    }
    assert differs == {
        ("moldable", "fixed"),
        ("flexible", "fixed"),
        ("malleable", "moldable"),
        ("flexible", "moldable"),
        ("flexible", "malleable"),
    }
    text = table(result)
    assert text[1].split()[:3] == ["fixed", "10.5", "(10.0-11.0)"]
    assert "Time, within the spread of the runs: fixed and malleable." in text
    assert any("moldable 0.77 of fixed" in line for line in text)
    assert problems(result) == []


def test_causes_of_a_gain() -> None:
    start, resizes, full = causes(comparison(NOISY, {"flexible": 2}))
    assert start == "A fitting size at the start (moldable beside fixed): 23 % less time."
    assert resizes == "Resizes after such a start (flexible beside moldable): 11 % less time."
    assert "(malleable beside fixed): none took place, so both modes do the same" in full
    overlapping = {**NOISY, "flexible": [7.0, 8.1, 8.05], "malleable": [13.0, 14.0, 12.0]}
    _, resizes, full = causes(comparison(overlapping, {"flexible": 2, "malleable": 1}))
    assert resizes.endswith("no difference beyond the spread of the runs.")
    assert full.endswith("(malleable beside fixed): 24 % more time.")


@pytest.mark.parametrize(("times", "said"), [(1, "a single run"), (2, "2 runs")])
def test_fewer_than_three_rounds_show_no_difference(times: int, said: str) -> None:
    result = comparison({"fixed": [10.0] * times, "flexible": [5.0] * times}, {"flexible": 1})
    assert not any(pair["differs"] for pair in result["differs"])
    text = "\n".join(table(result))
    assert f"From {said} of each mode no difference can be concluded" in text
    assert "less time" not in text and "of fixed" not in text


@pytest.mark.parametrize("rounds", [3, 4, 5])
def test_equal_modes_differ_as_often_as_the_table_prints(rounds: int) -> None:
    draws, chance, noise = 4000, 2.0 / comb(2 * rounds, rounds), random.Random(rounds)
    apart = 0
    for _ in range(draws):
        rows = [
            {"mode": mode} | middle([run(n, 10.0 + noise.random()) for n in range(rounds)])
            for mode in ("fixed", "malleable")
        ]
        apart += relations(rows)[0]["differs"]
    assert apart / draws == pytest.approx(chance, abs=4.0 * (chance / draws) ** 0.5)
    text = "\n".join(table(comparison({"fixed": [1.0] * rounds, "flexible": [1.0] * rounds}, {})))
    assert f"in {100.0 * chance:.2g} % of such pairs" in text


def test_every_run_is_checked() -> None:
    result = comparison(NOISY, {})
    first = result["rows"][2]["runs"][0]  # neither first nor the median
    assert first["round"] != result["rows"][2]["round"]
    first["jobs"][0]["sha256"] = "b"
    assert problems(result) == ["job 1 has other bits in other runs"]
    first["jobs"][0] |= {"sha256": "a", "state": "FAILED"}
    assert problems(result) == ["job 1 of round 1, mode malleable is FAILED"]


def test_figure_and_report_show_the_median_runs(tmp_path: Path) -> None:
    result = comparison(NOISY, {"flexible": 2})
    draw(result, tmp_path / "modes.png")
    assert (tmp_path / "modes.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "result.json").write_text(json.dumps(result))
    out = tmp_path / "out"
    assert main(["report", str(out), "--from", str(tmp_path / "result.json")]) == 0
    page = (out / "report.html").read_text()
    assert "Time, run of the median time" in page and "Runs, mode malleable" in page
    assert "Differences between modes" in page and "none took place" in page


def test_a_mode_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "job.sh", "--modes", "fixed,fixed"]) == 2
    assert "expected different modes, got fixed,fixed" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "job.sh", "--times", "0"])
