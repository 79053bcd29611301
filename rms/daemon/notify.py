"""What systemd is told of a daemon (``Type=notify``, sd_notify(3)): a datagram to its socket."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Mapping

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"


class Notifier:
    """Tells the service manager how a daemon is; where there is none, nobody.

    Args:
        env: where the manager has said how it is reached, and how often it wants to hear.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        where = env.get(SOCKET_VARIABLE, "")
        self._address = f"\0{where[1:]}" if where.startswith("@") else where
        self._alive_s, self._told_s = _watchdog_s(env) / 2, -math.inf

    def tell(self, *lines: str) -> None:
        """Send ``READY=1``, ``STOPPING=1``, ``STATUS=...``; what cannot be sent is not."""
        if not self._address.startswith(("/", "\0")):
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending,
        ):
            sending.sendto("\n".join(lines).encode(), self._address)

    def alive(self, now_s: float) -> None:
        """Say that the daemon goes on, twice in the time in which that is to be heard.

        Args:
            now_s: a monotonic clock's time.
        """
        if now_s >= self._told_s + self._alive_s:
            self._told_s = now_s
            self.tell("WATCHDOG=1")


def _watchdog_s(env: Mapping[str, str]) -> float:
    """Return within which time the manager wants to hear of this process, else infinity."""
    if env.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) != str(os.getpid()):
        return math.inf
    try:
        return int(env.get(WATCHDOG_VARIABLE, "")) / 1e6
    except ValueError:
        return math.inf
