"""What sacct prints, with every oddity of the format, as jobs to simulate."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.cli.main import main
from rms.formats.config import FileError
from rms.formats.joblog import COMMAND, JobLog, duration_s, read_log

NAMES = (
    "JobID|User|Account|Partition|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|"
    "AllocNodes|NNodes|AllocCPUS|State|JobName"
)
DAY = 1_700_000_000


def line(
    job: str,
    *,
    submit: float | str = 0,
    eligible: float | str | None = None,
    start: float | str = 10,
    run: float = 100,
    end: float | str | None = None,
    nodes: int | str = 2,
    limit: str = "60",
    state: str = "COMPLETED",
    cpus: int | None = None,
    user: str = "alice",
    name: str = "wrf",
) -> str:
    """Return a line as sacct prints it with NAMES; numbers are seconds since DAY."""

    def at(when: float | str) -> str:
        return when if isinstance(when, str) else str(int(DAY + when))

    over = start + run if isinstance(start, int | float) else "Unknown"
    fields = [
        job,
        user,
        "project",
        "main",
        at(submit),
        at(submit if eligible is None else eligible),
        at(start),
        at(over if end is None else end),
        str(int(run)),
        limit,
        str(nodes),
        str(nodes),
        str(8 * int(nodes) if cpus is None and str(nodes).isdecimal() else cpus or 0),
        state,
        name,
    ]
    return "|".join(fields)


def read(folder: Path, *lines: str, names: str = NAMES) -> JobLog:
    path = folder / "jobs.txt"
    path.write_text("\n".join([names, *lines, ""]))
    return read_log([path])


def shown(log: JobLog) -> list[tuple[str, float, float, float, int]]:
    return [(job.id, job.submit_s, job.start_s, job.run_s, job.size) for job in log.jobs]


# --- what is a job, and what is none ---------------------------------------------------------


def test_jobs_steps_arrays_and_those_that_never_ran(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        line("7"),
        line("7.batch", nodes=1),
        line("7.extern"),
        line("7.0"),
        "",
        line("8_1", submit=5),
        line("8_1.batch", submit=5),
        line("8_2", submit=5, state="TIMEOUT", run=3600),
        line("8_[3-5,9%2]", submit=5, start="Unknown", nodes=0, state="PENDING"),
        line("9", start="None", end="Unknown", nodes=0, state="CANCELLED by 1000"),
        line("10", start=30, end=30, run=0, nodes=2, state="CANCELLED by 0"),
        line("11", end="Unknown", state="RUNNING"),
        line("12", submit=6, state="CANCELLED by 1000", run=40),
        line("13", submit=7, state="OUT_OF_MEMORY"),
        line("14", submit=8, state="NODE_FAIL"),
        line("15", submit=9, state="PREEMPTED"),
    )
    assert [job.id for job in log.jobs] == ["7", "8_1", "8_2", "12", "13", "14", "15"]
    assert [job.state for job in log.jobs][2:4] == ["TIMEOUT", "CANCELLED"]
    assert log.counts == {
        "cancelled_before_start": 2,
        "steps": 4,
        "still_running": 1,
        "waiting": 4,
    }
    assert log.largest == 14 and log.begin_s == DAY


def test_parts_of_a_heterogeneous_job_are_one(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        line("20+0", nodes=1, state="NODE_FAIL"),
        line("20+1", nodes=3, start=11, run=90),
        line("21", submit=1),
        line("20+0", nodes=1, submit=200, start=300),
        line("20+1", nodes=3, submit=200, start=300),
    )
    assert shown(log) == [
        ("20", 0.0, 10.0, 100.0, 4),
        ("21", 1.0, 10.0, 100.0, 2),
        ("20#2", 200.0, 300.0, 100.0, 4),
    ]
    assert log.counts == {"heterogeneous": 2, "requeued": 1}


def test_each_attempt_of_a_requeued_job_is_a_job(tmp_path: Path) -> None:
    """With --duplicates; out of order in the file."""
    log = read(
        tmp_path,
        line("30", submit=300, start=400, run=50),
        line("30", submit=0, start=10, run=200, state="NODE_FAIL"),
    )
    assert shown(log) == [("30", 0.0, 10.0, 200.0, 2), ("30#2", 300.0, 400.0, 50.0, 2)]
    assert log.counts == {"requeued": 1}


def test_a_job_resized_by_slurm_has_its_mean_size(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        line("40", run=100, nodes=1, state="RESIZING"),
        line("40", submit=110, start=110, run=300, nodes=5),
    )
    assert shown(log) == [("40", 0.0, 10.0, 400.0, 4)]
    assert log.counts == {"resizes_in_the_log": 1}


def test_files_that_overlap_count_once(tmp_path: Path) -> None:
    """A job that waited, then ran, in the first file is over in the second, compressed one."""
    first, second = tmp_path / "january.txt", tmp_path / "february.txt.gz"
    still = [line("1"), line("2", end="Unknown", state="RUNNING")]
    waits = line("3", submit=50, start="Unknown", nodes=0, state="PENDING")
    first.write_text("\n".join([NAMES, *still, waits, ""]))
    over = [line("1"), line("2"), line("3", submit=50, start=500)]
    second.write_bytes(gzip.compress("\r\n".join([NAMES, *over, ""]).encode()))
    for files in ([first, second], [second, first]):
        log = read_log(files)
        assert [job.id for job in log.jobs] == ["1", "2", "3"]
        assert log.counts == {"repeated": 2, "waiting": 1}


# --- times, limits, sizes --------------------------------------------------------------------


def test_times_as_people_read_them(tmp_path: Path) -> None:
    names = "Start|Submit|NNodes|State|Elapsed|Timelimit|JobID"
    log = read(
        tmp_path,
        "2024-03-01T00:01:00|2024-03-01T00:00:00|3|COMPLETED|1-02:03:04|2-00:00:00|5",
        "2024-03-01T00:01:00|2024-03-01T00:00:30|2K|FAILED|00:00:05|UNLIMITED|6",
        names=names,
    )
    assert shown(log) == [("5", 0.0, 60.0, 93784.0, 3), ("6", 30.0, 60.0, 5.0, 2048)]
    assert [job.limit_s for job in log.jobs] == [172800.0, 172800.0]
    assert log.counts == {"without_a_limit": 1}
    assert log.figures(3000, "nodes")["begin"] == "2024-03-01T00:00:00"


def test_a_change_of_clocks_and_a_suspension(tmp_path: Path) -> None:
    """Europe's clocks go from 3:00 to 2:00 on 2024-10-27: two hours look like one."""
    log = read(
        tmp_path,
        "1|2024-10-27T02:30:00|2024-10-27T02:40:00|2024-10-27T03:40:00|7200|1|COMPLETED",
        "2|2024-10-27T02:50:00|2024-10-27T02:10:00|2024-10-27T02:20:00|600|1|COMPLETED",
        "3|2024-10-27T05:00:00|2024-10-27T05:00:00|2024-10-27T06:00:00|600|1|COMPLETED",
        names="JobID|Submit|Start|End|ElapsedRaw|AllocNodes|State",
    )
    assert [(job.id, job.start_s - job.submit_s, job.run_s) for job in log.jobs] == [
        ("2", 0.0, 600.0),
        ("1", 600.0, 7200.0),
        ("3", 0.0, 600.0),
    ]
    assert log.counts["clock_changes"] == 1 and log.counts["suspended"] == 1


