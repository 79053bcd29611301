"""The strategy of a resize: what MPI can do here, and whether two copies of the job fit.

Strategy ``auto`` goes by both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from mpi4py import MPI

from dmr.boot.environment import Runtime
from dmr.data.distributed import Distributed
from dmr.data.field import ArrayModule, Field
from dmr.errors import UsageError, print_line

STRATEGIES = ("auto", "spawn", "warm", "merge", "restart")


def choose(wanted: str, runtime: Runtime, *, scripted: bool) -> str:
    """Return the strategy to use for ``wanted``.

    Args:
        scripted: whether the run itself plans resizes, so that it is refused at once where none
            can be had.

    Raises:
        UsageError: it does not exist, or cannot be had here.
    """
    if wanted not in STRATEGIES:
        raise UsageError(f"expected a strategy of {', '.join(STRATEGIES)}, got {wanted!r}")
    managed = runtime.manager is not None
    if wanted == "warm" and not managed:
        raise UsageError("strategy warm needs a launcher; under bare mpirun expected spawn")
    if scripted and not runtime.launched and runtime.mpiexec is None:
        raise UsageError(
            "no mpiexec found to start a new world with; expected one on PATH "
            "(pip install 'malleable-mpi[mpich]' brings it)"
        )
    best = _best(runtime)
    if wanted == "auto":
        return best
    obstacle = _obstacle(wanted, runtime)
    if obstacle is None:
        return wanted
    if runtime.comm.rank == 0 and runtime.rendezvous is None and runtime.parent is None:
        words = f"strategy {wanted} cannot be had here ({obstacle}); using {best}"
        print_line(words, runtime.log)
    return best


def accept_connect_works(runtime: Runtime) -> bool:
    """Return whether two launches can meet by accept/connect here."""
    if runtime.probed is not None:
        return bool(runtime.probed["accept_connect"])
    return MPI.get_vendor()[0] == "MPICH"


def _best(runtime: Runtime) -> str:
    managed = runtime.manager is not None
    if runtime.launches:
        return "merge"  # which lets go of whole launches without a new world
    if runtime.probed is not None:
        chosen: str = runtime.probed["strategies"]["rms" if managed else "mpirun"]["auto"]
        return chosen
    # Nobody has asked dmr probe: what the two libraries are known to do.
    return "warm" if managed and accept_connect_works(runtime) else "spawn"


def _obstacle(wanted: str, runtime: Runtime) -> str | None:
    """Return what keeps a strategy from working here, None if nothing is known to."""
    joins = "accept/connect" if runtime.manager is not None else "spawn"
    needed = {"warm": "accept/connect", "spawn": "spawn", "merge": joins}.get(wanted)
    if needed == "accept/connect" and not accept_connect_works(runtime):
        return "two launches of this MPI cannot meet by accept/connect"
    if needed == "spawn" and runtime.probed is not None and not runtime.probed["spawn"]:
        return "MPI_Comm_spawn does not work"
    return None


# --- memory -------------------------------------------------------------------------------------
#
# A world that is replaced as a whole (warm, spawn, restart) is booted beside the running one, and
# where they share nodes or devices both are there at once. With merge the ranks that stay have
# their fields twice for a moment, but not their scratch, kernels and device contexts.

GIB = 2**30


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one kind at one place, as one rank sees it.

    Attributes:
        place: a node, or a device of one.
        held: bytes that the rank holds there.
        free: bytes that nobody does.
    """

    place: str
    held: int
    free: int


def shortage(uses: Sequence[MemoryUse]) -> str | None:
    """Return a sentence if what all ranks hold does not fit in once more somewhere."""
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
    """Return what to use in place of ``strategy`` where a second copy does not fit.

    Args:
        ranks: how many are wanted, 0 where that is not known yet.
        launches: numbers of the launches, and how many of the present ranks each holds, in order.
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
    """Return what this rank sees: its node's memory, and that of the device of its fields."""
    found = []
    held, free = held_on_host(), free_on_host()
    if held is not None and free is not None:
        found.append(MemoryUse(f"node {node}", held, free))
    blocks = [block for block in fields.values() if isinstance(block, Field)]
    modules = {id(block.spec.xp): block.spec.xp for block in blocks}
    for xp in modules.values():
        if hasattr(xp, "cuda"):
            found.append(_device(node, xp))
    return found


def _device(node: str, xp: ArrayModule) -> MemoryUse:
    device = xp.cuda.Device()
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = name[device.id] if device.id < len(name) and name[device.id] else str(device.id)
    free, _ = device.mem_info
    return MemoryUse(
        f"GPU {number} of node {node}", xp.get_default_memory_pool().total_bytes(), free
    )


def held_on_host() -> int | None:
    """Return the bytes of this process that are no file's, None where nobody says."""
    return _kib(Path("/proc/self/status"), "RssAnon")


def free_on_host() -> int | None:
    """Return the bytes of this node that can be had without swapping, None where nobody says."""
    return _kib(Path("/proc/meminfo"), "MemAvailable")


def _kib(path: Path, name: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            key, _, rest = line.partition(":")
            if key == name:
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        pass
    return None
