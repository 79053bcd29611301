"""The page of all faults that have a test in ``tests/faults``, made when the site is built.

A file ``NNN_name.py`` is one fault; the first line of its docstring states it. Its part of the
project follows from the modules that it imports (:data:`PARTS`), or is stated (:data:`STATED`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = re.compile(r"([0-9]{3})_([a-z0-9_]+)\.py")
IMPORT = re.compile(
    r"^[ \t]*(?:from (?P<module>[\w.]+) )?import (?P<names>\([^)]*\)|[^\n]*)", re.MULTILINE
)
CODE = re.compile(r"(``.*?``|`.*?`)")

PARTS = {
    "Slurm": ("rms.launch.slurm",),
    "mpdata": ("mpdata",),
    "dmr": ("dmr", "mpi4py"),
    "rms core": ("rms.core.policies", "rms.core.scheduler", "rms.formats", "rms.sim", "driven"),
    "daemon": (
        *("rms.daemon", "rms.kernels", "rms.launch", "rms.power"),
        *("daemon", "http_servers", "idle", "killed", "routed"),
    ),
}
"""Parts, with modules of the project and of ``tests/support`` that only tests of them import; the
first one that fits is the part of a file."""

TOOLS = "tools"
"""The part of all other files."""

ABOUT = {
    "dmr": "resizes, checkpoints and state of programs",
    "mpdata": "the advection solver and its command",
    "rms core": "scheduling, and the files of jobs, clusters and workloads",
    "daemon": "the daemon, its journal, requests, meters and processes",
    "Slurm": "jobs and allocations in Slurm",
    TOOLS: "commands, the live page, reports, the package",
}

COMMANDS = ("dmr.cli", "mpdata.cli", "rms.cli")
"""Modules that tests of every part call."""

STATED = {
    **dict.fromkeys(("103", "104", "106", "191", "244", "286"), "dmr"),
    **dict.fromkeys(("190", "395"), "mpdata"),
    **dict.fromkeys(("309",), "rms core"),
    **dict.fromkeys(("030", "060", "211", "388"), "daemon"),
    **dict.fromkeys(("010", "022", "050", "140", "141", "143", "144", "160"), TOOLS),
    **dict.fromkeys(("217", "261", "262", "265", "268", "300"), TOOLS),
}
"""Parts of files whose imports are those of another part, by number."""


@dataclass(frozen=True)
class Fault:
    """A file of ``tests/faults``; ``sentence`` is empty where it has no docstring."""

    number: str
    sentence: str
    part: str
    file: str


def faults(folder: Path) -> list[Fault]:
    """Return the faults of the files in a folder, by number."""
    return [
        _fault(path, match[1])
        for path in sorted(folder.glob("*.py"))
        if (match := FILE.fullmatch(path.name)) is not None
    ]


def _fault(path: Path, number: str) -> Fault:
    text = path.read_text(encoding="utf-8")
    sentence = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return Fault(number, sentence, STATED.get(number) or part_of(text), path.name)


def part_of(text: str) -> str:
    """Return the part of the project whose modules a test, or a program in its text, imports."""
    names = {name for match in IMPORT.finditer(text) for name in _imported(match)}
    own = [name for name in names if not _within(name, COMMANDS)]
    fitting = (part for part, modules in PARTS.items() if any(_within(n, modules) for n in own))
    return next(fitting, TOOLS)


def _imported(match: re.Match[str]) -> Iterator[str]:
    """Yield the names of modules of a statement; of ``from a import b`` both a and a.b."""
    module, names = match["module"], re.findall(r"[\w.]+", match["names"])
    yield from names if module is None else (module, *(f"{module}.{name}" for name in names))


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def page(folder: Path) -> str:
    """Return the page: the parts with their numbers of faults, and a table of all faults."""
    rows = faults(folder)
    count = Counter(row.part for row in rows)
    lines = [
        "# Corrected faults",
        "",
        f"The {len(rows)} faults that have a file of their own in `tests/faults`. A sentence "
        "states what happened before the correction; the tests of the file fail without it. The "
        "page is made from the files when the site is built.",
        "",
        "| part | concerns | faults |",
        "|---|---|---|",
        *(f"| {part} | {text} | {count[part]} |" for part, text in ABOUT.items()),
        "",
        "Numbers are not contiguous: related faults begin at a new ten.",
        "",
        "| number | fault | part | file |",
        "|---|---|---|---|",
        *map(_row, rows),
        "",
    ]
    return "\n".join(lines)


def _row(fault: Fault) -> str:
    link = f"[{fault.file}](../../tests/faults/{fault.file})"
    return f"| {fault.number} | {_cell(fault.sentence)} | {fault.part} | {link} |"


def _cell(sentence: str) -> str:
    """Return a sentence with its code as it is, and the signs of Markdown beside it escaped."""
    pieces = CODE.split(sentence)
    pieces[::2] = [re.sub(r"([*_$<\[])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces).replace("|", "\\|")
