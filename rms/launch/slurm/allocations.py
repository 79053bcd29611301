"""A pilot's allocations in Slurm's queue: looked for by their name, asked for, changed, let go.

They are batch jobs whose script only waits, so that they outlive a daemon that is killed: the next
finds them by their name, which is this daemon's alone, and goes on with them. The script ends when
the daemon has not been there for long, or has ended: it looks at a file that the daemon touches.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from rms.launch.slurm.commands import Meaning, Slurm, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.ondemand import Action, Change, GiveBack, Pending, Submit, Withdraw
from rms.launch.slurm.output import QueuedJob

POLL_S = 2.0
"""Time between two looks at the queue."""

TOUCH_S = 60.0
ABANDONED_MIN = 30
"""After how many minutes without a daemon an allocation ends by itself."""

RETRY_S = 30.0
RETRY_MOST_S = 600.0
"""How long nothing is submitted after a refusal, doubled each time, and at most."""

SHORT_S = 30.0
"""An allocation that ends by itself so soon is a failure."""

CANCEL_S = 10.0
"""How long a daemon that ends waits for Slurm to take its allocations back."""

COMING = ("CONFIGURING", "RESIZING")
SCRIPT = f"""#!/bin/sh
# Holds nodes for a daemon, which touches the file $1 while it is there and removes it at its end.
while [ -n "$(find "$1" -mmin -{ABANDONED_MIN} 2>/dev/null)" ]; do sleep 5; done
"""


@dataclass
class Allocations:
    """The allocations of one pilot.

    Attributes:
        name: what they are called in Slurm.
        barred: nodes that are not asked for.
        options: sbatch's.
        folder: for their script, and the file that is touched.
        running, coming: those that have nodes, and those whose nodes are being made ready.
        pending: those that wait.
        known: Slurm has answered since something was last asked of it: what is known holds.
        silent: Slurm did not answer when it was asked last.
        narrows: whether running ones could be given fewer nodes so far.
        news: what is to be said.
        wait_reason: what nodes that are asked for wait for, "" where none are.
    """

    executor: Executor
    name: str
    options: Sequence[str]
    folder: Path
    running: dict[int, QueuedJob] = field(default_factory=dict)
    coming: dict[int, QueuedJob] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    known: bool = False
    silent: bool = False
    narrows: bool = True
    barred: frozenset[str] = frozenset()
    news: list[str] = field(default_factory=list)
    wait_reason: str = ""
    _asked_for: dict[int, tuple[int, int]] = field(default_factory=dict)
    _let_go: set[int] = field(default_factory=set)
    _over: set[int] = field(default_factory=set)
    _look: Future[list[QueuedJob]] | None = None
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

    @property
    def slurm(self) -> Slurm:
        """The site's commands."""
        return self.executor.slurm

    @property
    def may_submit(self) -> bool:
        """Whether it is time to ask for more, after a refusal."""
        return time.monotonic() >= self._submit_s

    # --- what there is -----------------------------------------------------------------------

    def look(self) -> None:
        """Ask Slurm now and wait for the answer; without one it is asked again later."""
        with contextlib.suppress(SlurmError, ValueError):
            self._take_in(self._rows())

    def poll(self) -> bool:
        """Ask when it is time; return whether an answer has come."""
        now = time.monotonic()
        if now >= self._touch_s + TOUCH_S:
            self._touch_s = now
            with contextlib.suppress(OSError):
                self._alive.touch()
        if self._acting is not None and self._acting.done():
            acting, self._acting, self._next_s = self._acting, None, now
            self.news += acting.result()
        if self._look is not None:
            return self._answered(self._look)
        if self._acting is None and now >= self._next_s:
            self._next_s = now + POLL_S
            self._look = self.executor.ask(self._rows)
        return False

    def _answered(self, look: Future[list[QueuedJob]]) -> bool:
        if not look.done():
            return False
        self._look = None
        try:
            rows = look.result()
        except Exception:  # of Slurm, or of what it prints: asked again in any case
            self.silent = True
            return False
        if self._acting is not None:  # it was asked before something was changed
            return False
        self._take_in(rows)
        return True

    def _rows(self) -> list[QueuedJob]:
        return self.slurm.jobs("--states=all", f"--user={self.slurm.user}", f"--name={self.name}")

    def _take_in(self, rows: Sequence[QueuedJob]) -> None:
        self.silent, self.known = False, True
        before = self.running
        self.running = {row.job_id: row for row in rows if row.state == "RUNNING"}
        self.coming = {row.job_id: row for row in rows if row.state in COMING}
        self.pending = {
            row.job_id: Pending(row.job_id, *self._asked_for.get(row.job_id, (0, 0)))
            for row in rows
            if row.state == "PENDING"
        }
        waiting = [row for row in rows if row.state == "PENDING"]
        if waiting:
            self._refused_words = ""
        texts = [f"allocation {row.job_id} waits in Slurm: {row.reason}" for row in waiting]
        self.wait_reason = "; ".join(texts) or self._refused_words
        for number in self.running.keys() - before.keys():
            hosts = ",".join(self.running[number].hosts)
            self.news.append(f"allocation {number} has {hosts}")
        there = {*self.running, *self.coming, *self.pending}
        for row in rows:
            if row.job_id not in there and row.job_id not in self._over:
                self._over.add(row.job_id)
                self._ended(row, known=row.job_id in before)
        self._over.intersection_update(row.job_id for row in rows)

    def _ended(self, row: QueuedJob, *, known: bool) -> None:
        """Take in the end of an allocation; one that ends at once is not asked for again soon."""
        self._asked_for.pop(row.job_id, None)
        if row.job_id in self._let_go:
            return
        if known:
            self.news.append(f"allocation {row.job_id} is over ({row.state.lower()})")
        began_s = row.start_s
        if row.state == "CANCELLED" or began_s is None or time.time() > began_s + SHORT_S:
            self._refused = 0
            return
        self._refuse(f"allocation {row.job_id} ended at once ({row.state.lower()})")

    def _refuse(self, words: str) -> None:
        """Submit nothing for a while."""
        pause_s = min(RETRY_MOST_S, RETRY_S * 2**self._refused)
        self._refused += 1
        self._submit_s = time.monotonic() + pause_s
        self.news.append(f"{words}; the next is asked for in {pause_s:.0f} s")
        self.wait_reason = self._refused_words = words

    # --- what is changed ---------------------------------------------------------------------

    def act(self, actions: Sequence[Action]) -> None:
        """Do what was decided; nothing more is known until Slurm has answered after that."""
        if actions:
            self.known = False
            self._acting = self.executor.ask(lambda: self._carry_out(actions))

    def _carry_out(self, actions: Sequence[Action]) -> list[str]:
        news = []
        for action in actions:
            try:
                news.append(self._carry_out_one(action))
            except SlurmError as error:
                if isinstance(action, Submit) and error.meaning is not Meaning.UNREACHABLE:
                    self._refuse(f"Slurm refuses an allocation: {error}")
                elif isinstance(action, Change):  # another is submitted instead
                    with contextlib.suppress(SlurmError):
                        self.slurm.cancel(action.number, only_pending=True)
                elif isinstance(action, GiveBack) and error.meaning is Meaning.NEVER:
                    self.narrows = False
                    news.append(f"nodes are given back by whole allocations: {error}")
        return news

    def _carry_out_one(self, action: Action) -> str:
        slurm = self.slurm
        if isinstance(action, Submit):
            barred = [f"--exclude={','.join(sorted(self.barred))}"] if self.barred else []
            number = slurm.submit(
                *[f"--job-name={self.name}", f"--nodes={action.least}-{action.most}"],
                *["--exclusive", "--no-requeue", "--no-kill", "--output=/dev/null"],
                *[
                    f"--chdir={self.folder}",
                    *barred,
                    *self.options,
                    str(self._script),
                    str(self._alive),
                ],
            )
            self._asked_for[number] = action.least, action.most
            return f"allocation {number} asked for: {action.least} to {action.most} nodes"
        if isinstance(action, Change):
            asked = f"NumNodes={action.least}-{action.most}"
            slurm.call("scontrol", "update", f"JobId={action.number}", asked)
            self._asked_for[action.number] = action.least, action.most
            return f"allocation {action.number} changed: {action.least} to {action.most} nodes"
        if isinstance(action, Withdraw):
            slurm.cancel(action.number, only_pending=True)
            return f"allocation {action.number} withdrawn: nothing waits for it"
        return self._give_back(action)

    def _give_back(self, action: GiveBack) -> str:
        if action.whole:
            self._let_go.add(action.number)
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
        """Let all go: at once where Slurm answers, else by themselves once they begin."""
        self._alive.unlink(missing_ok=True)
        which = [f"--user={self.slurm.user}", f"--name={self.name}"]
        with contextlib.suppress(SlurmError):
            self.slurm.call("scancel", *which, deadline_s=CANCEL_S)
