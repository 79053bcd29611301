"""Pages name modules, files and functions that exist."""

from __future__ import annotations

import re

import pytest
from processes import ROOT

PAGES = (
    *("README.md", "dmr/README.md", "mpdata/README.md", "tests/README.md"),
    *("rms/README.md", "rms/kernels/README.md"),
)
SITE = sorted(
    str(path.relative_to(ROOT))
    for folder in ("rms", "experiments", "reference")
    for path in (ROOT / "docs" / folder).glob("*.md")
)
EXAMPLES = {"rms.service", "rms.sock", "rms.fish", "rms.INSTANCE.JOB.LAUNCH"}


def _is_there(module: str) -> bool:
    """Return whether a module is there, or a public name of a module."""
    path = ROOT / module.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    parent = path.parent
    return parent.with_suffix(".py").is_file() or (parent / "__init__.py").is_file()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_modules_and_links_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    modules = set(re.findall(r"(?<![\w./-])(?:rms|mpdata)(?:\.[A-Za-z_]\w*)+", text)) - EXAMPLES
    assert not [module for module in modules if not _is_there(module)]
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[\w-]+)?\)", text)
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]


@pytest.mark.parametrize("page", SITE)
def test_a_page_of_the_site_names_modules_and_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    modules = set(re.findall(r"(?<![\w./-])(?:rms|mpdata)(?:\.[A-Za-z_]\w*)+", text)) - EXAMPLES
    assert not [module for module in modules if not _is_there(module)]
    files = re.findall(r"`((?:dmr|docs|jobs|mpdata|rms|scripts|tests)/[\w./-]+)`", text)
    files = [file.replace("NAME", "chiesi") for file in files if "/ID/" not in file]
    assert not [file for file in files if not (ROOT / file).exists()]


def test_the_table_of_rms_names_two_files_at_most_and_functions_that_they_have() -> None:
    text = (ROOT / "docs" / "reference" / "architecture.md").read_text()
    table = text[text.index("| to change | open |") : text.index("## Words")]
    rows = [line for line in table.splitlines()[2:] if line]
    assert 0 < len(rows) <= 30
    for row in rows:
        cell = row.split(" | ")[-1].replace("NAME", "chiesi")
        files = re.findall(r"`([\w/-]+\.(?:py|toml|html))`(?: \(([^)]*)\))?", cell)
        assert 1 <= len(files) <= 2, row
        for file, names in files:
            source = (ROOT / "rms" / file).read_text()
            assert not [name for name in re.findall(r"`(\w+)`", names) if name not in source], row
