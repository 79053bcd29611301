"""A folder like the kernel's ``/sys/class/powercap``, still or with counters that go on.

A daemon reads it where the environment variable ``RMS_POWERCAP`` names it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Self

from daemon import Rms
from processes import marked

from rms.client.connection import ask
from rms.launch.processes import alive
from rms.wire.messages import (
    METER_PATH,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    DeviceEnergy,
    MeterAnswer,
    Metered,
)

RANGE_UJ = 262_143_328_850


def zone(
    folder: Path, place: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ, limit_w: int = 0
) -> Path:
    """Make a zone (``intel-rapl:0``, of ``package-0``), or set its counter; return its folder."""
    found = folder / place
    if not found.exists():
        found.mkdir(parents=True)
        (found / "name").write_text(f"{name}\n")
        (found / "max_energy_range_uj").write_text(f"{range_uj}\n")
        if limit_w:
            (found / "constraint_0_power_limit_uw").write_text(f"{limit_w * 1_000_000}\n")
    part = found / "energy_uj.part"
    part.write_text(f"{energy_uj}\n")
    part.rename(found / "energy_uj")  # a reader sees all of it
    return found


class Counters:
    """Packages whose counters go on, on a thread, until the ``with`` ends.

    Args:
        folder: made where it does not exist.
        watts: of each package.
        begun_uj: where the counters begin.

    Attributes:
        counted_uj: what each package has counted since, written before anybody can read it.
    """

    def __init__(
        self, folder: Path, *watts: float, begun_uj: int = 1_000_000, range_uj: int = RANGE_UJ
    ) -> None:
        self.folder, self.watts, self.range_uj = folder, list(watts), range_uj
        self.begun_uj = begun_uj
        self.counted_uj = [0] * len(watts)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._show()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let them stand still."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def joules(self) -> float:
        """What all packages have counted."""
        return sum(self.counted_uj) * 1e-6

    def _show(self) -> None:
        for n, counted_uj in enumerate(self.counted_uj):
            at_uj = (self.begun_uj + counted_uj) % self.range_uj
            zone(self.folder, f"intel-rapl:{n}", f"package-{n}", at_uj, self.range_uj)

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._over.wait(0.02):
            now_s = time.monotonic()
            for n, watts in enumerate(self.watts):
                self.counted_uj[n] += int(watts * (now_s - last_s) * 1e6)
            last_s = now_s
            self._show()


def agents(mark: str) -> dict[str, int]:
    """Return the agents of a test's daemons, by their node's name in Slurm, "" on one machine."""
    found = {}
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"rms.power.agent" in words and b"python" in words[0]:
                found[_variables(pid).get("SLURMD_NODENAME", "")] = pid
    return found


def last_known(rms: Rms, pid: int) -> dict[str, DeviceEnergy]:
    """End an agent in order; return what its last report has left with the daemon."""
    env, threads = _variables(pid), Path(f"/proc/{pid}/task")
    rms.until(lambda: len(list(threads.iterdir())) > 1, "its first report, on a thread")
    os.kill(pid, signal.SIGTERM)
    rms.until(lambda: not alive(pid), "the agent's end")
    word = Metered(env.get("SLURMD_NODENAME", ""), "another", 0, time.time(), "")
    answer = ask(
        MeterAnswer, env[SERVER_VARIABLE], "POST", METER_PATH, word, token=env[TOKEN_VARIABLE]
    )
    return {device.device: device for device in answer.known}


def _variables(pid: int) -> dict[str, str]:
    items = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)
