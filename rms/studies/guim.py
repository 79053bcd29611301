"""``rms reproduce guim``: placement by bandwidth and power on nodes with GPUs (Guim et al.).

Three EASY policies on three logs, four mixes of memory-bound and compute-bound jobs, and three
errors of the expected bandwidth. The paper leaves much open, so all cases are simulated under all
:data:`VARIANTS`, with two definitions of slowdown (:class:`Figures`). Its statements are compared
with the default variant, which follows from its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import process_time
from typing import Any, Literal, NamedTuple

import msgspec

from rms.core.model.contention import Pools, Processors, SharedNode
from rms.core.model.jobs import JobSpec, Site
from rms.core.policies import Policy, adjusted, named
from rms.formats.config import FileError
from rms.formats.swf import read_trace
from rms.plots import Panel, draw_panels
from rms.sim.run import simulated
from rms.studies import experiment
from rms.studies.experiment import Data, JobTimes, Result, Statement, StudyReport
from rms.wire.terminal import columns

SLOWDOWNS = ("bsld", "bsld_log")
"""Bounded slowdown over the time that a job took (the usual one), and over that in the log."""

TRIED = 2000
"""The most jobs of a log in a simulation of a variant."""

_Place = tuple[str, str, str, int]
"""Policy, log, mix, and error in per cent."""


POLICIES = ("easy-reg", "easy-pa", "lc-pa")
BOUND_S = 10.0
"""Run times count as at least this in bounded slowdown."""


@dataclass(frozen=True)
class Assumptions:
    """Assumptions that the paper leaves open or contradicts itself in.

    Attributes:
        size: processors of the log's machine that the cluster has: ``plain`` ones, as the run times
            of a log are those on a plain processor (section III-A-3) and GPU cores come on top
            (section VI), or all ``cores``. A pair of nodes has 16 and 48.
        nodes: multiplier of the number of nodes.
        socket: bandwidth of the GPU socket: ``stated`` for the evaluated architecture, as in the
            ``example`` (see the notes), or ``none``, no limit beside the node's.
        fastest_first: first fit takes fast processors first; default: in the order of the
            reservation table, by node (section III-A-1).
        whole_demand: see :class:`rms.core.model.contention.SharedNode`. Default: run times take
            demand over capacity times as long (section IV-A-1, and the example of III-C).
        exact_pa: EASY-PA sets frequencies by real bandwidths, as section VI states that the error
            does not change its slowdowns; default: by expected ones, as in section IV-A-2.
        threshold, forecast: of LessConsume.
        biased: all estimates of bandwidth are too high by the error; default: at random.
        load: multiplier of the rate of submissions.
    """

    size: Literal["cores", "plain"] = "plain"
    nodes: float = 1.0
    socket: Literal["stated", "example", "none"] = "stated"
    fastest_first: bool = False
    whole_demand: bool = False
    exact_pa: bool = False
    threshold: float | None = None
    forecast: bool = False
    biased: bool = False
    load: float = 1.0


_FILE = msgspec.toml.decode((experiment.DATA / "guim.toml").read_bytes())
VARIANTS: Mapping[str, tuple[Assumptions, str]] = {
    name: (msgspec.convert(variant, Assumptions), variant["says"])
    for name, variant in _FILE["variants"].items()
}
"""Variants by name, in words; the default one comes first."""


class Grid(NamedTuple):
    """Simulations of one run of the study: by default all cases of the paper.

    Attributes:
        first: number of the first jobs of a log that run; 0 for all.
        variants: names of :data:`VARIANTS` that are simulated beside the default one.
    """

    logs: tuple[str, ...] = ("ctc", "sdsc", "blue")
    mixes: tuple[str, ...] = ("mem", "hybrid", "comp", "equip")
    errors: tuple[int, ...] = (10, 50, 100)
    first: int = 2000
    variants: tuple[str, ...] = tuple(VARIANTS)


class PlacementCase(NamedTuple):
    """One simulation."""

    policy: str
    log: str
    mix: str
    error_pct: int
    variant: Assumptions = Assumptions()


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Results of one simulation.

    Attributes:
        bsld, bsld_p95: mean and 95th percentile of the bounded slowdown, see the notes.
        bsld_log, bsld_log_p95: the same over the run time in the log.
        energy: seconds of a processor at the highest level.
        stretch: sum of run times over the sum of those in the log.
        queued_pct: share of the time of submissions in which a job waits.
        waiting_half_pct, waiting_end_pct: jobs that wait at the middle and the last submission, in
            per cent of the jobs submitted by then.
        gpu_gb_s, plain_gb_s: mean demand of the processes on GPU cores and on plain processors.
        wall_s, cpu_s: wall and processor time of the simulation.
    """

    bsld: float
    bsld_p95: float
    bsld_log: float
    bsld_log_p95: float
    energy: float
    wait_s: float
    stretch: float
    jobs: int
    queued_pct: float
    waiting_half_pct: float
    waiting_end_pct: float
    gpu_gb_s: float
    plain_gb_s: float
    wall_s: float
    cpu_s: float


