"""A task that stays in a phase, `task_phases.py LOG PHASE GO RESOURCE...`, until there is GO.

It notes, with its process's number and its device, when its data comes (`in`), when a kernel begins
(`on`), when its data goes back (`out`) and when it has (`left`). Phases: `in` and `out`, with its
data on the way; `on`, between two yield points of many; `stuck`, between two that are far apart.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from rms.kernels import Affinity, Kernel, KernelCollection, Resource, place


def main() -> None:
    log, phase, go = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    kinds = [Resource(word) for word in sys.argv[4:]]

    def stay() -> None:
        while not go.exists():
            time.sleep(0.01)

    def note(word: str) -> None:
        where = place()
        assert where is not None
        with log.open("a") as file:
            file.write(f"{os.getpid()} {word} {where.device}\n")
        if word == phase and word != "on":
            stay()

    def copy_in(data: SimpleNamespace) -> SimpleNamespace:
        note("in")
        return data

    def copy_out(moved: SimpleNamespace, data: SimpleNamespace) -> None:
        note("out")
        note("left")

    def kernel(data: SimpleNamespace) -> Iterator[None]:
        note("on")
        if phase == "stuck":
            stay()
        while not go.exists():
            time.sleep(0.01)
            yield

    levels = (Affinity.HIGH, Affinity.MED, Affinity.LOW)
    kernels = [
        Kernel(kernel, kind, level, copy_in, copy_out)
        for kind, level in zip(kinds, levels, strict=False)
    ]
    KernelCollection(SimpleNamespace(), *kernels).run()


main()
