"""What a daemon says to whoever runs it: sentences with a level, on standard error.

No file is opened, so none has to be opened again: a journal, a pipe or the shell's ``2>>FILE``
keeps what is said. Where standard error is systemd's journal (``JOURNAL_STREAM``, systemd.exec(5)),
a line begins with its level as ``<4>`` (sd-daemon(3)), and has no time, which the journal adds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping

from rms.wire.terminal import printable

LEVELS = {"debug": 7, "info": 6, "warning": 4}
"""As syslog(3) numbers them: the lower, the graver."""


class Sentence(str):
    """What is said at another level than ``info``."""

    level = "info"


def warning(words: str) -> str:
    """Return a sentence on what somebody should see to."""
    return _at("warning", words)


def debug(words: str) -> str:
    """Return a sentence for whoever looks for a fault."""
    return _at("debug", words)


def _at(level: str, words: str) -> Sentence:
    found = Sentence(words)
    found.level = level
    return found


class Log:
    """Says sentences of a level or graver; one that cannot be written, on a full disk, is lost."""

    def __init__(self, level: str, env: Mapping[str, str]) -> None:
        self.level, self._journal = level, _is_journal(env.get("JOURNAL_STREAM", ""))

    def __call__(self, words: str) -> None:
        """Say a sentence."""
        level = words.level if isinstance(words, Sentence) else "info"
        if LEVELS[level] > LEVELS[self.level]:
            return
        text = printable(words)
        if self._journal:
            line = f"<{LEVELS[level]}>{text}"
        else:
            named = "" if level == "info" else f"{level}: "
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {named}{text}"
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            print(line, file=sys.stderr, flush=True)


def _is_journal(stream: str) -> bool:
    """Return whether standard error is what systemd says that its journal is: ``DEVICE:INODE``."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"
