"""``mpdata run`` with a fault at a given step: faulty_run.py FAULT STEP run ...

FAULT: ``kill-all`` (every rank SIGKILLs itself), ``kill-last`` and ``raise-last`` (only the last
rank), ``linger`` (every rank waits there for a signal).
"""

import os
import signal
import sys
import time

import dmr
from mpdata.cli.main import main
from mpdata.parallel.app import Advection


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
                print(f"lingering {os.getpid()}", flush=True)
                time.sleep(1.0)
        true_step(self, run)

    Advection.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    install(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
