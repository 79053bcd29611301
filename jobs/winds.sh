#!/bin/bash
# Twelve months of winds: element k carries a plume for the same time on month k's winds, so the
# elements differ in steps. MPDATA_WINDS is a folder with uwnd_mean.nc and vwnd_mean.nc.
# The same script goes to sbatch (rigid) and to rms submit.
#SBATCH --job-name=winds
#SBATCH --array=1-12
#SBATCH --nodes=1-2
#SBATCH --output=winds-%a.out
#RMS --mode=flexible
: "${WIND_U:=$MPDATA_WINDS/uwnd_mean.nc}" "${WIND_V:=$MPDATA_WINDS/vwnd_mean.nc}"
mpirun mpdata run --winds "$WIND_U" "$WIND_V" --month "$SLURM_ARRAY_TASK_ID" \
    --grid 144 60 16 --days "${WINDS_DAYS:-10}" --every 5 \
    --json "winds-$SLURM_ARRAY_TASK_ID.json"
