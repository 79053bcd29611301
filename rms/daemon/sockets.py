"""Where a daemon listens: a Unix socket that only its owner can open, or TCP."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import resource
import socket
from pathlib import Path

LONGEST_UNIX_PATH = 100
"""Systems allow 104 to 108 bytes, and their own error says nothing of that."""

MOST_PORT = 65_535
_PORT = re.compile("[0-9]{1,5}")

MOST_FILES = 16384
"""A poll that is held is an open file."""


class ServeError(Exception):
    """The daemon cannot be started here; one sentence."""


def bind(listen: str) -> tuple[socket.socket, str]:
    """Open the listening socket; return it and the address clients use.

    Raises:
        ServeError: the path is too long, in use, or another owner's.
    """
    check_address(listen)
    if listen.startswith("unix:"):
        return _bind_unix(Path(listen.removeprefix("unix:"))), listen
    host, _, port = listen.removeprefix("tcp:").rpartition(":")
    try:
        server = socket.create_server((host, int(port)))
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # which names the address again
        raise ServeError(f"cannot listen on {listen}: {why}") from None
    return server, f"http://{host}:{server.getsockname()[1]}"


def check_address(listen: str) -> None:
    """See that a daemon could listen there, and that none does.

    Raises:
        ServeError: it is no address, its path is too long, in use, or another owner's.
    """
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        if len(os.fsencode(path)) > LONGEST_UNIX_PATH:
            raise ServeError(
                f"expected a socket path of at most {LONGEST_UNIX_PATH} bytes, got {path}"
            )
        if path.exists() or path.is_symlink():
            _check_stale(path)
        return
    kind, _, rest = listen.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not _PORT.fullmatch(port) or int(port) > MOST_PORT:
        raise ServeError(f"expected unix:PATH or tcp:HOST:PORT, got {listen!r}")


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own, which nobody reaches from another."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_loopback(listen: str) -> None:
    """Refuse to be reached from other machines: what users say and show is not encrypted.

    Raises:
        ServeError: an address of TCP that is not this machine's own.
    """
    host = listen.removeprefix("tcp:").rpartition(":")[0].strip("[]")
    if listen.startswith("tcp:") and host != "localhost" and not is_loopback(host):
        raise ServeError(
            "expected unix:PATH, or tcp:127.0.0.1:PORT, which users of other machines reach by "
            f"ssh -L, got {listen}"
        )


def _bind_unix(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # of a daemon that was killed
    server = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise ServeError(f"cannot make the socket {path}: {error}") from None
    finally:
        os.umask(before)
    server.listen(128)
    return server


def _check_stale(path: Path) -> None:
    """See that a path is the socket of a daemon that is gone; refuse to take another's place."""
    if not path.is_socket():
        raise ServeError(f"expected a path for a socket, got {path}, which is something else")
    if path.stat().st_uid != os.getuid():
        raise ServeError(f"expected a socket of one's own, got {path} of another owner")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise ServeError(f"another daemon answers at {path}; expected a socket not in use")


def close(listening: socket.socket, listen: str) -> None:
    """Close a listening socket and remove its path."""
    listening.close()
    if listen.startswith("unix:"):
        Path(listen.removeprefix("unix:")).unlink(missing_ok=True)


def raise_open_files() -> int:
    """Return how many files this process may have open, having raised that as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if wanted > soft != resource.RLIM_INFINITY:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
