"""Which GPU each rank of a node works on, and whether it has the memory.

One rank a GPU: with the grid cut over ranks in two directions that is what several GPUs in a node
need, each with its neighbours and a stream of its own (Iserte & Rojek, section 4, have one process
a node and a second topology for the GPUs in it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from mpdata.numerics.cuda.device import load_cupy, short

GIB = 2**30


def assign(visible: Sequence[Sequence[str]]) -> list[int]:
    """Return the GPU of every rank of a node, as an index into those that it sees.

    Args:
        visible: for every rank the GPUs that it sees, by names that all ranks understand. Where
            all see the same this is the rank's number on the node, modulo the number of GPUs; a
            launcher may as well show each rank its own.
    """
    taken: Counter[str] = Counter()
    found = []
    for names in visible:
        best = min(range(len(names)), key=lambda at: taken[names[at]])
        taken[names[best]] += 1
        found.append(best)
    return found


def name_of(properties: Mapping[str, Any]) -> str:
    """Return a name for a GPU that no other of the node has, whatever a rank sees of them."""
    place = (properties.get(f"pci{part}ID", 0) for part in ("Domain", "Bus", "Device"))
    # The identifier tells parts of one GPU apart. It has 16 bytes, but may come as a C string
    # does: cut off at a byte of 0, or with what follows it.
    return ":".join([bytes(properties.get("uuid", b""))[:16].hex(), *map(str, place)])


def take_device(comm: MPI.Intracomm, needed_bytes: int, *, share: bool) -> str | None:
    """Make this rank's GPU the current one (collective); return what is wrong with it, if so.

    Args:
        comm: all ranks of the world, every one of which sees a GPU.
        needed_bytes: device memory that this rank is going to allocate.
        share: whether several ranks may have one GPU.
    """
    cupy = load_cupy()
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        runtime = cupy.cuda.runtime
        seen_here = [
            name_of(runtime.getDeviceProperties(at)) for at in range(runtime.getDeviceCount())
        ]
        visible = node.allgather(seen_here)
        picked = assign(visible)
        ranks = [seen[at] for seen, at in zip(visible, picked, strict=True)]
        gpus = len({name for seen in visible for name in seen})
        if max(Counter(ranks).values()) > 1 and not share:
            return (
                f"expected a GPU for every rank of a node, got {node.size} ranks and {gpus} "
                f"GPU{'s' * (gpus != 1)}; --share-gpu lets ranks share, --backend numba needs none"
            )
        free, problem = None, None
        device = cupy.cuda.Device(picked[node.rank])
        for _ in range(2):  # the first makes the context, which takes memory itself
            try:
                device.use()
                free, _ = device.mem_info
            except Exception as error:  # busy, or reserved: CuPy has a class of its own for each
                problem = f"expected GPU {picked[node.rank]} to work, got: {short(error)}"
            node.Barrier()
        needs = zip(ranks, node.allgather(needed_bytes), strict=True)
        together = [need for name, need in needs if name == ranks[node.rank]]
    finally:
        node.Free()
    if free is None or problem is not None:
        return problem
    if sum(together) <= free:
        return None
    return (
        f"expected {sum(together) / GIB:.3g} GiB of free memory on a GPU for {len(together)} "
        f"rank{'s' * (len(together) != 1)}, got {free / GIB:.3g} GiB"
    )
