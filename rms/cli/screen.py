"""The screen of ``rms top``: the cluster in three lines, a table of jobs, and actions on a job.

Requests to the daemon run in threads, so that keys work while it does not answer. The table holds
only the visible rows of a list of up to a hundred thousand; textual's ``DataTable`` holds them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, TypeVar
from urllib.parse import quote

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Button, Footer, Input, Static

from rms.cli.queue import job_lines
from rms.client.commands import Action, act, actions
from rms.client.connection import ServerError, ask
from rms.client.status import (
    DECISION_HEADS,
    ClusterStatus,
    decision_cells,
    pending_words,
    sizes_words,
    state_look,
)
from rms.formats.energy import energy_words
from rms.formats.values import fold_slots
from rms.wire.files import tail
from rms.wire.live import LIVE_PATH, MOST_ROWS, SORTS, JobLine, JobPage, Live, LiveQuery
from rms.wire.terminal import clock, columns, hms, printable
from rms.wire.users import HistoryEntry, JobRow

# --- dialogs ------------------------------------------------------------------------------------


class Confirmation(ModalScreen[int]):
    """A question whether to carry out an action; its result is -1 for no, else 0 or the nodes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "no", "No"),
        Binding("y", "yes", "Yes"),
    ]

    def __init__(self, action: Action) -> None:
        super().__init__()
        self._action = action

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(printable(self._action.say)))
            if self._action.nodes:
                yield Input(str(self._action.nodes), type="integer", placeholder="nodes")
            with Horizontal():
                yield Button("Yes, do it (y)", id="yes", variant="warning")
                yield Button("No (n)", id="no")

    def on_mount(self) -> None:
        self.query_one("Input" if self._action.nodes else "#no").focus()

    @on(Button.Pressed, "#no")
    def action_no(self) -> None:
        self.dismiss(-1)

    @on(Button.Pressed, "#yes")
    @on(Input.Submitted)
    def action_yes(self) -> None:
        """Return 0, or the number of nodes."""
        if not self._action.nodes:
            self.dismiss(0)
            return
        text = self.query_one(Input).value
        if text.isdecimal() and int(text):
            self.dismiss(int(text))
        else:
            self.notify("expected a number of nodes of at least 1", severity="error")


