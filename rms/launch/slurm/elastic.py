"""A pilot outside of any allocation: it asks Slurm for nodes by what waits, and lets them go.

The nodes of a partition are its cluster; those that none of its allocations holds are not to be
had. A job may have nodes of several allocations: its worlds reach each node by a step in the one
that it belongs to.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from rms.core.rules.checks import LEAST_S
from rms.launch.base import LaunchError, PendingCall
from rms.launch.demand import Demand, Leases
from rms.launch.slurm.allocations import Allocations
from rms.launch.slurm.ondemand import Action, GiveBack, Limits, Running, Submit, decide
from rms.launch.slurm.pilot import PilotLauncher, told

REACH = r"""#!/bin/sh
# Runs a command on a node, as ssh does: by a step in the allocation that the node belongs to.
options=
while :; do
    case $1 in -x) ;; -*) options="$options $1" ;; *) break ;; esac
    shift
done
host=$1
shift
number=$(sed -n "s/^$host //p" "@file@")
[ -n "$number" ] || { echo "expected a node that is held, got $host" >&2; exit 1; }
exec "@srun@" --jobid="$number" --nodes=1 --ntasks=1 --nodelist="$host" --input=none --quiet \
    $options /bin/sh -c "$*"
"""


@dataclass
class ElasticLauncher(PilotLauncher):
    """Runs jobs as steps of allocations that come and go with what waits.

    Attributes:
        limits: what the user allows.
        cluster: the nodes there could be.
        options: sbatch's for the allocations.
        excluded: nodes that are not asked for.
    """

    limits: Limits = field(default_factory=Limits)
    cluster: tuple[str, ...] = ()
    options: Sequence[str] = ()
    excluded: frozenset[str] = frozenset()
    _barred: frozenset[str] = frozenset()
    _idle_since_s: dict[str, float] = field(default_factory=dict)
    _leaving: dict[int, GiveBack] = field(default_factory=dict)
    _acted: set[int] = field(default_factory=set)
    _opened: bool = False

    unavailable_label = "unallocated"

    def __post_init__(self) -> None:
        super().__post_init__()
        folder = self.state / "allocations"
        self._allocations = Allocations(self.executor, self.name("pilot"), self.options, folder)
        self._table, self._reach = folder / "nodes", self.shims / "reach"
        srun = shutil.which("srun") or "srun"
        text = REACH.replace("@file@", str(self._table)).replace("@srun@", srun)
        self._reach.write_text(text)
        self._reach.chmod(0o755)
        self._allocations.look()  # those of a daemon that was killed
        self._hold_all()

    # --- what is held ------------------------------------------------------------------------

    def allocation(self, job: str) -> int:
        """Return no number: a job may have nodes of several."""
        return 0

    def allocations(self, job: str) -> list[int]:
        """Return all there are."""
        return list(self._held)

    def holder(self, host: str) -> int:
        """Return the allocation that a node belongs to.

        Raises:
            LaunchError: to none any more.
        """
        for each in self._held.values():
            if host in each.hosts:
                return each.number
        raise LaunchError(f"expected a node that is held, got {host}")

    def _hold_all(self) -> None:
        """Take in which allocations there are now, and with which nodes."""
        running = self._allocations.running
        for number in self._held.keys() - running.keys():
            gone = self._held.pop(number)
            self._leaving.pop(number, None)
            self.executor.ask(gone.close)  # it may have to wait for an answer of Slurm's
        for number, row in running.items():
            held = self._held.get(number)
            hosts = tuple(host for host in row.hosts if host in self.cluster)  # not newer ones
            if held is None:
                held = self.hold(number, hosts)
                if self._opened:
                    self._meter(held)
            elif held.hosts != hosts:
                held.narrow(hosts)
                self._leaving.pop(number, None)
        for number in self._acted:  # whose nodes are there yet has not given them back
            self._leaving.pop(number, None)
        self._acted.clear()
        lines = [f"{host} {n}\n" for n, each in self._held.items() for host in each.hosts]
        new = self._table.with_suffix(".new")
        new.write_text("".join(lines))
        new.replace(self._table)

    def open(self) -> None:
        """Start a meter on every node; end those of a daemon that was killed."""
        self._opened = True
        super().open()

    def poll(self) -> None:
        """Look at the allocations, the meters and all processes when it is time."""
        super().poll()
        if self._allocations.poll():
            self._hold_all()

    def close(self) -> None:
        """Let all allocations go."""
        self._allocations.close()
        super().close()

    # --- what is known -----------------------------------------------------------------------

    def controller_answers(self) -> bool:
        """Return whether the controller answered when it was asked last."""
        return not self._allocations.silent and super().controller_answers()

    def shutdown_reason(self) -> str:
        """Return no reason: allocations end, the daemon does not."""
        return ""

    def unavailable(self) -> frozenset[str] | None:
        """Return the nodes that are not held, fail or go back soon."""
        if not (self._held or self._allocations.known):
            return None
        there = {host for each in self._held.values() for host in each.hosts}
        for number, each in self._held.items():
            seen = each.seen
            if seen.snapshot is not None:
                there -= seen.snapshot.unfit
                if seen.snapshot.over:
                    there.difference_update(seen.hosts)
            there -= seen.suspects
            if self._until_s(number) < time.time() + LEAST_S:  # no job is started there any more
                there.difference_update(seen.hosts)
            if number in self._leaving:
                there.difference_update(self._leaving[number].hosts)
        return frozenset(self.cluster).difference(there)

    def leases(self) -> Leases:
        """Return until when jobs may have the nodes that are held."""
        until_s: dict[str, float] = {}
        for number, each in self._held.items():
            end_s = self._until_s(number)
            until_s.update((host, end_s) for host in each.hosts if end_s < float("inf"))
        limits, waits = self.limits, self._allocations.wait_reason
        return Leases(until_s, limits.most, limits.longest_s, waits)

    def _until_s(self, number: int) -> float:
        """Return when jobs of an allocation are told to end, by the wall clock."""
        held, row = self._held.get(number), self._allocations.running.get(number)
        if held is not None and held.seen.snapshot is not None:
            end_s = held.seen.snapshot.end_s  # to the second; the queue's limit is in minutes
            if end_s is not None:
                return end_s - self.limits.margin_s
        if row is None or row.start_s is None or row.limit_s is None:
            return float("inf")
        return row.start_s + row.limit_s - self.limits.margin_s

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall:
        """Ask whether a job died of its nodes or allocations, or its steps were cancelled."""
        asked: list[Future[str]] = []

        def answer() -> str | None:
            if not asked:
                if not self._allocations.known:
                    return None
                asked.append(self.executor.ask(lambda: self._diagnose(self.name(job), hosts)))
            return told(asked[0]) if asked[0].done() else None

        return answer

    def _diagnose(self, name: str, hosts: Sequence[str]) -> str:
        held, lost = list(self._held.values()), set(hosts)
        for each in held:
            own = [host for host in hosts if host in each.hosts]
            lost.difference_update(own)
            if own and (found := each.seen.diagnose(name, own)):
                return found
        return f"its allocation of {', '.join(sorted(lost))} is over" if lost else ""

    # --- worlds ------------------------------------------------------------------------------

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options: each node is reached by a step in its own allocation."""
        found = super().world_options(job, launch, slots, env)
        del env["SLURM_JOB_ID"]
        if self.reach != "slurm":
            return found
        return ["-launcher", "ssh", "-launcher-exec", str(self._reach), *found[2:]]

    # --- what is asked for -------------------------------------------------------------------

    def follow(self, demand: Demand) -> Sequence[str]:
        """Ask Slurm for nodes, or give some back, by what waits; return what is to be said."""
        now = time.time()
        held = {host for each in self._held.values() for host in each.hosts}
        since = self._idle_since_s
        self._idle_since_s = {h: since.get(h, now) for h in held if h not in demand.busy}
        self._barred = demand.barred
        self._allocations.barred = demand.barred | self.excluded
        if self._allocations.known:
            self._allocations.act([*self._given_back(demand), *self._wanted(now, demand)])
        said, self._allocations.news = self._allocations.news, []
        return said

    def _wanted(self, now: float, demand: Demand) -> list[Action]:
        """Return what is to be asked of Slurm now; what is to be given back is closed first."""
        running = [self._running(number) for number in self._held]
        for number, row in self._allocations.coming.items():
            running.append(Running(number, row.hosts, idle_since_s=dict.fromkeys(row.hosts, now)))
        found = decide(
            now,
            self.limits,
            demand.waiting,
            running,
            list(self._allocations.pending.values()),
            narrows=self._allocations.narrows,
        )
        for each in found:
            if isinstance(each, GiveBack) and each.number in self._held:
                self._leaving.setdefault(each.number, each)
        may_submit = self._allocations.may_submit
        return [
            each
            for each in found
            if not isinstance(each, GiveBack) and (may_submit or not isinstance(each, Submit))
        ]

    def _running(self, number: int) -> Running:
        held = self._held[number]
        hosts, seen = held.hosts, held.seen
        unfit = frozenset() if seen.snapshot is None else seen.snapshot.unfit
        leaving = self._leaving[number].hosts if number in self._leaving else ()
        idle = {
            host: self._idle_since_s[host]
            for host in hosts
            if host in self._idle_since_s and host not in leaving
        }
        useless = self._barred | unfit | seen.suspects
        return Running(number, hosts, self._until_s(number), idle, frozenset(leaving), useless)

    def _given_back(self, demand: Demand) -> list[Action]:
        """Return which nodes go now: those on which nothing runs, nor can be started any more."""
        found: list[Action] = []
        for number, going in list(self._leaving.items()):
            if not demand.busy.isdisjoint(going.hosts):  # a job was quicker
                del self._leaving[number]
            elif demand.closed.issuperset(going.hosts):
                self._acted.add(number)
                found.append(going)
        return found
