"""The heat equation with DOLFINx, malleable: mpirun -n 2 python heat.py [STEPS] [CELLS]

Backward Euler on a unit square, linear elements, conjugate gradients.
"""

import sys
from hashlib import sha256

from mpi4py import MPI  # first: it loads the MPI library that DOLFINx needs

# isort: split
import numpy as np
import ufl
from dolfinx import fem, mesh
from dolfinx.fem.petsc import assemble_matrix, assemble_vector, create_vector
from natural import natural
from petsc4py import PETSc

import dmr

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
solver.setTolerances(rtol=1e-14)

with dmr.malleable(comm, {"u": natural(u)}) as run:
    for _ in run.loop(STEPS):
        with b.localForm() as local:
            local.set(0.0)
        assemble_vector(b, right)
        b.ghostUpdate(PETSc.InsertMode.ADD, PETSc.ScatterMode.REVERSE)
        solver.solve(b, u.x.petsc_vec)
        u.x.scatter_forward()
    values = run.fields["u"].gather()

if values is not None:
    digest = sha256(values.tobytes()).hexdigest()
    print(f"sum {values.sum():.12g} of {values.size} points, {digest[:16]}", flush=True)
