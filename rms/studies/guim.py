"""``rms reproduce guim``: placement by bandwidth and power on nodes with GPUs (Guim et al.).

Three EASY policies on three logs, four mixes of memory-bound and compute-bound jobs, and three
errors of the expected bandwidth. The paper prints neither the number of nodes nor its definition
of bounded slowdown, and contradicts itself in the bandwidth of the GPU socket, so all cases are
simulated under all :data:`rms.studies.guim_model.VARIANTS`, and slowdowns are given by both
definitions (:class:`rms.studies.guim_model.Figures`). The statements of the paper are compared with
the default variant, which follows from its text.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from rms.core.model.contention import Pools, Processors, SharedNode
from rms.core.model.jobs import JobId, JobSpec, Mode, Site
from rms.formats.config import FileError
from rms.sim.run import simulated
from rms.studies.guim_model import (
    POLICIES,
    VARIANTS,
    Case,
    Figures,
    Grid,
    Variant,
    policy,
    read_log,
    run,
    site,
    with_bandwidth,
)
from rms.studies.statements import Statement, column_of, compare, statements, table
from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data"
SLOWDOWNS = ("bsld", "bsld_log")
"""Bounded slowdown over the time that a job took (the usual one), and over that in the log."""

_Line = tuple[Case, int, Figures]
_Place = tuple[str, str, str, int]
"""Policy, log, mix, and error in per cent."""

TRIED = 2000
"""Variants are simulated with so many jobs of a log at most."""

NOTES = (
    "bsld is wait and run time over the run time, 10 s at least (Feitelson and Rudolph, reference",
    "12 of the paper); bsld_log divides by the run time in the log. The paper does not define it.",
    "Where contention stretches run times, bsld falls by that alone: see run time / log and waits.",
    "Energy is c V^2 f t of each process with table I. The paper prints (T-k) x T for its time; by",
    "the formula it cites that is the time T-k of a process, which draws nothing while it waits.",
    "Its factor for the bandwidth of a faster process, penalties over the critical one's, is 0",
    "for one without penalty: its run time over the critical one's is used instead.",
    "Section III-C sets the GPU socket of the evaluated architecture to a ninth of the node's",
    "bandwidth; its example has 4 of 18 GB/s. The default is the ninth.",
    "Mix equip sums to 99.6 %: all are normalised. The paper's SDSC log is another one (416",
    "processors, the Paragon); here it is SDSC-SP2. Its CTC counts 512 processors, ours 338.",
    "Expected bandwidth is off by the error, up or down at random. LessConsume works out the",
    "penalties of an allocation from the demand at its start; with forecast, until expected ends.",
    "The paper has no results of LessConsume-Threshold, and names no threshold.",
)


def guim(
    data: Path,
    grid: Grid,
    workers: int,
    figures: Path | None,
    progress: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether all checks hold.

    The default variant is simulated at all errors of the grid, the others at the least and the
    largest.

    Args:
        data: folder with the logs, or with a folder ``traces`` of them.
        grid: the simulations.
        workers: number of simulations at once.
        figures: folder for figures 3 and 4, or None.
        progress: called with a line for each simulation that is over.
        keep: a file with a line for each simulation that is over; those in it are not run again.

    Raises:
        FileError: a log is missing, or ``keep`` holds something else.
    """
    paper = msgspec.toml.decode((DATA / "guim.toml").read_bytes())
    logs = {log: read_log(data, paper["logs"][log]["file"]) for log in grid.logs}
    specs = {log: jobs[: grid.first or None] for log, jobs in logs.items()}
    fewer = {log: jobs[: grid.first or TRIED][:TRIED] for log, jobs in logs.items()}
    names = [name for name in VARIANTS if name == "default" or name in grid.variants]
    errors = tuple(sorted(grid.errors))
    ends = tuple(sorted({errors[0], errors[-1]}))

    runs = _Runs(paper, workers, progress, keep)
    results = runs.all_of(_cases(grid, errors, Variant()), specs)
    more = [case for name in names for case in _cases(grid, ends, VARIANTS[name][0])]
    shared = results if specs == fewer else {}
    tried = {**shared, **runs.all_of([case for case in more if case not in shared], fewer)}

    main = View(results, Variant(), grid.logs, grid.mixes, errors)
    views = {name: View(tried, VARIANTS[name][0], grid.logs, grid.mixes, ends) for name in names}
    shown = (
        dict(views)
        if specs == fewer
        else {**views, "default, all jobs": replace(main, errors=ends)}
    )
    wrong = [*_must_hold(results, specs), *_must_hold(tried, fewer)]
    stated = statements("guim")
    rows, differences = compare(stated, values(main, paper, logs))
    recorded = all(len(jobs) == Grid().first for jobs in specs.values())
    wrong += differences if recorded else []
    all_results = {**results, **tried}
    spent_s = sum(result.cpu_s for result in all_results.values())

    lines = [*table(rows)]
    if not recorded:
        lines.append(
            f"The recorded statuses are those of the first {Grid().first:,} jobs of each log; this"
            " run has others, so that statuses may differ from the recorded ones."
        )
    jobs = max(map(len, fewer.values()))
    lines += ["", *_orderings_table(shown, jobs), "", *_published_table(shown, stated, jobs)]
    lines += ["", *_queue_table(shown), ""]
    for name, view in (("default", main), *list(views.items())[1:]):
        lines += [*_cases_table(name, view, specs if view is main else fewer), ""]
    spent = f"{len(all_results)} simulations took {spent_s:,.0f} s of processor time."
    lines += [*NOTES, spent, *wrong]
    if figures is not None:
        _draw(main, figures)
        lines.append(f"figures in {figures}")
    result = {
        "experiment": "guim",
        "jobs_of_each_log": grid.first,
        "statements": rows,
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
        "notes": NOTES,
        "wrong": wrong,
    }
    return result, lines, not wrong


