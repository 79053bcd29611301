"""Engine ``slurm``: every job of the RMS is a job of Slurm's, whose nodes change while it runs.

Nothing here waits for Slurm: commands go to threads, and the daemon, which looks at its jobs all
the time, sees what they have brought. What a restarted daemon must know of a job is in a ticket
beside its script, written before sbatch is called and again when it has answered, so that a job
is submitted once whatever happens in between: its name is looked for first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rms.formats.jobscript import parse_script
from rms.launch.base import NODES_LOST, ManagedProcess, PendingCall, ScriptLaunch, hosts_of
from rms.launch.processes import INSTANCE_VARIABLE
from rms.launch.slurm import meters, options, resizing
from rms.launch.slurm.commands import Meaning, SlurmError
from rms.launch.slurm.meters import Meters
from rms.launch.slurm.output import QueuedJob
from rms.launch.slurm.poller import Look, Watcher
from rms.launch.slurm.steps import SlurmLauncher
from rms.launch.slurm.submitted import OURS, VANISHED, WRAPPER, SlurmJob, SubmissionRecord

PATIENCE_S = 5.0
"""How long a job may wait for nodes that were free before it goes to others."""

CONTESTED_S = 20.0
"""How long nodes that it waited for in vain count as somebody else's."""

COMPLETING_S = 30.0
BOOKED_S = 5.0
"""From a job's end until accounting has all of it."""

AGAIN_S = 2.0
ASK_S = 0.25
"""Time between two looks at whether any job's end or start is to be expected."""

FEW = 100
"""Of so many jobs the ends are looked for in files; of more, Slurm has one to tell all the time."""

RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
FOR_NODES = ("Resources", "Priority", "None", "ReqNodeNotAvail", "Nodes_required", "Resv")


