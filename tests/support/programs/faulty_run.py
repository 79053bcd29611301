"""``mpdata run`` with a fault at a given step: faulty_run.py FAULT STEP run ...

FAULT: ``kill-all`` (every rank SIGKILLs itself), ``kill-last`` and ``raise-last`` (only the last
rank), ``linger`` (every rank waits there for a signal).
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import dmr
from mpdata.cli.main import main
from mpdata.parallel.app import Advection

DEADLINE_S = 120.0


def linger() -> None:
    """Wait until a rank has SIGTERM: mpiexec does not hand it to those of every launch."""
    heard, usual = Path("heard"), signal.getsignal(signal.SIGTERM)

    def hear(number: int, frame: FrameType | None) -> None:
        heard.touch()
        if callable(usual):
            usual(number, frame)

    signal.signal(signal.SIGTERM, hear)
    print(f"lingering {os.getpid()}", flush=True)
    until = time.monotonic() + DEADLINE_S
    while not heard.exists() and time.monotonic() < until:
        time.sleep(0.02)


def install(fault: str, at: int) -> None:
    true_step = Advection.step

    def step(self: Advection, run: dmr.Run) -> None:
        last = run.world.rank == run.world.size - 1
        if run.step == at:
            if fault == "kill-all" or (fault == "kill-last" and last):
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raise-last" and last:
                raise ArithmeticError("the dog ate the flux")
            if fault == "linger":
                linger()
        true_step(self, run)

    Advection.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    install(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
