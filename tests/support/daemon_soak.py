"""Arrays of short malleable MPDATA jobs, resized and cancelled at random, their daemon killed.

``scripts/soak`` runs it for 20 minutes. The daemon, its agent of meters and ranks are stopped
(SIGSTOP) for a while now and then, too. Printed is what was asked for and what came of it; it ends
with 1 if a job is missing, doubled or has another end or other bits than it should, the answers
about a job or a node fit no order of events (:mod:`virtual.history`), a process is left, the daemon
holds more and more, or its books do not balance. ``--history`` writes the answers to a file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from daemon import LocalRms, Rms
from powercap import agents
from processes import ROOT, called, program
from virtual.history import Call, JobModel, SwitchModel, first_misfit

from mpdata.cli.main import main as mpdata
from rms.wire.users import OVER

CASE = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
STEPS = (20, 120, 300)
MOST_OPEN = (3, 12, 2, 6)
"""Jobs that wait or run at a time: more are not submitted; the next after ten submissions."""
NODES = 5
OVER_S = 900.0
"""For what is left at the end, on a machine that has other things to do."""

METER = "while :; do echo node 61.7 W; sleep 1; done"

SCRIPTS = {
    "one step": "{run}",
    "two steps": "{run}\n{run}",
    "leaves a process": "env -i setsid sleep 3600 &\n{run}",
    "fails": "{run}\nexit 3",
}
POLICIES = ("fifo", "fifo", "backfill-share", "array-share", "easy-share", "conservative")
STRATEGIES = ("warm", "merge", "restart", "spawn")


@dataclass
class Expected:
    """What is known of a job that was acknowledged."""

    steps: int
    state: str
    cancelled: bool = False


@dataclass
class Sample:
    """What a daemon holds: its life, jobs that had ended, open files, threads, KiB."""

    life: int
    ended: int
    files: int
    threads: int
    kib: int


@dataclass
class Soak:
    """One daemon that is killed now and then, and what was asked of it."""

    rms: Rms
    rng: random.Random
    nodes: int
    jobs: dict[str, Expected] = field(default_factory=dict)
    unanswered: dict[str, tuple[list[str], int, str, int]] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    life: int = 0

    # --- what is asked ------------------------------------------------------------------------

    def submit(self) -> None:
        """Hand in a job or an array, with a key: what is not answered is asked again."""
        number, steps = self.counted["submitted"], self.rng.choice(STEPS)
        most_open = MOST_OPEN[number // 10 % len(MOST_OPEN)]
        if sum(row["state"] not in OVER for row in self.rows.values()) >= most_open:
            return
        kind = self.rng.choice([*SCRIPTS, "one step"])
        tasks = min(self.rng.choice((1, 1, 2, 4)), self.nodes)
        most = self.rng.randint(2, self.nodes)
        run = f"mpirun {' '.join([*PACED, 'run', *CASE, '--steps', str(steps)])}"
        script = self.rms.work / f"{number}.sh"
        script.write_text("#!/bin/sh\n" + SCRIPTS[kind].format(run=run) + "\n")
        mode = self.rng.choice(("malleable", "flexible", "flexible", "moldable"))
        words = ["--nodes", f"1-{most}", "--mode", mode, "--idempotency-key", f"key-{number}"]
        words += ["--array", f"1-{tasks}"] if tasks > 1 else []
        before = self.pick("RUNNING", "PENDING")
        if before and self.rng.random() < 0.2:
            words += ["--dependency", f"afterany:{before}"]
        state = "FAILED" if kind == "fails" else "COMPLETED"
        self.counted["submitted"] += 1
        self._submit(f"key-{number}", ([*words, str(script)], steps, state, tasks))

    def _submit(self, key: str, submission: tuple[list[str], int, str, int]) -> None:
        words, steps, state, tasks = submission
        begun_s = time.monotonic()
        done = self.rms.rms("submit", *words, "--json", "-", PACE_S="0.04", PACE_LATE_S="0")
        if done.returncode:
            self.unanswered[key] = submission
            self.refused("submit", done)
            return
        self.unanswered.pop(key, None)
        found = json.loads(done.stdout)["id"]
        ids = [found] if tasks == 1 else [f"{found}_{n}" for n in range(1, tasks + 1)]
        if known := self.jobs.keys() & ids:
            self.wrong.append(f"given twice: {sorted(known)}")
        self.jobs.update({one: Expected(steps, state) for one in ids})
        for one in ids:
            self.note(f"job {one}", "submit", begun_s, "ok")

    def resize(self) -> None:
        """Ask for another size of a running job."""
        self.look()
        if job := self.pick("RUNNING", stepping=True):
            row = self.rows[job]
            sizes = [n for n in range(1, row["nodes_max"] + 1) if n != row["size"]]
            size = self.rng.choice(sizes)
            self.ask("resize", job, str(size), "--strategy", self.rng.choice(STRATEGIES))

    def cancel(self) -> None:
        """Cancel a job, or all of an array."""
        job = self.pick("RUNNING", "PENDING", "CONFIGURING")
        if not job or self.rng.random() < 0.6:
            return
        job = self.rng.choice((job, job, job, job.partition("_")[0]))
        for one, expected in self.jobs.items():
            expected.cancelled |= job in (one, one.partition("_")[0])
        self.ask("cancel", job)

    def drain(self) -> None:
        """Drain a node, or give back one that is."""
        if self.drained:
            if self.ask("resume", *self.drained):
                self.drained.clear()
        else:
            self.drained.add(node := f"n{self.rng.randint(1, self.nodes)}")
            self.ask("drain", node)

    def look(self) -> None:
        """See what has become of the jobs, and what the daemon holds."""
        known, begun_s = list(self.jobs), time.monotonic()
        with contextlib.suppress(AssertionError):
            self.rows = {row["id"]: row for row in self.rms.rows()}
            for job in known:
                self.note(f"job {job}", "read", begun_s, seen(self.rows.get(job)))
            ended = sum(row["state"] in OVER for row in self.rows.values())
            self.samples.append(holding(self.rms, self.life, ended))

    def hold(self) -> None:
        """Hold a job that waits, or let go of all that are held."""
        if self.held:
            for job in sorted(self.held):  # one that was cancelled is refused
                self.ask("release", job)
            self.held.clear()
        elif (job := self.pick("PENDING")) and self.ask("hold", job):
            self.held.add(job)

    def requeue(self) -> None:
        """Let a running job end and wait again."""
        if job := self.pick("RUNNING", stepping=True):
            self.ask("requeue", job)

    def swap(self) -> None:
        """Let another policy decide."""
        self.ask("policy", self.rng.choice(POLICIES))

    def pick(self, *states: str, stepping: bool = False) -> str:
        """Return one of the jobs that were in one of these states, "" where none was."""
        found = [
            job
            for job, row in self.rows.items()
            if row["state"] in states
            and (not stepping or (row["step"] and row["mode"] in ("malleable", "flexible")))
        ]
        return self.rng.choice(found) if found else ""

    def ask(self, *words: str) -> bool:
        """Ask for something that may be refused; return whether it was done."""
        begun_s = time.monotonic()
        done = self.rms.rms(*words)
        self.enter(words, begun_s, done)
        self.counted[words[0] if not done.returncode else f"{words[0]} refused"] += 1
        if done.returncode:
            self.refused(words[0], done)
        return not done.returncode

    def enter(
        self, words: tuple[str, ...], begun_s: float, done: subprocess.CompletedProcess[str]
    ) -> None:
        """Enter a command and its answer in the history."""
        what, *names = words
        away = bool(done.returncode) and self._is_away(done)
        answer = None if away else "refused" if done.returncode else "ok"
        if what in ("drain", "resume"):
            state = "drained" if what == "drain" else "up"
            for node in names:
                self.note(f"node {node}", state, begun_s, answer)
        elif what != "policy":
            job = names[0]
            for one in self.jobs:
                if one == job:
                    self.note(f"job {one}", what, begun_s, answer)
                elif one.partition("_")[0] == job:  # of an array, a task may be over
                    self.note(f"job {one}", what, begun_s, None)

    def note(self, subject: str, kind: str, begun_s: float, answer: str | None) -> None:
        """Enter a call in the history of a job or a node."""
        ended_s = inf if answer is None else time.monotonic()
        self.calls[subject].append(Call(kind, begun_s, ended_s, answer))

    def _is_away(self, done: subprocess.CompletedProcess[str]) -> bool:
        return "running daemon" in done.stderr or self.rms.process.poll() is not None  # type: ignore[union-attr]

    def refused(self, what: str, done: subprocess.CompletedProcess[str]) -> None:
        """Hold a refusal against the daemon, unless it was killed."""
        lines = done.stderr.strip().splitlines()
        words = re.sub(r"\d+(_\d+)?", "N", (lines or done.stdout.strip().splitlines() or [""])[0])
        self.counted[f"  because {words[:90]}"] += 1
        away = self._is_away(done)
        if len(lines) != 1 or not (away or what != "submit"):
            self.wrong.append(f"{what}: status {done.returncode}: {done.stderr}")

    # --- its daemon ---------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the daemon while it is asked for more, and start another."""
        process = self.rms.process
        assert process is not None
        at = threading.Timer(self.rng.uniform(0.0, 1.0), process.kill)
        at.start()
        while at.is_alive():
            self.act()
        at.join()
        if (status := process.wait(120)) != -signal.SIGKILL:
            self.wrong.append(f"the daemon had ended with {status}")
        time.sleep(self.rng.choice((0.0, 0.0, 1.0, 4.0)))  # jobs go on meanwhile, and end
        self.life += 1
        self.rms.start()
        for key, submission in list(self.unanswered.items()):
            self._submit(key, submission)

    def stop(self) -> None:
        """Stop the daemon, its agent or a rank for a while, as a paused machine does."""
        assert self.rms.process is not None
        stopped = {
            "daemon": [self.rms.process.pid],
            "agent": [*agents(self.rms.mark).values()],
            "rank": self.rms.ranks(),
        }
        what = self.rng.choice([name for name, pids in stopped.items() if pids])
        pid = self.rng.choice(stopped[what])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.counted[f"{what} stopped"] += 1
            threading.Timer(self.rng.uniform(0.1, 2.0), _go_on, (pid,)).start()

    def act(self) -> None:
        """Ask for something."""
        acts: dict[Callable[[], None], int] = {
            self.submit: 9,
            self.resize: 6,
            self.cancel: 1,
            self.drain: 1,
            self.swap: 1,
            self.hold: 1,
            self.requeue: 1,
            self.look: 3,
            self.stop: 1,
        }
        self.rng.choices(list(acts), list(acts.values()))[0]()
        time.sleep(self.rng.uniform(0.0, 0.4))

    def run(self, seconds: float, kills: int) -> None:
        """Ask for so many seconds, with so many kills in even distances."""
        begun = time.monotonic()
        due = [begun + seconds * (n + 0.7) / kills for n in range(kills)]
        while time.monotonic() < begun + seconds:
            self.act()
            if due and time.monotonic() > due[0]:
                del due[0]
                self.kill()
            assert self.rms.process is not None
            if self.rms.process.poll() is not None:
                self.wrong.append(f"the daemon has ended with {self.rms.process.returncode}")
                return

    # --- what has come of it ------------------------------------------------------------------

    def settle(self) -> None:
        """Let all jobs end; check each, what is left, and the books."""
        if self.drained:
            self.ask("resume", *self.drained)
        for row in self.rms.rows():
            if row["state"] == "PENDING":  # also those whose release was not answered
                self.ask("release", row["id"])
        self.rms.hurry()
        self.rms.until(self._all_over, "end of all jobs", OVER_S, 0.5)
        rows = {row["id"]: row for row in self.rms.rows()}
        self.wrong += [f"job {job}: not known" for job in self.jobs.keys() - rows.keys()]
        self.wrong += [f"job {job}: not submitted" for job in rows.keys() - self.jobs.keys()]
        for job, expected in self.jobs.items():
            if job in rows:
                self._check(rows[job], expected)
        self.look()
        for subject, calls in self.calls.items():
            model = JobModel() if subject.startswith("job") else SwitchModel("up")
            if misfit := first_misfit(model, calls):
                lines = "\n    ".join(map(str, misfit[-8:]))
                self.wrong.append(f"answers about {subject} fit no order:\n    {lines}")
        self.counted["resizes"] = sum(len(row["resizes"]) for row in rows.values())
        self.look()
        self.rms.nothing_left()
        self.rms.books_balance()
        self.rms.accounts_balance()
        states = {job: row["state"] for job, row in rows.items()}
        if status := self.rms.end():
            self.wrong.append(f"SIGTERM: status {status}")
        self.rms.replays()
        self.rms.start()
        if states != {row["id"]: row["state"] for row in self.rms.rows()}:
            self.wrong.append("a daemon that was started again knows other jobs")
        self._judge_samples()

    def _all_over(self) -> bool:
        return all(row["state"] in OVER for row in self.rms.rows())

    def _check(self, row: dict[str, Any], expected: Expected) -> None:
        self.counted[row["state"]] += 1
        allowed = {expected.state} | ({"CANCELLED"} if expected.cancelled else set())
        said = f"job {row['id']}: {row['state']} ({row['reason']})"
        if row["state"] not in allowed:
            text = Path(row["output"]).read_text()[-600:] if Path(row["output"]).exists() else ""
            self.wrong.append(f"{said}, expected {' or '.join(sorted(allowed))}\n{text}")
        elif row["state"] == "COMPLETED" and row["answer"] != alone(expected.steps):
            self.wrong.append(f"{said}: other bits than {expected.steps} steps on one rank")

    def _judge_samples(self) -> None:
        """Hold against the daemon what it holds more of at the end than at the start."""
        for life in range(self.life + 1):
            own = [sample for sample in self.samples if sample.life == life]
            part = max(3, len(own) // 5)
            if len(own) < 2 * part:
                continue
            early, late = own[:part], own[-part:]
            files = [statistics.median(s.files for s in some) for some in (early, late)]
            kib = [statistics.median(s.kib for s in some) for some in (early, late)]
            ended = late[-1].ended - early[0].ended
            print(f"life {life}: {ended} jobs ended, files {files}, KiB {kib}")
            if files[1] > files[0] + 12:
                self.wrong.append(f"life {life}: open files grew from {files[0]} to {files[1]}")
            if kib[1] > kib[0] + 8000 + 40 * ended:
                self.wrong.append(f"life {life}: memory grew from {kib[0]} to {kib[1]} KiB")


def seen(row: dict[str, Any] | None) -> str:
    """Return the state of a job's row, as the model of jobs has it."""
    if row is None:
        return "ABSENT"
    if row["state"] in OVER:
        return "OVER"
    held = row["state"] == "PENDING" and row["reason"].startswith("JobHeldUser")
    return "HELD" if held else str(row["state"])


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def holding(rms: Rms, life: int, ended: int) -> Sample:
    """Return what the daemon's process holds."""
    assert rms.process is not None
    try:
        files = len(os.listdir(f"/proc/{rms.process.pid}/fd"))  # noqa: PTH208
        status = Path(f"/proc/{rms.process.pid}/status").read_text()
        kib, threads = (int(status.partition(k)[2].split()[0]) for k in ("VmRSS:", "Threads:"))
    except (OSError, IndexError) as error:
        raise AssertionError(error) from None
    return Sample(life, ended, files, threads, kib)


@cache
def alone(steps: int) -> str:
    """Return the bits of as many steps on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = called(mpdata, "run", *CASE, "--steps", str(steps), "--json", str(out))
        assert done.returncode == 0, done.stderr
        bits: str = json.loads(out.read_text())["sha256"]
        return bits


def soak(
    seconds: float, kills: int, seed: int, keep: Path | None = None, nodes: int = NODES
) -> Soak:
    """Run it; the caller looks at what is ``wrong``.

    Args:
        keep: where the daemon's folder is copied if something is.
    """
    limits = ("--grace", "5", "--boot-deadline", "120", "--keep-events", "1500")
    rms = LocalRms(nodes, *limits, "--meter-command", METER)
    try:
        found = Soak(rms, random.Random(seed), nodes)
        try:
            found.run(seconds, kills)
            found.settle()
        except AssertionError as error:
            found.wrong.append(f"{error}")
        if said := re.findall(r"^.*(?:Error|the rest goes on|Traceback).*$", rms.said(), re.M):
            found.wrong.append("the daemon said: " + "\n".join(dict.fromkeys(said)))
        if found.wrong and keep is not None:
            shutil.copytree(rms.folder, keep, dirs_exist_ok=True, ignore=_sockets)
    finally:
        rms.close()
    return found


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def main() -> int:
    """Run for as long as is asked; print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=1200.0, metavar="S", help="default 1200")
    parser.add_argument("--kills", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the folder of a fault here")
    parser.add_argument("--history", type=Path, metavar="FILE", help="write all answers here")
    asked = parser.parse_args()
    if asked.history is not None and not asked.history.absolute().parent.is_dir():
        parser.error(f"expected --history in a folder that exists, got {asked.history}")
    for number in (signal.SIGTERM, signal.SIGINT):  # what was started is ended then
        signal.signal(number, lambda *_: sys.exit(130))
    found = soak(asked.seconds, asked.kills, asked.seed, asked.keep)
    if asked.history is not None:
        lines = [f"{subject}: {call}" for subject, calls in found.calls.items() for call in calls]
        asked.history.write_text("\n".join([*lines, ""]))
    print("\n".join(f"{count:6d} {what}" for what, count in found.counted.items()))
    print(
        f"{len(found.jobs)} jobs, {found.life} kills; {'WRONG' if found.wrong else 'all is well'}"
    )
    print("\n".join(found.wrong))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
