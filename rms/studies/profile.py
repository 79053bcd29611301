"""``rms profile``: a command for real at each size, on an RMS of its own each time.

Two ways. *Separate*: one run at each size, after one that is counted nowhere. *Malleable*: one run
in all, resized to each size in turn; at each its steps are timed, the resizes left out. Energy is
what the RMS books, by the meters it has, else by its model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rms.client.commands import jobs, script_of, submit
from rms.client.connection import ask
from rms.core.books.spans import MODEL
from rms.core.model.jobs import Mode
from rms.formats.profiles import MALLEABLE, PROFILES_VARIABLE, SEPARATE, Point
from rms.studies.embedded import EmbeddedError, embedded_daemon, wait_until_over
from rms.wire.users import (
    OVER,
    AcctAnswer,
    BooksAnswer,
    EnergyRow,
    JobIds,
    JobRow,
    JobSelection,
    NodeRow,
    Options,
    ResizeAnswer,
    ResizeCommand,
)

LOOK_S = 0.05
RESIZE_S = 120.0
"""How long a resize may take, and a job until it steps."""

METERS_S = 5.0
"""How long the first word of meters is waited for."""

EDGES_S = 0.8
"""Of this much of a job's power it is not known whose it was: the reports of a second at both ends
of a run are of the idle node too, and shared out by the model. With nodes that draw five times as
much busy as idle by that, up to 0.38 of a report goes to the wrong side."""


class ProfilingError(Exception):
    """A command that could not be measured; one sentence."""


@dataclass(frozen=True)
class Setup:
    """What is run, and how.

    Attributes:
        command: the words.
        sizes: numbers of nodes, rising.
        repeat: runs at each size; of a malleable run, times that each size comes.
        engine: of the RMS.
        serve: more options of ``rms serve``.
        folder: output of the runs goes there.
        env: environment of the command.
        window_s: how long the steps of a malleable run are timed at each size.
        say: told what is going on.
        metered: whether there are meters: no run begins before their first word.
    """

    command: Sequence[str]
    sizes: Sequence[int]
    repeat: int
    engine: str
    serve: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    window_s: float
    say: Callable[[str], None]
    metered: bool = False

    @contextmanager
    def daemon(self, name: str) -> Iterator[str]:
        """Run an RMS that resizes nobody of its own accord and knows no profiles."""
        options = ["--engine", self.engine, "--nodes", str(self.sizes[-1]), "--policy", "fifo"]
        try:
            with embedded_daemon(
                [*options, *self.serve],
                self.folder / name,
                local=self.engine == "local",
                env={**self.env, PROFILES_VARIABLE: ""},
            ) as server:
                if self.metered:
                    _await_meters(server)
                yield server
        except EmbeddedError as error:
            raise ProfilingError(str(error)) from None

    def submit(self, server: str, options: Options, name: str) -> str:
        """Hand the command in; return the job's id."""
        output = self.folder.absolute() / f"{name}.out"
        output.unlink(missing_ok=True)
        text = script_of(self.command)
        named = Options(job_name=name, output=str(output)).over(options)
        return submit(server, text, name, named, self.env).ids[0]


def _await_meters(server: str) -> None:
    """Wait for the first word of meters: what was before is not measured."""
    until = time.monotonic() + METERS_S
    while time.monotonic() < until:
        rows = ask(list[NodeRow], server, "GET", "/nodes")
        if all(row.power_source != "model" for row in rows):
            return
        time.sleep(LOOK_S)


# --- a run at each size --------------------------------------------------------------------------


def separate(setup: Setup, mhz: float | None = None) -> list[Point]:
    """Run the command at each size; return a point for each.

    Args:
        mhz: the clock that is set meanwhile, None where none is.

    Raises:
        ProfilingError: a run did not come to its end.
    """
    return [_point(setup, size, mhz) for size in setup.sizes]


def warm_up(setup: Setup) -> None:
    """Run the command once, counted nowhere, at the largest size: caches are then the same for all.

    Raises:
        ProfilingError: it did not come to its end.
    """
    setup.say("warm-up ...")
    with setup.daemon("warm-up") as server:
        _run(setup, server, setup.sizes[-1], "warm-up")


