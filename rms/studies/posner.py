"""``rms reproduce posner``: nine malleable strategies on 30 days of jobs for 128 nodes.

J. Posner, F. Hupfeld, P. Finnerty: Enhancing Supercomputer Performance with Malleable Job
Scheduling Strategies, Euro-Par 2023 workshops (PECS). Their strategies stand beside the results of
their artifact (github ProjectWagomu/ArtefactPECS23), and our policies beside them on the same jobs.

A waiting job that does not fit is promised nodes that running jobs give up, and starts when it has
them. A strategy remembers its promises from pass to pass, as the state does not contain them, so it
is made for one simulation. A policy must not, since a restarted daemon could not repeat its
decisions: ``rms serve`` has none of these strategies. The rules follow the published program:

- Only the first waiting job without a promise starts, and only if it fits (see the notes).
- A promise is made only if shrinking alone covers it; free nodes are not counted.
- A job that gives nodes up may receive free ones in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from rms.core.model.events import (
    Ended,
    Reason,
    Resize,
    ResizePoint,
    Start,
    Submitted,
    Ticked,
    Withdrawn,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, Site, Speedup
from rms.core.policies import DEFAULT, Policy, named
from rms.core.policies.admission import Admission
from rms.core.policies.order import Fcfs
from rms.core.policies.placement import FirstFit, Plan, Room, Sizing
from rms.core.policies.policy import Passes
from rms.core.state import State
from rms.formats.config import FileError
from rms.plots import lines as draw_lines
from rms.sim.run import chosen, simulated
from rms.studies import experiment
from rms.studies.bounds import turnaround_bound_s
from rms.studies.experiment import Result, Statement, StudyReport, read_rows, tabulate
from rms.wire.terminal import columns

FOLDER = "posner_2023"
SOURCE = "the generator and the artifact of the paper (github ProjectWagomu/ArtefactPECS23)"
SITE = Site(128)
FLOPS = 1e12
"""Speed of a node in flop/s."""

RIGID_MIX = "100-0-0"
SEEDS = ("S0", "S1", "S2", "S3", "S4")
"""Seeds whose results are statements."""

MIXES = (RIGID_MIX, "80-0-20", "50-0-50", "0-0-100")
"""Per cent of rigid, moldable and malleable jobs."""

OURS = ("fifo", "easy", "easy-share", "array-share", DEFAULT)
"""Our policies that stand beside theirs."""

PRICED = ("easy-share", "array-share", DEFAULT)
"""Those that resize: also run with resizes that cost something and points that are rarer."""

PRICED_S, PRICED_EVERY_S = 10.0, 60.0
DEAR_S = 60.0
"""Price of a resize by which the default policy runs too."""


AGREES: Mapping[str, float] = {
    "turnaround_s": 1e-4,
    "wait_s": 1e-4,
    "run_s": 1e-4,
    "resizes_per_malleable_job": 1e-9,
    "makespan_s": 0.0,
    "utilization": 1e-4,
}
"""The columns, and the tolerance of a published value. Means have four decimals, of which
the last may be rounded otherwise, as utilization has; a makespan has six digits in both."""

DIFFER = {("0-0-100", "S1", "average_common_pool"), ("50-0-50", "S3", "min_common_pool")}
"""Those of their 145 results on seeds S0 to S4 that are not ours (by 0.48 and 0.002 %).

