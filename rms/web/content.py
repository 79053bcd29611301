"""What a page shows, in pieces, and what of it is sent when something has changed.

A view is a frame with places in it, pieces of HTML for those places, and lists of pieces. Each
piece has a key; only those are sent that differ from what was sent under their key before, in
messages of bounded length.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_BYTES = 10_000
"""No message is longer; what has no room in it is in the next."""

LONGEST_WORD = 120


def words(text: object, most: int = LONGEST_WORD) -> str:
    """Return a text as HTML shows it: nothing in it is markup, what steers a terminal is written
    out, and what is very long ends in ``...``."""
    given = str(text)
    given = given if len(given) <= most else f"{given[:most]}..."
    if not given.isprintable():
        given = "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in given
        )
    return html.escape(given)


@dataclass
class Content:
    """A view.

    Attributes:
        frame: its HTML; places for pieces have ``data-part="KEY"``, those for lists
            ``data-list="NAME"``.
        parts: pieces, by key.
        lists: of each list the keys of its pieces, ``NAME/...``, in order.
        window: of drawings with a time: its begin and end, s after their origin.
    """

    frame: str
    parts: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    window: tuple[float, float] | None = None

    def fill(self, name: str, pieces: Iterable[tuple[str, str]]) -> None:
        """Enter a list: ``(key, HTML)`` of each of its pieces."""
        self.lists[name] = []
        for key, piece in pieces:
            self.lists[name].append(f"{name}/{key}")
            self.parts[f"{name}/{key}"] = piece


class Sent:
    """What one page was sent."""

    def __init__(self) -> None:
        self._frame: str | None = None
        self._parts: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {}

    def update(self, content: Content, news: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the messages (JSON) that make a page show this.

        Args:
            news: what else is to be told; lists in it may be parted, the rest is in the last one.
        """
        message: dict[str, Any] = {}
        length = 0
        for section, key, value in [*self._changes(content), *_news(news)]:
            more = len(_encoded([section, key, value]))
            if message and length + more > MOST_BYTES - 20:
                yield _encoded(message)
                message, length = {}, 0
            if section in ("parts", "lists"):
                message.setdefault(section, {})[key] = value
            elif section == "news":
                message.setdefault(section, []).append(value)
            else:
                message[section] = value
            length += more
        yield _encoded(message)

    def _changes(self, content: Content) -> list[tuple[str, str, Any]]:
        """Return what differs from what was sent, and keep that it is sent now."""
        found: list[tuple[str, str, Any]] = []
        if content.frame != self._frame:
            found.append(("frame", "", content.frame))
            self._parts, self._lists = {}, {}
        parts, lists = self._parts, self._lists
        found += [("parts", k, v) for k, v in content.parts.items() if parts.get(k) != v]
        found += [("lists", k, v) for k, v in content.lists.items() if lists.get(k) != v]
        self._frame, self._parts, self._lists = content.frame, content.parts, content.lists
        if content.window is not None:
            found.append(("window", "", content.window))
        return found


def _news(news: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    return [("news", "", each) for each in news.get("news", ())] + [
        (key, "", value) for key, value in news.items() if key != "news"
    ]


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
