"""Slurm as it is found on a site: its commands, what they print, and what they allow."""
