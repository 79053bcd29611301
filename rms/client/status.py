"""The state of a cluster and of jobs in words, for the page, ``rms top``, ``rms show``, reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rms.formats.energy import OwnerEnergy, amount, energy_words, lost_words, slurm_words
from rms.formats.prices import CO2_UNIT
from rms.formats.values import fold_slots
from rms.wire.live import Live
from rms.wire.terminal import clock, duration, hms
from rms.wire.users import (
    OVER,
    Gain,
    HistoryEntry,
    HoursGain,
    JobRow,
    ResizeRow,
    Schedule,
    Snapshot,
    restart_words,
)

RESIZE_HEADS = ("AT", "STEP", "RANKS", "STRATEGY", "BOOT", "STALL", "MOVED", "ENERGY")
DECISION_HEADS = ("TIME", "DECISION", "NODES", "REASON")


@dataclass(frozen=True)
class StateLook:
    """The word for the state of a job, its sign, and its colour on a terminal.

    The signs differ, so that no information depends on a colour; all are one cell wide.
    """

    word: str
    sign: str
    colour: str


HELD = "HELD"
"""Key of :data:`STATES` for a pending job that a user holds."""

STATES: Mapping[str, StateLook] = {
    "PENDING": StateLook("Pending", "○", "yellow"),
    HELD: StateLook("Held", "‖", "magenta"),
    "CONFIGURING": StateLook("Starting", "◌", "yellow"),
    "RUNNING": StateLook("Running", "▸", "green"),
    "SUSPENDED": StateLook("Suspended", "=", "magenta"),
    "COMPLETED": StateLook("Completed", "✓", "cyan"),
    "FAILED": StateLook("Failed", "×", "red"),
    "CANCELLED": StateLook("Cancelled", "–", "bright_black"),
    "TIMEOUT": StateLook("Timeout", "!", "red"),
    "OUT_OF_MEMORY": StateLook("Out of memory", "m", "red"),
}


def state_key(job: JobRow) -> str:
    """Return the key of a job's state in :data:`STATES`."""
    if job.state == "PENDING" and job.reason.startswith("JobHeldUser"):
        return HELD
    return job.state


def state_look(job: JobRow) -> StateLook:
    """Return word, sign and colour of a job's state."""
    return STATES.get(state_key(job), StateLook(job.state.capitalize(), "?", "white"))


def pending_words(job: JobRow, now_s: float) -> str:
    """Return why a job is pending, with its expected start: ``in 0:02:50 Resources: ...``."""
    if job.expected_start_s is None:
        return job.reason
    forecast = f"in {hms(job.expected_start_s - now_s)}"
    return f"{forecast} {job.reason}" if job.reason else forecast


def sizes_words(job: JobRow, most: int = 6) -> str:
    """Return the sizes of a resized job one after the other, in ranks: ``8→3→…→4→2``."""
    if not job.resizes:
        return ""
    steps = [str(job.resizes[0].from_ranks), *(str(row.to_ranks) for row in job.resizes)]
    return "→".join(steps if len(steps) <= most else [*steps[:2], "…", *steps[-2:]])


@dataclass(frozen=True)
class ClusterStatus:
    """Numbers of nodes and jobs, as the page, ``rms top`` and ``rms report`` show them.

    Attributes:
        allocated: nodes that jobs hold.
        completed: jobs that have ended, in whatever state.
    """

    allocated: int
    nodes: int
    running: int
    pending: int
    completed: int
    power_w: float
    policy: str

    @classmethod
    def of_live(cls, live: Live) -> ClusterStatus:
        """Return the status in an answer of the daemon."""
        jobs = live.running, live.waiting, live.over
        return cls(live.held, live.nodes, *jobs, live.power_w, live.policy)

    @classmethod
    def of_snapshot(cls, now: Snapshot) -> ClusterStatus:
        """Return the status in a snapshot."""
        states = [job.state for job in now.jobs]
        allocated = sum(node.state in ("allocated", "mixed") for node in now.nodes)
        over = sum(state in OVER for state in states)
        jobs = states.count("RUNNING"), states.count("PENDING"), over
        power_w = now.books.power_w[-1][1] if now.books.power_w else 0.0
        return cls(allocated, len(now.nodes), *jobs, power_w, now.books.policy)

    @property
    def nodes_words(self) -> str:
        """Allocated nodes, of all."""
        return f"{self.allocated:,} of {self.nodes:,}"

    @property
    def jobs_words(self) -> str:
        """Number of jobs by state."""
        return f"Running {self.running:,}, Pending {self.pending:,}, Completed {self.completed:,}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Names and values."""
        return [
            ("Nodes allocated", self.nodes_words),
            ("Running", f"{self.running}"),
            ("Pending", f"{self.pending}"),
            ("Completed", f"{self.completed}"),
            ("Power", f"{self.power_w:.0f} W"),
            ("Policy", self.policy),
        ]


