"""The table of jobs in ``rms top``: as long as the daemon's list; it holds what is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rms.cli.queue import hours
from rms.formats.energy import energy_words
from rms.formats.nodelist import fold_slots
from rms.wire.live import JobLine, JobPage
from rms.wire.terminal import printable

AROUND = 5
"""So many rows above and below those that are seen are asked for too."""

COLOURS = {"RUNNING": "green", "PENDING": "yellow", "COMPLETED": "cyan", "FAILED": "red"}


@dataclass(frozen=True)
class Column:
    """A column: its head, by what it is sorted, its widths at 80 columns and at 120 and more."""

    head: str
    sort: str
    narrow: int
    wide: int
    right: bool = False


COLUMNS = (
    Column("JOBID", "id", 10, 18),
    Column("NAME", "name", 10, 24),
    Column("STATE", "", 8, 13),
    Column("NODES", "nodes", 6, 7, right=True),
    Column("DONE", "", 4, 5, right=True),
    Column("TIME", "time", 8, 11, right=True),
    Column("ENERGY", "energy", 9, 10, right=True),
)
LAST = "NODELIST(REASON)"


def widths(whole: int) -> list[int]:
    """Return how wide each column is in so many; the last has the rest."""
    share = min(1.0, max(0.0, (whole - 80) / 40))
    found = [round(each.narrow + share * (each.wide - each.narrow)) for each in COLUMNS]
    return [*found, max(0, whole - sum(found) - len(found))]


def heads(whole: int, sort: str) -> str:
    """Return the line of heads, the one that is sorted by with an arrow."""
    words = []
    for each in COLUMNS:
        arrow = "▼" if sort.startswith("-") else "▲"
        mark = arrow if each.sort and each.sort == sort.removeprefix("-") else ""
        words.append(mark + each.head if each.right else each.head + mark)
    return " ".join(_fit([*words, LAST], widths(whole)))


def head_at(x: int, whole: int) -> str:
    """Return by what the column at this place is sorted, "" where it cannot be."""
    end = 0
    for each, width in zip(COLUMNS, widths(whole), strict=False):
        end += width + 1
        if x < end:
            return each.sort
    return ""


def cells(line: JobLine, now_s: float) -> list[str]:
    """Return what the columns say of a row."""
    job = line.job
    since_s = job.submit_s if job.start_s is None else job.start_s
    return [
        line.ids,
        job.name,
        job.state,
        job.nodes_words,
        f"{job.step / job.steps:.0%}" if job.steps else "",
        hours((job.end_s or now_s) - since_s),
        energy_words(job.energy_j) if job.energy_j else "",
        fold_slots(job.nodes) or job.reason,
    ]


def _fit(words: list[str], wide: list[int]) -> list[str]:
    """Return each text as wide as its column; one that is too long ends with ``…``."""
    found = []
    right = [each.right for each in COLUMNS] + [False]
    for word, width, to_right in zip(words, wide, right, strict=False):
        text = printable(word)
        if len(text) > width and width > 1:
            text = set_cell_size(text, width - 1).rstrip() + "…"
        found.append(text.rjust(width) if to_right else set_cell_size(text, width))
    return found


class JobTable(ScrollView):
    """Rows of jobs, one of them chosen; it says which rows it needs."""

    can_focus = True
    DEFAULT_CSS = "JobTable { overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "leaf(-1)", show=False),
        Binding("pagedown", "leaf(1)", show=False),
        Binding("home,g", "move(-1_000_000_000)", show=False),
        Binding("end,G", "move(1_000_000_000)", show=False),
        Binding("enter", "open", "Open"),
    ]

    class Moved(Message):
        """Another row is chosen."""

    class Unloaded(Message):
        """Rows are seen that are not held."""

    class Opened(Message):
        """The chosen row is to be unfolded, or shown."""

    def __init__(self) -> None:
        super().__init__()
        self._page = JobPage([], 0, 0)
        self._now_s = 0.0
        self._row = 0
        self._id = ""

    # --- what it holds ---------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """How many columns of the screen its rows have."""
        width: int = self.scrollable_content_region.width
        return width

    def wanted(self) -> tuple[int, int]:
        """Return which rows it needs: the first and how many."""
        first = max(0, self.scroll_offset.y - AROUND)
        return first, self.scroll_offset.y + max(1, self.size.height) + AROUND - first

    def show(self, page: JobPage, now_s: float) -> None:
        """Hold other rows; the chosen job stays chosen where it is among them."""
        self._page, self._now_s = page, now_s
        ids = [line.job.id for line in page.lines]
        before = self._row
        if self._id in ids:
            self._row = page.offset + ids.index(self._id)
        self._row = max(0, min(self._row, page.total - 1))
        self.virtual_size = Size(self.width, page.total)
        if self._row != before:
            self._see()
        self._choose()
        self.refresh()

    def chosen(self) -> JobLine | None:
        """Return the chosen row, None where there is none, or it is not held yet."""
        at = self._row - self._page.offset
        return self._page.lines[at] if 0 <= at < len(self._page.lines) else None

    def restart(self) -> None:
        """Choose the first row of what will be shown next."""
        self._row, self._id = 0, ""
        self.scroll_to(y=0, animate=False)

    def _choose(self) -> None:
        line = self.chosen()
        self._id = "" if line is None else line.job.id
        self.post_message(self.Moved())

    # --- what is seen ----------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Return a line of what is seen."""
        row, width = self.scroll_offset.y + y, self.width
        at = row - self._page.offset
        if not 0 <= at < len(self._page.lines):
            text = " …" if row < self._page.total else ""
            return Strip([Segment(text.ljust(width), self.rich_style)], width)
        line = self._page.lines[at]
        if row == self._row:
            style = self.rich_style + Style(reverse=True, bold=self.has_focus)
            words = " ".join(_fit(cells(line, self._now_s), widths(width)))
            return Strip([Segment(words, style)]).adjust_cell_length(width, style)
        parts = _fit(cells(line, self._now_s), widths(width))
        segments = []
        for n, word in enumerate(parts):
            colour = COLOURS.get(line.job.state) if n == 2 else None
            style = self.rich_style + Style(color=colour) if colour else self.rich_style
            segments.append(Segment(f"{word} " if n < len(parts) - 1 else word, style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Ask for the rows that are seen now."""
        super().watch_scroll_y(old_value, new_value)
        self._need()

    def on_resize(self) -> None:
        """Ask for the rows that are seen now."""
        self.virtual_size = Size(self.width, self._page.total)
        self._need()

    def _need(self) -> None:
        first, last = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        held = self._page.offset, self._page.offset + len(self._page.lines)
        if first < held[0] or min(last, self._page.total) > held[1]:
            self.post_message(self.Unloaded())

    def _see(self) -> None:
        """Scroll to where the chosen row is seen."""
        region = Region(0, self._row, self.size.width, 1)
        self.scroll_to_region(region, animate=False, force=True, immediate=True)

    # --- keys and mouse --------------------------------------------------------------------------

    def action_move(self, rows: int) -> None:
        """Choose a row further down, or up."""
        self._row = max(0, min(self._row + rows, self._page.total - 1))
        self._see()
        self._choose()
        self.refresh()

    def action_leaf(self, pages: int) -> None:
        """Choose a row a page further down, or up."""
        self.action_move(pages * max(1, self.size.height - 1))

    def action_open(self) -> None:
        """Unfold or show the chosen row."""
        self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        """Choose the row; open it by a second click."""
        row = self.scroll_offset.y + event.y
        if row < self._page.total:
            again = row == self._row and event.chain > 1
            self.action_move(row - self._row)
            if again:
                self.action_open()
