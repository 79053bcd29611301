"""Records of Slurm's accounting, to compare with those of the RMS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rms.launch.slurm import output
from rms.launch.slurm.commands import Slurm

RECORDS_FORMAT = "JobIDRaw,JobID,State,NNodes,NodeList,Submit,Start,End,JobName"


@dataclass(frozen=True)
class AccountingRecord:
    """A job, or the time between two of its resizes, in accounting."""

    job_id: int
    name: str
    state: str  # RESIZING where the job went on at another size
    nodes: int
    hosts: tuple[str, ...]
    submit_s: float | None
    start_s: float | None
    end_s: float | None


def records(slurm: Slurm, jobs: Sequence[int]) -> list[AccountingRecord]:
    """Return the records of jobs in accounting, oldest first; a resized job has several.

    Accounting counts in whole seconds: of two resizes within one, it keeps the last only.
    """
    done = slurm.call(
        *["sacct", "--duplicates", f"--jobs={','.join(map(str, jobs))}"],
        *["--noheader", "--parsable2", f"--format={RECORDS_FORMAT}"],
    )
    return records_from_text(done.out)


def records_from_text(text: str) -> list[AccountingRecord]:
    """Read ``sacct --noheader --parsable2 --duplicates --format=RECORDS_FORMAT``, without steps."""
    rows = []
    for words in output._rows(text, RECORDS_FORMAT.count(",") + 1):
        job, _, state, nodes, names, submit, start, end, name = words
        if "." in job:
            continue
        submit_s, start_s = output._time(submit), output._time(start)
        rows.append(
            AccountingRecord(
                job_id=output._whole(job),
                name=name,
                state=state.partition(" ")[0],  # CANCELLED by 1000
                nodes=output._whole(nodes),
                hosts=output.hosts(names),
                submit_s=submit_s,
                # After a shrink Slurm 24.11 has the job's own start here, and the shrink's there.
                start_s=None if start_s is None else max(start_s, submit_s or 0.0),
                end_s=output._time(end),
            )
        )
    # Slurm's own order is arbitrary within a second.
    return sorted(
        rows, key=lambda row: (math.inf if row.start_s is None else row.start_s, row.job_id)
    )