def job_facts(job: JobRow) -> Iterator[tuple[str, str]]:
    """Yield the facts about a job: name and text.

    A node failure also requeues a job, so a running job shows the cost of a requeue.
    """
    status = "" if job.exit_code is None else f", exit status {job.exit_code}"
    to, how = job.resize_to, job.resizing or "pending"
    yield "state", f"{job.state}{status}" + ("" if to is None else f", resize to {to}: {how}")
    if job.reason:
        yield "reason", job.reason
    if job.limit_s is not None:
        yield "time limit", duration(job.limit_s)
    yield "submitted", clock(job.submit_s, day=True)
    if job.expected_start_s is not None:
        yield "expected start", clock(job.expected_start_s, day=True)
    if job.start_s is not None:
        yield (
            "started",
            f"{clock(job.start_s, day=True)}, after {duration(job.start_s - job.submit_s)}",
        )
    if job.end_s is not None and job.start_s is not None:
        yield "ended", f"{clock(job.end_s, day=True)}, after {duration(job.end_s - job.start_s)}"
    elif job.end_s is not None:
        yield "ended", clock(job.end_s, day=True)
    yield "nodes", _nodes(job)
    if job.steps:
        yield "progress", f"step {job.step:,} of {job.steps:,} ({job.step / job.steps:.0%})"
    if job.start_s is not None and job.end_s is None:
        yield "if requeued", restart_words(job.restartable, job.step, job.steps)
    if job.seen:
        rates = [f"{s.steps / s.seconds:.4g} on {s.nodes}" for s in job.seen if s.seconds > 0.0]
        yield "steps a second", ", ".join(rates)
    yield "energy", OwnerEnergy.of(job.energy).words_in_full
    if job.lost is not None:
        yield "lost work", lost_words(job.lost)
    if job.slurm.slurm_job:
        held = job.slurm.held or []
        since = [f"{','.join(own.nodes)} since {clock(own.at_s)}" for own in held]
        yield "in Slurm", "; ".join([f"job {job.slurm.slurm_job}", *since])
    if by_slurm := slurm_words(job.slurm):
        yield "by Slurm", by_slurm
    for name, listed in (("only on", job.nodelist), ("not on", job.exclude)):
        if listed:
            yield name, ",".join(listed)
    for name in ("account", "answer", "profile", "output", "summary"):
        if value := getattr(job, name):
            yield name, str(value)
    if job.priority:
        yield "priority", f"{job.priority:g}"
    if job.frequency is not None:
        yield "frequency", f"{job.frequency:.0%} of the highest"


def _nodes(job: JobRow) -> str:
    """Return the number of nodes of a job, and its range."""
    if not job.size:
        return f"wants {job.range_words}, {job.mode}"
    names = f" ({fold_slots(job.nodes)})" if job.nodes else ""
    may = "" if job.nodes_min == job.nodes_max else f", may have {job.range_words}"
    return f"{job.size}{names}, {job.mode}{may}"


def resize_cells(row: ResizeRow) -> list[str]:
    """Return the cells of a row of :data:`RESIZE_HEADS`."""
    energy = "" if row.energy_j is None else f"{row.energy_j:.1f} J"
    if row.saved_j is not None:
        energy += f", {'saves' if row.saved_j >= 0.0 else 'costs'} {abs(row.saved_j):.1f} J later"
    return [
        clock(row.at_s),
        f"{row.step}",
        f"{row.from_ranks} to {row.to_ranks}",
        row.strategy,
        f"{row.boot_s:.2f} s",
        f"{row.stall_s:.3f} s",
        f"{row.bytes / 1e6:.1f} MB",
        energy,
    ]


def decision_cells(entry: HistoryEntry) -> list[str]:
    """Return the cells of a row of :data:`DECISION_HEADS`."""
    return [clock(entry.at_s, day=True), entry.kind, fold_slots(entry.nodes), entry.reason]


# --- what resizes have brought -------------------------------------------------------------------

GAIN_HEADS = ("", "REAL RUN", "REPLAY", "REPLAY WITHOUT RESIZES")


def gain_cells(gain: Gain) -> list[list[str]]:
    """Return the rows of a table under :data:`GAIN_HEADS`."""
    runs = gain.real, gain.with_resizes, gain.without

    def joules(run: Schedule, of: float | None) -> str:
        return "" if of is None else energy_words(of)

    return [
        ["Makespan", *(hms(run.makespan_s) for run in runs)],
        ["Mean wait", *(hms(run.mean_wait_s) for run in runs)],
        ["Resizes", *(str(run.resizes) for run in runs)],
        ["Energy, cluster", *(joules(run, run.energy_j) for run in runs)],
        ["Energy, jobs", *(joules(run, run.busy_j) for run in runs)],
    ]


