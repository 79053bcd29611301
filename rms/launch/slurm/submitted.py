"""A job that was handed to Slurm, and what is kept of it for a daemon that comes after.

The record beside the job's script is written before sbatch is called and again when it has
answered, so that a job is submitted once whatever happens in between: its name is looked for first.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rms.launch.base import NODES_LOST, ManagedProcess
from rms.launch.containment import KEEP_STATUS
from rms.launch.slurm.commands import Meaning, SlurmError
from rms.launch.slurm.executor import Executor
from rms.wire.files import write_whole

SLURM_NUMBER_VARIABLE = "RMS_SLURM_JOB_ID"
"""Slurm's own id of a job, for its script: ``SLURM_JOB_ID`` is the RMS's there."""

VANISHED = "nothing of it any more"
END_STATES = {"CANCELLED": "CANCELLED", "TIMEOUT": "TIMEOUT", "DEADLINE": "TIMEOUT"}
"""States that Slurm ends a job in, and what they are to the RMS; with others, nodes were lost."""

SUBMIT_AGAIN_S = 2.0

WRAPPER = f"""#!/bin/sh
export {SLURM_NUMBER_VARIABLE}="$SLURM_JOB_ID"
for name in JOB_ID JOB_NUM_NODES ARRAY_JOB_ID ARRAY_TASK_ID; do
    eval "value=\\${{RMS_$name-}}"
    if [ -n "$value" ]; then export "SLURM_$name=$value"; else unset "SLURM_$name"; fi
done
exec /bin/sh -c {shlex.quote(KEEP_STATUS)} job "$RMS_SCRIPT" "$@"
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
        """Return a record, None where there is none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def next(self) -> SubmissionRecord:
        """Return the record of another job of Slurm's for the same job of the RMS."""
        used = [*self.before, *([] if self.number is None else [self.number])]
        return SubmissionRecord(time.time(), used, held=self.held)

    @property
    def open(self) -> bool:
        """Whether a daemon before may have submitted it without writing down its number."""
        return self.number is None and not self.closed


@dataclass(kw_only=True)
class SlurmJob(ManagedProcess):
    """A job script that Slurm runs.

    Attributes:
        name: in Slurm's queue.
        record: what is kept of it, in ``record_file``.
        hosts: the nodes that were asked for.
        submission: sbatch's answer, until it is taken in.
        known_s: the monotonic clock when its number was known.
        end_requested: whether this daemon has asked it to end.
        withdrawn: whether it was taken out of Slurm's queue, because it had to wait.
        metered: the nodes that meters were started on.
        completing_s: the monotonic clock when Slurm was first seen to clean up after it.
        finished: whether Slurm is done with it.
        wait_reason: Slurm's reason why it waits, "" where it does not.
        energy_j: Slurm's own measurement, once it was asked for.
        unsaved: whether its record could not be written, and is to be.
    """

    name: str
    record: SubmissionRecord
    record_file: Path
    hosts: tuple[str, ...] = ()
    started: bool = False
    end_state: str = ""
    end_reason: str = ""
    submission: Future[int] | None = None
    known_s: float = 0.0
    end_requested: bool = False
    withdrawn: bool = False
    metered: tuple[str, ...] = ()
    completing_s: float | None = None
    finished: bool = False
    wait_reason: str = ""
    energy_j: Future[float] | None = None
    unsaved: bool = False

    def status(self) -> int | None:
        """Return the script's status once Slurm is done with the job."""
        if not self.finished:
            return None
        written = self.written_status()
        return 1 if written is None else written

    @property
    def number(self) -> int | None:
        """Slurm's number of it, None while it has none."""
        answer = self.submission
        if answer is None or not answer.done() or answer.exception() is not None:
            return self.record.number
        return answer.result() or None

    @property
    def held(self) -> tuple[str, ...]:
        """The nodes that it is known to have."""
        return self.record.held[-1][1] if self.record.held else ()

    def keep(self) -> None:
        """Write its record; on a full disk later."""
        self.unsaved = True
        with contextlib.suppress(OSError):
            self.save()

    def save(self) -> None:
        """Write its record.

        Raises:
            OSError: it cannot be.
        """
        self.record_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.record_file, msgspec.json.encode(self.record))
        self.unsaved = False

    def enter_nodes(self, hosts: Sequence[str], at_s: float | None = None) -> None:
        """Enter which nodes it has, since when Slurm says; now for None."""
        held, now = self.record.held, tuple(hosts)
        if self.finished and now:  # known late: what it had at its end
            if len(held) > 1 and held[-2][1] != now and at_s is not None:
                held.insert(-1, (at_s, now))
                self.keep()
        elif self.held != now:
            held.append((time.time() if at_s is None else at_s, now))
            self.keep()

    def end(self, state: str) -> None:
        """Enter that Slurm is done with it."""
        self.finished, code = True, self.written_status()
        if self.end_requested:
            return
        forgotten = state == VANISHED and code is not None  # the script's own status is left
        if state in ("COMPLETED", "FAILED") or code == 0 or forgotten:
            self.started = True
        else:
            self.end_state = END_STATES.get(state, NODES_LOST)
            self.end_reason = f"Slurm says {state}"


@dataclass(frozen=True)
class SubmitCall:
    """How a job is handed to sbatch.

    Attributes:
        output_folder: of what it prints; made before.
        maybe_submitted: whether a daemon before may have done it: then the queue is looked through
            first, which takes long where there are many jobs.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    output_folder: Path
    maybe_submitted: bool


def submit(executor: Executor, job: SlurmJob, call: SubmitCall) -> int:
    """Submit a job unless it has been; on a thread. Slurm that is away is asked again.

    Returns:
        Its number in Slurm; 0 where it was asked to end before.

    Raises:
        SlurmError: refused, or its record could not be written, or the daemon ends: its record
            stays open, and the next daemon looks for it first.
    """
    slurm, record, search = executor.slurm, job.record, call.maybe_submitted
    try:
        if not search and job.status_file is not None:
            job.status_file.unlink(missing_ok=True)
        call.output_folder.mkdir(parents=True, exist_ok=True)
        job.save()
        with job.record_file.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise SlurmError(f"expected to write down that {job.name} starts: {error}") from None
    while True:
        try:
            for row in slurm.jobs("--states=all", f"--user={slurm.user}") if search else ():
                new = row.job_id not in record.before and row.name == job.name
                if new and (row.submit_s or 0.0) >= record.since_s - 1:
                    return row.job_id
            return (
                0
                if job.end_requested
                else slurm.submit(*call.arguments, environment=call.environment)
            )
        except SlurmError as error:
            if error.meaning is not Meaning.UNREACHABLE:
                raise
            if executor.closing.wait(SUBMIT_AGAIN_S):
                raise
        search = True
