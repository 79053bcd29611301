"""A page: the query in its address, and the updates that make it show the present.

A view is a frame with places, pieces of HTML for these places, and lists of pieces. A piece has a
key; an update has the pieces that differ from those sent under the same key before, in messages of
limited length.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from rms.wire.live import LiveQuery
from rms.wire.terminal import printable

MOST_BYTES = 10_000
"""Length of a message; the rest is in the next one."""

LONGEST_WORD = 120


def words(text: object, most: int = LONGEST_WORD) -> str:
    """Return a text in one line: cut to a length, with control characters escaped."""
    line = str(text)
    return printable(line if len(line) <= most else f"{line[:most]}...")


# --- query --------------------------------------------------------------------------------------

VIEWS = ("overview", "jobs", "job", "array", "power", "nodes")

ROWS = 25


@dataclass(frozen=True)
class PageQuery:
    """The view of a page, and the choices in it.

    Attributes:
        view: one of :data:`VIEWS`.
        id: of a job or an array.
        jobs: list of jobs: ``active`` or ``over``.
        find: a text that their ids or names contain.
        offset: the first row, or task.
        span_s: length of the time shown, s.
        back_s: time from its end to the present, s.
    """

    view: str = "overview"
    id: str = ""
    jobs: str = "active"
    find: str = ""
    offset: int = 0
    span_s: float = 600.0
    back_s: float = 0.0

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> PageQuery:
        """Return the query of an address.

        Raises:
            ValueError: the view or list is unknown, or a number is invalid.
        """
        view, jobs = parameters.get("view", "overview"), parameters.get("jobs", "active")
        if view not in VIEWS:
            raise ValueError(f"expected a view of {', '.join(VIEWS)}, got {view[:60]!r}")
        if jobs not in ("active", "over"):
            raise ValueError(f"expected jobs active or over, got {jobs[:60]!r}")
        return cls(
            view=view,
            id=parameters.get("id", "")[:100],
            jobs=jobs,
            find=parameters.get("find", "")[:200],
            offset=int(_number(parameters, "offset", 0, 10**9)),
            span_s=max(1.0, _number(parameters, "span", 600, 10**9)),
            back_s=_number(parameters, "back", 0, 10**11),
        )

    def link(self, **changes: object) -> str:
        """Return the fragment of the address of this query with some changes."""
        options: dict[str, object] = {
            "view": self.view,
            "id": self.id,
            "jobs": self.jobs,
            "find": self.find,
            "offset": self.offset,
            "span": f"{self.span_s:g}",
            "back": f"{self.back_s:g}",
        }
        defaults = {"id": "", "jobs": "active", "find": "", "offset": 0, "span": "600", "back": "0"}
        options |= changes
        return "#" + urlencode(
            {key: value for key, value in options.items() if str(value) != str(defaults.get(key))}
        )

    def moved(self, spans: float) -> str:
        """Return the link to an earlier time, by a number of spans, or to a later one."""
        return self.link(back=f"{max(0.0, self.back_s + spans * self.span_s):g}")


def _number(parameters: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = parameters.get(name, "")
    try:
        number = float(text) if text else float(default)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= most:
        raise ValueError(f"expected a number of at most {most:g} for {name}, got {text[:60]!r}")
    return number


def query(page: PageQuery, after: int, hold_s: float, now_s: float) -> LiveQuery:
    """Return the query to the daemon for a view.

    Args:
        now_s: the daemon's time in its last answer.
    """
    end_s = now_s - page.back_s if page.back_s and now_s else 0.0
    return LiveQuery(
        after=after,
        hold_s=hold_s,
        jobs=page.jobs if page.view in ("overview", "jobs") else "",
        find=page.find,
        offset=page.offset,
        limit=ROWS,
        lanes=32 if page.view in ("overview", "nodes") else 0,
        end_s=end_s,
        span_s=page.span_s,
        power=page.view == "power",
        array=page.id if page.view == "array" else "",
        job=page.id if page.view == "job" else "",
    )


# --- updates ------------------------------------------------------------------------------------


@dataclass
class Content:
    """A view.

    Attributes:
        frame: HTML with places for pieces, ``data-part="KEY"``, and for lists,
            ``data-list="NAME"``.
        parts: pieces by key.
        lists: keys of the pieces by list, ``NAME/...``, in order.
        window: begin and end of charts over time, s after their origin.
    """

    frame: str
    parts: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    window: tuple[float, float] | None = None

    def fill(self, name: str, pieces: Iterable[tuple[str, str]]) -> None:
        """Set a list of pieces ``(key, HTML)``."""
        self.lists[name] = []
        for key, piece in pieces:
            self.lists[name].append(f"{name}/{key}")
            self.parts[f"{name}/{key}"] = piece


class PageState:
    """The pieces that one page has."""

    def __init__(self) -> None:
        self._frame: str | None = None
        self._parts: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {}

    def update(self, content: Content, news: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the messages (JSON) that make a page show a view.

        Args:
            news: other fields; the list ``news`` may be divided, the rest is in the last message.
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
        """Return the differences from the last update."""
        changes: list[tuple[str, str, Any]] = []
        if content.frame != self._frame:
            changes.append(("frame", "", content.frame))
            self._parts, self._lists = {}, {}
        parts, lists = self._parts, self._lists
        changes += [("parts", k, v) for k, v in content.parts.items() if parts.get(k) != v]
        changes += [("lists", k, v) for k, v in content.lists.items() if lists.get(k) != v]
        self._frame, self._parts, self._lists = content.frame, content.parts, content.lists
        if content.window is not None:
            changes.append(("window", "", content.window))
        return changes


def _news(news: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    return [("news", "", entry) for entry in news.get("news", ())] + [
        (key, "", value) for key, value in news.items() if key != "news"
    ]


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
