"""``rms report``: a page with figures, of a running daemon or of a result that was kept as JSON."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.cli.workloads import log_lines
from rms.client.connection import server_address
from rms.client.page import heading, page, paragraph, pictures, preformatted, table
from rms.wire.files import write_whole
from rms.wire.terminal import CommandError, publish, refuse_on
from rms.wire.users import Snapshot

Row = dict[str, Any]


def add_report(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms report``."""
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="of a daemon's journal (journal.sqlite in its state folder), which nobody may use now",
    )
    command.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="RESULT.json",
        help="of what simulate or compare wrote by --json, instead of a daemon",
    )


def report(arguments: argparse.Namespace) -> int:
    """``rms report DIR``: a page with figures and tables, in one file."""
    given = (arguments.source, arguments.journal, arguments.server)
    if sum(each is not None for each in given) > 1:
        raise CommandError("expected one of --server, --journal FILE and --from RESULT.json")
    folder: Path = arguments.folder
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"expected a folder, got {folder}, which is a file")
    if arguments.source is None:
        return _of_jobs(arguments)
    result = _read(arguments.source)
    target = folder / "report.html"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            drawn = Path(scratch) / "figures.png"
            text = page(f"rms: {arguments.source.name}", list(_parts(result, drawn)))
            # All or nothing: what is no result leaves no folder either.
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / drawn.name, drawn.read_bytes())
        write_whole(target, text)
    except OSError as error:
        raise CommandError(f"cannot write a report to {folder}: {error.strerror}", 1) from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Somebody else's JSON, or one that was edited: nothing in it can be relied on.
        raise CommandError(
            f"{arguments.source}: expected the JSON of rms simulate or rms compare, "
            f"got one without a good {error}"
        ) from None
    publish(arguments.json, {"page": str(target)}, [str(target)])
    return 0


def _of_jobs(arguments: argparse.Namespace) -> int:
    from rms.client.monitor import full_snapshot, imbalance, write_report

    if arguments.journal is not None:
        now = _of_journal(arguments.journal)
    else:
        now = full_snapshot(server_address(arguments.server, os.environ))
    target = write_report(now, arguments.folder)
    publish(arguments.json, msgspec.to_builtins(now), [str(target)])
    wrong = imbalance(now)
    if wrong:
        raise CommandError(wrong, 1)
    return 0


def _of_journal(path: Path) -> Snapshot:
    from rms.daemon.journal import JournalError
    from rms.daemon.past import past

    if not path.is_file():
        raise CommandError(f"expected a journal, got {path}, which does not exist")
    with refuse_on(JournalError):
        return past(path)


def _read(path: Path) -> dict[str, Any]:
    """Read a result.

    Raises:
        CommandError: missing, or not the JSON of a command that is known.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CommandError(f"expected a file, got {path}, which does not exist") from None
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: expected JSON, got: {error}") from None
    if not isinstance(found, dict) or not {"makespan_s", "rows"} & set(found):
        raise CommandError(f"{path}: expected the JSON of rms simulate or rms compare")
    return found


def _parts(result: dict[str, Any], figure: Path) -> Iterator[str]:
    """Yield the parts of the page of a result; its figures are drawn into one file."""
    if result.get("study") == "malleability":
        yield paragraph(f"What would malleability bring to {result['trace']}?")
    if "log" in result:
        yield preformatted(log_lines(result["log"]))
    if result.get("study") == "malleability":
        from rms.studies.malleability import draw
        from rms.studies.malleability import table as study_table

        yield preformatted(study_table(result))
        draw(result, figure, f"{result['trace']}, policy {result['policy']}")
    elif "makespan_s" in result:
        _draw_simulation(result, figure)
    else:
        _draw_comparison(result, figure)
    yield pictures([figure])
    yield from tables(result)


def tables(result: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the single values, then one for each list or group of values, with heads."""
    single = [(name, value) for name, value in result.items() if not isinstance(value, dict | list)]
    yield table((), [(name, _cell(value)) for name, value in single])
    for name, value in result.items():
        if isinstance(value, dict):
            yield heading(name)
            yield from tables(value)
        elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
            yield heading(name)
            yield _rows(value)
            yield from _inner(name, value)


def _inner(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the tables inside the rows of another: classes of a simulation, jobs of a mode."""
    for row in rows:
        label = ", ".join(str(value) for value in list(row.values())[:4] if _plain(value))
        for key in ("classes", "jobs"):
            value = row.get(key)
            if isinstance(value, dict):
                for kind, found in value.items():
                    yield heading(f"{name}, {label}: by {kind}")
                    yield _rows(found)
            elif isinstance(value, list):
                yield heading(f"{name}, {label}: {key}")
                yield _rows(value)


def _rows(rows: Sequence[Row]) -> str:
    flat = [_flat(row) for row in rows]
    heads = list(dict.fromkeys(key for row in flat for key in row))
    return table(heads, [[_cell(row.get(head, "")) for head in heads] for row in flat])


def _flat(row: Row) -> Row:
    """Return a row whose groups of numbers (``energy_j``) are columns of their own."""
    found: Row = {}
    for key, value in row.items():
        if _plain(value):
            found[key] = value
        elif isinstance(value, dict) and all(map(_plain, value.values())):
            found |= {f"{key} {name}": inner for name, inner in value.items()}
    return found


def _plain(value: object) -> bool:
    return not isinstance(value, dict | list)


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _draw_simulation(result: dict[str, Any], path: Path) -> None:
    from rms.plots import Panel, draw_panels

    owners = {name: j / 1e9 for name, j in result["energy_j"].items() if name != "cluster"}
    panels = [
        Panel(f"mean wait (h) by {label}", _bars(result["classes"][kind], "mean_wait_s"), "")
        for kind, label in (("size", "processors"), ("length", "run time"))
    ]
    if any(owners.values()):
        panels.append(Panel("energy (GJ)", {"": (list(owners), list(owners.values()))}, ""))
    draw_panels(panels, path, f"policy {result['policy']}")


def _bars(rows: Sequence[Row], name: str) -> dict[str, tuple[list[str], list[float]]]:
    return {"": ([row["class"] for row in rows], [row[name] / 3600 for row in rows])}


def _draw_comparison(result: dict[str, Any], path: Path) -> None:
    from rms.plots import Panel, draw_panels

    rows = result["rows"]
    modes = [str(row["mode"]) for row in rows]
    columns = (("time_s", "time (s)"), ("cluster_j", "energy (J)"), ("allocation", "allocation"))
    panels = [
        Panel(label, {"": (modes, [float(row[name]) for row in rows])}, "mode")
        for name, label in columns
    ]
    draw_panels(panels, path, f"policy {result['policy']}")
