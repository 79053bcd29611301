"""A stand-in for slurmctld: nodes and jobs in memory, behind the commands that the engine uses.

It is the ``run`` of :class:`rms.launch.slurm.commands.Slurm`, so everything above that is the
real thing. Every command takes the time that it took on a real Slurm (22.05.8), and what changes
a running job keeps all others waiting meanwhile, as slurmctld's lock on its jobs does there.

Of the real one, measured with 4, 1,000 and 10,000 nodes configured and up to 2,000 jobs waiting:
a merge and a shrink take the same whatever there is; ``sinfo --Node`` grows with the square of the
nodes, all other listings with what they list.
"""

from __future__ import annotations

import getpass
import itertools
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from rms.launch.slurm.commands import CommandResult

CONFIG = """\
AccountingStorageType   = accounting_storage/slurmdbd
AcctGatherEnergyType    = acct_gather_energy/none
ClusterName             = standin
SchedulerParameters     = permit_job_expansion
SelectType              = select/linear
TaskPlugin              = task/none
"""
OVER = ("COMPLETED", "CANCELLED", "FAILED")


@dataclass(frozen=True)
class Costs:
    """Seconds that commands take, and (``..._held_s``) those in which all others wait for them.

    ``per_job_s`` of those in the queue, ``per_row_s`` of those printed; ``show_job_s`` and
    ``sinfo_s`` per node. ``start_s`` is from sbatch until Slurm has started a job.
    """

    call_s: float = 0.0045
    per_job_s: float = 5.7e-6
    per_row_s: float = 4.2e-6
    sinfo_s: float = 2.9e-6
    sinfo_node_s: float = 8.7e-9  # times the square of the nodes
    show_job_s: float = 4.0e-6
    submit_held_s: float = 0.0005
    allocate_s: float = 0.004
    allocate_held_s: float = 0.0014
    merge_held_s: float = 0.36
    shrink_held_s: float = 0.18
    start_s: float = 0.41


@dataclass
class Job:
    """A job as the controller keeps it."""

    number: int
    name: str
    user: str
    nodes: int
    limit: str
    submit_s: float
    due_s: float
    wanted: tuple[str, ...] = ()
    state: str = "PENDING"
    reason: str = "None"
    hosts: tuple[str, ...] = ()
    batch: bool = True
    start_s: float | None = None
    end_s: float | None = None
    resized_s: float | None = None
    expands: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class _RefusedError(Exception):
    """A sentence on standard error, with exit status 1."""


