"""The events and decisions of :mod:`rms.core.model.events`, under the name that users' policies know."""

from rms.core.model.events import *  # noqa: F403
