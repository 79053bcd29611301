"""``rms top`` and ``rms report``: the daemon's present and past, for people."""

from __future__ import annotations

import argparse
import base64
import html
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rms.client.commands import OVER, ServerError, call, server_address
from rms.core.timeline import Recording
from rms.wire.terminal import emit_json

EVERY_S = 1.0

JOB_HEADS = ("JOBID", "NAME", "STATE", "MODE", "NODES", "STEP", "ENERGY_J", "NODELIST(REASON)")
END_HEADS = ("JOBID", "NAME", "STATE", "MODE", "WAIT_S", "RUN_S", "RESIZES", "ENERGY_J", "REASON")


@dataclass(frozen=True)
class Snapshot:
    """What a daemon answers now."""

    jobs: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    books: dict[str, Any]

    @classmethod
    def of(cls, server: str) -> Snapshot:
        """Ask a daemon.

        Raises:
            ServerError: it is not there, or refuses.
        """
        return cls(*(call(server, "GET", path) for path in ("/jobs", "/nodes", "/books")))

    @property
    def summary(self) -> str:
        """One line about the cluster."""
        energy, states = self.books["energy"], [job["state"] for job in self.jobs]
        held = sum(node["state"] == "allocated" for node in self.nodes)
        watts = self.books["power_w"][-1][1] if self.books["power_w"] else 0.0
        return (
            f"policy {self.books['policy']}: {held} of {len(self.nodes)} nodes held, "
            f"{states.count('RUNNING')} jobs run, {states.count('PENDING')} wait, "
            f"{sum(state in OVER for state in states)} are over; {watts:.0f} W now, "
            f"{energy['cluster_j']:.0f} J so far, of which jobs {energy['busy_j']:.0f} J "
            f"({energy['power_source']})"
        )

    def rows(self) -> list[list[str]]:
        """Return jobs that are not over, those that run first."""
        alive = [job for job in self.jobs if job["state"] not in OVER]
        alive.sort(key=lambda job: job["state"] == "PENDING")
        return [
            [
                job["id"],
                job["name"],
                job["resizing"] or job["state"],
                job["mode"],
                str(job["size"] or job["nodes_max"]),
                f"{job['step']}/{job['steps']}" if job["steps"] else "",
                f"{job['energy_j']:.0f}",
                ",".join(job["nodes"]) or f"({job['reason']})",
            ]
            for job in alive
        ]


def top(arguments: argparse.Namespace) -> int:
    """``rms top``: a live view on a terminal, else one look."""
    server = server_address(arguments.server, os.environ)
    if arguments.json is not None:
        now = Snapshot.of(server)
        emit_json(arguments.json, {"jobs": now.jobs, "nodes": now.nodes, "books": now.books})
    if arguments.json == "-":
        return 0
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal or arguments.json is not None:
        console = Console(width=200)
        console.print(_view(Snapshot.of(server), None))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        for now in _looks(server):
            screen.update(_view(now, console.height - 6), refresh=True)
    return 0


def _looks(server: str) -> Iterator[Snapshot]:
    while True:
        yield Snapshot.of(server)
        time.sleep(EVERY_S)


def _view(now: Snapshot, most: int | None) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(*JOB_HEADS, box=None, pad_edge=False)
    rows = now.rows()
    for row in rows[:most]:
        table.add_row(*row)
    left = len(rows) - len(rows[:most])
    return Group(now.summary, table, *([f"... and {left} more"] if left else []))


def report(arguments: argparse.Namespace) -> int:
    """``rms report DIR``: a page with figures and a table of all jobs, in one file."""
    folder: Path = arguments.folder
    now = Snapshot.of(server_address(arguments.server, os.environ))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page = _page(now, _figures(now, folder))
        part = folder / "report.html.part"
        part.write_text(page, encoding="utf-8")
        part.replace(folder / "report.html")
    except OSError as error:
        raise ServerError(f"cannot write a report to {folder}: {error.strerror}") from None
    if arguments.json is not None:
        emit_json(arguments.json, {"jobs": now.jobs, "nodes": now.nodes, "books": now.books})
    if arguments.json != "-":
        print(folder / "report.html")
    return 0


def _figures(now: Snapshot, folder: Path) -> list[Path]:
    from rms.plots import gantt, power_over_time

    spans = now.books["spans"]
    if not spans:
        return []
    first, last = min(span["start_s"] for span in spans), now.books["now_s"]
    number = {name: n for n, name in enumerate(now.books["nodes"])}
    seen = Recording(
        len(number),
        time_s=last - first,
        power_w=[(at - first, watts) for at, watts in now.books["power_w"] if at >= first],
        spans=[
            (
                number[span["node"]],
                span["job"],
                span["start_s"] - first,
                (last if span["end_s"] is None else span["end_s"]) - first,
            )
            for span in spans
        ],
    )
    charts = [folder / "nodes.png", folder / "power.png"]
    gantt(seen, charts[0], "who held which node")
    source = now.books["energy"]["power_source"]
    power_over_time({now.books["policy"]: seen}, charts[1], f"power of the cluster ({source})")
    return charts


def _page(now: Snapshot, charts: Sequence[Path]) -> str:
    """Return the page; figures are inside it, so that it can be sent as one file."""
    pictures = [
        f'<img alt="{chart.stem}" src="data:image/png;base64,'
        f'{base64.b64encode(chart.read_bytes()).decode()}">'
        for chart in charts
    ]
    rows = [
        [
            job["id"],
            job["name"],
            job["state"],
            job["mode"],
            _span(job["submit_s"], job["start_s"]),
            _span(job["start_s"], job["end_s"]),
            " ".join(f"{r['from']}→{r['to']}" for r in job["resizes"]) or "0",
            f"{job['energy_j']:.1f}",
            job["reason"],
        ]
        for job in now.jobs
    ]
    cells = "\n".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    heads = "".join(f"<th>{head}</th>" for head in END_HEADS)
    energy = now.books["energy"]
    sums = "".join(
        f"<tr><td>{name}</td><td>{energy[f'{name}_j']:.1f}</td></tr>"
        for name in ("busy", "idle", "off", "boot", "cluster")
    )
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now.books["now_s"]))
    return f"""<!doctype html>
<meta charset="utf-8"><title>rms report</title>
<style>body {{ font-family: sans-serif; margin: 2em }} td, th {{ padding: 0 1em; text-align: left }}
img {{ max-width: 100%; display: block }}</style>
<h1>rms, {at}</h1>
<p>{html.escape(now.summary)}</p>
{"".join(pictures)}
<h2>Energy (J, {html.escape(energy["power_source"])})</h2>
<table>{sums}</table>
<h2>Jobs</h2>
<table><tr>{heads}</tr>
{cells}
</table>
"""


def _span(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.1f}"
