"""The jobs, schedulers and prices of Schäfer et al. 2026."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from stated import assert_statements

from rms.cli.main import main
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.core.policies import DEFAULT
from rms.formats.config import FileError
from rms.studies.schaefer import (
    CLUSTERS,
    CORRECTED,
    DATA,
    EASY,
    HOUR_S,
    SEEDS,
    SHORTEST,
    THEIR_EASY,
    THEIRS,
    THEIRS_LOGS,
    Bill,
    Meter,
    Outcome,
    ShutdownCase,
    baseline,
    cases,
    drawn,
    efficiency,
    profile,
    read_weeks,
    rows_of,
    run,
    whole,
    windows,
)

NODES = 4392
HEAD = (
    "cluster,malleable_percent,policy,seeds,cost_saved_percent,turnaround_change_percent,"
    "energy_saved_percent,co2_saved_percent"
)


def job(name: int, size: int, run_s: float, submit_s: float = 0.0) -> JobSpec:
    return JobSpec(
        JobId(str(name)), submit_s, size, size, size, Mode.FIXED, run_s=run_s, limit_s=1.1 * run_s
    )


@pytest.mark.parametrize("size", [1, 2, 8, 64, 128, 256, 1024, 4360])
def test_a_profile_has_the_stated_efficiencies(size: int) -> None:
    parallel, least, most = profile(size, NODES)
    parts = DATA["jobs"]["parallel"]
    assert parallel in parts and least == max(1, int(0.2 * size)) and size <= most <= NODES
    if size > 1 and efficiency(max(parts), size) > 0.8:
        smaller = [part for part in parts if part < parallel]
        assert efficiency(parallel, size) > 0.8
        assert not smaller or efficiency(max(smaller), size) <= 0.8
    if most > size:
        assert efficiency(parallel, most) > 0.5
    if most < NODES:
        assert efficiency(parallel, most + 1) <= 0.5


def test_a_larger_share_of_malleable_jobs_contains_a_smaller_one() -> None:
    specs = [job(number, 128, 3600.0) for number in range(400)]
    sets = []
    for share in (0, 25, 50, 75, 100):
        jobs = drawn(specs, share, "S3")
        sets.append({spec.id for spec in jobs if spec.mode is Mode.FLEXIBLE})
        assert abs(len(sets[-1]) - 4 * share) <= 40
    assert all(small < large for small, large in pairwise(sets))
    assert sets[2] != {spec.id for spec in drawn(specs, 50, "S0") if spec.speedup is not None}
    (one,) = drawn(specs[:1], 100, "S0")
    assert one.time_s(128) == pytest.approx(3600.0) and one.expected_s(128) == pytest.approx(3960.0)


def starts(name: str, specs: Sequence[JobSpec], share: int = 0) -> Outcome:
    return run(ShutdownCase("test", "F0", name, share), specs)


# One job holds all nodes but 100 until 1000 s; the next needs all nodes for 1000 s; the others fit.
BLOCKED = [job(1, NODES - 100, 1000.0), job(2, NODES, 1000.0, 1.0)]


def test_their_schedulers_compare_the_present_time_with_a_run_time() -> None:
    """A long job overtakes the first only once the simulation has run for as long as that."""
    early, late = job(3, 100, 5000.0, 10.0), job(3, 100, 5000.0, 1200.0)
    # before 1100 s the job behind the first waits for it, though nothing is compared with its end
    assert starts(THEIR_EASY, [*BLOCKED, early]).longest_wait_s == pytest.approx(1990.0)
    # after 1100 s it overtakes: the first waits for its end
    blocked = [job(1, NODES - 100, 3000.0), BLOCKED[1]]
    assert starts(THEIR_EASY, [*blocked, late]).longest_wait_s == pytest.approx(6199.0)
    assert starts(THEIRS, [*blocked, late]).longest_wait_s == pytest.approx(6199.0)
    for reserving in (EASY, CORRECTED, DEFAULT):
        assert starts(reserving, [*blocked, late]).longest_wait_s == pytest.approx(2999.0)


def test_their_malleable_scheduler_skips_the_job_behind_a_start() -> None:
    specs = [job(number, 10, 600.0, 2005.0) for number in range(3)]
    first = job(9, NODES, 2004.0, 1.0)
    # all fit at the end of the first; the second waits for a pass, every minute from 1 s on
    theirs = starts(THEIRS, [first, *specs])
    assert theirs.longest_wait_s == pytest.approx(36.0)
    assert theirs.wait_s == pytest.approx(36.0 / 4)
    for other in (THEIR_EASY, CORRECTED, EASY):
        assert starts(other, [first, *specs]).longest_wait_s == pytest.approx(0.0)


def test_running_jobs_make_room_for_one_that_waits_and_grow_again() -> None:
    specs = [job(1, 4000, 7200.0), job(2, 4000, 7200.0, 600.0)]
    for name in (THEIRS, CORRECTED, DEFAULT):
        outcome = starts(name, specs, 100)
        assert outcome.longest_wait_s <= 60.0 and outcome.resizes >= 2
    assert starts(EASY, specs).longest_wait_s == pytest.approx(6600.0)


def test_the_sun_gives_its_power_from_6_to_22() -> None:
    meter = Meter([0.0], [500e3], [0])
    night = meter.bill(0.0, HOUR_S)
    assert night.kwh == pytest.approx(500.0)
    assert night.usd == pytest.approx(0.4 * 0.06 + 499.6 * 0.15)
    assert meter.bill(12 * HOUR_S, 13 * HOUR_S).usd == pytest.approx(400 * 0.06 + 100 * 0.15)
    edges = meter.bill(21.5 * HOUR_S, 22.5 * HOUR_S).usd
    assert edges == pytest.approx(200 * 0.06 + 50 * 0.15 + 0.2 * 0.06 + 249.8 * 0.15)
    day = meter.bill(0.0, 24 * HOUR_S)
    assert day.usd == pytest.approx(6400 * 0.06 + 3.2 * 0.06 + (12000 - 6403.2) * 0.15)
    dark = Meter([0.0], [100.0], [0])  # the sun gives more than it takes
    assert dark.bill(12 * HOUR_S, 13 * HOUR_S).usd == pytest.approx(0.1 * 0.06)


def test_nodes_that_are_on_in_a_window_are_counted() -> None:
    part = windows("F10")
    assert part is not None and windows("F0") is None
    meter = Meter([0.0, 22 * HOUR_S + 60, 29 * HOUR_S], [1.0, 1.0, 1.0], [439, 438, 439])
    first, second = meter.overruns(part, 31 * HOUR_S)
    assert first == 0.0  # until 6:00 of the first day
    assert second == pytest.approx(7.0 - 60 / HOUR_S + 60 / HOUR_S * 0, abs=1e-9)


def test_the_rest_of_the_time_costs_idle_power() -> None:
    outcome = starts(EASY, [job(1, 10, HOUR_S)])
    bill = whole("F0", outcome, 3 * HOUR_S)
    assert bill.kwh == pytest.approx(outcome.whole.kwh + 2 * NODES * 0.168)
    night = whole("F30", outcome, 3 * HOUR_S)
    off = int(0.3 * NODES)
    assert night.kwh == pytest.approx(outcome.whole.kwh + 2 * ((NODES - off) * 0.168 + off * 0.005))


@pytest.mark.parametrize("name", [EASY, THEIR_EASY, THEIRS, CORRECTED, DEFAULT, SHORTEST])
@pytest.mark.parametrize("shutdown", ["F0", "F30"])
def test_a_simulation_has_the_same_bits_again(name: str, shutdown: str) -> None:
    specs = [job(n, 100 + 300 * (n % 9), 1000.0 + 900 * (n % 7), 700.0 * n) for n in range(60)]
    case = ShutdownCase("test", shutdown, name, 0 if "easy" in name else 50)
    first, second = run(case, specs), run(case, specs)
    assert first == second
    assert first.missed == 0 and first.windows == (0 if shutdown == "F0" else 1)


def written(folder: Path) -> Path:
    (folder / "schaefer_2026").mkdir()
    row = "theta,100,F0,3,-1.0,-45.5,-1.2,-0.9"
    (folder / "schaefer_2026" / "published.csv").write_text(f"{HEAD}\n{row}\n")
    begin = 1641945600  # 2022-01-12, 0:00 UTC
    jobs = [f"{n} {begin + 300 * n} 0 3600 128 -1 -1 128 7200" + " -1" * 9 for n in range(1, 200)]
    (folder / "Theta-2022.swf.gz").write_bytes(gzip.compress("\n".join(jobs).encode()))
    return folder


def test_the_command_prints_the_published_rows_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path)
    plan = ["--weeks", "winter", "--shutdowns", "F0", "--seeds", "S0", "--jobs", "1"]
    assert main(["reproduce", "schaefer", "--data", str(data), *plan, "--json", "-"]) == 0
    result: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    rows = {(row["mode"], row["share"]): row["values"] for row in result["rows"]}
    assert len(rows) == 2 + 4 * 5
    assert rows[THEIRS, 100]["turnaround_pct"]["paper"] == -45.5
    assert rows[THEIRS, 100]["cost_a_day_pct"]["paper"] == 1.0
    assert rows[THEIRS, 0]["turnaround_pct"]["paper"] is None
    assert rows[DEFAULT, 0] == rows[EASY, 0]
    kept = tmp_path / "kept"
    again = [
        "reproduce",
        "schaefer",
        "--data",
        str(data),
        *plan,
        "--keep",
        str(kept),
        "--json",
        "-",
    ]
    for _ in range(2):  # the second time all are read
        assert main(again) == 0
        assert json.loads(capsys.readouterr().out) == result
        assert len(kept.read_text().splitlines()) == 22
    values = {"theta nodes": float(NODES), "seeds": float(len(SEEDS))}
    assert_statements("schaefer", values)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weeks", "monsoon"], "expected --weeks of winter, spring, summer, autumn, year, paper"),
        (["--shutdowns", "F50"], "expected --shutdowns of F0, F10, F30, got 'F50'"),
        (["--seeds", "S1"], "expected --seeds of S0, S3, S7, got 'S1'"),
    ],
)
def test_other_choices_are_refused(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "schaefer", "--data", str(written(tmp_path)), *options]) == 2
    assert said in capsys.readouterr().err


def test_missing_data_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "schaefer", "--data", str(tmp_path)]) == 2
    assert "published.csv, which does not exist" in capsys.readouterr().err
    (written(tmp_path) / "Theta-2022.swf.gz").unlink()
    assert main(["reproduce", "schaefer", "--data", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "expected Theta-2022.swf.gz in" in err


THEIR_LOG = """\
JOB_NAME,COBALT_JOBID,QUEUED_TIMESTAMP,NODES_USED,RUNTIME_SECONDS,WALLTIME_SECONDS
a,7,2023-01-11 23:59:59,128.0,3600.0,7200.0
b,8,2023-01-12 00:10:00,128.0,3600.7,7200.0
c,8,2023-01-13 00:00:00,256.0,60.0,7200.0
d,9,2023-01-12 12:00:00,4392.0,86400.0,90000.0
e,10,2023-01-26 00:00:00,1.0,1.0,1.0
"""


def theirs(folder: Path, weeks: str) -> Path:
    """Return the path of a log of theirs, in a folder that exists."""
    path: Path = folder / "schaefer_2026" / THEIRS_LOGS[weeks]["log"]
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def trusted(monkeypatch: pytest.MonkeyPatch, weeks: str, path: Path, text: str) -> None:
    path.write_text(text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(THEIRS_LOGS[weeks], "sha256", digest)


def test_the_log_of_the_paper_is_read_where_the_user_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted(monkeypatch, "paper", theirs(tmp_path, "paper"), THEIR_LOG)
    jobs = read_weeks(tmp_path, ["paper"])["paper"]
    assert [(spec.id, spec.submit_s, spec.preferred, spec.run_s) for spec in jobs] == [
        ("8", 600.0, 128, 3600.0),
        ("9", 43200.0, 4392, 86400.0),
        ("8.2", 86400.0, 256, 60.0),
    ]
    assert jobs[0].limit_s == pytest.approx(3960.0)
    for seed in SEEDS:  # records of one number have one draw
        first, _, again = drawn(jobs, 50, seed)
        assert first.mode is again.mode


CORI = """\
\ufeffJob,User,Submit,Nodes Allocated,Elapsed Secs
1,a,2022-11-07 00:00:10,512,7200
2,b,2022-11-11 23:00:00,2388,600
"""


def test_the_logs_of_cori_have_their_own_nodes_and_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for weeks, nodes in (("cori-haswell", 2388), ("cori-knl", 9688)):
        path = theirs(tmp_path, weeks)
        trusted(monkeypatch, weeks, path, CORI)
        assert path.parent.name == weeks.replace("-", "_")
        jobs = read_weeks(tmp_path, [weeks])[weeks]
        assert [(spec.id, spec.preferred, spec.run_s) for spec in jobs] == [
            ("1", 512, 7200.0),
            ("2", 2388, 600.0),
        ]
        assert CLUSTERS[path.parent.name].nodes == nodes
    assert profile(64, NODES)[2] > profile(64, 70)[2] == 70
    haswell = CLUSTERS["cori_haswell"]
    assert (haswell.idle_w, haswell.busy_w, haswell.boot_w) == (190.0, 362.0, 201.0)
    own = [job(1, 2388, 3600.0)]
    outcome = run(ShutdownCase("cori-haswell", "F0", EASY), own)
    assert outcome.whole.kwh == pytest.approx(2388 * 0.362)
    assert outcome.whole.usd == pytest.approx(2388 * 0.362 * 0.18 - 0.25 * 0.12)  # 0.25 kW of sun
    row = "cori_haswell,100,F0,3,-9.6,-62.5,-8.3,-10.0"
    (tmp_path / "schaefer_2026" / "published.csv").write_text(f"{HEAD}\n{row}\n")
    command = ["reproduce", "schaefer", "--data", str(tmp_path), "--weeks", "cori-haswell"]
    command += ["--shutdowns", "F0", "--seeds", "S0", "--jobs", "1", "--json", "-"]
    assert main(command) == 0
    rows = {
        (r["mode"], r["share"]): r["values"] for r in json.loads(capsys.readouterr().out)["rows"]
    }
    assert rows[THEIRS, 100]["turnaround_pct"]["paper"] == -62.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CORI.replace("Submit", "Sent"), "expected a column of QUEUED_TIMESTAMP, Submit, submit"),
        (CORI.replace("2388,", "all,"), "line 3: expected a time and numbers"),
        (CORI.replace("2022-11-07 00", "yesterday 00"), "line 2: expected a time and numbers"),
    ],
)
def test_a_log_that_cannot_be_read_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    path = theirs(tmp_path, "cori-knl")
    trusted(monkeypatch, "cori-knl", path, text)
    with pytest.raises(FileError, match=words) as error:
        read_weeks(tmp_path, ["cori-knl"])
    assert str(path) in str(error.value)


def test_another_log_of_the_paper_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = theirs(written(tmp_path), "paper")
    command = ["reproduce", "schaefer", "--data", str(tmp_path), "--weeks", "paper"]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"expected {path}, which does not exist" in err
    path.write_text(THEIR_LOG)
    assert main(command) == 2
    err, digest = capsys.readouterr().err, hashlib.sha256(THEIR_LOG.encode()).hexdigest()
    assert err.count("\n") == 1
    assert f"expected {path} with the sha256 {THEIRS_LOGS['paper']['sha256']}, got {digest}" in err


def test_cases_are_compared_with_easy() -> None:
    todo = cases(["winter"], ["F30"], (0, 50), SEEDS)
    assert baseline("winter") == todo[0] and len(set(todo)) == len(todo) == 1 + 2 + 4 * (1 + 3)
    outcome = Outcome(
        10.0, 1.0, 2.0, 9.0, 5.0, 0, 0, 0, 0, 0.0, 60.0, Bill(1.0, 1.0), Bill(1.0, 1.0)
    )
    rows = rows_of(dict.fromkeys(todo, outcome), {})
    assert {row["values"]["turnaround_pct"]["ours"] for row in rows} == {0.0}