The choice of the promise that is dropped for a free node is not the cause, nor the order of events
that SimGrid takes for one instant because less than 1e-5 of an activity is left.
"""

DIFFER_NOTE = "not their schedule, though the other 143 results are: the cause was not found"


class _JobRow(msgspec.Struct):
    id: int
    submit: float
    type: Literal["rigid", "malleable"]
    nodes_min: int
    nodes_pref: int
    nodes_max: int
    flops: float
    parallel: float
    iterations: int


def read_jobs(data: Path, mix: str, seed: str) -> list[JobSpec]:
    """Return the jobs of a mix, as ``50-0-50``: per cent rigid, moldable and malleable.

    A job of W flop, a share p of it parallel, takes W ((1 - p) + p / n) / 1e12 s on n nodes. A
    malleable one is resized between two of its equal iterations, at no cost, and starts at any
    size. The requested time is the run time at the preferred size.
    """
    path = data / FOLDER / f"{mix}_{seed}.csv.gz"
    specs = []
    for number, row in enumerate(read_rows(path, _JobRow, SOURCE), 1):
        try:
            specs.append(_spec(row))
        except ValueError as error:
            raise FileError(f"{path}, job {number}: {error}") from None
    return specs


def _spec(row: _JobRow) -> JobSpec:
    if not (row.flops > 0 and 0 <= row.parallel <= 1 and row.iterations >= 1 and row.submit >= 0):
        raise ValueError(
            "expected submit of at least 0, flops above 0, a parallel share of 0 to 1 and at "
            f"least one iteration, got {row.submit:g}, {row.flops:g}, {row.parallel:g} and "
            f"{row.iterations}"
        )
    if max(row.nodes_pref, row.nodes_max) > SITE.nodes:
        raise ValueError(f"expected at most {SITE.nodes} nodes, got {row.nodes_max}")
    work_s = row.flops / FLOPS
    speedup = Speedup(law=(work_s * row.parallel, work_s * (1.0 - row.parallel)))
    malleable = row.type == "malleable"
    return JobSpec(
        JobId(str(row.id)),
        row.submit,
        row.nodes_min if malleable else row.nodes_pref,
        row.nodes_max if malleable else row.nodes_pref,
        row.nodes_pref,
        Mode.FLEXIBLE if malleable else Mode.FIXED,
        speedup,
        limit_s=speedup.time(row.nodes_pref),
        resize_parts=row.iterations if malleable else None,
    )


# --- The published strategies --------------------------------------------------------------------

Size = Callable[[Job], int]


_least: Size = attrgetter("spec.nodes_min")
_preferred: Size = attrgetter("spec.preferred")
_most: Size = attrgetter("spec.nodes_max")


@dataclass(frozen=True)
class Rule:
    """A rule by which jobs share nodes.

    Attributes:
        start: the size at which the first waiting job starts, if that many nodes are free.
        above: the distance of a size of a job from its target. The job with the largest gives up
            nodes first, that with the least gets free ones first; of equals the first submitted.
        promises: tried in turn for a waiting job: the number of its nodes, and of those that a
            running job keeps.
        expands: tried in turn: the size up to which a running job is expanded.
        at_once: the number of jobs that are expanded in one pass, or None.
    """

    start: Size
    above: Callable[[Job, int], float]
    promises: tuple[tuple[Size, Size], ...] = ((_least, _least),)
    expands: tuple[Size, ...] = (_most,)
    at_once: int | None = None


def _share(job: Job, size: int) -> float:
    return (size - job.spec.nodes_min) / (job.spec.nodes_max - job.spec.nodes_min)


RULES: Mapping[str, Rule] = {
    "min": Rule(_least, lambda job, size: size - job.spec.nodes_min),
    "pref": Rule(
        _preferred,
        lambda job, size: size - job.spec.preferred,
        promises=((_preferred, _preferred), (_least, _preferred), (_least, _least)),
        expands=(_preferred, _most),
    ),
    "average": Rule(_least, _share, at_once=1),
}

Keeping = Literal["agreement", "steal_agreement", "common_pool"]


class Promises:
    """Nodes promised to waiting jobs.

    Attributes:
        keeping: the nodes on which a promised job starts. ``agreement``: exactly its own promised
            ones; ``steal_agreement``: as many of all promised ones; ``common_pool``: as many of all
            free ones, promised ones first; the latest promise is dropped for any other node.
        counts: the number of nodes promised to a job.
        nodes: the job of a promised node, in the order of the promises.
    """

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self.counts: dict[JobId, int] = {}
        self.nodes: dict[Node, JobId] = {}

    def add(self, job: JobId, nodes: Iterable[Node]) -> None:
        """Promise nodes to a job."""
        for node in nodes:
            self.nodes[node] = job
            self.counts[job] = self.counts.get(job, 0) + 1

    def keep(self, waiting: Iterable[Job], free: list[Node]) -> list[tuple[Job, list[Node]]]:
        """Return the promised jobs that start, with their nodes, which leave ``free``."""
        kept = []
        for job in waiting:
            count = self.counts.get(job.spec.id)
            if count is None:
                continue
            if not free:
                break
            nodes = self._for(job.spec.id, free)
            if len(nodes) < count:
                continue
            del self.counts[job.spec.id]
            nodes = nodes[:count]
            self._swap(job.spec.id, nodes)
            for node in nodes:
                free.remove(node)
                if self.nodes.pop(node, None) is None:
                    self.nodes.popitem()
            kept.append((job, nodes))
        return kept

    def _swap(self, job: JobId, taken: Iterable[Node]) -> None:
        """Promise the nodes that a job leaves to the jobs whose nodes it takes."""
        promised = self.nodes
        owners = [promised[node] for node in taken if promised.get(node, job) != job]
        if owners:
            own = {node for node in taken if promised.get(node) == job}
            left = [node for node, to in promised.items() if to == job and node not in own]
            promised.update(zip(left, owners, strict=False))

    def _for(self, job: JobId, free: list[Node]) -> list[Node]:
        """Return the free nodes of a promised job, in the order in which it takes them."""
        promised = self.nodes
        if self.keeping == "agreement":
            return [node for node in free if promised.get(node) == job]
        first = [node for node in free if node in promised]
        if self.keeping == "steal_agreement":
            return first
        return first + [node for node in free if node not in promised]


@dataclass
class PromisePlan:
    """The starts of a pass, and the future nodes of the jobs that it resizes."""

    starts: list[Start] = field(default_factory=list)
    held: dict[Job, list[Node]] = field(default_factory=dict)

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a job starts."""
        return job.least

    def begin(self, job: Job, nodes: Iterable[Node], why: str) -> None:
        """Start a job."""
        self.starts.append(Start(job.spec.id, tuple(nodes), why, Reason.FITS))

    def nodes(self, job: Job) -> list[Node]:
        """Return the future nodes of a running job, a list to be changed."""
        return self.held.setdefault(job, list(job.nodes))

    def size(self, job: Job) -> int:
        """Return the future number of nodes of a running job."""
        nodes = self.held.get(job)
        return job.size if nodes is None else len(nodes)

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes of this pass."""
        return [
            Resize(job.spec.id, tuple(nodes), "shares nodes", Reason.BALANCES)
            for job, nodes in self.held.items()
        ]


class Sharing(Sizing):
    """Part ``sizing`` of the malleable strategies.

    Attributes:
        changes: number of expansions, and of shrinks for a promised job, so far.
    """

    def __init__(self, rule: Rule, promises: Promises) -> None:
        self.rule, self.promises, self.changes = rule, promises, 0

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        """Return the plan of a pass."""
        plan, promised = PromisePlan(), self.promises
        free, waiting = state.free, list(queue)
        if promised.counts:
            for job, nodes in promised.keep(waiting, free):
                plan.begin(job, nodes, "has its promised nodes")
            begun = {start.job for start in plan.starts}
            free = [node for node in free if node not in promised.nodes]
            waiting = [
                job
                for job in waiting
                if job.spec.id not in promised.counts and job.spec.id not in begun
            ]
        self.start(state, plan, waiting, free)
        if waiting and state.shrinkable:
            self._promise(state, plan, waiting)
        if free:
            self._expand(state, plan, free)
        return plan

    def start(self, state: State, plan: PromisePlan, waiting: list[Job], free: list[Node]) -> None:
        """Start jobs without a promise, which leave ``waiting`` as their nodes leave ``free``."""
        if waiting and _least(waiting[0]) <= len(free):
            size = min(self.rule.start(waiting[0]), len(free))
            plan.begin(waiting.pop(0), free[:size], "is first and fits")
            del free[:size]

    def _promise(self, state: State, plan: PromisePlan, waiting: Iterable[Job]) -> None:
        donors = [job for _, _, job in state.shrinkable]
        left = sum(job.size - _least(job) for job in donors)
        for job in waiting:
            if _least(job) > left:
                continue
            for wanted, kept in self.rule.promises:
                gifts = self._gifts(plan, donors, wanted(job), kept)
                for donor, count in gifts:
                    held = plan.nodes(donor)
                    self.promises.add(job.spec.id, held[-count:])
                    del held[-count:]
                    left -= count
                self.changes += len(gifts)
                if gifts:
                    break

    def _gifts(
        self, plan: PromisePlan, donors: Iterable[Job], need: int, kept: Size
    ) -> list[tuple[Job, int]]:
        """Return the donors with their numbers of nodes, none if all together have too few."""
        above, gifts = self.rule.above, []
        sizes = [(job, plan.size(job)) for job in donors]
        for donor, size in sorted(sizes, key=lambda pair: (-above(*pair), pair[0].number)):
            count = min(need, size - kept(donor))
            if count > 0:
                gifts.append((donor, count))
                need -= count
            if need == 0:
                return gifts
        return []

    def _expand(self, state: State, plan: PromisePlan, free: list[Node]) -> None:
        """Give free nodes to running jobs; ``free`` is used up."""
        rule = self.rule
        able = {job for _, _, job in state.expandable}.union(plan.held)
        for most in rule.expands:
            order = sorted(able, key=lambda job: (rule.above(job, plan.size(job)), job.number))
            for job in order[: rule.at_once]:
                count = min(len(free), most(job) - plan.size(job))
                if count > 0:
                    plan.nodes(job).extend(free[:count])
                    del free[:count]
                    self.changes += 1


class AsPreferred(Sizing):
    """Part ``sizing`` of the rigid strategies: all at the preferred size.

    Attributes:
        overtake: first fit without a reservation, else only the first waiting job starts. Their
            first fit removes a starting job from the list it iterates over, which skips the next.
    """

    def __init__(self, *, overtake: bool) -> None:
        self.overtake = overtake

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        """Return the plan of a pass."""
        plan, free, passed_over = PromisePlan(), state.free, False
        for job in queue:
            if not free:
                break
            size = job.spec.preferred
            if not passed_over and size <= len(free):
                plan.begin(job, free[:size], "fits")
                del free[:size]
                passed_over = True
            else:
                passed_over = False
            if not self.overtake:
                break
        return plan


class StrategyPasses(Passes):
    """Part ``passes``: at submissions, ends and resize points, and every minute.

    Nodes that a resize has freed wait for the next of these.
    """

    every_s: float | None = 60.0

    triggers: ClassVar[frozenset[type]] = frozenset(
        (Submitted, Ended, Withdrawn, ResizePoint, Ticked)
    )
    start_triggers: ClassVar[frozenset[type]] = triggers


class AsPlanned(Admission):
    """Part ``admission``: the starts of the plan, which is one of the sizings above."""

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        assert isinstance(plan, PromisePlan)
        return plan.starts


KEEPING: tuple[Keeping, ...] = ("agreement", "steal_agreement", "common_pool")
RIGID = ("rigid_backfill", "rigid_easy_backfill")
MALLEABLE = tuple(f"{rule}_{keeping}" for rule in RULES for keeping in KEEPING)


def strategy(name: str) -> Policy:
    """Return a strategy by its published name (``RIGID``, ``MALLEABLE``), for one simulation."""
    sizing: Sizing
    if name in RIGID:
        sizing = AsPreferred(overtake=name == "rigid_backfill")
    else:
        rule, _, keeping = name.partition("_")
        keepings: dict[str, Keeping] = {name: name for name in KEEPING}
        sizing = Sharing(RULES[rule], Promises(keepings[keeping]))
    return Policy(
        name=name,
        order=Fcfs(),
        sizing=sizing,
        admission=AsPlanned(),
        placement=FirstFit(),
        passes=StrategyPasses(),
        text=f'{{"name": "{name}"}}',
    )


# --- Simulations ---------------------------------------------------------------------------------


class _Published(msgspec.Struct):
    mix: str
    seed: str
    strategy: str
    wait: float
    turnaround: float
    run: float
    makespan: float
    utilisation: float
    expand_events: int
    shrink_events: int


class StrategyCase(NamedTuple):
    """One simulation: a mix of jobs, a seed, a strategy of theirs or a policy of ours."""

    mix: str
    seed: str
    name: str
    price_s: float = 0.0

    @property
    def mode(self) -> str:
        """Name in a table."""
        return f"{self.name}, {self.price_s:g} s" if self.price_s else self.name

    @property
    def key(self) -> str:
        """Key of its mean turnaround among the statements."""
        return f"{self.mix} {self.seed} {self.mode}"


def cases(seeds: Sequence[str]) -> list[StrategyCase]:
    """Return all simulations of these seeds."""
    todo = []
    for mix in MIXES:
        for seed in seeds:
            theirs = RIGID if mix == RIGID_MIX else MALLEABLE
            todo += [StrategyCase(mix, seed, name) for name in (*theirs, *OURS)]
            if mix != RIGID_MIX:
                todo += [StrategyCase(mix, seed, name, PRICED_S) for name in PRICED]
                todo.append(StrategyCase(mix, seed, DEFAULT, DEAR_S))
    return todo


def run(case: StrategyCase, specs: Sequence[JobSpec]) -> dict[str, float]:
    """Run a case; return its columns.

    Means are over values of six significant digits, as the paper's simulator prints them. Decided
    resizes count; a shrink of theirs that serves two waiting jobs counts twice, as in the paper.
    """
    malleable = sum(spec.mode.resizable for spec in specs)
    if case.name in (*RIGID, *MALLEABLE):
        policy = strategy(case.name)
        simulation, _ = simulated(specs, SITE, policy, passes="ends-first")
        resizes = policy.sizing.changes if isinstance(policy.sizing, Sharing) else 0
    else:
        policy = chosen(named(case.name), counted=True, ahead=False)
        if case.price_s:
            specs = [_priced(spec, case.price_s) for spec in specs]
        simulation, _ = simulated(specs, SITE, policy)
        resizes = simulation.resized
    spans = experiment.job_times(simulation)
    makespan_s = max(span.end_s for span in spans)
    return {
        "turnaround_s": fmean(_printed(span.turnaround_s) for span in spans),
        "wait_s": fmean(_printed(span.wait_s) for span in spans),
        "run_s": fmean(_printed(span.run_s) for span in spans),
        "resizes_per_malleable_job": resizes / malleable if malleable else 0.0,
        "makespan_s": _printed(makespan_s),
        "utilization": simulation.ledger.busy_node_s / (SITE.nodes * makespan_s),
    }


def _printed(seconds: float) -> float:
    return float(f"{seconds:.6g}")


def _priced(spec: JobSpec, price_s: float) -> JobSpec:
    if not spec.mode.resizable:
        return spec
    return msgspec.structs.replace(
        spec, resize_parts=None, resize_every_s=PRICED_EVERY_S, resize_price_s=price_s
    )


# --- The study -----------------------------------------------------------------------------------


def posner(
    data: Path,
    seeds: Sequence[str],
    workers: int,
    figures: Path | None,
    progress: Callable[[str], None],
) -> Result:
    """Run the study of some seeds, as ``S0``, with the files of ``posner_2023`` in ``data``."""
    published = published_results(data)
    specs = {(mix, seed): read_jobs(data, mix, seed) for mix in MIXES for seed in seeds}
    todo, outcomes = cases(seeds), dict[StrategyCase, dict[str, float]]()

    def run_one(case: StrategyCase) -> dict[str, float]:
        return run(case, specs[case.mix, case.seed])

    for case, outcome in experiment.run_all(run_one, todo, workers):
        outcomes[case] = outcome
        text = f"{case.mix} {case.seed} {case.mode}: {outcome['turnaround_s']:.0f} s"
        progress(f"{text} ({len(outcomes)} of {len(todo)})")
    rows = [
        row_of(
            case,
            outcomes[case],
            published,
            sum(spec.mode.resizable for spec in specs[case.mix, case.seed]),
        )
        for case in todo
    ]
    report = StudyReport("posner", computed(rows), stated(seeds))
    report.wrong += [text for row in rows for text in _disagreements(row)]
    bounds = {
        f"{mix} {seed}": turnaround_bound_s(jobs, SITE.nodes) for (mix, seed), jobs in specs.items()
    }
    notes = experiment.settings("posner")["notes"]
    parts = [[*_tables(rows, bounds), *_over_seeds(rows), *notes]]
    values = {"rows": rows, "bounds": bounds}
    return report.result(values, parts, lambda folder: _draw(rows, folder), figures)


def published_results(data: Path) -> dict[tuple[str, str, str], _Published]:
    """Return the results of the artifact by mix, seed and strategy."""
    rows = read_rows(data / FOLDER / "published.csv", _Published, SOURCE)
    return {(row.mix, row.seed, row.strategy): row for row in rows}


def stated(seeds: Sequence[str]) -> list[Statement]:
    """Return the statements of these seeds, and those of no seed."""
    keys = {case.key for case in cases(seeds)} | {f"{seed} as published" for seed in seeds}
    return [
        statement
        for statement in experiment.statements("posner")
        if not statement.where.startswith("S") or statement.key in keys
    ]


def computed(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the values of the statements by key, from the rows of the study.

    Those are mean turnarounds, and by seed the number of results whose columns all agree.
    """
    values = {"nodes": float(SITE.nodes), "every_s": strategy(MALLEABLE[0]).passes.every_s or 0.0}
    for row in rows:
        if row["values"]["turnaround_s"]["paper"] is not None:
            values[f"{row['case']} {row['mode']}"] = row["values"]["turnaround_s"]["ours"]
            key = f"{row['seed']} as published"
            values[key] = values.get(key, 0.0) + (not list(_off(row)))
    return values


