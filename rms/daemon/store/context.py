"""The context that the parts of a daemon share: log, clock, metrics, settings, scheduler, jobs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from types import TracebackType

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rms.core.books.spans import BOOT, IDLE, MODEL, OFF
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    Resized,
    ResizeRolledBack,
    Started,
    Withdrawn,
    WorkLost,
)
from rms.core.model.jobs import Job, JobId
from rms.core.scheduler.scheduler import Scheduler
from rms.core.state import State, is_task
from rms.daemon.store.journal import Journal, JournalError
from rms.daemon.store.notes import BrokenNote, ClockNote
from rms.daemon.store.private import Private
from rms.daemon.store.record import JobRuntime
from rms.formats.prices import Kind, Prices
from rms.launch.base import PowerCommands
from rms.launch.local import LocalLauncher
from rms.power.meter import boot_id, boottime
from rms.wire.live import UsageRow
from rms.wire.users import ALIVE, Books, PowerCap

# Default deadlines of a world that boots beside a running one, and of a job that is to end.
BOOT_S, GRACE_S = 60.0, 10.0


# --- the log -------------------------------------------------------------------------------------


log = logging.getLogger("rms")
log.addHandler(logging.NullHandler())  # without it warnings go to standard error


def describe(error: Exception) -> str:
    """Return the message of an error, with the place where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


class Faults:
    """Contains unexpected errors of a part of the daemon, and logs repeated ones once.

    An error about a job ends that job (:meth:`rms.daemon.jobs.scripts.Scripts.fail`). An error of
    another part is logged, and the part is called again in the next round. The journal's errors
    are not contained: without a journal the daemon must not decide anything.
    """

    def __init__(self) -> None:
        self._last = dict[str, str]()

    def of(self, part: str) -> Contained:
        """Contain errors of a part of the daemon."""
        return Contained(part, self._last)


class Contained:
    """Contains errors of a part, in a block: a class, as every round enters some tens of them."""

    __slots__ = ("_last", "_part")

    def __init__(self, part: str, last: dict[str, str]) -> None:
        self._part, self._last = part, last

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, JournalError):
            return False
        words = describe(error)
        if self._last.get(self._part) != words:
            self._last[self._part] = words
            log.warning(f"{self._part}: {words}; the rest goes on")
        return True


# --- the clock -----------------------------------------------------------------------------------

STEP_S = 1.0  # smallest difference between the time of day and the clock that counts as a change


class BootClock:
    """Tells the time in seconds since the epoch, unaffected by changes of the time of day.

    NTP or a user may set the time of day while jobs run: time limits, deadlines and the energy of
    the model must not follow. So the clock counts seconds of ``CLOCK_BOOTTIME`` from an offset in
    the journal's notes. A daemon that is restarted before the next boot of the machine continues
    with that offset. Meters on the nodes and time stamps of files follow the time of day; the
    difference is :attr:`skew_s`.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        uptime: Callable[[], float] = boottime,
        of_day: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._journal, self._uptime, self._of_day = journal, uptime, of_day
        self._boot = boot_id() if boot is None else boot
        note = journal.noted(ClockNote)
        goes_on = bool(self._boot) and note.boot == self._boot
        self._offset_s = note.offset_s if goes_on else of_day() - uptime()
        self._skew_s = 0.0
        if not goes_on:
            self._keep()

    def __call__(self) -> float:
        """Return the time."""
        return self._uptime() + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Continue from this time at least, the time of the last event in the journal."""
        if self() < at_s:
            self._offset_s = at_s - self._uptime()
            self._keep()

    @property
    def skew_s(self) -> float:
        """Seconds by which the time of day is ahead of this clock; a change is logged."""
        skew_s = self._of_day() - self()
        if abs(skew_s - self._skew_s) > STEP_S:
            log.warning(
                f"the time of day was set by {skew_s - self._skew_s:+.1f} s; times here go on as "
                f"before, {abs(skew_s):.1f} s {'behind' if skew_s > 0.0 else 'ahead of'} it"
            )
            self._skew_s = skew_s
        return self._skew_s

    def _keep(self) -> None:
        self._journal.note(ClockNote(boot=self._boot, offset_s=self._offset_s))


# --- metrics for Prometheus (GET /metrics), counted since the start ------------------------------

