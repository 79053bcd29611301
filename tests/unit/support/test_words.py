"""Documentation, messages and the live page use plain words of the field.

A rule is a pattern and what to write instead (``docs/project/style.md`` has examples). Code, output
and names are not looked at: fenced blocks, code spans, targets of links, keys and variables.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ROOT

sys.path.append(str(ROOT / "docs"))
import drawings
import generated
import messages
import rms_pages

PROGRAMS = "daemon|program|library|scheduler|policy|command|job|rank|world|simulator|page|file"
RULES = {
    r"(?<!not )(?<!be )(?<!is )(?<!are )(?<!was )\bfound\b": "the noun: rows, jobs, the result",
    r"(?<!-)\basked\b": "requested, or the noun: the query, the request",
    r"\b(said|told)\b": "states, reports, prints; is notified, is requested to",
    r"\blets? (it |them |him |nodes |ranks |jobs )?(be|go|in|out)\b": "release, admit, leave as is",
    r"\bwhat (is|was|are|were) (asked|found|told|said|given|wanted|gone|gained|meant)\b": (
        "the noun: the request, the result, the gain"
    ),
    r"\b(is|are|was|were|be) over\b(?=\W*$|[.,;:)]| (and|or|if|when|once)\b)": "ended, completed",
    r"\bover (h\b|it\b|one\b|(that|those) (of|on|in|at|with|without)\b)": "divided by, relative to",
    r"\b(can|may|to|could) be had\b": "available, possible",
    r"\b(at hand)\b": "available",
    r"\b(lest|whereof|thereof|thereby|nobody|somebody)\b": "a plain sentence with a named subject",
    rf"\b({PROGRAMS})s? (wants|want|thinks|believes|likes|hopes|speaks|tells|says|asks)\b": (
        "a verb for programs: requests, reports, prints, states"
    ),
    r"\btells? (apart|which|whether|why|how)\b": "distinguishes, states, reports",
    r"\bgoes? by\b": "uses, follows, is sent by",
}
"""Patterns of words used for what they are not, and what to write instead."""

IGNORED = [line for line in (ROOT / ".gitignore").read_text().split() if line.startswith("docs/")]
"""Pages that are made when the site is built; their texts are checked where they come from."""
LEFT_OUT = {"docs/project/style.md", "docs/project/glossary.md"}
"""Pages that quote such words."""

NOT_PROSE = (
    re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL),  # fenced
    re.compile(r"(?:\A|\n\n)(?: {4}.*\n?)+"),  # indented
    re.compile(r"(`+)[^`]*?\1", re.DOTALL),
    re.compile(r"\]\([^)]*\)"),
    re.compile(r"<[^>]*>"),
    re.compile(r"\{[^}]*\}"),
)


def prose(text: str) -> str:
    """Return Markdown or HTML without code, targets and tags; lines stay where they are."""
    for pattern in NOT_PROSE:
        text = pattern.sub(lambda match: "\n" * match[0].count("\n") + " ", text)
    return text


def faults(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, words and what to write instead."""
    for pattern, instead in RULES.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, match[0], instead


def report(name: str, text: str) -> list[str]:
    return [f"{name}:{line}: {words!r}: write {instead}" for line, words, instead in faults(text)]


PAGES = sorted(
    path
    for folder in ("docs", "dmr", "mpdata", "rms", "scripts", "tests", ".")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
    if "_build" not in path.parts
    and path.relative_to(ROOT).as_posix() not in LEFT_OUT
    and not path.relative_to(ROOT).as_posix().startswith(tuple(IGNORED))
)
TEMPLATES = sorted((ROOT / "rms" / "web").glob("templates/*.html"))
PRINTED = sorted(
    path
    for place in (
        "dmr/cli.py",
        "mpdata/cli/*.py",
        "rms/cli/*.py",
        "rms/client/*.py",
        "rms/web/*.py",
    )
    for path in ROOT.glob(place)
)
"""Modules whose texts are printed or shown."""


@pytest.mark.promise("words")
@pytest.mark.parametrize("path", PAGES + TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_plain_words(path: Path) -> None:
    wrong = report(path.relative_to(ROOT).as_posix(), prose(path.read_text(encoding="utf-8")))
    assert not wrong, "\n".join(wrong)


def sentences(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that have a blank, but for docstrings."""
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in left_out:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.value


@pytest.mark.parametrize("path", PRINTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_printed_texts_use_plain_words(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(ROOT).as_posix()
    wrong = [line for text in sentences(tree) for line in report(name, text)]
    assert not wrong, "\n".join(wrong)


def test_generated_pages_use_plain_words() -> None:
    pages = {**rms_pages.pages(), "cheatsheet": drawings.sheet_page()}
    wrong = [line for name, text in pages.items() for line in report(name, prose(text))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.promise("words")
def test_messages_use_plain_words() -> None:
    wrong = [
        line
        for message in messages.messages(ROOT)
        for line in report(message.file, re.sub(r"\{[^}]*\}", "X", message.sentence))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.promise("words")
def test_help_uses_plain_words() -> None:
    wrong = [
        line
        for name, parser in generated.parsers()
        for line in report(name, " ".join(parser.format_help().split()))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("what was found in the queue", 1),
        ("The file was not found; 404 Not Found. It is found in the folder.", 0),
        ("a job that is over", 1),
        ("the mean is over all jobs, and over 30 rows", 0),
        ("the time over that of EASY", 1),
        ("The daemon says that it lets nodes go.", 2),
        ("`found` in code\n\n```text\nasked\n```\n", 0),
    ],
)
def test_rules(text: str, number: int) -> None:
    assert len(list(faults(prose(text)))) == number
