"""The agent of a host: it ends jobs by request, and when its answers are not received."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from processes import started, until

from rms.launch.hosts.agent import Answer, Order, Start
from rms.launch.processes import INSTANCE_VARIABLE, alive
from rms.wire.messages import WORLD_VARIABLE

AGENT = [sys.executable, "-P", "-m", "rms.launch.hosts.agent"]


@pytest.fixture
def instance() -> str:
    return uuid.uuid4().hex


class Talk:
    """An agent, and messages to it."""

    def __init__(self, stack: Any, instance: str, fence_s: float) -> None:
        env = {**os.environ, INSTANCE_VARIABLE: f"{instance}:agent"}
        options = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": env}
        self.process = stack(started([*AGENT, instance, str(fence_s)], **options))
        stack(contextlib.closing(self.process.stdin))
        self.number = 0

    def ask(self, **words: Any) -> Answer:
        self.number += 1
        order = msgspec.json.encode(Order(self.number, **words)).decode()
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        answer = msgspec.json.decode(self.process.stdout.readline(), type=Answer)
        assert answer.number == self.number
        return answer


@pytest.fixture
def stack() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def job(stack: Any, instance: str, name: str, launch: str = "") -> int:
    env = {**os.environ, INSTANCE_VARIABLE: f"{instance}:{name}"}
    if launch:
        env[WORLD_VARIABLE] = launch
    pid: int = stack(started(["sleep", "600"], env=env)).pid
    return pid


def test_it_ends_a_launch_and_no_other(stack: Any, instance: str, tmp_path: Path) -> None:
    talk = Talk(stack, instance, 60.0)
    script, first, second = (job(stack, instance, "7", launch) for launch in ("", "1", "2"))
    live = [("7", ""), ("7", "1"), ("7", "2")]
    until(lambda: talk.ask().live == live)
    talk.ask(kill=[("7", "1")])
    until(lambda: not talk.ask().ending)
    assert not alive(first)
    assert alive(script) and alive(second)
    (tmp_path / "here").write_text("text")
    assert talk.ask(looks=str(tmp_path / "here")).text == "text"
    assert talk.ask(looks=str(tmp_path / "there")).text is None
    assert talk.ask(ends=True).live == []
    assert talk.process.wait(30) == 0
    assert not alive(script) and not alive(second)


def test_it_ends_all_jobs_when_its_answers_are_not_received(stack: Any, instance: str) -> None:
    """Messages that confirm nothing do not help: the way back may be cut."""
    talk = Talk(stack, instance, 1.0)
    pid = job(stack, instance, "7")
    other = job(stack, uuid.uuid4().hex, "7")
    until(lambda: talk.ask(seen=talk.number).live)

    def ended() -> bool:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            talk.ask()
        return not alive(pid)

    until(ended)
    assert alive(other)


def test_it_leaves_jobs_to_a_newer_agent(stack: Any, instance: str) -> None:
    old, pid = Talk(stack, instance, 1.0), job(stack, instance, "7")
    assert old.ask().number == 1
    new = Talk(stack, instance, 60.0)
    until(lambda: new.ask().live)
    old.process.stdin.close()
    assert old.process.wait(30) == 0
    assert alive(pid)


def test_a_script_from_its_contents(tmp_path: Path) -> None:
    """Its status, its output, and the end of what it leaves behind."""
    text = b"#!/bin/sh\nsleep 600 & echo $! $1 $X; exit 5\n"
    start = Start(str(tmp_path / "none.sh"), text, ["one"], str(tmp_path), {"X": "x"})
    done = subprocess.run(
        [*AGENT, "--run"], input=msgspec.json.encode(start), capture_output=True, timeout=60
    )
    assert done.returncode == 5, done.stderr
    pid, *words = done.stdout.split()
    assert words == [b"one", b"x"]
    assert not alive(int(pid))
    lost = Start(str(tmp_path / "none.sh"), text, [], str(tmp_path / "no"), {})
    done = subprocess.run(
        [*AGENT, "--run"], input=msgspec.json.encode(lost), capture_output=True, timeout=60
    )
    assert done.returncode == 126
    assert done.stderr.count(b"\n") == 1
