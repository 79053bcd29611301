"""Copies of a run in the memory of its hosts, from which it goes on without a rank or a host."""