# --- simulations -------------------------------------------------------------------------------


def _cases(grid: Grid, errors: Iterable[int], variant: Variant) -> list[Case]:
    """Return the simulations of a variant under all policies, each once."""
    cases = [
        _of_policy(Case(name, log, mix, error, variant))
        for log in grid.logs
        for mix in grid.mixes
        for error in errors
        for name in POLICIES
    ]
    return list(dict.fromkeys(cases))


def _of_policy(case: Case) -> Case:
    """Return a case without assumptions that its policy does not depend on."""
    variant, error_pct = case.variant, case.error_pct
    if case.policy == "easy-reg":
        variant, error_pct = replace(variant, biased=False), 0
    if case.policy == "easy-pa" and variant.exact_pa:
        variant, error_pct = replace(variant, biased=False), 0
    variant = replace(variant, exact_pa=False)
    if case.policy != "lc-pa":
        variant = replace(variant, threshold=None, forecast=False)
    return case._replace(variant=variant, error_pct=error_pct)


@dataclass
class _Runs:
    """Simulations, several of them at once."""

    paper: Mapping[str, Any]
    workers: int
    progress: Callable[[str], None]
    keep: Path | None

    def all_of(
        self, cases: Iterable[Case], specs: Mapping[str, Sequence[JobSpec]]
    ) -> dict[Case, Figures]:
        """Return the results of cases; those that are kept are not run again."""
        kept = self._kept()
        keys = {case: (case, len(specs[case.log])) for case in cases}
        results = {case: kept[key] for case, key in keys.items() if key in kept}
        left = [case for case in keys if case not in results]
        with ExitStack() as stack:
            for case, result in self._each(stack, left, specs):
                results[case] = result
                if self.keep is not None:
                    with self.keep.open("ab") as file:
                        file.write(msgspec.json.encode((*keys[case], result)) + b"\n")
                self.progress(f"{_name(case)}: {len(results)} of {len(keys)}")
        return results

    def _each(
        self, stack: ExitStack, cases: Sequence[Case], specs: Mapping[str, Sequence[JobSpec]]
    ) -> Iterable[tuple[Case, Figures]]:
        """Run the cases; yield each with its result as soon as it is over."""
        if self.workers == 1:
            return ((case, run(case, self.paper, specs[case.log])) for case in cases)
        pool = stack.enter_context(
            ProcessPoolExecutor(
                self.workers,
                get_context("fork"),
                initializer=signal.signal,
                initargs=(signal.SIGINT, signal.SIG_DFL),
            )
        )
        at_once = {pool.submit(run, case, self.paper, specs[case.log]): case for case in cases}
        return ((at_once[each], each.result()) for each in as_completed(at_once))

    def _kept(self) -> dict[tuple[Case, int], Figures]:
        """Return the results in the file, by case and number of jobs; drop a cut line."""
        if self.keep is None:
            return {}
        try:
            self.keep.touch()
            text = self.keep.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            lines = msgspec.json.Decoder(_Line).decode_lines(whole)
            os.truncate(self.keep, len(whole))
        except (OSError, msgspec.DecodeError) as error:
            raise FileError(f"{self.keep}: expected simulations of guim, got: {error}") from None
        return {(case, jobs): result for case, jobs, result in lines}


