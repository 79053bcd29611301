"""A remote shell through the agent of a host.

Grid Engine starts no more processes on a host than the job has slots there, so only the agent is
started by ``qrsh -inherit``: it starts whatever else runs there, for callers that know a key.
``python -m rms.launch.hosts.relay FILE HOST COMMAND`` calls the agent of a host, whose port and key
are in the file. As with ssh, standard streams are those of the caller, and the exit status is that
of the command, or 255 if the command or its host is lost.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from rms.launch.processes import INSTANCE_VARIABLE

LOST = 255
TAKEN = b"+"
CALL_S = 10.0  # time limit of a connection, and of a request on it
MOST_BYTES = 1 << 20  # limit of a request: the longest command of Linux has 2 MiB


class Call(msgspec.Struct):
    """The request of a caller.

    Attributes:
        end: the agent writes it after the output, with the exit status.
    """

    key: str
    end: str
    command: str


class Ports(msgspec.Struct):
    """The ports of agents by host, and their key; a file that only the user can read."""

    key: str
    ports: dict[str, int] = {}

    def write(self, file: Path) -> None:
        """Replace the file."""
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(msgspec.json.encode(self))
        part.rename(file)


class Relay:
    """The agent's side: starts commands whose standard streams are the connection of a caller."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._listener = socket.create_server(("", 0), backlog=128)
        self._listener.setblocking(False)
        self._asking: dict[socket.socket, tuple[float, bytes]] = {}
        self._running: list[tuple[subprocess.Popen[bytes], socket.socket, str]] = []

    @property
    def port(self) -> int:
        """The port on which it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def sockets(self) -> list[socket.socket]:
        """Return what to select on."""
        return [self._listener, *self._asking]

    def poll(self, ready: Collection[object]) -> bool:
        """Take calls, and report ends of commands; return whether a report has to wait."""
        if self._listener in ready:
            with contextlib.suppress(OSError):
                caller, _ = self._listener.accept()
                caller.setblocking(False)
                self._asking[caller] = time.monotonic(), b""
        for caller, (since_s, read) in list(self._asking.items()):
            if caller in ready:
                self._read(caller, since_s, read)
            elif time.monotonic() > since_s + CALL_S:
                self._refuse(caller)
        left = []
        for process, caller, end in self._running:
            code = process.poll()
            if code is None:
                left.append((process, caller, end))
                continue
            status = f"{end}{code if code >= 0 else 128 - code}\n".encode()
            try:
                caller.send(status, socket.MSG_DONTWAIT)  # a few bytes: all of them or none
            except BlockingIOError:
                left.append((process, caller, end))
                continue
            except OSError:
                pass
            caller.close()
        self._running = left
        return any(process.returncode is not None for process, _, _ in left)

    def _read(self, caller: socket.socket, since_s: float, read: bytes) -> None:
        try:
            new = caller.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            new = b""
        read += new
        if new and not read.endswith(b"\n") and len(read) <= MOST_BYTES:
            self._asking[caller] = since_s, read
            return
        try:
            call = msgspec.json.decode(read, type=Call)
        except (msgspec.DecodeError, msgspec.ValidationError):
            self._refuse(caller)
            return
        if not hmac.compare_digest(call.key.encode(), self._key):
            self._refuse(caller)
            return
        del self._asking[caller]
        self._start(caller, call)

    def _refuse(self, caller: socket.socket) -> None:
        del self._asking[caller]
        caller.close()

    def _start(self, caller: socket.socket, call: Call) -> None:
        caller.setblocking(True)  # for the command, which shares it
        own = {name: text for name, text in os.environ.items() if name != INSTANCE_VARIABLE}
        try:
            caller.send(TAKEN)
            process = subprocess.Popen(
                ["/bin/sh", "-c", call.command],
                stdin=caller.fileno(),
                stdout=caller.fileno(),
                stderr=caller.fileno(),
                env=own,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError):
            caller.close()
            return
        self._running.append((process, caller, call.end))


def call(host: str, address: tuple[str, int], key: str, command: str) -> int:
    """Run a command on a host; return its exit status."""
    end = f"\0{secrets.token_hex(16)}:"
    request = msgspec.json.encode(Call(key, end, command)) + b"\n"
    try:
        with socket.create_connection(address, CALL_S) as agent:
            agent.sendall(request)
            if agent.recv(len(TAKEN)) != TAKEN:
                raise ConnectionRefusedError("it refused the call")
            agent.settimeout(None)
            return _stream(agent, end.encode())
    except OSError as error:
        print(f"expected the agent of {host} to start a process, got: {error}", file=sys.stderr)
        return LOST


def _stream(agent: socket.socket, end: bytes) -> int:
    """Pass on standard input and output until the command ends."""
    reads: list[socket.socket | int] = [agent, 0]
    held = b""  # what may be the begin of the end
    while True:
        ready, _, _ = select.select(reads, [], [])
        if 0 in ready:
            read = os.read(0, 1 << 16)
            if read:
                agent.sendall(read)
            else:
                reads.remove(0)
                agent.shutdown(socket.SHUT_WR)
        if agent not in ready:
            continue
        read = agent.recv(1 << 16)
        output, found, status = (held + read).partition(end)
        if found and status.endswith(b"\n"):
            _write(output)
            return int(status)
        if not read:
            _write(held)
            raise ConnectionResetError("it has ended")
        if found:
            _write(output)
            held = end + status
            continue
        held += read
        first = held.rfind(end[:1])
        if first < 0 or not end.startswith(held[first:]):
            first = len(held)
        _write(held[:first])
        held = held[first:]


def _write(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


def main() -> int:
    """Call the agent of a host."""
    file, host, *words = sys.argv[1:]
    try:
        known = msgspec.json.decode(Path(file).read_bytes(), type=Ports)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        print(f"expected the ports of agents in {file}, got: {error}", file=sys.stderr)
        return LOST
    if host not in known.ports:
        print(f"expected a host of {', '.join(known.ports)}, got {host}", file=sys.stderr)
        return LOST
    return call(host, (host, known.ports[host]), known.key, " ".join(words))


if __name__ == "__main__":
    sys.exit(main())
