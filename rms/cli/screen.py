"""The screen of ``rms top``: the cluster in two lines, jobs in a table, what can be done to one.

Everything asked of the daemon is asked in threads, so that keys are answered while it is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input, Static

from rms.cli.dialogs import Question, Reader
from rms.cli.jobtable import JobTable, head_at, heads
from rms.cli.show import known_lines
from rms.client.actions import act, actions
from rms.client.connection import ServerError, ask
from rms.drawings import clock
from rms.formats.energy import energy_words
from rms.formats.nodelist import fold_slots
from rms.wire.live import LIVE_PATH, MOST_ROWS, SORTS, JobLine, Live, LiveQuery
from rms.wire.terminal import columns, printable
from rms.wire.users import HistoryEntry

REFRESH_S = 1.0
TAIL_BYTES = 65536
BARS = "▁▂▃▄▅▆▇█"
NODE_BAR, POWER_BAR = 12, 20

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Call something that may take long, in a thread that the end of the program does not await."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def deliver(error: BaseException | None, result: Any) -> None:
        if found.cancelled():
            return
        if error is None:
            found.set_result(result)
        else:
            found.set_exception(error)

    def run() -> None:
        error, result = None, None
        try:
            result = call()
        except Exception as failed:  # it is raised where it is awaited
            error = failed
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(deliver, error, result)

    threading.Thread(target=run, daemon=True).start()
    return await found


class Top(App[None]):
    """``rms top``.

    Args:
        server: the daemon's address.
    """

    TITLE = "rms top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: 2; padding: 0 1; background: $panel; }
    #heads { height: 1; padding: 0 1; text-style: bold; color: $accent; }
    JobTable { height: 1fr; padding: 0 1; }
    #find { display: none; height: 3; }
    #details { height: auto; min-height: 2; padding: 0 1; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "act('cancel')", "Cancel"),
        Binding("h", "hold", "Hold"),
        Binding("r", "act('resize')", "Resize"),
        Binding("e", "explain", "Why"),
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
        self._list = "active"
        self._summary, self._heads = Static(id="summary"), Static(id="heads")
        self.table, self._details = JobTable(), Static(id="details")
        self._field = Input(placeholder="text in an id or a name", id="find")

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen, from its top."""
        yield self._summary
        yield self._heads
        yield self.table
        yield self._field
        yield self._details
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to follow the daemon."""
        self.table.focus()
        self._follow()

    # --- what the daemon says --------------------------------------------------------------------

    def _query(self) -> LiveQuery:
        offset, limit = self.table.wanted()
        active = self._list == "active"
        return LiveQuery(
            jobs=self._list,
            find=self._find,
            offset=offset,
            limit=min(limit, MOST_ROWS),
            power=True,
            sort=self._sort if active else "",
            unfold=tuple(sorted(self._unfold)) if active else (),
        )

    @work
    async def _follow(self) -> None:
        """Show what the daemon says, every second and when other rows are to be seen."""
        while True:
            self._wake.clear()
            query = self._query()
            try:
                live = await in_thread(lambda q=query: self._ask(q))  # type: ignore[misc]
            except ServerError as error:
                said = f"no daemon: {error}; asked again every {REFRESH_S:g} s"
                self._summary.update(Text(printable(said), style="bold red"))
            else:
                if self._query() == query:  # else what is shown now was not asked for
                    self._show(live)
                else:
                    continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), REFRESH_S)

    def _ask(self, query: LiveQuery) -> Live:
        return ask(Live, self._server, "POST", LIVE_PATH, query)

    def _show(self, live: Live) -> None:
        said = Text(summary(live), no_wrap=True)
        said.highlight_regex(f"[█░]{{{NODE_BAR}}}", "green")
        said.highlight_regex(f"[{BARS}]{{{POWER_BAR}}}", "cyan")
        self._summary.update(said)
        if live.jobs is not None:
            self.table.show(live.jobs, live.now_s)
        self._show_heads()

    def _show_heads(self) -> None:
        width = self.table.width
        line = Text(heads(width, self._sort if self._list == "active" else ""), no_wrap=True)
        self._heads.update(line)

    @on(JobTable.Unloaded)
    def refresh_rows(self) -> None:
        """Ask for what is to be seen now."""
        self._wake.set()

    @on(JobTable.Moved)
    def show_details(self) -> None:
        """Say more of the chosen row."""
        line = self.table.chosen()
        nothing = "No job waits or runs." if self._list == "active" else "No job has ended."
        said = (nothing if not self._find else "") if line is None else details(line)
        marks = [f"find: {self._find}"] if self._find else []
        marks += ["jobs that have ended"] if self._list == "over" else []
        more = f"  [{', '.join(marks)}; f and / change it]" if marks else ""
        self._details.update(Text(printable(more) + "\n" * bool(more) + said))

    # --- keys ------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Fit the heads to the table's new width."""
        self.call_after_refresh(self._show_heads)

    @on(events.Click, "#heads")
    def sort_by_head(self, event: events.Click) -> None:
        """Sort by the column that was clicked; the other way the second time."""
        by = head_at(event.x - 1, self.table.width)
        if by:
            self._sort_by(by if self._sort != by else f"-{by}")

    def action_sort(self) -> None:
        """Sort by the next column; after the last as the daemon queues them."""
        orders = ["", *SORTS]
        self._sort_by(orders[(orders.index(self._sort.removeprefix("-")) + 1) % len(orders)])

    def action_turn(self) -> None:
        """Sort the other way round."""
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
        """Show the jobs that have ended, or again those that wait or run."""
        self._list = "over" if self._list == "active" else "active"
        self._restart()

    def action_find(self) -> None:
        """Ask for a text that ids or names hold."""
        self._field.display = True
        self._field.focus()

    @on(Input.Submitted, "#find")
    def find(self, event: Input.Submitted) -> None:
        """Show only jobs whose id or name holds the text."""
        self._find = event.value.strip()
        self.action_leave_find()
        self._restart()

    def action_leave_find(self) -> None:
        """Go back to the table."""
        self._field.display = False
        self.table.focus()

    @on(JobTable.Opened)
    def open_row(self) -> None:
        """Unfold an array, fold it again, or show all that is known of a job."""
        line = self.table.chosen()
        if line is None:
            return
        array = line.job.id.partition("_")[0]
        if line.tasks > 1:
            self._unfold.add(array)
        elif array in self._unfold and line.job.state == "PENDING":
            self._unfold.discard(array)
        else:
            self.push_screen(Reader(f"job {line.job.id}", known_lines(line.job)))
            return
        self._wake.set()

    def action_act(self, *any_of: str) -> None:
        """Do the one of these that can be done to the chosen job, once it is confirmed."""
        line = self.table.chosen()
        if line is None:
            return
        can = [action for action in actions(line.job, line.ids) if action.do in any_of]
        if not can:
            said = f"job {line.ids} is {line.job.state} and {line.job.mode}: no {any_of[0]} of it"
            self.notify(printable(said), severity="warning", markup=False)
            return

        def then(nodes: int | None) -> None:
            if nodes is not None and nodes >= 0:
                self._act(can[0].do, line.ids, nodes)

        self.push_screen(Question(can[0]), then)

    def action_hold(self) -> None:
        """Hold the chosen job; release one that is held."""
        self.action_act("hold", "release")

    @work
    async def _act(self, do: str, ids: str, nodes: int) -> None:
        try:
            said = await in_thread(lambda: act(self._server, do, ids, nodes))
        except ServerError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
        else:
            self.notify(printable(said), markup=False)
        self._wake.set()

    @work
    async def action_explain(self) -> None:
        """Show the decisions about the chosen job."""
        line = self.table.chosen()
        if line is None:
            return
        path = f"/history/{quote(line.job.id)}"
        try:
            found = await in_thread(lambda: ask(list[HistoryEntry], self._server, "GET", path))
        except ServerError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
            return
        rows = [(clock(e.at_s, day=True), e.kind, fold_slots(e.nodes), e.reason) for e in found]
        lines = columns(("TIME", "DECISION", "NODES", "REASON"), rows)
        self.push_screen(Reader(f"decisions about job {line.job.id}", lines))

    @work
    async def action_output(self) -> None:
        """Show the end of the chosen job's output, where this machine has its file."""
        line = self.table.chosen()
        if line is None:
            return
        try:
            lines = await in_thread(lambda: tail(Path(line.job.output)))
        except OSError as error:
            lines = [f"{line.job.output} cannot be read here: {error.strerror}"]
        self.push_screen(Reader(f"{line.job.output}", lines, end=True))