def _name(case: Case) -> str:
    return f"{case.policy} {case.log} {case.mix} {case.error_pct} %"


def _must_hold(
    results: Mapping[Case, Figures], specs: Mapping[str, Sequence[JobSpec]]
) -> list[str]:
    """Return a sentence for each violated invariant, which holds under all assumptions."""
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


# --- orderings ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """Results of one variant.

    Attributes:
        errors: errors of the expected bandwidth in per cent, rising.
    """

    results: Mapping[Case, Figures]
    variant: Variant
    logs: tuple[str, ...]
    mixes: tuple[str, ...]
    errors: tuple[int, ...]

    def of(self, policy: str, log: str, mix: str, error_pct: int) -> Figures:
        """Return the result of a case."""
        return self.results[_of_policy(Case(policy, log, mix, error_pct, self.variant))]

    def saved_pct(self, policy: str, log: str, mix: str, error_pct: int) -> float:
        """Return the energy that a policy saves against EASY-REG, in per cent."""
        regular = self.of("easy-reg", log, mix, error_pct).energy
        return 100.0 * (1.0 - self.of(policy, log, mix, error_pct).energy / regular)

    def slowdown(self, column: str, policy: str, log: str, mix: str, error_pct: int) -> float:
        """Return a slowdown, a field of :class:`rms.studies.guim_model.Figures`."""
        return float(getattr(self.of(policy, log, mix, error_pct), column))

    def places(
        self, logs: Sequence[str] = (), mixes: Sequence[str] = ()
    ) -> Iterator[tuple[str, str]]:
        """Yield the pairs of log and mix, all or some of them."""
        for log in self.logs:
            for mix in self.mixes:
                if (not logs or log in logs) and (not mixes or mix in mixes):
                    yield log, mix

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """The least and the largest error as one pair; empty where they are the same."""
        low, high = self.errors[0], self.errors[-1]
        return ((low, high),) if low < high else ()


class Ordering(NamedTuple):
    """An ordering of the paper.

    Attributes:
        says: the ordering, in words; also its key among the values of the study.
        cases: returns for each case whether it holds, given a column of slowdowns.
        slowdown: whether it depends on that column.
    """

    says: str
    cases: Callable[[View, str], list[bool]]
    slowdown: bool = True


def _below_regular(view: View, column: str) -> list[bool]:
    low = view.errors[0]
    return [
        view.slowdown(column, "lc-pa", *place, low) < view.slowdown(column, "easy-reg", *place, low)
        for place in view.places()
    ]


def _above_regular(view: View, column: str) -> list[bool]:
    high = view.errors[-1]
    return [
        view.slowdown(column, "lc-pa", *at, high) > view.slowdown(column, "easy-reg", *at, high)
        for at in view.places(["blue"], ["mem"])
    ]


def _below_power_aware(view: View, column: str) -> list[bool]:
    low = view.errors[0]
    return [
        view.slowdown(column, "lc-pa", *at, low) < view.slowdown(column, "easy-pa", *at, low)
        for at in view.places(mixes=["hybrid", "comp"])
    ]


def _above_power_aware(view: View, column: str) -> list[bool]:
    high = view.errors[-1]
    return [
        view.slowdown(column, "lc-pa", *at, high) > view.slowdown(column, "easy-pa", *at, high)
        for at in view.places(["ctc"], ["mem"])
    ]


def _error_slows(view: View, column: str) -> list[bool]:
    return [
        view.slowdown(column, "lc-pa", *at, low) < view.slowdown(column, "lc-pa", *at, high)
        for low, high in view.ends
        for at in view.places()
    ]


def _error_raises_p95(view: View, column: str) -> list[bool]:
    def over(place: tuple[str, str], error: int) -> float:
        ours, other = (
            view.slowdown(f"{column}_p95", name, *place, error) for name in ("lc-pa", "easy-pa")
        )
        return ours / other

    return [over(at, low) < over(at, high) for low, high in view.ends for at in view.places()]


def _power_aware_is_alike(view: View, column: str) -> list[bool]:
    slowdowns = [
        [view.slowdown(column, "easy-pa", *at, error) for error in view.errors]
        for _ in view.ends
        for at in view.places()
    ]
    return [max(by_error) <= 1.02 * min(by_error) for by_error in slowdowns]


def _memory_slows(view: View, column: str) -> list[bool]:
    if not {"mem", "comp"} <= set(view.mixes):
        return []
    return [
        view.slowdown(column, name, log, "mem", error)
        > view.slowdown(column, name, log, "comp", error)
        for log in view.logs
        for name in ("lc-pa", "easy-pa")
        for error in view.errors
    ]


def _saves_more(view: View, column: str) -> list[bool]:
    return [
        view.saved_pct("lc-pa", *at, error) > view.saved_pct("easy-pa", *at, error)
        for at in view.places()
        for error in view.errors
    ]


def _saves_much(view: View, column: str) -> list[bool]:
    return [
        view.saved_pct("lc-pa", *at, error) > 40.0 for at in view.places() for error in view.errors
    ]


def _saves_little(view: View, column: str) -> list[bool]:
    return [
        view.saved_pct("easy-pa", *at, error) <= 37.0
        for at in view.places()
        for error in view.errors
    ]


def _error_costs(view: View, column: str) -> list[bool]:
    return [
        view.saved_pct("lc-pa", *at, high) < view.saved_pct("lc-pa", *at, low)
        for low, high in view.ends
        for at in view.places()
    ]


def _gap_pct(view: View, place: tuple[str, str], error: int) -> float:
    """Return how far the savings of LC-PA and EASY-PA are apart, in points."""
    return abs(view.saved_pct("lc-pa", *place, error) - view.saved_pct("easy-pa", *place, error))


def _closer(view: View, column: str) -> list[bool]:
    return [
        _gap_pct(view, at, high) < _gap_pct(view, at, low)
        for low, high in view.ends
        for at in view.places(mixes=["mem", "equip"])
    ]


def _close(view: View, column: str) -> list[bool]:
    return [_gap_pct(view, at, view.errors[-1]) < 10.0 for at in view.places(["sdsc"])]


def _waits_less(view: View, column: str) -> list[bool]:
    low = view.errors[0]
    return [
        view.of("lc-pa", *at, low).wait_s < view.of("easy-reg", *at, low).wait_s
        for at in view.places()
    ]


def _lower_on_gpu(view: View, column: str) -> list[bool]:
    results = [view.of("lc-pa", *at, view.errors[0]) for at in view.places()]
    return [result.gpu_gb_s < result.plain_gb_s for result in results]


def _higher_on_gpu(view: View, column: str) -> list[bool]:
    low = view.errors[0]
    return [
        view.of("easy-pa", *at, low).gpu_gb_s > view.of("lc-pa", *at, low).gpu_gb_s
        for at in view.places()
    ]


ORDERINGS = (
    Ordering("LC-PA slows less than EASY-REG, least error", _below_regular),
    Ordering("LC-PA slows more than EASY-REG, blue mem, largest error", _above_regular),
    Ordering("LC-PA slows less than EASY-PA, hybrid and comp, least error", _below_power_aware),
    Ordering("LC-PA slows more than EASY-PA, ctc mem, largest error", _above_power_aware),
    Ordering("the error raises the slowdown of LC-PA", _error_slows),
    Ordering("the error raises the 95th percentile of LC-PA over EASY-PA's", _error_raises_p95),
    Ordering("the error changes the slowdown of EASY-PA by 2 % at most", _power_aware_is_alike),
    Ordering("mem slows more than comp, LC-PA and EASY-PA", _memory_slows),
    Ordering("LC-PA saves more than EASY-PA", _saves_more, slowdown=False),
    Ordering("LC-PA saves over 40 %", _saves_much, slowdown=False),
    Ordering("EASY-PA saves 37 % at most", _saves_little, slowdown=False),
    Ordering("the error lowers the saving of LC-PA", _error_costs, slowdown=False),
    Ordering("the error brings both savings closer, mem and equip", _closer, slowdown=False),
    Ordering("both savings within 10 points, sdsc, largest error", _close, slowdown=False),
    Ordering("LC-PA: less bandwidth per process on GPU cores", _lower_on_gpu, slowdown=False),
    Ordering("EASY-PA: more of it on GPU cores than LC-PA", _higher_on_gpu, slowdown=False),
    Ordering("not of the paper: LC-PA waits less, least error", _waits_less, slowdown=False),
)
"""The orderings of section VI, some of them stated for one log or mix alone, and one of waits,
which no definition of slowdown changes."""


def orderings(view: View) -> list[dict[str, Any]]:
    """Return for each ordering in how many of its cases it holds, by either slowdown."""
    rows = []
    for ordering in ORDERINGS:
        row: dict[str, Any] = {"says": ordering.says}
        for column in SLOWDOWNS if ordering.slowdown else ("holds",):
            cases = ordering.cases(view, column)
            row[column], row["of"] = sum(cases), len(cases)
        rows.append(row)
    return rows


# --- statements --------------------------------------------------------------------------------


def values(
    view: View, paper: Mapping[str, Any], logs: Mapping[str, Sequence[JobSpec]]
) -> dict[str, float]:
    """Return the values of the statements by key; those of cases outside the view are missing.

    Args:
        view: the results of the default variant.
        paper: ``guim.toml``.
        logs: all jobs of each log.
    """
    ours: dict[str, float] = {}
    for at in view.places():
        for error in view.errors:
            for name in POLICIES:
                case = f"{name} {' '.join(at)} {error}"
                ours[f"bsld {case}"] = view.slowdown("bsld", name, *at, error)
                ours[f"saved_pct {case}"] = view.saved_pct(name, *at, error)
    whole = Grid()
    if (set(view.logs), set(view.mixes), view.errors) == (
        set(whole.logs),
        set(whole.mixes),
        whole.errors,
    ):
        ours |= {row["says"]: row.get("bsld", row.get("holds")) for row in orderings(view)}
        ours |= _extremes(view)
    for log, jobs in logs.items():
        ours |= _workload(log, jobs)
        ours[f"{log} processors"] = paper["logs"][log]["processors"]
        ours[f"{log} cluster plain processors"] = _plain(paper, log, view.variant)
    return ours | _inputs(paper, view) | _example(paper)


def _plain(paper: Mapping[str, Any], log: str, variant: Variant) -> float:
    """Return how many plain processors the cluster for a log has."""
    where = site(paper, paper["logs"][log]["processors"], variant)
    kinds = [kind for node in where.shared for kind in node.processors]
    return sum(kind.number for kind in kinds if kind.factor == 1.0)


def _extremes(view: View) -> dict[str, float]:
    """Return the largest and least values of the abstract, sections VI and VII."""
    cases = [(*at, error) for at in view.places() for error in view.errors]

    def over(one: str, other: str, log: str, error: int) -> float:
        slow = [view.slowdown("bsld", name, log, "mem", error) for name in (one, other)]
        return slow[0] / slow[1]

    gains = [
        100.0 * (1.0 - view.slowdown("bsld", "lc-pa", *at) / view.slowdown("bsld", "easy-reg", *at))
        for at in cases
    ]
    low, high = view.errors[0], view.errors[-1]
    saved = {mix: view.saved_pct("lc-pa", "blue", mix, low) for mix in view.mixes}
    rise = [
        view.slowdown("bsld", "lc-pa", log, "mem", high)
        / view.slowdown("bsld", "lc-pa", log, "mem", low)
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
    """Return what section V states of a log: shares of its jobs in per cent."""

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


def _inputs(paper: Mapping[str, Any], view: View) -> dict[str, float]:
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
    one = JobSpec(JobId("1"), 0.0, 1, 1, 1, Mode.FIXED, run_s=1.0)
    drawn = with_bandwidth([one] * 1000, paper, Case("", "blue", "hybrid", 0))
    demands = sorted({spec.bandwidth_gb_s or 0.0 for spec in drawn}, reverse=True)
    inputs |= {f"demand of type {kind}": demand for kind, demand in enumerate(demands)}
    for error in view.errors:
        spec = with_bandwidth([one], paper, Case("", "blue", "mem", error))[0]
        gb_s, expected = spec.bandwidth_gb_s or 0.0, spec.expected_bandwidth_gb_s or 0.0
        inputs[f"error {error}"] = 100.0 * abs(expected / gb_s - 1.0)
    return inputs


def _example(paper: Mapping[str, Any]) -> dict[str, float]:
    """Return slowdowns by the model of section III, with the figures of its example (III-C).

    A job has 8 processes on GPU cores and two on plain processors of a node with 18 GB/s, 4 GB/s
    of them for the socket; a process needs 4 GB/s on a plain processor.
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
            job = JobSpec(JobId("1"), 0.0, size, size, size, Mode.FIXED, limit_s=1e3, run_s=100.0)
            simulation, _ = simulated([job], where, policy(name, Variant()))
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
    """Return the published numbers by case and column."""
    numbers = {}
    for statement in stated:
        key, value = statement.key, statement.paper
        if key.startswith(("bsld ", "saved_pct ")) and isinstance(value, float):
            column, name, log, mix, error = key.split()
            numbers[(name, log, mix, int(error)), column] = value
    return numbers


