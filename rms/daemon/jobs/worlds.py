"""The worlds of a job: launched, observed, resized, and ended with their step.

:class:`rms.daemon.jobs.machine.ResizeMachine` decides the steps of a resize. This module feeds it
with the states of processes and the reports of jobs, and carries out its instructions.

A job with ``--survive`` goes on when a rank or node dies: its world is followed by another one of
the same step, which takes the copies of its data from the keepers (:class:`Keepers`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from rms.core.model.events import (
    NodesLost,
    ResizeAsked,
    ResizePoint,
    Started,
    Stepped,
    WorkLost,
)
from rms.core.model.jobs import Job, JobId, JobState, Node
from rms.daemon.jobs import machine
from rms.daemon.jobs.machine import Instructions, ResizeContext, ResizeMachine
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.store.context import Context, Handle, describe, log
from rms.daemon.store.journal import JournalError
from rms.daemon.store.notes import LineNote, Note, Notes, ResizesNote, ScriptNote
from rms.daemon.store.private import line_file
from rms.daemon.store.record import (
    Death,
    JobRuntime,
    Pulse,
    ResizeNote,
    ResizeState,
    Step,
    StepRateLimit,
)
from rms.launch.base import LaunchCommand, LaunchError, ManagedProcess, WorldLaunch, hosts_of
from rms.launch.local import keepers_of
from rms.wire.messages import (
    KEEPERS_VARIABLE,
    LAUNCHES_VARIABLE,
    MEMORY_VARIABLE,
    MTBF_VARIABLE,
    PER_NODE,
    SUPERVISOR_VARIABLE,
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
DEATH_S = 1.0
"""The same after a death that a job survives: its record may be on its way, or the job goes on."""

TRIES = 5
"""Worlds in a row that may die without a new copy, until the job ends."""

KEEPER_S = 30.0
"""Timeout for the keepers of a world to start."""

PLAN = "plan"
"""The interval of copies is that of the program's plan."""

HOSTS_S = 30.0
"""Time for nodes to answer, after a death, where none does."""


