"""Commands of a batch system behind shims: what was called, and calls that fail or wait on demand.

A shim is ``programs/shim.py`` under a command's name (``salloc``, ``qsub``, ...), in a folder that
comes first on PATH. It records every call with its times, arguments, answer and status. A rule
changes the calls of a command whose arguments match a pattern, until it is lifted.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import program, until

SLURM = ("salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
GRID_ENGINE = ("qsub", "qdel", "qstat", "qconf")

ODD = """a'b $(touch pwned) `touch pwned` ;touch pwned; & | > "x" %j \\ é"""
"""A name with characters of a shell, of sbatch, and of Slurm's lists."""


@dataclass(frozen=True)
class Call:
    """A call that has ended, with the answer of the command itself, whatever its caller had.

    ``status`` is None of a command that took the shim's place.
    """

    began_s: float
    ended_s: float
    command: str
    arguments: list[str]
    rule: dict[str, Any]
    status: int | None
    out: str
    err: str

    @property
    def words(self) -> str:
        """The arguments as one text."""
        return " ".join(self.arguments)


@dataclass
class Rule:
    """A rule in force, by its file."""

    file: Path

    def met(self) -> int:
        """Return the number of calls that it has matched."""
        return len(list(self.file.parent.glob(f"{self.file.stem}.*[0-9]")))

    def holds(self) -> bool:
        """Return whether a call waits for its end."""
        return self.file.exists() and any(self.file.parent.glob(f"{self.file.stem}.*.held"))

    def lift(self) -> None:
        """End it: calls that wait go on."""
        self.file.unlink(missing_ok=True)


@dataclass
class Shims:
    """Shims of these commands in ``folder / "bin"``."""

    folder: Path
    commands: tuple[str, ...] = SLURM
    _rules: list[Rule] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = Path(program("shim")[-1]).read_text()
        shim = self.folder / "shim"
        for folder in (self.folder / "rules", self.bin):
            folder.mkdir(parents=True, exist_ok=True)
        # Without site packages it starts in 20 ms.
        shim.write_text(f"#!{sys.executable} -ISs\n{source}")
        shim.chmod(0o755)
        for name in self.commands:
            (self.bin / name).symlink_to(shim)

    @property
    def bin(self) -> Path:
        """The folder that comes first on PATH."""
        return self.folder / "bin"

    def calls(self, command: str, pattern: str = "") -> list[Call]:
        """Return the ended calls of a command with a text in their arguments, oldest first."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        found = (Call(**json.loads(line)) for line in lines)
        return [call for call in found if call.command == command and pattern in call.words]

    def _rule(self, command: str, pattern: str, **more: Any) -> Rule:
        assert command in self.commands, command
        rule = Rule(self.folder / "rules" / f"{len(self._rules):03}.json")
        self._rules.append(rule)
        text = json.dumps({"command": command, "pattern": pattern, **more})
        new = rule.file.with_suffix(".new")
        new.write_text(text)
        new.rename(rule.file)
        return rule

    @contextlib.contextmanager
    def rule(self, command: str, pattern: str = "", **more: Any) -> Iterator[Rule]:
        """Change the calls of a command whose arguments match a regular expression.

        Args:
            command: its name.
            pattern: of its arguments, joined by blanks.
            more: ``times``: so many calls, None for all; ``message`` and ``status``: it fails and
                the real command is not run; ``hold``: it waits until the rule is lifted, "before"
                or "after" the real command is run; ``cut``: only this share of its answer arrives;
                ``garble``: a pattern of its answer, and what takes its place; ``lose``: no answer;
                ``twice``: the real command is run once more before.
        """
        rule = self._rule(command, pattern, **more)
        try:
            yield rule
        finally:
            rule.lift()

    @contextlib.contextmanager
    def held(
        self, command: str, pattern: str = "", hold: str = "before", **more: Any
    ) -> Iterator[Callable[[], None]]:
        """Hold a call; what is yielded waits until one is held, and is not yet lifted."""
        with self.rule(command, pattern, hold=hold, **more) as rule:
            yield lambda: until(rule.holds, f"no {command} {pattern} was called")
