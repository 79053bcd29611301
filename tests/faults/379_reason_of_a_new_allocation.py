"""A job that waited for an allocation had the reason ``allocation 40 waits in Slurm: None``."""

from __future__ import annotations

import pytest

from rms.launch.slurm.elastic import waits_words
from rms.launch.slurm.output import QueuedJob


@pytest.mark.parametrize(("reason", "words"), [("None", ""), ("Priority", ": Priority")])
def test_a_reason_that_slurm_has_not_yet(reason: str, words: str) -> None:
    row = QueuedJob(40, None, None, "p", "me", "PENDING", reason, 2, (), 60.0, 1.0, None)
    assert waits_words(row) == f"allocation 40 waits in Slurm{words}"
