#!/bin/bash
# A training by torchrun that gives nodes back and takes them again: rms submit train.sh
#SBATCH --job-name=train
#SBATCH --nodes=1-4
#SBATCH --output=train.out
#RMS --mode=flexible --resize-by=signal
exec python agents.py train.py --steps 600
