"""A full disk left an output file without a frame, and a report without its page."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from processes import Run, called

from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms

LIMITED = """
import resource, sys
sys.dont_write_bytecode = True
from mpdata.cli.main import main
from mpdata.parallel.app import Advection
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
build = Advection.build
def limited(*words):
    resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, hard))
    build(*words)
Advection.build = limited
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("size", [3000, 9000])
def test_an_output_file_without_a_frame_is_deleted(run: Run, tmp_path: Path, size: int) -> None:
    (tmp_path / "x.h5").write_text("of an earlier run")
    words = ("run", "--case", "gaussian", "--grid", "16", "16", "16", "--backend", "numpy")
    output = ("--output", "x.h5", "--output-every", "5", "--steps", "5")
    done = run(sys.executable, "-c", LIMITED.format(size=size), *words, *output)
    assert done.returncode == 1
    assert done.stderr == "mpdata: error: cannot write step 0 to x.h5: File too large\n"
    assert not list(tmp_path.iterdir())


JOB = "[[jobs]]\nnodes = [1, 1]\nspeedup = { t1_s = 1.0, tc_s = 0.0 }\n"


@pytest.fixture
def result(mpdata_here: Run, tmp_path: Path) -> Path:
    """Return the JSON of a simulation."""
    (tmp_path / "w.toml").write_text(JOB)
    words = ("simulate", "--workload", "w.toml", "--processors", "2", "--json", "result.json")
    assert called(rms, *words).returncode == 0
    assert json.loads((tmp_path / "result.json").read_text())["jobs"] == 1
    return tmp_path / "result.json"


@pytest.mark.parametrize("existed", [False, True])
def test_a_report_leaves_no_new_folder(
    result: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    def open_file(name: str, flags: int) -> int:
        if name.startswith("folder/report.html"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.open(name, flags, 0o666)

    monkeypatch.setattr("rms.wire.files.open_own", lambda _: open_file)
    folder = result.with_name("folder")
    if existed:
        folder.mkdir()
    done = called(rms, "report", "folder", "--from", "result.json")
    assert done.returncode == 1
    assert done.stderr == "rms: error: cannot write a report to folder: No space left on device\n"
    assert folder.exists() is existed


def test_a_picture_is_written_whole(
    mpdata_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "--case", "gaussian", "--grid", "8", "8", "8", "--steps", "1")
    assert mpdata_here(*words, "--output", "x.h5", "--output-every", "1").returncode == 0
    (tmp_path / "link.png").symlink_to("x.png")
    assert called(mpdata, "plot", "x.h5", "--out", "link.png").returncode == 0
    before = (tmp_path / "x.png").read_bytes()
    assert before.startswith(b"\x89PNG") and (tmp_path / "link.png").is_symlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("rms.wire.files.write_whole", full)
    done = called(mpdata, "plot", "x.h5", "--out", "x.png")
    assert done.returncode == 1
    assert done.stderr == "mpdata: error: cannot write x.png: No space left on device\n"
    assert (tmp_path / "x.png").read_bytes() == before
