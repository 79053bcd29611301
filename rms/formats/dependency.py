"""The option ``--dependency`` as Slurm has it: ``afterok:7:8_2,afterany:9``; ``?`` for any."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rms.formats.ids import ScriptError

KINDS = ("afterok", "afterany", "afternotok", "aftercorr")
MOST = 1000
"""No job depends on more."""

FORM = (
    "dependencies like afterok:7:8_2 (afterany, afternotok, aftercorr) or singleton, separated by "
    "commas (all of them) or by ? (any of them)"
)
_ONE = re.compile(rf"({'|'.join(KINDS)})((?::[0-9]{{1,18}}(?:_[0-9]{{1,18}})?)+)")


@dataclass(frozen=True)
class Dependencies:
    """What a job waits for: kinds with ids of jobs; ``singleton``: all of its name so far."""

    after: tuple[tuple[str, str], ...]
    any_of: bool = False
    singleton: bool = False


def parse_dependency(text: str) -> Dependencies:
    """Read ``afterok:7:8_2,afterany:9``, ``afterok:7?afterok:8`` or ``singleton``.

    Raises:
        ScriptError: it is none, names more than :data:`MOST` jobs, or mixes the separators.
    """
    any_of = "?" in text
    after: list[tuple[str, str]] = []
    singleton = False
    for part in text.split("?" if any_of else ","):
        if part == "singleton" and not any_of:
            singleton = True
            continue
        found = _ONE.fullmatch(part)
        if found is None:
            shown = text if len(text) <= 200 else f"{text[:200]}..."
            raise ScriptError(f"expected {FORM}, got {shown!r}")
        after += [(found[1], job) for job in found[2].split(":")[1:]]
    if len(after) > MOST:
        raise ScriptError(f"expected at most {MOST} jobs to depend on, got {len(after)}")
    return Dependencies(tuple(dict.fromkeys(after)), any_of, singleton)
