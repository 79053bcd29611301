"""Engine ``slurm-pilot`` on demand: a pilot that requests nodes of Slurm, and returns them.

A job may have nodes of several allocations: its worlds reach a node by a step in the allocation of
that node. Allocations are batch jobs whose script only waits, so they outlive a daemon that is
killed. The script ends by the age of a file that the daemon touches.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from rms.core.rules.checks import LEAST_S
from rms.launch.base import Demand, LeaseTerms
from rms.launch.slurm.commands import Executor, Meaning, SlurmError
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.ondemand import (
    Action,
    Alter,
    GiveBack,
    Pending,
    PilotLimits,
    Running,
    Submit,
    Withdraw,
    decide,
)
from rms.launch.slurm.output import NO_TEXT, QueuedJob
from rms.launch.slurm.pilot import PilotNodes

POLL_S = 2.0  # time between two polls of the queue
TOUCH_S = 60.0
ABANDONED_MIN = 30
"""Minutes without a daemon after which an allocation ends by itself."""

RETRY_S = 30.0
RETRY_MOST_S = 600.0
"""Pause after a refusal, which doubles with every further one, and its maximum."""

SHORT_S = 30.0  # an allocation that ends by itself so soon is a failure
CANCEL_S = 10.0  # time limit for cancelling the allocations when the daemon ends
COMING = ("CONFIGURING", "RESIZING")
SCRIPT = f"""#!/bin/sh
# Holds nodes for a daemon, which touches the file $1 while it is there and removes it at its end.
while [ -n "$(find "$1" -mmin -{ABANDONED_MIN} 2>/dev/null)" ]; do sleep 5; done
"""


@dataclass
class Allocations:
    """The allocations of one pilot in Slurm's queue.

    Attributes:
        folder: for their script, and the file that is touched.
        running, coming: allocations with nodes, and with nodes that are being made ready.
        current: whether Slurm has answered since the last request, so that all of this holds.
        narrows: whether running allocations can return single nodes; true until a refusal.
        wait_reason: the reason why requested nodes have not come, "" without requests.
    """

    executor: Executor
    name: str
    options: Sequence[str]
    folder: Path
    running: dict[int, QueuedJob] = field(default_factory=dict)
    coming: dict[int, QueuedJob] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    current: bool = False
    silent: bool = False
    narrows: bool = True
    barred: frozenset[str] = frozenset()
    news: list[str] = field(default_factory=list)
    wait_reason: str = ""
    _requested: dict[int, tuple[int, int]] = field(default_factory=dict)
    _returned: set[int] = field(default_factory=set)
    _over: set[int] = field(default_factory=set)
    _query: Future[list[QueuedJob]] | None = None
    _acting: Future[list[str]] | None = None
    _next_s: float = 0.0
    _touch_s: float = -inf
    _submit_s: float = -inf
    _refused: int = 0
    _refused_words: str = ""

    def __post_init__(self) -> None:
        self._script, self._alive = self.folder / "allocation.sh", self.folder / "alive"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._script.write_text(SCRIPT)
        self.slurm = self.executor.slurm

    @property
    def may_submit(self) -> bool:
        """Whether the pause after a refusal is over."""
        return time.monotonic() >= self._submit_s

    def look(self) -> None:
        """Query the queue now, and wait for the answer, if there is one."""
        with contextlib.suppress(SlurmError):
            self._take_in(self._rows())

    def poll(self) -> bool:
        """Poll the queue when it is time; return whether an answer has come."""
        now = time.monotonic()
        if now >= self._touch_s + TOUCH_S:
            self._touch_s = now
            with contextlib.suppress(OSError):
                self._alive.touch()
        if self._acting is not None and self._acting.done():
            acting, self._acting, self._next_s = self._acting, None, now
            self.news += acting.result()
        if self._query is None:
            if self._acting is None and now >= self._next_s:
                self._next_s = now + POLL_S
                self._query = self.executor.ask(self._rows)
            return False
        if not self._query.done():
            return False
        query, self._query = self._query, None
        try:
            rows = query.result()
        except Exception:  # of Slurm, or of its output: the next query follows in any case
            self.silent = True
            return False
        if self._acting is not None:  # the query is older than the last change
            return False
        self._take_in(rows)
        return True

    def _rows(self) -> list[QueuedJob]:
        known = dict.fromkeys([*self.running, *self.coming, *self.pending], self.name)
        which = ["--states=all", f"--user={self.slurm.user}", f"--name={self.name}"]
        return self.slurm.jobs(*which, known=known)

    def _take_in(self, rows: Sequence[QueuedJob]) -> None:
        self.silent, self.current = False, True
        before = self.running
        self.running = {row.job_id: row for row in rows if row.state == "RUNNING"}
        self.coming = {row.job_id: row for row in rows if row.state in COMING}
        self.pending = {
            row.job_id: Pending(row.job_id, *self._requested.get(row.job_id, (0, 0)))
            for row in rows
            if row.state == "PENDING"
        }
        waiting = [row for row in rows if row.state == "PENDING"]
        if waiting:
            self._refused_words = ""
        self.wait_reason = "; ".join(map(waits_words, waiting)) or self._refused_words
        for number in self.running.keys() - before.keys():
            hosts = ",".join(self.running[number].hosts)
            self.news.append(f"allocation {number} has {hosts}")
        there = {*self.running, *self.coming, *self.pending}
        for row in rows:
            if row.job_id not in there and row.job_id not in self._over:
                self._over.add(row.job_id)
                self._ended(row, ran=row.job_id in before)
        self._over.intersection_update(row.job_id for row in rows)

    def _ended(self, row: QueuedJob, *, ran: bool) -> None:
        """Note the end of an allocation; after one that ends at once there is a pause."""
        self._requested.pop(row.job_id, None)
        if row.job_id in self._returned:
            return
        if ran:
            self.news.append(f"allocation {row.job_id} has ended ({row.state.lower()})")
        began_s = row.start_s
        if row.state == "CANCELLED" or began_s is None or time.time() > began_s + SHORT_S:
            self._refused = 0
            return
        self._refuse(f"allocation {row.job_id} ended at once ({row.state.lower()})")

    def _refuse(self, words: str) -> None:
        pause_s = min(RETRY_MOST_S, RETRY_S * 2**self._refused)
        self._refused += 1
        self._submit_s = time.monotonic() + pause_s
        self.news.append(f"{words}; the next is asked for in {pause_s:.0f} s")
        self.wait_reason = self._refused_words = words

    def act(self, actions: Sequence[Action]) -> None:
        """Carry out actions; until the next answer of Slurm the lists are not current."""
        if actions:
            self.current = False
            self._acting = self.executor.ask(lambda: self._carry_out(actions))

    def _carry_out(self, actions: Sequence[Action]) -> list[str]:
        news = []
        for action in actions:
            try:
                news.append(self._carry_out_one(action))
            except SlurmError as error:
                if (
                    error.meaning is Meaning.UNCLEAR
                ):  # the next answer of squeue shows what was done
                    continue
                if isinstance(action, Submit) and error.meaning is not Meaning.UNREACHABLE:
                    self._refuse(f"Slurm refuses an allocation: {error}")
                elif isinstance(action, Alter):  # another is submitted instead
                    with contextlib.suppress(SlurmError):
                        self.slurm.cancel(action.number, only_pending=True)
                elif isinstance(action, GiveBack) and error.meaning is Meaning.NEVER:
                    self.narrows = False
                    news.append(f"nodes go back by whole allocations: {error}")
        return news

    def _carry_out_one(self, action: Action) -> str:
        slurm = self.slurm
        if isinstance(action, Submit):
            barred = [f"--exclude={','.join(sorted(self.barred))}"] if self.barred else []
            number = slurm.submit(
                *[f"--job-name={self.name}", f"--nodes={action.least}-{action.most}"],
                *["--exclusive", "--no-requeue", "--no-kill", "--output=/dev/null"],
                *[f"--chdir={self.folder}", *barred, *self.options],
                *[str(self._script), str(self._alive)],
            )
            self._requested[number] = action.least, action.most
            return f"allocation {number} asked for: {action.least} to {action.most} nodes"
        if isinstance(action, Alter):
            nodes = f"NumNodes={action.least}-{action.most}"
            slurm.call("scontrol", "update", f"JobId={action.number}", nodes)
            self._requested[action.number] = action.least, action.most
            return f"allocation {action.number} changed: {action.least} to {action.most} nodes"
        if isinstance(action, Withdraw):
            slurm.cancel(action.number, only_pending=True)
            return f"allocation {action.number} withdrawn: nothing waits for it"
        return self._give_back(action)

    def _give_back(self, action: GiveBack) -> str:
        if action.whole:
            self._returned.add(action.number)
            self.slurm.cancel(action.number)
            return f"allocation {action.number} let go"
        held, going = self.slurm.job(action.number), set(action.hosts)
        kept = [host for host in held.hosts if host not in going]
        if held.batch_host is not None and held.batch_host not in kept:
            kept.insert(0, held.batch_host)
        if len(kept) < len(held.hosts):
            with self.executor.rate_limiter:
                self.slurm.shrink(action.number, kept)
        return f"allocation {action.number} gives back {','.join(sorted(going))}"

    def close(self) -> None:
        """Let all go: at once if Slurm answers, else by themselves once they begin."""
        self._alive.unlink(missing_ok=True)
        which = [f"--user={self.slurm.user}", f"--name={self.name}"]
        with contextlib.suppress(SlurmError):
            self.slurm.call("scancel", *which, deadline_s=CANCEL_S)


# --- the nodes of all allocations ------------------------------------------------------------

REACH = r"""#!/bin/sh
# Runs a command on a node, as ssh does: by a step in the allocation that the node belongs to.
options=
while :; do
    case $1 in -x) ;; -*) options="$options $1" ;; *) break ;; esac
    shift
