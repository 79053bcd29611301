#!/bin/bash
# Twelve months of winds: element k carries a plume for the same time on month k's winds, so the
# elements differ in steps. MPDATA_WINDS is a folder with uwnd_mean.nc and vwnd_mean.nc; the default
# is demo/winds (created by scripts/demo) if it exists, else the analytic flow of case gaussian.
# The same script goes to sbatch (rigid) and to rms submit.
#SBATCH --job-name=winds
#SBATCH --array=1-12
#SBATCH --nodes=1-2
#SBATCH --output=winds-%a.out
#RMS --mode=flexible
month=$SLURM_ARRAY_TASK_ID days=${WINDS_DAYS:-10} folder=$MPDATA_WINDS
for demo in demo/winds ../../demo/winds; do  # relative to the checkout; to the folders of rms compare
    [ -z "$folder" ] && [ -f "$demo/vwnd_mean.nc" ] && folder=$demo
done
if [ -n "$folder$WIND_U$WIND_V" ]; then
    flow=(--winds "${WIND_U:-$folder/uwnd_mean.nc}" "${WIND_V:-$folder/vwnd_mean.nc}")
    flow+=(--month "$month" --days "$days")
else
    if ! [[ $days =~ ^[1-9][0-9]*(\.[0-9]*)?$ ]]; then
        echo "winds.sh: error: expected WINDS_DAYS of at least 1 without wind files, got $days" >&2
        exit 2
    fi
    echo "winds.sh: no wind files (MPDATA_WINDS, demo/winds): using case gaussian"
    flow=(--case gaussian --steps $((${days%.*} * (20 + month))))
fi
mpirun mpdata run "${flow[@]}" --grid 144 60 16 --every 5 --json "winds-$month.json"
