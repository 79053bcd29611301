"""The agent of a node: ``python -m rms.power.agent`` reads its meters or sets its frequencies.

The agent of the meters reports cumulative sums, which continue those that the daemon has booked,
with ``--activity`` also the activity of jobs. A node without meters is reported once, with the
reason.

With ``--clocks`` it polls the daemon for frequencies, and sets them until it ends, or the daemon is
away.

Compute nodes import this module, so it needs only :mod:`rms.wire` and msgspec.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import msgspec

from rms.power.activity import ActivityReader
from rms.power.choice import MeterChoice
from rms.power.frequency import Clocks, FrequencyError, Shares
from rms.power.meter import MeterError, NodeMeter, boot_id, boottime
from rms.wire.http import Connection, UnreachableError
from rms.wire.messages import (
    CLOCKS_PATH,
    METER_PATH,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    Activity,
    ClockOrders,
    ClockReport,
    DeviceEnergy,
    MeterAnswer,
    Metered,
)

PATIENCE_S = 600.0  # an agent ends when the daemon has been away for so long
AGAIN_S = 1.0  # time between two tries to reach a daemon that is away
ANSWER_S = 30.0  # time limit of the daemon's answer
LAST_WORD_S = 2.0  # time limit of the last report, once the agent has to end
CLOCKS_EVERY_S = 0.5  # time between two polls for frequencies
AWAY_S = 10.0  # frequencies are restored when the daemon has been away for so long
Answer = TypeVar("Answer")
Send = Callable[[Metered, float], MeterAnswer]
"""Sends a report to the daemon with a timeout; raises UnreachableError or MeterError."""

Follow = Callable[[ClockReport], ClockOrders]
"""Sends a report to the daemon; raises UnreachableError or MeterError."""


class Daemon:
    """The daemon that the environment names, over a connection that is kept.

    Raises:
        MeterError: the environment names none.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        for name in (SERVER_VARIABLE, TOKEN_VARIABLE):
            if name not in env:
                raise MeterError(f"expected a daemon in the environment variable {name}, got none")
        self._server, self._token = env[SERVER_VARIABLE], env[TOKEN_VARIABLE]
        self._connection: Connection | None = None
        self._timeout_s = 0.0

    def exchange(
        self, path: str, answer: type[Answer], message: object, timeout_s: float
    ) -> Answer:
        """Send a message; return the answer.

        Raises:
            UnreachableError: the daemon does not answer, or has an internal error.
            MeterError: another daemon has answered, or none.
        """
        body = msgspec.json.encode(message)
        try:
            status, text = self._connected(timeout_s).request("POST", path, body, self._token)
            if status == 200:
                return msgspec.json.decode(text, type=answer)
        except ValueError as error:  # the address, or the answer, is not a daemon's
            raise MeterError(str(error)) from None
        got = f"the daemon answered {status}: {text.decode(errors='replace')[:200]}"
        if status >= 500:
            raise UnreachableError(got)
        raise MeterError(got)

    def close(self) -> None:
        """Close the connection; the next message opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, timeout_s: float) -> Connection:
        if self._connection is None or timeout_s != self._timeout_s:
            self.close()
            self._connection, self._timeout_s = Connection(self._server, timeout_s), timeout_s
        return self._connection


# --- meters ----------------------------------------------------------------------------------


@dataclass
class Mailbox:
    """Sends reports to the daemon on a thread, so that readings go on meanwhile.

    Reports are cumulative, so those that wait are merged into one.

    Attributes:
        error: why sending has ended, "" before.
    """

    send: Send
    over: threading.Event
    error: str = ""
    _reports: SimpleQueue[Metered | None] = field(default_factory=SimpleQueue)
    _closing: bool = False
    _thread: threading.Thread | None = None

    def put(self, report: Metered) -> None:
        """Send a report with those that wait."""
        self._reports.put(report)
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Send the last reports, if the daemon answers soon."""
        self._closing = True
        self._reports.put(None)
        if self._thread is not None:
            self._thread.join(LAST_WORD_S)

    def _deliver(self) -> None:
        report, answered_s = None, time.monotonic()
        while not self.error:
            report = report or self._reports.get()
            while not self._reports.empty():
                report = _merged(report, self._reports.get())
            if report is None:
                return
            last = self._closing
            try:
                self.send(report, LAST_WORD_S if last else ANSWER_S)
                report, answered_s = None, time.monotonic()
            except (MeterError, UnreachableError) as error:
                away = isinstance(error, UnreachableError)
                if not away or time.monotonic() > answered_s + PATIENCE_S:
                    self.error = str(error)
                    self.over.set()
                self.over.wait(AGAIN_S)
            if last:
                return


