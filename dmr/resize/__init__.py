"""One resize: its source, its target, merge."""
