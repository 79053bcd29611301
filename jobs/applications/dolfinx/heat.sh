#!/bin/bash
# The heat equation with DOLFINx, on as many nodes as there are for it: rms submit heat.sh
#SBATCH --job-name=heat
#SBATCH --nodes=1-4
#SBATCH --output=heat.out
#RMS --mode=flexible
mpirun python heat.py 2000 512