def _off(row: Mapping[str, Any]) -> Iterable[str]:
    """Yield the columns in which a row is not as published."""
    for column, value in row["values"].items():
        if value["paper"] is not None and abs(value["ours"] - value["paper"]) > AGREES[column]:
            yield column


def _disagreements(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['case']} {row['mode']}: expected {column} of {value['paper']:.4f}, got "
        f"{value['ours']:.4f}"
        for column in _off(row)
        for value in [row["values"][column]]
        if not value["note"]
    ]


def row_of(
    case: StrategyCase,
    ours: Mapping[str, float],
    published: Mapping[tuple[str, str, str], _Published],
    malleable: int,
) -> dict[str, Any]:
    """Return one row; ``of_best`` is its mean turnaround over that of the best of their nine."""
    paper = published.get((case.mix, case.seed, case.name))
    theirs: dict[str, float] = {}
    if paper is not None:
        events = paper.expand_events + paper.shrink_events
        per_job = events / malleable if malleable else 0.0
        means = (paper.turnaround, paper.wait, paper.run)
        whole = (paper.makespan, paper.utilisation)
        theirs = dict(zip(AGREES, (*means, per_job, *whole), strict=True))
    keys = [(case.mix, case.seed, name) for name in MALLEABLE]
    nine = [published[key].turnaround for key in keys if key in published]
    note = DIFFER_NOTE if case[:3] in DIFFER else ""
    more = {
        "mix": case.mix,
        "seed": case.seed,
        "of_best": ours["turnaround_s"] / min(nine) if nine else None,
    }
    row = experiment.row(f"{case.mix} {case.seed}", case.mode, ours, theirs, note, **more)
    return row | {"note": note}


