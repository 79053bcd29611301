"""The page *Performance*, and the figures of GPUs: tables of the JSON in ``scripts/bench/results``.

A file is one of three kinds: ``tables`` (recorded with command, machine and date), ``figures`` (as
``scripts/bench/NAME --json FILE`` writes them), or the ``ladder`` and ``job`` of ``scripts/gpu``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INTRODUCTION = """\
# Performance

Times, rates and energies, each with its command, machine and date. The tables are made from the
JSON files of `scripts/bench/results` when the site is built; `scripts/bench/NAME --json
scripts/bench/results/NAME.json` adds one, with the machine and the date of the run.

A virtual machine has other users beside it: compare figures of one table only, and repeat a bench
before you rely on a difference of a few per cent. A *target* or *bound* is the project's own; rows
that miss it say so. The only network is the one between hosts that are namespaces of one machine.
"""

TARGET_GCELLS_S, TARGET_S = 17, 90
"""Of one H100 or H200, in float64 (``scripts/bench/results/README.md``)."""

PARTS = (
    ("dmr", "dmr: resizes and halos"),
    ("hosts", "dmr: resizes between hosts"),
    ("mpdata", "mpdata: CPU kernels"),
    ("gpu-", "mpdata: GPU kernels"),
    ("rms", "rms: scheduler, daemon, Slurm"),
    ("", "Other benches"),
)
"""Begins of the files' names, and the heading of their figures."""


def table(columns: list[str], rows: list[list[object]]) -> list[str]:
    """Return the lines of a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(str(cell) for cell in row) + " |" for row in lines]


def performance(results: Path) -> str:
    """Return the page of all figures."""
    lines, files = [INTRODUCTION], sorted(results.glob("*.json"))
    for begin, heading in PARTS:
        mine = [path for path in files if path.name.startswith(begin)]
        files = [path for path in files if path not in mine]
        if mine:
            lines += [f"## {heading}", ""]
        for path in mine:
            lines += [*_section(path), ""]
    return "\n".join(lines)


def _section(path: Path) -> Iterator[str]:
    made = json.loads(path.read_text(encoding="utf-8"))
    if "tables" in made:
        for one in made["tables"]:
            yield from [f"### {one['title']}", "", *_origin(one), ""]
            yield from [*table(one["columns"], one["rows"]), ""]
            yield from (f"- {note}" for note in one["notes"])
            yield ""
    elif "ladder" in made:
        yield from [f"### {made['device']['name']}", "", *gpu(path)]
    else:
        yield from [f"### {path.stem}", "", *_origin(made), ""]
        yield from table(["figure", "value"], [list(row) for row in _leaves(made["figures"])])


def _origin(made: dict[str, Any]) -> list[str]:
    return [f"`{made['command']}`, {made['date']}, {made['machine']}."]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the numbers and texts in nested objects and lists, with the keys that lead there."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in pairs:
            yield from _leaves(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


def _met(good: bool) -> str:
    return "met" if good else "missed"


def copies(part: dict[str, float]) -> list[str]:
    """Return the sentence on copies in memory of a field on a GPU, none where it has none."""
    if "shared_s" not in part:
        return []
    times = {key: f"{1e3 * part[key]:.0f} ms" for key in part if key.endswith("_s")}
    return [
        f"A copy in memory of {part['mib']:,.0f} MiB of a field stops the program for "
        f"{times['shared_s']}; a copy of as many bytes within the host takes {times['memcpy_s']}, "
        f"one from the device into pinned memory {times['pinned_s']}.",
        "",
    ]


def gpu(path: Path) -> list[str]:
    """Return the tables of one GPU: the kernels, the paper's job, resizes."""
    made = json.loads(path.read_text(encoding="utf-8"))
    device, grid = made["device"], " x ".join(map(str, made["grid"]))
    date, note = made.get("date", "no date"), made.get("note", "")
    lines = [
        f"`scripts/gpu`, {date}, on one {device['name']} (CuPy {device['cupy']}, CUDA "
        f"{device['driver'] // 1000}), {grid} cells, two passes, limiter, density. A copy within "
        f"the device moves {made['copy_gb_s']:,.0f} GB/s, which is the limit of the last column; "
        f"{made['tests']['counts'].get('PASSED', 0)} tests of `tests/gpu` passed there. "
        f"{note}".rstrip(),
        "",
    ]
    rows: list[list[object]] = [
        [
            row["variant"],
            "float64" if row["dtype"] == "f8" else "float32",
            f"{1e3 * row['seconds']:.2f}",
            f"{row['gcells_s']:.2f}",
            f"{row['gb_s']:,.0f}",
            f"{100 * row['of_limit']:.0f} %",
        ]
        for row in made["ladder"]["rows"]
        if not row["graphs"]
    ]
    heads = ["kernels", "precision", "ms a step", "10^9 cells a second", "GB/s", "of the limit"]
    lines += [*table(heads, rows), ""]
    double = [row for row in made["ladder"]["rows"] if row["dtype"] == "f8"]
    fastest = max(row["gcells_s"] for row in double)
    job = made["job"]
    energy = job["power"]["nvml"]
    lines += [
        f"The grid of Iserte & Rojek in {job['steps']:,} steps of float64, halo included: "
        f"{job['gcells_s']:.2f} x 10^9 cells a second, so {job['seconds_for_10000']:.0f} s for its "
        f"10,000 steps. NVML's counter reads {energy['energy_j']:,.0f} +- "
        f"{energy['uncertainty_j']:,.0f} J, {energy['j_per_1e9_updates']:.1f} J for 10^9 cell "
        f"updates. Targets: {TARGET_GCELLS_S} x 10^9 cells a second in the fastest step "
        f"({_met(fastest >= TARGET_GCELLS_S)}), {TARGET_S} s for 10,000 steps "
        f"({_met(job['seconds_for_10000'] <= TARGET_S)}).",
        "",
        *copies(made.get("copies", {})),
        "Resizes by `spawn`, fields on the device, all worlds on one GPU; `boot` is part of the "
        "stall:",
        "",
    ]
    resizes = [
        (kind, row)
        for kind in made["resizes"]
        for row in made["resizes"][kind]["runs"]["resized"]["resizes"]
    ]
    rows = [
        [
            "float64" if kind == "f8" else "float32",
            f"{row['from']} to {row['to']}",
            f"{row['boot_s']:.2f}",
            f"{row['stall_s']:.2f}",
            f"{1e3 * row['move_s']:.0f}",
            f"{row['bytes'] / 2**20:.0f}",
        ]
        for kind, row in resizes
    ]
    return [*lines, *table(["precision", "ranks", "boot s", "stall s", "move ms", "MiB"], rows), ""]
