"""Job scripts: started, cancelled, requeued, concluded, and the last line of a job's output."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from rms.core.model.events import Ended, Event, Reopened, Requeued, Start, Started
from rms.core.model.jobs import Job, JobId, JobState, Node
from rms.daemon.store.archive import energy_rows, is_settled
from rms.daemon.store.context import Context, Handle, describe, log
from rms.daemon.store.journal import JournalError
from rms.daemon.store.notes import EndingNote, EndNote, Notes, ScriptNote, SignalNote, SummaryNote
from rms.daemon.store.record import REQUEUED, JobRuntime, ResizeNote
from rms.formats.energy import OwnerEnergy, cost_words, lost_words
from rms.launch.base import NODES_LOST, LaunchError, ScriptLaunch
from rms.launch.local import adapter_command
from rms.launch.processes import check_own_file
from rms.wire.messages import PROCESSORS_VARIABLE, SLOTS_VARIABLE, TOKEN_VARIABLE
from rms.wire.users import restart_words

SUSPECT_S = 60.0  # time for which nodes of a run that hung get no job, where they are remote
START_S = 0.02  # time budget for starting jobs, after which requests are answered for as long


class Scripts:
    """Starts and ends job scripts; while it is ``stopping``, it starts none."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self.stopping = False
        self._starts: deque[Start] = deque()
        self._ends: dict[JobId, str] = {}
        self._since_s = 0.0

    # --- starts ------------------------------------------------------------------------------

    def begin_slice(self) -> None:
        """Reset the time budget for starting jobs."""
        self._since_s = self._context.now()

    def enqueue(self, decision: Start) -> None:
        """Start a job, now or later."""
        self._starts.append(decision)
        self.start_some()

    def start_some(self) -> None:
        """Start jobs within the time budget; the rest in the next round, or after a restart."""
        context = self._context
        while self._starts and not self.stopping and context.now() <= self._since_s + START_S:
            decision = self._starts.popleft()
            running = context.state.running.get(decision.job)
            job = context.jobs[decision.job]
            if running is not None and running.nodes == decision.nodes and job.script is None:
                self.start(job, decision.nodes)

    @property
    def starting(self) -> bool:
        """Whether starts are left for :meth:`start_some`."""
        return bool(self._starts) and not self.stopping

    def start(self, job: JobRuntime, nodes: tuple[Node, ...]) -> None:
        """Start a job. If that fails, the job has failed."""
        try:
            self.run(job, nodes)
        except JournalError:
            raise
        except Exception as error:
            self.fail(job, str(error) if isinstance(error, LaunchError) else describe(error))
            return
        if job.script is not None and job.script.started:
            self._handle(Started(self._context.time(), job.id))

    def run(self, job: JobRuntime, nodes: tuple[Node, ...]) -> None:
        """Run a job's script on nodes, or raise a LaunchError."""
        context, submission = self._context, job.submission
        if not submission.array:
            raise LaunchError("its submission is missing from the journal")
        output, errors, adapter = *job.files, list[str]()
        if submission.resize_by:
            adapter = adapter_command(submission.resize_by, context.launcher.shims)
        launch = ScriptLaunch(
            script=context.launcher.state / "jobs" / submission.array / "script",
            cwd=submission.cwd,
            env=_environment(context, job, nodes),
            output=output,
            nodes=[context.cluster.slots[node] for node in nodes],
            limit_s=context.state.running[job.id].spec.limit_s,
            arguments=submission.arguments,
            errors=errors,
            survives=bool(submission.survive),
            adapter=adapter,
        )
        try:
            for path in filter(None, (launch.output, launch.errors)):
                check_own_file(path, context.launcher.state)
        except ValueError as error:  # a link made after the submission
            raise LaunchError(str(error)) from None
        context.launcher.status_file(job.id).parent.mkdir(parents=True, exist_ok=True)
        job.script = context.launcher.start_script(job.id, launch)
        context.journal.note(ScriptNote(job.id, job.script.pid))

    def see_started(self, job: JobRuntime) -> bool:
        """Enter the start of a script that runs by now; return whether the job goes on."""
        script = job.script
        if script is None:
            return True
        if script.started:
            self._context.journal.note(ScriptNote(job.id, script.pid))
            self._handle(Started(self._context.time(), job.id))
        elif script.end_state == NODES_LOST:
            self.requeue(job, "could not start where it was meant to")
            return False
        return True

    # --- ends --------------------------------------------------------------------------------

    def fail(self, job: JobRuntime, reason: str) -> None:
        """End a job that the daemon cannot handle; called in every round until it is over."""
        context = self._context
        if not job.fault:
            job.fault = reason
            log.info(f"job {job.id} FAILED: {reason}")
        if context.launcher.members(job.id):
            context.launcher.kill(job.id)
            return
        running = context.state.running.get(job.id)
        if running is None:
            return
        job.resize = job.call = None
        if running.state is JobState.CONFIGURING:
            self._handle(Started(context.time(), job.id))
        self.enter_end(job, 1, reason, "FAILED")

    def cancel(
        self,
        job: JobRuntime,
        state: str = "CANCELLED",
        *,
        grace_s: float | None = None,
        if_journalled: bool = False,
    ) -> None:
        """End a job: at once if it waits, by SIGTERM and after ``grace_s`` SIGKILL if it runs.

        With ``if_journalled`` it gets SIGTERM only after the request is in the journal. A requeue
        does not replace a cancel that waits for the journal.
        """
        context = self._context
        if state == REQUEUED:
            state = self._ends.get(job.id, state)
        if job.script is None:
            self._handle(Ended(context.time(), job.id, "CANCELLED"))
        elif job.ending is None or (job.ending == REQUEUED and state == "CANCELLED"):
            grace_s = context.settings.grace_s if grace_s is None else grace_s
            kill_at = context.now() + grace_s
            context.journal.note(EndingNote(job.id, state, kill_at))
            if if_journalled and not context.journal.caught_up():
                self._ends[job.id] = state
                return
            job.ending, job.kill_at = state, kill_at
            self.terminate(job)

    def give_up(self, job: JobRuntime, reason: str, hosts: Sequence[str]) -> None:
        """End the run of a job that hangs, at once; the job waits again if it may, or has failed.

        Its script ends with its ranks, so that it goes on to no other line.

        Args:
            hosts: nodes that may be the cause, which no job gets for some time.
        """
        context, now = self._context, self._context.now()
        context.suspects.update(dict.fromkeys(hosts, now + SUSPECT_S))
        log.warning(f"job {job.id}: {reason}; this run is ended")
        if job.ending is None:
            job.lost, job.ending = reason, REQUEUED if job.submission.requeue else "FAILED"
        job.kill_at = now
        context.journal.note(EndingNote(job.id, job.ending, now))
        context.launcher.kill(job.id)

    def end_some(self) -> None:
        """End the jobs whose end was requested while the journal was full, once it is not."""
        context = self._context
        if self._ends and context.journal.caught_up():
            ends, self._ends = self._ends, {}
            for job_id, state in ends.items():
                if job_id in context.state.running:
                    self.cancel(context.jobs[job_id], state)

    def terminate(self, job: JobRuntime) -> None:
        """Ask a job's present world to checkpoint and end."""
        step = job.running_step
        worlds = [] if step is None else [step.worlds[n] for n in step.current]
        self._context.launcher.terminate(job.id, worlds)

    def requeue(self, job: JobRuntime, reason: str) -> None:
        """Let a job without processes wait again."""
        context = self._context
        loss = restart_words(job.restartable, job.step, job.total) if job.steps else ""
        log.info(f"job {job.id}: {reason}; requeued{': ' if loss else ''}{loss}")
        reason = f"{reason}; {loss}" if loss else reason
        self._handle(Requeued(context.time(), job.id, reason), self.forget(job))
        context.scheduler.reasons[job.id] = reason

    def forget(self, job: JobRuntime) -> Notes:
        """Drop everything about a job's ended processes; return the notes for the next event."""
        # Before the event: a waiting job with a status has ended, where a journal is damaged.
        self._context.launcher.status_file(job.id).unlink(missing_ok=True)
        job.forget_processes()
        self._ends.pop(job.id, None)
        kinds = EndingNote, ResizeNote, ScriptNote, SignalNote
        return [*(kind(job.id) for kind in kinds), job.steps_note()]

    def end(self, job: JobRuntime, status: int) -> None:
        """End a job whose script has ended with this status and that has no processes left."""
        context, script, ending = self._context, job.script, job.ending
        job.resize = None
        failed = next((step for step in job.steps if step.exit_code != 0), None)
        well = status == 0 and failed is None
        end_state, end_reason = (
            ("", "") if script is None else (script.end_state, script.end_reason)
        )
        if ending == REQUEUED:
            if not well or end_state:
                before = "before its nodes are taken away" if self.stopping else "to start again"
                self.requeue(job, job.lost or f"requested to end {before}")
                return
            ending = None  # it came to its own end in time
        limited = bool(job.submission.memory_mib)
        if limited and not (well or ending) and context.launcher.limit_memory(job.id):
            ending = "OUT_OF_MEMORY"
        lost = end_reason
        if not (well or end_state or ending):
            answer = self._diagnosis(job)
            if answer is None:
                return
            end_state, lost = (NODES_LOST, answer) if answer else ("", "")
        if end_state == NODES_LOST and ending is None:
            lost = lost or "its nodes were lost"
            if job.submission.requeue:
                self.requeue(job, lost)
                return
            end_state = "FAILED"
        state = ending or end_state or ("COMPLETED" if well else "FAILED")
        reason = end_reason or f"script ended with {status}"
        reason = lost or (reason if failed is None else failed.message)
        limits = {"TIMEOUT": f"TimeLimit: {reason}", "OUT_OF_MEMORY": f"OutOfMemory: {reason}"}
        reason = job.lost if job.lost and state == "FAILED" else reason
        reason = "" if state == "COMPLETED" else limits.get(state, reason)
        self.enter_end(job, status, reason, state)
        log.info(f"job {job.id} {state}{': ' if reason else ''}{reason}")

    def enter_end(self, job: JobRuntime, status: int, reason: str, state: str) -> None:
        """Enter the end of a job, with its exit code, its answer and the reason."""
        self._context.scheduler.reasons[job.id] = reason
        job.exit_code = status
        note = EndNote(job.id, status, job.answer, reason)
        at_s = self._context.time()
        self._handle(Ended(at_s, job.id, state), [note])  # type: ignore[arg-type]

    def _diagnosis(self, job: JobRuntime) -> str | None:
        """Return how a failed job lost its nodes, "" if it did not, None until that is clear."""
        context = self._context
        if job.diagnosis is None:
            running = context.state.running[job.id]
            hosts = context.cluster.hosts_of(running.held)
            job.diagnosis = context.launcher.nodes.diagnose_failure(job.id, hosts)
        return "" if job.diagnosis is None else job.diagnosis()


