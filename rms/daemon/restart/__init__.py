"""From a journal back to a daemon, and replay of decisions."""
