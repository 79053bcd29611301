"""A daemon on a machine with meters: counters of packages that a test drives, and a device."""

from __future__ import annotations

import os

from daemon import LocalRms
from powercap import RANGE_UJ, Counters, agents

NVIDIA_SMI = """#!/bin/sh
while true; do
    date '+%Y/%m/%d %H:%M:%S.%3N, 0, 75.00'
    sleep 0.2
done
"""
CLUSTER = """
[[nodes]]
name = "n[1-2]"
cores = 1
power = { idle_w = 3.0, static_w = 5.0, dynamic_w = 7.0 }
[[nodes]]
name = "g1"
gpus = 1
power = { idle_w = 10.0, static_w = 20.0, dynamic_w = 30.0 }
"""


class MeteredRms(LocalRms):
    """Serves two cores and a device of 75 W on a machine whose packages are in ``powercap``."""

    nodes_text = CLUSTER

    def prepare(self) -> None:
        super().prepare()
        self.powercap = self.folder / "powercap"
        self.counters = Counters(self.powercap, 40.0, 25.0, begun_uj=RANGE_UJ - 50_000_000)
        program = self.folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(NVIDIA_SMI)
        program.chmod(0o755)

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "RMS_POWERCAP": str(self.powercap)}

    def agent(self) -> int:
        """Return the agent, once there is one."""
        return int(self.until(lambda: agents(self.mark).get(""), "an agent"))

    def sources(self) -> list[str]:
        return [row["power_source"] for row in self.get("/nodes")]