done
host=$1
shift
number=$(sed -n "s/^$host //p" @file@)
[ -n "$number" ] || { echo "expected a node that is held, got $host" >&2; exit 1; }
exec @srun@ --jobid="$number" --nodes=1 --ntasks=1 --nodelist="$host" --input=none --quiet \
    $options /bin/sh -c "$*"
"""


def reach_script(table: Path, srun: str) -> str:
    """Return the script that runs a command on a node.

    Args:
        table: the file of nodes and their allocations.
        srun: the command.
    """
    return REACH.replace("@srun@", shlex.quote(srun)).replace("@file@", shlex.quote(str(table)))


def waits_words(row: QueuedJob) -> str:
    """Return why an allocation waits; Slurm has no reason for one that was just submitted."""
    why = "" if row.reason in NO_TEXT else f": {row.reason}"
    return f"allocation {row.job_id} waits in Slurm{why}"


class OnDemandNodes(PilotNodes):
    """Nodes of allocations that come and go by demand.

    Args:
        cluster: the nodes of the partition that take part.
        options: sbatch's for the allocations.
        excluded: nodes that are not requested.
    """

    unavailable_label = "unallocated"

    def __init__(
        self,
        launcher: SlurmLauncher,
        limits: PilotLimits,
        cluster: tuple[str, ...],
        options: Sequence[str] = (),
        excluded: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(launcher)
        self._limits, self._cluster = limits, cluster
        self._excluded, self._barred = excluded, frozenset[str]()
        self._idle_since_s: dict[str, float] = {}
        self._leaving: dict[int, GiveBack] = {}
        self._acted: set[int] = set()
        self._opened = False
        folder = launcher.state / "allocations"
        self._allocations = Allocations(self.executor, launcher.name("pilot"), options, folder)
        self._table, self._reach = folder / "nodes", launcher.shims / "reach"
        srun = shutil.which("srun") or "srun"
        self._reach.write_text(reach_script(self._table, srun))
        self._reach.chmod(0o755)
        self._allocations.look()  # those of a daemon that was killed
        self._hold_all()

    def reach(self, job: str, env: dict[str, str]) -> list[str]:
        """Return mpiexec's options: a node is reached by a step in its own allocation."""
        if self.launcher.reach != "slurm":
            return ["-launcher", self.launcher.reach]
        return ["-launcher", "ssh", "-launcher-exec", str(self._reach)]

    def _hold_all(self) -> None:
        """Hold the allocations of the last answer, and their nodes."""
        running, held = self._allocations.running, self.held
        for number in held.keys() - running.keys():
            gone = held.pop(number)
            self._leaving.pop(number, None)
            self.executor.ask(gone.close)  # it may have to wait for an answer of Slurm's
        for number, row in running.items():
            hosts = tuple(host for host in row.hosts if host in self._cluster)  # not newer ones
            if number not in held:
                allocation = self.hold(number, hosts)
                if self._opened:
                    self.start_meters(allocation)
            elif held[number].hosts != hosts:
                held[number].hosts = hosts
                self._leaving.pop(number, None)
        for number in self._acted:  # an allocation that still has its nodes has returned none
            self._leaving.pop(number, None)
        self._acted.clear()
        lines = [f"{host} {n}\n" for n, allocation in held.items() for host in allocation.hosts]
        new = self._table.with_suffix(".new")
        new.write_text("".join(lines))
        new.replace(self._table)

    def open(self) -> None:
        """Start an agent on every node; end those of an earlier daemon."""
        self._opened = True
        super().open()

    def poll(self) -> None:
        """Poll the allocations, the agents and the queue."""
        super().poll()
        if self._allocations.poll():
            self._hold_all()

    def close(self) -> None:
        """Let all allocations go."""
        self._allocations.close()
        super().close()

    @property
    def current(self) -> bool:
        """Whether Slurm has answered since the last request."""
        return self._allocations.current

    def controller_answers(self) -> bool:
        """Return whether the controller has answered the last queries."""
        return not self._allocations.silent and super().controller_answers()

    def unavailable(self) -> frozenset[str] | None:
        """Return the nodes that are not held, fail or go back soon."""
        if not (self.held or self._allocations.current):
            return None
        there: set[str] = set()
        for number, allocation in self.held.items():
            snapshot = allocation.snapshot
            over = snapshot is not None and snapshot.over
            if over or self._until_s(number) < time.time() + LEAST_S:  # no job is started there
                continue
            leaving = self._leaving[number].hosts if number in self._leaving else ()
            there.update(set(allocation.hosts).difference(allocation.unfit, leaving))
        return frozenset(self._cluster).difference(there)

    def lost(self) -> frozenset[str]:
        """Return nodes that are down or that no allocation holds, once Slurm has answered."""
        if not self._allocations.current or self._allocations.silent:
            return frozenset()
        held = {host for allocation in self.held.values() for host in allocation.hosts}
        return super().lost() | frozenset(self._cluster).difference(held)

    def leases(self) -> LeaseTerms:
        """Return the times at which jobs on the held nodes have to end."""
        until_s: dict[str, float] = {}
        for number, allocation in self.held.items():
            end_s = self._until_s(number)
            until_s.update((host, end_s) for host in allocation.hosts if end_s < inf)
        limits, waits = self._limits, self._allocations.wait_reason
        return LeaseTerms(until_s, limits.most, limits.longest_s, waits)

    def _until_s(self, number: int) -> float:
        """Return the time at which jobs of an allocation have to end, by the wall clock."""
        held, row = self.held.get(number), self._allocations.running.get(number)
        if held is not None and held.snapshot is not None:
            end_s = held.snapshot.end_s  # to the second; the queue's limit is in minutes
            if end_s is not None:
                return end_s - self._limits.margin_s
        if row is None or row.start_s is None or row.limit_s is None:
            return inf
        return row.start_s + row.limit_s - self._limits.margin_s

    def follow(self, demand: Demand) -> Sequence[str]:
        """Request and return nodes by demand; return lines for the log."""
        now = time.time()
        hosts = {host for own in self.held.values() for host in own.hosts}
        since = self._idle_since_s
        self._idle_since_s = {h: since.get(h, now) for h in hosts if h not in demand.busy}
        self._barred = demand.barred
        self._allocations.barred = demand.barred | self._excluded
        if self._allocations.current:
            self._allocations.act([*self._returns(demand), *self._requests(now, demand)])
        news, self._allocations.news = self._allocations.news, []
        return news

    def _requests(self, now: float, demand: Demand) -> list[Action]:
        """Return the requests; nodes that are to go back are closed first."""
        running = [self._running(number) for number in self.held]
        for number, row in self._allocations.coming.items():
            running.append(Running(number, row.hosts, idle_since_s=dict.fromkeys(row.hosts, now)))
        actions = decide(
            now,
            self._limits,
            demand.waiting,
            running,
            list(self._allocations.pending.values()),
            narrows=self._allocations.narrows,
        )
        may_submit = self._allocations.may_submit
        requests: list[Action] = []
        for action in actions:
            if isinstance(action, GiveBack):
                if action.number in self.held:
                    self._leaving.setdefault(action.number, action)
            elif may_submit or not isinstance(action, Submit):
                requests.append(action)
        return requests

    def _running(self, number: int) -> Running:
        allocation = self.held[number]
        leaving = self._leaving[number].hosts if number in self._leaving else ()
        idle = {
            host: self._idle_since_s[host]
            for host in allocation.hosts
            if host in self._idle_since_s and host not in leaving
        }
        useless = self._barred | allocation.unfit
        until_s = self._until_s(number)
        return Running(number, allocation.hosts, until_s, idle, frozenset(leaving), useless)

    def _returns(self, demand: Demand) -> list[Action]:
        """Return the nodes that go back now: no job runs or can start there."""
        actions: list[Action] = []
        for number, going in list(self._leaving.items()):
            if not demand.busy.isdisjoint(going.hosts):  # a job was quicker
                del self._leaving[number]
            elif demand.closed.issuperset(going.hosts):
                self._acted.add(number)
                actions.append(going)
        return actions