class Worlds:
    """Launches and observes worlds, and carries out the resize machine's instructions."""

    def __init__(self, context: Context, scripts: Scripts, handle: Handle) -> None:
        settings = context.settings
        self._context, self._scripts, self._handle = context, scripts, handle
        self.keepers = Keepers(context)
        self._boots: dict[JobId, machine.BootWorlds] = {}  # worlds of resizes that wait for keepers
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
        number, step = len(job.steps), Step(command)
        if job.inherited is not None and job.heir == number:
            step, job.heir, job.inherited = job.inherited, None, None
            step.command = command
        context.private.keep(line_file(job.id, number), command.env)
        job.steps.append(step)
        job.keys.append(key)
        line = command.command, command.cwd, command.output, command.errors
        context.journal.note(LineNote(f"{job.id}/{number}", *line))
        self.save_steps(job)
        if job.submission.survive:
            self._await_keepers(job, number, step)
        else:
            self._begin(job, number, step)
        return number

    def _begin(self, job: JobRuntime, number: int, step: Step) -> None:
        """Boot a world of a step that has none: the first, or one that follows a death."""
        context, command = self._context, step.command
        slots, resized = self.slots_of(job)
        parts = dict(enumerate(self.parts(job.id, command, slots), job.launch_count))
        job.launch_count += len(parts)
        launches = tuple((launch, len(part)) for launch, part in parts.items())
        wanted = WorldLaunch(
            number,
            0,
            (),
            command,
            launches=launches if len(parts) > 1 else (),
            env=self.keepers.environment(job, step),
        )
        try:
            self._boot_worlds(job, wanted, parts, resized=resized)
            step.current = tuple(parts)
            self.enter_worlds(job, step.current)
        except LaunchError as error:
            step.exit_code, step.message = 1, str(error)
            for launch in step.worlds:
                context.launcher.kill(job.id, launch)
        self.save_steps(job)

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
                if step.death is not None and not step.death.revived:
                    self._revive(job, number, step, step.death)
                elif step.waits_s is not None:
                    self._begin_with_keepers(job, number, step)
                else:
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
        died = any(codes)  # ranks that leave, or complete, exit with 0
        late = now > step.ended_s + LAST_REPORT_S
        survives = died and self._survives(job, step)
        is_over = late or (survives and now > step.ended_s + DEATH_S)
        if None in codes:
            if is_over and died:  # launches that were merged live and die together
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
        if step.has_polled and launcher.shared_filesystem and not is_over and not record.exists():
            return  # it may be on its way through a shared folder
        if resize is not None and state is ResizeState.STOPPING:
            self.feed(job, machine.WorldEnded(self._record(job, number)))
            if resize.committed:
                return
        status = codes[-1] or max(code or 0 for code in codes)
        if survives or (status == 0 and not record.exists() and self._survives(job, step)):
            end = self._record(job, number)
            if end is None or end.state == "FAILED":
                self._die(job, step, f"a rank has died (status {status})", failed=end is not None)
                return
        self.conclude(job, number, status)

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
        job.pulse, job.revives = None, False
        self.feed(job, machine.StepEnded())
        self.save_steps(job)

    def _record(self, job: JobRuntime, number: int) -> CompletionRecord | None:
        try:
            return read_completion(self._context.launcher.completion_file(job.id, number))
        except (OSError, ProtocolError):
            return None

    # --- deaths that a job survives ----------------------------------------------------------

    def _await_keepers(self, job: JobRuntime, number: int, step: Step) -> None:
        """Start the keepers of a step's next world, which is booted when all of them serve."""
        step.waits_s, job.revives = -inf, True
        self.save_steps(job)
        self._begin_with_keepers(job, number, step)

    def _begin_with_keepers(self, job: JobRuntime, number: int, step: Step) -> None:
        """Boot a world whose keepers serve, or have not come in time; copies need all of them."""
        context = self._context
        now, slots = context.now(), self.slots_of(job)[0]
        if job.ending is not None or job.fault:
            self.conclude(job, number, 1)
            return
        if step.death is not None and step.death.call is not None:
            if step.death.call() is None:  # the other nodes are being given back
                return
            step.death.call = None
        if context.state.running[job.id].state is JobState.SUSPENDED:
            return
        if step.waits_s == -inf:
            if not self.keepers.end(job.id) and self.keepers.start(job, step, slots):
                step.waits_s = now
            return
        served = self.keepers.serve(job, step, slots)
        if not served and now <= (step.waits_s or now) + KEEPER_S:
            return
        if not served:
            log.warning(f"job {job.id}: not all keepers have started within {KEEPER_S:g} s")
        if not served and step.life:  # it would begin anew, although there may be copies
            if step.restored[1] >= TRIES:
                self.conclude(job, number, 1)
                return
            self.keepers.drop_late(job, step)
            step.waits_s = None
            self._die(job, step, "its keepers have not all started")  # perhaps a node is lost
            return
        step.waits_s, job.revives = None, False
        self._begin(job, number, step)

    def _survives(self, job: JobRuntime, step: Step) -> bool:
        """Return whether another world of a step follows if its present one dies."""
        resize = job.resize
        relaunched = resize is not None and resize.state in machine.RELAUNCH
        ends = job.ending is not None or bool(job.fault)
        tried = step.restored[1] >= TRIES
        return bool(step.keepers) and step.has_polled and not (ends or relaunched or tried)

    def lose(self, job: JobRuntime, why: str) -> bool:
        """Give up a world, as nodes are lost or the script has ended; return False to end the job.

        The ranks that are left would wait for the others.
        """
        step = job.running_step
        if step is None or step.waits_s is not None or not self._survives(job, step):
            return False
        if step.death is None or step.death.revived:
            self._die(job, step, why)
        return True

    def _die(self, job: JobRuntime, step: Step, why: str, *, failed: bool = False) -> None:
        """End what is left of a world that has died, and ask for the cause."""
        context, before = self._context, step.death
        log.warning(f"job {job.id}: {why}; goes on from copies in memory")
        step.death = Death(context.time(), job.step, why, failed)
        if before is not None:  # the world that followed has died before it computed
            step.death.at_s, step.death.step = before.at_s, before.step
            step.restored = step.restored[0], step.restored[1] + 1
        job.revives = True
        self.feed(job, machine.WorldDied())
        for launch in step.worlds:
            context.launcher.kill(job.id, launch)
        hosts = context.cluster.hosts_of(context.state.running[job.id].held)
        step.death.call = context.launcher.nodes.diagnose_failure(job.id, hosts)

    def _revive(self, job: JobRuntime, number: int, step: Step, death: Death) -> None:
        """Go on once nothing is left of the world, on the nodes that are left."""
        context, launcher = self._context, self._context.launcher
        if job.ending is not None or job.fault:
            self.conclude(job, number, 1)
            return
        left = [launch for launch in step.worlds if self.has_processes(job, launch)]
        for launch in left:
            launcher.kill(job.id, launch)
        running = context.state.running[job.id]
        if left or job.resize is not None or running.state is JobState.SUSPENDED:
            return
        if death.call is not None and death.call() is None:
            return
        death.call = None
        hosts, lost = context.cluster.hosts_of(running.nodes), launcher.nodes.lost()
        gone = {*(launcher.nodes.unavailable() or ()), *lost}.intersection(hosts)
        if not launcher.nodes.reruns_scripts and hosts[0] not in lost:
            gone.discard(hosts[0])  # its script runs there, and could not run again
        if gone.issuperset(hosts) and context.now() <= death.at_s + HOSTS_S:
            return
        script_lost, script = hosts[0] in gone, job.script
        if script is not None and script.status() is not None and not script_lost:
            self.conclude(job, number, 1)
            return
        if (death.failed and not gone) or (script_lost and not launcher.nodes.reruns_scripts):
            self.conclude(job, number, 1)
            return
        if script_lost and launcher.members(job.id):
            launcher.kill(job.id)
            return
        kept = self._kept(job, gone) if gone else ()
        if gone and not kept:
            self.conclude(job, number, 1)
            return
        step.life += 1
        step.current, step.worlds, step.ranks, step.ended_s = (), {}, (), None
        if gone:
            self._go_narrower(job, number, step, gone, kept)
        death.revived, job.pulse, job.count = True, None, None
        if script_lost:
            context.launcher.status_file(job.id).unlink(missing_ok=True)
            self.run_again(job)
        else:
            self._await_keepers(job, number, step)

    def _kept(self, job: JobRuntime, gone: set[str]) -> tuple[Node, ...]:
        """Return the nodes with which a job goes on without others, none if it cannot."""
        context = self._context
        running = context.state.running[job.id]
        kept = tuple(n for n in running.nodes if context.cluster.host_of(n) not in gone)
        size = max((size for size in running.spec.sizes() if size <= len(kept)), default=0)
        if not size or not running.spec.mode.resizable or running.state is not JobState.RUNNING:
            names = ", ".join(sorted(gone))
            log.info(f"job {job.id}: has lost {names}, and cannot go on with {len(kept)} nodes")
            return ()
        return kept[:size]

    def _go_narrower(
        self, job: JobRuntime, number: int, step: Step, gone: set[str], kept: tuple[Node, ...]
    ) -> None:
        """Enter the loss of nodes; if that of the script is one, its line goes on with the step.

        Both are entered at once: a daemon that starts in between would take the script for ended.
        """
        context, names = self._context, ", ".join(sorted(gone))
        nodes, notes = context.state.running[job.id].nodes, tuple[Note, ...]()
        if step.death is not None:
            step.death.why = f"{names} {'are' if len(gone) > 1 else 'is'} lost"
        log.info(f"job {job.id}: {names} lost, goes on with {len(kept)} of {len(nodes)} nodes")
        self.keepers.lost(step, gone)
        before = job.heir, job.inherited, job.steps, job.keys, job.revives
        if context.cluster.host_of(nodes[0]) in gone:
            job.heir, job.inherited = number, step
            job.steps, job.keys, job.revives = [], [], False
            notes = ScriptNote(job.id), job.steps_note()
        try:
            self._handle(NodesLost(context.time(), job.id, kept), notes)
        except BaseException:  # on a full disk it is tried again
            job.heir, job.inherited, job.steps, job.keys, job.revives = before
            raise
        if step.death is not None:
            own = context.cluster.hosts_of(kept)
            step.death.call = context.launcher.nodes.release(job.id, own)

    def run_again(self, job: JobRuntime) -> None:
        """Run the script of a job whose node is lost."""
        log.info(f"job {job.id}: its script runs again, as its node is lost")
        try:
            self._scripts.run(job, self._context.state.running[job.id].nodes)
        except LaunchError as error:
            self._scripts.fail(job, str(error))

    def _computes_again(self, job: JobRuntime, step: Step, death: Death) -> None:
        """Enter what a death has cost, at the first message of the world that follows."""
        now_s, step.death = self._context.time(), None
        count = step.restored[1] + 1 if step.restored[0] == job.step and step.restored[1] else 1
        step.restored = job.step, count
        lost = max(0, death.step - job.step)
        since_s = min(death.at_s, passed_s([*step.passed, (death.at_s, death.step)], job.step))
        step.passed.clear()
        log.info(
            f"job {job.id}: computes again at step {job.step}, {now_s - death.at_s:.1f} s after "
            f"{death.why}; {lost} steps and {max(0.0, death.at_s - since_s):.1f} s are lost"
        )
        self.save_steps(job)
        self._handle(WorkLost(now_s, job.id, since_s, death.at_s, lost, death.why))

    # --- polls and reports of jobs -----------------------------------------------------------

    def poll(self, job: JobRuntime, poll: Poll) -> ResizeRequest | None:
        """Take in a job's progress; return the resize request that it does not have yet."""
        running = self._context.state.running.get(job.id)
        job.step, job.total = poll.step, poll.steps
        step = job.running_step
        if step is not None:
            now_s = self._context.now()
            if step.death is not None and step.death.revived:
                self._computes_again(job, step, step.death)
            if step.keepers:
                step.passed.append((self._context.time(), job.step))
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
        if job.revives:  # it has no world that could take part
            refusal = "later: its next world is about to start"
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
        waiting = self._boots.get(job.id)
        if waiting is not None and step is not None and resize.number == waiting.resize:
            late = self._context.now() > resize.begun_s + KEEPER_S
            if resize.state is ResizeState.BOOTING:
                slots = [slot for part in waiting.launches.values() for slot in part]
                if late or self.keepers.serve(job, step, slots):
                    self._boot(job, waiting)
                return
        self._boots.pop(job.id, None)
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
        if step.keepers and job.id not in self._boots:
            slots = [slot for part in boot.launches.values() for slot in part]
            started = self.keepers.start(job, step, slots)
            if not (started and self.keepers.serve(job, step, slots)):
                self._boots[job.id] = boot
                return
        self._boots.pop(job.id, None)
        env = self.keepers.environment(job, step)
        wanted = WorldLaunch(boot.step, 0, (), step.command, boot.resize, boot.cores, env=env)
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


