"""Published experiments, one file each, and comparisons."""
