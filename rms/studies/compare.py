"""``rms compare``: the same scripts for real, once per mode, each on a fresh embedded RMS.

Before the first mode each script runs once, counted nowhere: compiled code, imports and input files
are then in the caches for every mode alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rms.client.commands import read_script, submit
from rms.client.connection import ask
from rms.core.joules import BalanceError, check_balance
from rms.core.model import Mode
from rms.formats.ids import parse_array
from rms.formats.jobscript import Options, parse_script
from rms.studies.embedded import EmbeddedError, embedded_daemon, wait_until_over
from rms.wire.users import OVER, Books, BooksAnswer, HistoryEntry, JobRow, NodeRow, NodeSpan

WARM_UP = "warm-up"

PROGRESS_S = 5.0
"""The least time between two progress lines of a mode."""

TAIL_BYTES = 4096
"""Size of the end of a failed job's output that is searched for its last line."""


class CompareError(Exception):
    """A failed comparison, or energy books that do not balance; one sentence."""


@dataclass(frozen=True)
class Setup:
    """On what and how the scripts of a comparison run.

    Attributes:
        engine: of the embedded RMS: ``local``, ``slurm-pilot`` or ``slurm``.
        nodes: how many of the nodes there are take part, None for all.
        policy: what the scheduler does with all jobs.
        delay_s: scripts are submitted in order, so far apart.
        folder: each mode's jobs run in a folder of their own in it.
        env: environment of the jobs.
        listen: address of the embedded RMS, "" for any.
    """

    engine: str
    nodes: int | None
    policy: str
    delay_s: float
    folder: Path
    env: Mapping[str, str]
    listen: str = ""

    @property
    def serve(self) -> list[str]:
        """The options of ``rms serve``."""
        nodes = [] if self.nodes is None else ["--nodes", str(self.nodes)]
        return ["--engine", self.engine, "--policy", self.policy, *nodes]


