"""A Krylov solve in pieces with DOLFINx, malleable: mpirun -n 2 python poisson.py [CELLS] [ROUNDS]

Poisson's equation on a unit square. Each round is one cycle of restarted GMRES, between two of
which the solver has no state but the solution.
"""

import sys
from hashlib import sha256

from mpi4py import MPI  # first: it loads the MPI library that DOLFINx needs

# isort: split
import numpy as np
import ufl
from dolfinx import fem, mesh
from dolfinx.fem.petsc import apply_lifting, assemble_matrix, assemble_vector, set_bc
from natural import natural
from petsc4py import PETSc

import dmr

CELLS, ROUNDS = (int(word) for word in (*sys.argv[1:], "64", "200")[:2])
comm = MPI.COMM_WORLD
domain = mesh.create_unit_square(comm, CELLS, CELLS)
V = fem.functionspace(domain, ("Lagrange", 1))
u = fem.Function(V)
v, w, x = ufl.TrialFunction(V), ufl.TestFunction(V), ufl.SpatialCoordinate(domain)
edge = fem.locate_dofs_geometrical(V, lambda x: np.isclose(x[0], 0.0) | np.isclose(x[0], 1.0))
fixed = [fem.dirichletbc(PETSc.ScalarType(1.0), edge, V)]
a = fem.form(ufl.inner(ufl.grad(v), ufl.grad(w)) * ufl.dx)
A = assemble_matrix(a, bcs=fixed)
A.assemble()
b = assemble_vector(
    fem.form(10 * ufl.exp(-50 * ((x[0] - 0.5) ** 2 + (x[1] - 0.3) ** 2)) * w * ufl.dx)
)
apply_lifting(b, [a], bcs=[fixed])
b.ghostUpdate(PETSc.InsertMode.ADD, PETSc.ScatterMode.REVERSE)
set_bc(b, fixed)
solver = PETSc.KSP().create(comm)
solver.setOperators(A)
solver.setType("gmres")
solver.getPC().setType("jacobi")
solver.setGMRESRestart(30)
solver.setTolerances(rtol=0.0, atol=1e-12, max_it=30)
solver.setInitialGuessNonzero(True)

with dmr.malleable(comm, {"u": natural(u)}) as run:
    for _ in run.loop(ROUNDS):
        solver.solve(b, u.x.petsc_vec)
        u.x.scatter_forward()
        if solver.getConvergedReason() > 0:
            break
    run.say(f"residual {solver.getResidualNorm():.3g} after {run.step} rounds")
    values = run.fields["u"].gather()

if values is not None:
    digest = sha256(values.tobytes()).hexdigest()
    print(f"sum {values.sum():.12g} of {values.size} points, {digest[:16]}", flush=True)
