"""A node's meters: ``python -m rms.power.agent`` on each node tells the daemon what was drawn.

It reads as often as its meters need it, and reports the sums, cumulative, once in a while. What the
daemon has booked before it asks for at first, and goes on from there. Where nothing can be read,
that is reported once, with the reason, and the daemon keeps to its model.

Compute nodes import this, so it needs nothing but :mod:`rms.wire` and msgspec.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec

from rms.power.choice import MeterChoice
from rms.power.meter import MeterError, NodeMeter, boottime
from rms.wire.http import UnreachableError, request
from rms.wire.messages import (
    METER_PATH,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    DeviceEnergy,
    MeterAnswer,
    Metered,
)

PATIENCE_S = 600.0
"""How long a daemon may be away before the meters give up."""

AGAIN_S = 1.0
"""Time between two tries to reach a daemon that is away."""

ANSWER_S = 30.0
"""How long a daemon may take to answer."""

LAST_WORD_S = 2.0
"""How long the last report may take, once the agent is told to end."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Send = Callable[[Metered, float], MeterAnswer]
"""Hands a report to the daemon, within so many seconds; raises UnreachableError or MeterError."""


def boot_id() -> str:
    """Return what tells this boot of the machine from others, "" where it does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass
class Mailbox:
    """Reports on their way to the daemon, on a thread: reading goes on meanwhile.

    Reports are cumulative, so those that wait are delivered as one.

    Attributes:
        error: why no more is delivered, "" while that is not so.
    """

    send: Send
    over: threading.Event
    error: str = ""
    _reports: SimpleQueue[Metered | None] = field(default_factory=SimpleQueue)
    _closing: bool = False
    _thread: threading.Thread | None = None

    def put(self, report: Metered) -> None:
        """Have this delivered, with what was not yet."""
        self._reports.put(report)
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Deliver what is left, if the daemon answers soon."""
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
            except MeterError as error:
                self._fail(str(error))
            except UnreachableError as error:
                if time.monotonic() > answered_s + PATIENCE_S:
                    self._fail(str(error))
                self.over.wait(AGAIN_S)
            if last:
                return

    def _fail(self, reason: str) -> None:
        self.error = reason
        self.over.set()


@dataclass
class Agent:
    """Reads a node's meters and reports them.

    Attributes:
        every_s: time between two reports.
        over: set when it is to end.
        clock, wall: :func:`boottime`, and seconds since the epoch.
        boot: :func:`boot_id`.
    """

    node: str
    meter: NodeMeter
    send: Send
    every_s: float
    over: threading.Event
    clock: Callable[[], float] = boottime
    wall: Callable[[], float] = time.time
    boot: str = field(default_factory=boot_id)
    _id: str = field(default_factory=lambda: secrets.token_hex(8))
    _number: int = 0

    def run(self) -> None:
        """Report until it is over, or at once where nothing can be read.

        Raises:
            MeterError: the daemon takes no reports, or does not answer any more.
        """
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
                break  # there is nothing here, and that has been said
            self.over.wait(max(0.0, min(self.meter.every_s, due_s - now_s)))
        if reported and not box.error:
            box.put(self._report(fresh, self._read(self.clock(), fresh)))
        box.close()
        if box.error:
            raise MeterError(box.error)

    def _read(self, now_s: float, fresh: dict[str, DeviceEnergy]) -> str:
        """Take in the news of all devices; return why there is none, or ""."""
        try:
            fresh.update((device.device, device) for device in self.meter.read(now_s))
        except MeterError as error:
            return str(error)
        return ""

    def _report(self, fresh: dict[str, DeviceEnergy], failed: str) -> Metered:
        """Return a report of all news."""
        self._number += 1
        devices = list(fresh.values())
        fresh.clear()
        return self._word(self._number, devices, failed or self.meter.reason)

    def _word(self, number: int, devices: Sequence[DeviceEnergy] = (), reason: str = "") -> Metered:
        return Metered(self.node, self._id, number, self.wall(), self.boot, list(devices), reason)

    def _resume(self) -> bool:
        """Ask what the daemon has booked, to go on from there; False where it is over before."""
        until_s = time.monotonic() + PATIENCE_S
        while not self.over.is_set():
            try:
                answer = self.send(self._word(0), ANSWER_S)
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
    """Return one report for two, of each device the newest."""
    if before is None or after is None:
        return after or before
    devices = {device.device: device for device in (*before.devices, *after.devices)}
    return msgspec.structs.replace(after, devices=list(devices.values()))


def sender(env: Mapping[str, str]) -> Send:
    """Return what hands reports to the daemon that the environment names.

    Raises:
        KeyError: it names none.
    """
    known = {name: env[name] for name in (SERVER_VARIABLE, TOKEN_VARIABLE)}

    def send(report: Metered, timeout_s: float) -> MeterAnswer:
        answer = exchange(known, METER_PATH, msgspec.json.encode(report), timeout_s)
        try:
            return msgspec.json.decode(answer, type=MeterAnswer)
        except ValueError as error:  # it is no daemon's answer
            raise MeterError(str(error)) from None

    return send


def exchange(env: Mapping[str, str], path: str, body: bytes, timeout_s: float) -> bytes:
    """Tell something to the daemon that the environment names; return what it answers.

    Raises:
        KeyError: it names none.
        UnreachableError: it does not answer, or is in trouble.
        MeterError: it is another daemon, or none.
    """
    server, token = env[SERVER_VARIABLE], env[TOKEN_VARIABLE]
    try:
        status, answer = request(server, "POST", path, body, token=token, timeout_s=timeout_s)
    except ValueError as error:  # it is no daemon's address
        raise MeterError(str(error)) from None
    if status != 200:
        got = f"the daemon answered {status}: {answer.decode(errors='replace')[:200]}"
        if status >= 500:  # its trouble, not ours
            raise UnreachableError(got)
        raise MeterError(got)  # of another daemon: what is told here is for none
    return answer


def main(argv: list[str]) -> int:
    """Run until asked to end; 0 also where there is nothing to read."""
    parser = argparse.ArgumentParser(
        "rms.power.agent", description="Tells a daemon what a node draws."
    )
    parser.add_argument("--every", type=float, default=1.0, metavar="S")
    parser.add_argument("--node", metavar="NAME", help='"" for the daemon\'s own machine')
    parser.add_argument("--meters", default="auto", metavar="NAME[,NAME]")
    parser.add_argument("--meter-command", metavar="CMD")
    parser.add_argument("--meter-limit", type=float, metavar="W")
    arguments = parser.parse_args(argv)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    node = arguments.node
    if node is None:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    meter = NodeMeter([])
    try:
        chosen = arguments.meters, arguments.meter_command, arguments.meter_limit
        meter = MeterChoice.parse(*chosen).open(os.environ)
        Agent(node, meter, sender(os.environ), arguments.every, over).run()
    except (MeterError, KeyError) as error:
        print(f"rms.power.agent on {node or 'this machine'}: {error}", file=sys.stderr)
        return 1
    finally:
        meter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
