"""Workload files: the same jobs as TOML and as CSV, their users and names, and bad input."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence

from rms.cli.main import main
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.formats import config
from rms.formats.config import COLUMNS, FileError, read_workload
from rms.formats.joblog import LoggedJob
from rms.formats.swf import read_trace

JOBS = Path(__file__).parents[3] / "jobs"
NESTED = {
    "nodes_min": ("nodes", 0),
    "nodes_max": ("nodes", 1),
    "resize_every_s": ("resize", "every_s"),
    "resize_price_s": ("resize", "price_s"),
}
FAIR = """order = { part = "multifactor", fair_share = 1000.0 }
sizing = { part = "as-asked" }
admission = { part = "in-order" }
placement = { part = "first-fit" }
"""
USERS = """submit_s,name,user,account,nodes_min,run_s
0,a1,ana,,1,100
1,a2,ana,{account},1,100
2,b1,ben,,1,100
"""


def toml_of(row: dict[str, Any]) -> str:
    """Return a row of columns as ``[[jobs]]``."""
    keys = {name: value for name, value in row.items() if name not in NESTED}
    keys["nodes"] = [row["nodes_min"], row["nodes_max"]]
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in keys.items()]
    if "resize_every_s" in row:
        table = {inner: row[name] for name, (outer, inner) in NESTED.items() if outer == "resize"}
        lines.append(f"resize = {{ {', '.join(f'{key} = {table[key]}' for key in table)} }}")
    return "\n".join(["[[jobs]]", *lines, ""])


def csv_of(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV; a key that a row lacks is an empty cell."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


TIMES = st.floats(0.5, 1e6)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    low, preferred, high = sorted(draw(st.lists(st.integers(1, 64), min_size=3, max_size=3)))
    row: dict[str, Any] = {
        "nodes_min": low,
        "nodes_max": high,
        "preferred": preferred,
        "run_s": draw(TIMES),
        "mode": draw(st.sampled_from(Mode)).value,
    }
    if low < high:
        row["serial"] = draw(st.floats(0.0, 0.99))
    if draw(st.booleans()):
        row |= {"resize_every_s": draw(TIMES), "resize_price_s": draw(st.floats(0.0, 100.0))}
    optional = {
        "submit_s": st.floats(0.0, 1e9),
        "limit_s": TIMES,
        "count": st.integers(1, 3),
        "memory_bandwidth_gb_s": TIMES,
        "power_w": TIMES,
        **dict.fromkeys(("name", "user", "account", "array"), TEXTS),
    }
    return row | draw(st.fixed_dictionaries({}, optional=optional))


def read(path: Path, text: str) -> tuple[list[JobSpec], dict[JobId, str]]:
    names: dict[JobId, str] = {}
    path.write_bytes(text.encode())
    return read_workload(path, names=names), names


@pytest.mark.promise("workload-files")
@given(st.lists(rows(), min_size=1, max_size=5))
def test_toml_and_csv_state_the_same_jobs(table: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        specs, names = read(Path(folder, "w.csv"), csv_of(table))
        assert (specs, names) == read(Path(folder, "w.toml"), "".join(map(toml_of, table)))
    entries = [row for row in table for _ in range(row.get("count", 1))]
    assert [spec.id for spec in specs] == [str(n) for n in range(1, len(entries) + 1)]
    for spec, row in zip(specs, entries, strict=True):
        assert spec.account == (row.get("account") or row.get("user", ""))
        assert names.get(spec.id) == row.get("name")
        run_s, serial, n = row["run_s"], row.get("serial", 0.0), row["nodes_min"]
        assert spec.time_s(spec.preferred) == pytest.approx(run_s)
        if "serial" in row:
            expected_s = run_s * (serial + (1.0 - serial) * spec.preferred / n)
            assert spec.time_s(n) == pytest.approx(expected_s)
        if "limit_s" in row:
            expected_s = max(row["limit_s"], run_s)
            assert spec.expected_s(spec.preferred) == pytest.approx(expected_s)


def test_the_columns_are_the_keys_of_a_job_that_are_no_tables() -> None:
    keys = set(msgspec.structs.asdict(config._JobEntry(nodes=(1, 1)))) - {
        "nodes",
        "speedup",
        "resize",
    }
    assert set(COLUMNS) == keys | set(NESTED)


@pytest.mark.parametrize(
    ("text", "accounts"),
    [
        ("nodes_min,run_s,user\n\n2,10.5,ana\n1,1e3,\n", ["ana", ""]),
        ("\ufeffuser, nodes_min, run_s\r\nana, 02, 10.5\r\n,1.0, +1000.\r\n", ["ana", ""]),
        ('nodes_min,run_s,user\n2,10.5,"ana,\nben"\n1,1000,"q""r"\n', ["ana,\nben", 'q"r']),
    ],
    ids=["blank lines", "of a spreadsheet", "quoted"],
)
def test_habits_of_csv(tmp_path: Path, text: str, accounts: list[str]) -> None:
    specs, _ = read(tmp_path / "w.csv", text)
    assert [spec.account for spec in specs] == accounts
    assert [(s.nodes_min, s.nodes_max, s.preferred, s.run_s) for s in specs] == [
        (2, 2, 2, 10.5),
        (1, 1, 1, 1000.0),
    ]
    assert {spec.mode for spec in specs} == {Mode.FIXED}


@pytest.mark.promise("workload-files")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "w.csv: expected a column nodes_min, got no header"),
        ("nodes_min,run_s\n", "w.csv: expected at least one job, got none"),
        ("nodes_min;run_s\n1;2\n", "w.csv: expected columns of submit_s, name, user, "),
        ("nodes_min,run_s,nodes\n1,2,3\n", "power_w, got 'nodes'"),
        ("nodes_min,run_s,run_s\n1,2,3\n", "expected every column once, got run_s 2 times"),
        ("run_s\n1\n", "expected a column nodes_min, got run_s"),
        ("nodes_min,run_s\n1\n", "w.csv: line 2: expected 2 cells, got 1"),
        ("nodes_min,run_s\n,1\n", "line 2: expected a whole number in column nodes_min, got an"),
        ("nodes_min,run_s\n1,1\n1.5,1\n", "line 3: expected a whole number in column nodes_min"),
        ("nodes_min,run_s\n1,1 h\n", "line 2: expected a number in column run_s, got '1 h'"),
        ("nodes_min,run_s\n1,nan\n", "line 2: expected a number in column run_s, got 'nan'"),
        ("nodes_min,run_s\n1,inf\n", "line 2: expected a number in column run_s, got 'inf'"),
        ("nodes_min,run_s,mode\n1,1,rigid\n", "expected a mode of fixed, moldable, malleable"),
        ("nodes_min,run_s\n1,0\n", "w.csv: line 2: expected run_s above 0, got 0"),
        ("nodes_min,run_s,limit_s\n1,1,-5\n", "line 2: expected limit_s above 0, got -5"),
        ("nodes_min,run_s,power_w\n1,1,-5\n", "line 2: expected power_w of at least 0, got -5"),
        ("nodes_min,run_s,count\n1,1,0\n", "line 2: expected count of at least 1, got 0"),
        ("nodes_min,run_s\n0,1\n", "line 2: job 1: expected 1 <= min <= preferred <= max"),
        ("nodes_min,nodes_max,run_s\n1,4,1\n", "expected serial with run_s of several sizes, got"),
        ("nodes_min,run_s,serial\n1,1,1\n", "line 2: expected serial from 0 to below 1, got 1"),
        ("nodes_min,user\n1,ana\n", "line 2: expected either run_s or speedup, got neither"),
        (f"nodes_min,run_s\n{10**30},1\n", "line 2: expected at most 2147483647 nodes, got 1000"),
        ("nodes_min,run_s,serial\n9,1e308,0\n", "run time above 0, got inf s on 9 nodes"),
        (
            "nodes_min,run_s,resize_price_s\n1,1,5\n",
            "line 2: expected resize_every_s with resize_price_s, got an empty cell",
        ),
        ('nodes_min,run_s,name\n1,1,"a\n', "w.csv: expected CSV, got after line"),
        ("nodes_min,run_s,name\n1,1,\udcff\n", "w.csv: expected CSV, got after line"),
    ],
)
def test_a_bad_value_names_file_line_and_column(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "w.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with one_sentence(FileError, expected):
        read_workload(path)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("nodes = [1, 4]", "expected either run_s or speedup, got neither"),
        ("run_s = 1.0\nspeedup = { t1_s = 1.0, tc_s = 0.0 }\n", "run_s or speedup, got both"),
        ("serial = 0.1\nspeedup = { t1_s = 1.0, tc_s = 0.0 }\n", "run_s with serial, got speedup"),
        (
            "speedup = { t1_s = 4.0, tc_s = -1.0 }\n",
            "expected a finite run time above 0, got 0 s on 4 nodes",
        ),
        ("run_s = 1.0\nserial = 0.0\npower_w = -1.0\n", "power_w of at least 0, got -1"),
        ("run_s = 1.0\nuser = 7\n", "Expected `str`, got `int`"),
    ],
)
def test_bad_keys_of_toml_are_refused(tmp_path: Path, keys: str, expected: str) -> None:
    path = tmp_path / "w.toml"
    path.write_text(f"[[jobs]]\n{'' if 'nodes' in keys else 'nodes = [1, 4]'}\n{keys}\n")
    with pytest.raises(FileError) as caught:
        read_workload(path)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with one_sentence(FileError, "which does not exist"):
        read_workload(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        read_workload(tmp_path / "folder.csv")


def test_limits_below_the_run_time_are_raised_and_counted(tmp_path: Path) -> None:
    path, lines = tmp_path / "w.csv", list[str]()
    path.write_text("nodes_min,run_s,limit_s,count\n1,100,50,2\n1,100,100,1\n1,100,200,1\n")
    specs = read_workload(path, say=lines.append)
    assert [spec.limit_s for spec in specs] == [100.0, 100.0, 100.0, 200.0]
    assert lines == [f"{path}: 2 jobs beyond their limit: the limit raised to the run time"]


@pytest.mark.parametrize(("account", "first"), [("", "b1"), ("other", "a2")])
def test_fair_share_counts_users_and_accounts(tmp_path: Path, account: str, first: str) -> None:
    """Ana's second job waits for Ben's, unless it counts for another account."""
    (tmp_path / "w.csv").write_text(USERS.format(account=account))
    (tmp_path / "fair.toml").write_text(FAIR)
    words = ("--workload", str(tmp_path / "w.csv"), "--policy", str(tmp_path / "fair.toml"))
    rows = tmp_path / "rows.csv"
    assert main(["simulate", *words, "--processors", "1", "--per-job", str(rows)]) == 0
    with rows.open() as file:
        starts = {row["name"]: float(row["start_s"]) for row in csv.DictReader(file)}
    assert sorted(starts, key=starts.__getitem__)[:2] == ["a1", first]


def test_rows_per_job_have_names_where_the_workload_has_some(tmp_path: Path) -> None:
    path, out = tmp_path / "w.csv", tmp_path / "rows.csv"
    command = ["simulate", "--workload", str(path), "--processors", "2", "--per-job", str(out)]
    plain = "job,submit_s,start_s,end_s,nodes,energy_j"
    path.write_text("nodes_min,run_s,name\n1,10,=wind\n1,20,\n")
    assert main(command) == 0
    assert out.read_text().splitlines() == [
        f"{plain},name",
        "1,0.0,0.0,10.0,1,0.0,'=wind",
        "2,0.0,0.0,20.0,1,0.0,",
    ]
    path.write_text("nodes_min,run_s\n1,10\n")
    assert main(command) == 0
    assert out.read_text().splitlines()[0] == plain


@pytest.mark.promise("workload-files")
def test_the_shipped_stream(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--workload", str(JOBS / "stream.csv"), "--processors", "16", "--policy", "easy")
    assert main(["simulate", *words, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["jobs"], result["refused"]) == (8, 0)
    specs = read_workload(JOBS / "stream.csv")
    assert {spec.mode for spec in specs} == set(Mode)
    assert {spec.account for spec in specs} == {"ana", "ben", "cleo"}


def test_users_of_traces_are_accounts(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    record = "{id} 0 -1 100 4 -1 -1 4 120 -1 1 {user} 1 1 1 -1 -1 -1\n"
    users = ["12", "-1", "12"]
    path.write_text("".join(record.format(id=n, user=user) for n, user in enumerate(users, 1)))
    specs = read_trace(path).specs
    assert [spec.account for spec in specs] == ["12", "", "12"]
    assert specs[0].account is specs[2].account
    path.write_text("1 0 -1 100 4 -1 -1 4 120\n")
    assert read_trace(path).specs[0].account == ""


def test_a_schedule_as_a_trace_numbers_accounts_with_names(tmp_path: Path) -> None:
    path, out = tmp_path / "w.csv", tmp_path / "out.swf"
    path.write_text("nodes_min,run_s,user\n1,10,zoe\n1,10,\n1,10,ana\n1,10,zoe\n")
    command = ["simulate", "--workload", str(path), "--processors", "4", "--out", str(out)]
    assert main(command) == 0
    assert [spec.account for spec in read_trace(out).specs] == ["1", "", "2", "1"]


@pytest.mark.parametrize(("account", "expected"), [("ocean", "ocean"), ("", "alice")])
def test_logs_without_accounts_have_users(account: str, expected: str) -> None:
    job = LoggedJob("1", 0.0, 0.0, 9.0, 1, 9.0, "COMPLETED", "alice", account, "main", "wrf")
    assert job.spec().account == expected
