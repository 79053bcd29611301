#!/bin/bash
# A year of Veros' ACC channel on 1, 2 or 3 nodes, whose numbers divide its 42 rows: rms submit veros.sh
#SBATCH --job-name=veros
#SBATCH --nodes=1-3
#SBATCH --output=veros.out
#RMS --mode=flexible
setups=$(python -c 'import pathlib, veros; print(pathlib.Path(veros.__file__).parent / "setups")')
mpirun python malleable.py "${SETUP:-$setups/acc_basic/acc_basic.py}" -s runlen 31536000 --diskless-mode
