"""The option ``--signal`` as sbatch has it: ``[B:]SIG[@SECONDS]`` before a job's time is up."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from rms.formats.ids import ScriptError, match

FORM = "a signal like USR1@120 or B:10@60, its seconds from 0 to 65535"

_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]{1,8})(?:@([0-9]{1,5}))?")


@dataclass(frozen=True)
class SignalAsked:
    """A signal, and how long before the end of its time a job is to get it.

    Attributes:
        batch: the script gets it; else all processes of its launcher lines.
    """

    number: int
    before_s: float = 60.0
    batch: bool = False


def parse_signal(text: str) -> SignalAsked:
    """Read ``USR1@120``, ``SIGUSR1``, ``10@5`` or ``B:TERM@60``; without a time it is 60 s.

    ``R:``, which is about reservations, is let pass.

    Raises:
        ScriptError: there is no such signal, or the time is out of Slurm's range.
    """
    where, name, before = match(_SIGNAL, text, FORM).groups()
    known = {each.name.removeprefix("SIG"): int(each) for each in signal.Signals}
    number = int(name) if name.isdigit() else known.get(name, 0)
    before_s = float(before or 60)
    if number not in known.values() or before_s > 65535:
        raise ScriptError(f"expected {FORM}, got {text!r}")
    return SignalAsked(number, before_s, "B" in (where or ""))
