"""Block sizes of the streaming kernel, tried out once and kept for each device.

They decide the speed alone: every tile gives the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpdata.numerics.cuda.job import SHARED_BYTES, GpuTile
from mpdata.options import Scheme

TILES = tuple(
    GpuTile(x, y, chunk, blocks)
    for x, y, blocks in ((32, 12, 2), (32, 14, 1), (32, 16, 1), (32, 20, 1), (32, 26, 1))
    for chunk in (128, 256)
)
"""Candidates; rows as wide as a warp, whose outer ones then skip work as whole warps."""


def candidates(dtype: npt.DTypeLike) -> list[GpuTile]:
    """Return the tiles to try: those that fit in the shared memory of a block on every device."""
    return [tile for tile in TILES if tile.shared_bytes(dtype) <= SHARED_BYTES]


def store_path(env: Mapping[str, str]) -> Path:
    """Return where tuned tiles are kept."""
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "malleable-mpi" / "cuda-tiles.json"


def key_of(device: str, scheme: Scheme, dtype: npt.DTypeLike) -> str:
    """Return under which name a tile is kept: what decides the kernel and where it runs."""
    options = f"limiter={scheme.limiter} gauge={scheme.infinite_gauge}"
    return f"{device} | fused | f{np.dtype(dtype).itemsize} | {options}"


def recall(path: Path, key: str) -> GpuTile | None:
    """Return the tile kept under a key; None if there is none, or none of today's candidates."""
    try:
        tile = GpuTile(**json.loads(path.read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tile if tile in TILES else None


def keep(path: Path, key: str, tile: GpuTile) -> None:
    """Keep a tile; processes that tune at once each leave a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    kept[key] = asdict(tile)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    beside.replace(path)


def best(
    tiles: Iterable[GpuTile], seconds: Callable[[GpuTile], float | None]
) -> tuple[GpuTile, float]:
    """Return the fastest tile and its time.

    Args:
        tiles: what to try.
        seconds: measures a step with a tile; None where it does not run on this device.

    Raises:
        RuntimeError: none of them runs.
    """
    fastest: tuple[GpuTile, float] | None = None
    for tile in tiles:
        taken = seconds(tile)
        if taken is not None and (fastest is None or taken < fastest[1]):
            fastest = tile, taken
    if fastest is None:
        raise RuntimeError("expected a tile that runs on this device, got none")
    return fastest
