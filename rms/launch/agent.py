"""The agent that reads this machine's meters, as a child of the daemon."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rms.launch.base import LaunchError

FIRST_WAIT_S = 1.0
MOST_WAIT_S = 30.0
"""Before an agent that died is started again: doubled each time that it had not run so long."""


def agent_command(options: Sequence[str]) -> list[str]:
    """Return the command of an agent."""
    return [sys.executable, "-P", "-m", "rms.power.agent", *options]


@dataclass
class MeterAgent:
    """Runs the agent, and again where it dies; one that ends well found nothing to read.

    Attributes:
        launch: starts a command.
        clean: ends what an agent that died has left.
    """

    launch: Callable[[Sequence[str]], subprocess.Popen[bytes]]
    clean: Callable[[], None]
    options: Sequence[str]
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float = 0.0
    _again_s: float | None = None
    _wait_s: float = FIRST_WAIT_S

    def start(self) -> None:
        """Start it, once those of an earlier daemon are ended: their token is not this one's."""
        self.clean()
        self._started_s, self._again_s = time.monotonic(), None
        with contextlib.suppress(LaunchError):
            self._process = self.launch(agent_command(self.options))

    def poll(self) -> None:
        """Start it again where it has died."""
        if self._again_s is not None and time.monotonic() >= self._again_s:
            self.start()
        if self._process is not None and self._process.poll() is not None:
            died, self._process = self._process.returncode != 0, None
            now_s = time.monotonic()
            if died:
                if now_s > self._started_s + MOST_WAIT_S:
                    self._wait_s = min(self._wait_s, FIRST_WAIT_S)
                self._again_s = now_s + self._wait_s
                self._wait_s = min(2 * self._wait_s, MOST_WAIT_S)

    def close(self) -> None:
        """End it and what it has started."""
        self._again_s = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.clean()
            self._process = None