# --- tables ------------------------------------------------------------------------------------


def _rows(view: View, stated: Sequence[Statement]) -> list[dict[str, Any]]:
    """Return the JSON of all cases of a variant."""
    published: dict[_Place, dict[str, float]] = {}
    for (place, column), value in _published(stated).items():
        published.setdefault(place, {})[column] = value
    rows = []
    for log, mix in view.places():
        for error in view.errors:
            for name in POLICIES:
                result = msgspec.to_builtins(view.of(name, log, mix, error))
                result["saved_pct"] = view.saved_pct(name, log, mix, error)
                paper = published.get((name, log, mix, error), {})
                rows.append(
                    {
                        "case": f"{log} {mix} {error} %",
                        "mode": name,
                        "log": log,
                        "mix": mix,
                        "error_pct": error,
                        "values": {
                            column: column_of(paper.get(column), ours)
                            for column, ours in result.items()
                        },
                    }
                )
    return rows


def _orderings_table(views: Mapping[str, View], jobs: int) -> list[str]:
    """Return in how many cases the orderings hold under all variants."""
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
    views: Mapping[str, View], stated: Sequence[Statement], jobs: int
) -> list[str]:
    """Return the published numbers beside those of all variants."""
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
        if not wanted:
            continue
        heads = (title, *(" ".join(map(str, case)) for case, _, _ in wanted))
        cells = [["the paper", *(f"{value:g}" for _, _, value in wanted)]]
        for name, own in views.items():
            numbers = [
                "|".join(f"{own.slowdown(column, *case):,.0f}" for column in names)
                or f"{own.saved_pct(*case):.1f}"
                for case, _, _ in wanted
            ]
            cells.append([name, *numbers])
        lines += columns(heads, cells)
    return lines