def passed_s(passed: Sequence[tuple[float, int]], step: int) -> float:
    """Return when a job came to a step, by times at which it was at others, in their order."""
    before_s, before = passed[0]
    for at_s, n in passed:
        if n >= step:
            share = (step - before) / (n - before) if n > before else 1.0
            return before_s + min(1.0, max(0.0, share)) * (at_s - before_s)
        before_s, before = at_s, n
    return before_s


class Keepers:
    """Starts the keepers of jobs, and ends those that no job needs any more.

    A keeper is a process on each host of a job with ``--survive`` (:mod:`dmr.memory.keeper`), which
    holds copies of the ranks' data and outlives them. The keepers of a launcher line are started
    with its first world, on other hosts as the job is resized, and end with the line.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[JobId, set[int]] = {}
        """Keepers that have been started and may not have ended."""

    def start(self, job: JobRuntime, step: Step, slots: Sequence[str]) -> bool:
        """Have a keeper on each host of these slots that has none.

        It is on disk first, as a restarted daemon ends or uses them. Return whether it is: on a
        full disk none is started.
        """
        launcher, journal, new = self._context.launcher, self._context.journal, dict[int, str]()
        if not journal.caught_up():
            return False
        first = not step.keepers and job.inherited is None
        if first and launcher.members(keepers_of(job.id)):
            return False  # what ends those of the line before may end the new ones as well
        for number in [n for n in step.keepers if not self._runs(job.id, n)]:
            del step.keepers[number]
        for host in hosts_of(slots) or [""]:
            if host not in step.keepers.values():
                step.keepers[job.keeper_count] = new[job.keeper_count] = host
                job.keeper_count += 1
        journal.note(job.steps_note())
        if not journal.caught_up():
            return False
        self._known.setdefault(job.id, set()).update(new)
        for number, host in new.items():
            try:
                launcher.start_keeper(job.id, number, host)
            except LaunchError as error:
                log.warning(f"job {job.id}: no keeper on {host or 'this machine'}: {error}")
                del step.keepers[number]
        return True

    def _runs(self, job: JobId, number: int) -> bool:
        return bool(self._context.launcher.members(keepers_of(job), number))

    def serve(self, job: JobRuntime, step: Step, slots: Sequence[str]) -> bool:
        """Return whether a keeper serves on each host of these slots."""
        ready = {host for number, host in step.keepers.items() if self._line(job.id, number)}
        return ready.issuperset(hosts_of(slots) or [""])

    def drop_late(self, job: JobRuntime, step: Step) -> None:
        """Drop the keepers that do not serve yet."""
        step.keepers = {n: host for n, host in step.keepers.items() if self._line(job.id, n)}

    def _line(self, job: JobId, number: int) -> str:
        try:
            text = self._context.launcher.keeper_file(job, number).read_text()
        except OSError:
            return ""
        return text.strip() if text.endswith("\n") else ""

    def environment(self, job: JobRuntime, step: Step) -> dict[str, str]:
        """Return the variables of the ranks of a world, with the keepers that serve."""
        lines = list(filter(None, [self._line(job.id, number) for number in step.keepers]))
        if not lines:
            return {}
        env = {KEEPERS_VARIABLE: " ".join(lines), SUPERVISOR_VARIABLE: str(step.life)}
        if job.submission.survive != PLAN:
            env[MEMORY_VARIABLE] = job.submission.survive
        mtbf_h = self._context.settings.mtbf_h
        if mtbf_h is not None:
            env[MTBF_VARIABLE] = f"{mtbf_h:g}"
        return env

    def lost(self, step: Step, hosts: Iterable[str]) -> None:
        """Drop the keepers of hosts that are lost."""
        gone = set(hosts)
        step.keepers = {n: host for n, host in step.keepers.items() if host not in gone}

    def adopt(self, names: Iterable[str]) -> None:
        """Take back the keepers of an earlier daemon, by the owners of its processes."""
        jobs = [job for job in self._context.jobs.values() if job.keeper_count]
        self._known = {job.id: {*range(job.keeper_count)} for job in jobs}
        known = {keepers_of(job_id) for job_id in self._known}
        for name in names:
            if name.endswith(keepers_of("")) and name not in known:
                self._context.launcher.kill(name)

    def tick(self) -> None:
        """End the keepers that are not needed any more."""
        for job_id in list(self._known):
            self.end(job_id)

    def end(self, job_id: JobId, *, all_of: bool = False) -> bool:
        """End the keepers that a job does not need any more, or all; return whether some still run.

        Those of hosts that it has left stay until its present world has what they hold.
        """
        known = self._known.get(job_id)
        if not known:
            return False
        job, left = self._context.jobs.get(job_id), False
        runs = job is not None and job_id in self._context.state.running
        needed: set[int] = set()
        if job is not None and runs and not all_of:
            for step in job.lasting:
                kept = self._needed(job, step)
                step.keepers = {n: host for n, host in step.keepers.items() if n in kept}
                needed |= kept
        launcher, owner = self._context.launcher, keepers_of(job_id)
        for number in known - needed:
            if launcher.members(owner, number):
                launcher.kill(owner, number)
                left = True
            else:
                known.discard(number)
        if not known:
            del self._known[job_id]
        return left

    def _needed(self, job: JobRuntime, step: Step) -> set[int]:
        """Return the keepers that a step needs: of all hosts while it is started or resized."""
        running = self._context.state.running[job.id]
        if job.resize is not None or job.revives or running.requested_nodes is not None:
            return {*step.keepers}
        hosts = hosts_of(self._context.cluster.slots_of(running.held)) or [""]
        return {n for n, host in step.keepers.items() if host in hosts}
