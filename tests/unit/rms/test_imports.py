"""What compute nodes import: a program starts there for each rank and for each launcher line."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

TELL_MODULES = """
import atexit, os, pathlib, sys
atexit.register(
    lambda: pathlib.Path(os.environ["MODULES_FILE"]).write_text("\\n".join(sorted(sys.modules)))
)
"""

OF_LAUNCH = {"rms.cli", "rms.cli.main", "rms.client", "rms.client.connection", "rms.client.launch"}
OF_WIRE = {
    "rms",
    "rms._version",
    "rms.wire",
    "rms.wire.messages",
    "rms.wire.files",
    "rms.wire.http",
}
HEAVY = {"numpy", "matplotlib", "rich", "sqlite3", "asyncio", "mpi4py"}
HEAVY |= {"starlette", "uvicorn", "uvloop", "httptools"}


class Steps(BaseHTTPRequestHandler):
    """Stands in for the daemon: takes one launcher line, whose step ends with status 3."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Server)
        self.server.asked.append((self.path, json.loads(body)))
        self._answer({"step": 7})

    def do_GET(self) -> None:
        assert self.path == "/jobs/5/steps/7?run=0"
        self._answer({"exit_code": 3, "message": "died"})

    def _answer(self, found: object) -> None:
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(socketserver.UnixStreamServer):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Steps)
        self.asked: list[tuple[str, dict[str, object]]] = []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)  # short: socket paths are limited
    with Server(Path("socket")) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def modules(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Run Python; return the modules it had loaded at its end, and what it said."""
    hook, found = folder / "hook", folder / "modules.txt"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(TELL_MODULES)
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, "MODULES_FILE": str(found)} | (env or {}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return set(found.read_text().split()), done


def of(package: str, loaded: set[str]) -> set[str]:
    return {name for name in loaded if name == package or name.startswith(f"{package}.")}


def test_a_launcher_line_imports_the_messages_and_little_else(
    server: Server, tmp_path: Path
) -> None:
    """``srun``, ``mpirun`` and ``mpiexec`` of a job script are this command."""
    env = {"RMS_SERVER": f"unix:{tmp_path}/socket", "RMS_JOB_ID": "5", "RMS_TOKEN": "token"}
    words = ("-m", "rms", "launch", "--as", "mpirun", "--", "-n", "2", "true", "--its", "own")
    loaded, done = modules(tmp_path, *words, env=env)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, "rms: died")
    ((path, body),) = server.asked
    assert (path, body["command"]) == ("/jobs/5/steps?run=0", ["true", "--its", "own"])
    assert of("rms", loaded) == OF_WIRE | OF_LAUNCH | {"rms.wire.mpiexec", "rms.wire.terminal"}
    assert not of("dmr", loaded) | of("mpdata", loaded) | HEAVY & loaded


@pytest.mark.parametrize("module", ["dmr", "dmr.wire.rms", "mpdata"])
def test_a_program_imports_nothing_of_rms_but_its_messages(module: str, tmp_path: Path) -> None:
    loaded, done = modules(tmp_path, "-c", f"import {module}")
    assert done.returncode == 0, done.stderr
    assert of("rms", loaded) <= OF_WIRE
    assert not HEAVY & loaded


def test_the_adapter_of_a_job_imports_what_a_launcher_line_does(tmp_path: Path) -> None:
    loaded, done = modules(tmp_path, "-c", "import rms.client.adapter")
    assert done.returncode == 0, done.stderr
    of_adapter = {"rms.client.adapter", "rms.wire.mpiexec", "rms.wire.terminal"}
    assert of("rms", loaded) == OF_WIRE | of_adapter | OF_LAUNCH - {"rms.cli", "rms.cli.main"}
    assert not of("dmr", loaded) | of("mpdata", loaded) | HEAVY & loaded