WAITS_S = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 172800.0)
PASSES_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
STALLS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

JOBS_KEPT_S = 600.0  # ended jobs keep their metrics for this time: at least two scrapes
MOST_JOBS = 1_000  # jobs with metrics of their own: running ones, then those that ended last
JOB_ENERGY = (
    "Energy of a job by source, while it runs and for 10 minutes after; without that of the model "
    "since the last report of a meter."
)
JOB_UNCERTAINTY = "Half-width of the measured energy of a job, about 95 %; the model's is unknown."
JOB_LABELS = ("job_id", "name", "user", "account", "source")

_without_created: Callable[[], None] = disable_created_metrics  # which has no annotations
_without_created()


class Energies(Collector):
    """Energy of jobs, and of nodes by kind of owner, as counters, which must not fall.

    A report of a meter replaces energy of the model. So the model's energy since the last report of
    a node with meters is not counted; and where a meter was silent for longer and then reports that
    time too, the model's counter stands still until the model's energy has caught up.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobId, tuple[tuple[str, ...], dict[str, float]]] = {}
        self._errors_j: dict[tuple[str, ...], float] = {}
        self._owners: dict[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of the last update."""
        jobs = CounterMetricFamily("rms_job_energy_joules", JOB_ENERGY, labels=JOB_LABELS)
        for labels, by_source in self._jobs.values():
            for source, joules in by_source.items():
                jobs.add_metric((*labels, source), joules)
        name = "rms_job_energy_uncertainty_joules"
        errors = GaugeMetricFamily(name, JOB_UNCERTAINTY, labels=JOB_LABELS)
        for labels, error_j in self._errors_j.items():
            errors.add_metric(labels, error_j)
        nodes = "Energy of all nodes by kind of owner: jobs, tasks, idle, off, boot."
        owners = CounterMetricFamily("rms_node_energy_joules", nodes, labels=("owner",))
        for owner, joules in self._owners.items():
            owners.add_metric((owner,), joules)
        yield from (jobs, errors, owners)

    def update(self, context: Context, books: Books, at_s: float) -> None:
        """Read the books at a time."""
        energy, unsettled_j = context.scheduler.energy, context.scheduler.energy.unsettled_j(at_s)
        before, self._jobs, self._errors_j = self._jobs, {}, {}
        for job in _newest(context.state, at_s):
            job_id = job.spec.id
            submission = context.jobs[job_id].submission if job_id in context.jobs else None
            name, user = ("", "") if submission is None else (submission.name, submission.user)
            labels = str(job_id), name, user, job.spec.account
            by_source = before[job_id][1] if job_id in before else {MODEL: 0.0}
            for part in energy.parts(job_id, energy.job_j(job_id, at_s)):
                joules = part.joules
                if part.source == MODEL:
                    joules -= unsettled_j.get(job_id, 0.0)
                else:
                    self._errors_j[*labels, part.source] = part.uncertainty_j
                by_source[part.source] = max(joules, by_source.get(part.source, 0.0))
            self._jobs[job_id] = labels, by_source
        kinds = {"jobs": books.busy_j, "tasks": books.tasks_j}
        kinds |= {IDLE: books.idle_j, OFF: books.off_j, BOOT: books.boot_j}
        for owner, joules in unsettled_j.items():
            kinds[owner if owner in kinds else "tasks" if is_task(owner) else "jobs"] -= joules
        for kind, joules in kinds.items():
            self._owners[kind] = max(joules, self._owners.get(kind, 0.0))


def _newest(state: State, at_s: float) -> Iterator[Job]:
    """Yield running jobs, then those that have just ended, the newest first."""
    ended = takewhile(
        lambda job: (job.end_s or 0.0) > at_s - JOBS_KEPT_S, reversed(state.ended.values())
    )
    begun = (job for job in ended if job.start_s is not None)
    return islice(chain(state.running.values(), begun), MOST_JOBS)


