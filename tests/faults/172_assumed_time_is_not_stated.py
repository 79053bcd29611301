"""No message at the submission of a job without ``--time`` stated the time that is assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from routed import SCRIPT, routed

from rms.cli.main import main
from rms.core.model.jobs import JobId


@pytest.mark.parametrize(
    ("assumed_s", "options", "words"),
    [
        (3600.0, {}, ["no --time: the job is planned with 1:00:00, which is not a limit"]),
        (90.0, {}, ["no --time: the job is planned with 0:01:30, which is not a limit"]),
        (None, {}, []),
        (
            1e14,
            {},
            ["no --time: the job is planned with 27777777777:46:40, which is not a limit"],
        ),
        (3600.0, {"time_s": 60.0}, []),
    ],
)
def test_a_submission_is_answered_with_the_time_that_is_assumed(
    tmp_path: Path, assumed_s: float | None, options: dict[str, object], words: list[str]
) -> None:
    with routed(tmp_path) as server:
        context = server.daemon.context
        context.settings = replace(context.settings, assumed_s=assumed_s)
        status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": options})
        assert status == 200 and answer.get("warnings", []) == words
        spec = context.state.running[JobId(answer["ids"][0])].spec
        assert spec.assumed_s == (None if options else assumed_s)


def test_a_job_that_asks_for_no_limit_counts_as_endless(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        context = server.daemon.context
        context.settings = replace(context.settings, assumed_s=3600.0)
        body = SCRIPT | {"text": "#!/bin/sh\n#SBATCH --time=UNLIMITED\ntrue\n"}
        assert server.ask("POST", "/jobs", body) == (200, {"ids": ["1"]})
        assert context.state.running[JobId("1")].spec.assumed_s is None


def test_the_time_is_set_when_the_daemon_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--check", "--state", str(tmp_path / "state"), "--assumed-time"]
    assert main([*serve, "0:30:00"]) == 0
    assert main([*serve, "soon"]) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith("rms: error: --assumed-time: expected a time as minutes")
        and "soon" in message
    )
