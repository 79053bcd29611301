"""The private part of a daemon: its folder, its secrets, and the sockets that it listens on.

Other users are kept out by the folder itself (mode 700, checked at every start). Secrets are in
files of mode 600 besides, and not in the journal, which users copy and pass on. The functions raise
a :class:`ServeError` if a check fails.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import resource
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from rms.launch.base import LaunchError
from rms.wire.files import write_whole


class ServeError(Exception):
    """The daemon cannot be started here; one sentence."""


# --- the folder ----------------------------------------------------------------------------------

OTHERS = 0o077  # bits of a mode that let others than the owner in


def make_folder(state: Path) -> None:
    """Make the daemon's folder, or check that no other user can open or replace it.

    Members of a group that may write to a folder above, and its owner, are not excluded.
    """
    try:
        if not state.exists():
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        expected = f"expected a state folder that can be made, got {state}"
        raise ServeError(f"{expected}: {error.strerror}") from None
    check_folder(state)


def check_folder(state: Path) -> None:
    """Check that no other user can open or replace a folder; a missing one passes."""
    if not state.exists():
        return
    if not state.is_dir():
        raise ServeError(f"expected a folder for --state, got {state}, which is a file")
    status = state.stat()
    if status.st_uid != os.geteuid():
        raise ServeError(
            f"expected a state folder of one's own (user {os.geteuid()}), got {state} of user "
            f"{status.st_uid}"
        )
    if status.st_mode & OTHERS:
        raise ServeError(
            f"expected a state folder that only its owner can open (chmod 700 {state}), got mode "
            f"{stat.S_IMODE(status.st_mode):o}"
        )
    for above in state.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ServeError(
                f"expected a state folder that no other user can replace, got {state}, below "
                f"{above} of mode {stat.S_IMODE(mode):o}"
            )


@contextlib.contextmanager
def owner_only(mask: int = OTHERS) -> Iterator[None]:
    """Make files of the block that only their owner can open. Jobs keep the umask of the user."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def secret(path: Path) -> str:
    """Return the secret in a file that only its owner can read; a missing one is made."""
    with contextlib.suppress(FileNotFoundError):
        if text := path.read_text().strip():
            return text
    text = secrets.token_hex(16)
    write_whole(path, text, sync=True, mode=0o600)
    return text


def line_file(job: str, number: int) -> str:
    """Return the file name of the environment of a job's launcher line."""
    return f"{job}/line-{number}"


class Private:
    """Tokens of jobs, and the environments of their submissions and launcher lines."""

    def __init__(self, folder: Path, instance_id: str) -> None:
        self._folder, self._instance_id = folder, instance_id
        self._newest: tuple[str, dict[str, str]] = "", {}
        self._keyed: hmac.HMAC | None = None

    def token(self, job: str) -> str:
        """Return the HMAC-SHA256 of the journal's and the job's id, by a key in a file."""
        if self._keyed is None:
            self._keyed = hmac.new(secret(self._folder / "key").encode(), digestmod="sha256")
        token = self._keyed.copy()  # the key is hashed once, as every poll has a token
        token.update(f"{self._instance_id}/{job}".encode())
        return token.hexdigest()

    def keep(self, name: str, env: Mapping[str, str], *, sync: bool = False) -> None:
        """Write an environment to a file below ``jobs/`` of mode 600."""
        path = self._folder / "jobs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(env), sync=sync, mode=0o600)
        self._newest = "", {}

    def kept(self, name: str) -> dict[str, str]:
        """Return an environment from its file; a missing file is a LaunchError."""
        if self._newest[0] != name:
            path = self._folder / "jobs" / name
            try:
                env = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
            except (OSError, ValueError) as error:
                raise LaunchError(f"expected the environment in {path}, got: {error}") from None
            self._newest = name, env
        return self._newest[1]


# --- the sockets ---------------------------------------------------------------------------------

# Systems allow 104 to 108 bytes, and their own error does not name the limit.
LONGEST_UNIX_PATH = 100
MOST_PORT = 65_535
_PORT = re.compile("[0-9]{1,5}")
MOST_FILES = 16384  # wanted limit of open files; a held poll is an open file


def bind(listen: str) -> tuple[socket.socket, str]:
    """Open the listening socket; return it and the address for clients."""
    check_address(listen)
    if listen.startswith("unix:"):
        return _bind_unix(Path(listen.removeprefix("unix:"))), listen
    host, _, port = listen.removeprefix("tcp:").rpartition(":")
    try:
        server = socket.create_server((_interface(host), int(port)))
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # which names the address again
        raise ServeError(f"cannot listen on {listen}: {why}") from None
    return server, f"http://{host}:{server.getsockname()[1]}"


def _interface(host: str) -> str:
    """Return the address to bind for a host; "" for all, where a name means this machine alone.

    Debian and others give a machine's own name a loopback address there; other machines know the
    name by another one.
    """
    if host == "localhost" or is_loopback(host):
        return host
    with contextlib.suppress(OSError):
        return "" if is_loopback(socket.gethostbyname(host)) else host
    return host


def check_address(listen: str) -> None:
    """Check that a daemon can listen at an address, and that none does."""
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
    """Return whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_loopback(listen: str) -> None:
    """Refuse addresses that other machines reach, as users' messages are not encrypted."""
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
    try:
        with owner_only(0o177):
            server.bind(str(path))
    except OSError as error:
        server.close()
        raise ServeError(f"cannot make the socket {path}: {error}") from None
    server.listen(128)
    return server


def _check_stale(path: Path) -> None:
    """Check that a path is the socket of a daemon that has ended."""
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
    """Raise the limit of open files as far as allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if wanted > soft != resource.RLIM_INFINITY:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