class Reader(ModalScreen[None]):
    """A window with lines of text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Close")]

    def __init__(self, title: str, lines: list[str], *, end: bool = False) -> None:
        super().__init__()
        self._title, self._lines, self._end = title, lines, end

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = Text(f"{printable(self._title)} (Esc closes)").markup
            yield Static(Text("\n".join(map(printable, self._lines))))

    def on_mount(self) -> None:
        if self._end:
            self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_close(self) -> None:
        self.dismiss()


# --- columns ------------------------------------------------------------------------------------

AROUND = 5
"""Number of rows above and below the visible ones that the table holds too."""


@dataclass(frozen=True)
class Column:
    """A column: head, sort key, width on a terminal of 80 columns and of 120 or more."""

    head: str
    sort: str
    narrow: int
    wide: int
    right: bool = False


COLUMNS = (
    Column("JOBID", "id", 10, 13),
    Column("NAME", "name", 10, 17),
    Column("STATE", "", 11, 13),
    Column("NODES", "nodes", 8, 16, right=True),
    Column("DONE", "", 4, 5, right=True),
    Column("TIME", "time", 7, 9, right=True),
    Column("ENERGY", "energy", 9, 9, right=True),
)
LAST, SHORT_LAST = "NODELIST(REASON)", "WHERE/WHY"
STATE, NODES = 2, 3
"""Places of two columns."""


def widths(whole: int) -> list[int]:
    """Return the widths of the columns on a terminal; the last has the rest."""
    share = min(1.0, max(0.0, (whole - 80) / 40))
    wide = [round(column.narrow + share * (column.wide - column.narrow)) for column in COLUMNS]
    return [*wide, max(0, whole - sum(wide) - len(wide))]


def heads(whole: int, sort: str) -> str:
    """Return the line of heads, with an arrow at the sort column."""
    arrow, words = "▼" if sort.startswith("-") else "▲", []
    for column in COLUMNS:
        mark = arrow if column.sort and column.sort == sort.removeprefix("-") else ""
        words.append(mark + column.head if column.right else column.head + mark)
    wide = widths(whole)
    last = LAST if wide[-1] >= len(LAST) else SHORT_LAST
    return " ".join(_fit([*words, last], wide))


def head_at(x: int, whole: int) -> str:
    """Return the sort key of the column at a place, "" if it has none."""
    ends = accumulate(width + 1 for width in widths(whole))
    return next((column.sort for column, end in zip(COLUMNS, ends, strict=False) if x < end), "")


def cells(line: JobLine, now_s: float, nodes: int, width: int) -> list[str]:
    """Return the texts of a row.

    Args:
        nodes: number of nodes of the cluster.
        width: of the column of nodes.
    """
    job, look = line.job, state_look(line.job)
    since_s = job.submit_s if job.start_s is None else job.start_s
    return [
        line.ids,
        job.name,
        f"{look.sign} {look.word}",
        nodes_bar(job, nodes, width),
        f"{job.step / job.steps:.0%}" if job.steps else "",
        hms((job.end_s or now_s) - since_s),
        energy_words(job.energy_j) if job.energy_j else "",
        fold_slots(job.nodes) or pending_words(job, now_s),
    ]


EIGHTHS = " ▏▎▍▌▋▊▉█"


def nodes_bar(job: JobRow, nodes: int, width: int) -> str:
    """Return the nodes of a job as a bar of a share of the cluster, and their number.

    The light part are the nodes that a resizable job may have beyond its own.
    """
    words = job.nodes_words.replace("->", "→")
    room = width - 1 - max(len(words), 4)
    if room < 2 or not job.size or job.end_s is not None:
        return words.rjust(width)
    filled, rest = divmod(round(8 * room * min(1.0, job.size / max(1, nodes))), 8)
    bar = "█" * filled + (EIGHTHS[rest] if rest else "")
    if job.mode in ("malleable", "flexible"):
        bar = bar.ljust(round(room * min(1.0, job.nodes_max / max(1, nodes))), "░")
    return f"{bar.ljust(room)} {words.rjust(width - 1 - room)}"


def cut(text: str, width: int) -> str:
    """Return a text of at most a width; a longer one ends with ``…``."""
    if cell_len(text) > width > 1:
        return set_cell_size(text, width - 1).rstrip() + "…"
    return text


def _fit(words: list[str], wide: list[int]) -> list[str]:
    """Return the texts at the widths of their columns; too long ones are cut, with ``…``."""
    parts = []
    right = [column.right for column in COLUMNS] + [False]
    for word, width, to_right in zip(words, wide, right, strict=False):
        text = cut(printable(word), width)
        parts.append(text.rjust(width) if to_right else set_cell_size(text, width))
    return parts


# --- table of jobs ------------------------------------------------------------------------------


class JobTable(ScrollView):
    """Rows of jobs, one of them selected; :meth:`wanted` are the rows that the table needs."""

    can_focus = True
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
        """Another row is selected."""

    class Unloaded(Message):
        """Rows that the table does not hold are visible."""

    class RowOpened(Message):
        """The user opens the selected row."""

    def __init__(self) -> None:
        super().__init__()
        self._page = JobPage([], 0, 0)
        self._now_s, self._all_nodes = 0.0, 1
        self._row = 0
        self._id = ""

    @property
    def width(self) -> int:
        return int(self.scrollable_content_region.width)

    def wanted(self) -> tuple[int, int]:
        """Return the rows that it needs: the first one and their number."""
        first = max(0, self.scroll_offset.y - AROUND)
        return first, self.scroll_offset.y + max(1, self.size.height) + AROUND - first

    def show(self, page: JobPage, now_s: float, nodes: int) -> None:
        """Hold other rows; the selected job stays selected if it is among them."""
        self._page, self._now_s, self._all_nodes = page, now_s, nodes
        ids = [line.job.id for line in page.lines]
        before = self._row
        if self._id in ids:
            self._row = page.offset + ids.index(self._id)
        self._row = max(0, min(self._row, page.total - 1))
        self.virtual_size = Size(self.width, page.total)
        if self._row != before:
            self._scroll_to_selected()
        self._choose()
        self.refresh()

    def chosen(self) -> JobLine | None:
        """Return the selected row, or None if there is none, or the table does not hold it."""
        at = self._row - self._page.offset
        return self._page.lines[at] if 0 <= at < len(self._page.lines) else None

    def restart(self) -> None:
        """Select the first row of the next list."""
        self._row, self._id = 0, ""
        self.scroll_to(y=0, animate=False)

    def _choose(self) -> None:
        line = self.chosen()
        self._id = "" if line is None else line.job.id
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        row, width = self.scroll_offset.y + y, self.width
        at = row - self._page.offset
        if not 0 <= at < len(self._page.lines):
            text = " …" if row < self._page.total else ""
            return Strip([Segment(text.ljust(width), self.rich_style)], width)
        line = self._page.lines[at]
        wide = widths(width)
        parts = _fit(cells(line, self._now_s, self._all_nodes, wide[NODES]), wide)
        if row == self._row:
            style = self.rich_style + Style(reverse=True, bold=self.has_focus)
            return Strip([Segment(" ".join(parts), style)]).adjust_cell_length(width, style)
        segments = []
        for n, word in enumerate(parts):
            colour = {STATE: state_look(line.job).colour, NODES: "green"}.get(n)
            style = self.rich_style + Style(color=colour) if colour else self.rich_style
            segments.append(Segment(f"{word} " if n < len(parts) - 1 else word, style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._need()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.width, self._page.total)
        self._need()

    def _need(self) -> None:
        first, last = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        held = self._page.offset, self._page.offset + len(self._page.lines)
        if first < held[0] or min(last, self._page.total) > held[1]:
            self.post_message(self.Unloaded())

    def _scroll_to_selected(self) -> None:
        region = Region(0, self._row, self.size.width, 1)
        self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def action_move(self, rows: int) -> None:
        self._row = max(0, min(self._row + rows, self._page.total - 1))
        self._scroll_to_selected()
        self._choose()
        self.refresh()

    def action_leaf(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 1))

    def action_open(self) -> None:
        self.post_message(self.RowOpened())

    def on_click(self, event: events.Click) -> None:
        """Select the row; a second click opens it."""
        row = self.scroll_offset.y + event.y
        if row < self._page.total:
            again = row == self._row and event.chain > 1
            self.action_move(row - self._row)
            if again:
                self.action_open()


# --- the screen ---------------------------------------------------------------------------------

REFRESH_S = 1.0
TAIL_BYTES = 65536
BARS = "▁▂▃▄▅▆▇█"
NODE_BAR, POWER_BAR = 12, 20
STARTS = 4
"""Number of expected starts in the line of the next ones."""

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Call a function in a thread that does not delay the end of the program."""
    future = Future[T]()
    future.set_running_or_notify_cancel()  # the end of the program does not cancel it

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # it is raised where it is awaited
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)


