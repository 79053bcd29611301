"""The events and decisions of :mod:`rms.core.events`, under the name that users' policies know."""

from rms.core.events import *  # noqa: F403
