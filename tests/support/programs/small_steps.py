"""A few steps of every kernel on small blocks, for compute-sanitizer to watch."""

import sys
from pathlib import Path

from mpdata.numerics.cuda.device import CupyStepper, load_cupy
from mpdata.numerics.cuda.job import GpuTile
from mpdata.options import Scheme, parse_boundaries

sys.path.append(str(Path(__file__).parents[1]))
import random_blocks as check

TILE = GpuTile(16, 9, 20)

cupy = load_cupy()
for dtype in ("f8", "f4"):
    for scheme in (Scheme(2), Scheme(2, limiter=False), Scheme(3)):
        for boundaries in ("periodic", "wall,open,fixed:1.5"):
            block = check.random_block(
                cupy, (40, 30, 9), scheme, parse_boundaries(boundaries), dtype
            )
            for variant in ("four", "fused") if scheme.passes == 2 else ("four",):
                given = (block.geo, scheme, block.h, block.allocate, variant, TILE)
                check.after(block, CupyStepper(*given))
cupy.cuda.Device().synchronize()
print("steps done")
