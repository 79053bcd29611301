"""What accounts have used of the nodes, halved over time, as Slurm's multifactor plugin counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log

from rms.core.model import Job

_MOST_HALF_LIVES = 64.0


@dataclass
class Usage:
    """Node-seconds of each account; those of a half-life ago count half.

    Attributes:
        half_life_s: of what was used.
        at_s: up to when it is counted.
        used: by account, as it counts at ``since_s``: what is used later counts more there, so
            nothing need be halved as time goes by; of all that have handed in jobs since.
    """

    half_life_s: float
    at_s: float
    used: dict[str, float] = field(default_factory=dict)
    since_s: float = 0.0

    def __post_init__(self) -> None:
        self.since_s = self.since_s or self.at_s

    def know(self, jobs: Iterable[Job]) -> None:
        """Let the accounts of these jobs be known: shares are counted among those."""
        for job in jobs:
            self.used.setdefault(job.spec.account, 0.0)

    def now(self) -> dict[str, float]:
        """Return the node-seconds of each account as they count at ``at_s``."""
        left = 0.5 ** ((self.at_s - self.since_s) / self.half_life_s)
        return {account: used * left for account, used in self.used.items()}

    def advance(self, running: Iterable[Job], now_s: float) -> None:
        """Count what running jobs have held up to now, at the sizes that they have.

        With h the half-life, a node held from s to now counts h / ln 2 (1 - 2^(-(now - s) / h)).
        """
        if now_s <= self.at_s:
            return
        half_life_s = self.half_life_s
        if now_s - self.since_s > _MOST_HALF_LIVES * half_life_s:
            self.used, self.since_s = self.now(), self.at_s
        before = 2.0 ** ((self.at_s - self.since_s) / half_life_s)
        grown = 2.0 ** min(1000.0, (now_s - self.since_s) / half_life_s)
        node_s, used = half_life_s / log(2.0) * (grown - before), self.used
        for job in running:
            account = job.spec.account
            used[account] = used.get(account, 0.0) + job.size * node_s
        self.at_s = now_s
