"""A DOLFINx function of linear elements as a field, in an order that no partition changes."""

import numpy as np
from petsc4py import PETSc

import dmr


def natural(u):
    """State a function by the numbers that the points of the mesh had when it was made.

    PETSc moves the values between their owners in the mesh and an even cut of the points.
    """
    index, geometry = u.function_space.dofmap.index_map, u.function_space.mesh.geometry
    made = PETSc.Vec().createMPI(index.size_global, comm=index.comm)  # cut as dmr cuts
    numbers = np.empty(index.size_local + index.num_ghosts, PETSc.IntType)
    numbers[u.function_space.dofmap.list] = geometry.input_global_indices[geometry.dofmaps[0]]
    here = PETSc.IS().createGeneral(numbers[: index.size_local], comm=index.comm)
    order = PETSc.Scatter().create(u.x.petsc_vec, None, made, here)

    def get():
        order.scatter(u.x.petsc_vec, made)
        return made.array

    def put(values):
        made.array = values
        order.scatter(made, u.x.petsc_vec, mode=PETSc.ScatterMode.REVERSE)
        u.x.scatter_forward()

    return dmr.adapt(get=get, set=put, shape=(made.size,))
