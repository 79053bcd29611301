"""Errors that nobody has foreseen: each ends what it belongs to, and the daemon goes on.

An error about a job ends that job (:meth:`rms.daemon.scripts.Scripts.fail`); one of a part of the
daemon is said, once, and the part is asked again the next time. The journal's errors are not
contained here: without it nothing may be decided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rms.daemon.journal import JournalError
from rms.daemon.log import warning


def describe(error: Exception) -> str:
    """Return what an error says, and where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


class Faults:
    """Says what has gone wrong: the same again only after something else of that part."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, dict[str, str]()

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Contain errors of a part of the daemon."""
        try:
            yield
        except JournalError:
            raise
        except Exception as error:
            words = describe(error)
            if self._said.get(part) != words:
                self._said[part] = words
                self._say(warning(f"{part}: {words}; the rest goes on"))
