"""The events and decisions of :mod:`rms.core.model.events`, for users' policies."""

from rms.core.model.events import *  # noqa: F403
