#!/bin/bash
# One wider job, running when an array arrives: something to narrow, and to widen at the end.
#SBATCH --job-name=wide
#SBATCH --nodes=1-2
#SBATCH --output=wide.out
#RMS --mode=flexible
mpirun mpdata run --case gaussian --grid 96 96 64 --steps "${WIDE_STEPS:-600}" --every 5 --json wide.json