def _environment(context: Context, job: JobRuntime, nodes: tuple[Node, ...]) -> dict[str, str]:
    """Return the environment of a job's script: its submission's, and variables of the RMS."""
    array, index, cluster = job.submission.array, job.submission.index(job.id), context.cluster
    env = context.private.kept(f"{array}/environment").copy()
    values = {"JOB_ID": str(job.id), "JOB_NUM_NODES": str(len(cluster.hosts_of(nodes)))}
    if index is not None:
        values |= {"ARRAY_JOB_ID": array, "ARRAY_TASK_ID": str(index)}
    for key, value in values.items():
        env[f"RMS_{key}"] = env[f"SLURM_{key}"] = value
    if kinds := cluster.kinds_of(nodes):  # none if the nodes state none
        env[PROCESSORS_VARIABLE] = " ".join(kinds)
    if job.submission.resize_by:
        env[SLOTS_VARIABLE] = " ".join(cluster.slots_of(nodes))
    env[TOKEN_VARIABLE] = context.private.token(job.id)
    return env


# --- the last line of a job's output -------------------------------------------------------------

SETTLE_S = 5.0  # longest wait for the last readings of meters
TAIL = 1 << 16  # bytes at the end of an output that are searched for the job's line
# Reason of a job that belongs to the original folder, which still writes its output.
COPIED = "it ran in the state folder that this one is a copy of"


