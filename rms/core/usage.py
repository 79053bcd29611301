"""What accounts have used of the nodes, halved over time, as Slurm's multifactor plugin counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log

from rms.core.model import Job


@dataclass
class Usage:
    """Node-seconds of each account; those of a half-life ago count half.

    Attributes:
        half_life_s: of what was used.
        at_s: up to when it is counted.
        used: by account, as it counts at ``at_s``; of all that have handed in jobs since.
    """

    half_life_s: float
    at_s: float
    used: dict[str, float] = field(default_factory=dict)

    def know(self, jobs: Iterable[Job]) -> None:
        """Let the accounts of these jobs be known: shares are counted among those."""
        for job in jobs:
            self.used.setdefault(job.spec.account, 0.0)

    def advance(self, running: Iterable[Job], now_s: float) -> None:
        """Count what running jobs have held up to now, at the sizes that they have.

        With h the half-life, a node held from s to now counts h / ln 2 (1 - 2^(-(now - s) / h)).
        """
        if now_s <= self.at_s:
            return
        left = 0.5 ** ((now_s - self.at_s) / self.half_life_s)
        node_s = self.half_life_s / log(2.0) * (1.0 - left)
        used = {account: before * left for account, before in self.used.items()}
        for job in running:
            account = job.spec.account
            used[account] = used.get(account, 0.0) + job.size * node_s
        self.used, self.at_s = used, now_s
