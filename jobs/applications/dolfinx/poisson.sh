#!/bin/bash
# The poisson equation with DOLFINx, on as many nodes as there are for it: rms submit poisson.sh
#SBATCH --job-name=poisson
#SBATCH --nodes=1-4
#SBATCH --output=poisson.out
#RMS --mode=flexible
mpirun python poisson.py 2000 512