class Endings:
    """Writes the last lines of jobs: end, resizes and energy, once that is settled."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due: dict[JobId, float] = {
            job.id: context.now() + SETTLE_S
            for job in context.jobs.values()
            if job.summary == "" and job.id in context.state.ended
        }

    def due(self, event: Event) -> list[JobId]:
        """Return the jobs whose lines are to be written once an event has happened."""
        gone = event.failed if isinstance(event, Reopened) else ()
        gone = (event.job,) if isinstance(event, Ended) else gone
        jobs = [self._context.state.running.get(job_id) for job_id in gone]
        return [job.spec.id for job in jobs if job is not None and job.start_s is not None]

    def add(self, job_ids: Iterable[JobId]) -> None:
        """Write the lines of jobs that have ended, now or when their energy is settled."""
        for job_id in job_ids:
            self._context.jobs[job_id].summary = ""
            self._due[job_id] = self._context.now() + SETTLE_S
        if self._due:
            self.tick()

    def tick(self) -> None:
        """Write the lines that are due."""
        now = self._context.now()
        for job_id, until_s in list(self._due.items()):
            if now > until_s or is_settled(self._context, self._context.state.ended[job_id]):
                self._write(job_id)

    def close(self) -> None:
        """Write all lines, as the daemon ends."""
        for job_id in list(self._due):
            self._write(job_id)

    def _write(self, job_id: JobId) -> None:
        context = self._context
        del self._due[job_id]
        job = context.jobs[job_id]
        job.summary = end_words(context, context.state.ended[job_id], job)
        try:
            if context.scheduler.reasons.get(job_id) != COPIED:
                output = job.files[0]
                check_own_file(output, context.launcher.state)
                _append(output, job_id, f"rms: {job.summary}\n")
        except (OSError, ValueError) as error:
            log.warning(f"job {job_id}: its output does not take its last line: {error}")
        # If the daemon is killed in between, the line is written again rather than lost.
        context.journal.note(SummaryNote(job_id, job.summary))


def end_words(context: Context, job: Job, runtime: JobRuntime) -> str:
    """Return the last line of a job that has ended."""
    run_s = (job.end_s or 0.0) - (job.start_s or 0.0)
    plural = "" if len(job.nodes) == 1 else "s"
    unit = "slot" if context.cluster.shared else "node"
    words = [f"{run_s:.1f} s on {len(job.nodes)} {unit}{plural}"]
    if runtime.resizes:
        chains = list[list[int]]()  # a requeue starts another one
        for row in runtime.resizes:
            if not chains or chains[-1][-1] != row.from_ranks:
                chains.append([row.from_ranks])
            chains[-1].append(row.to_ranks)
        sizes = ", ".join(" to ".join(map(str, chain)) for chain in chains)
        count = f"{len(runtime.resizes)} resize{'' if len(runtime.resizes) == 1 else 's'}"
        words.append(f"{count} ({sizes} ranks)")
    prices = context.settings.prices
    energy = context.scheduler.energy
    joules = energy.job_j(job.spec.id, context.time())
    words.append(OwnerEnergy.of(energy.parts(job.spec.id, joules)).words)
    lost = energy.lost(job.spec.id)
    if lost is not None:
        words.append(f"lost {lost_words(lost)}")
    if prices is not None:
        words += cost_words(
            OwnerEnergy.of(energy_rows(context, [job.spec.id]), prices).cost, prices
        )
    return f"job {job.spec.id} {job.state}: {', '.join(words)}"


def _append(path: Path, job_id: JobId, line: str) -> None:
    """Append a job's line to its output, if that exists, unless it is there from before."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(file).st_size
        end = b"\n" + (os.pread(file, TAIL, max(0, size - TAIL)) if size else b"")
        if f"\nrms: job {job_id} ".encode() not in end:
            os.write(file, (b"" if end.endswith(b"\n") else b"\n") + line.encode())
    finally:
        os.close(file)
