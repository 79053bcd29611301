"""Checkpoints: which there are, what is in one, and how its files are written and read."""
