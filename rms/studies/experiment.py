"""Parts that all published experiments share: statements, rows, tables, simulations, results.

``data/statements/NAME.toml`` has the statements of a paper in its order, with the published value,
the value of the study, a tolerance and a status:

- ``met``: within the tolerance, or inside the published range;
- ``missed by X``: outside, by a part of the published value, or by the distance from the range;
- ``fitted``: within the tolerance, but parameters were chosen by this value;
- ``input``: the study takes the value from the paper;
- ``not tried``: no study here computes it.

A study computes its values anew and :func:`compare` computes the status from both. A status that
differs from the recorded one is an error, also where a missed value is suddenly met.

Cases are simulated by :func:`run_all`, several at once; :class:`Kept` keeps their results in a
file, so that an interrupted study continues. A :class:`StudyReport` puts the result together: JSON
with a :func:`row` per case, lines of text, and whether all checks hold.
"""

from __future__ import annotations

import csv
import gzip
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from math import inf, isinf
from multiprocessing import get_context
from pathlib import Path
from types import GenericAlias
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rms.core.model.events import Start, Started
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, Site
from rms.core.rules.transition import apply, take
from rms.core.state import State
from rms.formats.config import FileError
from rms.sim.simulator import Simulation
from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data"
STATUSES = ("met", "missed", "fitted", "input", "not tried")
SAME = 1e-3
"""Relative difference between a recorded value of a study and a new one that counts as none."""

Data = Mapping[str, Any]
"""The settings of a study and the numbers of its paper, ``data/NAME.toml``."""

Result = tuple[dict[str, Any], list[str], bool]
"""JSON, lines of text, and whether all checks of an experiment hold."""

Record = TypeVar("Record")
Case = TypeVar("Case")
Outcome = TypeVar("Outcome")


# --- Data ----------------------------------------------------------------------------------------


def settings(study: str) -> dict[str, Any]:
    """Return the settings of a study."""
    path = DATA / f"{study.replace('-', '_')}.toml"
    return msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])


def texts(data: Data, name: str, **values: Any) -> list[str]:
    """Return the lines of a text of a study, with values in the places of their names."""
    return [str(line).format(**values) for line in data["texts"][name]]


def form(study: str, name: str, **values: Any) -> list[tuple[str, str]]:
    """Return the columns of a table of a study for :func:`tabulate`, with values in their heads."""
    columns_ = settings(study)["forms"][name]
    return [(head.format(**values), cell) for head, cell in columns_]


def read_rows(path: Path, row: type[Record], source: str) -> list[Record]:
    """Read a CSV file of published data, compressed or not, with the columns that ``row`` names.

    The project does not ship the file; the message about a missing one names its ``source``.
    """
    rows: list[Record] = []
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for fields in reader:
                rows.append(msgspec.convert(fields, row, strict=False))
    except FileNotFoundError:
        raise FileError(
            f"expected {path}, which does not exist; it is made from {source}"
        ) from None
    except msgspec.ValidationError as error:
        wrong = str(error).replace("`", "")
        raise FileError(f"{path}, line {reader.line_num}: {wrong}") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: expected a CSV file, got: {error}") from None
    if not rows:
        raise FileError(f"{path}: expected at least one row, got none")
    return rows


def make_folder(figures: Path | None) -> None:
    """Make the folder of figures, if one is named."""
    try:
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"expected a folder for --figures, got: {error}") from None


# --- Statements ----------------------------------------------------------------------------------


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A statement of a paper.

    Attributes:
        where: table, figure or section.
        says: the statement, in words.
        status: see the module.
        key: name of the value among those that the study computes; empty if not tried.
        paper: the published value, or a range ``(low, high)``, open where an end is infinite.
        ours: the value of the study when the status was recorded.
        within_pct: tolerance in per cent of the published value; not used for a range.
        unit: of both values.
        note: reason of a miss, or another remark.
    """

    where: str
    says: str
    status: str
    key: str = ""
    paper: float | tuple[float, float] | None = None
    ours: float | None = None
    within_pct: float = 0.0
    unit: str = ""
    note: str = ""

    @property
    def kind(self) -> str:
        """The status without the size of a miss."""
        return "missed" if self.status.startswith("missed by ") else self.status

    def computed(self, ours: float) -> str:
        """Return the status for a value of the study."""
        if isinstance(self.paper, tuple):
            low, high = self.paper
            off = ours - low if ours < low else max(0.0, ours - high)
            missed, by = off != 0.0, f"{off:+.3g} {self.unit}".strip()
        else:
            assert self.paper is not None
            off = ours - self.paper
            missed = abs(off) > self.within_pct / 100.0 * abs(self.paper) + 1e-9
            by = f"{100.0 * off / self.paper:+.1f} %" if self.paper else f"{off:+.3g} {self.unit}"
        if missed:
            return f"missed by {by.strip()}"
        return self.kind if self.kind in ("fitted", "input") else "met"


class _Statements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    statement: list[Statement]


def studies() -> list[str]:
    """Return the names of the studies that have a table of statements."""
    return sorted(path.stem for path in (DATA / "statements").glob("*.toml"))


def statements(study: str) -> list[Statement]:
    """Return the statements of a study's paper, in the order of the paper."""
    path = DATA / "statements" / f"{study}.toml"
    return msgspec.toml.decode(path.read_bytes(), type=_Statements).statement


