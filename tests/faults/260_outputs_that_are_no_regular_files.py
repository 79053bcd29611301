"""Output options deleted or replaced devices, FIFOs and symbolic links, and reported success."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from processes import Run, called

from dmr.cli import main as dmr
from rms.cli.main import main as rms
from rms.wire.terminal import check_writable

SMALL = ("run", "--case", "gaussian", "--grid", "8", "8", "8", "--steps", "2", "--backend", "numpy")
WORKLOAD = ("simulate", "--workload", "w.toml", "--processors", "2")
OUTPUTS = ("--completion", "--json", "--per-job", "--out")

JOB = "[[jobs]]\nnodes = [1, 1]\nspeedup = { t1_s = 1.0, tc_s = 0.0 }\n"


@pytest.fixture
def folder(mpdata_here: Run, tmp_path: Path) -> Path:
    """Return the working folder, which holds a workload."""
    (tmp_path / "w.toml").write_text(JOB)
    return tmp_path


def written(mpdata_here: Run, option: str, target: str) -> None:
    """Run the command of an option to its end."""
    if option in ("--completion", "--json"):
        done = mpdata_here(*SMALL, option, target)
    else:
        done = called(rms, *WORKLOAD, option, target)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", OUTPUTS)
def test_the_target_of_a_link_is_replaced(mpdata_here: Run, folder: Path, option: str) -> None:
    (folder / "below").mkdir()
    link, target = folder / "link", folder / "below" / "target"
    link.symlink_to(target)
    for old in (None, "old"):
        if old is not None:
            target.write_text(old)
        written(mpdata_here, option, "link")
        assert link.is_symlink() and len(target.read_text()) > 10
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("option", OUTPUTS)
def test_a_fifo_is_written_to(mpdata_here: Run, folder: Path, option: str) -> None:
    fifo, read = folder / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    reader.start()
    written(mpdata_here, option, "fifo")
    reader.join(60.0)
    assert fifo.is_fifo() and len(read[0]) > 10


def test_a_device_stays(mpdata_here: Run, folder: Path) -> None:
    try:
        os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")
    for option in OUTPUTS:
        written(mpdata_here, option, "null")
        assert (folder / "null").is_char_device()


def test_what_the_shell_has_opened_to_append_is_appended_to(mpdata_here: Run, folder: Path) -> None:
    log = folder / "log"
    log.write_text("old\n")
    with log.open("a") as opened:
        done = mpdata_here("cases", "--json", f"/dev/fd/{opened.fileno()}")
    assert done.returncode == 0
    first, rest = log.read_text().split("\n", 1)
    assert first == "old" and json.loads(rest)


def test_a_final_field_follows_a_link(mpdata_here: Run, folder: Path) -> None:
    (folder / "link.npy").symlink_to("target.npy")
    assert mpdata_here(*SMALL, "--final", "link.npy").returncode == 0
    assert (folder / "link.npy").is_symlink() and (folder / "target.npy").stat().st_size > 4096


def test_frames_follow_a_link(mpdata_here: Run, folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "link.h5").symlink_to("below/target.h5")
    assert mpdata_here(*SMALL, "--output", "link.h5", "--output-every", "1").returncode == 0
    assert (folder / "link.h5").is_symlink()
    assert sorted(path.name for path in (folder / "below").iterdir()) == ["target.h5", "target.xmf"]
    assert "target.h5:/psi" in (folder / "below" / "target.xmf").read_text()


@pytest.mark.parametrize(
    "words", [("--final", "fifo"), ("--output", "fifo", "--output-every", "1")]
)
def test_a_binary_file_is_to_be_regular(refused: Run, folder: Path, words: tuple[str, ...]) -> None:
    os.mkfifo(folder / "fifo")
    line = refused(*SMALL, *words)
    assert f"expected a regular file for {words[0]}, got fifo" in str(line)
    assert (folder / "fifo").is_fifo()


def test_a_file_to_compare_is_to_be_regular(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    done = called(dmr, "check", "--compare", "fifo", "--", "true")
    assert done.returncode == 2 and "a regular file for --compare, got fifo" in done.stderr
    assert (folder / "fifo").is_fifo()


def test_a_device_in_a_folder_that_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    writable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and writable(path, mode))
    assert check_writable(str(tmp_path / "fifo"), "--json") is None
    assert check_writable(str(tmp_path / "new"), "--json") is not None
