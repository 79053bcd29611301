"""A Veros set-up, malleable: mpirun -n 2 python malleable.py SETUP.py STEPS

The rows of the grid are cut over the ranks, whose number divides them.
"""

import sys
from functools import partial
from hashlib import sha256

import numpy as np
from mpi4py import MPI
from veros import VerosSetup, runtime_settings
from veros.cli.veros_run import _import_from_file

import dmr

comm = MPI.COMM_WORLD
runtime_settings.num_proc, runtime_settings.diskless_mode = (1, comm.size), True
module = _import_from_file(sys.argv[1])
(setup,) = {
    one
    for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, VerosSetup) and one is not VerosSetup
}
sim = setup()
sim.setup()


def put(variables, name, value):
    with variables.unlock():
        setattr(variables, name, value)


# What Veros writes to its restart files, and its number of steps.
arrays, scalars = {}, {}
for title, holder in {"model": sim.state, **sim.state.diagnostics}.items():
    for name, meta in (holder.var_meta or {}).items():
        if meta.active and (meta.write_to_restart or name == "itt"):
            get_set = partial(getattr, holder.variables, name), partial(put, holder.variables, name)
            (arrays if meta.dims else scalars)[f"{title}-{name}"] = *get_set, meta.dims


def save(run):
    run.state.scalars = {key: np.asarray(get()) for key, (get, _, _) in scalars.items()}


def load(run):
    for key, (_, put, _) in scalars.items():
        put(run.state.scalars[key])
    for field in run.fields.values():
        field.exchange()


nx, ny = sim.state.settings.nx, sim.state.settings.ny
shape = {"xt": nx, "xu": nx, "yt": ny, "yu": ny}
fields = dmr.adapt_all(arrays, {"yt", "yu"}, shape, halo=dict.fromkeys(shape, 2))
with dmr.malleable(comm, fields, state={"scalars": {}}, save=save, load=load) as run:
    for _ in run.loop(int(sys.argv[2])):
        sim.step(sim.state)
    save(run)
    found = {name: field.gather() for name, field in sorted(run.fields.items())}

if comm.rank == 0:
    digest = sha256(b"".join(np.ascontiguousarray(v).tobytes() for v in found.values()))
    temp = found["model-temp"].sum()
    print(f"temperature {temp:.15g}, {len(found)} fields {digest.hexdigest()[:16]}", flush=True)
