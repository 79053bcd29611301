"""The daemon: jobs, resizes, journal, server."""
