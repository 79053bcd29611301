"""Scripts without the ending ``.py``, which type checkers leave out, import names that exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OURS = "dmr", "mpdata", "rms"


def scripts() -> Iterator[Path]:
    for path in sorted((ROOT / "scripts").rglob("*")):
        if path.is_file() and path.suffix in ("", ".py"):
            text = path.read_text()
            if path.suffix or "python" in text.partition("\n")[0]:
                yield path


def exists(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", list(scripts()), ids=lambda path: path.name)
def test_a_script_imports_names_that_exist(path: Path) -> None:
    imports = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
        if node.module.partition(".")[0] in OURS
    ]
    assert not [(module, name) for module, name in imports if not exists(module, name)]
