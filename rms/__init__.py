"""A lightweight resource manager for malleable jobs."""

from rms._version import __version__

__all__ = ["__version__"]