class Top(App[None]):
    """``rms top``, of the daemon at an address."""

    TITLE = "rms top"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "act('cancel')", "Cancel"),
        Binding("h", "hold", "Hold"),
        Binding("r", "act('resize')", "Resize"),
        Binding("e", "explain", "Explain"),
        Binding("o", "output", "Output"),
        Binding("s", "sort", "Sort"),
        Binding("d", "turn", "Reverse", show=False),
        Binding("slash", "find", "Find"),
        Binding("f", "over", "Ended"),
        Binding("escape", "leave_find", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server
        self._wake = asyncio.Event()
        self._sort = self._find = ""
        self._unfold: set[str] = set()
        self._list, self._now_s = "active", 0.0
        self._summary, self._heads = Static(id="summary"), Static(id="heads")
        self.table, self._details = JobTable(), Static(id="details")
        self._field = Input(placeholder="text in an id or a name", id="find")

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._heads
        yield self.table
        yield self._field
        yield self._details
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.table.focus()
        self._follow()

    # --- the daemon's answers --------------------------------------------------------------------

    def _query(self) -> LiveQuery:
        offset, limit = self.table.wanted()
        active = self._list == "active"
        return LiveQuery(
            jobs=self._list,
            find=self._find,
            offset=offset,
            limit=min(limit, MOST_ROWS),
            power=True,
            forecast=STARTS,
            sort=self._sort if active else "",
            unfold=tuple(sorted(self._unfold)) if active else (),
        )

    @work
    async def _follow(self) -> None:
        """Show the daemon's answer every second, and when other rows become visible."""
        while True:
            self._wake.clear()
            query = self._query()
            try:
                answer = partial(ask, Live, self._server, "POST", LIVE_PATH, query)
                live = await in_thread(answer)
            except ServerError as error:
                text = f"no daemon: {error}; next attempt in {REFRESH_S:g} s"
                self._summary.update(Text(printable(text), style="bold red"))
            else:
                if self._query() == query:  # else the answer is for an older view
                    self._show(live)
                else:
                    continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), REFRESH_S)

    def _show(self, live: Live) -> None:
        width = self.size.width - 2
        lines = summary(live).splitlines()
        text = Text("\n".join(cut(line, width) for line in lines), no_wrap=True)
        text.highlight_regex(f"[█░]{{{NODE_BAR}}}", "green")
        text.highlight_regex(f"[{BARS}]{{{POWER_BAR}}}", "cyan")
        self._summary.update(text)
        self._now_s = live.now_s
        if live.jobs is not None:
            self.table.show(live.jobs, live.now_s, live.nodes)
        self._show_heads()

    def _show_heads(self) -> None:
        width = self.table.width
        line = Text(heads(width, self._sort if self._list == "active" else ""), no_wrap=True)
        self._heads.update(line)

    @on(JobTable.Unloaded)
    def refresh_rows(self) -> None:
        self._wake.set()

    @on(JobTable.Moved)
    def show_details(self) -> None:
        line, is_active = self.table.chosen(), self._list == "active"
        nothing = f"No {'pending or running' if is_active else 'ended'} jobs."
        text = (nothing if not self._find else "") if line is None else details(line, self._now_s)
        marks = [f"find: {self._find}"] if self._find else []
        marks += [] if is_active else ["ended jobs"]
        more = f"  [{', '.join(marks)}; f and / change it]" if marks else ""
        self._details.update(Text(printable(more) + "\n" * bool(more) + text))

    # --- keys ------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_heads)

    @on(events.Click, "#heads")
    def sort_by_head(self, event: events.Click) -> None:
        """Sort by the clicked column; a second click reverses the order."""
        by = head_at(event.x - 1, self.table.width)
        if by:
            self._sort_by(by if self._sort != by else f"-{by}")

    def action_sort(self) -> None:
        """Sort by the next column; after the last one in the order of the queue."""
        orders = ["", *SORTS]
        self._sort_by(orders[(orders.index(self._sort.removeprefix("-")) + 1) % len(orders)])

    def action_turn(self) -> None:
        if self._sort:
            by = self._sort.removeprefix("-")
            self._sort_by(by if self._sort.startswith("-") else f"-{by}")

    def _sort_by(self, sort: str) -> None:
        self._sort = sort
        self._restart()

    def _restart(self) -> None:
        self.table.restart()
        self._wake.set()

    def action_over(self) -> None:
        """Switch between completed jobs and the others."""
        self._list = "over" if self._list == "active" else "active"
        self._restart()

    def action_find(self) -> None:
        self._field.display = True
        self._field.focus()

    @on(Input.Submitted, "#find")
    def find(self, event: Input.Submitted) -> None:
        """Show only jobs whose id or name contains the text."""
        self._find = event.value.strip()
        self.action_leave_find()
        self._restart()

    def action_leave_find(self) -> None:
        self._field.display = False
        self.table.focus()

    @on(JobTable.RowOpened)
    def open_row(self) -> None:
        """Unfold an array, fold it again, or show a job."""
        line = self.table.chosen()
        if line is None:
            return
        array = line.job.id.partition("_")[0]
        if line.tasks > 1:
            self._unfold.add(array)
        elif array in self._unfold and line.job.state == "PENDING":
            self._unfold.discard(array)
        else:
            self.push_screen(Reader(f"job {line.job.id}", job_lines(line.job)))
            return
        self._wake.set()

    def action_act(self, *any_of: str) -> None:
        """Carry out the possible one of these actions on the selected job, after confirmation."""
        line = self.table.chosen()
        if line is None:
            return
        can = [action for action in actions(line.job, line.ids) if action.do in any_of]
        if not can:
            state = state_look(line.job).word
            text = f"no {any_of[0]} of job {line.ids}, {state}, {line.job.mode}"
            self.notify(printable(text), severity="warning", markup=False)
            return

        def then(nodes: int | None) -> None:
            if nodes is not None and nodes >= 0:
                self._act(can[0].do, line.ids, nodes)

        self.push_screen(Confirmation(can[0]), then)

    def action_hold(self) -> None:
        self.action_act("hold", "release")

    @work
    async def _act(self, do: str, ids: str, nodes: int) -> None:
        try:
            text = await in_thread(lambda: act(self._server, do, ids, nodes))
        except ServerError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
        else:
            self.notify(printable(text), markup=False)
        self._wake.set()

    @work
    async def action_explain(self) -> None:
        line = self.table.chosen()
        if line is None:
            return
        path = f"/history/{quote(line.job.id)}"
        try:
            entries = await in_thread(lambda: ask(list[HistoryEntry], self._server, "GET", path))
        except ServerError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
            return
        lines = columns(DECISION_HEADS, list(map(decision_cells, entries)))
        self.push_screen(Reader(f"decisions about job {line.job.id}", lines))

    @work
    async def action_output(self) -> None:
        """Show the end of the selected job's output, if this machine has the file."""
        line = self.table.chosen()
        if line is None:
            return
        try:
            path = Path(line.job.output)
            lines = await in_thread(lambda: tail(path, TAIL_BYTES)) or ["(empty)"]
        except OSError as error:
            lines = [f"{line.job.output} cannot be read here: {error.strerror}"]
        self.push_screen(Reader(f"{line.job.output}", lines, end=True))


