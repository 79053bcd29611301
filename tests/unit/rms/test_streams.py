"""The study of streams: its simulations, comparisons, tables and options, on made-up streams."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from math import nan
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import job_spec

from rms.core.model.jobs import JobSpec
from rms.formats.config import FileError
from rms.studies.malleability import MalleableChange, malleable
from rms.studies.streams import (
    LOGS,
    Stream,
    StreamCase,
    StreamPlan,
    StreamRun,
    cases,
    command,
    later_than,
    options,
    over_seeds,
    paired,
    pays,
    read_stream,
    rises,
    run,
    streams,
)
from rms.wire.terminal import run_command

ROOT = Path(__file__).parents[3]


def job(name: int, submit_s: float, nodes: int, run_s: float) -> JobSpec:
    return job_spec(name, nodes, at_s=submit_s, run_s=run_s, limit_s=2 * run_s)


def made_up(count: int = 40, nodes: int = 16) -> Stream:
    draw = Random(7)
    specs = [
        job(n, 90.0 * n, draw.choice([1, 2, 4, 8]), float(draw.randint(100, 3000)))
        for n in range(count)
    ]
    return Stream("made-up", nodes, specs, 5, 100)


PLAN = StreamPlan(("backfill-share", "easy-share"), (0.0, 0.5, 0.75, 1.0), (0.01, 0.5), (1, 2))


# --- simulations ---------------------------------------------------------------------------------


def test_no_simulation_is_needed_twice() -> None:
    todo = cases("x", PLAN)
    assert todo[0] == StreamCase("x", "easy", 0.0, 0.01, 1)
    own = [case for case in todo if case.policy == "easy-share"]
    by_share = {share: [case for case in own if case.share == share] for share in PLAN.shares}
    assert {share: len(each) for share, each in by_share.items()} == {
        0.0: 1,
        0.5: 8,
        0.75: 4,
        1.0: 2,
    }
    assert sum(case.mirrored for case in own) == 4
    assert len(set(todo)) == len(todo) == 2 * 15 + 1


@given(
    share=st.floats(0.0, 0.5),
    seed=st.integers(0, 100),
    count=st.integers(0, 60),
)
def test_mirrored_draws_have_no_common_job_up_to_a_half(
    share: float, seed: int, count: int
) -> None:
    specs = [job(n, 0.0, 2, 100.0) for n in range(count)]
    change = MalleableChange(seed=seed)
    one, other = (
        {each.id for each in malleable(specs, share, 8, change, mirrored=way) if each.speedup}
        for way in (False, True)
    )
    assert one.isdisjoint(other)
    larger = {
        each.id for each in malleable(specs, share + 0.25, 8, change, mirrored=True) if each.speedup
    }
    assert other <= larger


def test_a_run_has_its_figures_classes_and_bound() -> None:
    stream = made_up()
    found = run(StreamCase("made-up", "backfill-share", 0.5, 0.01, 1), stream)
    row = found.row
    assert (row["policy"], row["share"], row["serial"], row["seed"]) == (
        "backfill-share",
        0.5,
        0.01,
        1,
    )
    turnarounds = [
        end_s - spec.submit_s for end_s, spec in zip(found.ends_s, stream.specs, strict=True)
    ]
    waits = [s - spec.submit_s for s, spec in zip(found.starts_s, stream.specs, strict=True)]
    assert row["mean_turnaround_s"] == pytest.approx(sum(turnarounds) / 40)
    assert row["max_turnaround_s"] == max(turnarounds) and row["max_wait_s"] == max(waits)
    assert row["p95_turnaround_s"] == sorted(turnarounds)[37]
    assert 0.0 < row["bound_s"] <= row["mean_turnaround_s"]
    assert row["resizes"] > 0 and row["decisions_per_s"] > 0
    classes = {each["class"]: each for rows in row["classes"].values() for each in rows}
    assert list(classes) == ["rigid", "malleable", "small", "wide", "short", "long"]
    assert classes["malleable"]["jobs"] == sum(found.resizable) == row["malleable_jobs"]
    for kind in row["classes"].values():
        assert sum(each["jobs"] for each in kind) == 40
    sizes = sorted(spec.preferred for spec in stream.specs)
    assert classes["small"]["jobs"] == sum(size <= sizes[19] for size in sizes)


def test_rigid_jobs_hold_what_they_take() -> None:
    stream = made_up()
    row = run(StreamCase("made-up", "easy", 0.0, 0.01, 1), stream).row
    node_s = sum(spec.preferred * (spec.run_s or 0.0) for spec in stream.specs)
    assert row["node_s"] == pytest.approx(node_s)
    assert row["node_s_of_rigid"] == pytest.approx(1.0) and row["resizes"] == 0


# --- comparisons ---------------------------------------------------------------------------------

SPECS = [job(n, 10.0 * n, 1, 5.0) for n in range(4)]


def by_hand(
    starts_s: Sequence[float], ends_s: Sequence[float], resizable: str = "...."
) -> StreamRun:
    return StreamRun({}, starts_s, ends_s, [each == "m" for each in resizable])


def test_starts_later_than_another_schedules() -> None:
    base = by_hand([0.0, 10.0, 20.0, nan], [5.0, 15.0, 25.0, nan])
    own = by_hand([0.0, 9.0, 420.0, 30.0], [5.0, 15.0, 425.0, 35.0])
    assert later_than(own, base, SPECS, 310.0) == {
        "worst_excess_s": 400.0,
        "worst_job": "2",
        "later": pytest.approx(1 / 3),
    }
    assert later_than(own, base, SPECS, 400.0)["later"] == 0.0
    assert later_than(base, base, SPECS, 0.0)["worst_excess_s"] == 0.0
    never = by_hand([nan] * 4, [nan] * 4)
    assert later_than(never, base, SPECS, 0.0) == {
        "worst_excess_s": 0.0,
        "worst_job": None,
        "later": 0.0,
    }


def test_jobs_that_are_malleable_in_one_of_two_runs_are_paired() -> None:
    one = by_hand([0.0] * 4, [8.0, 20.0, 30.0, 40.0], "mm..")
    other = by_hand([0.0] * 4, [9.0, 22.0, 33.0, 44.0], "m.m.")
    # Job 0 is malleable in both, job 3 in neither.
    assert paired(one, other, SPECS) == [(10.0, 12.0), (13.0, 10.0)]
    assert paired(other, one, SPECS) == paired(one, other, SPECS)
    cut = by_hand([0.0] * 4, [9.0, nan, 33.0, 44.0], "m.m.")
    assert paired(one, cut, SPECS) == [(13.0, 10.0)]


def test_up_to_a_half_the_mirrored_run_is_the_other_one() -> None:
    case = StreamCase("x", "easy", 0.5, 0.1, 1)
    runs = {
        case: by_hand([0.0] * 4, [8.0, 20.0, 30.0, 40.0], "mm.."),
        case._replace(mirrored=True): by_hand([0.0] * 4, [16.0, 20.0, 30.0, 40.0], "..mm"),
    }
    assert pays(case, runs, SPECS, (1,)) == {
        "pairs": 4,
        "malleable_turnaround_s": pytest.approx((8.0 + 10.0 + 10.0 + 10.0) / 4),
        "rigid_turnaround_s": pytest.approx((16.0 + 10.0 + 10.0 + 10.0) / 4),
        "ratio": pytest.approx(38.0 / 46.0),
        "sooner": 0.25,
        "disjoint": True,
    }


def test_above_a_half_the_next_draw_is_the_other_one() -> None:
    case = StreamCase("x", "easy", 0.75, 0.1, 1)
    runs = {
        case._replace(seed=seed): by_hand([0.0] * 4, [10.0 * n + seed for n in range(4)], taken)
        for seed, taken in ((1, "mmm."), (2, "mm.m"), (3, "m.mm"))
    }
    # Of 1 and 2 the jobs 2 and 3, of 2 and 3 jobs 1 and 2, of 3 and 1 jobs 1 and 3.
    found = pays(case, runs, SPECS, (1, 2, 3))
    assert found is not None and found["pairs"] == 6 and not found["disjoint"]
    assert found["malleable_turnaround_s"] == pytest.approx((1 + 2 + 2 + 3 + 3 + 1) / 6)
    assert found["rigid_turnaround_s"] == pytest.approx((2 + 1 + 3 + 2 + 1 + 3) / 6)
    two = pays(case, runs, SPECS, (1, 2))
    assert two is not None and two["pairs"] == 2
    assert pays(case, runs, SPECS, (1,)) is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_with_none_or_all_malleable_nothing_is_paired(share: float) -> None:
    assert pays(StreamCase("x", "easy", share, 0.1, 1), {}, SPECS, (1, 2)) is None


def test_draws_are_averaged_and_the_worst_is_kept() -> None:
    def row(seed: int, mean_s: float, worst_s: float) -> dict[str, object]:
        return {
            "seed": seed,
            "policy": "easy",
            "serial": 0.1,
            "mean_turnaround_s": mean_s,
            "max_wait_s": worst_s,
            "energy_j": {"busy": mean_s},
            "worst_excess_s": -worst_s,
            "worst_job": str(seed),
            "classes": {"mode": [{"class": "rigid", "jobs": seed, "mean_turnaround_s": mean_s}]},
        }

    assert over_seeds([row(1, 10.0, 5.0), row(2, 20.0, 9.0), row(3, 15.0, 7.0)]) == {
        "policy": "easy",
        "serial": 0.1,
        "mean_turnaround_s": 15.0,
        "max_wait_s": 9.0,
        "energy_j": {"busy": 15.0},
        "worst_excess_s": -5.0,
        "worst_job": "1",
        "classes": {
            "rigid": {
                "class": "rigid",
                "jobs": 2.0,
                "mean_turnaround_s": 15.0,
                "range_turnaround_s": [10.0, 20.0],
            }
        },
        "range_turnaround_s": [10.0, 20.0],
    }


def test_where_the_mean_rises_with_the_share() -> None:
    def row(share: float, serial: float, mean_s: float) -> dict[str, object]:
        return {"policy": "easy", "share": share, "serial": serial, "mean_turnaround_s": mean_s}

    rows = [row(0.0, 0.1, 10.0), row(1.0, 0.1, 12.0), row(0.5, 0.1, 9.0), row(1.0, 0.5, 11.0)]
    assert rises(rows, (0.1, 0.5)) == [
        {"policy": "easy", "serial": 0.1, "shares": [0.5, 1.0], "by_s": 3.0},
        {"policy": "easy", "serial": 0.5, "shares": [0.0, 1.0], "by_s": 1.0},
    ]


# --- the study -----------------------------------------------------------------------------------


def test_the_study_of_a_stream(tmp_path: Path) -> None:
    steps: list[str] = []
    result, lines = streams([made_up()], PLAN, 1, tmp_path, steps.append)
    found = result["streams"]["made-up"]
    assert json.loads(json.dumps(result))["streams"]["made-up"]["jobs"] == 40
    assert (found["first"], found["of"], found["held_out"]) == (5, 100, True)
    assert [row["share"] for row in found["rows"]] == [0.0, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0] * 2
    rigid = found["rows"][0]
    assert rigid["worst_excess_s"] == 0.0 == rigid["later"] and rigid["pays"] is None
    assert rigid["range_turnaround_s"] == [rigid["mean_turnaround_s"]] * 2
    some = found["rows"][1]
    low, high = some["range_turnaround_s"]
    assert low <= some["mean_turnaround_s"] <= high
    assert some["pays"]["disjoint"] and not found["rows"][3]["pays"]["disjoint"]
    assert len(steps) == len(cases("made-up", PLAN))
    text = "\n".join(lines)
    assert "40 jobs from number 5 on of 100, 16 nodes; held out" in text
    assert "Parameters of backfill-share were set on KTH-SP2" in text
    assert max(map(len, lines[-12:])) <= 100
    assert (tmp_path / "streams-made-up.png").stat().st_size > 10_000


def test_workers_change_nothing() -> None:
    timed = {"wall_s", "jobs_per_s", "peak_rss_mib", "decisions_per_s"}

    def rows(workers: int) -> list[dict[str, object]]:
        result, _ = streams([made_up(12)], PLAN, workers, None, lambda _: None)
        every = result["streams"]["made-up"]["rows"]
        return [{name: row[name] for name in row if name not in timed} for row in every]

    assert rows(1) == rows(2)


# --- logs and options ----------------------------------------------------------------------------


def log(folder: Path, name: str, records: Sequence[tuple[int, float, float, int]]) -> None:
    """Write a log's file of jobs: number, submission, run time and size."""
    path = folder / ("traces" if name.endswith(".swf.gz") else "external") / name
    path.parent.mkdir(exist_ok=True)
    if name.endswith(".swf.gz"):
        lines = [
            f"{at} {submit_s} -1 {run_s} {n} -1 -1 {n} {2 * run_s} -1 1 1 1 1 1 -1 -1 -1"
            for at, submit_s, run_s, n in records
        ]
    else:
        lines = ["id,submit_s,run_s,nodes", *(",".join(map(str, each)) for each in records)]
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))


