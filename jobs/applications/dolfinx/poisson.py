"""Poisson's equation in time with DOLFINx, malleable: mpirun -n 2 python poisson.py [TIMES] [CELLS]

The source moves over a unit square. Each solve is made of cycles of restarted GMRES, between two of
which the solver has no state but the solution.
"""

import sys
from hashlib import sha256
from math import fsum

from mpi4py import MPI  # first: it loads the MPI library that DOLFINx needs

# isort: split
import numpy as np
import ufl
from dolfinx import fem, mesh
from dolfinx.fem.petsc import apply_lifting, assemble_matrix, assemble_vector, set_bc
from petsc4py import PETSc

import dmr

TIMES, CELLS = (int(word) for word in (*sys.argv[1:], "5", "48")[:2])
CYCLES = 500
comm = MPI.COMM_WORLD
domain = mesh.create_unit_square(comm, CELLS, CELLS)
V = fem.functionspace(domain, ("Lagrange", 1))
u, t = fem.Function(V), fem.Constant(domain, 0.0)
v, w, x = ufl.TrialFunction(V), ufl.TestFunction(V), ufl.SpatialCoordinate(domain)
edge = fem.locate_dofs_geometrical(V, lambda x: np.isclose(x[0], 0.0) | np.isclose(x[0], 1.0))
fixed = [fem.dirichletbc(PETSc.ScalarType(1.0), edge, V)]
a = fem.form(ufl.inner(ufl.grad(v), ufl.grad(w)) * ufl.dx)
right = fem.form(10 * ufl.exp(-50 * ((x[0] - t) ** 2 + (x[1] - 0.3) ** 2)) * w * ufl.dx)
A = assemble_matrix(a, bcs=fixed)
A.assemble()
solver = PETSc.KSP().create(comm)
solver.setOperators(A)
solver.setType("gmres")
solver.getPC().setType("jacobi")
solver.setGMRESRestart(30)
solver.setTolerances(rtol=0.0, atol=1e-13, max_it=30)
solver.setInitialGuessNonzero(True)

numbers = np.empty(len(u.x.array), PETSc.IntType)  # of the points when the mesh was made
numbers[V.dofmap.list] = domain.geometry.input_global_indices[domain.geometry.dofmaps[0]]
own = PETSc.IS().createGeneral(numbers[: V.dofmap.index_map.size_local], comm)
made = PETSc.Vec().createMPI(V.dofmap.index_map.size_global, comm=comm)  # cut as dmr cuts
move = PETSc.Scatter().create(made, own, u.x.petsc_vec, None)


def save(run):
    move.scatter(u.x.petsc_vec, made, mode="reverse")


def load(run):
    move.scatter(made, u.x.petsc_vec)
    u.x.scatter_forward()


with dmr.malleable(comm, {"u": dmr.adapt(made.array, (made.size,))}, save=save, load=load) as run:
    for step in run.loop(TIMES):
        t.value = (step + 1) / (TIMES + 1)
        b = assemble_vector(right)
        apply_lifting(b, [a], bcs=[fixed])
        b.ghostUpdate(PETSc.InsertMode.ADD, PETSc.ScatterMode.REVERSE)
        set_bc(b, fixed)
        for _ in run.loop(CYCLES):
            solver.solve(b, u.x.petsc_vec)
            u.x.scatter_forward()
            if solver.getConvergedReason() > 0:
                break

values = comm.gather(u.x.petsc_vec.array)
if comm.rank == 0:
    print(f"residual {solver.getResidualNorm():.3g}")
    values = np.concatenate(values)
    digest = sha256(values.tobytes()).hexdigest()
    print(f"sum {fsum(values):.16g} of {values.size} points, {digest[:16]}", flush=True)
