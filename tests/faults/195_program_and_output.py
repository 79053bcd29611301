"""A program or an output folder that does not exist was reported by the job, not at submission."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon import served
from processes import called
from routed import SCRIPT, Routed

from rms.cli.main import main
from rms.client.commands import launcher_words


@pytest.mark.parametrize("program", ["nosuchprogram", "./nosuchprogram", "/none/x", "/etc/passwd"])
def test_a_program_that_does_not_exist(server: Routed, program: str) -> None:
    body = {"text": f"#!/bin/sh\n# a comment\nexec mpirun -n 2 {program}\n", "command": [program]}
    status, answer = server.ask("POST", "/jobs", SCRIPT | body)
    assert (status, answer["error"]) == (
        400,
        f"expected a program that can be run, got {program!r}",
    )
    text = f"#!/bin/sh\nPATH=$PATH:/elsewhere\nmpirun {program}\n"  # this may find it
    assert server.ask("POST", "/jobs", SCRIPT | body | {"text": text})[0] == 200


@pytest.mark.parametrize(
    "line", ["srun ~/bin/app", "srun ./app{1,2}", "srun ./a*", 'srun "$HOME/app"', "srun ./[ab]"]
)
def test_a_program_that_the_shell_expands_is_not_checked(line: str) -> None:
    assert launcher_words(f"#!/bin/sh\n{line}\n") == []


def test_a_quoted_program_is_checked() -> None:
    assert launcher_words("#!/bin/sh\nsrun './a b' \"c d\"\n") == ["./a b", "c d"]


def test_a_login_shell_may_provide_the_program(server: Routed) -> None:
    body = {"text": "#!/bin/bash -l\nsrun nosuchprogram\n", "command": ["nosuchprogram"]}
    assert server.ask("POST", "/jobs", SCRIPT | body)[0] == 200


def test_a_program_in_the_folder_of_the_job(server: Routed, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    for name in ("mine", "./mine", str(program)):
        body = {"text": f"#!/bin/sh\nmpirun {name}\n", "command": [name], "cwd": str(tmp_path)}
        assert server.ask("POST", "/jobs", SCRIPT | body)[0] == 200
    assert server.ask("POST", "/jobs", SCRIPT | body | {"env": {"PATH": "/none"}})[0] == 200


def test_a_folder_of_output_that_does_not_exist(server: Routed, tmp_path: Path) -> None:
    body = SCRIPT | {"cwd": str(tmp_path)}
    for name in ("output", "error"):
        for place in (f"{tmp_path}/none/x.out", "none/x-%j.out", "none/%j/x"):
            status, answer = server.ask("POST", "/jobs", body | {"options": {name: place}})
            expected = f"expected an existing folder for --{name}, got {place}"
            assert (status, answer["error"]) == (400, expected)
    (tmp_path / "there").mkdir()
    for place in ("x", "there/x", "there/%j/x", "/dev/null", "%x/%j"):
        assert server.ask("POST", "/jobs", body | {"options": {"output": place}})[0] == 200


def test_a_script_whose_program_does_not_exist_ends_with_127() -> None:
    with served(1) as rms:
        job = rms.submit("set -e\nmpirun -n 2 nosuchprogram")
        assert rms.over(job) == ["FAILED"] and rms.row(job)["exit_code"] == 127
        expected = "rms: error: expected a program that can be run, got 'nosuchprogram'\n"
        assert expected in rms.output(job)


UNUSABLE = {
    "rms compare job.sh --figure none/x.png": "an existing folder for --figure, got none",
    "rms compare job.sh --folder job.sh/x": "a folder that can be made, got ",
    "rms profile --folder job.sh/x -- true": "a folder that can be made, got ",
    "rms serve --state job.sh/x": "a state folder that can be made, got ",
    "rms profile -- nosuchprogram": "a command that can be run, got 'nosuchprogram'",
    "mpdata plot job.sh --out none/x.png": "an existing folder for --out, got none/x.png",
}


@pytest.mark.parametrize(("line", "expected"), UNUSABLE.items(), ids=list(UNUSABLE))
def test_commands_check_their_files_before_the_work(
    refusal: Callable[[str], str], line: str, expected: str
) -> None:
    assert f"error: expected {expected}" in refusal(line)


def test_the_folder_of_a_report_is_checked_before_the_daemon_is_called(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "below", Path(os.devnull) / "below"):
        done = called(main, "report", str(folder), "--server", f"unix:{tmp_path / 'none'}")
        assert done.returncode == 2 and f"expected a folder that can be written, got {folder}" in (
            done.stderr
        )
