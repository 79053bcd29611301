"""The screen of ``rms top``, by keys, against a daemon in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from routed import Routed, routed
from textual.pilot import Pilot
from textual.widgets import Static

from rms.cli import screen
from rms.cli.screen import COLUMNS, JobTable, Top, head_at, heads, widths
from rms.client import connection
from rms.core.model.jobs import JobId
from rms.wire.http import UnreachableError

DEADLINE_S = 180.0

Keys = Callable[[Pilot[None], "Screen"], Awaitable[None]]


class Screen:
    """What is to be read on it, and a daemon that can be away."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    def words(self, part: str) -> str:
        return str(self.app.screen_stack[0].query_one(part, Static).content)

    def rows(self) -> list[str]:
        table = self.app.screen_stack[0].query_one(JobTable)
        lines = [table.render_line(y).text.rstrip() for y in range(table.size.height)]
        return [line for line in lines if line]

    def ids(self) -> list[str]:
        return [row.split()[0] for row in self.rows()]

    def dialog(self) -> str:
        found = [str(each.content) for each in self.app.screen.query(Static)]
        return "\n".join(found) if len(self.app.screen_stack) > 1 else ""

    def notes(self) -> str:
        return " ".join(each.message for each in self.app._notifications)

    async def until(self, true: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < end_s, (
                self.rows(),
                self.words("#details"),
                self.dialog(),
                self.notes(),
            )
            await asyncio.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Routed]:
    with routed(tmp_path) as found:
        turn, away = threading.Lock(), found.stopped

        def send(where: str, method: str, path: str, body: bytes = b"", **_: Any) -> Any:
            with turn:
                if away:
                    raise UnreachableError(f"no answer from {where}")
                return found.request(method, path, body)

        monkeypatch.setattr(connection, "request", send)
        monkeypatch.setattr(screen, "REFRESH_S", 0.4)
        yield found
        with turn:  # whoever asks still is answered before the daemon is closed
            away.append(True)


def typed(keys: Keys, size: tuple[int, int] = (80, 24)) -> None:
    """Show the screen in a terminal of this size, and type."""

    async def run() -> None:
        app = Top("unix:in-process")
        async with app.run_test(size=size) as pilot:
            await keys(pilot, Screen(app, pilot))

    asyncio.run(run())


@pytest.mark.promise("top")
def test_an_array_is_unfolded_sorted_and_a_task_cancelled(server: Routed) -> None:
    server.submit(nodes=[2, 2], job_name="wide")
    server.daemon.jobs[JobId("1")].submission.name = "\x1b[2J[red]x<i>"
    server.submit(array="1-200", job_name="winds")
    server.submit(nodes=[1, 1], job_name="last")

    async def keys(pilot: Pilot[None], seen: Screen) -> None:
        await seen.until(lambda: seen.ids() == ["1", "2_[1-200]", "3"])
        assert "2 of 2 allocated   Running 1, Pending 201" in seen.words("#summary")
        assert r"\x1b[2J[r…" in seen.rows()[0] and all(cell_len(row) <= 80 for row in seen.rows())
        await seen.until(lambda: r"1 \x1b[2J[red]x<i>, fixed" in seen.words("#details"))

        await pilot.press("down", "enter")
        await seen.until(lambda: seen.ids()[:3] == ["1", "2_1", "2_2"])
        await pilot.press("end")
        await seen.until(lambda: seen.ids()[-1] == "3" and "last" in seen.words("#details"))
        await pilot.press("home", "s")
        await seen.until(lambda: "JOBID▲" in seen.words("#heads"))
        await pilot.press("d")
        await seen.until(lambda: seen.ids()[:2] == ["3", "2_200"])

        await pilot.press("down", "c")
        say = "Cancel job 2_200 (winds): it is pending and will not start."
        await seen.until(lambda: say in seen.dialog())
        await pilot.press("n")
        await seen.until(lambda: not seen.dialog())
        assert JobId("2_200") in server.daemon.context.state.pending
        await pilot.press("c")
        await seen.until(seen.dialog)
        await pilot.press("y")
        await seen.until(lambda: seen.ids()[:2] == ["3", "2_199"])
        assert JobId("2_200") in server.daemon.context.state.ended

    typed(keys)


