"""What ``dmr bench`` runs: a job that is resized, and plain sends to compare with.

The job sweeps over one field until it has been resized. The sends move as many bytes between as
many ranks, from plain buffers that are there beforehand; nothing is packed, hashed or checked.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import dmr
from dmr.boot.environment import bind
from dmr.data.decomposition import transfers
from dmr.world import decompositions_for
from rms.wire.terminal import emit_json

COLUMNS, LAYERS = 64, 64
CACHE_LINE_BYTES = 64

ROUNDS = 5
"""Rounds of plain sends: the best counts, since other work can only slow them down."""


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


def plain_rate(mib: int, old: int, new: int) -> float:
    """Return the rate of plain sends from ``old`` ranks to ``new`` others, in GB/s (collective)."""
    comm, sends = MPI.COMM_WORLD, MPI.COMM_WORLD.rank < old
    specs = Sweep(mib).fields()
    before, after = decompositions_for(old, specs)["x"], decompositions_for(new, specs)["x"]
    if sends:
        mine, others = transfers(before, comm.rank, after), old
    else:
        mine, others = transfers(after, comm.rank - old, before, sending=False), 0
    itemsize = np.dtype(specs["x"].dtype).itemsize
    pieces = [(others + one.peer, np.ones(one.box.size * itemsize, np.uint8)) for one in mine]
    best_s = float("inf")
    for _ in range(ROUNDS):
        comm.Barrier()
        begun = time.perf_counter()
        transfer = comm.Isend if sends else comm.Irecv
        MPI.Request.Waitall([transfer(buffer, peer) for peer, buffer in pieces])
        best_s = min(best_s, time.perf_counter() - begun)
    slowest_s = comm.allreduce(0.0 if sends or not pieces else best_s, MPI.MAX)
    return float(specs["x"].nbytes / 1e9 / slowest_s)


def main(words: Sequence[str] | None = None) -> int:
    """Run the job, or with ``--plain OLD NEW CORES`` the sends, on a core for each rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--resize-to", type=int)
    parser.add_argument("--plain", nargs=3)
    arguments = parser.parse_args(words)
    if arguments.plain is not None:
        old, new, cores = arguments.plain
        if cores != "-":
            bind(f"cpu:{cores.split(',')[MPI.COMM_WORLD.rank]}")
        rate = plain_rate(arguments.mib, int(old), int(new))
        if MPI.COMM_WORLD.rank == 0:
            emit_json(str(arguments.out), {"raw_gb_per_s": rate})
        return 0
    runtime = dmr.Runtime.here(MPI.COMM_WORLD)
    resizes = {} if arguments.resize_to is None else {300: arguments.resize_to}
    plan = dmr.Plan(every=1, resizes=resizes, strategy=arguments.strategy)
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
        "raw_gb_per_s": 0.0,  # dmr bench measures it beside the job
        "peak_rss_mib": run.state["peak_mib"],
        "right": run.state["right"],
        "phases_s": run.progress.phases_s,
    }


if __name__ == "__main__":
    sys.exit(main())
