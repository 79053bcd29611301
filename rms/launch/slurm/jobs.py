"""Engine ``slurm``: every job of the RMS is a job of Slurm's, whose nodes change while it runs.

Nothing here waits for Slurm: commands go to threads, and what they have brought is taken in when
the daemon's loop polls.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rms.formats.jobscript import parse_script
from rms.launch.base import ManagedProcess, PendingCall, ScriptLaunch, hosts_of
from rms.launch.local import METER
from rms.launch.processes import INSTANCE_VARIABLE
from rms.launch.slurm import commands, queue
from rms.launch.slurm.commands import SlurmError
from rms.launch.slurm.launcher import JobMeters, SlurmLauncher
from rms.launch.slurm.queue import (
    SLURM_NUMBER_VARIABLE,
    WRAPPER,
    JobTracker,
    QueuePoller,
    SlurmJob,
    SubmissionRecord,
    SubmitCall,
    submit,
)
from rms.wire.users import NodesHeld, SlurmRow

CANCEL_AGAIN_S = 2.0


@dataclass
class JobsLauncher(SlurmLauncher):
    """Runs each job as one of Slurm's.

    Attributes:
        partition: where jobs go that name none, "" for Slurm's own choice, ``default``.
        limits_s: the longest time limit of each partition.
        grace_s: what a job is given to end by itself; Slurm's limit comes after that.
        no_grow, no_shrink: why this site changes no running job, "" where it does.
        measures: whether Slurm's own plugin measures energy here.
    """

    partition: str = ""
    default: str = ""
    limits_s: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 10.0
    no_grow: str = ""
    no_shrink: str = ""
    measures: bool = False
    meter_token: str = field(default_factory=lambda: secrets.token_hex(16))
    _cancelled_s: dict[str, float] = field(default_factory=dict)
    _past: dict[str, SubmissionRecord | None] = field(default_factory=dict)
    _unavailable: frozenset[str] | None = None

    requeue_by_default = True
    unavailable_label = "taken"

    max_concurrent_resizes = 4
    """More would wait for each other: see :class:`rms.launch.slurm.commands.RateLimiter`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wrapper = self.shims / "slurm-job"
        self._wrapper.write_text(WRAPPER)
        self._wrapper.chmod(0o755)
        self._poller = QueuePoller(self.executor, self._is_own)
        meters = JobMeters(self._start_meter, self.step_options(self.name(METER)), self.meters)
        self._meters = meters if self.meter_token else None
        self._tracker = JobTracker(self.executor, self._meters, self.measures)

    def _is_own(self, name: str) -> bool:
        instance = self.instance_id[:8]
        return name.startswith((f"rms.{instance}.", f"{queue.DONOR}.{instance}."))

    def donor(self, job: str) -> str:
        """Return the name of the donors of a job."""
        return f"{queue.DONOR}.{self.instance_id[:8]}.{job}"

    def allocation(self, job: str) -> int | None:
        """Return a job's number in Slurm, None while it has none."""
        known = self._tracker.jobs.get(job)
        return None if known is None else known.number

    # --- what runs beside the jobs -----------------------------------------------------------

    def open(self) -> None:
        """End the meters of a daemon that was killed: their token is not this one's."""
        super().kill(METER)

    def poll(self) -> None:
        """Take in what Slurm has reported of all jobs, and ask again when it is time."""
        super().poll()
        urgent = self._tracker.take_answers()
        snapshot = self._poller.poll(urgent=urgent)
        if snapshot is not None:
            self._unavailable = self._tracker.follow(snapshot, self.donor)

    def close(self) -> None:
        """End the meters; let what is under way at Slurm end."""
        if self._meters is not None:
            self._meters.close()
        self.executor.close()

    def meter_env(self) -> dict[str, str]:
        """Return the environment of the steps that read meters."""
        outer = self.executor.slurm.outer
        plain = {k: v for k, v in outer.items() if not k.startswith(("SLURM_", "RMS_"))}
        return {
            **plain,
            **{key: outer[key] for key in ("SLURM_CONF",) if key in outer},
            INSTANCE_VARIABLE: f"{self.instance_id}:{METER}",
        }

    # --- a job's script ----------------------------------------------------------------------

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Submit a job script, or find it submitted already."""
        before = self._record(job)
        maybe_submitted = before is not None and before.open
        if before is None:
            record = SubmissionRecord(time.time())
        else:
            record = before if maybe_submitted else before.next()
        own = parse_script(launch.script).slurm_options
        record.donor = commands.donor_options(own, self._partition(own, launch.env))
        child = self._job(job, record)
        child.hosts = tuple(hosts_of([slot for node in launch.nodes for slot in node]))
        if record.before and not maybe_submitted:
            child.keep()  # at once: the one before must not be taken for this one
        call = SubmitCall(
            self._arguments(child, own, launch),
            {
                **commands.environment(launch.env),
                **self.script_env(job, launch.env.get("PATH", os.defpath)),
                "RMS_SCRIPT": str(launch.script),
            },
            launch.output.parent,
            maybe_submitted,
        )
        executor = self.executor
        child.submission = executor.ask(lambda: submit(executor, child, call))
        self._past.pop(job, None)
        self._cancelled_s.pop(job, None)
        return child

    def _arguments(self, child: SlurmJob, own: Sequence[str], launch: ScriptLaunch) -> list[str]:
        """Return sbatch's options and script; ``own`` are those of the script for Slurm alone."""
        partition = self._partition(own, launch.env) or self.default
        errors = launch.errors
        return [
            *commands.sbatch_options(own, self.partition),
            *["--exclusive", "--no-requeue", f"--nodes={len(child.hosts)}"],
            *[f"--job-name={child.name}", f"--nodelist={','.join(child.hosts)}"],
            *[f"--chdir={launch.cwd}", "--open-mode=append"],
            "--output=" + str(launch.output).replace("%", "%%"),
            *([] if errors is None else ["--error=" + str(errors).replace("%", "%%")]),
            *self._limit(partition, launch.limit_s),
            str(self._wrapper),
            *launch.arguments,
        ]

    def unheeded(self, own: Sequence[str]) -> list[str]:
        """Return which of a script's options sbatch does not get."""
        handed_on = commands.sbatch_options(own)
        return [word for word in own if word not in handed_on]

    def longest_s(self, own: Sequence[str], env: Mapping[str, str]) -> float:
        """Return the time limit of the partition of a job."""
        return self.limits_s.get(self._partition(own, env) or self.default, float("inf"))

    def _partition(self, own: Sequence[str], env: Mapping[str, str]) -> str:
        """Return the partition of a job, "" for the default one."""
        return commands.partition_of(own) or self.partition or env.get("SBATCH_PARTITION", "")

    def _limit(self, partition: str, limit_s: float | None) -> list[str]:
        """Return Slurm's time limit: what the RMS gives and a minute, if the partition allows."""
        if limit_s is None:
            return []
        most_s = self.limits_s.get(partition, float("inf"))
        seconds = int(min(max(limit_s, most_s), limit_s + self.grace_s + 60))
        return [f"--time={-(-seconds // 60)}"]

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job after a restart of the daemon; the next snapshot tells how it is."""
        record = self._record(job)
        if record is None or record.number is None or record.closed:
            return None
        child = self._job(job, record)
        child.known_s = time.monotonic()
        return child

    def _job(self, job: str, record: SubmissionRecord) -> SlurmJob:
        """Return a job of Slurm's that is tracked from now on."""
        found = SlurmJob(
            0,
            None,
            self.status_file(job),
            name=self.name(job),
            record=record,
            record_file=self._record_file(job),
        )
        self._tracker.jobs[job] = found
        return found

    def _record_file(self, job: str) -> Path:
        return self.state / "jobs" / job / "slurm.json"

    def _record(self, job: str) -> SubmissionRecord | None:
        return SubmissionRecord.read(self._record_file(job))

    # --- resizes -----------------------------------------------------------------------------

    def resize_refusal(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> str:
        """Return why this site does not let a running job go over to other nodes."""
        if self.no_grow and not set(wanted) <= set(have):
            return self.no_grow
        if self.no_shrink and not set(have) <= set(wanted):
            return self.no_shrink
        return ""

    def grant(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> PendingCall | None:
        """Give a running job the nodes it lacks, by a donor; refused where it cannot be."""
        number = self.allocation(job)
        hosts = tuple(dict.fromkeys((*have, *wanted)))
        if number is None:
            return lambda: "Slurm has not told its number yet"
        executor = self.executor
        donor = queue.Donor(self.donor(job), self._tracker.jobs[job].record.donor)
        change = queue.Retried(
            executor,
            lambda: queue.grow(executor, number, hosts, wanted, donor),
            give_up=True,
        )
        return self._tracker.resize(job, change)

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Take nodes that a running job no longer needs from it."""
        number = self.allocation(job)
        if number is None or self._tracker.jobs[job].finished:
            return None
        executor = self.executor
        change = queue.Retried(
            executor, lambda: queue.shrink(executor, number, hosts), give_up=False
        )
        return self._tracker.resize(job, change)

    # --- worlds ------------------------------------------------------------------------------

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options; it runs here, for a job whose line was read on a node."""
        found = super().world_options(job, launch, slots, env)
        if self.allocation(job) is None:
            env["SLURM_JOB_ID"] = env.get(SLURM_NUMBER_VARIABLE, "")
        if "SLURM_CONF" in self.executor.slurm.outer:
            env["SLURM_CONF"] = self.executor.slurm.outer["SLURM_CONF"]
        return found

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job to checkpoint and end; one that waits is taken out of Slurm's queue."""
        known = self._tracker.jobs.get(job)
        if known is not None:
            known.end_requested = True
        if worlds:
            super().terminate(job, worlds)
        elif known is not None and not known.finished and known.number is not None:
            slurm, number, started = self.executor.slurm, known.number, known.started
            self.executor.ask(
                lambda: slurm.signal_script(number) if started else slurm.cancel(number)
            )

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job, or of one of its launches, at once."""
        super().kill(job, launch)
        known = self._tracker.jobs.get(job)
        if launch is not None or known is None or known.finished:
            return
        known.end_requested = True
        now, number = time.monotonic(), known.number
        if number is not None and now > self._cancelled_s.get(job, 0.0) + CANCEL_AGAIN_S:
            self._cancelled_s[job] = now
            self._tracker.cancel(number)

    # --- what is known -----------------------------------------------------------------------

    def controller_answers(self) -> bool:
        """Return whether Slurm answered when it was asked last."""
        return not self._poller.trouble

    def unavailable(self) -> Collection[str] | None:
        """Return the nodes that were not to be had in the last snapshot of Slurm's queue."""
        return self._unavailable

    def job_details(self, job: str) -> SlurmRow:
        """Return a job's number in Slurm, the nodes it held there, and Slurm's own energy."""
        known = self._tracker.jobs.get(job)
        if known is None and job not in self._past:  # over before this daemon began
            self._past[job] = self._record(job)
        record = self._past[job] if known is None else known.record
        if record is None:
            return SlurmRow()
        consumed_j: float | msgspec.UnsetType = msgspec.UNSET
        if known is not None and known.energy_j is not None and known.energy_j.done():
            with contextlib.suppress(SlurmError):
                consumed_j = known.energy_j.result()
        return SlurmRow(
            slurm_job=record.number,
            waits="" if known is None or known.finished else known.wait_reason,
            held=[NodesHeld(at_s, list(hosts)) for at_s, hosts in record.held],
            consumed_energy_j=consumed_j,
        )