def test_limits_and_holds(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        line("1", limit="1", run=95, state="TIMEOUT"),
        line("2", limit="Partition_Limit", submit=1),
        line("3", eligible=5000, start=5010, submit=2, limit="2"),
        line("4", limit="525600", submit=3),
    )
    assert [(job.id, job.submit_s, job.limit_s) for job in log.jobs] == [
        ("1", 0.0, 95.0),
        ("2", 1.0, 120.0),
        ("4", 3.0, 120.0),
        ("3", 5000.0, 120.0),
    ]
    assert log.counts == {"held_back": 1, "raised_limits": 1, "without_a_limit": 2}


@given(st.integers(0, 10**7))
def test_durations_are_read_as_slurm_prints_them(seconds: int) -> None:
    minutes, s = divmod(seconds, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    text = f"{days}-{h:02d}:{m:02d}:{s:02d}" if days else f"{h:02d}:{m:02d}:{s:02d}"
    assert duration_s(text, 1.0) == seconds == duration_s(str(seconds), 1.0)


jobs = st.tuples(
    st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 10**5), st.integers(1, 500)
)


@given(
    st.lists(jobs, min_size=1, max_size=30),
    st.permutations(NAMES.split("|")[:-1]),
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8", exclude_categories=["Z", "C"])),
    st.randoms(use_true_random=False),
)
def test_whatever_the_order_of_lines_and_columns(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: Sequence[tuple[int, int, int, int]],
    names: Sequence[str],
    name: str,
    shuffled: object,
) -> None:
    """The job's name may hold anything, also separators; waits, run times and sizes come back."""
    lines = []
    for number, (submit, wait, run, nodes) in enumerate(drawn, 1):
        text = line(
            str(number), submit=submit, start=submit + wait, run=run, nodes=nodes, limit="500000"
        )
        fields = dict(zip(NAMES.split("|"), text.split("|"), strict=True))
        lines.append("|".join([*(fields[each] for each in names), name]))
    shuffled.shuffle(lines)  # type: ignore[attr-defined]
    path = tmp_path_factory.mktemp("log") / "jobs.txt"
    path.write_text("\n".join(["|".join([*names, "JobName"]), *lines, ""]), encoding="utf-8")
    log = read_log([path])
    first = min(submit for submit, *_ in drawn)
    assert {job.id: (job.submit_s, job.start_s, job.run_s, job.size) for job in log.jobs} == {
        str(number): (submit - first, submit + wait - first, run, nodes)
        for number, (submit, wait, run, nodes) in enumerate(drawn, 1)
    }
    assert {job.name for job in log.jobs} == {name}
    assert max(nodes for *_, nodes in drawn) <= log.largest <= sum(nodes for *_, nodes in drawn)