def tail(path: Path) -> list[str]:
    """Return the last lines of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace").splitlines() or ["(empty)"]


def summary(live: Live) -> str:
    """Return two lines about the cluster: nodes and jobs, power and energy."""
    filled = round(NODE_BAR * live.held / max(1, live.nodes))
    bar = "█" * filled + "░" * (NODE_BAR - filled)
    first = (
        f"nodes {bar} {live.held:,} of {live.nodes:,} held   {live.running:,} run, "
        f"{live.waiting:,} wait, {live.over:,} over   policy {live.policy}"
    )
    power = live.power
    if power is None:
        return printable(first)
    cap = "" if power.cap_w is None else f" of {power.cap_w:.0f} W"
    energy = power.energy
    second = (
        f"power {curve([point[1] for point in power.points])} {live.power_w:.0f} W{cap}   "
        f"{energy_words(energy.cluster_j)}, jobs {energy_words(energy.busy_j)} ({power.sources})"
    )
    return f"{printable(first)}\n{printable(second)}"


def curve(watts: list[float]) -> str:
    """Return the power of the last ten minutes as bars, the highest as high as can be."""
    if not watts:
        return " " * POWER_BAR
    each = [watts[n * len(watts) // POWER_BAR] for n in range(POWER_BAR)]
    most = max(each) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int(len(BARS) * watt / most))] for watt in each)


def details(line: JobLine) -> str:
    """Return two lines about a row: who it is, and where it runs or why it waits."""
    job = line.job
    low, high = job.nodes_min, job.nodes_max
    may = f"{low}" if low == high else f"{low} to {high}"
    tasks = f", {line.tasks:,} tasks" if line.tasks > 1 else ""
    first = (
        f"{line.ids} {job.name}{tasks}, {job.mode}, nodes {may}, submitted {clock(job.submit_s)}"
    )
    second = fold_slots(job.nodes) or job.reason
    if job.expected_start_s is not None:
        second = f"expected to start at {clock(job.expected_start_s)}: {second}"
    return f"{printable(first)}\n{printable(second)}"
