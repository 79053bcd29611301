"""The cluster, jobs and policies of Guim et al., and `rms reproduce guim` on a small log."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from specs import job_spec
from stated import assert_statements
from traces import trace

from rms.cli.main import main
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.studies import guim
from rms.studies.experiment import settings
from rms.studies.guim import (
    POLICIES,
    VARIANTS,
    Assumptions,
    Figures,
    Grid,
    PlacementCase,
    VariantView,
    orderings,
    run,
    site,
    with_bandwidth,
)


@pytest.fixture(scope="module")
def paper() -> dict[str, Any]:
    return _paper()


def _paper() -> dict[str, Any]:
    return settings("guim")


def jobs(number: int, widest: int, seed: int = 3) -> list[JobSpec]:
    draw, at_s, found = Random(seed), 0.0, []
    for each in range(1, number + 1):
        at_s += draw.expovariate(1 / 200.0)
        size, run_s = draw.randint(1, widest), float(draw.randint(1, 3000))
        limit_s = run_s * draw.choice((1.0, 2.0, 5.0))
        found.append(job_spec(each, size, at_s=at_s, limit_s=limit_s, run_s=run_s))
    return found


def test_blue_is_24_pairs_of_nodes(paper: dict[str, Any]) -> None:
    where = site(paper, 1152, Assumptions(size="cores"))
    assert (where.nodes, len(where.shared)) == (1152, 48)
    assert where.shared[0].processors[1].socket_gb_s == pytest.approx(64.0 / 9.0)
    example = site(paper, 1152, Assumptions(socket="example")).shared[0].processors[1]
    assert example.socket_gb_s == pytest.approx(64.0 * 4.0 / 18.0)
    assert site(paper, 1152, Assumptions(socket="none")).shared[0].processors[1].socket_gb_s == 64.0
    assert site(paper, 1152, Assumptions()).nodes == 72 * 48
    assert len(where.levels) == 13 and where.levels[-1] == (4.0, 1.0)


def test_the_same_jobs_whatever_the_error(paper: dict[str, Any]) -> None:
    specs = jobs(2000, 8)
    found = {
        e: with_bandwidth(specs, paper, PlacementCase("", "sdsc", "mem", e)) for e in (10, 100)
    }
    for exact, off in zip(found[10], found[100], strict=True):
        assert exact.bandwidth_gb_s == off.bandwidth_gb_s is not None
        assert off.expected_bandwidth_gb_s in (0.0, 2.0 * off.bandwidth_gb_s)
    share = sum(spec.bandwidth_gb_s == 16.0 for spec in found[10]) / len(specs)
    assert share == pytest.approx(0.4, abs=0.04)


def test_less_bandwidth_asked_for_costs_less_time(paper: dict[str, Any]) -> None:
    paper = {**paper, "logs": {"sdsc": {"processors": 32}}}
    specs = jobs(60, 8)
    stretch = [
        run(
            PlacementCase("easy-reg", "sdsc", mix, 10, Assumptions(size="cores")), paper, specs
        ).stretch
        for mix in ("mem", "comp")
    ]
    free = replace(Assumptions(size="cores"), socket="none")
    assert stretch[0] > stretch[1] >= 1.0
    assert (
        run(PlacementCase("easy-reg", "sdsc", "mem", 10, free), paper, specs).stretch < stretch[0]
    )


def _write_log(folder: Path) -> None:
    lines = ["; MaxProcs: 128"]
    for spec in jobs(40, 16):
        fields = [
            spec.id,
            f"{spec.submit_s:.0f}",
            -1,
            f"{spec.run_s:.0f}",
            spec.preferred,
            *[-1] * 2,
        ]
        fields += [spec.preferred, f"{spec.limit_s:.0f}", *[-1] * 9]
        lines.append(" ".join(map(str, fields)))
    with gzip.open(folder / "SDSC-SP2-1998-4.2-cln.swf.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


def ours_of(row: dict[str, Any]) -> dict[str, float]:
    """Return the values of a row of the JSON."""
    return {column: each["ours"] for column, each in row["values"].items()}


@pytest.mark.promise("reproduce")
def test_tables_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_log(tmp_path)
    options = ["--data", str(tmp_path), "--logs", "sdsc", "--mixes", "mem", "--errors", "10,100"]
    options += ["--variants", "forecast,exact-pa"]
    out = tmp_path / "out.json"
    code = main(["reproduce", "guim", *options, "--jobs", "1", "--json", str(out)])
    printed = capsys.readouterr().out.splitlines()
    assert code == 0 and "statements of the paper" in printed[0]
    result = json.loads(out.read_text())
    assert not result["wrong"] and result["cpu_s"] > 0.0
    assert list(result["variants"]) == ["default", "forecast", "exact-pa"]
    for variant in result["variants"].values():
        rows = [ours_of(row) for row in variant["rows"]]
        assert [row["mode"] for row in variant["rows"]] == 2 * list(POLICIES)
        regular = [ours_of(row) for row in variant["rows"] if row["mode"] == "easy-reg"]
        assert regular[0]["bsld"] == regular[1]["bsld"] and regular[0]["saved_pct"] == 0.0
        assert all(row["bsld"] <= row["bsld_log"] for row in rows)
    exact = [
        ours_of(row) for row in result["variants"]["exact-pa"]["rows"] if row["mode"] == "easy-pa"
    ]
    assert exact[0]["energy"] == exact[1]["energy"]


def test_a_run_that_differs_from_the_record_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_log(tmp_path)
    monkeypatch.setattr(guim, "Grid", lambda: Grid(first=40))
    options = ["--logs", "sdsc", "--mixes", "mem", "--variants", "default", "--jobs", "1"]
    assert main(["reproduce", "guim", "--data", str(tmp_path), *options]) == 1
    assert "expected the recorded value" in capsys.readouterr().out


def test_variants_take_fewer_jobs_than_whole_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_log(tmp_path)
    monkeypatch.setattr(guim, "TRIED", 20)
    options = ["--logs", "sdsc", "--mixes", "mem", "--variants", "forecast", "--first", "0"]
    assert main(["reproduce", "guim", "--data", str(tmp_path), *options, "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\ndefault, all jobs ") == 2  # orderings, queues
    assert "until expected ends" in printed and "; 20 jobs of each log at most" in printed
    assert "; 40 jobs of each log at most" in printed


@pytest.fixture(scope="module")
def default_run() -> dict[str, Any]:
    """The JSON of all cases under the default variant."""
    files = [trace(each["file"]) for each in _paper()["logs"].values()]
    grid = Grid(variants=("default",))
    result, _, _ = guim.guim(files[0].parent, grid, os.cpu_count() or 1, None)
    return result


@pytest.mark.promise("reproduce")
def test_statements_of_the_paper(default_run: dict[str, Any]) -> None:
    ours = {row["key"]: row["ours"] for row in default_run["statements"] if row.get("key")}
    assert_statements("guim", ours)
    assert default_run["wrong"] == []


@pytest.mark.promise("reproduce")
def test_slowdowns_by_both_definitions(paper: dict[str, Any]) -> None:
    """Three jobs on six and ten plain processors and 32 GPU cores, worked out by hand."""
    few = {**paper, "logs": {"sdsc": {"processors": 16}}}
    few["demands_gb_s"] = [gb_s / 1e6 for gb_s in paper["demands_gb_s"]]  # no contention
    specs = [
        JobSpec(JobId(name), submit_s, size, size, size, Mode.FIXED, limit_s=1e4, run_s=run_s)
        for name, submit_s, size, run_s in (
            ("1", 0.0, 48, 100.0),  # 0 to 300 s, as GPU cores are three times slower
            ("2", 50.0, 48, 5.0),  # 300 to 315 s
            ("3", 250.0, 1, 20.0),  # 315 to 335 s, on a plain processor
        )
    ]
    case = PlacementCase("easy-reg", "sdsc", "mem", 0)
    result = run(case, few, specs)
    taken, logged = (1.0, 265.0 / 15.0, 85.0 / 20.0), (3.0, 265.0 / 10.0, 85.0 / 20.0)
    assert result.bsld == pytest.approx(sum(taken) / 3)
    assert result.bsld_log == pytest.approx(sum(logged) / 3)
    assert (result.bsld_p95, result.bsld_log_p95) == pytest.approx((4.25, 4.25))
    assert (result.jobs, result.stretch) == (3, pytest.approx(335.0 / 125.0))
    assert result.wait_s == pytest.approx((0.0 + 250.0 + 65.0) / 3)
    shares = result.queued_pct, result.waiting_half_pct, result.waiting_end_pct
    assert shares == pytest.approx((80.0, 50.0, 200.0 / 3))
    one, two, three = (spec.bandwidth_gb_s or 0.0 for spec in with_bandwidth(specs, few, case))
    assert result.gpu_gb_s == pytest.approx((one + two) / 2)
    assert result.plain_gb_s == pytest.approx((16 * one + 16 * two + three) / 33)


def _made_up(policy: str, mix: str, error: int, *, holds: bool) -> Figures:
    """Return a result by which all orderings hold by bsld, or all but bsld's are violated."""
    scale = 1.5 if mix == "mem" else 1.0
    slow = {"easy-reg": 180.0, "easy-pa": 150.0, "lc-pa": {10: 100.0, 50: 140.0, 100: 200.0}[error]}
    p95 = {"easy-reg": 500.0, "easy-pa": 400.0, "lc-pa": 300.0 + error}[policy]
    if holds:
        energy = {"easy-reg": 100.0, "easy-pa": 66.0, "lc-pa": 42.0 + 0.16 * error}
        gpu_gb_s = {"easy-reg": 10.0, "easy-pa": 12.0, "lc-pa": 5.0}
    else:
        energy = {"easy-reg": 100.0, "easy-pa": 50.0 - error / 50.0, "lc-pa": 61.0 - error / 200.0}
        gpu_gb_s = {"easy-reg": 10.0, "easy-pa": 12.0, "lc-pa": 20.0}
    bsld = scale * slow[policy]
    by_error = error / 5.0 if policy == "easy-pa" else 0.0
    return Figures(
        bsld=bsld,
        bsld_p95=p95,
        bsld_log=1000.0 - bsld - by_error,
        bsld_log_p95=1000.0 - p95,
        energy=energy[policy],
        wait_s=gpu_gb_s[policy],
        stretch=1.0,
        jobs=1,
        queued_pct=0.0,
        waiting_half_pct=0.0,
        waiting_end_pct=0.0,
        gpu_gb_s=gpu_gb_s[policy],
        plain_gb_s=10.0,
        wall_s=0.0,
        cpu_s=0.0,
    )


