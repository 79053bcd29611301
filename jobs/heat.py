"""A 2D heat solver with mpi4py that may be resized while it runs: mpirun -n 2 python heat.py

The plate is cold but for its hot upper edge. Rows are cut over the ranks; what a rank does
between two steps (exchange of edge rows, Jacobi sweep) is ordinary mpi4py and NumPy.
"""

import hashlib

import numpy as np
from mpi4py import MPI

import dmr

N = 256


def cold(box):
    return np.zeros(box.shape)


class Heat(dmr.Application):
    def fields(self):
        return {"t": dmr.FieldSpec((N, N), "f8", cold, halo=1, split=(0,))}

    def build(self, run):
        rank, size = run.world.rank, run.world.size
        self.up = rank - 1 if rank > 0 else MPI.PROC_NULL
        self.down = rank + 1 if rank < size - 1 else MPI.PROC_NULL
        if rank == 0:
            run.fields["t"].padded[0, :] = 100.0

    def steps(self, run):
        return 300

    def step(self, run):
        t, comm = run.fields["t"].padded, run.world.comm
        comm.Sendrecv(t[1], self.up, recvbuf=t[-1], source=self.down)
        comm.Sendrecv(t[-2], self.down, recvbuf=t[0], source=self.up)
        t[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]) / 4

    def finish(self, run):
        parts = run.world.comm.gather(run.fields["t"].interior.copy())
        if run.world.rank == 0:
            plate = np.concatenate(parts)
            digest = hashlib.sha256(plate.tobytes()).hexdigest()
            print(f"{run.world.size} ranks, mean {plate.mean():.6f}, sha256 {digest}", flush=True)


if __name__ == "__main__":
    dmr.run(Heat(), dmr.Runtime.here(MPI.COMM_WORLD), dmr.Plan(resizes={100: 3, 200: 1}))
