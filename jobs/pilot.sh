#!/bin/bash
# A resource manager inside one allocation: jobs are handed to it by rms submit, from anywhere that
# shares its state folder. It ends them at checkpoints before the time is up; sbatch this again and
# it goes on where it was, on whatever nodes it gets. With --no-kill a node's failure costs its jobs
# only.
#SBATCH --job-name=pilot
#SBATCH --nodes=4
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
#SBATCH --no-kill
#SBATCH --signal=B:TERM@60
#SBATCH --output=pilot.out
#SBATCH --open-mode=append
: "${RMS_STATE:=$HOME/.local/state/rms-pilot}"
export RMS_STATE
exec rms serve --engine slurm-pilot --state "$RMS_STATE"
