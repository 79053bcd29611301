"""The types of :mod:`rms.core.model.jobs`, for users' policies."""

from rms.core.model.jobs import *  # noqa: F403
