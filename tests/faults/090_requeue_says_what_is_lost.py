"""The page promised that a requeued job ends at a checkpoint, also where it has none at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from killed import COMMAND, bench
from processes import called

from rms.cli.main import main
from rms.cli.queue import job_lines
from rms.client.commands import actions
from rms.core.model.jobs import JobId, JobState, Mode
from rms.daemon.ask import views
from rms.daemon.store.record import REQUEUED
from rms.launch.base import NODES_LOST
from rms.wire.messages import Poll
from rms.wire.users import JobIds, JobRow

ONE = JobId("1")
LOST = (
    "it has no checkpoint folder to restart from and starts again from step 0; "
    "1,012 of 3,000 steps are lost"
)
RESUMES = "it resumes from its newest checkpoint, or from step 0 without one"
SENTENCES = {
    None: "it ends and waits again; its script starts again from the beginning.",
    False: f"it ends and waits again; {LOST}.",
    True: f"it ends at a checkpoint and waits again; {RESUMES}.",
}


@pytest.mark.parametrize("restartable", [None, False, True])
def test_a_requeue_is_announced(
    tmp_path: Path, restartable: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with bench(tmp_path) as opened:
        opened.submit("1", (1, 1, 1), Mode.FIXED)
        opened.daemon.worlds.launch(opened.daemon.jobs[ONE], COMMAND, "key")
        if restartable is not None:
            poll = Poll(1012, 3000, 0, "warm", ((0, 1),), restartable=restartable)
            opened.daemon.worlds.poll(opened.daemon.jobs[ONE], poll)
        (row,) = views.jobs(opened.daemon.context)
    sentence = f"Requeue job 1 (a): {SENTENCES[restartable]}"
    assert [each.say for each in actions(row, "1") if each.do == "requeue"] == [sentence]

    def ask(kind: Any, server: str, method: str, path: str, body: object = None) -> Any:
        calls.append(method)
        return [row] if kind == list[JobRow] else JobIds(["1"])

    def tell(line: str) -> None:
        calls.append(line)

    calls: list[str] = []
    with (
        patch("rms.client.commands.ask", ask),
        patch("rms.cli.client.ask", ask),
        patch("rms.cli.client.tell", tell),
    ):
        done = called(main, "requeue", "1")
    assert (done.returncode, done.stdout.split()) == (0, ["REQUEUED", "1"])
    words = SENTENCES[restartable].removesuffix(".")
    assert calls == ["GET", f"requeue of job 1 (a): {words}", "POST", "GET"]
    running = msgspec.structs.replace(row, start_s=0.0)
    words = words.partition("; ")[2]
    (line,) = [line for line in job_lines(running) if line.startswith("if requeued")]
    assert line.partition("  ")[2].strip() == words


@pytest.mark.parametrize(
    ("cause", "restartable", "words"),
    [
        ("requested to end to start again", False, LOST),
        ("its nodes were lost", False, LOST),
        ("its nodes were lost", True, RESUMES),  # maybe before its first checkpoint
    ],
)
def test_a_requeued_job_has_what_is_lost_in_log_and_history(
    tmp_path: Path, cause: str, restartable: bool, words: str
) -> None:
    with bench(tmp_path) as opened:
        opened.submit("1", (1, 1, 1), Mode.FIXED)
        opened.daemon.worlds.launch(opened.daemon.jobs[ONE], COMMAND, "key")
        poll = Poll(1012, 3000, 0, "warm", ((0, 1),), restartable=restartable)
        opened.daemon.worlds.poll(opened.daemon.jobs[ONE], poll)
        daemon = opened.daemon
        script = daemon.jobs[ONE].script
        assert script is not None
        if cause == "its nodes were lost":  # as Slurm reports it
            script.end_state = NODES_LOST
        else:
            daemon.scripts.cancel(daemon.jobs[ONE], REQUEUED)
        opened.machine.end("1", 0, 143)
        opened.machine.end("1", None, 143)
        for _ in range(3):
            opened.now_s += 0.1
            daemon.tick()
        assert f"job 1: {cause}; requeued: {words}" in opened.said
        assert daemon.context.state.running[ONE].state is JobState.RUNNING
        opened.start()
        entries = views.history(opened.daemon.context, ONE)
        assert [(each.kind, each.reason) for each in entries if each.kind == "requeued"] == [
            ("requeued", f"{cause}; {words}")
        ]
