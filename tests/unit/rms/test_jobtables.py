"""Job tables that sites have published: PM100's and Eagle's columns."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from rms.formats.config import FileError
from rms.formats.joblog import JobLog, read_log

PM100 = """job_id,eligible_time,submit_time,start_time,end_time,run_time,time_limit,\
num_nodes_alloc,num_cores_alloc,job_state,user_id,partition,power_consumption
12,2020-05-01 00:00:09+00:00,2020-05-01 00:00:00+00:00,2020-05-01 00:01:00+00:00,\
2020-05-01 01:01:00+00:00,3600,1440,16,512,COMPLETED,7,1,"[500, 510]"
13,2020-05-01 00:00:30+00:00,2020-05-01 00:00:30+00:00,2020-05-01 00:01:00+00:00,\
2020-05-01 00:01:10+00:00,10,INFINITE,1,32,TIMEOUT,8,1,
"""
EAGLE = """job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,\
mem_req,submit_time,start_time,end_time,run_time,state,name,work_dir,submit_line
532209,user0014,account0003,partition001,normal,172800.0,10,360,0,0.0,2019-01-01 08:55:55,\
2019-01-01 08:55:56,2019-01-02 12:39:41,99825.0,COMPLETED,name5115,work1,line1
532210,user0002,account0001,partition008,normal,1800.0,36,36,0,0.0,2019-01-01 08:56:55,,,,\
CANCELLED,name2836,work2,line2
"""


def shown(log: JobLog) -> list[tuple[str, float, float, float, int, float | None, str]]:
    return [
        (job.id, job.submit_s, job.start_s, job.run_s, job.size, job.limit_s, job.user)
        for job in log.jobs
    ]


def test_pm100(tmp_path: Path) -> None:
    path = tmp_path / "job_table.csv"
    path.write_text(PM100)
    assert shown(read_log([path])) == [
        ("12", 0.0, 51.0, 3600.0, 16, 86400.0, "7"),
        ("13", 21.0, 51.0, 10.0, 1, 86400.0, "8"),
    ]
    assert [job.size for job in read_log([path], "cpus").jobs] == [512, 32]


def test_eagle(tmp_path: Path) -> None:
    path = tmp_path / "eagle.csv.gz"
    path.write_bytes(gzip.compress(EAGLE.encode()))
    log = read_log([path])
    assert shown(log) == [("532209", 0.0, 1.0, 99825.0, 10, 172800.0, "user0014")]
    assert log.jobs[0].name == "name5115" and log.counts == {"cancelled_before_start": 1}


def test_parquet(tmp_path: Path) -> None:
    csv, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("csv", "parquet"))
    tables = {}
    for name, text in (("pm100", PM100), ("eagle", EAGLE)):
        (tmp_path / f"{name}.csv").write_text(text)
        parquet.write_table(csv.read_csv(tmp_path / f"{name}.csv"), tmp_path / f"{name}.parquet")
        tables[name] = [
            shown(read_log([tmp_path / f"{name}.{kind}"])) for kind in ("csv", "parquet")
        ]
    assert all(of_csv == of_parquet for of_csv, of_parquet in tables.values())
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(FileError, match="expected a Parquet file"):
        read_log([tmp_path / "no.parquet"])


def test_parquet_without_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FileError, match=r"pip install 'malleable-mpi\[parquet\]'"):
        read_log([tmp_path / "job_table.parquet"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_nodes_alloc", "nodes", "expected the columns of PM100"),
        ("12,2020", "twelve,2020", "a job's id, got 'twelve' in job 1 of the table"),
        (",3600,", ",long,", "a duration like 1-02:03:04, got 'long' in job 1 of the table"),
        ("2020-05-01 00:00:30+00:00,2020-05-01 00:01", "x,x", "a time in submit_time, got 'x'"),
    ],
)
def test_rows_that_do_not_parse(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "table.csv"
    assert old in PM100
    path.write_text(PM100.replace(old, new))
    with pytest.raises(FileError) as caught:
        read_log([path])
    assert expected in str(caught.value)
