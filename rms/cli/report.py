"""``rms report``: a page with charts and tables of a daemon, its journal, or a kept result."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.cli.options import log_lines
from rms.client.connection import ask, server_address
from rms.client.report import Report, watts_of
from rms.core.model.jobs import Ran
from rms.formats.energy import as_json
from rms.formats.prices import Prices, PricesAnswer, read_prices
from rms.plots import History
from rms.wire.terminal import CommandError, publish, refuse_on
from rms.wire.users import Gain, HoursGain, NodeSpan

Row = dict[str, Any]
Heads = Sequence[str]


def add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, metavar="DIR", help="where report.html is written")
    command.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="journal.sqlite of the state folder of a daemon that does not run now",
    )
    command.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="RESULT.json",
        help="of what simulate or compare wrote by --json, instead of a daemon",
    )
    text = "prices and emissions of electricity (default: that of rms serve)"
    command.add_argument("--prices", type=Path, metavar="FILE", help=text)


def report(arguments: argparse.Namespace) -> int:
    """``rms report DIR``: a page with figures and tables, in one file."""
    sources = (arguments.source, arguments.journal, arguments.server)
    if sum(source is not None for source in sources) > 1:
        raise CommandError("expected one of --server, --journal FILE and --from RESULT.json")
    if arguments.source is not None and arguments.prices is not None:
        raise CommandError("expected --prices with a daemon or its journal, got --from RESULT.json")
    folder: Path = arguments.folder
    path = folder.absolute()
    try:
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        is_folder = existing.is_dir()
    except PermissionError:
        is_folder, existing = False, path.parent
    if existing == path and not is_folder:
        raise CommandError(f"expected a folder, got {folder}, which is a file")
    if not is_folder or not os.access(existing, os.W_OK):
        raise CommandError(f"expected a folder that can be written, got {folder}")
    if arguments.source is None:
        return _report_jobs(arguments)
    try:
        page = _of_result(_read(arguments.source), arguments.source)
        target = page.write(folder)
    except OSError as error:
        raise CommandError(f"cannot write a report to {folder}: {error.strerror}", 1) from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # JSON of another program or edited by hand may have any form.
        raise CommandError(
            f"{arguments.source}: expected the JSON of rms simulate or rms compare, "
            f"got one without a good {error}"
        ) from None
    publish(arguments.json, {"page": str(target)}, [str(target)])
    return 0


def _report_jobs(arguments: argparse.Namespace) -> int:
    from rms.client.monitor import full_snapshot, imbalance, write_report

    if arguments.journal is None:
        server = server_address(arguments.server, os.environ)
        now, ran = full_snapshot(server), ask(Ran, server, "GET", "/ran")
        prices = ask(PricesAnswer, server, "GET", "/prices").prices
    else:
        from rms.daemon.ask.views import past, past_ran
        from rms.daemon.store.journal import JournalError

        if not arguments.journal.is_file():
            raise CommandError(f"expected a journal, got {arguments.journal}, which does not exist")
        with refuse_on(JournalError):
            now, ran = past(arguments.journal), past_ran(arguments.journal)
        prices = None
    if arguments.prices is not None:
        prices = read_prices(arguments.prices)
    brought = _gain(ran)
    saved = "" if prices is None else _saved(ran, prices)
    target = write_report(now, arguments.folder, brought, prices, saved)
    result = as_json(now)
    if isinstance(brought, Gain):
        result["gain"] = msgspec.to_builtins(brought)
    if isinstance(saved, HoursGain):
        result["hours"] = msgspec.to_builtins(saved)
    publish(arguments.json, result, [str(target)])
    wrong = imbalance(now)
    if wrong:
        raise CommandError(wrong, 1)
    return 0


def _gain(ran: Ran) -> Gain | str:
    """Return what resizes have brought, or why that is unknown; "" where no job is resizable."""
    from rms.sim.gain import GainError, gain

    if not any(job.spec.mode.resizable for job in ran.jobs):
        return ""
    try:
        return gain(ran)
    except GainError as error:
        return str(error)


def _saved(ran: Ran, prices: Prices) -> HoursGain | str:
    """Return what cheap hours have saved, or why that is unknown; "" where no job waits for any."""
    from rms.sim.gain import GainError, hours_gain

    if not ran.prices_unit or all(job.spec.deadline_s is None for job in ran.jobs):
        return ""
    try:
        return hours_gain(ran, prices)
    except GainError as error:
        return str(error)


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CommandError(f"expected a file, got {path}, which does not exist") from None
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: expected JSON, got: {error}") from None
    if not isinstance(result, dict) or not {"makespan_s", "rows"} & set(result):
        raise CommandError(f"{path}: expected the JSON of rms simulate or rms compare")
    return result


def _of_result(result: dict[str, Any], source: Path) -> Report:
    page = Report(f"rms: {source.name}")
    if result.get("study") == "malleability":
        page.say(f"What would malleability bring to {result['trace']}?")
    if "log" in result:
        page.preformatted(log_lines(result["log"]))
    if result.get("study") == "malleability":
        _malleability(page, result)
    elif "makespan_s" in result:
        _simulation(page, result)
    else:
        _comparison(page, result)
    for name, heads, rows in tables(result):
        page.head(_heading(name))
        page.table(_file_name(name) or "result", heads, rows)
    return page


def _heading(name: str) -> str:
    headings = {
        "": "Result",
        "rows": "Modes",
        "warm_up": "Warm-up, counted nowhere",
        "differs": "Differences between modes",
        "energy_j": "Energy, J",
        "size": "By processors",
        "length": "By run time",
        "mode": "By mode",
    }
    name = headings.get(name) or re.sub(r"^rows, (mode .*): jobs$", r"Jobs, \1", name)
    return re.sub(r"^rows, (mode .*): runs$", r"Runs, \1", name)


def _file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _malleability(page: Report, result: dict[str, Any]) -> None:
    from rms.studies.malleability import draw
    from rms.studies.malleability import table as study_table

    page.preformatted(study_table(result))
    title = f"{result['trace']}, policy {result['policy']}"
    page.picture("malleability", lambda path: draw(result, path, title))


def _simulation(page: Report, result: dict[str, Any]) -> None:
    owners = [(name, j / 1e6) for name, j in result["energy_j"].items() if name != "cluster"]
    for kind, label in (("size", "processors"), ("length", "run time")):
        rows = [(row["class"], row["mean_wait_s"] / 3600) for row in result["classes"][kind]]
        page.head(f"Mean wait by {label}")
        page.bars(f"mean-wait-by-{kind}", rows, "h")
    if any(joules for _, joules in owners):
        page.head("Energy")
        page.bars("energy", owners, "MJ")


def _comparison(page: Report, result: dict[str, Any]) -> None:
    """Add charts of the modes, then the nodes over time in the median runs."""
    from rms.studies.compare import table as modes_table

    rows = result["rows"]
    if "warm_up" in result:
        page.preformatted(modes_table(result))
    for key, label, unit in (
        ("time_s", "Time", "s"),
        ("cluster_j", "Energy of the cluster", "J"),
        ("allocation", "Nodes held", "of all node seconds"),
    ):
        page.head(f"{label}, run of the median time")
        page.bars(_file_name(label), [(str(row["mode"]), float(row[key])) for row in rows], unit)
    for row in rows:
        if row.get("spans"):
            page.head(f"Nodes over time, mode {row['mode']}")
            history = History(
                nodes=row["nodes"],
                spans=msgspec.convert(row["spans"], list[NodeSpan]),
                power_w=[(at_s, watts) for at_s, watts in row["power_w"]],
                end_s=row["time_s"],
                power_spans=msgspec.convert(row["power_spans"], list[NodeSpan]),
            )
            marks = {job["id"]: _marks(job) for job in row["jobs"]}
            page.over_time(history, watts_of(history), marks, f"{row['mode']}-", relative=True)


def _marks(job: Row) -> list[tuple[float, str]]:
    return [
        (resize["at_s"], f"job {job['id']}: {resize['from']} to {resize['to']} ranks")
        for resize in job.get("resizes", [])
        if "at_s" in resize
    ]


def tables(result: dict[str, Any], of: str = "") -> Iterator[tuple[str, Heads, list[list[str]]]]:
    """Yield a table of the single values, then of lists and groups: name, heads and rows."""
    single = [(name, value) for name, value in result.items() if not isinstance(value, dict | list)]
    if single:
        yield of, ("", ""), [[name, _cell(value)] for name, value in single]
    for name, value in result.items():
        if isinstance(value, dict) and (name != "energy_j" or any(value.values())):
            yield from tables(value, name)
        elif isinstance(value, list) and all(isinstance(row, dict) for row in value):
            yield name, *_rows(value)
            yield from _inner(name, value)


def _inner(name: str, rows: Sequence[Row]) -> Iterator[tuple[str, Heads, list[list[str]]]]:
    """Yield the tables inside the rows of another: classes of a simulation, jobs of a mode."""
    for row in rows:
        first = list(row.values())[:4] if "mode" not in row else [f"mode {row['mode']}"]
        label = ", ".join(_cell(value) for value in first if _plain(value))
        for key in ("classes", "runs", "jobs"):
            value = row.get(key)
            if isinstance(value, dict):
                for kind, classes in value.items():
                    yield f"{name}, {label}: by {kind}", *_rows(classes)
            elif isinstance(value, list):
                yield f"{name}, {label}: {key}", *_rows(value)


def _rows(rows: Sequence[Row]) -> tuple[Heads, list[list[str]]]:
    flat = [_flat(row) for row in rows]
    heads = list(dict.fromkeys(key for row in flat for key in row))
    return heads, [[_cell(row.get(head, "")) for head in heads] for row in flat]


def _flat(row: Row) -> Row:
    """Return a row in which the numbers of a group (``energy_j``) are columns."""
    flat: Row = {}
    for key, value in row.items():
        if _plain(value):
            flat[key] = value
        elif isinstance(value, dict) and all(map(_plain, value.values())):
            flat |= {f"{key} {name}": inner for name, inner in value.items()}
    return flat


def _plain(value: object) -> bool:
    return not isinstance(value, dict | list)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.6g}"
    return str(value)
