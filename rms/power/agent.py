"""A node's own meter: ``python -m rms.power.agent`` on each node tells the daemon what it draws.

The devices and the processors' packages are read; their sum is the node's power, and the source
says which of them there were. Where nothing can be read, that is posted once, with the reason, and
the daemon keeps to its model.

Compute nodes import this, so it needs nothing but :mod:`rms.wire` and msgspec.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from rms.power.meter import MeterError, NodeMeter
from rms.power.nvidia_smi import Devices
from rms.power.rapl import Rapl
from rms.wire.http import UnreachableError, request
from rms.wire.messages import METER_PATH, Metered

PATIENCE_S = 600.0
"""How long a daemon may be away before the meters give up."""


def run(
    meter: NodeMeter,
    post: Callable[[Metered], None],
    every_s: float,
    over: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Post readings until it is over; where there is nothing to read, post that and return."""
    while not over.is_set():
        reading = meter.read(clock())
        if reading is not None:
            post(reading)
            if reading.watts is None:
                return
        over.wait(every_s)


def poster(env: Mapping[str, str], over: threading.Event) -> Callable[[Metered], None]:
    """Return what sends a reading to the daemon, which may be away for a while."""
    server, token = env["RMS_SERVER"], env["RMS_TOKEN"]
    answered_s = time.monotonic()

    def post(reading: Metered) -> None:
        nonlocal answered_s
        while not over.is_set():
            try:
                status, answer = request(
                    server, "POST", METER_PATH, msgspec.json.encode(reading), token=token
                )
                if status != 200:  # of another daemon: these readings are for none
                    raise MeterError(f"the daemon answered {status}: {answer.decode()[:200]}")
                answered_s = time.monotonic()
                return
            except UnreachableError as error:
                if time.monotonic() > answered_s + PATIENCE_S:
                    raise MeterError(str(error)) from None
                if reading.watts is not None:
                    return  # it is old by the time the daemon is back
            over.wait(1.0)

    return post


def main(argv: list[str]) -> int:
    """Run until asked to end; 0 also where there is nothing to read."""
    parser = argparse.ArgumentParser(
        "rms.power.agent", description="Sends a node's power to a daemon."
    )
    parser.add_argument("--every", type=float, default=1.0, metavar="S")
    arguments = parser.parse_args(argv)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    meter = NodeMeter(node, [Rapl(), Devices()])
    try:
        run(meter, poster(os.environ, over), arguments.every, over)
    except (MeterError, KeyError) as error:
        print(f"rms.power.agent on {node}: {error}", file=sys.stderr)
        return 1
    finally:
        meter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
