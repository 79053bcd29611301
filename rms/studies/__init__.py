"""Published experiments, one per file, and comparisons."""
