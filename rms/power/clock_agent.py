"""A node's frequencies: ``python -m rms.power.clock_agent`` on each node sets them.

It asks the daemon, again and again, what its cores and GPUs are to be set to, and tells why they
cannot be. They are put back when it ends, however that comes, and while the daemon is away.

Compute nodes import this, so it needs nothing but :mod:`rms.wire` and msgspec.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from rms.power.agent import ANSWER_S, PATIENCE_S, exchange
from rms.power.clocks import Clocks, Shares
from rms.power.frequency import FrequencyError
from rms.power.meter import MeterError
from rms.wire.http import UnreachableError
from rms.wire.messages import CLOCKS_PATH, ClockOrders, ClockReport

EVERY_S = 0.5
AWAY_S = 10.0
"""A daemon that has not answered for so long has ended: all is put back until it does."""

Ask = Callable[[ClockReport], ClockOrders]
"""Tells the daemon, and returns what it wants; raises UnreachableError or MeterError."""


@dataclass
class ClockAgent:
    """Sets what the daemon says.

    Attributes:
        cores: those of this node that are the allocation's.
        over: set when it is to end.
    """

    node: str
    ask: Ask
    clocks: Clocks
    cores: frozenset[int]
    over: threading.Event
    _orders: ClockOrders = field(default_factory=ClockOrders)
    _reason: str = ""

    def run(self) -> None:
        """Follow the daemon until it is over.

        Raises:
            MeterError: the daemon takes no reports, or does not answer any more.
        """
        answered_s = time.monotonic()
        try:
            while not self.over.wait(EVERY_S):
                try:
                    self.follow(self.ask(ClockReport(self.node, self._reason)))
                    answered_s = time.monotonic()
                except UnreachableError as error:
                    if time.monotonic() > answered_s + PATIENCE_S:
                        raise MeterError(str(error)) from None
                    if time.monotonic() > answered_s + AWAY_S:
                        self.follow(ClockOrders())
        finally:
            with contextlib.suppress(FrequencyError):  # its process has said so
                self.clocks.close()

    def follow(self, orders: ClockOrders) -> None:
        """Set what is wanted, if it is something else than before."""
        if orders == self._orders:
            return
        self._orders, self._reason = orders, ""
        try:
            self.clocks.set(self._here(orders.shares), orders.highest_mhz or None)
        except FrequencyError as error:
            self._reason = str(error)

    def _here(self, shares: Shares) -> Shares:
        """Return what is wanted of this node's devices: which of its cores a job has is Slurm's."""
        found = {slot: share for slot, share in shares.items() if slot.startswith("gpu:")}
        cores = [share for slot, share in shares.items() if slot not in found and share is not None]
        most = max(cores, default=None)
        return {**found, **{f"cpu:{core}": most for core in self.cores}}


def main() -> int:
    """Run until asked to end."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()

    def ask(report: ClockReport) -> ClockOrders:
        body = msgspec.json.encode(report)
        return msgspec.json.decode(
            exchange(os.environ, CLOCKS_PATH, body, ANSWER_S), type=ClockOrders
        )

    cores = frozenset(os.sched_getaffinity(0))
    try:
        ClockAgent(node, ask, Clocks(), cores, over).run()
    except (MeterError, KeyError, msgspec.DecodeError) as error:
        print(f"rms.power.clock_agent on {node}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
