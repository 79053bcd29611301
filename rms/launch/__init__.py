"""Engines: the nodes and processes of this machine, or of Slurm."""