def test_both_halves_of_a_year_and_units_of_processors(tmp_path: Path) -> None:
    middle_s = LOGS["Theta-2022-h1"].end_s
    log(tmp_path, "Theta-2022.swf.gz", [(1, middle_s, 50.0, 8), (2, middle_s - 1.0, 60.0, 128)])
    log(tmp_path, LOGS["LANL-CM5"].file, [(1, 5.0, 50.0, 32), (2, 6.0, 60.0, 1024)])
    log(tmp_path, "alcf_intrepid.csv.gz", [(3, 5.0, 50.0, 512), (4, 1.0, 60.0, 40960)])
    folders = tmp_path / "traces", tmp_path / "external"
    first, second, lanl, intrepid = (
        read_stream(name, *folders, (0, 10))
        for name in ("Theta-2022-h1", "Theta-2022-h2", "LANL-CM5", "Intrepid")
    )
    assert [spec.id for spec in first.specs] == ["2"] and first.nodes == second.nodes == 4392
    assert [spec.id for spec in second.specs] == ["1"]
    assert [spec.preferred for spec in lanl.specs] == [1, 32] and lanl.nodes == 32
    assert [spec.id for spec in intrepid.specs] == ["4", "3"] and intrepid.nodes == 40960
    assert [spec.limit_s for spec in intrepid.specs] == [None, None]
    (late,) = read_stream("Intrepid", *folders, (1, 1)).specs
    assert late.id == "3"
    with pytest.raises(FileError, match="expected --jobs from 0 to 1 of Intrepid, got 2"):
        read_stream("Intrepid", *folders, (2, 1))


