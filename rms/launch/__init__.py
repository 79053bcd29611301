"""Who starts processes: this machine, or Slurm."""
