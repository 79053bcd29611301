"""A job that was handed to Slurm, and what is kept of it for a daemon that comes after."""

from __future__ import annotations

import shlex
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rms.launch.base import NODES_LOST, ManagedProcess
from rms.launch.local import KEEP_STATUS

OURS = "RMS_SLURM_JOB_ID"
"""Slurm's own id of a job, for its script: ``SLURM_JOB_ID`` is the RMS's there."""

VANISHED = "nothing of it any more"
STATES = {"CANCELLED": "CANCELLED", "TIMEOUT": "TIMEOUT", "DEADLINE": "TIMEOUT"}


WRAPPER = f"""#!/bin/sh
export {OURS}="$SLURM_JOB_ID"
for name in JOB_ID JOB_NUM_NODES ARRAY_JOB_ID ARRAY_TASK_ID; do
    eval "value=\\${{RMS_$name-}}"
    if [ -n "$value" ]; then export "SLURM_$name=$value"; else unset "SLURM_$name"; fi
done
exec /bin/sh -c {shlex.quote(KEEP_STATUS)} job "$RMS_SCRIPT"
"""
"""What Slurm runs: to the script its job is the RMS's, as under every engine."""


class SubmissionRecord(msgspec.Struct):
    """What is kept of a job of Slurm's.

    Attributes:
        since_s: when it was to be submitted; one of its name from before is another.
        before: numbers of earlier jobs of that name.
        number: its own, once known.
        closed: it is over, and the job of the RMS waits for another.
        donor: options of salloc for donors of its.
        held: when the job of the RMS came to hold which nodes, under all its numbers.
    """

    since_s: float
    before: list[int] = []
    number: int | None = None
    closed: bool = False
    donor: list[str] = []
    held: list[tuple[float, tuple[str, ...]]] = []

    @classmethod
    def read(cls, path: Path) -> SubmissionRecord | None:
        """Return a ticket, None where there is none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, path: Path) -> None:
        """Write it so that a reader sees all of it or none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self))
        part.replace(path)


@dataclass
class SlurmJob(ManagedProcess):
    """A job script that Slurm runs.

    Attributes:
        name: in Slurm's queue.
        asked: its submission, until that is done.
        known_s: the monotonic clock when its number was known.
        told: whether this daemon has told it to end.
        over: whether Slurm is done with it.
        metered: the nodes that meters were started on.
    """

    name: str = ""
    hosts: tuple[str, ...] = ()
    started: bool = False
    end_state: str = ""
    end_reason: str = ""
    ticket: SubmissionRecord = field(default_factory=lambda: SubmissionRecord(0.0))
    asked: Future[int] | None = None
    known_s: float = 0.0
    told: bool = False
    withdrawn: bool = False
    metered: tuple[str, ...] = ()
    completing_s: float | None = None
    over: bool = False
    reason: str = ""
    joules: Future[float] | None = None

    def status(self) -> int | None:
        """Return the script's status once Slurm is done with the job."""
        if not self.over:
            return None
        found = self.written_status()
        return 1 if found is None else found

    @property
    def holds(self) -> tuple[str, ...]:
        """The nodes that it is known to have."""
        return self.ticket.held[-1][1] if self.ticket.held else ()

    def end(self, state: str) -> None:
        """Enter that Slurm is done with it."""
        self.over, code = True, self.written_status()
        if self.told:
            return
        forgotten = state == VANISHED and code is not None  # the script's own word is left
        if state in ("COMPLETED", "FAILED") or code == 0 or forgotten:
            self.started = True
        else:
            self.end_state, self.end_reason = STATES.get(state, NODES_LOST), f"Slurm says {state}"
