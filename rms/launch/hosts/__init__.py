"""Hosts of one name each, reached by a remote shell: of a cluster file, Grid Engine or PBS."""