def test_nodes_that_are_shared_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    alone = [line(str(n), submit=n, nodes=1, cpus=64) for n in range(1, 4)]
    parts = [line(str(n), submit=n, nodes=1, cpus=2) for n in range(4, 10)]
    path.write_text("\n".join([NAMES, *alone, *parts, ""]))
    log = read_log([path])
    assert log.shared == pytest.approx((6 / 9, 6 / 9)) and log.largest == 9
    assert read_log([path], "cpus").largest == 3 * 64 + 6 * 2


# --- lines that are not as they should be ----------------------------------------------------


def test_a_file_put_behind_another_and_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    other = "Submit|JobID|Start|End|NNodes|State"
    second = f"{DAY + 9}|2|{DAY + 10}|{DAY + 20}|1|COMPLETED"
    path.write_text("\n".join([NAMES, line("1"), other, second, second[:20]]))
    log = read_log([path])
    assert [job.id for job in log.jobs] == ["1", "2"]
    assert log.counts["cut_short_lines"] == 1


def test_other_separators(tmp_path: Path) -> None:
    for separator in ("\t", ",", ";", "^~"):
        log = read(tmp_path, line("1").replace("|", separator), names=NAMES.replace("|", separator))
        assert shown(log) == [("1", 0.0, 10.0, 100.0, 2)]
    parsable = read(tmp_path, line("1") + "|", names=NAMES + "|")  # sacct --parsable
    assert shown(parsable) == [("1", 0.0, 10.0, 100.0, 2)]


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        (NAMES, line("7") + "\n" + line("seven"), "a job's id, got 'seven' in line 3"),
        (NAMES, "7|alice", "15 fields between '|', got 2 in line 2"),
        (NAMES + "|Comment", line("7|a|b"), "16 fields between '|', got 17 in line 2"),
        (NAMES, line("7", start="yesterday"), "a time in Start, got 'yesterday' in line 2"),
        (NAMES, line("7", nodes="many"), "a number of nodes or CPUs, got 'many' in line 2"),
        (NAMES, line("7", limit="long"), "a duration like 1-02:03:04, got 'long' in line 2"),
        (NAMES, line("7", submit="Unknown", eligible="None"), "a time in Submit, got none"),
        (
            NAMES,
            line("7", submit="2024-01-01T00:00:00"),
            "times of one kind in all files, local or since 1970",
        ),
        (NAMES, line("7", start="None", nodes=0), "at least one job that ran, got none"),
        ("JobID|Start|State", line("7"), "with Submit, AllocNodes or NNodes, End or ElapsedRaw"),
        ("  JobID   JobName  State", "  7  wrf  COMPLETED", "as `sacct --parsable2` prints it"),
        ("7|alice", "8|bob", "expected a line of names"),
    ],
)
def test_bad_lines_are_refused_by_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str, text: str, expected: str
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(f"{names}\n{text}\n")
    assert main(["simulate", "--sacct", str(path)]) == 2
    err = capsys.readouterr().err
    assert expected in err and str(path) in err and err.count("\n") == 1


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        read_log([tmp_path / "none.txt"])
    whole = tmp_path / "cut.txt.gz"
    whole.write_bytes(gzip.compress(NAMES.encode())[:-9])
    with pytest.raises(FileError, match="expected a log"):
        read_log([whole])
    whole.write_text("not compressed")
    with pytest.raises(FileError, match="expected a log"):
        read_log([whole])
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(FileError, match="at least one job"):
        read_log([tmp_path / "empty.txt"])


