"""``rms simulate --strategy``: strategies of tasks, tried on what a daemon has recorded."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rms.client.connection import ask, server_address
from rms.formats.config import FileError
from rms.kernels.model import ChoiceError, Governor
from rms.kernels.record import Record, RecordEntry, past_tasks
from rms.kernels.scheduler import STRATEGIES, Strategy
from rms.kernels.simulator import Outcome, as_it_was, tried
from rms.kernels.wire import Resource
from rms.wire.terminal import CommandError, columns, publish, refuse_on

UNUSED = ("workload", "trace", "sacct", "cluster", "processors", "mode", "order", "estimates")
UNUSED_TOO = ("malleable", "malleable_jobs", "per_job", "out", "mtbf", "figure", "power_cap")


def try_strategies(arguments: argparse.Namespace) -> int:
    """Print what happened, and what would have under each strategy."""
    for name in (*UNUSED, *UNUSED_TOO):
        if getattr(arguments, name) is not None:
            raise FileError(f"expected --strategy or --{name.replace('_', '-')}, got both")
    record = _record(arguments)
    if not record.tasks:
        raise FileError("expected a record with tasks that came to their end, got none")
    governor = None if arguments.governor is None else Governor(arguments.governor)
    decided = [name for name in record.strategies[-1:] if name in STRATEGIES]
    names = list(dict.fromkeys([*decided, *arguments.strategy]))
    rows = [_row("as it happened", as_it_was(record))]
    for name in names:
        with _loaded(name) as strategy:
            try:
                rows.append(_row(name, tried(record, strategy, governor)))
            except (ChoiceError, ValueError) as error:
                words = str(error) if str(error).startswith(name) else f"{name}: {error}"
                raise CommandError(words, 1) from None
    said = {
        "tasks": len(record.tasks),
        "processes": len({task.spec.owner for task in record.tasks}),
        "left_out": record.left_out,
        "strategies": record.strategies,
    }
    publish(arguments.json, {"record": said, "rows": rows}, _table(said, rows))
    return 0


def _record(arguments: argparse.Namespace) -> Record:
    """Read what a journal, or else a running daemon, has kept."""
    if arguments.journal is None:
        server = server_address(arguments.server, os.environ)
        entries = ask(list[RecordEntry], server, "GET", "/tasks/record")
    else:
        from rms.daemon.store.journal import Journal, JournalError

        if arguments.server is not None:
            raise FileError("expected --journal or --server, got both")
        if not arguments.journal.is_file():
            raise FileError(f"expected a journal, got {arguments.journal}, which does not exist")
        with refuse_on(JournalError), Journal.open(arguments.journal) as journal:
            entries = journal.recorded()
    since_s = 0.0
    if arguments.hours is not None:
        since_s = max((each.at_s for each in entries), default=0.0) - 3600.0 * arguments.hours
    return past_tasks(entries, since_s)


@contextlib.contextmanager
def _loaded(name: str) -> Iterator[Strategy]:
    """Hold a shipped strategy, or that of a file, as ``rms policy`` would load it."""
    if name in STRATEGIES:
        yield STRATEGIES[name]
        return
    if not name.endswith(".py"):
        known = ", ".join(STRATEGIES)
        raise FileError(f"expected a strategy of {known} or FILE.py, got {name!r}")
    from rms.daemon.kernels import FileStrategy, StrategyError

    with refuse_on(StrategyError):
        strategy = FileStrategy(Path(name))
    try:
        yield strategy
    finally:
        strategy.close()


def _row(name: str, outcome: Outcome) -> dict[str, Any]:
    return {"strategy": name, **asdict(outcome)}


def _table(said: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    kinds = [kind for kind in Resource if any(row["runs"].get(kind) for row in rows)]
    heads = ["STRATEGY", "MAKESPAN_S", "MEDIAN_RUN_S", "MEAN_WAIT_S", "ENERGY_J", "MOVED"]
    cells = [
        [
            row["strategy"],
            *(f"{row[key]:.3f}" for key in ("makespan_s", "median_run_s", "mean_wait_s")),
            f"{row['energy_j']:.1f}",
            "" if row["strategy"] == "as it happened" else str(row["interrupts"]),
            *(
                f"{row['runs'].get(kind, 0)} ({row['busy_s'].get(kind, 0.0):.2f} s)"
                for kind in kinds
            ),
        ]
        for row in rows
    ]
    lines = [
        f"{said['tasks']} tasks of {said['processes']} processes, {said['left_out']} left out "
        f"(not done); decided by {', '.join(said['strategies'])}",
        "",
        *columns([*heads, *(f"ON_{kind.upper()}" for kind in kinds)], cells),
        "",
    ]
    for row in rows[1:]:
        times = row["times"]
        lines.append(
            f"{row['strategy']}: run times as seen {times.get('seen', 0)}, of tasks alike "
            f"{times.get('alike', 0)}, by affinity {times.get('affinity', 0)}"
        )
        if row["unfinished"]:
            lines.append(f"{row['strategy']}: {row['unfinished']} tasks never came to their end")
    return lines