@dataclass
class JobsLauncher(SlurmLauncher):
    """Runs each job as one of Slurm's.

    Attributes:
        partition: where jobs go that do not say so, "" for Slurm's own choice, ``default``.
        limits_s: the longest time limit of each partition.
        grace_s: what a job is given to end by itself; Slurm's limit comes after that.
        no_grow, no_shrink: why this site changes no running job, "" where it does.
        measures: whether Slurm's own plugin measures energy here.
    """

    partition: str = ""
    max_concurrent_resizes = 4
    """More would wait for each other: see :class:`rms.launch.slurm.executor.RateLimiter`."""

    default: str = ""
    limits_s: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 10.0
    no_grow: str = ""
    no_shrink: str = ""
    measures: bool = False
    shared_filesystem = True
    requeue_by_default = True
    unavailable_label = "taken"
    _jobs: dict[str, SlurmJob] = field(default_factory=dict)
    _contested: dict[str, float] = field(default_factory=dict)
    _growing: dict[str, PendingCall] = field(default_factory=dict)
    _killed: dict[str, float] = field(default_factory=dict)
    _metered: deque[tuple[float, SlurmJob]] = field(default_factory=deque)
    meter_token: str = field(default_factory=lambda: secrets.token_hex(16))
    _past: dict[str, SubmissionRecord | None] = field(default_factory=dict)
    _urgent: bool = False
    _asked_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._watcher = Watcher(self.executor, self._is_own)
        self._wrapper = self.state / "bin" / "slurm-job"
        self._wrapper.write_text(WRAPPER)
        self._wrapper.chmod(0o755)

        self._meters = Meters(self._start_meter, self.step_options(self.name(meters.NAME)))

    def _is_own(self, name: str) -> bool:
        mark = self.instance_id[:8]
        return name.startswith((f"rms.{mark}.", f"{resizing.DONOR}.{mark}."))

    def donor(self, job: str) -> str:
        """Return the name of the donors of a job."""
        return f"{resizing.DONOR}.{self.instance_id[:8]}.{job}"

    def allocation(self, job: str) -> int | None:
        """Return a job's number in Slurm, None while it has none."""
        child = self._jobs.get(job)
        if child is None:
            return None
        self._settle(job, child)
        return child.ticket.number

    # --- a job's script ----------------------------------------------------------------------

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Submit a job script, or find it submitted already."""
        ticket = self._ticket(job)
        known = ticket is not None and ticket.number is None and not ticket.closed
        if ticket is None or not known:
            used = [] if ticket is None else ticket.before
            used += [] if ticket is None or ticket.number is None else [ticket.number]
            ticket = SubmissionRecord(time.time(), used, held=[] if ticket is None else ticket.held)
        own = parse_script(launch.script).ignored
        partition = options.partition_of(own) or self.partition or self.default
        ticket.donor = options.of_donor(own, self.partition)
        if ticket.before and not known:  # at once: the one before must not be taken for this one
            self._keep(job, ticket)
        hosts = tuple(hosts_of([slot for node in launch.nodes for slot in node]))
        child = SlurmJob(0, None, self.status_file(job), self.name(job), hosts, ticket=ticket)
        words = [
            *options.passed(own, self.partition),
            *["--exclusive", "--no-requeue", f"--nodes={len(hosts)}", f"--job-name={child.name}"],
            *[f"--nodelist={','.join(hosts)}", f"--chdir={launch.cwd}", "--open-mode=append"],
            "--output=" + str(launch.output).replace("%", "%%"),
            *self._limit(partition, launch.limit_s),
            str(self._wrapper),
        ]
        full = {
            **options.environment(launch.env),
            **self.script_env(job, launch.env.get("PATH", os.defpath)),
            "RMS_SCRIPT": str(launch.script),
        }
        child.asked = self.executor.ask(
            lambda: self._submit(job, child, launch.output.parent, words, full, look=known)
        )
        self._jobs[job] = child
        self._past.pop(job, None)
        self._killed.pop(job, None)
        return child

    def _limit(self, partition: str, limit_s: float | None) -> list[str]:
        """Return Slurm's time limit: what the RMS gives and a minute, if the partition allows."""
        if limit_s is None:
            return []
        most_s = self.limits_s.get(partition, float("inf"))
        seconds = int(min(max(limit_s, most_s), limit_s + self.grace_s + 60))
        return [f"--time={-(-seconds // 60)}"]

    def _submit(
        self,
        job: str,
        child: SlurmJob,
        output: Path,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        look: bool,
    ) -> int:
        """Submit a job unless it has been; on a thread. Slurm that is away is asked again.

        Args:
            output: folder of what it prints.
            look: whether it may have been: the queue is long where there are many jobs.
        """
        slurm, ticket = self.executor.slurm, child.ticket
        try:
            if not look:
                self.status_file(job).unlink(missing_ok=True)
            output.mkdir(parents=True, exist_ok=True)
            self._keep(job, ticket)
            with self._path(job).open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise SlurmError(f"expected to write down that job {job} starts: {error}") from None
        while True:
            try:
                for row in slurm.jobs("--states=all", f"--user={slurm.user}") if look else ():
                    new = row.job_id not in ticket.before and row.name == child.name
                    if new and (row.submit_s or 0.0) >= ticket.since_s - 1:
                        return row.job_id
                return 0 if child.told else slurm.submit(*words, environment=env)
            except SlurmError as error:
                if error.meaning is not Meaning.UNREACHABLE:
                    raise
            look = True
            time.sleep(AGAIN_S)

    def _settle(self, job: str, child: SlurmJob) -> None:
        """Take in the answer to a submission."""
        if child.asked is None or not child.asked.done():
            return
        asked, child.asked = child.asked, None
        try:
            child.ticket.number = asked.result()
        except SlurmError as error:
            child.over, child.end_reason = True, str(error)
            if error.meaning is Meaning.LATER:
                self._give_up(job, child)
            return
        if not child.ticket.number:  # told to end before it was submitted
            child.over, child.ticket.number = True, None
            return
        child.known_s = time.monotonic()
        self._keep(job, child.ticket)

    def _give_up(self, job: str, child: SlurmJob) -> None:
        """Let a job that did not get its nodes be requeued; keep others off them for a while."""
        child.end_state, child.ticket.closed = NODES_LOST, True
        self._keep(job, child.ticket)
        until_s = time.monotonic() + CONTESTED_S
        self._contested.update(dict.fromkeys(child.hosts, until_s))

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job after a restart of the daemon; the next look tells how it is."""
        ticket = self._ticket(job)
        if ticket is None or ticket.number is None or ticket.closed:
            return None
        child = SlurmJob(0, None, self.status_file(job), self.name(job), ticket=ticket)
        child.known_s = time.monotonic()
        self._jobs[job] = child
        return child

    def _path(self, job: str) -> Path:
        return self.state / "jobs" / job / "slurm.json"

    def _ticket(self, job: str) -> SubmissionRecord | None:
        return SubmissionRecord.read(self._path(job))

    def _keep(self, job: str, ticket: SubmissionRecord) -> None:
        ticket.write(self._path(job))

    # --- what Slurm says ---------------------------------------------------------------------

    def unavailable(self) -> Collection[str] | None:
        """Follow what has become of all jobs; return the nodes that are not to be had now."""
        live = {job: child for job, child in self._jobs.items() if not child.over}
        for job, child in live.items():
            self._settle(job, child)
        if time.monotonic() >= self._asked_s + ASK_S:
            self._asked_s = time.monotonic()
            few = len(live) <= FEW
            self._urgent = bool(self._growing) or any(
                not child.started or child.told or (few and child.written_status() is not None)
                for child in live.values()
            )
        while self._metered and self._metered[0][0] < time.monotonic():
            self._read_energy(self._metered.popleft()[1])
        look = self._watcher.poll(urgent=self._urgent)
        if look is None:
            return None
        for job, child in live.items():
            if not child.over and child.ticket.number is not None:
                self._follow(job, child, look)
        self._meters.watch({c.ticket.number or 0 for c in live.values() if not c.over})
        self._sweep(look)
        now = time.monotonic()
        self._contested = {n: until for n, until in self._contested.items() if until > now}
        return look.unavailable | self._contested.keys()

    def _follow(self, job: str, child: SlurmJob, look: Look) -> None:
        """See what has become of a job."""
        row = look.own.get(child.ticket.number or 0)
        if row is None or row.name != child.name:
            if look.begun_s > child.known_s:
                self._over(job, child, VANISHED)
        elif row.state in RUNNING:
            child.started, child.reason = True, ""
            if not child.holds:
                self._holds(job, child, row.hosts, row.start_s)
            if self.meter_token and child.metered != child.holds:
                self._meters.on(row.job_id, set(child.holds) - set(child.metered))
                child.metered = child.holds
        elif row.state in ("PENDING", "CONFIGURING"):
            self._waits(job, child, row)
        elif row.state == "COMPLETING":
            child.completing_s = child.completing_s or look.begun_s
            if look.begun_s > child.completing_s + COMPLETING_S:
                self._over(job, child, row.state)
        else:
            if row.hosts and not child.holds:
                self._holds(job, child, row.hosts, row.start_s)
            self._over(job, child, row.state)

    def _waits(self, job: str, child: SlurmJob, row: QueuedJob) -> None:
        """A job that Slurm has not started: one that waits for others' nodes goes elsewhere."""
        child.reason = row.reason
        if child.withdrawn or child.told or row.state != "PENDING":
            return
        for_nodes = row.reason.split(",")[0].startswith(FOR_NODES)
        if child.started or (for_nodes and time.monotonic() > child.known_s + PATIENCE_S):
            child.withdrawn = True
            self._cancel(row.job_id, only_pending=True)

    def _over(self, job: str, child: SlurmJob, state: str) -> None:
        """Enter that Slurm is done with a job."""
        if child.withdrawn and state == "CANCELLED" and not child.started and not child.told:
            child.over, child.end_reason = True, f"Slurm had it wait ({child.reason})"
            self._give_up(job, child)
            return
        child.end(state)
        if child.holds:
            self._holds(job, child, ())
        if child.end_state == NODES_LOST:
            child.ticket.closed = True
            self._keep(job, child.ticket)
        if self.measures:
            self._metered.append((time.monotonic() + BOOKED_S, child))

    def _read_energy(self, child: SlurmJob) -> None:
        """Ask what Slurm has measured of a job that is over."""
        slurm, number = self.executor.slurm, child.ticket.number
        if number is not None:
            child.joules = self.executor.ask(lambda: slurm.consumed_j(number))

    def _holds(
        self, job: str, child: SlurmJob, hosts: Sequence[str], at_s: float | None = None
    ) -> None:
        """Enter which nodes a job has, since when Slurm says."""
        held = child.ticket.held
        if child.over and hosts:  # news of what it had at its end
            if len(held) > 1 and held[-2][1] != tuple(hosts) and at_s is not None:
                held.insert(-1, (at_s, tuple(hosts)))
                self._keep(job, child.ticket)
        elif child.holds != tuple(hosts):
            held.append((time.time() if at_s is None else at_s, tuple(hosts)))
            self._keep(job, child.ticket)

    def _sweep(self, look: Look) -> None:
        """Cancel donors that nobody waits for: what a daemon that was killed has left."""
        for row in look.own.values():
            job = row.name.rpartition(".")[2]
            stray = row.name == self.donor(job) and job not in self._growing
            if stray and row.state in ("PENDING", "CONFIGURING", "RUNNING"):
                self._cancel(row.job_id)

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
        child, number = self._jobs[job], self.allocation(job)
        hosts = tuple(dict.fromkeys((*have, *wanted)))
        if number is None:
            return lambda: "Slurm has not told its number yet"
        executor, donor = self.executor, resizing.Donor(self.donor(job), child.ticket.donor)
        errand = resizing.patiently(
            executor, lambda: resizing.grow(executor, number, hosts, wanted, donor), give_up=True
        )
        return self._following(job, child, errand)

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Take nodes that a running job no longer needs from it."""
        child, number = self._jobs[job], self.allocation(job)
        if number is None or child.over:
            return None
        executor = self.executor
        errand = resizing.patiently(
            executor, lambda: resizing.shrink(executor, number, hosts), give_up=False
        )
        return self._following(job, child, errand)

    def _following(
        self, job: str, child: SlurmJob, errand: Callable[[], resizing.Answer | None]
    ) -> PendingCall:
        """Return an errand that enters which nodes the job has when it is done."""

        def ask() -> str | None:
            found = errand()
            if found is None:
                return None
            self._growing.pop(job, None)
            now = found.job
            if now is not None and now.hosts and now.resized_s is not None:
                # A job that is just ending is shown with fewer nodes and fewer: no change of ours.
                since_s = max((at_s for at_s, hosts in child.ticket.held if hosts), default=0.0)
                if now.resized_s > since_s:
                    self._holds(job, child, now.hosts, now.resized_s)
            return found.words

        self._growing[job] = ask
        return ask

    # --- worlds ------------------------------------------------------------------------------

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options; it runs here, for a job whose line was read on a node."""
        found = super().world_options(job, launch, slots, env)
        if self.allocation(job) is None:
            env["SLURM_JOB_ID"] = env.get(OURS, "")
        if "SLURM_CONF" in self.executor.slurm.outer:
            env["SLURM_CONF"] = self.executor.slurm.outer["SLURM_CONF"]
        return found

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job to checkpoint and end; one that waits is taken out of Slurm's queue."""
        child = self._jobs.get(job)
        if child is not None:
            child.told = True
        if worlds:
            super().terminate(job, worlds)
        elif child is not None and not child.over:
            slurm, number, started = self.executor.slurm, self.allocation(job), child.started
            if number is not None:
                self.executor.ask(lambda: slurm.tell(number) if started else slurm.cancel(number))

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job, or of one of its launches, at once."""
        super().kill(job, launch)
        child = self._jobs.get(job)
        if launch is not None or child is None or child.over:
            return
        child.told = True
        now, number = time.monotonic(), self.allocation(job)
        if number is not None and now > self._killed.get(job, 0.0) + AGAIN_S:
            self._killed[job] = now
            self._cancel(number)

    def _cancel(self, number: int, *, only_pending: bool = False) -> None:
        slurm = self.executor.slurm
        self.executor.ask(lambda: slurm.cancel(number, only_pending=only_pending))

    def answers(self) -> bool:
        """Return whether Slurm answered when it was asked last."""
        return not self._watcher.trouble

    def close(self) -> None:
        """End the meters; let what is under way at Slurm end."""
        self._meters.close()
        self.executor.close()

    def open(self) -> None:
        """End the meters of a daemon that was killed: their token is not this one's."""
        super().kill(meters.NAME)

    def _start_meter(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        outer = self.executor.slurm.outer
        plain = {k: v for k, v in outer.items() if not k.startswith(("SLURM_", "RMS_"))}
        env = {
            **plain,
            **{key: outer[key] for key in ("SLURM_CONF",) if key in outer},
            INSTANCE_VARIABLE: f"{self.instance_id}:{meters.NAME}",
            "RMS_SERVER": self.server,
            "RMS_TOKEN": self.meter_token,
        }
        return self._start(command, str(self.state), env, self.state / "meter.log", [])

    # --- words -------------------------------------------------------------------------------

    def job_details(self, job: str) -> dict[str, Any]:
        """Return a job's number in Slurm, the nodes it held there, and Slurm's own energy."""
        child = self._jobs.get(job)
        if child is None and job not in self._past:  # over before this daemon began
            self._past[job] = self._ticket(job)
        ticket = self._past[job] if child is None else child.ticket
        if ticket is None:
            return {}
        found: dict[str, Any] = {
            "slurm_job": ticket.number,
            "waits": "" if child is None or child.over else child.reason,
            "held": [{"at_s": at_s, "nodes": list(hosts)} for at_s, hosts in ticket.held],
        }
        if child is not None and child.joules is not None and child.joules.done():
            with contextlib.suppress(SlurmError):
                found["consumed_energy_j"] = child.joules.result()
        return found
