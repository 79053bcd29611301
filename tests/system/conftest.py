"""Real processes: mpirun, signals, files. Every run has a deadline and leaves nothing behind."""

from __future__ import annotations

from run_fixtures import mpdata_here, mpdata_run, refused, run, steady

__all__ = ["mpdata_here", "mpdata_run", "refused", "run", "steady"]