@pytest.mark.parametrize("holds", [True, False])
def test_orderings_are_counted(holds: bool) -> None:
    """All hold by one slowdown, none by the other; and all or none of those of energy."""
    grid = Grid()
    cases = {
        case: _made_up(case.policy, case.mix, case.error_pct or 10, holds=holds)
        for case in guim._cases(grid, grid.errors, Assumptions())
    }
    view = VariantView(cases, Assumptions(), grid.logs, grid.mixes, grid.errors)
    counted = [12, 1, 6, 1, 12, 12, 12, 18, 36, 36, 36, 12, 6, 4, 12, 12, 12]
    rows = orderings(view)
    assert [row["of"] for row in rows] == counted
    for row, of in zip(rows, counted, strict=True):
        if "bsld" in row:
            assert (row["bsld"], row["bsld_log"]) == (of, 0), row
        else:
            assert row["holds"] == (of if holds else 0), row
    alone = orderings(replace(view, errors=(10,)))
    assert [row["of"] for row in alone if row["says"].startswith("the error")] == 5 * [0]


def test_variants_are_different_and_named() -> None:
    assert next(iter(VARIANTS.values()))[0] == Assumptions()
    assert len({variant for variant, _ in VARIANTS.values()}) == len(VARIANTS)


def test_what_is_kept_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_log(tmp_path)
    kept = tmp_path / "kept"
    options = ["--data", str(tmp_path), "--logs", "sdsc", "--mixes", "mem", "--errors", "10"]
    options += ["--variants", "default"]
    command = ["reproduce", "guim", *options, "--jobs", "1", "--keep", str(kept)]
    assert main(command) == 0
    printed, lines = capsys.readouterr().out, kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:-1]) + lines[-1][:-2])  # a crash in the middle of a line
    again = []
    monkeypatch.setattr(guim, "run", lambda *case: again.append(case[0]) or run(*case))
    assert main(command) == 0
    without_times = [text.partition("simulations took")[0] for text in printed.splitlines()]
    assert len(again) == 1 and len(kept.read_bytes().splitlines()) == len(lines)
    assert without_times == [
        text.partition("simulations took")[0] for text in capsys.readouterr().out.splitlines()
    ]
    kept.write_text("{}\n")
    assert main(command) == 2 and "expected simulations of guim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["guim", "--logs", "kth"], "expected --logs of ctc, sdsc, blue, got 'kth'"),
        (["guim", "--errors", "x"], "expected --errors from 0 to 100 (per cent), got 'x'"),
        (["guim", "--variants", "x"], "expected --variants of default, fastest-first"),
        (
            ["guim", "--seeds", "S0"],
            "expected --seeds with posner or schaefer only, got it with guim",
        ),
        (["chiesi", "--jobs", "2"], "expected --jobs with posner or schaefer or guim only"),
        (["guim"], "expected SDSC-SP2-1998-4.2-cln.swf.gz in"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    more = [] if "--logs" in options else ["--logs", "sdsc"] if options[0] == "guim" else []
    code = main(["reproduce", *options, *more, "--data", str(tmp_path)])
    assert code == 2 and says in capsys.readouterr().err
