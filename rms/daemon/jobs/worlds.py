"""The worlds of a job: launched, observed, resized, and ended with their step.

:class:`rms.daemon.jobs.machine.ResizeMachine` decides the steps of a resize. This module feeds it
with the states of processes and the reports of jobs, and carries out its instructions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rms.core.model.events import ResizeAsked, ResizePoint, Started, Stepped
from rms.core.model.jobs import Job, JobId, JobState, Node
from rms.daemon.jobs import machine
from rms.daemon.jobs.machine import Instructions, ResizeContext, ResizeMachine
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.store.context import Context, Handle, describe, log
from rms.daemon.store.journal import JournalError
from rms.daemon.store.notes import LineNote, Note, Notes, ResizesNote, ScriptNote
from rms.daemon.store.private import line_file
from rms.daemon.store.record import JobRuntime, Pulse, ResizeNote, ResizeState, Step, StepRateLimit
from rms.launch.base import LaunchCommand, LaunchError, ManagedProcess, WorldLaunch, hosts_of
from rms.wire.messages import (
    LAUNCHES_VARIABLE,
    PER_NODE,
    ApplicationResizeRequest,
    CompletionRecord,
    Done,
    Poll,
    ProtocolError,
    Report,
    ResizeRequest,
    read_completion,
)

MOST_RANKS = 1 << 20  # limit of a job's ranks; larger numbers are a mistake, or an attack
# Time after the end of a launch within which its last report (a commit, a record) must arrive.
LAST_REPORT_S = 10.0


class Worlds:
    """Launches and observes worlds, and carries out the resize machine's instructions."""

    def __init__(self, context: Context, scripts: Scripts, handle: Handle) -> None:
        settings = context.settings
        self._context, self._scripts, self._handle = context, scripts, handle
        self._machine = ResizeMachine(settings.boot_s, settings.grace_s)
        self._inputs, self._draining = deque[tuple[JobRuntime, machine.Input]](), False
        self._step_rate = StepRateLimit()

    # --- steps -------------------------------------------------------------------------------

    def launch(self, job: JobRuntime, command: LaunchCommand, key: str) -> int:
        """Boot the first world of a launcher line; return its step, for its ``key`` the same."""
        context = self._context
        if key in job.keys:
            return job.keys.index(key)
        running = context.state.running[job.id]
        if running.state is JobState.CONFIGURING:  # the script runs, but was not reported yet
            self._handle(Started(context.time(), job.id))
        slots, resized = self.slots_of(job)
        number, step = len(job.steps), Step(command)
        context.private.keep(line_file(job.id, number), command.env)
        job.steps.append(step)
        job.keys.append(key)
        line = command.command, command.cwd, command.output, command.errors
        context.journal.note(LineNote(f"{job.id}/{number}", *line))
        self.save_steps(job)
        parts = dict(enumerate(self.parts(job.id, command, slots), job.launch_count))
        job.launch_count += len(parts)
        launches = tuple((launch, len(part)) for launch, part in parts.items())
        wanted = WorldLaunch(number, 0, (), command, launches=launches if len(parts) > 1 else ())
        try:
            self._boot_worlds(job, wanted, parts, resized=resized)
            step.current = tuple(parts)
            self.enter_worlds(job, step.current)
        except LaunchError as error:
            step.exit_code, step.message = 1, str(error)
            for launch in step.worlds:
                context.launcher.kill(job.id, launch)
        self.save_steps(job)
        return number

    def slots_of(self, job: JobRuntime) -> tuple[Sequence[str], bool]:
        """Return the slots of a job's next step, and whether they are those of its resize.

        Nodes that a completed shrink gives up are the job's until its old ranks have left.
        """
        running = self._context.state.running.get(job.id)
        if job.resize is not None and job.resize.committed:
            return job.resize.slots, True
        return () if running is None else self._context.cluster.slots_of(running.nodes), False

    def parts(
        self, job: JobId, command: LaunchCommand, slots: Sequence[str]
    ) -> list[Sequence[str]]:
        """Return the slots by launch of a job's first world: one launch, or one per node."""
        context, running = self._context, self._context.state.running.get(job)
        per_node = command.env.get(LAUNCHES_VARIABLE) == PER_NODE
        if not per_node or running is None or not running.spec.mode.resizable:
            return [slots]
        parts: list[Sequence[str]] = [context.cluster.slots[node] for node in running.held]
        whole = [slot for part in parts for slot in part] == [*slots]
        return parts if whole and context.launcher.joins_launches(command) else [slots]

    def _kinds(
        self, job: JobRuntime, launches: Mapping[int, Sequence[str]], *, resized: bool
    ) -> dict[int, tuple[str, ...]]:
        """Return the kinds of processors by launch; together they have a world's last slots.

        That is the world of a resize (``resized``), or the job's present one.
        """
        cluster, running = self._context.cluster, self._context.state.running.get(job.id)
        nodes: tuple[Node, ...] | None = ()
        if running is not None:
            nodes = running.requested_nodes if resized else running.nodes
        all_kinds = cluster.kinds_of(nodes or ())
        kinds, at = {}, len(all_kinds) - sum(map(len, launches.values()))
        for launch, slots in launches.items():
            kinds[launch] = all_kinds[at : at + len(slots)] if all_kinds else ()
            at += len(slots)
        return kinds

    def enter_worlds(self, job: JobRuntime, launches: tuple[int, ...] = ()) -> None:
        """Book the launch on all nodes of a job, or one per node; without, those of a resize."""
        context, resize = self._context, job.resize
        running = context.state.running.get(job.id)
        if running is None:
            return
        cluster, wanted, numbers = context.cluster, running.requested_nodes, dict[Node, int]()
        if launches:
            nodes = running.held
            alone = len(launches) == 1
            numbers = dict(zip(nodes, launches * len(nodes) if alone else launches, strict=True))
        elif resize is not None and resize.new.slots and wanted is not None:
            # They are on the last slots of the new world, or on all of them.
            places = [node for node in wanted for _ in cluster.slots[node]]
            of_slots = [n for n, slots in resize.new.slots.items() for _ in slots]
            for node, number in zip(places[-len(of_slots) :], of_slots, strict=True):
                if resize.committed or node not in running.nodes:
                    numbers[node] = number
        worlds = {cluster.names[node]: number for node, number in numbers.items()}
        if worlds:
            context.scheduler.energy.measured.spans.launched(context.time(), job.id, worlds)

    def save_steps(self, job: JobRuntime) -> None:
        """Note a job's steps for a restarted daemon."""
        self._context.journal.note(job.steps_note())

    def tick(self, job: JobRuntime) -> None:
        """Observe a job's launches."""
        self._observe(job)
        for number, step in enumerate(job.steps):
            if step.exit_code is None:
                self._tick_step(job, number, step)

    def _tick_step(self, job: JobRuntime, number: int, step: Step) -> None:
        """Conclude a step once its launches have ended and had the time to say why."""
        codes = [step.worlds[n].status() for n in step.current]
        if all(code is None for code in codes):
            step.ended_s = None
            return
        launcher, now = self._context.launcher, self._context.now()
        if step.ended_s is None:
            step.ended_s = now
        late = now > step.ended_s + LAST_REPORT_S
        died = any(codes)  # ranks that leave, or complete, exit with 0
        if None in codes:
            if late and died:  # launches that were merged live and die together
                for n in step.current:
                    launcher.kill(job.id, n)
            return
        resize, record = job.resize, launcher.completion_file(job.id, number)
        state = None if resize is None else resize.state
        left = state is ResizeState.MOVING and not died  # the deadline of that state applies
        going_over = state in (ResizeState.READY, ResizeState.MOVING) and not late
        if resize is not None and (left or going_over):
            # The job may have gone over to these, and its report is on its way.
            alive = [n for n in resize.new.slots if step.worlds[n].status() is None]
            if alive and not record.exists():
                return
        if step.has_polled and launcher.shared_filesystem and not late and not record.exists():
            return  # it may be on its way through a shared folder
        if resize is not None and state is ResizeState.STOPPING:
            self.feed(job, machine.WorldEnded(self._record(job, number)))
            if resize.committed:
                return
        self.conclude(job, number, codes[-1] or max(code or 0 for code in codes))

    def conclude(self, job: JobRuntime, number: int, status: int) -> None:
        """Enter the end of a step."""
        step, record = job.steps[number], self._record(job, number)
        if record is not None:
            step.exit_code, step.message = record.exit_code, record.message
            job.answer = record.answer or job.answer
            if job.total:  # the last poll may be some steps before the end
                job.step = record.step
        # No record of a program of dmr: it died, whatever mpiexec's own status says.
        # Another program has had no worlds but this one, so that status counts.
        elif status == 0 and not step.has_polled:
            step.exit_code = 0
        elif step.has_polled:
            step.exit_code, step.message = status or 1, "died without a completion record"
        else:
            step.exit_code, step.message = status, f"program ended with {status}"
        job.pulse = None
        self.feed(job, machine.StepEnded())
        self.save_steps(job)

    def _record(self, job: JobRuntime, number: int) -> CompletionRecord | None:
        try:
            return read_completion(self._context.launcher.completion_file(job.id, number))
        except (OSError, ProtocolError):
            return None

    # --- polls and reports of jobs -----------------------------------------------------------

    def poll(self, job: JobRuntime, poll: Poll) -> ResizeRequest | None:
        """Take in a job's progress; return the resize request that it does not have yet."""
        running = self._context.state.running.get(job.id)
        job.step, job.total = poll.step, poll.steps
        step = job.running_step
        if step is not None:
            now_s = self._context.now()
            if job.pulse is None:
                job.pulse, job.calm_until_s = Pulse.begin(now_s, job.step), 0.0
            job.pulse.hear(now_s, job.step)
            before = step.has_polled, step.strategy, step.ranks, step.restartable
            step.has_polled, step.cooldown_s = True, poll.cooldown_s
            step.restartable = poll.restartable
            if job.resize is not None and job.resize.state is ResizeState.STARTING:
                self.feed(job, machine.Polled())
            if before != (True, poll.strategy, poll.launches, poll.restartable):
                step.strategy, step.ranks = poll.strategy, poll.launches
                self.save_steps(job)
        if running is not None:
            self._count_steps(job, running)
            self._at_resize_point(job, running)
        return job.request_after(poll.known)

    def _count_steps(self, job: JobRuntime, running: Job) -> None:
        """Enter now and then how fast a job steps at its size."""
        if running.state is not JobState.RUNNING:
            return
        at_s = self._context.time()
        count = job.stepped(at_s, enter=self._step_rate.due(at_s))
        if count is not None:
            self._step_rate.entered(at_s)
            self._handle(Stepped(at_s, job.id, job.step, job.total, *count))

    def _at_resize_point(self, job: JobRuntime, running: Job) -> None:
        context = self._context
        rests = context.now() < job.rests_until_s
        if running.state is JobState.RUNNING and not (running.at_resize_point or rests):
            self._handle(ResizePoint(context.time(), job.id))
        if job.requested_ranks and running.resizable_now:
            job.user_strategy = ""
            self._handle(ResizeAsked(context.time(), job.id, job.requested_ranks, (), True))
            job.requested_ranks = 0

    def report(self, job: JobRuntime, report: Report) -> None:
        """Take in the progress of a resize, or a resize request of the application."""
        if isinstance(report, ApplicationResizeRequest):
            if not 0 < report.ranks <= MOST_RANKS:
                raise ValueError(f"expected 1 to {MOST_RANKS} ranks, got {report.ranks}")
            job.requested_ranks = report.ranks
            return
        if isinstance(report, Done):
            launches = {launch for step in job.steps for launch in step.worlds}
            unknown = [launch for launch in report.launches if launch not in launches]
            if unknown:
                raise ValueError(f"expected launches of job {job.id}, got {unknown[0]}")
        self.feed(job, report)

    # --- the resize machine ------------------------------------------------------------------

    def begin_resize(self, job: JobRuntime, slots: tuple[str, ...], strategy: str = "") -> None:
        """Begin a resize that was decided, by a user's strategy or, with "", the job's own."""
        context = self._context
        have = context.cluster.slots_of(context.state.running[job.id].nodes)
        refusal = context.launcher.nodes.resize_refusal(job.id, hosts_of(have), hosts_of(slots))
        number = context.scheduler.resizes[job.id]
        self.feed(job, machine.Decided(number, slots, strategy, refusal))

    def feed(self, job: JobRuntime, message: machine.Input) -> bool:
        """Hand the machine an input and carry out its instructions; return whether it had any.

        Instructions may lead to further inputs, of this job or of others. They are queued and
        handled next, so that an input is never handled during another one. An error about another
        job ends that job.
        """
        self._inputs.append((job, message))
        if self._draining:
            return False
        self._draining, answered, failure = True, False, None
        try:
            while self._inputs:
                owner, queued = self._inputs.popleft()
                try:
                    answered |= bool(self._handle_input(owner, queued)) and queued is message
                except Exception as error:
                    if owner is job or isinstance(error, JournalError):
                        failure = failure or error
                    else:
                        self._scripts.fail(owner, describe(error))
        finally:
            self._draining = False
        if failure is not None:
            raise failure
        return answered

    def _handle_input(self, job: JobRuntime, message: machine.Input) -> Instructions:
        """Return the instructions for an input, carried out.

        Notes are journalled together with the event behind them, or before anything is done.
        """
        context = self._resize_context(job)
        if context is None:
            return []  # the job is over
        if log.isEnabledFor(logging.DEBUG) and not machine.is_legal(job.resize, message):
            state = "without a resize" if job.resize is None else f"while {job.resize.state}"
            log.debug(f"job {job.id}: {type(message).__name__} ignored {state}")
        instructions, notes = self._machine.handle(job, context, message), Notes()
        for instruction in instructions:
            if isinstance(instruction, machine.SaveCommand):
                notes.append(self._note(job, instruction))
            else:
                self._carry_out(job, instruction, notes)
                notes = []
        self._context.journal.note(*notes)
        return instructions

    def _resize_context(self, job: JobRuntime) -> ResizeContext | None:
        context = self._context
        running = context.state.running.get(job.id)
        if running is None:
            return None
        wanted, slots_of = running.requested_nodes, context.cluster.slots_of
        return ResizeContext(
            now_s=context.now(),
            at_s=context.time(),
            slots=slots_of(running.nodes),
            requested=None if wanted is None else slots_of(wanted),
            resize_begun=running.resize_begun,
            number=context.scheduler.resizes.get(job.id, 0),
        )

    def _note(self, job: JobRuntime, command: machine.SaveCommand) -> Note:
        if isinstance(command, machine.SaveResize):
            return ResizeNote(job.id, command.note)
        if isinstance(command, machine.SaveSteps):
            return job.steps_note()
        self.enter_worlds(job)
        return ResizesNote(job.id, list(job.resizes))

    def _observe(self, job: JobRuntime) -> None:
        """Feed the state of the processes, or the answer, that the resize in flight waits for."""
        resize, step = job.resize, job.running_step
        if resize is None or resize.state is ResizeState.REQUESTED:
            return
        if job.call is not None:
            answer = job.call()
            if answer is not None:
                job.call = None
                self.feed(job, machine.CallAnswered(answer))
            return
        ended: dict[int, int] = {}
        if resize.state in (ResizeState.BOOTING, ResizeState.READY) and step is not None:
            codes = {n: step.worlds[n].status() for n in resize.new.slots}
            ended = {n: code for n, code in codes.items() if code is not None}
        gone: frozenset[int] = frozenset()
        if resize.state in (ResizeState.LEAVING, ResizeState.CLOSING):
            gone = frozenset(n for n in resize.leaving if not self.has_processes(job, n))
        self.feed(job, machine.Observed(ended, gone))

    def has_processes(self, job: JobRuntime, launch: int) -> bool:
        """Return whether a launch has processes left."""
        worlds = {n: world for step in job.steps for n, world in step.worlds.items()}
        runs = launch in worlds and worlds[launch].status() is None
        return runs or bool(self._context.launcher.members(job.id, launch))

    # --- instructions ------------------------------------------------------------------------

    def _carry_out(
        self,
        job: JobRuntime,
        instruction: machine.ResizeAction | machine.Act | machine.SchedulerEvent,
        notes: Notes,
    ) -> None:
        context, launcher = self._context, self._context.launcher
        if isinstance(instruction, machine.SchedulerEvent):
            self.enter_worlds(job)
            self._handle(instruction, notes)
            return
        if instruction is machine.Act.RUN_SCRIPT:  # the next run leaves its own status
            launcher.status_file(job.id).unlink(missing_ok=True)
            notes.append(ScriptNote(job.id))
        context.journal.note(*notes)
        match instruction:
            case machine.AskGrant(have, wanted):
                job.call = launcher.nodes.grant(job.id, have, wanted)
                answered = job.call is None
                self.feed(job, machine.CallAnswered() if answered else machine.CallStarted())
            case machine.AskRelease(hosts):
                job.call = launcher.nodes.release(job.id, hosts)
                if job.call is None:
                    self.feed(job, machine.CallAnswered())
                else:
                    self._observe(job)  # it may be done already
            case machine.BootWorlds():
                self._boot(job, instruction)
            case machine.KillLaunch(launch):
                launcher.kill(job.id, launch)
            case machine.Act.KILL_JOB:
                launcher.kill(job.id)
            case machine.Act.TERMINATE:
                self._scripts.terminate(job)
            case machine.Act.TELL_JOB:
                job.wake()
            case machine.Act.OBSERVE:
                self._observe(job)
            case machine.Decide(slots, strategy):
                self.begin_resize(job, slots, strategy)
            case machine.FindLaunches(launches):
                self._find(job, launches)
            case machine.Act.RUN_SCRIPT:
                self._run_script(job)
            case machine.Requeue(reason):
                self._scripts.requeue(job, reason)
            case machine.GiveUp(reason):
                held = self._context.state.running[job.id].held
                self._scripts.give_up(job, reason, self._context.cluster.hosts_of(held))
            case machine.Say(words):
                log.info(words)

    def _boot(self, job: JobRuntime, boot: machine.BootWorlds) -> None:
        step, failure = job.steps[boot.step], ""
        wanted = WorldLaunch(boot.step, 0, (), step.command, boot.resize, boot.cores)
        try:
            self._boot_worlds(job, wanted, boot.launches, resized=True)
        except LaunchError as error:
            failure = str(error)
        pids = {n: step.worlds[n].pid for n in boot.launches if n in step.worlds}
        self.feed(job, machine.Booted(pids, failure))

    def _boot_worlds(
        self,
        job: JobRuntime,
        wanted: WorldLaunch,
        launches: Mapping[int, Sequence[str]],
        *,
        resized: bool,
    ) -> None:
        """Start launches of a step on their slots; a LaunchError ends that."""
        kinds = self._kinds(job, launches, resized=resized)
        for launch, slots in launches.items():
            each = replace(wanted, launch=launch, slots=slots, processors=kinds[launch])
            world = self._context.launcher.boot_world(job.id, each)
            job.steps[wanted.step].worlds[launch] = world

    def _run_script(self, job: JobRuntime) -> None:
        nodes = self._context.state.running[job.id].requested_nodes
        if nodes is None:
            raise RuntimeError(f"expected a requested resize of {job.id}")
        try:
            self._scripts.run(job, nodes)
        except LaunchError as error:
            self._scripts.fail(job, str(error))

    def _find(self, job: JobRuntime, launches: tuple[int, ...]) -> None:
        """Find launches again whose start was not noted before the daemon was killed."""
        step, resize = job.running_step, job.resize
        if step is None or resize is None:
            return
        for launch in launches:
            members = self._context.launcher.members(job.id, launch)
            pid = resize.new.pids.get(launch) or min(members, default=0)
            step.worlds[launch] = ManagedProcess(pid)
