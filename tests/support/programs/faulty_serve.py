"""``rms serve`` that dies when a state is in the journal, once: faulty_serve.py STATE MARKER ...

States are those of :class:`rms.daemon.store.record.ResizeState`; ``requested`` is the decision.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rms.cli.main import main
from rms.core.model.events import Resize
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import Note
from rms.daemon.store.record import ResizeNote

STATE, MARKER = sys.argv[1], Path(sys.argv[2])


def strike() -> None:
    if not MARKER.exists():
        MARKER.touch()
        os.kill(os.getpid(), signal.SIGKILL)


note, whole, decided = Journal.note, Journal.whole, Journal.decided
within: list[bool] = []
"""Of each transaction that is open, whether it holds the state."""


def faulty_note(journal: Journal, *notes: Note) -> None:
    note(journal, *notes)  # which comes here again for each of several
    resize = notes[0].resize if notes and isinstance(notes[0], ResizeNote) else None
    if len(notes) == 1 and resize is not None and resize.state == STATE:
        if within:
            within[-1] = True
        else:
            strike()


@contextmanager
def faulty_whole(journal: Journal) -> Iterator[None]:
    within.append(False)
    try:
        with whole(journal):
            yield
    finally:
        has_state = within.pop()
    if has_state:
        strike()


def faulty_decided(journal: Journal, number: int, decisions: Sequence[Any]) -> None:
    decided(journal, number, decisions)
    if STATE == "requested" and any(isinstance(each, Resize) for each in decisions):
        strike()


if __name__ == "__main__":
    Journal.note, Journal.decided = faulty_note, faulty_decided  # type: ignore[method-assign]
    Journal.whole = faulty_whole  # type: ignore[method-assign]
    sys.exit(main(sys.argv[3:]))
