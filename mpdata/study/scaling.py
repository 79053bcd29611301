"""Strong scaling: measured on the cores there are, expected on more.

What is expected of P ranks is made of four figures measured in one run: the time of one rank's
block by itself, how much two ranks slow one another down that exchange nothing (they share memory
bandwidth), and what two that exchange halos take longer than those, by the cell sent. Every rank
has a core of its own, memory as two ranks share it here, and messages as between them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mpdata.errors import InputError

Grid = tuple[int, int, int]

HALO = 3
"""Of two iterations with the limiter, which ``mpdata run`` computes unless told otherwise."""

RANKS = (2, 4, 8, 16)
CELL_STEPS = 60_000_000
LEAST_STEPS = 20
ROUNDS = 3


@dataclass(frozen=True)
class Costs:
    """What a step costs, measured.

    Attributes:
        alone_ns: per cell, of one rank whose grid is the block of P ranks, by P; 1 is the whole.
        beside_ns: the same for the block of two ranks, while another rank does as much beside it.
        two_ns: per cell of the whole grid on two ranks.
    """

    alone_ns: Mapping[int, float]
    beside_ns: float
    two_ns: float

    def line(self) -> str:
        """Return what two ranks lose, and to what."""
        shared = self.beside_ns / self.alone_ns[2]
        rest = 2.0 * self.two_ns / self.beside_ns
        return (
            f"two ranks f8: {self.alone_ns[1] / self.two_ns:.2f} times one; each {shared:.2f} "
            f"times as slow beside another as alone, and {rest:.2f} times that with messages"
            f"{'' if rest > 1.0 else ' (noise: they count as free below)'}"
        )


def process_grid(grid: Grid, ranks: int) -> tuple[int, int]:
    """Return the process grid over the first two axes with the least to send."""
    pairs = [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0]
    return min(pairs, key=lambda pair: (sent_cells(grid, pair), max(pair)))


def block_of(grid: Grid, parts: tuple[int, int]) -> Grid:
    """Return the largest block of a process grid."""
    return (-(-grid[0] // parts[0]), -(-grid[1] // parts[1]), grid[2])


def sent_cells(grid: Grid, parts: tuple[int, int]) -> int:
    """Return how many cells of its halo a rank gets from others in a step."""
    n, m, layers = block_of(grid, parts)
    return 2 * HALO * layers * (m * (parts[0] > 1) + n * (parts[1] > 1))


def expected(grid: Grid, costs: Costs) -> list[dict[str, Any]]:
    """Return what to expect of more ranks: ns per cell of the whole grid and step, and speed."""
    cells = grid[0] * grid[1] * grid[2]
    pair = process_grid(grid, 2)
    shared = costs.beside_ns / costs.alone_ns[2]
    own = cells_of(block_of(grid, pair))
    message_ns = max(0.0, cells * costs.two_ns - own * costs.beside_ns) / sent_cells(grid, pair)
    found = []
    for count in sorted(costs.alone_ns.keys() - {1}):
        parts = process_grid(grid, count)
        block = block_of(grid, parts)
        step_ns = cells_of(block) * costs.alone_ns[count] * shared
        step_ns += sent_cells(grid, parts) * message_ns
        ns = step_ns / cells
        times = costs.alone_ns[1] / ns
        found.append(
            {
                "ranks": count,
                "process_grid": parts,
                "block": block,
                "ns_per_cell_step": ns,
                "times": times,
            }
        )
    return found


def expected_line(row: Mapping[str, Any]) -> str:
    """Return what is expected of so many ranks, in words."""
    block, parts = (" x ".join(map(str, row[name])) for name in ("block", "process_grid"))
    return (
        f"{row['ns_per_cell_step']:6.3f} ns on {row['ranks']:2d} ranks ({parts}, blocks {block}): "
        f"{row['times']:.2f} times"
    )


def cells_of(grid: Grid) -> int:
    """Return how many cells a grid has."""
    return grid[0] * grid[1] * grid[2]


def measured(grid: Grid, env: Mapping[str, str]) -> Costs | None:
    """Measure what is expected is made of, in float64 (tens of seconds).

    Of as many ranks as have blocks no thinner than their halo; None where not even two have.

    Raises:
        InputError: no mpiexec.
    """
    every = {count: block_of(grid, process_grid(grid, count)) for count in (1, *RANKS)}
    blocks = {count: block for count, block in every.items() if min(block) >= HALO}
    if not {1, 2} <= blocks.keys():
        return None
    alone: dict[int, list[float]] = {count: [] for count in blocks}
    beside, two = list[float](), list[float]()
    for _ in range(ROUNDS):  # by turns: a busy minute falls on all of them
        for count, block in blocks.items():
            alone[count] += run_ns([(block, 1)], "f8", env)
        beside.append(sum(run_ns([(blocks[2], 1)] * 2, "f8", env)) / 2)
        two += run_ns([(grid, 2)], "f8", env)
    return Costs({count: median(ns) for count, ns in alone.items()}, median(beside), median(two))


def over_ranks(grid: Grid, ranks: int, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return ns per cell and step of ``mpdata run`` under mpiexec on 1 and on more ranks.

    Raises:
        InputError: no mpiexec.
    """
    ways = [(dtype, count) for dtype in ("f8", "f4") for count in (1, ranks)]
    found: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for dtype, count in ways:
            found[dtype, count] += run_ns([(grid, count)], dtype, env)
    return [
        {"dtype": dtype, "ranks": count, "ns_per_cell_step": median(ns)}
        for (dtype, count), ns in found.items()
    ]


def run_ns(worlds: Sequence[tuple[Grid, int]], dtype: str, env: Mapping[str, str]) -> list[float]:
    """Return ns per cell and step of runs that are made at once, each a grid on so many ranks.

    Raises:
        InputError: no mpiexec, or a run that failed.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else "mpiexec"
    found = []
    with ExitStack() as stack:
        runs = []
        for grid, ranks in worlds:
            steps = max(LEAST_STEPS, CELL_STEPS // cells_of(grid))
            command = [mpiexec, "-n", str(ranks), sys.executable, "-P", "-m", "mpdata", "run"]
            command += ["--case", "random", "--grid", *map(str, grid), "--steps", str(steps)]
            try:
                run = subprocess.Popen(
                    [*command, "--dtype", dtype, "--json", "-"],
                    env=dict(env),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            except FileNotFoundError:
                raise InputError("expected mpiexec for --ranks, got none on PATH") from None
            runs.append(stack.enter_context(run))
        for run in runs:
            text, error = run.communicate()
            if run.returncode:
                raise InputError(f"expected mpdata run to run, got: {error.strip()}")
            found.append(float(json.loads(text)["ns_per_cell_step"]))
    return found