class Metrics:
    """Counters and histograms of one daemon, and gauges, which are set on request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self._registry)
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        self._jobs = gauge("rms_jobs", "Jobs that are not over, by state.", ["state"])
        ended = "Jobs that have ended since the daemon was started, by state."
        self._ended = counter("rms_jobs_ended", ended, ["state"])
        wait, begun = "From submission to start of a job.", "An event, and what is decided on it."
        self._waits_s = histogram("rms_wait_seconds", wait, buckets=WAITS_S)
        self._passes_s = histogram("rms_pass_seconds", begun, buckets=PASSES_S)
        self._nodes = gauge("rms_nodes", "Nodes, or slots of shared ones.")
        self._free = gauge("rms_nodes_free", "Those that are free.")
        self._power_w = gauge("rms_power_watts", "Power by its source.", ["source"])
        energy = (
            "Energy of the cluster by its source; what meters report later replaces the model's."
        )
        self._energy_j = gauge("rms_energy_joules", energy, ["source"])
        lost = "Energy of jobs for lost steps, and for recoveries from failures of ranks or nodes."
        self._lost_j = gauge("rms_lost_energy_joules", lost, ["part"])
        survived = "Failures of ranks or nodes after which jobs went on."
        self._survived = counter("rms_survived_failures", survived)
        self._resizes = counter("rms_resizes", "Resizes that are over, by outcome.", ["outcome"])
        stall = "A job stands still for a resize."
        self._stalls_s = histogram("rms_stall_seconds", stall, buckets=STALLS_S)
        self._energies = Energies()
        self._registry.register(self._energies)
        for state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
            self._ended.labels(state)
        for outcome in ("done", "rolled_back"):
            self._resizes.labels(outcome)

    def on_event(self, context: Context, event: Event, pass_s: float) -> None:
        """Count an event after its scheduling pass, which took ``pass_s``."""
        self._passes_s.observe(pass_s)
        if isinstance(event, Started):
            job = context.state.running.get(event.job)
            if job is not None:
                self._waits_s.observe(max(0.0, event.at_s - job.spec.submit_s))
        elif isinstance(event, Resized):
            self._resizes.labels("done").inc()
            runtime = context.jobs.get(event.job)
            if runtime is not None and runtime.resizes:
                self._stalls_s.observe(runtime.resizes[-1].stall_s)
        elif isinstance(event, ResizeRolledBack):
            self._resizes.labels("rolled_back").inc()
        elif isinstance(event, WorkLost):
            self._survived.inc()
        elif isinstance(event, Ended):
            self._ended.labels(event.state).inc()
        elif isinstance(event, Withdrawn):
            self._ended.labels("CANCELLED").inc(len(event.jobs))

    def text(self, context: Context, at_s: float) -> str:
        """Return all metrics at a time in Prometheus' text format 0.0.4."""
        scheduler, state = context.scheduler, context.state
        states = Tally(str(job.state) for job in state.running.values())
        jobs = {
            "PENDING": len(state.pending) + len(state.too_wide),
            "HELD": len(state.held),
            **{name: states[name] for name in ALIVE.split(",") if name != "PENDING"},
        }
        books = scheduler.books(at_s)
        _set_gauge(self._jobs, jobs)
        _set_gauge(self._power_w, watts_by_source(scheduler))
        _set_gauge(self._energy_j, {part.source: part.joules for part in books.sources})
        lost = {"recomputed": books.lost.recomputed_j, "recovery": books.lost.recovery_j}
        _set_gauge(self._lost_j, lost)
        self._energies.update(context, books, at_s)
        self._nodes.set(state.nodes)
        self._free.set(state.free_count)
        return generate_latest(self._registry).decode()


def watts_by_source(scheduler: Scheduler) -> dict[str, float]:
    """Return the present power of the cluster by its source: meters and the model."""
    energy, watts = scheduler.energy, dict[str, float]()
    for node, power_w in energy.measured.node_w.items():
        source = energy.measured.sources.get(node, "measured")
        watts[source] = watts.get(source, 0.0) + power_w
    rest_w = energy.power_w - sum(watts.values())
    if not set(energy.measured.node_w) >= set(scheduler.cluster.hosts):
        watts[MODEL] = max(0.0, rest_w)
    return watts


def _set_gauge(gauge: Gauge, values: Mapping[str, float]) -> None:
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)


# --- settings and context ------------------------------------------------------------------------


