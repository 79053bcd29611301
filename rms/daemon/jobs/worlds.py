"""The worlds of a job's steps: booted, watched, replaced, and none left behind.

What a resize needs is decided by :class:`rms.daemon.jobs.machine.ResizeMachine`; it is told here what is
seen of the processes, and its instructions are carried out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rms.core.model.events import ResizeBegun, Resized, ResizeRolledBack
from rms.core.model.jobs import JobId, Node
from rms.daemon.jobs import machine
from rms.daemon.jobs import machine as do
from rms.daemon.jobs.machine import ResizeMachine
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.store.context import Context, Handle, Notes
from rms.daemon.store.private import line_file
from rms.daemon.store.record import JobRuntime, Step
from rms.launch.base import (
    LaunchCommand,
    LaunchError,
    ManagedProcess,
    WorldLaunch,
    hosts_of,
)
from rms.wire.messages import (
    LAUNCHES_VARIABLE,
    PER_NODE,
    ApplicationResizeRequest,
    CompletionRecord,
    Done,
    ProtocolError,
    Report,
    read_completion,
)

MOST_RANKS = 1 << 20
"""No job has more; larger numbers are a mistake, or an attack."""

UNTOLD_S = 10.0
"""How long a launch may be over before what it has to say (a commit, a record) must be here."""


class Worlds:
    """Starts and watches worlds, and carries out what the resize machine says."""

    def __init__(self, context: Context, scripts: Scripts, handle: Handle) -> None:
        settings = context.settings
        self._context, self._scripts, self._handle = context, scripts, handle
        self._machine = ResizeMachine(settings.boot_s, settings.grace_s)

    # --- steps -------------------------------------------------------------------------------

    def launch(
        self, job: JobRuntime, command: LaunchCommand, slots: Sequence[str], key: str
    ) -> int:
        """Boot the first world of a launcher line; return the step's number.

        Raises:
            OSError: its environment cannot be kept.
        """
        number, step = len(job.steps), Step(command)
        self._context.private.keep(line_file(job.id, number), command.env)
        job.steps.append(step)
        job.keys.append(key)
        key = f"line/{job.id}/{number}"
        note = msgspec.to_builtins(command)
        del note["env"]  # it may hold secrets
        self._context.journal.note(key, note)
        self.save_steps(job)
        parts = dict(enumerate(self.parts(job.id, command, slots), job.launch_count))
        # A job that is being relaunched starts on the slots that its resize brings.
        relaunched = job.resize is not None and job.resize.state == "starting"
        kinds = self._kinds(job, parts, resized=relaunched)
        job.launch_count += len(parts)
        launches = tuple((launch, len(part)) for launch, part in parts.items())
        try:
            for launch, part in parts.items():
                all_of_them = launches if len(parts) > 1 else ()
                given = number, launch, part, command
                wanted = WorldLaunch(*given, launches=all_of_them, processors=kinds[launch])
                step.worlds[launch] = self._context.launcher.boot_world(job.id, wanted)
            step.current = tuple(parts)
            self.enter_worlds(job, step.current)
        except LaunchError as error:
            step.exit_code, step.message = 1, str(error)
            for launch in step.worlds:
                self._context.launcher.kill(job.id, launch)
        self.save_steps(job)
        return number

    def parts(
        self, job: JobId, command: LaunchCommand, slots: Sequence[str]
    ) -> list[Sequence[str]]:
        """Return the slots of each launch that a job starts as: one, or one for each node."""
        context, running = self._context, self._context.state.running.get(job)
        asked = command.env.get(LAUNCHES_VARIABLE) == PER_NODE
        if not asked or running is None or not running.spec.mode.resizable:
            return [slots]
        parts: list[Sequence[str]] = [context.cluster.slots[node] for node in running.held]
        whole = [slot for part in parts for slot in part] == [*slots]
        return parts if whole and context.launcher.joins_launches(command) else [slots]

    def _kinds(
        self, job: JobRuntime, launches: Mapping[int, Sequence[str]], *, resized: bool
    ) -> dict[int, tuple[str, ...]]:
        """Return the kinds of processors of each launch, in the order of its slots.

        Args:
            launches: the slots of each; together they are the last ones of a world.
            resized: that world is the one that a resize brings, not the job's present one.
        """
        cluster, running = self._context.cluster, self._context.state.running.get(job.id)
        nodes: tuple[Node, ...] | None = ()
        if running is not None:
            nodes = running.requested_nodes if resized else running.nodes
        found = cluster.kinds_of(nodes or ())
        kinds, at = {}, len(found) - sum(map(len, launches.values()))
        for launch, slots in launches.items():
            kinds[launch] = found[at : at + len(slots)] if found else ()
            at += len(slots)
        return kinds

    def enter_worlds(self, job: JobRuntime, launches: tuple[int, ...] = ()) -> None:
        """Tell the energy books which launches of a job are on which of its nodes.

        Args:
            launches: the one that all of them are of, or one for each; () for those that a resize
                brings.
        """
        context, resize = self._context, job.resize
        running = context.state.running.get(job.id)
        if running is None:
            return
        cluster, wanted, found = context.cluster, running.requested_nodes, dict[Node, int]()
        if launches:
            nodes = running.held
            alone = len(launches) == 1
            found = dict(zip(nodes, launches * len(nodes) if alone else launches, strict=True))
        elif resize is not None and resize.launches and wanted is not None:
            # They are on the last slots of the new world, or on all of them.
            places = [node for node in wanted for _ in cluster.slots[node]]
            numbers = [n for n, slots in resize.launches.items() for _ in slots]
            for node, number in zip(places[-len(numbers) :], numbers, strict=True):
                if resize.committed or node not in running.nodes:
                    found[node] = number
        worlds = {cluster.names[node]: number for node, number in found.items()}
        if worlds:
            context.scheduler.energy.measured.spans.launched(context.time(), job.id, worlds)

    def save_steps(self, job: JobRuntime) -> None:
        """Keep what a restarted daemon needs to know of a job's steps."""
        self._context.note("steps", job, job.steps_note())

    def watch(self, job: JobRuntime) -> None:
        """Look at a job's launches once."""
        self._observe(job)
        for number, step in enumerate(job.steps):
            if step.exit_code is None:
                self._watch_step(job, number, step)

    def _watch_step(self, job: JobRuntime, number: int, step: Step) -> None:
        codes = [step.worlds[n].status() for n in step.current]
        if all(code is None for code in codes):
            step.ended_s = None
            return
        launcher, now = self._context.launcher, self._context.now()
        if step.ended_s is None:
            step.ended_s = now
        late = now > step.ended_s + UNTOLD_S
        died = any(codes)  # ranks that leave, or complete, exit with 0
        if None in codes:
            if late and died:  # launches that were merged live and die together
                for n in step.current:
                    launcher.kill(job.id, n)
            return
        resize, record = job.resize, launcher.completion_file(job.id, number)
        state = "" if resize is None else resize.state
        left = state == "moving" and not died  # the deadline of the state moving applies
        if resize is not None and (left or (state in ("ready", "moving") and not late)):
            # The job may have gone over to these without a word so far.
            alive = [n for n in resize.launches if step.worlds[n].status() is None]
            if alive and not record.exists():
                return
        if step.has_polled and launcher.shared_filesystem and not late and not record.exists():
            return  # it may be on its way through a shared folder
        if resize is not None and resize.state == "stopping":
            self.resize(job, machine.WorldEnded(self._record(job, number)))
            if resize.committed:
                return
        self.conclude(job, number, codes[-1] or max(code or 0 for code in codes))

    def conclude(self, job: JobRuntime, number: int, status: int) -> None:
        """Enter how a step ended."""
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
        self.resize(job, machine.StepEnded())
        self.save_steps(job)

    def _record(self, job: JobRuntime, number: int) -> CompletionRecord | None:
        try:
            return read_completion(self._context.launcher.completion_file(job.id, number))
        except (OSError, ProtocolError):
            return None

    # --- resizes -----------------------------------------------------------------------------

    def report(self, job: JobRuntime, report: Report) -> None:
        """Take in how a resize goes, or that the job itself would have one.

        Raises:
            ValueError: it speaks of launches that there are not, or of ranks that cannot be.
        """
        if isinstance(report, ApplicationResizeRequest):
            if not 0 < report.ranks <= MOST_RANKS:
                raise ValueError(f"expected 1 to {MOST_RANKS} ranks, got {report.ranks}")
            job.requested_ranks = report.ranks
            return
        if isinstance(report, Done):
            known = {launch for step in job.steps for launch in step.worlds}
            unknown = [launch for launch in report.launches if launch not in known]
            if unknown:
                raise ValueError(f"expected launches of job {job.id}, got {unknown[0]}")
        self.resize(job, report)

    def begin_resize(self, job: JobRuntime, slots: tuple[str, ...], strategy: str = "") -> None:
        """Do what a resize needs that was decided.

        Args:
            strategy: a user's choice, or "" for the job's own.
        """
        context = self._context
        have = context.cluster.slots_of(context.state.running[job.id].nodes)
        refusal = context.launcher.nodes.resize_refusal(job.id, hosts_of(have), hosts_of(slots))
        number = context.scheduler.resizes[job.id]
        self.resize(job, machine.Decided(number, slots, strategy, refusal))

    def resize(self, job: JobRuntime, given: machine.Input) -> do.Instructions:
        """Hand the machine what happened and carry out what it returns; return that too.

        What is to be saved is so together with the event behind it, or before anything is done.
        """
        facts = self._facts(job)
        if facts is None:
            return []  # the job is over
        found, notes = self._machine.handle(job, facts, given), Notes()
        for each in found:
            if isinstance(each, do.SaveResize | do.SaveSteps | do.SavePast):
                notes |= self._to_save(job, each)
            else:
                self._carry_out(job, each, notes)
                notes = {}
        if notes:
            self._context.journal.keep(notes)
        return found

    def _to_save(self, job: JobRuntime, what: do.SaveCommand) -> Notes:
        if isinstance(what, do.SaveResize):
            return {f"boot/{job.id}": what.note}
        if isinstance(what, do.SaveSteps):
            return {f"steps/{job.id}": job.steps_note()}
        self.enter_worlds(job)
        return {f"resizes/{job.id}": {"rows": msgspec.to_builtins(job.resizes)}}

    def _facts(self, job: JobRuntime) -> machine.Facts | None:
        context = self._context
        running = context.state.running.get(job.id)
        if running is None:
            return None
        wanted, slots_of = running.requested_nodes, context.cluster.slots_of
        return machine.Facts(
            context.now(),
            context.time(),
            slots_of(running.nodes),
            None if wanted is None else slots_of(wanted),
            running.resize_begun,
            context.scheduler.resizes.get(job.id, 0),
        )

    def _observe(self, job: JobRuntime) -> None:
        """Look at what the resize in flight waits for."""
        resize, step = job.resize, job.running_step
        if resize is None or resize.state == "requested":
            return
        if job.call is not None:
            answer = job.call()
            if answer is not None:
                job.call = None
                self.resize(job, machine.CallAnswered(answer))
            return
        ended: dict[int, int] = {}
        if resize.state in ("booting", "ready") and step is not None:
            codes = {n: step.worlds[n].status() for n in resize.launches}
            ended = {n: code for n, code in codes.items() if code is not None}
        gone: frozenset[int] = frozenset()
        if resize.state in ("leaving", "closing"):
            gone = frozenset(n for n in resize.leaving if not self.has_processes(job, n))
        self.resize(job, machine.Observed(ended, gone))

    def has_processes(self, job: JobRuntime, launch: int) -> bool:
        """Return whether something is left of a launch."""
        known = {n: world for step in job.steps for n, world in step.worlds.items()}
        runs = launch in known and known[launch].status() is None
        return runs or bool(self._context.launcher.members(job.id, launch))

    # --- instructions ------------------------------------------------------------------------

    def _carry_out(self, job: JobRuntime, what: do.ActCommand, notes: Notes) -> None:
        context = self._context
        if isinstance(what, ResizeBegun | Resized | ResizeRolledBack):
            self.enter_worlds(job)
            self._handle(what, notes)
            return
        if isinstance(what, do.RunScript):  # what it leaves is no more that of the one before
            context.launcher.status_file(job.id).unlink(missing_ok=True)
            notes |= {f"script/{job.id}": {}}
        if notes:
            context.journal.keep(notes)
        if isinstance(what, do.TellJob):
            job.tell()
        elif isinstance(what, do.Observe):
            self._observe(job)
        elif isinstance(what, do.Decide):
            self.begin_resize(job, what.slots, what.strategy)
        elif isinstance(what, do.Say):
            context.say(what.words)
        else:
            self._launch_or_end(job, what)

    def _launch_or_end(self, job: JobRuntime, what: do.ProcessCommand) -> None:
        context, launcher = self._context, self._context.launcher
        if isinstance(what, do.AskGrant):
            job.call = launcher.nodes.grant(job.id, what.have, what.wanted)
            self.resize(job, machine.CallAnswered() if job.call is None else machine.CallStarted())
        elif isinstance(what, do.AskRelease):
            job.call = launcher.nodes.release(job.id, what.hosts)
            if job.call is None:
                self.resize(job, machine.CallAnswered())
            else:
                self._observe(job)  # it may be done already
        elif isinstance(what, do.BootWorlds):
            self._boot(job, what)
        elif isinstance(what, do.KillLaunch):
            launcher.kill(job.id, what.launch)
        elif isinstance(what, do.KillJob):
            launcher.kill(job.id)
        elif isinstance(what, do.Terminate):
            self._scripts.terminate(job)
        elif isinstance(what, do.FindLaunches):
            self._find(job, what.launches)
        elif isinstance(what, do.Requeue):
            self._scripts.requeue(job, what.reason)
        else:
            wanted = context.state.running[job.id].requested_nodes
            if wanted is None:
                raise RuntimeError(f"expected a requested resize of {job.id}")
            try:
                self._scripts.run(job, wanted)
            except LaunchError as error:
                self._scripts.fail(job, str(error))

    def _boot(self, job: JobRuntime, what: do.BootWorlds) -> None:
        step = job.steps[what.step]
        pids: dict[int, int] = {}
        kinds = self._kinds(job, what.launches, resized=True)
        for launch, slots in what.launches.items():
            given = what.step, launch, slots, step.command, what.resize, what.cores
            wanted = WorldLaunch(*given, processors=kinds[launch])
            try:
                step.worlds[launch] = self._context.launcher.boot_world(job.id, wanted)
            except LaunchError as error:
                self.resize(job, machine.Booted(pids, str(error)))
                return
            pids[launch] = step.worlds[launch].pid
        self.resize(job, machine.Booted(pids))

    def _find(self, job: JobRuntime, launches: tuple[int, ...]) -> None:
        """Find launches again whose start was not noted before the daemon was killed."""
        step, resize = job.running_step, job.resize
        if step is None or resize is None:
            return
        for launch in launches:
            found = self._context.launcher.members(job.id, launch)
            pid = resize.pids.get(launch) or min(found, default=0)
            step.worlds[launch] = ManagedProcess(pid)
