"""A remote shell through an agent: streams and status as with ssh, for those that know the key."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from processes import started, until

from rms.launch.hosts.agent import Answer, Order
from rms.launch.hosts.relay import LOST, Call, Ports
from rms.launch.processes import INSTANCE_VARIABLE

HOST = "127.0.0.1"
KEY = "secret"


class Relayed:
    """An agent with a relay, and calls of it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.file, self.port = folder / "ports.json", port
        Ports(KEY, {HOST: port}).write(self.file)

    def call(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-P", "-m", "rms.launch.hosts.relay", str(self.file), *words]
        return subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Relayed]:
    instance = uuid.uuid4().hex
    env = {**os.environ, INSTANCE_VARIABLE: f"{instance}:agent"}
    words = [sys.executable, "-P", "-m", "rms.launch.hosts.agent", instance, "60"]
    with started(words, stdin=subprocess.PIPE, env=env) as agent:
        agent.stdin.write(msgspec.json.encode(Order(1, key=KEY)).decode() + "\n")
        agent.stdin.flush()
        yield Relayed(tmp_path, msgspec.json.decode(agent.stdout.readline(), type=Answer).port)
        agent.stdin.close()


def test_streams_and_status(relayed: Relayed) -> None:
    text = os.urandom(1 << 20)
    done = relayed.call(HOST, "cat; exit 5", given=text)
    assert (done.returncode, done.stdout) == (5, text)
    done = relayed.call(HOST, "printf '\\0\\0a'; kill -KILL $$")
    assert (done.returncode, done.stdout) == (128 + 9, b"\0\0a")
    done = relayed.call(HOST, f"echo ${INSTANCE_VARIABLE}.", "two words")
    assert done.stdout == b". two words\n"


def test_it_returns_with_its_command(relayed: Relayed) -> None:
    """What that leaves behind may hold the outputs."""
    done = relayed.call(HOST, "sleep 600 & echo $!")
    assert done.returncode == 0
    os.kill(int(done.stdout), 9)


def test_a_wrong_key_starts_nothing(relayed: Relayed, tmp_path: Path) -> None:
    for request in (
        msgspec.json.encode(Call("another", "end", f"touch {tmp_path}/no")) + b"\n",
        b"garbled\n",
        b'{"key": "secret"}\n',
        b"",
    ):
        with socket.create_connection((HOST, relayed.port), 60) as caller:
            caller.sendall(request)
            caller.shutdown(socket.SHUT_WR)
            assert caller.recv(1) == b""
    assert relayed.call(HOST, "echo yes").stdout == b"yes\n"
    assert not (tmp_path / "no").exists()


def test_a_host_that_cannot_be_called(relayed: Relayed, tmp_path: Path) -> None:
    done = relayed.call("n9", "true")
    assert (done.returncode, done.stderr) == (LOST, f"expected a host of {HOST}, got n9\n".encode())
    Ports("wrong", {HOST: relayed.port}).write(relayed.file)
    done = relayed.call(HOST, "true")
    assert done.returncode == LOST and done.stderr.count(b"\n") == 1
    relayed.file.unlink()
    assert relayed.call(HOST, "true").stderr.startswith(b"expected the ports of agents in ")


def test_the_file_of_the_key_is_the_users_alone(relayed: Relayed) -> None:
    assert relayed.file.stat().st_mode & 0o777 == 0o600
    assert json.loads(relayed.file.read_bytes()) == {"key": KEY, "ports": {HOST: relayed.port}}


def test_many_at_once(relayed: Relayed) -> None:
    words = [sys.executable, "-P", "-m", "rms.launch.hosts.relay", str(relayed.file), HOST]
    calls = [subprocess.Popen([*words, f"exit {n}"], stdin=subprocess.DEVNULL) for n in range(8)]
    assert [call.wait(60) for call in calls] == list(range(8))
    until(lambda: relayed.call(HOST, "true").returncode == 0)
