"""The program's part of what travels: bring the declared data up to date, and take it."""

from __future__ import annotations

import contextlib

from dmr.application import Program, Run
from dmr.data.files import FileBytes
from dmr.errors import UsageError, raise_on_all
from dmr.system.watch import WATCH

END = "the end of the block"
"""Place in the messages of :mod:`dmr.system.watch`."""


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


# --- dmr check ----------------------------------------------------------------------------------


def note_variables(run: Run, app: Program | None = None) -> None:
    """Keep the hashes of the program's variables that are not declared.

    They are those of the function or module that has called the library, or the attributes of an
    application.
    """
    from dmr.check.variables import calling_frame, digests_of_names, variables_of

    declared, frame = {**run.fields, **run.state}, calling_frame()
    if app is not None:
        names = getattr(app, "__dict__", {})
        run.internal.variables = digests_of_names(names, declared, type(app).__module__)
    elif frame is not None:
        run.internal.variables = variables_of(frame, declared)


def record_end(app: Program, run: Run, *, stopped: bool = False) -> None:
    """Write the record of a run for ``dmr check``, if it is one (collective).

    Args:
        stopped: whether it is stopped before its end.
    """
    path, comm = run.runtime.check, run.world.internal_comm
    if path is None:
        return
    from dmr.check.digests import write_digests

    with contextlib.suppress(UsageError):
        save_state(app, run)
    with WATCH.within(END, patient=True):
        variables = run.internal.variables
        write_digests(path, comm, run.fields, run.progress, variables, stopped=stopped)
