"""The output of a job could be the daemon's journal, its token, or any of its open files."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import SCRIPT, Routed


@pytest.mark.parametrize("option", ["output", "error"])
@pytest.mark.parametrize(
    "path", ["state/token", "state/jobs/%j", "/proc/self/fd/3", "/dev/fd/4", "link", "to_fd"]
)
def test_no_file_of_the_daemon_is_an_output(
    server: Routed, tmp_path: Path, path: str, option: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state" / "journal")
    (tmp_path / "to_fd").symlink_to("/dev/fd/4")
    sent = SCRIPT | {"cwd": str(tmp_path), "options": {option: path}}
    status, answer = server.ask("POST", "/jobs", sent)
    assert status == 400 and "expected an output outside " in answer["error"]


@pytest.mark.parametrize("path", ["/dev/null", "out", "%j/out", "loop", "away"])
def test_other_files_are(server: Routed, tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "away").symlink_to(tmp_path / "elsewhere")
    sent = SCRIPT | {"cwd": str(tmp_path), "options": {"output": path}}
    status, answer = server.ask("POST", "/jobs", sent)
    assert status == 200, answer
