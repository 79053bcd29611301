"""A daemon on one of its hosts: the agent there signalled the daemon's own shells with the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
from processes import started, until

from rms.launch.hosts.agent import Order
from rms.launch.processes import INSTANCE_VARIABLE, KEEP_STATUS, alive

SCRIPT = """trap 'echo leaving > said; exit 0' TERM
touch there
sleep 600 & wait
"""


def test_a_script_gets_sigterm_and_its_remote_shell_does_not(tmp_path: Path) -> None:
    instance = uuid.uuid4().hex
    env = {**os.environ, INSTANCE_VARIABLE: f"{instance}:7", "RMS_STATUS": str(tmp_path / "status")}
    remote = ["sleep", "600"]  # as ssh, which the daemon runs for a script on another host
    words = [sys.executable, "-P", "-m", "rms.launch.hosts.agent", instance, "60"]
    with (
        started(["/bin/sh", "-c", KEEP_STATUS, "job", *remote], env=env, cwd=tmp_path) as shell,
        started(["/bin/sh", "-c", SCRIPT], env=env, cwd=tmp_path) as script,
        started(words, stdin=subprocess.PIPE) as agent,
    ):
        until((tmp_path / "there").exists)
        order = Order(1, sends=[("7", int(signal.SIGTERM), "all")])
        agent.stdin.write(msgspec.json.encode(order).decode() + "\n")
        agent.stdin.flush()
        assert script.wait(60) == 0
        assert (tmp_path / "said").read_text() == "leaving\n"
        assert agent.stdout.readline()
        assert alive(shell.pid) and not (tmp_path / "status").exists()
        agent.stdin.close()
