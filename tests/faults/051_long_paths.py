"""A path that no file has was answered 503, or its job taken and failed; 400 is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import SCRIPT, Routed

from rms.launch.base import LaunchError, ScriptLaunch

LONG = {"one name": "a" * 5_000, "name": f"/tmp/{'a' * 256}", "deep": "a/" * 2_000, "NUL": "a\0"}


@pytest.mark.parametrize("path", LONG.values(), ids=list(LONG))
@pytest.mark.parametrize("option", ["cwd", "chdir", "output", "error"])
def test_a_path_that_no_file_has_is_refused(server: Routed, option: str, path: str) -> None:
    sent = {"cwd": path} if option == "cwd" else {"options": {option: path}}
    status, answer = server.ask("POST", "/jobs", SCRIPT | sent)
    assert status == 400 and len(answer["error"]) < 300, answer
    if "\0" not in path:
        assert "expected at most a path of 4095 bytes" in answer["error"]


def test_a_folder_that_may_not_be_searched_is_refused(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", denied)
    monkeypatch.setattr("os.stat", denied)
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"cwd": "/nowhere/here"})
    assert (status, answer["error"]) == (
        400,
        "expected an existing folder to run in, got '/nowhere/here'",
    )


def test_an_output_that_is_too_deep_ends_the_start_in_words(tmp_path: Path) -> None:
    from rms.launch.local import LocalLauncher

    launcher = LocalLauncher(tmp_path / "s", "mark", "unix:none")
    (tmp_path / "s" / "jobs" / "1").mkdir(parents=True)
    deep = tmp_path / ("a/" * 2_000) / "out"
    launch = ScriptLaunch(tmp_path / "script", str(tmp_path), {}, deep, [["cpu:0"]])
    with pytest.raises(LaunchError, match="expected at most a path of 4095 bytes, 256 names"):
        launcher.start_script("1", launch)