@dataclass
class Agent:
    """Reads a node's meters and reports them, with the activity of jobs."""

    node: str
    meter: NodeMeter
    send: Send
    every_s: float
    over: threading.Event
    activity: Callable[[], list[Activity]] = list
    clock: Callable[[], float] = boottime
    wall: Callable[[], float] = time.time
    boot: str = field(default_factory=boot_id)
    _id: str = field(default_factory=lambda: secrets.token_hex(8))
    _number: int = 0

    def run(self) -> None:
        """Report until it is over; a node without meters is reported once."""
        if not self._resume():
            return
        box = Mailbox(self.send, self.over)
        due_s, reported = self.clock(), set[str]()
        fresh: dict[str, DeviceEnergy] = {}
        while not self.over.is_set():
            now_s = self.clock()
            failed = self._read(now_s, fresh)
            nothing = bool(failed) and not reported
            if now_s >= due_s or nothing or fresh.keys() - reported:  # a new device begins here
                reported |= fresh.keys()
                box.put(self._report(fresh, failed))
                due_s = now_s + self.every_s
            if nothing:
                break  # a node without meters, which is reported now
            self.over.wait(max(0.0, min(self.meter.every_s, due_s - now_s)))
        if reported and not box.error:
            box.put(self._report(fresh, self._read(self.clock(), fresh)))
        box.close()
        if box.error:
            raise MeterError(box.error)

    def _read(self, now_s: float, fresh: dict[str, DeviceEnergy]) -> str:
        """Read all devices into ``fresh``; return the reason if none can be read, or ""."""
        try:
            fresh.update((device.device, device) for device in self.meter.read(now_s))
        except MeterError as error:
            return str(error)
        return ""

    def _report(self, fresh: dict[str, DeviceEnergy], failed: str) -> Metered:
        self._number += 1
        devices = list(fresh.values())
        fresh.clear()
        own = self.node, self._id, self._number, self.wall(), self.boot, devices
        return Metered(*own, failed or self.meter.reason, self.activity())

    def _resume(self) -> bool:
        """Continue from the sums of the daemon's books; return False if the agent has to end."""
        until_s = time.monotonic() + PATIENCE_S
        while not self.over.is_set():
            try:
                first = Metered(self.node, self._id, 0, self.wall(), self.boot)
                answer = self.send(first, ANSWER_S)
            except UnreachableError as error:
                if time.monotonic() > until_s:
                    raise MeterError(str(error)) from None
                self.over.wait(AGAIN_S)
                continue
            if answer.known:
                gap_s = max(0.0, self.wall() - answer.at_s)
                self.meter.resume(answer.known, gap_s, answer.boot == self.boot)
            return True
        return False


def _merged(before: Metered | None, after: Metered | None) -> Metered | None:
    """Return one report for two, with the newest reading of every device and owner."""
    if before is None or after is None:
        return after or before
    devices = {device.device: device for device in (*before.devices, *after.devices)}
    activity = {own.owner: own for own in (*before.activity, *after.activity)}
    return msgspec.structs.replace(
        after, devices=list(devices.values()), activity=list(activity.values())
    )


# --- frequencies -----------------------------------------------------------------------------