def bench(*arguments: str) -> int:
    """Call the command in this process; return its exit status."""
    try:
        return run_command(
            "streams", options(arguments, "Streams."), partial(command, beside=Path("/nowhere"))
        )
    except SystemExit as exit_:
        return int(str(exit_.code))


def test_the_command(tmp_path: Path) -> None:
    records = [(n, 100.0 * n, 500.0 + n, 1 + n % 64) for n in range(1, 30)]
    log(tmp_path, "KTH-SP2.recon-input.swf.gz", records)
    chosen = ["--logs", "KTH-SP2", "--jobs", "2:20", "--shares", "50,0", "--serials", "0.1"]
    chosen += ["--seeds", "3", "--policies", "easy-share", "--workers", "1"]
    target, script = tmp_path / "out.json", ROOT / "scripts" / "bench" / "streams"
    line = [sys.executable, str(script), *chosen, "--data", str(tmp_path), "--json", str(target)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "") and os.access(script, os.X_OK)
    assert "KTH-SP2: 20 jobs from number 2 on of 29, 100 nodes; parameters" in ended.stdout
    found = json.loads(target.read_text())["streams"]["KTH-SP2"]
    assert [row["share"] for row in found["rows"]] == [0.0, 0.5] and not found["held_out"]


def test_data_by_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, "KTH-SP2.recon-input.swf.gz", [(n, 0.0, 5.0, 60) for n in range(3)])
    monkeypatch.setenv("RMS_TRACES", str(tmp_path / "traces"))
    chosen = ["--logs", "KTH-SP2", "--jobs", "0:3", "--shares", "0", "--workers", "1"]
    assert bench(*chosen, "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)["streams"]["KTH-SP2"]["rows"]
    assert [row["mean_wait_s"] for row in rows] == [5.0] * 4


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["--logs", "KTH"], r"expected logs of KTH-SP2, .*, each once, got 'KTH'"),
        (["--logs", "KTH-SP2,KTH-SP2"], "each once, got 'KTH-SP2,KTH-SP2'"),
        (["--policies", "best"], "expected policies of .*, got 'best'"),
        (["--shares", "0,101"], "expected shares in per cent, each from 0 to 100 and once"),
        (["--serials", "x"], "expected serial parts of a run time, each from 0 to 1 and once"),
        (["--seeds", "1,-2"], "expected whole numbers, each once, got '1,-2'"),
        (["--jobs", "5"], "expected FIRST:COUNT"),
        (["--jobs", "5:0"], "expected FIRST:COUNT"),
        (["--workers", "0"], "expected a whole number of at least 1, got '0'"),
        (["--logs", "KTH-SP2", "--data", "/nowhere"], "which does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], chosen: list[str], expected: str
) -> None:
    assert bench(*chosen) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.search(expected, err) and err.count("\n") == 1


def test_a_folder_for_figures_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, "KTH-SP2.recon-input.swf.gz", [(1, 0.0, 5.0, 1)])
    file = tmp_path / "file"
    file.write_text("")
    chosen = ["--data", str(tmp_path), "--logs", "KTH-SP2", "--jobs", "0:1"]
    assert bench(*chosen, "--figures", str(file)) == 2
    assert "expected a folder for --figures" in capsys.readouterr().err
