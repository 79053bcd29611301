"""``veros run``: mpirun -n 2 python plain.py SETUP.py [OPTIONS OF VEROS RUN]"""

import sys

from mpi4py import MPI
from veros.cli.veros_run import cli

cli(["-n", "1", str(MPI.COMM_WORLD.size), *sys.argv[1:]])