# --- Tables and figures --------------------------------------------------------------------------

FORM = experiment.form("posner", "strategies")


def _tables(rows: Sequence[Mapping[str, Any]], bounds: Mapping[str, float]) -> list[str]:
    lines = [
        "Mean turnaround in s, published and ours, and ours over that of the best of their nine;",
        "mean wait and run time in s and resizes per malleable job of ours",
        "",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        table = tabulate([_printed_row(row) for row in rows if row["case"] == case], *FORM)
        text = f"no schedule of these jobs can be below {bounds[case]:.0f} s (see below)"
        lines += [case, *table, text, ""]
    if any(row["note"] for row in rows):
        lines += [f"Note: {DIFFER_NOTE}", ""]
    return lines


def _printed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    time = row["values"]["turnaround_s"]
    paper, off = time["paper"], time["deviation_pct"]
    return {
        **{column: value["ours"] for column, value in row["values"].items()},
        "mode": row["mode"],
        "paper": "" if paper is None else f"{paper:.4f}",
        "off": "" if paper is None else f"{round(off, 4) + 0.0:.4f} %",
        "of_best": "" if row["of_best"] is None else f"{row['of_best']:.3f}",
        "note": "see below" if row["note"] else "",
    }


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ratios to the best of their nine by seed, where there are several."""
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    if len(seeds) < 2:
        return []
    lines = ["Mean turnaround over that of the best of their nine", ""]
    for mix in dict.fromkeys(row["mix"] for row in rows):
        ratios: dict[str, list[float]] = {}
        for row in rows:
            if row["mix"] == mix and row["of_best"] is not None:
                ratios.setdefault(row["mode"], []).append(row["of_best"])
        cells = [
            [mode, *(f"{ratio:.3f}" for ratio in by_seed), f"{fmean(by_seed):.3f}"]
            for mode, by_seed in ratios.items()
            if len(by_seed) == len(seeds)
        ]
        if cells:
            lines += [*columns((mix, *seeds, "mean"), cells), ""]
    return lines


def _draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draw columns against the share of malleable jobs: our policies and their nine, over seeds."""
    titles = {
        "turnaround_s": "mean turnaround (s)",
        "wait_s": "mean wait (s)",
        "resizes_per_malleable_job": "resizes per malleable job",
    }
    for column, title in titles.items():
        points: dict[str, dict[float, list[float]]] = {mode: {} for mode in (*MALLEABLE, *OURS)}
        for row in rows:
            if row["mode"] in points:
                share = float(row["mix"].rsplit("-", 1)[1])
                means = points[row["mode"]].setdefault(share, [])
                means.append(row["values"][column]["ours"])
        series = {
            mode: (list(by_share), [fmean(values) for values in by_share.values()])
            for mode, by_share in points.items()
        }
        nine = [series.pop(mode) for mode in MALLEABLE]
        for name, end in (("least", min), ("most", max)):
            by_strategy = zip(*(means for _, means in nine), strict=True)
            series[f"their nine, {name}"] = (nine[0][0], [end(means) for means in by_strategy])
        name = column.removesuffix("_s").replace("_", "-")
        labels = ("malleable jobs (%)", title, f"{title}: 128 nodes, 30 days")
        linear_to = 1e4 if column.endswith("_s") else None
        draw_lines(series, folder / f"posner-{name}.png", labels, linear_to=linear_to)