def summary(live: Live) -> str:
    """Return three lines about the cluster: nodes and jobs, power and energy, the next starts."""
    filled = round(NODE_BAR * live.held / max(1, live.nodes))
    bar = "█" * filled + "░" * (NODE_BAR - filled)
    status = ClusterStatus.of_live(live)
    first = f"Nodes {bar} {status.nodes_words} allocated   {status.jobs_words}"
    third = f"Policy {status.policy}   Next start: {forecast(live)}"
    power = live.power
    if power is None:
        return printable(first)
    cap = "" if power.cap_w is None else f" of {power.cap_w:.0f} W"
    energy = power.energy
    second = (
        f"Power {curve([point[1] for point in power.points])} {live.power_w:.0f} W{cap}   "
        f"Energy {energy_words(energy.cluster_j)}, jobs {energy_words(energy.busy_j)} "
        f"({power.sources})"
    )
    return "\n".join(map(printable, (first, second, third)))


def forecast(live: Live) -> str:
    """Return the expected starts of pending jobs, the next one first."""
    starts = [f"{row.job} {row.name} in {hms(row.at_s - live.now_s)}" for row in live.forecast]
    return ", ".join(starts) or "unknown"


def curve(watts: list[float]) -> str:
    """Return the power of the last ten minutes as bars, relative to the highest."""
    if not watts:
        return " " * POWER_BAR
    samples = [watts[n * len(watts) // POWER_BAR] for n in range(POWER_BAR)]
    most = max(samples) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int(len(BARS) * watt / most))] for watt in samples)


def details(line: JobLine, now_s: float) -> str:
    """Return lines about a row: the job, its nodes or why it is pending, and its resizes."""
    job = line.job
    tasks = f", {line.tasks:,} tasks" if line.tasks > 1 else ""
    first = f"{line.ids} {job.name}{tasks}, {job.mode}, nodes {job.range_words}, submitted "
    first += f"{clock(job.submit_s)}, {hms(now_s - job.submit_s)} ago"
    second = fold_slots(job.nodes) or job.reason
    if job.expected_start_s is not None:
        at, in_s = clock(job.expected_start_s), job.expected_start_s - now_s
        second = f"expected to start at {at}, in {hms(in_s)}: {job.reason}"
    lines = [first, second]
    if job.resizes:
        last = job.resizes[-1]
        lines.append(
            f"resizes {len(job.resizes)}: {sizes_words(job)} ranks, the last at "
            f"{clock(last.at_s)}, stopped for {last.stall_s:.2f} s"
        )
    return "\n".join(map(printable, lines))
