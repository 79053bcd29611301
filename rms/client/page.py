"""A page in one file: tables, and figures inside it, so that it can be sent or kept as it is."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

STYLE = """body { font-family: sans-serif; margin: 2em } td, th { padding: 0 1em; text-align: left }
img { max-width: 100%; display: block }"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return the page; ``parts`` are what the other functions return."""
    name = html.escape(title)
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<meta charset="utf-8"><title>{name}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{name}</h1>\n{body}\n"
    )


def heading(text: str) -> str:
    """Return a heading."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{html.escape(text)}</p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text; no heads are no line of them."""
    lines = [_line("th", heads)] if heads else []
    lines += [_line("td", row) for row in rows]
    return "<table>" + "\n".join(lines) + "\n</table>"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def preformatted(lines: Iterable[str]) -> str:
    """Return lines as a terminal shows them."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def pictures(files: Iterable[Path]) -> str:
    """Return PNG files as pictures inside the page."""
    return "".join(
        f'<img alt="{html.escape(file.stem)}" src="data:image/png;base64,'
        f'{base64.b64encode(file.read_bytes()).decode()}">'
        for file in files
    )