def compare(
    scripts: Sequence[Path], modes: Sequence[Mode], setup: Setup, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the scripts once per mode; return the JSON of ``rms compare`` (CLI.md).

    Args:
        scripts: job scripts.
        say: called with each progress line.

    Raises:
        ScriptError: a script that cannot be run; nothing has run.
        CompareError: no daemon started, a job of the warm-up failed, or the energy books do not
            balance.
    """
    for script in scripts:
        parse_script(script)  # what is wrong with it is said before anything runs
    try:
        warm_up = _warm_up(scripts, setup, say)
        rows = [_one_mode(scripts, mode, setup, say) for mode in modes]
    except (EmbeddedError, BalanceError) as error:
        raise CompareError(str(error)) from None
    return {
        "engine": setup.engine,
        "nodes": len(rows[0]["nodes"]),
        "policy": setup.policy,
        "power_source": " and ".join(dict.fromkeys(row.pop("power_source") for row in rows)),
        "warm_up": warm_up,
        "rows": rows,
    }


class _Progress:
    """Prints how many jobs of a part of the comparison have ended, at most every few seconds."""

    def __init__(self, part: str, say: Callable[[str], None]) -> None:
        self._part, self._say = part, say
        self._begun_s = self._last_s = time.monotonic()
        self._ended = 0
        say(f"{part} ...")

    def __call__(self, rows: Sequence[JobRow]) -> None:
        """Print a line where more jobs have ended than in the last one."""
        ended, now_s = sum(row.state in OVER for row in rows), time.monotonic()
        complete = ended == len(rows)
        if ended > self._ended and (complete or now_s >= self._last_s + PROGRESS_S):
            self._ended, self._last_s = ended, now_s
            at_s = now_s - self._begun_s
            self._say(f"{self._part}: {ended} of {len(rows)} jobs ended, {at_s:.1f} s")


def _refuse_failed(rows: Sequence[JobRow]) -> None:
    """Raise CompareError with the last line of output of the first job that did not complete."""
    for job in rows:
        if job.state in OVER and job.state != "COMPLETED":
            status = "" if job.exit_code is None else f" with exit status {job.exit_code}"
            raise CompareError(
                f"expected the warm-up job {job.name} to complete, got {job.state}{status}: "
                f"{_last_line(job) or job.reason or 'no output'} ({job.output})"
            )


def _last_line(job: JobRow) -> str:
    """Return the last nonblank line of a job's own output, or ""."""
    try:
        with Path(job.output).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    own = [line for line in lines if line.strip() and not line.startswith("rms: ")]
    return own[-1].strip() if own else ""


def _warm_up(scripts: Sequence[Path], setup: Setup, say: Callable[[str], None]) -> dict[str, Any]:
    """Run each script once, of an array its first task, at the largest size, which is the fastest.

    Returns:
        How many jobs ran, for how long all together, and in which states they ended.

    Raises:
        CompareError: a job failed.
    """
    progress = _Progress("warm-up", say)

    def report(rows: Sequence[JobRow]) -> None:
        _refuse_failed(rows)
        progress(rows)

    folder, local = setup.folder / WARM_UP, setup.engine == "local"
    begun = time.monotonic()
    with embedded_daemon(setup.serve, folder, local=local, listen=setup.listen) as server:
        nodes = len(ask(list[NodeRow], server, "GET", "/nodes"))
        for script in dict.fromkeys(scripts):
            stated = parse_script(script).options
            size = min(stated.sizes[1], nodes)
            array = stated.array and str(parse_array(stated.array).indices[0])
            options = Options(array, (size, size), preferred=size, mode=Mode.FIXED)
            submit(server, read_script(script), script.stem, options, setup.env, folder)
        jobs = wait_until_over(server, report)
    return {
        "jobs": len(jobs),
        "time_s": time.monotonic() - begun,
        "states": [job.state for job in jobs],
    }


def _one_mode(
    scripts: Sequence[Path], mode: Mode, setup: Setup, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the scripts in a mode; return its row."""
    progress = _Progress(f"mode {mode}", say)
    folder, local = setup.folder / str(mode), setup.engine == "local"
    with embedded_daemon(setup.serve, folder, local=local, listen=setup.listen) as server:
        nodes = len(ask(list[NodeRow], server, "GET", "/nodes"))
        for number, script in enumerate(scripts):
            if number:
                time.sleep(setup.delay_s)
            options = _fitting(script, mode, nodes)
            submit(server, read_script(script), script.stem, options, setup.env, folder)
        jobs = wait_until_over(server, progress)
        _trace_resizes(server, jobs)
        return _row(mode, jobs, ask(BooksAnswer, server, "GET", "/books"))


def _fitting(script: Path, mode: Mode, nodes: int) -> Options:
    """Return the mode, and sizes cut down to the nodes there are: all modes run the same jobs."""
    low, high = parse_script(script).options.sizes
    return Options(mode=mode, nodes=(min(low, nodes), min(high, nodes)))


def _trace_resizes(server: str, jobs: Sequence[JobRow]) -> None:
    """Refuse a resize that no journalled decision asked for, or that led to another size."""
    for job in jobs:
        history = ask(list[HistoryEntry], server, "GET", f"/history/{job.id}")
        decided = [entry.size for entry in history if entry.kind == "resize"]
        for done in job.resizes:
            if done.to_ranks not in decided or done.from_ranks == done.to_ranks:
                raise CompareError(
                    f"job {job.id}: expected a resize that was decided ({decided}), got "
                    f"{done.from_ranks} -> {done.to_ranks}"
                )
            decided = decided[decided.index(done.to_ranks) + 1 :]


def _row(mode: Mode, jobs: Sequence[JobRow], books: BooksAnswer) -> dict[str, Any]:
    """Return one row; the horizon is first submit to last end.

    Raises:
        BalanceError: the energies of jobs, owners and nodes do not add up.
    """
    energy = books.closed
    assert energy is not None, "the books are closed when the last job has ended"
    first = min(job.submit_s for job in jobs)
    last = max(_end_s(job) for job in jobs)
    _check_books(jobs, energy)
    return {
        "mode": str(mode),
        "power_source": energy.power_source,
        "time_s": last - first,
        "busy_j": energy.busy_j,
        "idle_j": energy.idle_j,
        "off_j": energy.off_j,
        "boot_j": energy.boot_j,
        "cluster_j": energy.cluster_j,
        "allocation": energy.busy_node_s / (len(books.nodes) * (last - first)),
        "jobs": [_job(job, first) for job in jobs],
        "spans": _shifted(books.spans, first, last),
        "power_spans": _shifted(books.power_spans, first, last),
        "power_w": [[at - first, watts] for at, watts in books.power_w if at <= last],
        "nodes": books.nodes,
        "note": _why_no_resize(mode, len(books.nodes), jobs),
    }


def _shifted(spans: Sequence[NodeSpan], first: float, last: float) -> list[dict[str, Any]]:
    """Return spans as JSON, times since the first submit."""
    return [
        {
            "node": span.node,
            "job": span.job,
            "start_s": span.start_s - first,
            "end_s": (last if span.end_s is None else span.end_s) - first,
        }
        for span in spans
    ]


def _job(job: JobRow, first: float) -> dict[str, Any]:
    """Return the part of a row that is about one job."""
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "start_s": None if job.start_s is None else job.start_s - first,
        "end_s": _end_s(job) - first,
        "energy_j": job.energy_j,
        "sha256": job.answer,
        "resizes": [
            {
                "at_s": resize.at_s - first,
                "from": resize.from_ranks,
                "to": resize.to_ranks,
                "bytes": resize.bytes,
                "stall_s": resize.stall_s,
            }
            for resize in job.resizes
        ],
    }


def _end_s(job: JobRow) -> float:
    assert job.end_s is not None, "all jobs are over"
    return job.end_s


def _why_no_resize(mode: Mode, nodes: int, jobs: Sequence[JobRow]) -> str:
    """Return why no job was resized, "" if one was."""
    if any(job.resizes for job in jobs):
        return ""
    if not mode.resizable:
        return f"no resize: a {mode} job keeps its size"
    if nodes == 1:
        return "no resize: one node leaves nothing to share"
    if mode is Mode.MALLEABLE and all(job.nodes_max + 1 > nodes for job in jobs):
        return (
            f"no resize: every job starts at {max(job.nodes_max for job in jobs)} of {nodes} "
            "nodes, which narrowing a running one does not free"
        )
    return "no resize: the policy saw nothing to gain"


def _check_books(jobs: Sequence[JobRow], energy: Books) -> None:
    """Refuse books that do not balance: by job, by owner and node by node, all the same."""
    of_jobs = sum(job.energy_j for job in jobs)
    owned = energy.busy_j + energy.tasks_j + energy.idle_j + energy.off_j + energy.boot_j
    check_balance("jobs' energies to add up to busy", of_jobs, energy.busy_j, energy.cluster_j)
    check_balance(
        "busy, idle, off and boot to add up to the cluster's",
        owned,
        energy.cluster_j,
        energy.cluster_j,
    )


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the paper's table (Iserte & Rojek, tables 3 and 4) as lines."""
    lines = ["mode       time [s]  busy [J]  idle [J]  cluster [J]  alloc. [%]  resizes  completed"]
    for row in result["rows"]:
        jobs, resizes = row["jobs"], sum(len(job["resizes"]) for job in row["jobs"])
        done = sum(job["state"] == "COMPLETED" for job in jobs)
        lines.append(
            f"{row['mode']:9s} {row['time_s']:9.1f} {row['busy_j']:9.0f} {row['idle_j']:9.0f} "
            f"{row['cluster_j']:12.0f} {100 * row['allocation']:11.1f} {resizes:8d} "
            f"{done:4d} of {len(jobs)}"
        )
    warm_up = result["warm_up"]
    lines.append(
        f"Before the first mode each script ran once ({warm_up['jobs']} jobs, "
        f"{warm_up['time_s']:.1f} s), not counted: every mode starts with the same caches."
    )
    lines += [f"{row['mode']}: {row['note']}" for row in result["rows"] if row["note"]]
    if result.get("oversubscribed"):
        lines.append("Several nodes are one machine here: states and books count, times do not.")
    lines.append(
        "Power is modelled, not measured: a busy core draws its static and dynamic power at "
        "efficiency 1, an idle one its idle power."
        if result["power_source"] == "model"
        else f"Power is from {result['power_source']}."
    )
    return lines


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw who held which node when, and the power of the cluster, for each mode."""
    from rms.plots import History, side_by_side

    runs = []
    for row in result["rows"]:
        spans, asleep = (
            [NodeSpan(**span) for span in row.get(key, ())] for key in ("spans", "power_spans")
        )
        history = History(row["nodes"], spans, row["power_w"], row["time_s"], 0.0, asleep)
        runs.append((f"{row['mode']}: {row['time_s']:.1f} s", history, row["cluster_j"]))
    side_by_side(runs, path, result["power_source"])


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return what a comparison should not show: jobs that failed, answers that differ by mode."""
    found = []
    answers: dict[str, set[str]] = {}
    for row in result["rows"]:
        for job in row["jobs"]:
            if job["state"] != "COMPLETED":
                found.append(f"job {job['id']} of mode {row['mode']} is {job['state']}")
            answers.setdefault(job["id"], set()).add(job["sha256"])
    found += [
        f"job {job} has other bits in other modes" for job, a in answers.items() if len(a) > 1
    ]
    return found
