"""``veros run``, malleable: mpirun -n 2 python malleable.py SETUP.py [OPTIONS OF VEROS RUN]

The rows of the grid are cut over the ranks, whose number divides them.
"""

import sys

from mpi4py import MPI
from veros import VerosSetup
from veros.cli.veros_run import cli

import dmr


def integrate(sim):
    state, ny, arrays = sim.state, sim.state.settings.ny, {}
    for title, part in {"model": state, **state.diagnostics}.items():
        for name, meta in (part.var_meta or {}).items():
            if meta.active and (meta.write_to_restart or name == "itt"):
                arrays[f"{title}-{name}"] = (part.variables, name, meta.dims or ())
    fields = dmr.adapt_all(arrays, {"yt", "yu"}, {"yt": ny, "yu": ny}, halo=2)
    with state.variables.unlock(), dmr.malleable(MPI.COMM_WORLD, fields) as run:
        for field in run.fields.values():
            field.exchange()
        for _ in run.loop(int(-(-state.settings.runlen // state.settings.dt_tracer))):
            sim.step(state)


VerosSetup.run = integrate
cli(["-n", "1", str(MPI.COMM_WORLD.size), *sys.argv[1:]])
