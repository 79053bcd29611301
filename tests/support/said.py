"""The messages that daemons in this process log."""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import Any


class Said(list[str]):
    """The messages that are logged from now on, for as long as this list is used."""

    def __init__(self) -> None:
        super().__init__()
        log, handler = logging.getLogger("rms"), _Collector(self)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        weakref.finalize(self, log.removeHandler, handler)


class _Collector(logging.Handler):
    def __init__(self, said: Said) -> None:
        super().__init__()
        self._said: Any = weakref.proxy(said)

    def emit(self, record: logging.LogRecord) -> None:
        # A list that has ended while a virtual world had other handlers has not removed this one.
        with contextlib.suppress(ReferenceError):
            self._said.append(record.getMessage())