# --- rms simulate --sacct --------------------------------------------------------------------


def test_a_log_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs of two nodes, one after the other on a cluster as large as they ever held."""
    path, rows = tmp_path / "jobs.txt", tmp_path / "rows.csv"
    path.write_text("\n".join([NAMES, line("1"), line("2_7", submit=1, start=120), ""]))
    command = ["simulate", "--sacct", str(path), "--policy", "fifo"]
    assert main([*command, "--json", "-", "--per-job", str(rows)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["jobs"], found["makespan_s"], found["mean_wait_s"]) == (2, 200.0, 49.5)
    log = found["log"]
    assert (log["cluster"], log["mean_wait_s"], log["begin"]) == (2, 64.5, "2023-11-14T22:13:20")
    assert rows.read_text().splitlines()[2].startswith("2_7,1.0,100.0,200.0,2,")
    schedule = tmp_path / "out.swf"
    assert main([*command, "--processors", "4", "--out", str(schedule)]) == 0
    ids = [words.split()[0] for words in schedule.read_text().splitlines() if words[0] != ";"]
    assert ids == ["1", "2"]
    out = capsys.readouterr().out
    assert "mean_wait_s            0.0000" in out
    assert "cluster of 4 nodes, the jobs held 2 at once at most" in out


def test_a_log_that_is_piped(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "\n".join([NAMES, line("1"), ""])
    writer = Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert shown(read_log([pipe])) == [("1", 0.0, 10.0, 100.0, 2)]
    writer.join()


def test_help_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert " ".join(COMMAND.split()) in said
    columns = COMMAND.partition("--format=")[2].split(",")
    assert "|".join(columns) == NAMES


# --- what would malleability bring here ------------------------------------------------------


def busy_log(folder: Path) -> Path:
    """A log of 80 jobs that wait for one another on 16 nodes, of two users in turn."""
    path = folder / "busy.txt"
    lines = [
        line(
            str(n),
            submit=60 * n,
            start=200 * n,
            run=600 + 37 * (n % 40),
            nodes=1 + 3 * (n % 5),
            user=("alice", "bob")[n % 2],
            name=("wrf", "dns")[n % 2] + str(n),
        )
        for n in range(80)
    ]
    path.write_text("\n".join([NAMES, *lines, ""]))
    return path


@pytest.mark.promise("site-log")
def test_what_malleability_would_bring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", "--sacct", str(busy_log(tmp_path)), "--processors", "16"]
    figure = tmp_path / "f.png"
    study = ["--malleable", "0,100", "--malleable-jobs", "user=alice,nodes=1-10"]
    assert main([*command, *study, "--figure", str(figure), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["candidates"]["jobs"] == 32 and found["candidates"]["of"] == 80
    none, all_of_them = found["rows"]
    assert (none["malleable_jobs"], all_of_them["malleable_jobs"]) == (0, 32)
    assert none["resizes"] == 0 < all_of_them["resizes"]
    assert all_of_them["mean_turnaround_s"] < none["mean_turnaround_s"]
    assert [row["mode"] for row in found["modes"]] == ["flexible", "malleable", "moldable"]
    assert found["modes"][2]["resizes"] == 0
    assert [row["serial"] for row in found["sensitivity"]] == [0.01, 0.05, 0.2]
    for row in found["rows"]:
        for kind in ("size", "length", "mode"):
            classes = row["classes"][kind]
            assert sum(each["jobs"] for each in classes) == 80
            joules = sum(each["energy_j"] for each in classes)
            assert joules == pytest.approx(row["energy_j"]["busy"], rel=1e-9)
            waits = sum(each["jobs"] * each["mean_wait_s"] for each in classes)
            assert waits / 80 == pytest.approx(row["mean_wait_s"])
        assert {each["class"]: each["jobs"] for each in row["classes"]["mode"]} == {
            "rigid": 48,
            "malleable": 32,
        }
    assert figure.stat().st_size > 10_000


def test_the_study_says_what_it_assumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", "--sacct", str(busy_log(tmp_path)), "--processors", "16"]
    assert main([*command, "--malleable-jobs", "name=wrf*", "--mode", "malleable"]) == 0
    out = capsys.readouterr().out
    assert "40 of 80 jobs may be chosen" in out
    assert "t(n) = f t + (1 - f) t s / n" in out and "idle 100 W" in out
    assert "by what they allow" not in out and "by the serial part f" in out
    assert out.count("  malleable  0.") == 2 + 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--malleable", "0,200"], "shares in per cent, each from 0 to 100, got '0,200'"),
        (["--malleable", "0", "--serial", "1"], "serial parts from 0 to below 1, got 1"),
        (["--malleable", "0", "--mode", "elastic"], "expected a mode of fixed"),
        (["--mode", "fixed,flexible"], "one mode without --malleable"),
        (["--serial", "0.1"], "expected --malleable with --serial"),
        (["--malleable-jobs", "user=nobody"], "that some jobs match"),
        (["--malleable-jobs", "nodes=x"], "a range like 4-64"),
    ],
)
def test_questions_that_cannot_be_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    assert main(["simulate", "--sacct", str(busy_log(tmp_path)), *options]) == 2
    err = capsys.readouterr().err
    assert expected in err and err.count("\n") == 1


def test_a_trace_has_no_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.swf"
    path.write_text("; MaxProcs: 8\n1 0 -1 100 4 -1 -1 4 120 -1 1 1 1 1 1 -1 -1 -1\n")
    command = ["simulate", "--trace", str(path), "--malleable-jobs"]
    assert main([*command, "nodes=4-,user=1"]) == 2
    assert "expected --sacct with user in --malleable-jobs" in capsys.readouterr().err
    assert main([*command, "nodes=4-"]) == 0