def site(data: Data, processors: int, variant: Assumptions) -> Site:
    """Return the cluster for a log: as many nodes of one kind as of the other."""
    gb_s, whole = data["gb_s"], variant.whole_demand
    socket_gb_s = gb_s / {"none": 1.0, **data["over_socket"]}[variant.socket]
    behind = Processors(data["gpu_node"]["gpu"], data["gpu_factor"], socket_gb_s)
    kinds = (
        SharedNode(gb_s, (Processors(data["gpu_node"]["plain"]), behind), whole),
        SharedNode(gb_s, (Processors(data["plain_node"]["plain"]),), whole),
    )
    counted = [kind for node in kinds for kind in node.processors]
    if variant.size == "plain":
        counted = [kind for kind in counted if kind.factor == 1.0]
    pairs = ceil(variant.nodes * processors / sum(kind.number for kind in counted))
    slots = pairs * sum(kind.number for node in kinds for kind in node.processors)
    return Site(slots, shared=kinds * pairs, levels=tuple(map(tuple, data["levels"])))


def read_log(folder: Path, file: str) -> list[JobSpec]:
    """Return the jobs of a log in a folder of data or in ``traces`` in it."""
    paths = [path for path in (folder / "traces" / file, folder / file) if path.is_file()]
    if not paths:
        raise FileError(f"expected {file} in {folder} or in {folder / 'traces'}, got neither")
    return read_trace(paths[0]).specs


def with_bandwidth(
    specs: Iterable[JobSpec], data: Data, case: PlacementCase, seed: int = 1
) -> list[JobSpec]:
    """Return jobs with a bandwidth by the mix, and an expected one that is off by the error.

    The bandwidth of a job depends neither on the policy nor on the error.
    """
    demands, weights = data["demands_gb_s"], data["mixes"][case.mix]
    kinds, errors = Random(seed), Random(seed + 1)
    error, variant, jobs = case.error_pct / 100.0, case.variant, []
    for spec in specs:
        gb_s = kinds.choices(demands, weights)[0]
        off = 1.0 if variant.biased else errors.choice((-1.0, 1.0))
        jobs.append(
            msgspec.structs.replace(
                spec,
                submit_s=spec.submit_s / variant.load,
                bandwidth_gb_s=gb_s,
                expected_bandwidth_gb_s=gb_s * (1.0 + error * off),
            )
        )
    return jobs


def policy(name: str, variant: Assumptions) -> Policy:
    """Return one of the paper's policies."""
    placement: dict[str, Any] = {
        "part": "less-consume" if name == "lc-pa" else "first-fit-shared",
        "power_aware": name != "easy-reg",
        "fastest_first": variant.fastest_first,
    }
    if name == "lc-pa":
        placement["forecast"] = variant.forecast
        if variant.threshold is not None:
            placement["threshold"] = variant.threshold
    return adjusted(named("easy"), placement=placement)


def run(case: PlacementCase, data: Data, specs: Sequence[JobSpec]) -> Figures:
    """Run a case; return its figures."""
    begun_s = process_time()
    where = site(data, data["logs"][case.log]["processors"], case.variant)
    jobs = with_bandwidth(specs, data, case)
    simulation, wall_s = simulated(jobs, where, policy(case.policy, case.variant))
    contention = simulation.contention
    assert contention is not None
    spans = experiment.job_times(simulation)
    logged = [span.job.spec.run_s or 0.0 for span in spans]
    usual = sorted(_bounded_slowdown(span, span.run_s) for span in spans)
    over_log = sorted(map(_bounded_slowdown, spans, logged))
    assert simulation.engine.state.pools is not None
    queued_pct, half_pct, end_pct = _queue(spans)
    gpu_gb_s, plain_gb_s = _by_kind(spans, simulation.engine.state.pools)
    return Figures(
        fmean(usual),
        usual[int(0.95 * (len(usual) - 1))],
        fmean(over_log),
        over_log[int(0.95 * (len(over_log) - 1))],
        contention.energy,
        fmean(span.wait_s for span in spans),
        sum(span.run_s for span in spans) / sum(logged),
        len(spans),
        queued_pct,
        half_pct,
        end_pct,
        gpu_gb_s,
        plain_gb_s,
        wall_s,
        process_time() - begun_s,
    )


def _bounded_slowdown(span: JobTimes, run_s: float) -> float:
    return max(1.0, span.turnaround_s / max(run_s, BOUND_S))


