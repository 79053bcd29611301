"""The commands that power nodes off and on, as the user names them."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass

DEADLINE_S = 300.0
"""How long a command may take by default."""


@dataclass(frozen=True)
class PowerCommands:
    """Commands that power a node off and on.

    Attributes:
        off, on: words of the commands, to which the node's name is added.
        deadline_s: how long each may take.
    """

    off: tuple[str, ...]
    on: tuple[str, ...]
    deadline_s: float = DEADLINE_S

    @classmethod
    def parse(cls, off: str, on: str, deadline_s: float) -> PowerCommands | None:
        """Return the commands of two lines, None where both are empty.

        Raises:
            ValueError: there is only one, or there is no such program, or no time.
        """
        if not deadline_s > 0.0:
            raise ValueError(f"expected a power-on deadline above 0 s, got {deadline_s:g}")
        if bool(off) != bool(on):
            got = "only --power-off" if off else "only --power-on"
            raise ValueError(f"expected commands to power nodes off and on, got {got}")
        if not off:
            return None
        for line in (off, on):
            words = shlex.split(line)
            if not words or shutil.which(words[0]) is None:
                raise ValueError(f"expected a program to power nodes off or on, got {line!r}")
        return cls(tuple(shlex.split(off)), tuple(shlex.split(on)), deadline_s)
