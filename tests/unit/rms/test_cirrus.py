"""EPCC's study of Cirrus: its schedules, and ours beside what happened."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from external import external
from stated import assert_statements

from rms.cli.main import main
from rms.core.model.jobs import Mode
from rms.formats.config import FileError
from rms.studies.cirrus import (
    CORES,
    REAL,
    CirrusJob,
    CirrusLog,
    MoldableStart,
    RealTimes,
    against_the_log,
    cirrus,
    computed,
    figures_of,
    mean_wait,
    published,
    read_log,
    real_schedule,
    simulated,
    specs,
)

FILES = {
    "cirrus_2024q1": "id,submit,nodes,run,start_rigid\n0,0,10000,5,0\n1,1,8000,2,5\n",
    "cirrus_2024q1_moldable": "id,nodes_max,start\n0,20000,0\n1,16000,3.77387\n",
    "cirrus_2024q1_real": "id,submit,start,end,nodes\n0,0,2,7,10000\n1,1,8,10,8000\n",
}


def data(folder: Path, **changed: str) -> Path:
    for name, text in (FILES | changed).items():
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    return folder


@pytest.fixture(scope="module")
def log() -> CirrusLog:
    return read_log(external("cirrus_2024q1.csv.gz"))


@pytest.mark.promise("reproduce-cirrus")
def test_all_rigid_starts_and_the_moldable_mean_wait(log: CirrusLog) -> None:
    rows, _ = published(log)
    assert_statements("cirrus", computed(log, rows), whole=False)
    assert len(log.jobs) == 11_635
    rigid, moldable = rows[0]["values"], rows[1]["values"]
    assert rigid["starts_as_published"]["ours"] == 11_635
    assert "10811 with 13248 cores" in rigid["starts_as_published"]["note"]
    assert moldable["mean_wait_100s"]["ours"] == pytest.approx(135.47, abs=0.01)
    assert moldable["mean_wait_100s"]["paper"] == pytest.approx(135.29, abs=0.01)
    assert [row["values"]["mean_wait_100s"]["ours"] for row in rows[2:]] == [
        pytest.approx(147.10, abs=0.01),
        pytest.approx(150.78, abs=0.01),
    ]
    drawn = rows[1]["drawn_mean_wait_100s"]
    assert drawn[0] < moldable["mean_wait_100s"]["paper"] < drawn[-1]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_part_of_the_log_under_every_mode(log: CirrusLog, mode: Mode) -> None:
    part = CirrusLog(log.jobs[:400], log.moldable[:400], log.real[:400])
    found = simulated(specs(part, mode), "easy-share", "per-timestamp")
    work = sum(job.nodes * job.run for job in part.jobs)
    assert 0 < found.busy <= work * (1.2 if mode.resizable else 1.0)
    assert all(start >= job.submit for start, job in zip(found.starts, part.jobs, strict=True))
    assert bool(found.resizes) <= mode.resizable


@pytest.mark.promise("reproduce-cirrus")
def test_policies_beside_the_real_log(log: CirrusLog) -> None:
    schedules = {(REAL, Mode.FIXED): real_schedule(log)}
    for policy in ("fifo", "easy"):
        jobs = specs(log, Mode.FIXED)
        schedules[policy, Mode.FIXED] = simulated(jobs, policy, "per-timestamp")
    rows, _ = against_the_log(log, schedules)
    assert_statements("cirrus", computed(log, rows), whole=False)


@pytest.mark.wide
def test_backfilling_waits_less_than_fcfs_and_conservative_is_between(log: CirrusLog) -> None:
    jobs = specs(log, Mode.FIXED)
    fifo, easy, conservative = (
        mean_wait(log, simulated(jobs, policy, "per-timestamp"))
        for policy in ("fifo", "easy", "conservative")
    )
    assert easy < conservative < fifo
    assert conservative == pytest.approx(125.93, abs=0.01)


def test_what_happened_has_no_error_against_itself(log: CirrusLog) -> None:
    real = real_schedule(log)
    rows, _ = against_the_log(log, {(REAL, Mode.FIXED): real})
    assert rows[0]["values"]["start_error_s"]["ours"] == 0.0
    assert all(not value["deviation_pct"] for value in rows[0]["values"].values())
    assert figures_of(log, real)["mean_wait_s"] == pytest.approx(12_259.5, abs=0.1)


@pytest.mark.wide
@pytest.mark.promise("reproduce-cirrus")
def test_the_whole_experiment_with_its_figures(tmp_path: Path) -> None:
    data = external("cirrus_2024q1.csv.gz")
    result, lines, good = cirrus(data, tmp_path)
    assert_statements("cirrus", computed(read_log(data), result["rows"]))
    assert lines[0].startswith(f"{len(result['statements'])} statements of the paper: ")
    assert good and "Requested times are not in the data" in "\n".join(lines)
    names = {f"{kind}-{mode}.png" for kind in ("waits", "waits-by-day") for mode in Mode}
    names -= {"waits-malleable.png", "waits-by-day-malleable.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    by = {(row["case"], row["mode"]): row["values"] for row in result["rows"]}
    assert by["array-share", "fixed"]["mean_wait_s"] == by["fifo", "fixed"]["mean_wait_s"]
    assert by["easy-share", "flexible"]["resizes"]["ours"] > 0


def test_figures_of_two_jobs_by_hand(tmp_path: Path) -> None:
    log = read_log(data(tmp_path))
    assert log.jobs == [CirrusJob("0", 0.0, 10_000, 5.0, 0.0), CirrusJob("1", 1.0, 8_000, 2.0, 5.0)]
    assert log.moldable[1] == MoldableStart("1", 3.77387) and log.real[0] == RealTimes(
        "0", 2.0, 7.0
    )
    found = simulated(specs(log, Mode.FIXED), "fifo", "per-event")
    assert (found.starts, found.ends, found.busy) == ([0.0, 5.0], [5.0, 7.0], 10_000.0)
    assert figures_of(log, found) == {
        "mean_wait_s": 200.0,
        "median_wait_s": 200.0,
        "p95_wait_s": 0.0,
        "mean_turnaround_s": 550.0,
        "mean_bounded_slowdown": 2.0,
        "utilization": pytest.approx(10_000 / CORES),
        "start_error_s": 250.0,
        "resizes": 0.0,
    }
    moldable = simulated(specs(log, Mode.MOLDABLE), "fifo", "ends-first")
    assert moldable.starts[1] == pytest.approx(5.0 * 10_000 / CORES)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("cirrus_2024q1", "id,submit,nodes,run,start_rigid\n0,0,0,5,0\n", "line 2"),
        ("cirrus_2024q1", "id,submit,nodes,run\n0,0,1,5\n", "start_rigid"),
        ("cirrus_2024q1_real", "id,start,end\n0,2,7\n", "expected the 2 jobs of cirrus_2024q1"),
        ("cirrus_2024q1_moldable", "", "expected at least one row"),
    ],
)
def test_files_that_are_not_the_studys(tmp_path: Path, name: str, text: str, expected: str) -> None:
    with pytest.raises(FileError, match=expected):
        read_log(data(tmp_path, **{name: text}))


def test_the_command_says_which_data_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLEABLE_DATA", raising=False)
    assert main(["reproduce", "cirrus"]) == 2
    assert "expected --data DIR (or MALLEABLE_DATA)" in capsys.readouterr().err
    assert main(["reproduce", "cirrus", "--data", str(tmp_path / "none")]) == 2
    assert "expected a folder of data files" in capsys.readouterr().err
    monkeypatch.setenv("MALLEABLE_DATA", str(tmp_path))
    assert main(["reproduce", "cirrus"]) == 2
    error = capsys.readouterr().err
    assert "cirrus_2024q1.csv.gz" in error and "EPCCed/mira-cirrus-elastisim" in error
    assert error.count("\n") == 1


def test_a_schedule_that_is_not_the_published_one_is_said(tmp_path: Path) -> None:
    folder = data(tmp_path, cirrus_2024q1=FILES["cirrus_2024q1"].replace("2,5\n", "2,4\n"))
    _, lines, good = cirrus(folder, None)
    text = "rigid, starts as published: expected the recorded value 11635, got 1"
    assert not good and text in lines
