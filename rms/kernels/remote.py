"""Kernels on another node: a process there runs the kernel, and the data travels to it and back.

The daemon starts the process, which connects to the application. Both authenticate by a key of this
run (HMAC) before anything is unpickled. Arrays travel as they are in memory, not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_preparation_data, prepare
from queue import SimpleQueue
from typing import Any

from rms.kernels.places import Kernel, Place, bound, put_back, work

Link = Connection

ADDRESS_VARIABLE = "RMS_KERNEL_ADDRESS"
KEY_VARIABLE = "RMS_KERNEL_KEY"

START_S = 120.0  # deadline for a process on another node to connect
LOOK_S = 0.05  # interval at which the application checks whether the kernel is to stop
PROOF_S = 10.0  # deadline for the proof of a connection that it has the key
MOST_UNVERIFIED = 64  # maximum number of connections without a valid proof at a time
NONCE_BYTES = 32
STOP = b"stop"
START = "from rms.kernels.remote import main; main()"


class RemoteError(RuntimeError):
    """A kernel's process on another node could not be started, or is gone."""


def run_remotely(
    kernel: Kernel,
    data: Any,
    where: Place,
    begin: Callable[[list[str], Mapping[str, str]], None],
    stop: Callable[[], bool],
    ended: Callable[[], str],
) -> bool:
    """Run a kernel on another node; return whether it is done (or was stopped).

    Args:
        data: has the result afterwards; if this fails, it is unchanged.
        begin: lets the daemon start a command there, with these variables.
        stop: returns whether the kernel is to stop at its next yield point.
        ended: returns the reason why its process is over, "" while it is not.
    """
    moved = data if kernel.copy_in is None else kernel.copy_in(data)
    with _listening(local=all("/" not in slot for slot in where.slots)) as (listener, address):
        key = secrets.token_hex(32)
        variables = {ADDRESS_VARIABLE: address, KEY_VARIABLE: key}
        begin([sys.executable, "-P", "-c", START], variables)
        with _accepted(listener, key, ended) as connection:
            about = get_preparation_data("kernel")
            del about["authkey"]  # the secret of multiprocessing
            _send(connection, about)
            _send(connection, (kernel.function, moved, where))
            done, error, moved = _awaited(connection, stop, ended)
    if error is not None:
        raise error
    (kernel.copy_out or put_back)(moved, data)
    return bool(done)


def check_sendable(function: Callable[[Any], Any]) -> None:
    """Raise a ValueError for a function that another process cannot import."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ValueError(
            f"expected a module's own function as a kernel for another node, got {function!r}"
        ) from None


@contextlib.contextmanager
def _listening(*, local: bool) -> Iterator[tuple[socket.socket, str]]:
    """Listen for one connection; for a local one at a socket in a folder of this user's own."""
    with contextlib.ExitStack() as stack:
        if local:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rms-kernel-"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            address = f"{folder}/socket"
            listener.bind(address)
        else:
            listener = stack.enter_context(socket.create_server(("", 0)))
            address = f"{socket.gethostname()}:{listener.getsockname()[1]}"
        listener.listen()
        listener.settimeout(LOOK_S)
        yield listener, address


@contextlib.contextmanager
def _accepted(listener: socket.socket, key: str, ended: Callable[[], str]) -> Iterator[Link]:
    """Accept the connection that proves to have the key; close the others."""
    until_s, proven = time.monotonic() + START_S, SimpleQueue[Link]()
    room = threading.BoundedSemaphore(MOST_UNVERIFIED)
    while proven.empty():
        if why := ended():
            raise RemoteError(f"expected a process on another node, got its end: {why}")
        if time.monotonic() > until_s:
            raise RemoteError(f"expected a process on another node within {START_S:g} s, got none")
        if not room.acquire(timeout=LOOK_S):
            continue  # further connections wait in the backlog
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            room.release()
            continue
        arguments = sock, key, proven, room
        threading.Thread(target=_authenticate, args=arguments, daemon=True).start()
    with proven.get() as connection:
        yield connection


