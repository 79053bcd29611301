"""Job scripts: started, told to end, requeued, and what became of the job when one is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rms.core.model.events import Ended, Requeued, Start, Started
from rms.core.model.jobs import JobId, JobState, Node
from rms.daemon.context import Context, Handle, Notes
from rms.daemon.faults import describe
from rms.daemon.jobs import REQUEUED, JobRuntime
from rms.daemon.journal import JournalError
from rms.launch.base import NODES_LOST, LaunchError, ScriptLaunch
from rms.launch.outputs import check_own_file
from rms.wire.messages import PROCESSORS_VARIABLE, TOKEN_VARIABLE
from rms.wire.rows import restart_words

START_S = 0.02
"""How long jobs are started before others have their turn for as long."""


class Scripts:
    """Starts and ends job scripts.

    Attributes:
        stopping: whether no more are started.
    """

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self.stopping = False
        self._starts: deque[Start] = deque()
        self._ends: dict[JobId, str] = {}
        self._since_s = 0.0

    # --- starts ------------------------------------------------------------------------------

    def begin_slice(self) -> None:
        """Let the time begin for which jobs may be started at a stretch."""
        self._since_s = self._context.now()

    def enqueue(self, decision: Start) -> None:
        """Start a job, now or later."""
        self._starts.append(decision)
        self.start_some()

    def start_some(self) -> None:
        """Start jobs for a short while: hundreds may be decided at once, and others want answers.

        One that is not started now is so at the next look, or by the next daemon.
        """
        context = self._context
        while self._starts and not self.stopping and context.now() <= self._since_s + START_S:
            decision = self._starts.popleft()
            running = context.state.running.get(decision.job)
            job = context.jobs[decision.job]
            if running is not None and running.nodes == decision.nodes and job.script is None:
                self.start(job, decision.nodes)

    @property
    def starting(self) -> bool:
        """Whether jobs are left that :meth:`start_some` is to start."""
        return bool(self._starts) and not self.stopping

    def start(self, job: JobRuntime, nodes: tuple[Node, ...]) -> None:
        """Start a job; it has failed where that cannot be."""
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
        """Run a job's script on nodes.

        Raises:
            LaunchError: it could not be started.
        """
        context, note = self._context, job.note
        if "array" not in note:
            raise LaunchError("what it was submitted with is missing from the journal")
        launch = ScriptLaunch(
            script=context.launcher.state / "jobs" / note["array"] / "script",
            cwd=note["cwd"],
            env={
                **context.private.environment(note),
                **environment(job, len(context.cluster.hosts_of(nodes))),
                **processors(context.cluster.kinds_of(nodes)),
                TOKEN_VARIABLE: context.private.token(job.id, note),
            },
            output=Path(note["output"]),
            nodes=[context.cluster.slots[node] for node in nodes],
            limit_s=context.state.running[job.id].spec.limit_s,
            arguments=note.get("arguments", ()),
            errors=Path(note["error"]) if "error" in note else None,
        )
        try:
            for path in filter(None, (launch.output, launch.errors)):
                check_own_file(path, context.launcher.state)
        except ValueError as error:  # a link made after the submission
            raise LaunchError(str(error)) from None
        context.launcher.status_file(job.id).parent.mkdir(parents=True, exist_ok=True)
        job.script = context.launcher.start_script(job.id, launch)
        context.note("script", job, {"pid": job.script.pid})

    def see_started(self, job: JobRuntime) -> bool:
        """Tell the scheduler of a script that runs by now; return whether the job goes on."""
        script = job.script
        if script is None:
            return True
        if script.started:
            self._context.note("script", job, {"pid": script.pid})
            self._handle(Started(self._context.time(), job.id))
        elif script.end_state == NODES_LOST:
            self.requeue(job, "could not start where it was meant to")
            return False
        return True

    # --- ends --------------------------------------------------------------------------------

    def fail(self, job: JobRuntime, reason: str) -> None:
        """End a job with which the daemon cannot go on; it has FAILED once nothing of it is left.

        To be called again until the job is over.
        """
        context = self._context
        if not job.fault:
            job.fault = reason
            context.say(f"job {job.id} FAILED: {reason}")
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
        """End a job: at once if it waits, by SIGTERM and later SIGKILL if it runs.

        Args:
            grace_s: how long it has for a checkpoint; None for as long as this daemon gives.
            if_journalled: send SIGTERM only after the request is in the journal. If the daemon is
                killed before that, the job continues.

        A requeue does not replace a cancel that waits for the journal.
        """
        context = self._context
        if state == REQUEUED:
            state = self._ends.get(job.id, state)
        if job.script is None:
            self._handle(Ended(context.time(), job.id, "CANCELLED"))
        elif job.ending is None or (job.ending == REQUEUED and state == "CANCELLED"):
            grace_s = context.settings.grace_s if grace_s is None else grace_s
            kill_at = context.now() + grace_s
            context.note("ending", job, {"state": state, "kill_at": kill_at})
            if if_journalled and not context.journal.caught_up():
                self._ends[job.id] = state
                return
            job.ending, job.kill_at = state, kill_at
            self.terminate(job)

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
        """Let a job of which nothing runs any more wait again."""
        context = self._context
        loss = restart_words(job.restartable, job.step, job.total) if job.steps else ""
        context.say(f"job {job.id}: {reason}; requeued{': ' if loss else ''}{loss}")
        reason = f"{reason}; {loss}" if loss else reason
        self._handle(Requeued(context.time(), job.id, reason), self.forget(job))
        context.scheduler.reasons[job.id] = reason

    def forget(self, job: JobRuntime) -> Notes:
        """Drop what was known of a job's processes, of which there are none any more.

        Returns:
            What is to be kept of that, with the event that says so.
        """
        job.forget_processes()
        self._ends.pop(job.id, None)
        # Before the event, else it is taken for that of the next run.
        self._context.launcher.status_file(job.id).unlink(missing_ok=True)
        found: Notes = {f"{kind}/{job.id}": {} for kind in ("ending", "boot", "script", "signal")}
        return found | {f"steps/{job.id}": job.steps_note()}

    def end(self, job: JobRuntime, status: int) -> None:
        """End a job whose script has ended and of which no process is left."""
        context, script, ending = self._context, job.script, job.ending
        job.resize = None
        failed = next((step for step in job.steps if step.exit_code != 0), None)
        well = status == 0 and failed is None
        end_state, said = ("", "") if script is None else (script.end_state, script.end_reason)
        lost = said
        if ending == REQUEUED:
            if not well or end_state:
                before = "before its nodes are taken away" if self.stopping else "to start again"
                self.requeue(job, f"told to end {before}")
                return
            ending = None  # it came to its own end in time
        limited = bool(job.shared.get("memory_mib"))
        if limited and not (well or ending) and context.launcher.limit_memory(job.id):
            ending = "OUT_OF_MEMORY"
        if not (well or end_state or ending):
            answer = self._diagnosis(job)
            if answer is None:
                return
            end_state, lost = (NODES_LOST, answer) if answer else ("", "")
        if end_state == NODES_LOST and ending is None:
            lost = lost or "its nodes were lost"
            if job.note["requeue"]:
                self.requeue(job, lost)
                return
            end_state = "FAILED"
        state = ending or end_state or ("COMPLETED" if well else "FAILED")
        why = failed.message if failed is not None else said or f"script ended with {status}"
        why = lost or why
        limits = {"TIMEOUT": f"TimeLimit: {why}", "OUT_OF_MEMORY": f"OutOfMemory: {why}"}
        why = "" if state == "COMPLETED" else limits.get(state, why)
        self.enter_end(job, status, why, state)
        context.say(f"job {job.id} {state}{': ' if why else ''}{why}")

    def enter_end(self, job: JobRuntime, status: int, reason: str, state: str) -> None:
        """Enter the end of a job, with what there is to say of it."""
        self._context.scheduler.reasons[job.id] = reason
        job.exit_code = status
        note = {"exit_code": status, "answer": job.answer, "reason": reason}
        at_s = self._context.time()
        self._handle(Ended(at_s, job.id, state), {f"end/{job.id}": note})  # type: ignore[arg-type]

    def _diagnosis(self, job: JobRuntime) -> str | None:
        """Return how a job that failed has lost its nodes, "" if it has not, None until known."""
        context = self._context
        if job.diagnosis is None:
            running = context.state.running[job.id]
            hosts = context.cluster.hosts_of(running.held)
            job.diagnosis = context.launcher.diagnose_failure(job.id, hosts)
        return "" if job.diagnosis is None else job.diagnosis()


def environment(job: JobRuntime, nodes: int) -> dict[str, str]:
    """Return what the environment of a job's script has from the RMS, beside its own."""
    note = job.note
    values: dict[str, str] = {"JOB_ID": JobId(job.id), "JOB_NUM_NODES": str(nodes)}
    if note["index"] is not None:
        values |= {"ARRAY_JOB_ID": note["array"], "ARRAY_TASK_ID": str(note["index"])}
    return {f"{kind}_{key}": value for kind in ("RMS", "SLURM") for key, value in values.items()}


def processors(kinds: Sequence[str]) -> dict[str, str]:
    """Return what the environment says of the kinds of a job's processors, nothing of none."""
    return {PROCESSORS_VARIABLE: " ".join(kinds)} if kinds else {}
