"""Faults that are put into the program, and how many seeds it takes to notice each.

``scripts/simulate-faults --broken`` runs it. Each is made in a copy of the packages, in which seeds
are played one after the other until one of them fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SEEDS = Path(__file__).with_name("seeds.py")
PACKAGES = ("rms", "dmr", "mpdata")


@dataclass(frozen=True)
class Mutation:
    """A change of the program.

    Attributes:
        what: the fault, in words.
        file: the module, below the root.
        old, new: its text, which occurs once.
        survivors: whether it is for jobs with copies in memory.
    """

    what: str
    file: str
    old: str
    new: str
    survivors: bool = False

    def make(self, folder: Path) -> None:
        """Make the change in a copy."""
        path = folder / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: expected once {self.old!r}, got {text.count(self.old)}")
        path.write_text(text.replace(self.old, self.new))


HEART, ROUTES = "rms/daemon/heart.py", "rms/daemon/ask/routes.py"
JOURNAL, SUBMIT = "rms/daemon/store/journal.py", "rms/daemon/jobs/submit.py"
SCRIPTS, RULES = "rms/daemon/jobs/scripts.py", "rms/core/rules/transition.py"
WORLDS = "rms/daemon/jobs/worlds.py"
MACHINE, MEASURED = "rms/daemon/jobs/machine.py", "rms/core/books/measured.py"
SLURM_JOBS, SLURM_QUEUE = "rms/launch/slurm/jobs.py", "rms/launch/slurm/queue.py"
HOSTS, AGENT = "rms/launch/hosts/launcher.py", "rms/launch/hosts/agent.py"
RECOVER, LEDGER = "rms/daemon/restart/recover.py", "rms/core/books/ledger.py"

MUTATIONS = (
    Mutation(
        "an acknowledged request is not flushed",
        JOURNAL,
        "                os.fsync(self._log)  # as",
        "                pass  # as",
    ),
    Mutation(
        "a repeated submission makes new jobs",
        SUBMIT,
        "if key is None or not key.ids else",
        "if key is None or True else",
    ),
    Mutation(
        "the key of a submission is not on disk",
        SUBMIT,
        "*([] if key is None else [key])]",
        "*([] if key is None else [])]",
    ),
    Mutation(
        "the number of the next job is not on disk",
        SUBMIT,
        "NextNote(id=number + 1)",
        "NextNote(id=number)",
    ),
    Mutation(
        "a hold is not in the journal",
        ROUTES,
        "self.daemon.handle(HeldByUser(self.daemon.time(), tuple(ids), hold))",
        "self.daemon.scheduler.feed(HeldByUser(self.daemon.time(), tuple(ids), hold))",
    ),
    Mutation(
        "a release is answered, and nothing is done",
        ROUTES,
        "self.daemon.handle(HeldByUser(self.daemon.time(), tuple(ids), hold))",
        "hold and self.daemon.handle(HeldByUser(self.daemon.time(), tuple(ids), hold))",
    ),
    Mutation(
        "a wait ends when one job is over",
        ROUTES,
        "            while left and ended(left[-1]):\n                left.pop()",
        "            if any(map(ended, left)):\n                left.clear()",
    ),
    Mutation(
        "a cancel is forgotten by a restart",
        SCRIPTS,
        "context.journal.note(EndingNote(job.id, state, kill_at))",
        "pass",
    ),
    Mutation(
        "the worlds of a job are not on disk",
        WORLDS,
        "self._context.journal.note(job.steps_note())",
        "pass",
    ),
    Mutation(
        "a requeued job has the processes of its last run",
        SCRIPTS,
        "job.forget_processes()",
        "pass",
    ),
    Mutation(
        "a rollback gives back nodes that the job keeps",
        RULES,
        "state.give_back([node for node in job.requested_nodes if node not in kept])",
        "state.give_back([node for node in job.requested_nodes if node in kept])",
    ),
    Mutation(
        "nodes of a job that ends in a shrink stay counted",
        RULES,
        "        state.releasing -= job.loss\n    if job.nodes:",
        "    if job.nodes:",
    ),
    Mutation(
        "nodes that a shrink gives up are lost",
        RULES,
        "state.give_back([node for node in job.nodes if node not in kept])",
        "state.give_back([])",
    ),
    Mutation(
        "a resumed node is free beside its job",
        RULES,
        "slots = slots.difference(*(job.held for job in state.running.values()))",
        "slots = set(slots)",
    ),
    Mutation(
        "a drained node gets jobs",
        RULES,
        "        if state.vacant[node]:\n            state.take((node,))",
        "        if False:\n            state.take((node,))",
    ),
    Mutation(
        "a dependency is never met",
        RULES,
        "return True if over == total else None\n    if kind == OK",
        "return True if over > total else None\n    if kind == OK",
    ),
    Mutation(
        "decisions are in the journal in another order",
        HEART,
        "journal.decided(number, decisions)",
        "journal.decided(number, decisions[::-1])",
    ),
    Mutation(
        "a shrink gives nodes back before its ranks have left",
        MACHINE,
        "        if left:\n            kill =",
        "        if False:\n            kill =",
    ),
    Mutation(
        "a job that waits for a resize steps in two worlds",
        WORLDS,
        "        if key in job.keys:\n            return job.keys.index(key)",
        "        if key == '':\n            return job.keys.index(key)",
    ),
    Mutation(
        "starts ignore the power cap",
        "rms/core/rules/powercap.py",
        "return watts <= 0.0 or watts <= self.left_w + ROUNDING * cap_w",
        "return True",
    ),
    Mutation(
        "each reading is booked twice",
        MEASURED,
        "share.joules, share.uncertainty_j = joules, error_j",
        "share.joules, share.uncertainty_j = 2 * joules, error_j",
    ),
    Mutation(
        "processes of ended daemons are not taken back",
        RECOVER,
        "def adopt(daemon: Daemon) -> None:",
        "def adopt(daemon: Daemon) -> None:\n    return\n\n\ndef unused(daemon: Daemon) -> None:",
    ),
    Mutation(
        "a node that Slurm has lost gets jobs",
        SLURM_JOBS,
        "self._unavailable = snapshot.unavailable | self.contested.keys()",
        "self._unavailable = frozenset(self.contested)",
    ),
    Mutation(
        "a job that Slurm does not list yet counts as gone",
        SLURM_JOBS,
        "            if snapshot.begun_s > job.numbered_s:",
        "            if snapshot:",
    ),
    Mutation(
        "a submission without an answer is repeated blindly",
        SLURM_QUEUE,
        "                raise\n        search = True",
        "                raise\n        search = False",
    ),
    Mutation(
        "a host that is lost gets jobs",
        HOSTS,
        "frozenset(host for host, agent in self.agents.items() if not agent.up)",
        "frozenset()",
    ),
    Mutation(
        "a host that is cut off goes on with its jobs",
        AGENT,
        "while pids := [pid for job, launch in self._live() for pid in self._of(job, launch)]:",
        "while pids := list[int]():",
    ),
    Mutation(
        "keepers are not ended",
        WORLDS,
        "for number in known - needed:",
        "for number in set[int]():",
        survivors=True,
    ),
    Mutation(
        "a world that has died is not ended before the next",
        WORLDS,
        "left = [launch for launch in step.worlds if self.has_processes(job, launch)]",
        "left = list[int]()",
        survivors=True,
    ),
)


def seeds_until_noticed(mutation: Mutation, most: int, hours: float) -> tuple[int | None, str]:
    """Return the number of seeds until one fails (None for none), and the reason."""
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "out.json"
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, folder / package, ignore=ignored)
        mutation.make(folder)
        options = ["--first", "0", "--seeds", str(most), "--hours", str(hours), "--processes", "1"]
        options += ["--survivors"] if mutation.survivors else []
        done = subprocess.run(
            [sys.executable, str(SEEDS), *options, "--until-failure", "--json", str(out)],
            env={**os.environ, "PYTHONPATH": name, "PYTHONHASHSEED": "0"},
            cwd=name,
            capture_output=True,
            text=True,
        )
        if not out.exists():
            raise RuntimeError(f"{mutation.what}: the seeds did not end:\n{done.stderr}")
        found = json.loads(out.read_text())
        if not found["failed"]:
            return None, ""
        return found["seeds"], found["failed"][0]["wrong"][0].partition("\n")[0]


def table(most: int, hours: float, processes: int) -> int:
    """Print the table; return 1 if a fault is not noticed."""
    missed, begun = 0, time.monotonic()
    print(f"each fault in seeds from 0 on, {hours:g} h of users and faults in each, at most {most}")
    with ThreadPool(processes) as pool:
        work = [
            (one, pool.apply_async(seeds_until_noticed, (one, most, hours))) for one in MUTATIONS
        ]
        for mutation, answer in work:
            number, why = answer.get()
            missed += number is None
            seeds = "not noticed" if number is None else f"seed{'s' if number > 1 else ''} {number}"
            print(f"{mutation.what:55s} {seeds:12s} {why[:90]}", flush=True)
    noticed = len(MUTATIONS) - missed
    print(f"{noticed} of {len(MUTATIONS)} are noticed, in {time.monotonic() - begun:.0f} s")
    return 1 if missed else 0
