"""What a page asks to see, as its address says it, and what that takes of the daemon."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from rms.wire.live import LiveQuery

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
