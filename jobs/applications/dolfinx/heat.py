"""The heat equation with DOLFINx, malleable: mpirun -n 2 python heat.py [STEPS] [CELLS]

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
solver.setTolerances(rtol=1e-15)

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
    for _ in run.loop(STEPS):
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
