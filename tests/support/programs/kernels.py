"""A task with kernels, `kernels.py LOG GO RESOURCE...`: notes where it runs until there is GO.

It is interrupted at yield points; each step is counted in its data, whatever it runs on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from rms.kernels import Affinity, Kernel, KernelCollection, Resource, place


def main() -> None:
    log, go = Path(sys.argv[1]), Path(sys.argv[2])
    kinds = [Resource(word) for word in sys.argv[3:]]

    def note(words: str) -> None:
        with log.open("a") as file:
            file.write(f"{words}\n")

    def kernel(data: SimpleNamespace) -> Iterator[None]:
        where = place()
        assert where is not None
        note(f"on {where.device}")
        while not go.exists():
            time.sleep(0.01)
            data.steps += 1
            yield

    levels = (Affinity.HIGH, Affinity.MED, Affinity.LOW)
    kernels = [Kernel(kernel, kind, level) for kind, level in zip(kinds, levels, strict=False)]
    data = KernelCollection(SimpleNamespace(steps=0), *kernels).run()
    note(f"done {data.steps > 0}")


main()