def gain_words(gain: Gain) -> list[str]:
    """Return what resizes have brought, in sentences: the gain, its basis, the model's error."""
    lenders = sum(row.lent_node_s > 0.0 for row in gain.rows)
    left_out = f"; {gain.left_out} left out" if gain.left_out else ""
    saved = gain.mean_saved_s
    sentences = [
        f"{lent_words(gain.lent_node_s)} lent by {_jobs(lenders)} to other jobs.",
        f"Without resizes the mean wait is {hms(abs(saved))} "
        f"{'longer' if saved >= 0.0 else 'shorter'}: {_jobs(gain.later)} "
        f"start{'s' if gain.later == 1 else ''} later, {gain.earlier:,} earlier.",
        f"{_jobs(gain.jobs)} from {clock(gain.from_s, day=True)} to "
        f"{clock(gain.until_s, day=True)}, policy {gain.policy}, {gain.nodes} nodes{left_out}.",
        f"Error of the model: starts in the replay are {hms(gain.start_error_s)} off on average, "
        f"the makespan {gain.makespan_error:+.1%}.",
    ]
    if abs(saved) <= gain.start_error_s:
        sentences.append("The difference of the waits is within that error.")
    return sentences


def lent_words(node_s: float) -> str:
    """Return an amount of node seconds in node hours."""
    hours = node_s / 3600.0
    return f"{hours:,.0f} node hours" if hours >= 100.0 else f"{hours:.3g} node hours"


def _jobs(number: int) -> str:
    return f"{number:,} job{'s' if number != 1 else ''}"


# --- what cheap hours have saved -----------------------------------------------------------------

HOURS_HEADS = ("", "REAL RUN", "REPLAY", "REPLAY WITH FLAT PRICES")


def hours_cells(gain: HoursGain) -> list[list[str]]:
    """Return the rows of a table under :data:`HOURS_HEADS`."""
    runs = gain.real, gain.priced, gain.flat

    def amounts(values: Iterable[float | None], unit: str) -> list[str]:
        return ["" if value is None else f"{amount(value)} {unit}".rstrip() for value in values]

    joules = (run.cluster_j for run in runs)
    rows = [
        ["Energy, cluster", *("" if value is None else energy_words(value) for value in joules)],
        ["Energy, jobs", *(energy_words(run.busy_j) for run in runs)],
        ["Mean turnaround", *(hms(run.mean_turnaround_s) for run in runs)],
        ["Deadlines missed", *(str(run.missed) for run in runs)],
        ["Resizes", *(str(run.resizes) for run in runs)],
    ]
    if gain.rated:
        rows.insert(0, ["Emissions, cluster", *amounts((run.co2_g for run in runs), CO2_UNIT)])
    if gain.currency is not None:
        rows.insert(0, ["Cost, cluster", *amounts((run.price for run in runs), gain.currency)])
    return rows


def hours_words(gain: HoursGain) -> list[str]:
    """Return what cheap hours have saved, in sentences, as :func:`gain_words`."""
    priced, flat = gain.priced, gain.flat
    saved = [
        f"{amount(flat_value - value)} {unit}".rstrip() + _share(flat_value - value, flat_value)
        for value, flat_value, unit in (
            (priced.price, flat.price, gain.currency),
            (priced.co2_g, flat.co2_g, CO2_UNIT),
        )
        if value is not None and flat_value is not None
    ]
    longer_s = priced.mean_turnaround_s - flat.mean_turnaround_s
    off = priced.busy_j / gain.real.busy_j - 1.0 if gain.real.busy_j else 0.0
    left_out = f"; {gain.left_out} left out" if gain.left_out else ""
    return [
        f"Waiting for cheap hours saves {' and '.join(saved)}, and makes the mean turnaround "
        f"{hms(abs(longer_s))} {'longer' if longer_s >= 0.0 else 'shorter'}.",
        f"{_jobs(gain.jobs)}, {gain.patient:,} with a deadline, from "
        f"{clock(gain.from_s, day=True)} to {clock(gain.until_s, day=True)}, policy {gain.policy}, "
        f"{gain.nodes} nodes{left_out}.",
        f"Error of the model: the energy of the jobs in the replay is {off:+.1%} off the books, "
        f"their mean turnaround "
        f"{hms(abs(priced.mean_turnaround_s - gain.real.mean_turnaround_s))}.",
    ]


def _share(part: float, whole: float) -> str:
    return f" ({part / whole:.1%})" if whole else ""
