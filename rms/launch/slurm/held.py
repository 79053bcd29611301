"""An allocation that a pilot holds: what is known of it, and what runs on all its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from rms.launch.slurm.allocation import Allocation
from rms.launch.slurm.meters import AllocationMeters


@dataclass
class HeldAllocation:
    """One allocation of a pilot.

    Attributes:
        seen: what Slurm says of it, as it was asked last.
        meters, clocks: what reads meters on its nodes, and what sets their frequencies.
    """

    seen: Allocation
    meters: AllocationMeters
    clocks: AllocationMeters

    @property
    def number(self) -> int:
        """Its number in Slurm."""
        return self.seen.number

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its nodes."""
        return self.seen.hosts

    def poll(self) -> None:
        """Do what is due now."""
        self.seen.poll()
        self.meters.poll()
        self.clocks.poll()

    def narrow(self, hosts: tuple[str, ...]) -> None:
        """Go on with fewer nodes."""
        self.seen.hosts = self.meters.hosts = self.clocks.hosts = hosts

    def close(self) -> bool:
        """End what runs on its nodes; return whether there are steps of that yet."""
        ran = [self.meters.close(), self.clocks.close()]
        self.seen.close()
        return any(ran)