def _point(setup: Setup, size: int, mhz: float | None) -> Point:
    clock = "" if mhz is None else f"-{mhz:g}MHz"
    rows: list[JobRow] = []
    with setup.daemon(f"n{size}{clock}") as server:
        for number in range(setup.repeat):
            setup.say(f"{size} nodes{clock}, run {number + 1} of {setup.repeat} ...")
            rows.append(_run(setup, server, size, f"n{size}{clock}-{number + 1}"))
        known = {row.id: row for row in settle(server)}
        rows = [known[row.id] for row in rows]
        books = ask(BooksAnswer, server, "GET", "/books")
    spans = [(row.start_s or row.submit_s, row.end_s or row.submit_s) for row in rows]
    peak_w, idle_w = peak_and_idle(books, spans, spans[0][0])
    return Point(
        nodes=size,
        way=SEPARATE,
        time_s=tuple(end - start for start, end in spans),
        energy_j=tuple(row.energy_j for row in rows),
        source=source_of(rows),
        peak_w=peak_w,
        idle_w=size * idle_w,
        mhz=mhz,
        uncertainty_j=fmean([_uncertainty_j(row) for row in rows]),
    )


def source_of(rows: Sequence[JobRow]) -> str:
    """Return where the energy of jobs comes from; a part of a shared device is an estimate."""
    shared = any(part.estimate for row in rows for part in row.energy)
    named = " and ".join(dict.fromkeys(row.energy_source for row in rows))
    return f"{named} (estimate)" if shared else named


def _uncertainty_j(row: JobRow) -> float:
    """Return the half-width of the energy of a job that is over, as far as its meters tell."""
    run_s = (row.end_s or 0.0) - (row.start_s or 0.0)
    measured_j = sum(part.joules for part in row.energy if part.source != MODEL)
    edges_j = EDGES_S * measured_j / run_s if run_s > 0.0 else 0.0
    return sum(part.uncertainty_j for part in row.energy) + edges_j


def _run(setup: Setup, server: str, size: int, name: str) -> JobRow:
    """Run the command once on so many nodes; return its row when it is over."""
    fixed = Options(nodes=(size, size), preferred=size, mode=Mode.FIXED)
    number = setup.submit(server, fixed, name)
    row = next(row for row in wait_until_over(server) if row.id == number)
    if row.state != "COMPLETED":
        raise ProfilingError(
            f"expected the command to end with status 0 on {size} node{'s' * (size > 1)}, "
            f"got {row.state}; its output is in {row.output}"
        )
    return row


def settle(server: str) -> list[JobRow]:
    """Wait until what is over has all its energy, told by meters afterwards; return the jobs."""

    def settled() -> list[JobRow]:
        rows = jobs(server)
        return rows if all(row.summary != "" for row in rows) else []

    found: list[JobRow] = _until(settled, "the energy of jobs that are over")
    return found


def peak_and_idle(
    books: BooksAnswer, spans: Sequence[tuple[float, float]], start_s: float
) -> tuple[float, float]:
    """Return a job's highest power in spans of time above the idle power, and that of a node.

    As Chiesi et al. characterise a kernel (section 4.1): its highest power less that of the node
    that is idle. What the cluster draws before the run starts is what its nodes draw idle.
    """
    curve = books.power_w
    before = [watts for at, watts in curve if at < start_s]
    idle_w = before[-1] if before else min((watts for _, watts in curve), default=0.0)
    highest = max((_highest(curve, *span) for span in spans), default=idle_w)
    return max(0.0, highest - idle_w), idle_w / len(books.nodes)