Handle = Callable[..., list[Decision]]  # enters an event: :meth:`rms.daemon.heart.Daemon.handle`


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of a daemon, fixed when it starts."""

    policy: str
    listen: str = ""  # ``unix:PATH`` or ``tcp:HOST:PORT``
    parent: int | None = None  # process whose end ends the daemon, or None
    # from SIGTERM to SIGKILL: time for a job to reach a resize point and write its checkpoint
    grace_s: float = GRACE_S
    boot_s: float = BOOT_S
    # time without a new step after which a job's run is given up; None: never
    stall_s: float | None = None
    # mean time between failures of a node, in hours, for copies in memory; None: the library's
    mtbf_h: float | None = None
    # run time to plan with for jobs without a limit; None: unlimited
    assumed_s: float | None = None
    # the user's modules whose functions a later policy may name
    policy_modules: frozenset[str] = frozenset()
    profiles: Path | None = None
    prices: Prices | None = None
    cheap_by: Kind = "price"  # what cheap hours are cheap in
    # bound of the cluster's power; None to keep the bound of before a restart
    power_cap: PowerCap | None = None
    # power nodes off and on; None: nodes are off in the books only
    power_commands: PowerCommands | None = None
    set_frequencies: bool = True
    meter_limit_w: float | None = None  # bound of the power of a device, None for the default
    governor: str = ""  # rule for the governor of tasks, "" to keep the rule of before a restart
    keep_entries: int | None = None  # least number of entries that the journal keeps, None for all
    # distinguishes the nodes from others of the same names: an allocation's id, or ""
    where: str = ""
    now: Callable[[], float] = time.time  # the time in seconds since the epoch, which is never set
    # the clock behind ``now``, if the time of day may differ from it
    clock: BootClock | None = None


@dataclass
class Context:
    """A scheduler and its jobs, and the outside world."""

    settings: Settings
    scheduler: Scheduler
    jobs: dict[JobId, JobRuntime]
    journal: Journal
    launcher: LocalLauncher
    drained: frozenset[str] = frozenset()
    # names of nodes that could not be powered off or on, until a user resumes them
    broken: frozenset[str] = frozenset()
    # nodes of runs that were given up, and until when they get no job: any of them may have failed
    suspects: dict[str, float] = field(default_factory=dict)
    nodes_wait: str = ""  # why requested nodes are not there yet, "" if none are requested
    private: Private = field(init=False)
    metrics: Metrics = field(default_factory=Metrics, init=False)
    # usage of archived jobs by user and account, and the number of jobs in it
    archived_usage: dict[tuple[str, str], UsageRow] = field(default_factory=dict, init=False)
    archived_counted: int = field(default=0, init=False)
    _as_of_s: float | None = None

    def __post_init__(self) -> None:
        self.private = Private(self.launcher.state, self.launcher.instance_id)
        self.launcher.run_of = self._run_of

    def _run_of(self, job: str) -> int:
        """Return how often a job was requeued, 0 for a name that is not a job's."""
        runtime = self.jobs.get(JobId(job))
        return 0 if runtime is None else runtime.run

    @property
    def state(self) -> State:
        """The scheduler's state of jobs and nodes."""
        return self.scheduler.engine.state

    @property
    def cluster(self) -> Cluster:
        """The nodes."""
        return self.scheduler.cluster

    @property
    def controller_away(self) -> str:
        """The reason while Slurm's controller does not answer, else ""."""
        silent_s = self.launcher.nodes.silent_s()
        return f"SlurmctldDown: no answer for {silent_s:.0f} s" if silent_s else ""

    def now(self) -> float:
        """Return the wall clock's time, for deadlines."""
        return self.settings.now() if self._as_of_s is None else self._as_of_s

    @property
    def skew_s(self) -> float:
        """Seconds by which the time of day, of files and meters, is ahead of :meth:`now`."""
        return 0.0 if self.settings.clock is None else self.settings.clock.skew_s

    @contextlib.contextmanager
    def as_of(self, at_s: float) -> Iterator[None]:
        """Stop the clock at an earlier time, to enter an event of that time."""
        self._as_of_s = at_s
        try:
            yield
        finally:
            self._as_of_s = None

    def time(self) -> float:
        """Return the time for the next event: the wall clock, never going back."""
        return max(self.now(), self.state.now_s)

    def set_broken(self, names: Iterable[str]) -> None:
        """Note the nodes that could not be powered off or on."""
        self.broken = frozenset(names)
        self.journal.note(BrokenNote(names=sorted(self.broken)))
