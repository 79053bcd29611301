#!/bin/bash
# The dmda equation with DOLFINx, on as many nodes as there are for it: rms submit dmda.sh
#SBATCH --job-name=dmda
#SBATCH --nodes=1-4
#SBATCH --output=dmda.out
#RMS --mode=flexible
mpirun python dmda.py 2000 512
