"""Submissions to a daemon in this process, without a script and past its routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rms.core.model.jobs import JobSpec
from rms.daemon.heart import Daemon
from rms.daemon.store.notes import SubmissionNote


def submission(number: str, **fields: Any) -> SubmissionNote:
    """Return the note of a submission whose output is dropped."""
    return SubmissionNote(number, array=number, **{"name": "a", "output": "/dev/null", **fields})


def hand_in(daemon: Daemon, specs: Sequence[JobSpec], **fields: Any) -> None:
    """Submit jobs at once; the first gives the submission its number."""
    number = specs[0].id
    daemon.context.private.keep(f"{number}/environment", {})
    daemon.admission.enter(list(specs), submission(number, **fields))


def filler(number: int, size: int = 2000) -> SubmissionNote:
    """Return a note that fills a journal's file."""
    return SubmissionNote(f"filler-{number}", cwd="x" * size)
