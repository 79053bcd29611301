"""A plate that cools, with particles and values, whose checkpoint a version records.

    mpiexec -n 3 python tests/support/recorded_heat.py FOLDER

writes the checkpoint of step 20 into a folder. Cells and values are those of :func:`plate_after`,
:func:`particles` and :func:`values_after` on any number of ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import dmr

Array = npt.NDArray[Any]
N, M, EVERY, STEPS = 40, 24, 20, 30
RECORD = np.dtype([("row", "i4"), ("x", "f8", (2,)), ("name", "U4"), ("day", "M8[D]")])
OPTIONS = {"case": "plate", "size": [N, M]}


def plate(box: dmr.Box) -> Array:
    """Return the first plate: its upper rows are hot."""
    rows, columns = np.meshgrid(*map(np.arange, box.start, box.stop), indexing="ij")
    return 100.0 * (rows < 2) + np.sqrt(columns)


def particles(begin: int, end: int) -> Array:
    """Return the particles of some rows: up to three of each."""
    rows = np.repeat(np.arange(begin, end), [n % 4 for n in range(begin, end)])
    made = np.zeros(len(rows), RECORD)
    made["row"], made["x"] = rows, np.cbrt(rows)[:, None] + [0.0, 0.5]
    made["name"] = [f"p{row}" for row in rows]
    made["day"] = np.datetime64("2026-01-01") + rows
    return made


def swept(padded: Array) -> Array:
    """Return the rows within a halo of one after a step."""
    inner: Array = (padded[:-2] + padded[2:] + 2.0 * padded[1:-1]) / 4.0
    return inner


def plate_after(steps: int) -> Array:
    """Return the whole plate after so many steps, without any library."""
    t = plate(dmr.Box((0, 0), (N, M)))
    for _ in range(steps):
        t = swept(np.pad(t, ((1, 1), (0, 0))))
    return t


def values_after(steps: int) -> dict[str, Any]:
    """Return the state after so many steps."""
    return {
        "large": 2**70 + steps,
        "pair": (steps, 2.5),
        "nested": {"table": np.arange(6.0).reshape(2, 3) * steps, "words": ["plate", None, True]},
        "scalar": np.float32(steps) / np.float32(3),
    }


def fields() -> dict[str, dmr.FieldSpec | dmr.ListSpec]:
    """Return the declaration of the plate and of the particles."""
    return {
        "t": dmr.FieldSpec((N, M), "f8", plate, halo=((1, 1), (0, 0)), split=(0,)),
        "p": dmr.ListSpec(
            (N,),
            RECORD,
            lambda box: particles(box.start[0], box.stop[0]),
            owner=lambda items, layout: dmr.rank_of(layout, items["row"]),
        ),
    }


class Heat(dmr.Application):
    """The plate as a program.

    Attributes:
        plate, particles, state: on rank 0, those of the end.
    """

    def fields(self) -> dict[str, Any]:
        return fields()

    def build(self, run: dmr.Run) -> None:
        run.state.update({} if run.state else values_after(0))

    def steps(self, run: dmr.Run) -> int:
        return STEPS

    def step(self, run: dmr.Run) -> None:
        t = run.fields["t"]
        assert isinstance(t, dmr.Field)
        t.exchange()
        t.interior[:] = swept(t.padded)
        run.state.update(values_after(run.step + 1))

    def finish(self, run: dmr.Run) -> None:
        comm, (t, p) = run.world.comm, (run.fields["t"], run.fields["p"])
        assert isinstance(t, dmr.Field) and isinstance(p, dmr.Items)
        parts = comm.gather((t.interior.copy(), p.items.copy()))
        if parts is not None:
            self.plate = np.concatenate([plate for plate, _ in parts])
            self.particles = np.concatenate([items for _, items in parts])
            self.state = dict(run.state)


def plan(folder: Path, *, restart: bool = False) -> dmr.Plan:
    """Return the plan of a run with checkpoints."""
    schedule = dmr.Schedule(folder, EVERY)
    return dmr.Plan(checkpoint=schedule, restart=restart, options=OPTIONS)


if __name__ == "__main__":
    dmr.run(Heat(), dmr.Runtime.here(MPI.COMM_WORLD), plan(Path(sys.argv[1])))
