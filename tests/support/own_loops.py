"""Runs of the program with a loop of its own (programs/own_loop.py)."""

from __future__ import annotations

from processes import MPIEXEC, Run, program

PROGRAM = program("own_loop")


def lines(run: Run, ranks: int, what: str, steps: int = 40, **env: str) -> list[str]:
    """Return what the program prints."""
    done = run(MPIEXEC, "-n", str(ranks), *PROGRAM, what, str(steps), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def report(found: list[str]) -> tuple[str, str]:
    """Return what the last world says of resizes and values, and its hash."""
    (line,) = [one for one in found if " sha256 " in one]
    said, _, digest = line.partition(" sha256 ")
    assert len(digest) == 64
    return said, digest
