"""The program's part of what travels: bring the declared data up to date, and take it."""

from __future__ import annotations

from dmr.application import Program, Run
from dmr.data.files import FileBytes
from dmr.errors import raise_on_all


def save_state(app: Program, run: Run) -> None:
    """Bring the declared data up to date (collective).

    Raises:
        UsageError: on all ranks together, by the program, or for a getter's data on any of them.
    """
    app.save(run)
    problem = None
    for name, block in run.fields.items():
        try:
            block.update()
        except ValueError as error:
            problem = problem or f"field {name}: {error}"
    if any(block.spec.getter is not None for block in run.fields.values()):
        raise_on_all(run.world.internal_comm, problem)


def release_state(run: Run) -> None:
    """Free what :func:`save_state` has read into memory: the ranks go on as they are."""
    for block in run.fields.values():
        if isinstance(block, FileBytes):
            block.release()


def load_state(app: Program, run: Run) -> None:
    """Have the program take the data of a world that goes on (collective)."""
    for block in run.fields.values():
        block.deliver()
    app.load(run)
