"""The strategy of a resize, by the abilities of MPI here and the memory left."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mpi4py import MPI

from dmr.boot.environment import Runtime, free_on_host, held_on_host
from dmr.data.distributed import Distributed
from dmr.data.field import ArrayModule, Field
from dmr.errors import UsageError, print_line

STRATEGIES = ("auto", "spawn", "warm", "merge", "restart")


def choose(wanted: str, runtime: Runtime, *, scripted: bool) -> str:
    """Return the strategy to use for ``wanted``.

    Args:
        scripted: whether the run itself plans resizes, which need an mpiexec.

    Raises:
        UsageError: the strategy does not exist, or does not work here.
    """
    if wanted not in STRATEGIES:
        raise UsageError(f"expected a strategy of {', '.join(STRATEGIES)}, got {wanted!r}")
    managed = runtime.manager is not None
    if wanted == "warm" and not managed:
        raise UsageError("strategy warm needs a launcher; under bare mpirun expected spawn")
    if scripted and not runtime.launched and runtime.mpiexec is None:
        raise UsageError(
            "expected mpiexec on PATH to start a new world, got none "
            "(pip install 'malleable-mpi[mpich]' brings it)"
        )
    connects = accept_connect_works(runtime)
    spawns = runtime.probed is None or bool(runtime.probed["spawn"])
    if runtime.launches:
        best = "merge"  # which lets go of whole launches without a new world
    elif managed and connects:
        best = "warm"
    else:
        best = "spawn" if spawns else "restart"
    obstacles = {
        "warm": "" if connects else "two launches of this MPI cannot meet by accept/connect",
        "spawn": "" if spawns else "MPI_Comm_spawn does not work",
    }
    obstacle = obstacles.get({"merge": "warm" if managed else "spawn"}.get(wanted, wanted))
    if wanted == "auto":
        return best
    if not obstacle:
        return wanted
    if runtime.comm.rank == 0 and runtime.rendezvous is None and runtime.parent is None:
        words = f"strategy {wanted} cannot be had here ({obstacle}); using {best}"
        print_line(words, runtime.log)
    return best


def accept_connect_works(runtime: Runtime) -> bool:
    """Return whether two launches can meet by accept/connect here."""
    if runtime.probed is None:  # MPICH and Open MPI differ
        return MPI.get_vendor()[0] == "MPICH"
    return bool(runtime.probed["accept_connect"])


# --- memory -------------------------------------------------------------------------------------
#
# A new world (warm, spawn, restart) is booted beside the running one: on a shared node or device
# both need memory at once. With merge the ranks that stay have two copies of their fields for a
# moment, but not of scratch, kernels and device contexts.

GIB = 2**30


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one place, as one rank sees it.

    Attributes:
        place: a node, or a device of one.
        held: bytes that the rank holds there.
        free: bytes that are free there.
    """

    place: str
    held: int
    free: int


def shortage(uses: Sequence[MemoryUse]) -> str | None:
    """Return a sentence if a second copy of all ranks' memory does not fit, else None."""
    for place in dict.fromkeys(use.place for use in uses):
        here = [use for use in uses if use.place == place]
        needed, free = sum(use.held for use in here), min(use.free for use in here)
        if needed > free:
            return (
                f"a second copy of this world needs {needed / GIB:.3g} GiB on {place}, where "
                f"{free / GIB:.3g} GiB are free"
            )
    return None


def merge_instead(
    strategy: str, ranks: int, launches: Sequence[tuple[int, int]], *, supports_merge: bool
) -> str:
    """Return the strategy to use in place of ``strategy`` if a second copy does not fit.

    Args:
        ranks: of the next world, 0 if not known yet.
        launches: numbers of the launches, and present ranks of each, in order.
        supports_merge: whether the application's ranks can go on in another world.
    """
    merges = supports_merge and (not ranks or can_merge(ranks, launches))
    return "merge" if strategy in ("warm", "spawn") and merges else strategy


def can_merge(ranks: int, launches: Sequence[tuple[int, int]]) -> bool:
    """Return whether strategy merge can resize a world of these launches to ``ranks``.

    It can grow to any number of ranks, and shrink by whole launches.
    """
    ends = [*accumulate(count for _, count in launches)]
    return ranks > ends[-1] or ranks in ends


def usage(node: str, fields: Mapping[str, Distributed]) -> list[MemoryUse]:
    """Return the memory of this rank's node, and of the device of its fields."""
    uses = []
    held, free = held_on_host(), free_on_host()
    if held is not None and free is not None:
        uses.append(MemoryUse(f"node {node}", held, free))
    blocks = [block for block in fields.values() if isinstance(block, Field)]
    modules = {id(block.spec.xp): block.spec.xp for block in blocks}
    for xp in modules.values():
        if hasattr(xp, "cuda"):
            uses.append(_device(node, xp))
    return uses


def _device(node: str, xp: ArrayModule) -> MemoryUse:
    device = xp.cuda.Device()
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = name[device.id] if device.id < len(name) and name[device.id] else str(device.id)
    free, _ = device.mem_info
    return MemoryUse(
        f"GPU {number} of node {node}", xp.get_default_memory_pool().total_bytes(), free
    )
