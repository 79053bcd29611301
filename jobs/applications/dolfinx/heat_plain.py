"""The heat equation with DOLFINx: mpirun -n 2 python heat_plain.py [STEPS] [CELLS]

Backward Euler on a unit square, linear elements, conjugate gradients.
"""

import sys
from hashlib import sha256
from math import fsum

from mpi4py import MPI  # first: it loads the MPI library that DOLFINx needs

# isort: split
import numpy as np
import ufl
from dolfinx import fem, mesh
from dolfinx.fem.petsc import assemble_matrix, assemble_vector, create_vector
from petsc4py import PETSc

STEPS, CELLS = (int(word) for word in (*sys.argv[1:], "30", "64")[:2])
comm, dt = MPI.COMM_WORLD, 1e-3
domain = mesh.create_unit_square(comm, CELLS, CELLS)
V = fem.functionspace(domain, ("Lagrange", 1))
u = fem.Function(V)
u.interpolate(lambda x: np.sin(np.pi * x[0]) * np.sin(3 * np.pi * x[1]) + x[0])
v, w = ufl.TrialFunction(V), ufl.TestFunction(V)
A = assemble_matrix(fem.form((v * w + dt * ufl.inner(ufl.grad(v), ufl.grad(w))) * ufl.dx))
A.assemble()
right, b = fem.form(u * w * ufl.dx), create_vector(V)
solver = PETSc.KSP().create(comm)
solver.setOperators(A)
solver.setType("cg")
solver.getPC().setType("jacobi")
solver.setTolerances(rtol=1e-15)

for _ in range(STEPS):
    with b.localForm() as local:
        local.set(0.0)
    assemble_vector(b, right)
    b.ghostUpdate(PETSc.InsertMode.ADD, PETSc.ScatterMode.REVERSE)
    solver.solve(b, u.x.petsc_vec)
    u.x.scatter_forward()

values = comm.gather(u.x.petsc_vec.array)
if comm.rank == 0:
    values = np.concatenate(values)
    digest = sha256(values.tobytes()).hexdigest()
    print(f"sum {fsum(values):.16g} of {values.size} points, {digest[:16]}", flush=True)
