"""A daemon in this process whose launcher starts nothing, on a journal that outlives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from said import Said

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.launch.base import ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import LocalLauncher


class Runs(ManagedProcess):
    def status(self) -> int | None:
        return None


@dataclass
class Idle(LocalLauncher):
    """Starts nothing: scripts and worlds run until the daemon ends."""

    booted: list[WorldLaunch] = field(default_factory=list)

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        return Runs(0)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        self.booted.append(launch)
        return Runs(0)

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return []


def nodes(count: int, power: NodePower) -> Cluster:
    """Return a cluster of nodes of one core each: n1, n2, ..."""
    names = tuple(f"n{n}" for n in range(1, count + 1))
    return Cluster(names, tuple((f"cpu:{n}",) for n in range(count)), (power,) * count)


class Bench:
    """A daemon, its clock, and what it said."""

    def __init__(self, journal: Journal, folder: Path, cluster: Cluster, policy: str) -> None:
        self.journal, self.folder, self.cluster, self.policy = journal, folder, cluster, policy
        self.now_s, self.said = 1000.0, Said()
        self.daemon = self.resumed()

    def resumed(self, **settings: Any) -> Daemon:
        """Return a daemon that begins where the journal ends."""
        self.launcher = Idle(self.folder, "instance", "unix:none")
        settings = {"policy": self.policy, "now": lambda: self.now_s} | settings
        return resume(self.cluster, self.journal, self.launcher, Settings(**settings))