def _queue_table(views: Mapping[str, View]) -> list[str]:
    """Return how long jobs wait: saturated systems are compared by their throughput."""
    heads = ["medians of the cases, least error"]
    heads += [f"{name}: time with a queue, waiting halfway, at the end" for name in POLICIES]
    cells = []
    for name, view in views.items():
        row = [name]
        for policy_name in POLICIES:
            results = [view.of(policy_name, *at, view.errors[0]) for at in view.places()]
            shares = [
                median(getattr(result, column) for result in results)
                for column in ("queued_pct", "waiting_half_pct", "waiting_end_pct")
            ]
            row.append(", ".join(f"{share:.0f} %" for share in shares))
        cells.append(row)
    return [
        "Queues: share of the time between the first and the last submission in which a job waits,",
        "and jobs that wait at the middle and the last submission, of those submitted by then.",
        "Where many wait at the end, the systems are saturated and slowdowns grow with the number",
        "of jobs: policies are compared by their throughput.",
        *columns(heads, cells),
    ]


def _cases_table(name: str, view: View, specs: Mapping[str, Sequence[JobSpec]]) -> list[str]:
    """Return slowdowns by both definitions, savings, run times and waits of all cases."""
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


def _draw(view: View, folder: Path) -> None:
    """Draw figure 3 (bounded slowdowns, the usual definition) and figure 4 (energy saved)."""
    from rms.plots import Panel, draw_panels

    def panel(log: str, names: Sequence[str], title: str, value: Callable[..., float]) -> Panel:
        cases = [(log, mix, error) for mix in view.mixes for error in view.errors]
        ticks = [f"{mix} {error}" for _, mix, error in cases]
        series = {name: (ticks, [value(name, *case) for case in cases]) for name in names}
        return Panel(title, series, "mix, error of bandwidth (%)")

    def slowdown(column: str) -> Callable[..., float]:
        return lambda *case: view.slowdown(column, *case)

    slowdowns = [
        panel(log, POLICIES, f"{title}, {log}", slowdown(column))
        for log in view.logs
        for column, title in (("bsld", "average"), ("bsld_p95", "95th percentile"))
    ]
    draw_panels(slowdowns, folder / "figure-3.png", "Bounded slowdown", columns=2)
    saved = [panel(log, POLICIES[1:], log, view.saved_pct) for log in view.logs]
    draw_panels(saved, folder / "figure-4.png", "Energy saved against EASY-REG (%)", columns=3)
