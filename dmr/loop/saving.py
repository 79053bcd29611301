"""The program's part of what travels: bring the declared data up to date, and take it."""

from __future__ import annotations

from dmr.application import Program, Run


def save_state(app: Program, run: Run) -> None:
    """Bring the declared data up to date (collective).

    Raises:
        UsageError: on all ranks together, by the program.
    """
    app.save(run)


def load_state(app: Program, run: Run) -> None:
    """Have the program take the data of a world that goes on (collective)."""
    app.load(run)