def _highest(curve: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    """Return the highest power in a span of time, with what held at its beginning."""
    inside = [watts for at, watts in curve if start_s < at < end_s]
    inside += [watts for at, watts in curve if at <= start_s][-1:]
    return max(inside, default=0.0)


# --- one run, resized ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Steps timed at one size: from when to when, and seconds per step."""

    size: int
    begin_s: float
    end_s: float
    step_s: float

    def power_w(self, rows: Sequence[EnergyRow]) -> tuple[float, float]:
        """Return the job's power while it had that size, as booked, and its half-width, W.

        Args:
            rows: of the job; each is of one world, so of the whole time at that size.
        """
        at_s = (self.begin_s + self.end_s) / 2
        power_w = half_w = 0.0
        for row in rows:
            span_s = row.end_s - row.begin_s
            if not row.resize and row.begin_s <= at_s <= row.end_s and span_s > 0.0:
                power_w += row.joules / span_s
                edges_j = 0.0 if row.source == MODEL else EDGES_S * row.joules / span_s
                half_w += (row.uncertainty_j + edges_j) / span_s
        return power_w, half_w


def malleable(setup: Setup) -> tuple[list[Point], int]:
    """Run the command once, resized to each size in turn; return a point for each, and its steps.

    The run is ended when all is known. A point's times are those of the whole job at that size:
    its seconds per step times its steps.

    Raises:
        ProfilingError: it ended before, was not resized, or tells of no steps.
    """
    first, last = setup.sizes[0], setup.sizes[-1]
    options = Options(nodes=(first, last), preferred=first, mode=Mode.MALLEABLE)
    windows: list[Window] = []
    with setup.daemon("malleable") as server:
        number = setup.submit(server, options, "malleable")
        for turn in range(setup.repeat):
            sizes = setup.sizes if turn % 2 == 0 else tuple(reversed(setup.sizes))
            for size in sizes:
                setup.say(f"{size} nodes, turn {turn + 1} of {setup.repeat} ...")
                _go_to(server, number, size)
                windows.append(_time_steps(server, number, size, setup.window_s))
        ask(JobIds, server, "POST", "/cancel", JobSelection(number))
        wait_until_over(server)
        (over,) = settle(server)
        energy = ask(AcctAnswer, server, "GET", f"/acct?id={number}").rows
        books = ask(BooksAnswer, server, "GET", "/books")
    return [
        _of_windows([w for w in windows if w.size == size], over, energy, books)
        for size in setup.sizes
    ], over.steps


def _of_windows(
    windows: Sequence[Window], row: JobRow, energy: Sequence[EnergyRow], books: BooksAnswer
) -> Point:
    spans = [(window.begin_s, window.end_s) for window in windows]
    peak_w, idle_w = peak_and_idle(books, spans, row.start_s or row.submit_s)
    time_s = [window.step_s * row.steps for window in windows]
    powers = [window.power_w(energy) for window in windows]
    return Point(
        nodes=windows[0].size,
        way=MALLEABLE,
        time_s=tuple(time_s),
        energy_j=tuple(w * s for (w, _), s in zip(powers, time_s, strict=True)),
        source=source_of([row]),
        peak_w=peak_w,
        idle_w=windows[0].size * idle_w,
        uncertainty_j=fmean([half * s for (_, half), s in zip(powers, time_s, strict=True)]),
    )


def _row(server: str, number: str) -> JobRow:
    (row,) = jobs(server, number)
    if row.state in OVER and not row.steps:
        raise ProfilingError(
            f"expected a program on dmr, which tells of its steps, got one that was {row.state} "
            f"without a word; its output is in {row.output}"
        )
    if row.state in OVER:
        raise ProfilingError(
            "expected a program that goes on until each size was measured, got one that was "
            f"{row.state} after {row.step} of {row.steps} steps: give it more steps, or --window "
            "a shorter time"
        )
    return row


def _until(look: Callable[[], Any], what: str) -> Any:
    """Look until there is something to see; return it."""
    until = time.monotonic() + RESIZE_S
    while not (found := look()):
        if time.monotonic() > until:
            raise ProfilingError(f"expected {what} within {RESIZE_S:g} s, got none")
        time.sleep(LOOK_S)
    return found


def _go_to(server: str, number: str, size: int) -> None:
    """Have a job resized, unless it has that size."""
    _until(lambda: _row(server, number).step > 0, "a program on dmr, that tells of its steps")

    def resized() -> bool:
        row = _row(server, number)
        if row.resizing or row.size == size:
            return not row.resizing
        answer = ask(ResizeAnswer, server, "POST", "/resize", ResizeCommand(number, size))
        if answer.decision == "Never":
            raise ProfilingError(f"expected a resize to {size} nodes, got: {answer.reason}")
        return False

    _until(resized, f"a resize to {size} nodes")


def _time_steps(server: str, number: str, size: int, window_s: float) -> Window:
    """Time the steps of a job at its size, from one word of its progress to another."""
    _, last = _next_word(server, number, _row(server, number).step)
    begin_s, first = _next_word(server, number, last.step)  # caches are warm by now
    end_s, row = begin_s, first
    while end_s - begin_s < window_s:
        end_s, row = _next_word(server, number, row.step)
    if row.size != size:
        raise ProfilingError(f"expected {size} nodes all the time, got {row.size}")
    return Window(size, begin_s, end_s, (end_s - begin_s) / (row.step - first.step))


def _next_word(server: str, number: str, step: int) -> tuple[float, JobRow]:
    """Wait until a job has told of another step; return when that was, and its row."""

    def told() -> JobRow | None:
        row = _row(server, number)
        return row if row.step != step else None

    row: JobRow = _until(told, "another step")
    return time.time(), row
