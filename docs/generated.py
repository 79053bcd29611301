"""Pages of the site that are made of the code: the commands and their options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {"dmr": "dmr", "mpdata": "mpdata", "rms": "rms"}


def help_of(*words: str) -> str:
    """Return what ``python -m WORDS --help`` prints, 88 columns wide."""
    env = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.rstrip()


def commands() -> str:
    """Return the page of all commands: the help of each."""
    lines = ["# Commands", ""]
    for module in COMMANDS.values():
        lines += [f"## {module}", "", "```text", help_of(module), "```", ""]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write each page whose text changed; Sphinx reads again only these."""
    for name, text in {"commands.md": commands()}.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