@dataclass
class ClockAgent:
    """Sets the frequencies that the daemon orders.

    Attributes:
        cores: cores of this node that belong to the allocation.
    """

    node: str
    poll: Follow
    clocks: Clocks
    cores: frozenset[int]
    over: threading.Event
    _orders: ClockOrders = field(default_factory=ClockOrders)
    _reason: str = ""

    def run(self) -> None:
        """Follow the daemon until it is over."""
        answered_s = time.monotonic()
        try:
            while not self.over.wait(CLOCKS_EVERY_S):
                try:
                    self.follow(self.poll(ClockReport(self.node, self._reason)))
                    answered_s = time.monotonic()
                except UnreachableError as error:
                    if time.monotonic() > answered_s + PATIENCE_S:
                        raise MeterError(str(error)) from None
                    if time.monotonic() > answered_s + AWAY_S:
                        self.follow(ClockOrders())
        finally:
            with contextlib.suppress(FrequencyError):  # its guard has printed it
                self.clocks.close()

    def follow(self, orders: ClockOrders) -> None:
        """Set frequencies if the orders have changed."""
        if orders == self._orders:
            return
        self._orders, self._reason = orders, ""
        try:
            self.clocks.set(self._here(orders.shares), orders.highest_mhz or None)
        except FrequencyError as error:
            self._reason = str(error)

    def _here(self, shares: Shares) -> Shares:
        """Return the shares of this node's devices; Slurm chooses the cores of a job."""
        gpus = {slot: share for slot, share in shares.items() if slot.startswith("gpu:")}
        cores = [share for slot, share in shares.items() if slot not in gpus and share is not None]
        most = max(cores, default=None)
        return {**gpus, **{f"cpu:{core}": most for core in self.cores}}


# --- the program -----------------------------------------------------------------------------


def _activity(
    groups: str | None, gpus: Callable[[], Mapping[str, Mapping[int, float]]]
) -> Callable[[], list[Activity]]:
    """Return what reads the activity of jobs; None is for an agent that reads none."""
    log = partial(print, "rms.power.agent:", file=sys.stderr, flush=True)
    reader = None if groups is None else ActivityReader.of(groups, os.environ, log, gpus)
    return list if reader is None else reader.read


def main(argv: list[str]) -> int:
    """Run until a signal; return 0 also for a node without meters."""
    parser = argparse.ArgumentParser(
        "rms.power.agent", description="Reports the energy of a node to a daemon."
    )
    parser.add_argument("--every", type=float, default=1.0, metavar="S")
    parser.add_argument("--node", metavar="NAME", help='"" for the daemon\'s own machine')
    parser.add_argument("--meters", default="auto", metavar="NAME[,NAME]")
    parser.add_argument("--meter-command", metavar="CMD")
    parser.add_argument("--meter-limit", type=float, metavar="W")
    parser.add_argument(
        "--activity",
        nargs="?",
        const="",
        metavar="GROUPS",
        help="read the activity of jobs, by their control groups in this folder or by processes",
    )
    parser.add_argument("--clocks", action="store_true", help="set frequencies, read no meters")
    arguments = parser.parse_args(argv)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    node = arguments.node
    if node is None:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        if arguments.clocks:
            with contextlib.closing(Daemon(os.environ)) as daemon:
                poll = partial(daemon.exchange, CLOCKS_PATH, ClockOrders, timeout_s=ANSWER_S)
                cores = frozenset(os.sched_getaffinity(0))
                ClockAgent(node, poll, Clocks(), cores, over).run()
            return 0
        choice = arguments.meters, arguments.meter_command, arguments.meter_limit
        with (
            contextlib.closing(Daemon(os.environ)) as daemon,
            contextlib.closing(MeterChoice.parse(*choice).open(os.environ)) as meter,
        ):
            send = partial(daemon.exchange, METER_PATH, MeterAnswer)
            activity = _activity(arguments.activity, lambda: meter.processes(boottime()))
            Agent(node, meter, send, arguments.every, over, activity).run()
    except MeterError as error:
        print(f"rms.power.agent on {node or 'this machine'}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