def _authenticate(
    sock: socket.socket, key: str, proven: SimpleQueue[Link], room: threading.BoundedSemaphore
) -> None:
    """Put a connection into ``proven`` if the other side proves in time that it has the key."""
    sock.setblocking(True)
    connection = Connection(os.dup(sock.fileno()))

    def give_up() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    late = threading.Timer(PROOF_S, give_up)
    late.daemon = True
    late.start()
    try:
        if _proven(connection, key, b"application", b"kernel"):
            proven.put(connection)
        else:
            connection.close()
    except (OSError, EOFError):
        connection.close()
    finally:
        late.cancel()
        late.join()
        sock.close()
        room.release()


def _proven(connection: Link, key: str, own: bytes, other: bytes) -> bool:
    """Prove that this side has the key; return whether the other side does."""
    mine = secrets.token_bytes(NONCE_BYTES)
    connection.send_bytes(mine)
    theirs = _unverified(connection)
    connection.send_bytes(hmac.digest(key.encode(), own + theirs, "sha256"))
    return hmac.compare_digest(
        _unverified(connection), hmac.digest(key.encode(), other + mine, "sha256")
    )


def _unverified(connection: Link) -> bytes:
    """Return a short message of the other side, which is not authenticated yet."""
    if not connection.poll(START_S):
        raise OSError(f"expected a message within {START_S:g} s, got none")
    return connection.recv_bytes(NONCE_BYTES)


def _awaited(connection: Link, stop: Callable[[], bool], ended: Callable[[], str]) -> Any:
    """Return the result of the kernel's process; let the process stop when ``stop`` says so."""
    stopping = False
    try:
        while not connection.poll(LOOK_S):
            if not stopping and stop():
                stopping = True
                connection.send_bytes(STOP)
        return _received(connection)
    except (EOFError, OSError) as error:
        why = ended() or str(error) or "its connection ended"
        raise RemoteError(f"expected a result from another node, got none: {why}") from None


def _send(connection: Link, value: Any) -> None:
    """Send a pickle, then the memory of the arrays in it."""
    buffers = list[pickle.PickleBuffer]()
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    connection.send_bytes(len(buffers).to_bytes(4, "big") + body)
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def _received(connection: Link) -> Any:
    body = memoryview(connection.recv_bytes())
    count = int.from_bytes(body[:4], "big")
    return pickle.loads(
        body[4:], buffers=[bytearray(connection.recv_bytes()) for _ in range(count)]
    )


# --- In the kernel's process -----------------------------------------------------------------


def main() -> None:
    """Run one kernel for the application that had this process started."""
    address, key = os.environ.pop(ADDRESS_VARIABLE), os.environ.pop(KEY_VARIABLE)
    if "/" in address:
        client = socket.socket(socket.AF_UNIX)
        client.connect(address)
    else:
        host, _, port = address.rpartition(":")
        client = socket.create_connection((host, int(port)))
    connection: Link = Connection(client.detach())
    if not _proven(connection, key, b"kernel", b"application"):
        raise SystemExit("expected the application that had this process started, got another")
    prepare(_received(connection))
    function, data, where = _received(connection)
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, stop), daemon=True).start()
    done, error = True, None
    try:
        with bound(where):
            done = work(function, data, stop.is_set)
    except Exception as raised:
        error = _sendable(raised)
        error.add_note(f"on {where.device}:\n{traceback.format_exc()}")
    try:
        _send(connection, (done, error, data if error is None else None))
    except (pickle.PicklingError, AttributeError, TypeError) as unsendable:
        why = f"expected data that can be sent back, got {unsendable}"
        _send(connection, (False, RemoteError(why), None))
    threading.Event().wait()  # until the application has it all, and ends the connection


def _sendable(raised: Exception) -> Exception:
    """Return an exception, or a RemoteError with its description if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(raised))
    except Exception:
        return RemoteError(repr(raised))
    return raised


def _listen(connection: Link, stop: threading.Event) -> None:
    """Take the request to stop the kernel; end this process with the connection."""
    with contextlib.suppress(EOFError, OSError):
        while connection.recv_bytes() == STOP:
            stop.set()
    os._exit(0)
