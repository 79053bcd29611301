"""The workloads and strategies of Posner, Hupfeld, Finnerty 2023."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from external import external

from rms.core.model import Mode
from rms.formats.config import FileError
from rms.studies.posner import read_jobs

HEAD = "id,submit,type,nodes_min,nodes_pref,nodes_max,flops,parallel,iterations"
RIGID = "0,60,rigid,4,4,4,8e12,0.75,1"
MALLEABLE = "1,61.5,malleable,2,4,8,8e12,0.75,5"


def written(folder: Path, *lines: str) -> Path:
    (folder / "posner_2023").mkdir()
    text = "\n".join((HEAD, *lines)) + "\n"
    (folder / "posner_2023" / "50-0-50_S9.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_a_job_of_each_kind(tmp_path: Path) -> None:
    rigid, malleable = read_jobs(written(tmp_path, RIGID, MALLEABLE), "50-0-50", "S9")
    assert (rigid.nodes_min, rigid.nodes_max, rigid.preferred) == (4, 4, 4)
    assert (rigid.mode, rigid.resize_parts, rigid.limit_s) == (Mode.FIXED, None, 3.5)
    assert (malleable.nodes_min, malleable.nodes_max, malleable.preferred) == (2, 8, 4)
    assert (malleable.mode, malleable.resize_parts) == (Mode.FLEXIBLE, 5)
    assert (malleable.submit_s, malleable.time_s(2), malleable.resize_price_s) == (61.5, 5.0, 0.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,60,rigid,4,4,4,8e12,0.75", "line 2"),
        ("0,60,evolving,4,4,4,8e12,0.75,1", "evolving"),
        ("0,60,rigid,4,x,4,8e12,0.75,1", "nodes_pref"),
        ("0,60,malleable,4,2,8,8e12,0.75,1", "min <= preferred"),
        ("0,60,malleable,1,2,8,8e12,1.5,1", "parallel share of 0 to 1"),
        ("0,-1,malleable,1,2,8,8e12,0.5,1", "submit of at least 0"),
    ],
)
def test_what_is_no_job_is_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        read_jobs(written(tmp_path, line), "50-0-50", "S9")


def test_a_missing_file_is_named_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"0-0-100_S0\.csv\.gz, which does not exist; .*artifact"):
        read_jobs(tmp_path, "0-0-100", "S0")


@pytest.mark.parametrize(("mix", "malleable"), [("0-0-100", 2317), ("100-0-0", 0)])
def test_the_published_jobs(mix: str, malleable: int) -> None:
    specs = read_jobs(external(f"posner_2023/{mix}_S0.csv.gz"), mix, "S0")
    assert len(specs) == 2317
    assert sum(spec.mode is Mode.FLEXIBLE for spec in specs) == malleable
    assert [spec.submit_s for spec in specs] == sorted(spec.submit_s for spec in specs)
