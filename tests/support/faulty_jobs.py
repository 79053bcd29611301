"""Small MPDATA jobs of a daemon, with or without a fault in their first resize."""

from __future__ import annotations

from daemon import Rms
from processes import program

FAULTY = program("faulty_resize")
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
STEPS = "200"


def faulty(
    rms: Rms, fault: str, *more: str, launcher: str = "mpirun", options: tuple[str, ...] = ()
) -> str:
    """Submit a malleable job of one rank that may have two; return its id.

    It takes its time until there is a file ``go``.
    """
    words = [*FAULTY, f"'{fault}'", "run", *SMALL, "--steps", STEPS, *more]
    body = " ".join([launcher, *words])
    return rms.submit(body, "--mode", "malleable", "--nodes", "1-2", "--preferred", "1", *options)
