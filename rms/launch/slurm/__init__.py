"""The engines of Slurm, and its commands."""
