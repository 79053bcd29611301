"""The words of :mod:`rms.core.model.jobs`, under the name that users' policies know."""

from rms.core.model.jobs import *  # noqa: F403