@pytest.mark.wide
def test_hold_find_ended_resize_and_a_daemon_that_is_away(
    server: Routed, tmp_path_factory: pytest.TempPathFactory
) -> None:
    output = str(tmp_path_factory.mktemp("output") / "none.out")
    server.submit(nodes=[1, 2], mode="malleable", job_name="grows", output=output)
    server.submit(nodes=[2, 2], job_name="waits")

    async def keys(pilot: Pilot[None], seen: Screen) -> None:
        await seen.until(lambda: seen.ids() == ["1", "2"])
        await pilot.press("down", "h")
        await seen.until(lambda: "Hold job 2 (waits)" in seen.dialog())
        await pilot.press("y")
        await seen.until(lambda: "JobHeldUser" in seen.words("#details"))
        await pilot.press("h")
        await seen.until(lambda: "Release job 2 (waits)" in seen.dialog())
        await pilot.press("escape")

        await pilot.press("up", "r")
        await seen.until(lambda: "from 1 to 2" in seen.dialog())
        await pilot.press("0", "enter")
        await seen.until(lambda: "of at least 1" in seen.notes())
        await pilot.press("backspace", "1", "enter")
        await seen.until(lambda: "its first resize point" in seen.notes() and not seen.dialog())
        await pilot.press("e")
        await seen.until(lambda: "start" in seen.dialog())
        await pilot.press("escape", "o")
        await seen.until(lambda: "cannot be read here" in seen.dialog())
        await pilot.press("escape", "enter")
        await seen.until(lambda: "may have 1 to 2" in seen.dialog())
        await pilot.press("escape", "slash", *"ait", "enter")
        await seen.until(lambda: seen.ids() == ["2"] and "[find: ait" in seen.words("#details"))

        server.stopped.append(True)
        await seen.until(lambda: "no daemon: no answer" in seen.words("#summary"))
        server.stopped.clear()
        await pilot.press("f")
        await seen.until(lambda: "Completed 0" in seen.words("#summary") and not seen.rows())
        await pilot.press("f", "slash", "ctrl+u", *["backspace"] * 3, "enter")
        await seen.until(lambda: seen.ids() == ["1", "2"])
        await pilot.resize_terminal(140, 30)
        await seen.until(lambda: len(seen.rows()[0]) > 80 and len(seen.words("#heads")) > 100)

    typed(keys)


def test_states_bars_and_the_forecast(server: Routed) -> None:
    """Words and signs of states, the bar of nodes, the next start; all within 80 columns."""
    server.submit(nodes=[1, 2], preferred=1, mode="malleable", job_name="grows", time_s=90.0)
    server.submit(nodes=[2, 2], job_name="waits", time_s=60.0)
    server.submit(nodes=[1, 1], job_name="held", hold=True)
    server.clock[0] += 30.0

    async def keys(pilot: Pilot[None], seen: Screen) -> None:
        await seen.until(lambda: len(seen.rows()) == 3)
        first, second, third = seen.rows()
        assert "▸ Running" in first and "█▌░" in first and " 0:00:30 " in first
        assert "○ Pending" in second and "in 0:01:00" in second
        assert "‖ Held" in third and "JobHeldUser" in third
        assert all(cell_len(row) <= 80 for row in seen.rows())
        power, start = seen.words("#summary").splitlines()[1:]
        assert " W   Energy " in power and "Next start: 2 waits in 0:01:00" in start
        await seen.until(lambda: "0:00:30 ago" in seen.words("#details"))

        server.daemon.scripts.end(server.daemon.jobs[JobId("1")], 3)
        await pilot.press("f")
        await seen.until(lambda: "× Failed" in "".join(seen.rows()))
        await seen.until(lambda: "[ended jobs; f and / change it]" in seen.words("#details"))

    typed(keys)


def test_columns_fit_every_width() -> None:
    for whole in range(80, 220):
        line = heads(whole, "-nodes")
        assert len(line) == whole == sum(widths(whole)) + len(COLUMNS), (whole, line)
        at = line.index("▼NODES")
        assert head_at(at + 1, whole) == "nodes" and head_at(whole - 1, whole) == ""
