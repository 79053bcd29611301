"""The worlds of a job's steps: booted, watched, replaced, and none left behind.

A resize by ``warm``, ``restart`` or ``merge`` starts here: the next world boots beside the running
one, says that it is ready, and only then is the job told. Every state has a deadline; a world that
misses it is killed, and its slots are free only when its processes are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rms.core.events import ResizeBegun, Resized, ResizeRolledBack
from rms.core.model import JobId
from rms.daemon import relaunch
from rms.daemon.jobs import JobRuntime, PendingResize, Step
from rms.launch.base import (
    LaunchCommand,
    LaunchError,
    ManagedProcess,
    WorldLaunch,
    cores_of,
    hosts_of,
)
from rms.wire.messages import (
    ApplicationResizeRequest,
    Begun,
    BootedWorld,
    Done,
    Failed,
    ProtocolError,
    Ready,
    Report,
    RolledBack,
    read_completion,
)

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon

BOOT_S = 60.0
MOVE_S = 180.0
LEAVE_S = 10.0
LATER_S = 10.0
"""How long a job is left alone whose resize was refused, but may go through later."""

UNTOLD_S = 10.0
"""How long a launch may be over before what it has to say (a commit, a record) must be here."""


class Worlds:
    """Starts and watches worlds on behalf of a daemon.

    Args:
        boot_s: deadline for a world from its launch until it is ready.
    """

    def __init__(self, daemon: Daemon, boot_s: float = BOOT_S) -> None:
        self._daemon, self._boot_s = daemon, boot_s

    # --- steps -------------------------------------------------------------------------------

    def start(
        self, job_id: JobId, live: JobRuntime, line: LaunchCommand, slots: Sequence[str], key: str
    ) -> int:
        """Boot the first world of a launcher line; return the step's number."""
        number = len(live.steps)
        step = Step(line)
        live.steps.append(step)
        live.keys.append(key)
        self._daemon.journal.note(f"line/{job_id}/{number}", msgspec.to_builtins(line))
        self.note(job_id, live)
        launch = live.launches
        live.launches += 1
        try:
            step.worlds[launch] = self._daemon.launcher.boot_world(
                job_id, WorldLaunch(number, launch, slots, line)
            )
            step.current = (launch,)
        except LaunchError as error:
            step.exit_code, step.message = 1, str(error)
        self.note(job_id, live)
        return number

    def note(self, job_id: JobId, live: JobRuntime) -> None:
        """Keep what a restarted daemon needs to know of a job's steps."""
        steps = [
            {
                "pids": {str(n): child.pid for n, child in step.worlds.items()},
                "current": step.current,
                "strategy": step.strategy,
                "groups": step.groups,
                "exit_code": step.exit_code,
                "message": step.message,
            }
            for step in live.steps
        ]
        self._daemon.journal.note(
            f"steps/{job_id}", {"keys": live.keys, "launches": live.launches, "steps": steps}
        )

    def watch(self, job_id: JobId, live: JobRuntime) -> None:
        """Look at a job's launches once."""
        if live.boot is not None:
            self._watch_boot(job_id, live, live.boot)
        for number, step in enumerate(live.steps):
            if step.exit_code is None:
                self._watch_step(job_id, live, number, step)

    def _watch_step(self, job_id: JobId, live: JobRuntime, number: int, step: Step) -> None:
        codes = [step.worlds[n].status() for n in step.current]
        if all(code is None for code in codes):
            step.ended_s = None
            return
        daemon, now = self._daemon, self._daemon.now()
        if step.ended_s is None:
            step.ended_s = now
        late = now > step.ended_s + UNTOLD_S
        if None in codes:
            if late:  # launches that were merged live and die together
                for n in step.current:
                    self._daemon.launcher.kill(job_id, n)
            return
        boot = live.boot
        record = self._daemon.launcher.completion_file(job_id, number)
        if boot is not None and boot.state in ("ready", "moving") and not late:
            # The job may have gone over to these without a word so far.
            alive = [n for n in boot.launches if step.worlds[n].status() is None]
            if alive and not record.exists():
                return
        if step.spoke and daemon.launcher.shared_filesystem and not late and not record.exists():
            return  # it may be on its way through a shared folder
        stopping = boot is not None and boot.state == "stopping"
        if boot and stopping and relaunch.stopped(daemon, job_id, live, number, boot):
            return
        self.conclude(job_id, live, number, codes[-1] or max(c or 0 for c in codes))

    def conclude(self, job_id: JobId, live: JobRuntime, number: int, status: int) -> None:
        """Enter how a step ended."""
        step = live.steps[number]
        try:
            record = read_completion(self._daemon.launcher.completion_file(job_id, number))
            step.exit_code, step.message = record.exit_code, record.message
            live.answer = record.answer or live.answer
        except (OSError, ProtocolError):
            # No record of a program of dmr: it died, whatever mpiexec's own status says.
            # Another program has had no worlds but this one, so that status counts.
            if status == 0 and not step.spoke:
                step.exit_code = 0
            else:
                step.exit_code, step.message = status or 1, "died without a completion record"
        if live.boot is not None and live.boot.state not in ("leaving", "starting"):
            self._close(job_id, live, live.boot, "the job ended")
        self.note(job_id, live)

    # --- a resize ----------------------------------------------------------------------------

    def begin(self, job_id: JobId, live: JobRuntime, slots: tuple[str, ...]) -> None:
        """Do what a wished resize needs before the job is told of it."""
        daemon, step = self._daemon, live.running
        strategy = "spawn" if step is None else live.forced or step.strategy
        live.forced = None
        have = daemon.slots(daemon.engine.state.running[job_id].nodes)
        why = daemon.launcher.resize_refusal(job_id, hosts_of(have), hosts_of(slots))
        if why:
            relaunch.begin(daemon, job_id, live, slots, why)
            return
        errand = daemon.launcher.grant(job_id, hosts_of(have), hosts_of(slots))
        if errand is None:
            self._boot(
                job_id, live, PendingResize(daemon.scheduler.resizes[job_id], slots, strategy)
            )
            return
        live.boot = PendingResize(
            daemon.scheduler.resizes[job_id], slots, strategy, state="granting"
        )
        live.errand = errand
        self.keep(job_id, live)

    def _boot(self, job_id: JobId, live: JobRuntime, boot: PendingResize) -> None:
        """Boot what a resize needs, on nodes that the job holds by now; or tell it at once."""
        daemon, step, slots = self._daemon, live.running, boot.slots
        have = daemon.slots(daemon.engine.state.running[job_id].nodes)
        parts: list[tuple[str, ...]] = []
        if boot.strategy == "merge" and step is not None:
            boot.strategy, parts = _merging(step, have, slots)
        if boot.strategy in ("warm", "restart"):
            parts = [slots]
        if step is None or not parts:
            live.wish = boot.wish
            if live.boot is not None:
                boot.state, boot.until_s = "ready", float("inf")
                self.keep(job_id, live)
            return
        now = daemon.now()
        live.boot = boot
        boot.state, boot.begun_s, boot.until_s = "booting", now, now + self._boot_s
        spare = [c for c in cores_of(slots) if c not in cores_of(have)]
        number = live.steps.index(step)
        for launch, part in enumerate(parts, live.launches):
            boot.launches[launch] = part
        live.launches += len(parts)
        self.note(job_id, live)
        self.keep(job_id, live)
        for launch, part in boot.launches.items():
            try:
                child = daemon.launcher.boot_world(
                    job_id, WorldLaunch(number, launch, part, step.line, boot.number, spare)
                )
            except LaunchError as error:
                self._close(job_id, live, boot, str(error))
                return
            step.worlds[launch] = child
            boot.pids[launch] = child.pid
        self.keep(job_id, live)

    def hear(self, job_id: JobId, live: JobRuntime, report: Report) -> None:
        """Take a report of a job, or of a world that boots; one heard already changes nothing."""
        daemon, boot = self._daemon, live.boot
        job = daemon.engine.state.running.get(job_id)
        if isinstance(report, ApplicationResizeRequest):
            return  # for the daemon, which decides
        if isinstance(report, RolledBack) and live.running is not None:
            live.running.strategy = report.strategy  # before there can be another wish
        if (
            report.number != daemon.scheduler.resizes.get(job_id)
            or job is None
            or job.requested_nodes is None
        ):
            return
        if isinstance(report, Ready):
            if boot is not None and boot.state == "booting" and report.launch in boot.launches:
                self._ready(job_id, live, boot, report)
        elif isinstance(report, Failed):
            if boot is not None and boot.state in ("booting", "ready"):
                self._close(job_id, live, boot, report.reason)
        elif boot is not None and boot.state in ("leaving", "closing", "releasing"):
            return
        elif isinstance(report, RolledBack):
            live.wish = None
            if boot is None:
                self.roll_back(job_id, live, report.reason)
            else:
                self._close(job_id, live, boot, report.reason)
        elif isinstance(report, Begun | Done):
            if boot is not None and boot.state == "ready":
                boot.state, boot.until_s = "moving", daemon.now() + MOVE_S
                self.keep(job_id, live)
            if not job.resize_begun:
                daemon.handle(ResizeBegun(daemon.time(), job_id))
            if isinstance(report, Done):
                self._done(job_id, live, report)

    def _ready(self, job_id: JobId, live: JobRuntime, boot: PendingResize, report: Ready) -> None:
        now = self._daemon.now()
        boot.ready[report.launch] = BootedWorld(
            report.launch,
            len(boot.launches[report.launch]),
            report.address,
            report.port,
            now - boot.begun_s,
        )
        if len(boot.ready) == len(boot.launches):
            boot.state, boot.until_s = "ready", float("inf")
            live.wish = boot.wish
        self.keep(job_id, live)

    def _done(self, job_id: JobId, live: JobRuntime, report: Done) -> None:
        """The new world is the job: wait for those who leave, then free what they held."""
        daemon, step = self._daemon, live.running
        live.wish = None
        live.resizes.append({"at_s": daemon.time(), **msgspec.to_builtins(report.resize)})
        daemon.journal.note(f"resizes/{job_id}", {"rows": live.resizes})
        boot = live.boot or PendingResize(report.number, (), report.resize.strategy)
        if step is not None and report.launches:
            boot.leaving = [n for n in step.worlds if n not in report.launches]
            step.current, step.ended_s = report.launches, None
        live.boot = boot
        boot.state, boot.committed = "leaving", True
        boot.until_s = daemon.now() + LEAVE_S
        self.note(job_id, live)
        self.keep(job_id, live)
        self._watch_boot(job_id, live, boot)

    def _watch_boot(self, job_id: JobId, live: JobRuntime, boot: PendingResize) -> None:
        daemon, step = self._daemon, live.running
        late = daemon.now() > boot.until_s
        if boot.state == "granting":
            self._granting(job_id, live, boot)
            return
        if boot.state in relaunch.STATES:
            relaunch.watch(daemon, job_id, live, boot)
            return
        if boot.state == "closing" and live.errand is not None:  # nodes are being asked for still
            if live.errand() is None:
                return
            live.errand = None
        if boot.state in ("leaving", "closing"):
            if not self._gone(job_id, live, boot.leaving, kill=late or boot.state == "closing"):
                return
            for known in live.steps:
                known.worlds = {n: c for n, c in known.worlds.items() if n not in boot.leaving}
            self.note(job_id, live)
            boot.state = "releasing"
            self.keep(job_id, live)
        if boot.state == "releasing":
            self._releasing(job_id, live, boot)
            return
        if boot.state in ("booting", "ready") and step is not None:
            ended = [c for n in boot.launches if (c := step.worlds[n].status()) is not None]
            if ended:
                why = f"the new world ended with {max(ended)} while {boot.state}"
                self._close(job_id, live, boot, why)
        if late and boot.state == "booting":
            why = f"the new world was not ready within {self._boot_s:g} s"
            self._close(job_id, live, boot, why)
        elif late and boot.state == "moving":
            daemon.say(f"job {job_id}: no word of its resize for {MOVE_S:g} s; it is ended")
            boot.until_s = float("inf")
            daemon.launcher.kill(job_id)

    def _granting(self, job_id: JobId, live: JobRuntime, boot: PendingResize) -> None:
        """Go on once the nodes are the job's, or give up where they will not be."""
        answer = "" if live.errand is None else live.errand()
        if answer is None:
            return
        live.errand = None
        if answer:
            self._close(job_id, live, boot, answer)
        elif live.ending is not None:
            self._close(job_id, live, boot, "the job is told to end")
        else:
            self._boot(job_id, live, boot)

    def _releasing(self, job_id: JobId, live: JobRuntime, boot: PendingResize) -> None:
        """Give back the nodes that the resize has made free; until then they are the job's."""
        daemon = self._daemon
        if live.errand is None:
            slots = boot.slots
            if not boot.committed:
                slots = daemon.slots(daemon.engine.state.running[job_id].nodes)
            live.errand = daemon.launcher.release(job_id, hosts_of(slots))
        answer = "" if live.errand is None else live.errand()
        if answer is None:
            return
        if answer:
            daemon.say(f"job {job_id}: {answer}; tried again")
        live.errand = None
        if answer:
            return
        live.boot = None
        self.keep(job_id, live)
        if boot.committed:
            daemon.handle(Resized(daemon.time(), job_id, self.rest(live)))
        else:
            self.roll_back(job_id, live, boot.why)

    def roll_back(self, job_id: JobId, live: JobRuntime, why: str) -> None:
        """Tell the scheduler."""
        daemon = self._daemon
        later = why.startswith("later: ")
        rests = self.rest(live, LATER_S if later else 0.0)
        daemon.handle(ResizeRolledBack(daemon.time(), job_id, why, rests, later))

    def rest(self, live: JobRuntime, least_s: float = 0.0) -> bool:
        """Begin a job's cooldown; return whether it has one."""
        cooldown_s = max(least_s, 0.0 if live.running is None else live.running.cooldown_s)
        live.rests_until_s = self._daemon.now() + cooldown_s
        return cooldown_s > 0

    def _gone(
        self, job_id: JobId, live: JobRuntime, launches: Sequence[int], *, kill: bool
    ) -> bool:
        """Return whether launches have no processes any more."""
        launcher = self._daemon.launcher
        children = {n: c for step in live.steps for n, c in step.worlds.items()}
        left = False
        for n in launches:
            here = n in children and children[n].status() is None
            if here or launcher.members(job_id, n):
                left = True
                if kill:  # not what is gone: a launcher may have to ask somebody for that
                    launcher.kill(job_id, n)
        return not left

    def _close(self, job_id: JobId, live: JobRuntime, boot: PendingResize, why: str) -> None:
        """Roll back: the new worlds are killed; their slots are free when they are gone."""
        live.wish = None
        boot.state, boot.why, boot.leaving = "closing", why, list(boot.launches)
        self.keep(job_id, live)
        for launch in boot.leaving:
            self._daemon.launcher.kill(job_id, launch)

    def keep(self, job_id: JobId, live: JobRuntime) -> None:
        """Note the resize in flight, infinities aside."""
        boot = live.boot
        found = {} if boot is None else msgspec.to_builtins(boot, str_keys=True) | {"until_s": 0.0}
        self._daemon.journal.note(f"boot/{job_id}", found)

    def take_back(self, job_id: JobId, live: JobRuntime) -> None:
        """Go on, after a restart of the daemon, with the resize that was in flight."""
        daemon = self._daemon
        noted = daemon.journal.notes(f"boot/{job_id}").get(f"boot/{job_id}", {})
        job = daemon.engine.state.running[job_id]
        if job.requested_nodes is None:
            return
        if not noted:
            self.begin(job_id, live, daemon.slots(job.requested_nodes))
            return
        boot = live.boot = msgspec.convert(noted, PendingResize, strict=False)
        if boot.state == "granting":
            live.boot = None
            live.forced = boot.strategy
            self.begin(job_id, live, boot.slots)
            return
        if boot.state in relaunch.STATES:
            boot.until_s = daemon.now() + daemon.grace_s
            if not boot.committed:
                daemon.terminate(job_id, live)
            return
        now = daemon.now()
        waits = {"booting": self._boot_s, "ready": float("inf"), "moving": MOVE_S}
        boot.until_s = now + waits.get(boot.state, LEAVE_S)
        daemon.say(f"job {job_id}: its resize goes on, {boot.state}")
        if boot.state in ("ready", "moving"):
            live.wish = boot.wish
        step = live.running
        for launch in boot.launches:
            if step is not None and launch not in step.worlds:
                found = daemon.launcher.members(job_id, launch)
                step.worlds[launch] = ManagedProcess(boot.pids.get(launch) or min(found, default=0))


def _merging(
    step: Step, have: tuple[str, ...], slots: tuple[str, ...]
) -> tuple[str, list[tuple[str, ...]]]:
    """Return how to merge: what each launch is to hold, none for a shrink; or warm instead."""
    if len(slots) > len(have) and slots[: len(have)] == have:
        return "merge", [(slot,) for slot in slots[len(have) :]]
    kept = 0
    for _, ranks in step.groups:
        kept += ranks
        if kept == len(slots) and slots == have[:kept]:
            return "merge", []
    return "warm", []
