"""The job that ``dmr bench`` runs: one field that is swept over until it has been resized."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import dmr
from rms.wire.terminal import emit_json

COLUMNS, LAYERS = 64, 64
CACHE_LINE_BYTES = 64


class Sweep(dmr.Application):
    """A field of ``mib`` MiB, a slice of which is changed in every step."""

    def __init__(self, mib: int) -> None:
        self.rows = mib * (1 << 20) // (8 * COLUMNS * LAYERS)

    def fields(self) -> Mapping[str, dmr.FieldSpec]:
        """One field, halo 1, cut along its slowest axis and the next."""
        shape = (self.rows, COLUMNS, LAYERS)
        spec = dmr.FieldSpec(shape, "f8", _numbers, halo=1, alignment=CACHE_LINE_BYTES)
        return {"x": spec}

    def steps(self, run: dmr.Run) -> int:
        """Go on until resized, then two steps more."""
        return run.step + 2 if run.restored else 1 << 40

    def step(self, run: dmr.Run) -> None:
        """Turn some cells over and back."""
        part = run.fields["x"].interior[:8]
        for _ in range(2):
            np.negative(part, out=part)
        if run.step % 256 == 0:
            run.state["old_peak_mib"] = _peak_mib()

    def finish(self, run: dmr.Run) -> None:
        """Write what the resize has cost, and whether every cell is right."""
        block = run.fields["x"]
        right = run.world.comm.allreduce(
            bool(np.array_equal(block.interior, _numbers(block.box))), MPI.LAND
        )
        peak = max(run.world.comm.allgather(_peak_mib()))
        run.state["peak_mib"] = max(peak, run.state.get("old_peak_mib", 0.0))
        run.state["right"] = right


def _numbers(box: dmr.Box) -> Any:
    rows = np.arange(box.start[0], box.stop[0], dtype=np.float64)[:, None, None]
    columns = np.arange(box.start[1], box.stop[1], dtype=np.float64)[None, :, None]
    return np.broadcast_to(rows * COLUMNS + columns, box.shape)


def _peak_mib() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main(words: Sequence[str] | None = None) -> int:
    """Run ``dmr.bench.program --mib M --out FILE [--strategy S] [--resize-at N]``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--resize-to", type=int)
    arguments = parser.parse_args(words)
    runtime = dmr.Runtime.here(MPI.COMM_WORLD)
    resizes = {} if arguments.resize_to is None else {300: arguments.resize_to}
    plan = dmr.Plan(every=1, resizes=resizes, strategy=arguments.strategy, measure=True)
    run = dmr.run(Sweep(arguments.mib), runtime, plan)
    if runtime.comm.rank == 0:
        record = json.loads(json.dumps(_record(run)))
        emit_json(str(arguments.out), record)
    return 0


def _record(run: dmr.Run) -> dict[str, Any]:
    done = run.resizes[-1]
    return {
        "from": done.from_ranks,
        "to": done.to_ranks,
        "strategy": done.strategy,
        "boot_s": done.boot_s,
        "stall_s": done.stall_s,
        "move_s": done.move_s,
        "bytes": done.bytes,
        "gb_per_s": done.gb_per_s,
        "raw_gb_per_s": run.progress.raw_gb_per_s,
        "peak_rss_mib": run.state["peak_mib"],
        "right": run.state["right"],
        "phases_s": run.progress.phases_s,
    }


if __name__ == "__main__":
    sys.exit(main())