def _queue(spans: Sequence[JobTimes]) -> tuple[float, float, float]:
    """Return the times and numbers of waiting jobs (see :class:`Figures`), in per cent."""
    ordered = sorted(spans, key=lambda span: (span.submit_s, span.job.number))
    first_s, last_s = ordered[0].submit_s, ordered[-1].submit_s
    queued_s, covered_s = 0.0, first_s
    for span in ordered:
        begin_s, until_s = max(span.submit_s, covered_s), min(span.start_s, last_s)
        if until_s > begin_s:
            queued_s, covered_s = queued_s + until_s - begin_s, until_s
    queued_pct = 100.0 * queued_s / (last_s - first_s) if last_s > first_s else 0.0
    half = ordered[: (len(ordered) + 1) // 2]
    return queued_pct, _waiting_pct(half), _waiting_pct(ordered)


def _waiting_pct(spans: Sequence[JobTimes]) -> float:
    """Return the share of jobs that wait when the last of them is submitted."""
    now_s = spans[-1].submit_s
    return 100.0 * sum(span.start_s > now_s for span in spans) / len(spans)


def _by_kind(spans: Iterable[JobTimes], pools: Pools) -> tuple[float, float]:
    """Return the mean bandwidth of a process on a GPU core and on a plain processor, in GB/s."""
    sums, numbers = [0.0, 0.0], [0, 0]
    for span in spans:
        on_gpu = sum(pools.factor[pools.of_slot[slot]] > 1.0 for slot in span.job.nodes)
        for kind, number in enumerate((on_gpu, len(span.job.nodes) - on_gpu)):
            sums[kind] += number * (span.job.spec.bandwidth_gb_s or 0.0)
            numbers[kind] += number
    return sums[0] / (numbers[0] or 1), sums[1] / (numbers[1] or 1)


# --- The study -----------------------------------------------------------------------------------


def guim(
    data: Path,
    grid: Grid,
    workers: int,
    figures: Path | None,
    progress: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
) -> Result:
    """Run the study: the default variant at all errors, the others at the least and the largest.

    Args:
        data: folder with the logs, or with a folder ``traces`` of them.
        keep: file of the finished simulations, which are not run again.
    """
    paper = experiment.settings("guim")
    logs = {log: read_log(data, paper["logs"][log]["file"]) for log in grid.logs}
    specs = {log: jobs[: grid.first or None] for log, jobs in logs.items()}
    fewer = {log: jobs[: grid.first or TRIED][:TRIED] for log, jobs in logs.items()}
    names = [name for name in VARIANTS if name == "default" or name in grid.variants]
    errors = tuple(sorted(grid.errors))
    ends = tuple(sorted({errors[0], errors[-1]}))
    kept = experiment.Kept("guim", keep, tuple[PlacementCase, int], Figures)

    def all_of(
        cases: Iterable[PlacementCase], of_log: Mapping[str, Sequence[JobSpec]]
    ) -> dict[PlacementCase, Figures]:
        def run_one(sized: tuple[PlacementCase, int]) -> Figures:
            return run(sized[0], paper, of_log[sized[0].log])

        results: dict[PlacementCase, Figures] = {}
        sized = [(case, len(of_log[case.log])) for case in dict.fromkeys(cases)]
        for (case, _), result in experiment.run_all(run_one, sized, workers, kept):
            results[case] = result
            progress(f"{_name(case)}: {len(results)} of {len(sized)}")
        return results

    results = all_of(_cases(grid, errors, Assumptions()), specs)
    more = [case for name in names for case in _cases(grid, ends, VARIANTS[name][0])]
    shared = results if specs == fewer else {}
    tried = {**shared, **all_of([case for case in more if case not in shared], fewer)}

    main = VariantView(results, Assumptions(), grid.logs, grid.mixes, errors)
    views = {
        name: VariantView(tried, VARIANTS[name][0], grid.logs, grid.mixes, ends) for name in names
    }
    shown = dict(views)
    if specs != fewer:
        shown["default, all jobs"] = replace(main, errors=ends)
    stated = experiment.statements("guim")
    report = StudyReport("guim", values(main, paper, logs), stated)
    under = []
    if not all(len(jobs) == Grid().first for jobs in specs.values()):
        report.wrong.clear()
        under.append(
            f"The recorded statuses are those of the first {Grid().first:,} jobs of each log; this"
            " run has others, so that statuses may differ from the recorded ones."
        )
    report.wrong += [*_must_hold(results, specs), *_must_hold(tried, fewer)]
    all_results = {**results, **tried}
    spent_s = sum(result.cpu_s for result in all_results.values())
    jobs = max(map(len, fewer.values()))
    parts = [
        _orderings_table(shown, jobs),
        _published_table(shown, stated, jobs),
        _queue_table(shown),
        _cases_table("default", main, specs),
        *(_cases_table(name, view, fewer) for name, view in list(views.items())[1:]),
        [
            *paper["notes"],
            f"{len(all_results)} simulations took {spent_s:,.0f} s of processor time.",
        ],
    ]
    json = {
        "jobs_of_each_log": grid.first,
        "rows": _rows(main, stated),
        "variants": {
            name: {
                "assumed": VARIANTS[name][1],
                "orderings": orderings(view),
                "rows": _rows(view, stated),
            }
            for name, view in views.items()
        },
        "cpu_s": spent_s,
        "notes": paper["notes"],
    }
    return report.result(json, parts, lambda folder: _draw(main, folder), figures, under)


def _cases(grid: Grid, errors: Iterable[int], variant: Assumptions) -> list[PlacementCase]:
    cases = [
        _of_policy(PlacementCase(name, log, mix, error, variant))
        for log in grid.logs
        for mix in grid.mixes
        for error in errors
        for name in POLICIES
    ]
    return list(dict.fromkeys(cases))


def _of_policy(case: PlacementCase) -> PlacementCase:
    """Return a case without the assumptions that have no effect on its policy."""
    variant, error_pct = case.variant, case.error_pct
    if case.policy == "easy-reg" or (case.policy == "easy-pa" and variant.exact_pa):
        variant, error_pct = replace(variant, biased=False), 0
    variant = replace(variant, exact_pa=False)
    if case.policy != "lc-pa":
        variant = replace(variant, threshold=None, forecast=False)
    return case._replace(variant=variant, error_pct=error_pct)


def _name(case: PlacementCase) -> str:
    return f"{case.policy} {case.log} {case.mix} {case.error_pct} %"


def _must_hold(
    results: Mapping[PlacementCase, Figures], specs: Mapping[str, Sequence[JobSpec]]
) -> list[str]:
    wrong = []
    for case, result in results.items():
        name, jobs = _name(case), len(specs[case.log])
        if result.jobs != jobs:
            wrong.append(f"{name}: expected {jobs} jobs, got {result.jobs}")
        if result.stretch < 1.0 - 1e-9:
            wrong.append(f"{name}: expected bandwidth to cost time, got {result.stretch:.3f}")
        if result.bsld > result.bsld_log * (1.0 + 1e-9):
            wrong.append(f"{name}: expected bsld of at most bsld_log, got {result.bsld:.3f}")
    return wrong


# --- Orderings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class VariantView:
    """Results of one variant; errors are in per cent, rising."""

    results: Mapping[PlacementCase, Figures]
    variant: Assumptions
    logs: tuple[str, ...]
    mixes: tuple[str, ...]
    errors: tuple[int, ...]

    def of(self, policy: str, log: str, mix: str, error_pct: int) -> Figures:
        """Return the result of a case."""
        return self.results[_of_policy(PlacementCase(policy, log, mix, error_pct, self.variant))]

    def saved_pct(self, policy: str, log: str, mix: str, error_pct: int) -> float:
        """Return the energy that a policy saves against EASY-REG, in per cent."""
        regular = self.of("easy-reg", log, mix, error_pct).energy
        return 100.0 * (1.0 - self.of(policy, log, mix, error_pct).energy / regular)

    def places(self, logs: Sequence[str] = (), mixes: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Return the pairs of log and mix, all or some of them."""
        return [
            (log, mix)
            for log in self.logs
            for mix in self.mixes
            if (not logs or log in logs) and (not mixes or mix in mixes)
        ]

    def number(self, column: str, policy: str, log: str, mix: str, error_pct: int) -> float:
        """Return a column of a case: ``saved_pct``, or an attribute of :class:`Figures`."""
        if column == "saved_pct":
            return self.saved_pct(policy, log, mix, error_pct)
        return float(getattr(self.of(policy, log, mix, error_pct), column))

    def numbers(
        self,
        column: str,
        policy: str,
        error_pct: int,
        logs: Sequence[str] = (),
        mixes: Sequence[str] = (),
    ) -> list[float]:
        """Return a column of the cases of a policy at an error, all or some of them."""
        places = self.places(logs, mixes)
        return [self.number(column, policy, *at, error_pct) for at in places]


def orderings(view: VariantView) -> list[dict[str, Any]]:
    """Return the number of cases in which the orderings of section VI hold.

    Orderings of slowdowns are counted by either slowdown. One of waits, which no definition of
    slowdown changes, is not of the paper.
    """
    by_column = {column: _of_slowdowns(view, column) for column in SLOWDOWNS}
    rows: list[dict[str, Any]] = []
    for says, cases in by_column[SLOWDOWNS[0]].items():
        sums = {column: sum(held[says]) for column, held in by_column.items()}
        rows.append({"says": says, **sums, "of": len(cases)})
    for says, cases in _of_savings(view).items():
        rows.append({"says": says, "holds": sum(cases), "of": len(cases)})
    return rows


def _less(ours: Iterable[float], others: Iterable[float], when: bool = True) -> list[bool]:
    """Return whether ours is less, case by case; no case unless ``when`` holds."""
    return [a < b for a, b in zip(ours, others, strict=True) if when]


def _of_slowdowns(view: VariantView, column: str) -> dict[str, list[bool]]:
    """Return whether the orderings of slowdowns hold, case by case."""
    low, high = view.errors[0], view.errors[-1]

    def slow(policy: str, error: int, *where: Sequence[str]) -> list[float]:
        return view.numbers(column, policy, error, *where)

    def over_power_aware(error: int) -> list[float]:
        p95 = (view.numbers(f"{column}_p95", name, error) for name in ("lc-pa", "easy-pa"))
        return [ours / other for ours, other in zip(*p95, strict=True)]

    mixes, few = ("hybrid", "comp"), (["blue"], ["mem"])
    by_error = zip(*(slow("easy-pa", error) for error in view.errors), strict=True)
    both = {"mem", "comp"} <= set(view.mixes)
    rises = low < high
    return {
        "LC-PA slows less than EASY-REG, least error": _less(
            slow("lc-pa", low), slow("easy-reg", low)
        ),
        "LC-PA slows more than EASY-REG, blue mem, largest error": _less(
            slow("easy-reg", high, *few), slow("lc-pa", high, *few)
        ),
        "LC-PA slows less than EASY-PA, hybrid and comp, least error": _less(
            slow("lc-pa", low, (), mixes), slow("easy-pa", low, (), mixes)
        ),
        "LC-PA slows more than EASY-PA, ctc mem, largest error": _less(
            slow("easy-pa", high, ["ctc"], ["mem"]), slow("lc-pa", high, ["ctc"], ["mem"])
        ),
        "the error raises the slowdown of LC-PA": _less(
            slow("lc-pa", low), slow("lc-pa", high), rises
        ),
        "the error raises the 95th percentile of LC-PA over EASY-PA's": _less(
            over_power_aware(low), over_power_aware(high), rises
        ),
        "the error changes the slowdown of EASY-PA by 2 % at most": [
            max(case) <= 1.02 * min(case) for case in by_error if rises
        ],
        "mem slows more than comp, LC-PA and EASY-PA": [
            holds
            for name in ("lc-pa", "easy-pa")
            for error in view.errors
            if both
            for holds in _less(slow(name, error, (), ["comp"]), slow(name, error, (), ["mem"]))
        ],
    }


def _of_savings(view: VariantView) -> dict[str, list[bool]]:
    """Return whether the orderings of energy, bandwidth and waits hold, case by case."""
    low, high = view.errors[0], view.errors[-1]
    rises = low < high

    def saved(policy: str, error: int) -> list[float]:
        return view.numbers("saved_pct", policy, error)

    def gaps(error: int, *where: Sequence[str]) -> list[float]:
        return [_gap_pct(view, at, error) for at in view.places(*where)]

    lc_pa, easy_pa = (
        [pct for error in view.errors for pct in saved(name, error)]
        for name in ("lc-pa", "easy-pa")
    )
    gpu_gb_s, plain_gb_s = (view.numbers(f"{kind}_gb_s", "lc-pa", low) for kind in ("gpu", "plain"))
    mixes = (), ("mem", "equip")
    return {
        "LC-PA saves more than EASY-PA": _less(easy_pa, lc_pa),
        "LC-PA saves over 40 %": [pct > 40.0 for pct in lc_pa],
        "EASY-PA saves 37 % at most": [pct <= 37.0 for pct in easy_pa],
        "the error lowers the saving of LC-PA": _less(
            saved("lc-pa", high), saved("lc-pa", low), rises
        ),
        "the error brings both savings closer, mem and equip": _less(
            gaps(high, *mixes), gaps(low, *mixes), rises
        ),
        "both savings within 10 points, sdsc, largest error": [
            gap < 10.0 for gap in gaps(high, ["sdsc"])
        ],
        "LC-PA: less bandwidth per process on GPU cores": _less(gpu_gb_s, plain_gb_s),
        "EASY-PA: more of it on GPU cores than LC-PA": _less(
            gpu_gb_s, view.numbers("gpu_gb_s", "easy-pa", low)
        ),
        "not of the paper: LC-PA waits less, least error": _less(
            view.numbers("wait_s", "lc-pa", low), view.numbers("wait_s", "easy-reg", low)
        ),
    }


def _gap_pct(view: VariantView, place: tuple[str, str], error: int) -> float:
    """Return the difference between the savings of LC-PA and EASY-PA, in points."""
    return abs(view.saved_pct("lc-pa", *place, error) - view.saved_pct("easy-pa", *place, error))


# --- Statements ----------------------------------------------------------------------------------


def values(
    view: VariantView, paper: Data, logs: Mapping[str, Sequence[JobSpec]]
) -> dict[str, float]:
    """Return the values of the statements by key, of the default variant and all jobs of the logs.

    Values of cases outside the view are missing.
    """
    ours: dict[str, float] = {}
    for at in view.places():
        for error in view.errors:
            for name in POLICIES:
                case = f"{name} {' '.join(at)} {error}"
                ours[f"bsld {case}"] = view.number("bsld", name, *at, error)
                ours[f"saved_pct {case}"] = view.saved_pct(name, *at, error)
    whole, cases = Grid(), (set(view.logs), set(view.mixes), view.errors)
    if cases == (set(whole.logs), set(whole.mixes), whole.errors):
        ours |= {row["says"]: row.get("bsld", row.get("holds")) for row in orderings(view)}
        ours |= _extremes(view)
    for log, jobs in logs.items():
        ours |= _workload(log, jobs)
        ours[f"{log} processors"] = paper["logs"][log]["processors"]
        ours[f"{log} cluster plain processors"] = _plain(paper, log, view.variant)
    return ours | _inputs(paper, view) | _example(paper)


def _plain(paper: Data, log: str, variant: Assumptions) -> float:
    where = site(paper, paper["logs"][log]["processors"], variant)
    kinds = [kind for node in where.shared for kind in node.processors]
    return sum(kind.number for kind in kinds if kind.factor == 1.0)


def _extremes(view: VariantView) -> dict[str, float]:
    """Return the largest and least values of the abstract, sections VI and VII."""
    cases = [(*at, error) for at in view.places() for error in view.errors]

    def over(one: str, other: str, log: str, error: int) -> float:
        slow = [view.number("bsld", name, log, "mem", error) for name in (one, other)]
        return slow[0] / slow[1]

    gains = [
        100.0 * (1.0 - view.number("bsld", "lc-pa", *at) / view.number("bsld", "easy-reg", *at))
        for at in cases
    ]
    low, high = view.errors[0], view.errors[-1]
    saved = {mix: view.saved_pct("lc-pa", "blue", mix, low) for mix in view.mixes}
    rise = [
        view.number("bsld", "lc-pa", log, "mem", high)
        / view.number("bsld", "lc-pa", log, "mem", low)
        for log in view.logs
    ]
    ctc = [
        view.saved_pct("lc-pa", "ctc", mix, error) for mix in view.mixes for error in (low, high)
    ]
    return {
        "largest gain of the mean slowdown": max(gains),
        "largest saving of LC-PA": max(view.saved_pct("lc-pa", *at) for at in cases),
        "largest saving of both policies": max(
            view.saved_pct(name, *at) for name in ("lc-pa", "easy-pa") for at in cases
        ),
        "largest saving of EASY-PA": max(view.saved_pct("easy-pa", *at) for at in cases),
        "blue saving, mem over equip": saved["mem"] / saved["equip"],
        "blue saving, equip over hybrid and comp": saved["equip"]
        / max(saved["hybrid"], saved["comp"]),
        "sdsc largest difference of savings": max(
            _gap_pct(view, at, high) for at in view.places(["sdsc"])
        ),
        "ctc mixes that save less at the largest error": sum(
            after < before for before, after in zip(ctc[::2], ctc[1::2], strict=True)
        ),
        "least rise of LC-PA's slowdown by the error, mem": min(rise),
        "blue mem, EASY-REG over LC-PA, largest error": over("easy-reg", "lc-pa", "blue", high),
        "blue mem, LC-PA over EASY-REG, least error": over("lc-pa", "easy-reg", "blue", low),
        "ctc mem, EASY-PA over LC-PA, largest error": over("easy-pa", "lc-pa", "ctc", high),
    }


def _workload(log: str, jobs: Sequence[JobSpec]) -> dict[str, float]:
    """Return the statements of section V on a log: shares of its jobs in per cent."""

    def share(holds: Callable[[JobSpec], bool]) -> float:
        return 100.0 * sum(map(holds, jobs)) / len(jobs)

    def run_s(spec: JobSpec) -> float:
        return spec.run_s or 0.0

    sizes = Counter(spec.preferred for spec in jobs)
    return {
        f"{log} jobs under 16 processors": share(lambda spec: spec.preferred < 16),
        f"{log} jobs under 10 minutes": share(lambda spec: run_s(spec) < 600.0),
        f"{log} jobs over 10 minutes": share(lambda spec: run_s(spec) > 600.0),
        f"{log} jobs over an hour": share(lambda spec: run_s(spec) > 3600.0),
        f"{log} jobs of 3.5 to 4.5 days": sum(3.5 < run_s(spec) / 86400.0 < 4.5 for spec in jobs),
        **{
            f"{log} jobs of {size} processors": 100.0 * sizes[size] / len(jobs)
            for size in (1, 8, 16, 64, 256)
        },
    }


def _inputs(paper: Data, view: VariantView) -> dict[str, float]:
    """Return the parameters of the paper that the simulations use: cluster, table I, table II."""
    where = site(paper, paper["logs"]["blue"]["processors"], view.variant)
    (plain, gpu), (other,) = (node.processors for node in where.shared[:2])
    inputs = {
        "node with GPU, plain processors": plain.number,
        "node with GPU, GPU cores": gpu.number,
        "node without GPU, plain processors": other.number,
        "node with GPU, bandwidth": where.shared[0].bandwidth_gb_s,
        "node without GPU, bandwidth": where.shared[1].bandwidth_gb_s,
        "CPUFactor of plain processors": plain.factor,
        "CPUFactor of GPU cores": gpu.factor,
        "node bandwidth over GPU socket": where.shared[0].bandwidth_gb_s / gpu.socket_gb_s,
        "GPU socket over node bandwidth": gpu.socket_gb_s / where.shared[0].bandwidth_gb_s,
    }
    for level, (ghz, volt) in enumerate(where.levels):
        inputs |= {f"level {level} GHz": ghz, f"level {level} mV": 1000.0 * volt}
    for mix, weights in paper["mixes"].items():
        inputs |= {f"{mix} type {kind}": weight for kind, weight in enumerate(weights)}
    one = experiment.job(1, 1, run_s=1.0)
    drawn = with_bandwidth([one] * 1000, paper, PlacementCase("", "blue", "hybrid", 0))
    demands = sorted({spec.bandwidth_gb_s or 0.0 for spec in drawn}, reverse=True)
    inputs |= {f"demand of type {kind}": demand for kind, demand in enumerate(demands)}
    for error in view.errors:
        spec = with_bandwidth([one], paper, PlacementCase("", "blue", "mem", error))[0]
        gb_s, expected = spec.bandwidth_gb_s or 0.0, spec.expected_bandwidth_gb_s or 0.0
        inputs[f"error {error}"] = 100.0 * abs(expected / gb_s - 1.0)
    return inputs


def _example(paper: Data) -> dict[str, float]:
    """Return the slowdowns of the example of section III-C.

    A job has 8 processes on GPU cores and two on plain processors, with 4 GB/s on a plain one, on
    a node with 18 GB/s, 4 GB/s of them for the socket.
    """
    factor = paper["gpu_factor"]
    gpu_gb_s, plain_gb_s = 8 * 4.0 / factor, 2 * 4.0

    def slow(node_gb_s: float, socket_gb_s: float) -> Sequence[float]:
        kinds = (Processors(6), Processors(32, factor, socket_gb_s))
        return Pools([SharedNode(node_gb_s, kinds)]).slowdowns_among(0, [plain_gb_s, gpu_gb_s])

    plain, gpu = slow(18.0, 4.0)
    linear = [Pools([SharedNode(n, (Processors(4),))]).slowdowns_among(0, [4.0])[0] for n in (1, 2)]
    sites = [
        Site(
            sum(kind.number for kind in kinds),
            shared=(SharedNode(inf, kinds),),
            levels=tuple(map(tuple, paper["levels"])),
        )
        for kinds in ((Processors(1, factor),), (Processors(1), Processors(1, factor)))
    ]
    took, energy = {}, {}
    for where in sites:
        for name in ("easy-reg", "easy-pa"):
            size = where.nodes
            job = experiment.job(1, size, limit_s=1e3, run_s=100.0)
            simulation, _ = simulated([job], where, policy(name, Assumptions()))
            (over,) = simulation.engine.state.ended.values()
            assert over.end_s is not None and simulation.contention is not None
            took[size, name], energy[size, name] = over.end_s, simulation.contention.energy
    return {
        "example, demand of a GPU process": 4.0 / factor,
        "example, demand on the socket": gpu_gb_s,
        "example, slowdown of GPU processes by the socket": gpu,
        "example, slowdown of plain processes": plain,
        "example, demand on the node": slow(1.0, 4.0)[0],
        "slowdown below capacity": Pools([SharedNode(8.0, (Processors(4),))]).slowdowns_among(
            0, [4.0]
        )[0],
        "slowdown at 4 times the capacity over that at twice": linear[0] / linear[1],
        "run time on a GPU core over that of the log": took[1, "easy-reg"] / 100.0,
        "run time with PA over that without": took[2, "easy-pa"] / took[2, "easy-reg"],
        "energy with PA over that without": energy[2, "easy-pa"] / energy[2, "easy-reg"],
    }


def _published(stated: Iterable[Statement]) -> dict[tuple[_Place, str], float]:
    numbers = {}
    for statement in stated:
        key, value = statement.key, statement.paper
        if key.startswith(("bsld ", "saved_pct ")) and isinstance(value, float):
            column, name, log, mix, error = key.split()
            numbers[(name, log, mix, int(error)), column] = value
    return numbers


# --- Tables and figures --------------------------------------------------------------------------


def _rows(view: VariantView, stated: Sequence[Statement]) -> list[dict[str, Any]]:
    published: dict[_Place, dict[str, float]] = {}
    for (place, column), number in _published(stated).items():
        published.setdefault(place, {})[column] = number
    rows = []
    for log, mix in view.places():
        for error in view.errors:
            for name in POLICIES:
                ours = msgspec.to_builtins(view.of(name, log, mix, error))
                ours["saved_pct"] = view.saved_pct(name, log, mix, error)
                paper = published.get((name, log, mix, error))
                keys: dict[str, Any] = {"log": log, "mix": mix, "error_pct": error}
                rows.append(experiment.row(f"{log} {mix} {error} %", name, ours, paper, **keys))
    return rows


def _orderings_table(views: Mapping[str, VariantView], jobs: int) -> list[str]:
    """Return the number of cases in which the orderings hold under all variants."""
    by_variant = {name: orderings(view) for name, view in views.items()}
    first = by_variant["default"]
    errors = " and ".join(map(str, views["default"].errors))
    lines = [
        f"Orderings of section VI, first {jobs:,} jobs of each log, errors of {errors} %:",
        "the number of cases in which they hold, by bsld|bsld_log where slowdowns are compared",
        *(f"  ({n}) {row['says']}: of {row['of']}" for n, row in enumerate(first, 1)),
    ]
    cells = [
        [name, *("|".join(f"{row[c]}" for c in (*SLOWDOWNS, "holds") if c in row) for row in rows)]
        for name, rows in by_variant.items()
    ]
    heads = ("variant", *(f"({n})" for n in range(1, len(first) + 1)))
    return [*lines, *columns(heads, cells)]


def _published_table(
    views: Mapping[str, VariantView], stated: Sequence[Statement], jobs: int
) -> list[str]:
    view = views["default"]
    shown = [
        (case, column, value)
        for (case, column), value in _published(stated).items()
        if case[1:3] in view.places() and case[3] in view.errors
    ]
    if not shown:
        return ["No published number belongs to these cases."]
    lines = [f"Published numbers and those of each variant, first {jobs:,} jobs of each log"]
    for title, names in (("bounded slowdown, bsld|bsld_log", SLOWDOWNS), ("energy saved, %", ())):
        wanted = [number for number in shown if (number[1] == "bsld") == bool(names)]
        heads = (title, *(" ".join(map(str, case)) for case, _, _ in wanted))
        cells = [["the paper", *(f"{value:g}" for _, _, value in wanted)]]
        for name, own in views.items():
            numbers = [
                "|".join(f"{own.number(column, *case):,.0f}" for column in names)
                or f"{own.saved_pct(*case):.1f}"
                for case, _, _ in wanted
            ]
            cells.append([name, *numbers])
        lines += columns(heads, cells) if wanted else []
    return lines


def _queue_table(views: Mapping[str, VariantView]) -> list[str]:
    heads = ["medians of the cases, least error"]
    heads += [f"{name}: time with a queue, waiting halfway, at the end" for name in POLICIES]
    shares = ("queued_pct", "waiting_half_pct", "waiting_end_pct")

    def medians(view: VariantView, name: str) -> str:
        columns_ = (view.numbers(share, name, view.errors[0]) for share in shares)
        return ", ".join(f"{median(numbers):.0f} %" for numbers in columns_)

    cells = [[title, *(medians(view, name) for name in POLICIES)] for title, view in views.items()]
    return [
        "Queues: share of the time between the first and the last submission in which a job waits,",
        "and jobs that wait at the middle and the last submission, of those submitted by then.",
        "Where many wait at the end, the systems are saturated and slowdowns grow with the number",
        "of jobs: policies are compared by their throughput.",
        *columns(heads, cells),
    ]


def _cases_table(name: str, view: VariantView, specs: Mapping[str, Sequence[JobSpec]]) -> list[str]:
    heads = ["log, mix, error"]
    for column in (*SLOWDOWNS, *(f"{column}_p95" for column in SLOWDOWNS)):
        heads += [f"{column} {POLICIES[0]}", *POLICIES[1:]]
    heads += [f"saved {POLICIES[1]}", POLICIES[2]]
    for title in ("run time / log", "mean wait, h", "waiting"):
        heads += [f"{title} {POLICIES[0]}", *POLICIES[1:]]
    cells = []
    for at in view.places():
        for error in view.errors:
            results = [view.of(policy_name, *at, error) for policy_name in POLICIES]
            row = [f"{' '.join(at)} {error} %"]
            for column in (*SLOWDOWNS, *(f"{column}_p95" for column in SLOWDOWNS)):
                row += [f"{getattr(result, column):,.1f}" for result in results]
            row += [f"{view.saved_pct(other, *at, error):.1f} %" for other in POLICIES[1:]]
            row += [f"{result.stretch:.1f}" for result in results]
            row += [f"{result.wait_s / 3600.0:,.1f}" for result in results]
            row += [f"{result.waiting_end_pct:.0f} %" for result in results]
            cells.append(row)
    jobs = max(map(len, specs.values()))
    title = f"{name}: {VARIANTS[name][1]}; {jobs:,} jobs of each log at most"
    return [title, *columns(heads, cells)]


def _draw(view: VariantView, folder: Path) -> None:
    """Draw figure 3 (bounded slowdowns, the usual definition) and figure 4 (energy saved)."""

    def panel(log: str, names: Sequence[str], title: str, column: str) -> Panel:
        cases = [(log, mix, error) for mix in view.mixes for error in view.errors]
        ticks = [f"{mix} {error}" for _, mix, error in cases]
        series = {
            name: (ticks, [view.number(column, name, *case) for case in cases]) for name in names
        }
        return Panel(title, series, "mix, error of bandwidth (%)")

    slowdowns = [
        panel(log, POLICIES, f"{title}, {log}", column)
        for log in view.logs
        for column, title in (("bsld", "average"), ("bsld_p95", "95th percentile"))
    ]
    draw_panels(slowdowns, folder / "figure-3.png", "Bounded slowdown", columns=2)
    saved = [panel(log, POLICIES[1:], log, "saved_pct") for log in view.logs]
    draw_panels(saved, folder / "figure-4.png", "Energy saved against EASY-REG (%)", columns=3)
