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
from urllib.parse import urlencode

from rms import drawings
from rms.client.commands import actions
from rms.wire.live import LiveQuery
from rms.wire.users import JobRow

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


# FUSED rms.web.content: Words and buttons that several views have.


def state_words(state: str, resizing: str = "") -> str:
    """Return a state with its sign, and the state of a resize."""
    also = f", resize: {words(resizing, 30)}" if resizing else ""
    _, sign = drawings.TASK_SIGNS.get(state, drawings.OTHER_SIGN)
    return f'<span aria-hidden="true">{sign}</span> {words(state, 30)}{also}'


def size_words(job: JobRow) -> str:
    """Return the number of nodes of a job and the target of a resize, or the requested range."""
    if job.size and job.resize_to is not None:
        return f"{job.size} -> {job.resize_to}{'' if job.resizing else ' pending'}"
    if job.size:
        return str(job.size)
    low, high = job.nodes_min, job.nodes_max
    return str(high) if low == high else f"{low} to {high}"


def duration(seconds: float) -> str:
    """Return a length of time in its largest whole unit."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def act_button(do: str, target: str, label: str, say: str, ask: str = "") -> str:
    """Return a button that does something once it is confirmed.

    Args:
        say: what will happen.
        ask: the name of a figure or word that is asked for too, with its first value.
    """
    extra = f' data-ask="{words(ask)}"' if ask else ""
    return (
        f'<button type="button" data-do="{do}" data-target="{words(target, 10_000)}" '
        f'data-say="{words(say, 400)}"{extra} aria-label="{label} {words(target, 40)}">'
        f"{label}</button>"
    )


def job_buttons(job: JobRow, ids: str) -> str:
    """Return what can be done to a job."""
    return "".join(
        act_button(each.do, ids, each.label, each.say, f"nodes={each.nodes}" if each.nodes else "")
        for each in actions(job, ids)
    )


# FUSED rms.web.content: What a page asks to see, as its address says it, and what that takes of the daemon.

VIEWS = ("overview", "jobs", "job", "array", "power", "nodes")

ROWS = 25


@dataclass(frozen=True)
class Asked:
    """What a page shows: a view, and what is chosen in it.

    Attributes:
        view: one of :data:`VIEWS`.
        id: of a job or an array.
        jobs: which list of jobs: ``active`` or ``over``.
        find: a text that their ids or names hold.
        offset: the first row, or task.
        span_s: the length of the time shown, s.
        back_s: how long before the present it ends, 0 for the present, s.
    """

    view: str = "overview"
    id: str = ""
    jobs: str = "active"
    find: str = ""
    offset: int = 0
    span_s: float = 600.0
    back_s: float = 0.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Asked:
        """Return what a query says.

        Raises:
            ValueError: there is no such view or list, or no number where one is expected.
        """
        view, jobs = given.get("view", "overview"), given.get("jobs", "active")
        if view not in VIEWS:
            raise ValueError(f"expected a view of {', '.join(VIEWS)}, got {view[:60]!r}")
        if jobs not in ("active", "over"):
            raise ValueError(f"expected jobs active or over, got {jobs[:60]!r}")
        offset, span_s, back_s = (
            _number(given, "offset", 0, 10**9),
            _number(given, "span", 600, 10**9),
            _number(given, "back", 0, 10**11),
        )
        texts = given.get("id", "")[:100], jobs, given.get("find", "")[:200]
        return cls(view, *texts, int(offset), max(1.0, span_s), back_s)

    def link(self, **changed: object) -> str:
        """Return the fragment of an address that shows this, with some of it changed."""
        now: dict[str, object] = {"view": self.view, "id": self.id, "jobs": self.jobs}
        now |= {"find": self.find, "offset": self.offset}
        now |= {"span": f"{self.span_s:g}", "back": f"{self.back_s:g}"}
        usual = {"id": "", "jobs": "active", "find": "", "offset": 0, "span": "600", "back": "0"}
        now |= changed
        kept = {key: each for key, each in now.items() if str(each) != str(usual.get(key))}
        return html.escape(f"#{urlencode(kept)}")


def _number(given: Mapping[str, str], name: str, usual: float, most: float) -> float:
    text = given.get(name, "")
    try:
        found = float(text) if text else float(usual)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= most:
        raise ValueError(f"expected a number of at most {most:g} for {name}, got {text[:60]!r}")
    return found


def query(asked: Asked, after: int, hold_s: float, now_s: float) -> LiveQuery:
    """Return what a view needs of the daemon.

    Args:
        now_s: the daemon's time, as last told.
    """
    end_s = now_s - asked.back_s if asked.back_s and now_s else 0.0
    return LiveQuery(
        after=after,
        hold_s=hold_s,
        jobs=asked.jobs if asked.view in ("overview", "jobs") else "",
        find=asked.find,
        offset=asked.offset,
        limit=ROWS,
        lanes=32 if asked.view in ("overview", "nodes") else 0,
        end_s=end_s,
        span_s=asked.span_s,
        power=asked.view == "power",
        array=asked.id if asked.view == "array" else "",
        job=asked.id if asked.view == "job" else "",
    )