class Controller:
    """One cluster's controller.

    Args:
        nodes: names of the nodes, of ``cpus`` CPUs, all in one partition.
        pause: spends the time that a command takes.
        now: seconds since the epoch.

    Attributes:
        calls, busy_s: numbers of calls by command, and their summed times.
        most_at_once: commands in flight, at most.
        held_s: how long all of it has waited for changes of jobs.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        cpus: int = 1,
        costs: Costs | None = None,
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.nodes, self.cpus, self.costs = tuple(nodes), cpus, costs or Costs()
        self._pause, self._now = pause, now
        self._free = dict.fromkeys(nodes, True)
        self.down: set[str] = set()
        self._jobs: dict[int, Job] = {}
        self._waiting: dict[int, Job] = {}
        self._started: list[Job] = []
        self._ending: deque[tuple[int, str]] = deque()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # slurmctld's own, on its jobs: held while they change
        self._counting = threading.Lock()
        self._flying = 0
        self.calls: Counter[str] = Counter()
        self.busy_s: defaultdict[str, float] = defaultdict(float)
        self.listed: list[int] = []
        self.most_at_once = 0
        self.held_s = 0.0

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        """Run a command, as :data:`rms.launch.slurm.commands.Run` has it."""
        name = PurePath(command[0]).name
        kind = self._kind(name, command)
        with self._counting:
            self.calls[kind] += 1
            self._flying += 1
            self.most_at_once = max(self.most_at_once, self._flying)
        begun = time.perf_counter()
        try:
            return self._answer(name, list(command[1:]), environment)
        except _RefusedError as refusal:
            return CommandResult(1, "", f"{name}: error: {refusal}\n")
        finally:
            with self._counting:
                self._flying -= 1
                self.busy_s[kind] += time.perf_counter() - begun

    @staticmethod
    def _kind(name: str, command: Sequence[str]) -> str:
        """Return the kind of a call."""
        if name != "scontrol":
            return f"{name} --Node" if "--Node" in command else name
        if "update" in command:
            return "scontrol NumNodes=0" if "NumNodes=0" in command else "scontrol NodeList="
        return "scontrol ping" if "ping" in command else "scontrol show"

    def _answer(self, name: str, words: list[str], environment: Mapping[str, str]) -> CommandResult:
        if name == "salloc":
            return CommandResult(0, "", self._allocate(words))
        if name == "scontrol":
            return CommandResult(0, self._control(words), "")
        answers: dict[str, Callable[[list[str]], str]] = {
            "squeue": self._squeue,
            "sinfo": self._sinfo,
            "scancel": self._cancel,
            "sbatch": lambda words: self._submit(words, environment),
        }
        if name not in answers:
            raise _RefusedError("Connection refused")  # sacct, without slurmdbd
        return CommandResult(0, answers[name](words), "")

    # --- the cluster's own life --------------------------------------------------------------

    def advance(self) -> list[Job]:
        """Start jobs that fit; return the batch jobs that started since the last call."""
        if not self._lock.acquire(blocking=False):
            return []  # a change is in progress; callers do not wait for it
        try:
            self._start()
            started, self._started = self._started, []
            return started
        finally:
            self._lock.release()

    def _start(self) -> None:
        now = self._now()
        while self._ending:
            number, state = self._ending.popleft()
            self._end(self._jobs[number], state)
        for job in list(self._waiting.values()):
            if now < job.due_s:
                continue
            job.reason = "Resources"
            hosts = job.wanted or tuple(self._idle(job.nodes))
            if len(hosts) < job.nodes or not all(self._free[host] for host in hosts):
                continue
            del self._waiting[job.number]
            self._run(job, hosts)
            self._started.append(job)

    def _run(self, job: Job, hosts: tuple[str, ...]) -> None:
        job.state, job.reason, job.hosts, job.start_s = "RUNNING", "None", hosts, self._now()
        self._free.update(dict.fromkeys(hosts, False))

    def finish(self, number: int, state: str = "COMPLETED") -> None:
        """End a job as soon as the controller looks: its script has ended."""
        self._ending.append((number, state))

    def _end(self, job: Job, state: str) -> None:
        if job.state not in OVER:
            self._waiting.pop(job.number, None)
            if job.state == "RUNNING":
                self._free.update(dict.fromkeys(job.hosts, True))
            job.state, job.end_s = state, self._now()

    def job(self, number: int) -> Job | None:
        """Return a job that there is or was."""
        return self._jobs.get(number)

    @property
    def donors(self) -> list[Job]:
        """Jobs that hold nodes for others, but for those of which something is to be expected."""
        return [
            job
            for job in self._jobs.values()
            if job.expands and job.state == "RUNNING" and self._now() > (job.start_s or 0.0) + 2.0
        ]

    def _idle(self, count: int) -> Iterator[str]:
        free = (name for name in self.nodes if self._free[name] and name not in self.down)
        return itertools.islice(free, count)

    def _held(self, seconds: float) -> None:
        """Spend time in which every other command waits."""
        self._pause(seconds)
        self.held_s += seconds

    # --- commands that read ------------------------------------------------------------------

    def _squeue(self, words: list[str]) -> str:
        if "--steps" in words:
            self._pause(self.costs.call_s)
            return ""
        wanted = _value(words, "--states")
        states = None if wanted in ("", "all") else set(wanted.split(","))
        user, shape = _value(words, "--user"), _value(words, "--format")
        ids = {int(n) for n in _value(words, "--jobs").split(",") if n}
        with self._lock:
            self._start()
            rows = [
                _printed(job, shape)
                for job in self._jobs.values()
                if (job.state in states if states else wanted == "all" or job.state not in OVER)
                and user in ("", job.user)
                and (not ids or job.number in ids)
            ]
            count = len(self._jobs)
        with self._counting:
            self.listed.append(len(rows))
        cost = self.costs
        self._pause(cost.call_s + cost.per_job_s * count + cost.per_row_s * len(rows))
        return "".join(rows)

    def _sinfo(self, words: list[str]) -> str:
        cost, count = self.costs, len(self.nodes)
        if "--version" in words:
            self._pause(cost.call_s)
            return "slurm-wlm 22.05.8\n"
        shape = _value(words, "--format")
        with self._lock:
            self._start()
            state = {
                name: "down" if name in self.down else "idle" if free else "allocated"
                for name, free in self._free.items()
            }
        if "--Node" in words:
            self._pause(cost.call_s + cost.sinfo_s * count + cost.sinfo_node_s * count**2)
            groups = [([name], state[name]) for name in self.nodes]
        else:
            self._pause(cost.call_s + cost.sinfo_s * count)
            # One row for all that print alike, as sinfo does.
            kinds = sorted(set(state.values())) if "%T" in shape else ["any"]
            groups = [
                ([n for n in self.nodes if kind in ("any", state[n])], kind) for kind in kinds
            ]
        fields = {
            "%P": "all*",
            "%c": str(self.cpus),
            "%G": "(null)",
            "%E": "none",
            "%l": "infinite",
        }
        return "".join(
            _filled(shape, fields | {"%N": fold(names), "%T": kind, "%n": names[0]})
            for names, kind in groups
        )

    def _control(self, words: list[str]) -> str:
        words = [word for word in words if not word.startswith("--")]
        if words[0] == "update":
            return self._update(words[1:])
        if words[0] == "ping":
            self._pause(self.costs.call_s)
            return "Slurmctld(primary) at standin is UP\n"
        if words[:2] == ["show", "config"]:
            self._pause(self.costs.call_s)
            return CONFIG
        with self._lock:
            self._start()
            text = _details(self._job(words[-1]))
        self._pause(self.costs.call_s + self.costs.show_job_s * len(self.nodes))
        return text

    def _job(self, number: str) -> Job:
        job = self._jobs.get(int(number)) if number.isdecimal() else None
        if job is None:
            raise _RefusedError("Invalid job id specified")
        return job

    # --- commands that act -------------------------------------------------------------------

    def _submit(self, words: list[str], environment: Mapping[str, str]) -> str:
        cost = self.costs
        with self._lock:
            self._held(cost.submit_held_s)
            job = self._new(words, environment, self._now() + cost.start_s)
            self._waiting[job.number] = job
        self._pause(cost.call_s)
        return f"{job.number}\n"

    def _new(self, words: list[str], environment: Mapping[str, str], due_s: float) -> Job:
        job = Job(
            number=next(self._ids),
            name=_value(words, "--job-name") or "wrap",
            user=getpass.getuser(),
            nodes=int(_value(words, "--nodes") or 1),
            limit=_value(words, "--time") or "UNLIMITED",
            submit_s=self._now(),
            due_s=due_s,
            wanted=tuple(filter(None, _value(words, "--nodelist").split(","))),
            environment=environment,
        )
        if not set(job.wanted) <= self._free.keys():
            raise _RefusedError("Batch job submission failed: Invalid node name specified")
        self._jobs[job.number] = job
        return job

    def _allocate(self, words: list[str]) -> str:
        cost = self.costs
        expands = re.fullmatch(r"expand:(\d+)", _value(words, "--dependency"))
        with self._lock:
            self._start()
            self._held(cost.allocate_held_s)
            if expands and self._running(expands[1]) is None:
                raise _RefusedError("Job submit/allocate failed: Job dependency problem")
            job = self._new(words, {}, self._now())
            hosts = job.wanted or tuple(self._idle(job.nodes))
            if len(hosts) < job.nodes or not all(self._free[host] for host in hosts):
                self._end(job, "FAILED")
                raise _RefusedError("Unable to allocate resources: Requested nodes are busy")
            job.batch, job.expands = False, int(expands[1]) if expands else None
            self._run(job, hosts)
        self._pause(cost.allocate_s)
        return f"salloc: Granted job allocation {job.number}\n"

    def _running(self, number: str) -> Job | None:
        job = self._jobs.get(int(number))
        return job if job is not None and job.state == "RUNNING" else None

    def _update(self, words: list[str]) -> str:
        changes = dict(word.split("=", 1) for word in words)
        self._pause(self.costs.call_s)
        with self._lock:
            self._start()
            job = self._job(changes["jobid"])
            if job.state in OVER:
                raise _RefusedError(f"Job has already finished for job {job.number}")
            if changes.get("NumNodes") == "0":
                self._merge(job)
            else:
                self._shrink(job, tuple(changes["NodeList"].split(",")))
        return ""

    def _merge(self, donor: Job) -> None:
        if donor.batch or donor.expands is None:
            raise _RefusedError(f"Job step already exists for job {donor.number}")
        self._held(self.costs.merge_held_s)
        target = self._running(str(donor.expands))
        donor.state, donor.end_s = "COMPLETED", self._now()
        if target is None:  # the command succeeds, and the nodes go back
            self._free.update(dict.fromkeys(donor.hosts, True))
        else:
            target.hosts = tuple(sorted((*target.hosts, *donor.hosts), key=self.nodes.index))
            target.nodes, target.resized_s = len(target.hosts), self._now()
        donor.hosts = ()

    def _shrink(self, job: Job, kept: tuple[str, ...]) -> None:
        if not set(kept) < set(job.hosts) or (job.batch and job.hosts[0] not in kept):
            raise _RefusedError(f"Invalid node name specified for job {job.number}")
        self._held(self.costs.shrink_held_s)
        self._free.update(dict.fromkeys(set(job.hosts).difference(kept), True))
        job.hosts = tuple(host for host in job.hosts if host in kept)
        job.nodes, job.resized_s = len(job.hosts), self._now()

    def _cancel(self, words: list[str]) -> str:
        name, state = _value(words, "--name"), _value(words, "--state")
        ids = [int(word) for word in words if word.isdecimal()]
        with self._lock:
            self._held(self.costs.submit_held_s)
            if name:
                jobs = [job for job in self._jobs.values() if job.name == name]
            else:
                jobs = [self._job(str(number)) for number in ids]
            if not any(word.startswith("--signal") for word in words):
                for job in jobs:
                    if state in ("", job.state):
                        self._end(job, "CANCELLED")
            count = len(self._jobs)
        self._pause(self.costs.call_s + (self.costs.per_job_s * count if name else 0.0))
        return ""


def fold(names: Sequence[str]) -> str:
    """Return names as Slurm prints them: ``n[1-3,7]``."""
    rows: list[tuple[str, list[str]]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        stem, number = (match[1], match[2]) if match else (name, "")
        if rows and number and rows[-1][0] == stem:
            rows[-1][1].append(number)
        else:
            rows.append((stem, [number]))
    return ",".join(
        f"{stem}[{_ranges(numbers)}]" if len(numbers) > 1 else stem + numbers[0]
        for stem, numbers in rows
    )


def _ranges(numbers: Iterable[str]) -> str:
    ranges: list[list[str]] = []
    for number in numbers:
        if ranges and int(number) == int(ranges[-1][-1]) + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(ends) for ends in ranges)


def _value(words: Sequence[str], option: str) -> str:
    """Return the value of an option ``OPTION=VALUE``, "" if it is missing."""
    return next((w.partition("=")[2] for w in words if w.startswith(f"{option}=")), "")


def _filled(shape: str, fields: Mapping[str, str]) -> str:
    return re.sub("%.", lambda match: fields[match[0]], shape) + "\n"


def _time(at_s: float | None, none: str = "N/A") -> str:
    return none if at_s is None else str(int(at_s))


def _limit(words: str) -> str:
    return f"{words}:00" if words.isdecimal() else words


def _printed(job: Job, shape: str) -> str:
    fields = {
        "%A": str(job.number),
        "%F": str(job.number),
        "%K": "N/A",
        "%T": job.state,
        "%D": str(job.nodes),
        "%N": fold(job.hosts),
        "%r": job.reason,
        "%l": _limit(job.limit),
        "%V": _time(job.submit_s),
        "%S": _time(job.start_s),
        "%u": job.user,
        "%j": job.name,
        "%i": str(job.number),
    }
    return _filled(shape, fields)


def _details(job: Job) -> str:
    batch = f"\n   BatchHost={job.hosts[0]}" if job.batch and job.hosts else ""
    resized = "" if job.resized_s is None else f"\n   ResizeTime={_time(job.resized_s)}"
    return (
        f"JobId={job.number} JobName={job.name}\n"
        f"   UserId={job.user}(0) GroupId={job.user}(0) MCS_label=N/A\n"
        f"   JobState={job.state} Reason={job.reason} Dependency=(null)\n"
        f"   SubmitTime={_time(job.submit_s)} EligibleTime={_time(job.submit_s)}{resized}\n"
        f"   StartTime={_time(job.start_s, 'Unknown')} EndTime={_time(job.end_s, 'Unknown')}"
        f" Deadline=N/A\n"
        f"   NodeList={fold(job.hosts) or '(null)'}{batch}\n"
        f"   NumNodes={job.nodes} NumCPUs={job.nodes}\n"
        f"   JOB_GRES=(null)\n"
    )
