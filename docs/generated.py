"""Pages of the site that are made of the code and of measured figures."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fault_table
import figures
import messages

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dmr", "mpdata", "rms")

VARIABLE = re.compile(r"(?:DMR|MPDATA|RMS|MALLEABLE)_[A-Z]+(?:_[A-Z]+)*")
"""Names of the project's own environment variables; no other text of the code has this form."""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command and subcommand with its parser."""
    import dmr.cli
    import mpdata.cli.main
    import rms.cli.main

    for name, top in (("dmr", dmr.cli._parser()), ("mpdata", mpdata.cli.main._parser())):
        yield name, top
        for command, parser in _commands_of(top).items():
            yield f"{name} {command}", parser
    yield "rms", rms.cli.main._parser("")
    for command in rms.cli.main.COMMANDS:
        yield f"rms {command}", _commands_of(rms.cli.main._parser(command))[command]


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def commands() -> str:
    """Return the page of all commands: the help of each, 88 columns wide."""
    lines = [
        "# Commands",
        "",
        "The help of every command, as `COMMAND --help` prints it. Every command has `--json FILE` "
        "(`-` for standard output) and exits with 0 if it did what it says, with 2 on wrong usage "
        "and with 1 if the run failed; [messages](messages.md) lists the sentences.",
        "",
    ]
    with mock.patch.dict(os.environ, {"COLUMNS": "88", "NO_COLOR": "1"}):
        for name, parser in parsers():
            mark = "###" if " " in name else "##"
            lines += [f"{mark} {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def variables() -> set[str]:
    """Return the project's environment variables that the code of the packages names."""
    return {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in VARIABLE.findall(node.value)
    }


def write(reference: Path) -> None:
    """Write each page whose text changed; Sphinx reads again only these."""
    from rms.studies import failures

    docs = reference.parent
    results = ROOT / "scripts" / "bench" / "results"
    gpus = [line for path in sorted(results.glob("gpu-*.json")) for line in figures.gpu(path)]
    pages = {
        "reference/commands.md": commands(),
        "reference/messages.md": messages.page(ROOT),
        "project/performance.md": figures.performance(results),
        "project/corrected-faults.md": fault_table.page(ROOT / "tests" / "faults"),
        "mpdata/gpu-figures.txt": "\n".join(gpus),
    }
    made = docs / "rms" / "node-failures.json"
    result, picture = json.loads(made.read_text()), docs / "_static" / "node-failures.svg"
    pages["rms/node-failures.txt"] = "\n".join([*failures.table(result), ""])
    if not picture.exists() or picture.stat().st_mtime < made.stat().st_mtime:
        failures.draw(result, picture, f"{result['trace']}, policy {result['policy']}")
    for name, text in pages.items():
        path = docs / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
