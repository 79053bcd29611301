"""A page in one file: tables, and figures inside it, so that it can be sent or kept as it is."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from rms import drawings

STYLE = """:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #eceef1 }
@media (prefers-color-scheme: dark) { :root { --ink: #eaeaea; --paper: #15181c; --soft: #2a3038 } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 90rem; padding: 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin: 1.8rem 0 .4rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
.wide { overflow-x: auto; max-height: 34rem; margin: .5rem 0 1rem }
table { border-collapse: collapse } th { position: sticky; top: 0; background: var(--paper) }
td, th { padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--soft) }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
img { max-width: 100%; display: block; background: #fff }
pre { background: var(--soft); padding: .6rem; overflow-x: auto }
.over-time { touch-action: pan-y; cursor: grab; margin: .4rem 0 }
.over-time:focus-visible { outline: 3px solid #0b6bd3; outline-offset: 3px }
.row { display: flex; align-items: center; gap: .5rem }
.row .name { flex: 0 0 7rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.row svg { flex: 1; min-width: 0 } .row svg.lane { border-bottom: 1px solid var(--soft) }
.tasks svg { max-width: 50rem }
.key { padding: 0 .4rem; margin-right: .3rem; color: #111; border: 1px solid #444 }
.key.jobs { background: #77aadd } .key.idle { background: #eedd88 }
.key.off { background: #bbcc33 } .key.boot { background: #ee8866 }
"""
SCRIPT = Path(__file__).with_name("report.js")
NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?([eE][-+]?\d+)?( ?(s|J|kJ|MJ|GJ|W|%|MB|GB/s))?")


def page(title: str, parts: Iterable[str]) -> str:
    """Return the page; ``parts`` are what the other functions return."""
    name, style, script = html.escape(title), STYLE + drawings.STYLE, SCRIPT.read_text()
    rules = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{style}</style></head>\n<body><main><h1>{name}</h1>\n{body}\n"
        f"</main><script>{script}</script></body></html>\n"
    )


def _hash(text: str) -> str:
    """Return the source expression that permits an inline style or script."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def heading(text: str, level: int = 2) -> str:
    """Return a heading."""
    return f"<h{level}>{html.escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{html.escape(text)}</p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text; no heads are no line of them."""
    lines = [_line("th", heads)] if heads else []
    lines += [_line("td", row) for row in rows]
    return '<div class="wide" tabindex="0"><table>' + "\n".join(lines) + "\n</table></div>"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(_cell(tag, cell, at) for at, cell in enumerate(cells))}</tr>"


def _cell(tag: str, cell: str, at: int) -> str:
    kind = ' class="n"' if at and tag == "td" and NUMBER.fullmatch(cell) else ""
    return f"<{tag}{kind}>{html.escape(cell)}</{tag}>"


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
