"""``veros run``, malleable: mpirun -n 2 python malleable.py SETUP.py [OPTIONS OF VEROS RUN]

The rows of the grid are cut over the ranks, whose number divides them.
"""

import sys
from functools import partial

from mpi4py import MPI
from veros import VerosSetup
from veros.cli.veros_run import cli

import dmr


def integrate(sim):
    state, arrays = sim.state, {}
    for title, part in {"model": state, **state.diagnostics}.items():
        for name, meta in (part.var_meta or {}).items():
            if meta.active and (meta.write_to_restart or name == "itt"):
                access = (partial(attr, part.variables, name) for attr in (getattr, setattr))
                arrays[f"{title}-{name}"] = (*access, meta.dims or ())
    rows = dict.fromkeys(("yt", "yu"), state.settings.ny)
    fields = dmr.adapt_all(arrays, rows, rows, halo=2)  # cells of overlap in x are cells
    with state.variables.unlock(), dmr.malleable(MPI.COMM_WORLD, fields, load=exchange) as run:
        for _ in run.loop(round(state.settings.runlen / state.settings.dt_tracer)):
            sim.step(state)


def exchange(run):
    for field in run.fields.values():
        field.exchange()


VerosSetup.run = integrate
cli(["-n", "1", str(MPI.COMM_WORLD.size), *sys.argv[1:]])
