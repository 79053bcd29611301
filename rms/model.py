"""The words of :mod:`rms.core.model`, under the name that users' policies know."""

from rms.core.model import *  # noqa: F403