def compare(
    stated: Iterable[Statement], ours: Mapping[str, float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare statements with the values of a study by key; a missing key was not run.

    Return rows of JSON, and sentences on differences from the recorded statuses and values.
    """
    rows, wrong = [], []
    for statement in stated:
        entry: dict[str, Any] = msgspec.to_builtins(statement)
        if isinstance(statement.paper, tuple):
            entry["paper"] = [None if isinf(end) else end for end in statement.paper]
        if statement.kind != "not tried":
            number = ours.get(statement.key)
            entry["ours"] = number
            entry["status"] = "not run" if number is None else statement.computed(number)
            if number is not None:
                wrong += _differences(statement, number)
        rows.append(entry)
    return rows, wrong


def _differences(statement: Statement, number: float) -> list[str]:
    name, recorded = f"{statement.where}, {statement.says}", statement.ours
    status, wrong = statement.computed(number), []
    if status != statement.status:
        wrong.append(f"{name}: expected {statement.status}, got {status}")
    if recorded is None or abs(number - recorded) > SAME * max(abs(number), abs(recorded)) + 1e-9:
        text = "none" if recorded is None else f"{recorded:.6g}"
        wrong.append(f"{name}: expected the recorded value {text}, got {number:.6g}")
    return wrong


def counts(rows: Iterable[Mapping[str, Any] | Statement]) -> dict[str, int]:
    """Return the numbers of statements by status."""
    texts = [row.status if isinstance(row, Statement) else str(row["status"]) for row in rows]
    number = Counter("missed" if text.startswith("missed by ") else text for text in texts)
    return {status: number[status] for status in (*STATUSES, "not run") if number[status]}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of compared statements, in the order of the paper."""
    number = ", ".join(f"{count} {status}" for status, count in counts(rows).items())
    cells = [
        [
            row["where"],
            row["says"],
            value_text(row.get("paper"), row.get("unit", "")),
            value_text(row.get("ours"), row.get("unit", "")),
            _tolerance(row),
            row["status"],
            row.get("note", ""),
        ]
        for row in rows
    ]
    heads = ("where", "statement", "paper", "ours", "tolerance", "status", "note")
    return [f"{len(rows)} statements of the paper: {number}", "", *columns(heads, cells)]


def _tolerance(row: Mapping[str, Any]) -> str:
    if row["status"] == "not tried" or row.get("paper") is None:
        return ""
    return "range" if isinstance(row["paper"], list) else f"{row.get('within_pct', 0.0):g} %"


def value_text(value: float | Sequence[float | None] | None, unit: str) -> str:
    """Return a published or computed value, or a range, with its unit; empty without a value."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:,.6g} {unit}".strip()
    low, high = (-inf if value[0] is None else value[0]), (inf if value[1] is None else value[1])
    if isinf(high):
        return f"at least {low:,.6g} {unit}".strip()
    if isinf(low):
        return f"at most {high:,.6g} {unit}".strip()
    return f"{low:,.6g} to {high:,.6g} {unit}".strip()


def value(paper: float | None, ours: float, note: str = "") -> dict[str, Any]:
    """Return a value of a row: the published number, ours, and the deviation."""
    deviation = 100.0 * (ours / paper - 1.0) if paper else None
    return {"paper": paper, "ours": ours, "deviation_pct": deviation, "note": note}


def row(
    case: str,
    mode: str,
    ours: Mapping[str, float],
    paper: Mapping[str, float] | None = None,
    note: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Return a row of the JSON: a case (workload or cluster) in a mode, policy or strategy."""
    theirs = paper or {}
    values = {column: value(theirs.get(column), number, note) for column, number in ours.items()}
    return {"case": case, "mode": mode, **more, "values": values}


def tabulate(rows: Iterable[Mapping[str, Any]], *form: tuple[str, str]) -> list[str]:
    """Return the lines of a table, whose columns are a head and a format of the values of a row."""
    cells = [[cell.format_map(row) for _, cell in form] for row in rows]
    return columns([head for head, _ in form], cells)


# --- Simulations ---------------------------------------------------------------------------------


def job(
    name: object,
    size: int,
    submit_s: float = 0.0,
    mode: Mode = Mode.FIXED,
    least: int | None = None,
    **more: Any,
) -> JobSpec:
    """Return a job that prefers its largest size; by default it has no smaller one."""
    return JobSpec(JobId(str(name)), submit_s, least or size, size, size, mode, **more)


class JobTimes(NamedTuple):
    """A finished job, with its times in s."""

    job: Job
    submit_s: float
    start_s: float
    end_s: float

    @property
    def wait_s(self) -> float:
        """From the submission to the start."""
        return self.start_s - self.submit_s

    @property
    def run_s(self) -> float:
        """From the start to the end."""
        return self.end_s - self.start_s

    @property
    def turnaround_s(self) -> float:
        """From the submission to the end."""
        return self.end_s - self.submit_s


def job_times(simulation: Simulation) -> list[JobTimes]:
    """Return the jobs of a simulation that ran, in the order of their ends."""
    return [
        JobTimes(job, job.spec.submit_s, job.start_s, job.end_s)
        for job in simulation.engine.state.ended.values()
        if job.start_s is not None and job.end_s is not None
    ]


def running(site: Site, jobs: Iterable[tuple[JobSpec, Iterable[int]]]) -> State:
    """Return a state in which the jobs run on these nodes."""
    state = State(site)
    for spec, nodes in jobs:
        state.enqueue(Job(spec))
        take(state, Start(spec.id, tuple(map(Node, nodes)), ""))
        apply(state, Started(state.now_s, spec.id))
    return state


class Kept(Generic[Case, Outcome]):
    """Outcomes of finished simulations by case, kept as lines of JSON in a file.

    An incomplete last line, as a crash leaves it, is removed.
    """

    def __init__(
        self, study: str, path: Path | None, case: type[Case], outcome: type[Outcome]
    ) -> None:
        """Read the file of a study, which is made if it does not exist; None keeps nothing."""
        self._path = path
        self.outcomes: dict[Case, Outcome] = {}
        if path is None:
            return
        try:
            path.touch()
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            line = msgspec.json.Decoder(GenericAlias(tuple, (case, outcome)))
            self.outcomes.update(line.decode_lines(whole))
            os.truncate(path, len(whole))
        except (OSError, msgspec.DecodeError) as error:
            raise FileError(f"{path}: expected simulations of {study}, got: {error}") from None

    def add(self, case: Case, outcome: Outcome) -> None:
        """Write the outcome of a case to the file."""
        self.outcomes[case] = outcome
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode((case, outcome)) + b"\n")


def run_all(
    function: Callable[[Case], Outcome],
    cases: Iterable[Case],
    workers: int,
    kept: Kept[Case, Outcome] | None = None,
) -> Iterator[tuple[Case, Outcome]]:
    """Run all cases, which differ, several at once; yield a case with its outcome once it is over.

    Args:
        function: runs a case. It may be a closure: workers are forks, which share its data.
        workers: the number of simulations at once; a single one runs in this process.
        kept: the outcomes of finished cases, which do not run again; others are added.
    """
    finished = {} if kept is None else kept.outcomes
    left = []
    for case in cases:
        if case in finished:
            yield case, finished[case]
        else:
            left.append(case)
    for case, outcome in _computed(function, left, workers):
        if kept is not None:
            kept.add(case, outcome)
        yield case, outcome


def _computed(
    function: Callable[[Case], Outcome], cases: Sequence[Case], workers: int
) -> Iterator[tuple[Case, Outcome]]:
    if workers == 1:
        yield from ((case, function(case)) for case in cases)
        return
    with ProcessPoolExecutor(workers, get_context("fork"), _begin, (function,)) as pool:
        futures = {pool.submit(_run, case): case for case in cases}
        yield from ((futures[future], future.result()) for future in as_completed(futures))


_function: Callable[[Any], Any]
"""The function of a worker of :func:`run_all`."""


def _begin(function: Callable[[Any], Any]) -> None:
    """Begin a worker, which Ctrl-C ends at once."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _function = function


def _run(case: Any) -> Any:
    return _function(case)


class StudyReport:
    """The statements of a study beside its values, and from them the result of the experiment.

    Attributes:
        rows: the compared statements, as JSON.
        wrong: sentences on differences from the record; a study adds its own checks.
    """

    def __init__(
        self, study: str, ours: Mapping[str, float], stated: Iterable[Statement] | None = None
    ) -> None:
        """Compare the statements of a study, all or ``stated``, with its values by key."""
        self.study = study
        self.rows, self.wrong = compare(statements(study) if stated is None else stated, ours)

    def result(
        self,
        values: Mapping[str, Any],
        parts: Iterable[Sequence[str]],
        draw: Callable[[Path], None],
        figures: Path | None,
        under: Sequence[str] = (),
    ) -> Result:
        """Return the result of the experiment.

        Args:
            values: the JSON of the study beside its statements.
            parts: lines below the table of statements, separated by empty lines.
            draw: draws the figures of the study in a folder.
            figures: the folder, or None.
            under: lines that belong to the table of statements.
        """
        lines = [*table(self.rows), *under, *self.wrong]
        for part in parts:
            lines += ["", *part]
        if figures is not None:
            draw(figures)
            lines += ["", f"figures in {figures}"]
        result = {"experiment": self.study, "statements": self.rows, **values, "wrong": self.wrong}
        return result, lines, not self.wrong
