"""``rms serve`` that dies when it has started so many launches: faulty_launch.py NUMBER ..."""

from __future__ import annotations

import os
import signal
import sys

from rms.cli.main import main
from rms.launch.base import ManagedProcess, WorldLaunch
from rms.launch.local import LocalLauncher

left = [int(sys.argv[1])]
boot_world = LocalLauncher.boot_world


def faulty(self: LocalLauncher, job: str, launch: WorldLaunch) -> ManagedProcess:
    started = boot_world(self, job, launch)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return started


LocalLauncher.boot_world = faulty  # type: ignore[method-assign]
sys.exit(main(sys.argv[2:]))
