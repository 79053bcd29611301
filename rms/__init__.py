"""A lightweight resource manager for malleable jobs (so far: its protocol)."""

from rms._version import __version__

__all__ = ["__version__"]
