"""In a folder that others can write, results and checkpoints were written through their links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dmr.checkpoint.format import Index, write_index
from dmr.state.progress import Progress
from rms.wire.files import write_whole


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other"
    path.write_text("precious")
    return path


def test_a_result_is_not_written_through_a_link(tmp_path: Path, other: Path) -> None:
    path = tmp_path / "result.json"
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(path, "{}")
    assert other.read_text() == "precious" and not path.exists()
    write_whole(path, "{}")
    assert path.read_text() == "{}" and not path.is_symlink()


def test_a_checkpoint_is_not_written_through_a_link(tmp_path: Path, other: Path) -> None:
    path = tmp_path / "checkpoint-0000000007.h5"
    path.with_suffix(".part").symlink_to(other)
    (tmp_path / "parts").mkdir()
    problem = write_index(path, Index("parts", {}, {}), {}, Progress(), {})
    assert problem is not None and "symbolic links" in problem
    assert other.read_text() == "precious" and not path.exists()
