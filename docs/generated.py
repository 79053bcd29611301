"""Pages and drawings of the site that are made of the code and of tables, at each build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import drawings

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


def drawn() -> dict[str, str]:
    """Return the drawings and the page of the cheat sheet, by their paths in docs/."""
    return {
        "_static/resize.svg": drawings.resize(),
        "_static/cheatsheet.svg": drawings.cheatsheet(),
        "project/cheatsheet.md": drawings.sheet_page(),
    }


def write(folder: Path) -> None:
    """Write each page whose text changed; Sphinx reads again only these."""
    texts = {folder / "commands.md": commands()}
    texts |= {folder.parent / name: text for name, text in drawn().items()}
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
