"""The promises of the README, listed in ``tests/README.md``, and which of them a run has proven.

A test states by ``@pytest.mark.promise("name", ...)`` what it proves. The last column of the list
is made from these marks: run as a program, this module writes it; with ``--check`` it fails if it
differs. Standard library only: ``scripts/test`` reads this before anything is installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

LIST = Path(__file__).parents[1] / "README.md"
FILE = "PROMISES_FILE"
"""The variable that names the file where a run of pytest enters what it has proven."""

ROW = re.compile(
    r"^\| `([a-z0-9-]+)` \| (.*?) \| (quick|all|slurm|openmpi|applications|gpu) \|", re.MULTILINE
)
MARK = re.compile(r"mark\.promise\(([^)]*)\)")


def promises() -> dict[str, tuple[str, str]]:
    """Return by name the promise and the run that proves it (quick, all, slurm, ...)."""
    return {name: (text, run) for name, text, run in ROW.findall(LIST.read_text("utf-8"))}


def marks() -> dict[str, list[str]]:
    """Return the files of tests, relative to their folder, with the names that their marks have."""
    named = {}
    for file in sorted(LIST.parent.rglob("*.py")):
        if file.parent == LIST.parent / "support":
            continue
        words = ",".join(MARK.findall(file.read_text("utf-8")))
        if names := re.findall(r'"([a-z0-9-]+)"', words):
            named[file.relative_to(LIST.parent).as_posix()] = list(dict.fromkeys(names))
    return named


def proven_by(file: str) -> list[str]:
    """Return the names of the promises that a file of tests proves."""
    return marks().get(file, [])


def with_proofs(text: str) -> str:
    """Return the list with its last column as the marks have it."""
    files = defaultdict(list)
    for file, names in marks().items():
        for name in names:
            files[name].append(f"`{file}`")
    lines = []
    for line in text.splitlines(keepends=True):
        row = ROW.match(line)
        lines.append(f"{row[0]} {', '.join(files[row[1]])} |\n" if row else line)
    return "".join(lines)


def enter(outcome: str, names: Iterable[str], why: str = "") -> None:
    """Add outcomes of tests to the file of this run, if there is one."""
    if os.environ.get(FILE):
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.writelines(f"{outcome}\t{name}\t{why}\n" for name in names)


@dataclass
class Proof:
    """What a run has shown of the promises that it was to prove."""

    wanted: dict[str, str]
    proven: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, runs: Iterable[str]) -> Proof:
        """Return what the file says of the promises of these kinds of runs."""
        kinds = set(runs)
        found = cls({name: text for name, (text, run) in promises().items() if run in kinds})
        for line in file.read_text("utf-8").splitlines() if file.exists() else ():
            outcome, name, why = line.split("\t", 2)
            if outcome == "passed":
                found.proven.add(name)
            elif outcome == "failed":
                found.broken.add(name)
            else:
                found.skipped.setdefault(name, why)
        return found

    @property
    def kept(self) -> set[str]:
        """Those with a passing test and no failing one."""
        return (self.proven - self.broken) & set(self.wanted)

    @property
    def impossible(self) -> dict[str, str]:
        """Those whose tests were all skipped here, and why."""
        names = set(self.wanted) - self.proven - self.broken
        return {name: why for name, why in self.skipped.items() if name in names}

    @property
    def missing(self) -> list[str]:
        """Those that no test has proven, though nothing was in its way."""
        return [name for name in self.wanted if name not in self.kept | set(self.impossible)]

    def report(self) -> str:
        """Return the count, and a line for each promise that is not proven."""
        lines = [f"promises of the README: {len(self.kept)} of {len(self.wanted)} proven"]
        lines += [
            f"  not here: {self.wanted[name]} ({why})" for name, why in self.impossible.items()
        ]
        lines += [f"  NOT PROVEN: {self.wanted[name]} ({name})" for name in self.missing]
        return "\n".join(lines)


def main() -> int:
    """Write the last column of the list, or check it."""
    text = LIST.read_text("utf-8")
    written = with_proofs(text)
    if sys.argv[1:] != ["--check"]:
        LIST.write_text(written, "utf-8")
    elif text != written:
        print(f"expected the last column of {LIST} as marks have it: run {__file__}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
