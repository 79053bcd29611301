"""A daemon on a test bed that asks Slurm for its nodes, and what Slurm has of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from daemon import Rms, closing
from processes import BIN, RMS
from slurm_bed import Slurm


class OnDemand(Rms):
    """``rms pilot`` on a test bed, outside of any allocation."""

    def __init__(self, bed: Slurm, *options: str) -> None:
        self.bed = bed
        super().__init__(*options)

    def serve_command(self) -> list[str]:
        plain = ["--ntasks-per-node", "1", "--policy", "easy", "--idle", "2"]
        return [*RMS, "pilot", "--state", str(self.state), *plain, *self._options]

    def environment(self) -> dict[str, str]:
        first = (self.folder / "bin", BIN, self.bed.environment["PATH"])
        path = os.pathsep.join(map(str, first))
        return {**self.bed.environment, "RMS_PROFILES": "", "PATH": path}

    def surroundings(self) -> str:
        return self.bed.run("squeue", "--states=all").stdout

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.bed.run("scancel", *self.allocations())
        super().close()

    def allocations(self, state: str = "PENDING,RUNNING") -> dict[str, set[str]]:
        """Return the nodes of its allocations in Slurm by number."""
        said = self.bed("squeue", "--noheader", f"--states={state}", "--format=%i|%N|%j")
        rows = [line.strip().split("|") for line in said.splitlines() if ".pilot" in line]
        return {number: self.named(nodes) for number, nodes, _ in rows}

    def named(self, nodes: str) -> set[str]:
        """Return the names in a list of nodes as Slurm writes it."""
        return set(self.bed("scontrol", "show", "hostnames", nodes).split()) if nodes else set()

    def held(self) -> set[str]:
        """Return the nodes that it holds in Slurm."""
        return {host for hosts in self.allocations("RUNNING").values() for host in hosts}

    def all_let_go(self) -> None:
        """Wait until Slurm has no allocation of it."""
        self.until(lambda: not self.allocations(), "end of all allocations")


@contextlib.contextmanager
def on_demand(bed: Slurm, *options: str) -> Iterator[OnDemand]:
    """Serve a test bed on demand; at the end nothing is left."""
    with closing(OnDemand(bed, *options)) as rms:
        yield rms
