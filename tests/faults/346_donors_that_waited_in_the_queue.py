"""A donor that waited until ``salloc --immediate`` gave up was not tried again later."""

from __future__ import annotations

from rms.launch.slurm.commands import Meaning, meaning_of


def test_an_allocation_that_was_not_immediate() -> None:
    said = (
        "salloc: Pending job allocation 15 salloc: job 15 queued and waiting for resources"
        " salloc: error: Unable to allocate resources: Connection timed out"
    )
    assert meaning_of(said) is Meaning.LATER


def test_a_host_that_is_off() -> None:
    for end in ("No route to host", "Connection timed out"):
        said = f"sacct: error: Problem talking to the database: {end}"
        assert meaning_of(said) is Meaning.UNREACHABLE
