"""An urgent job arrives while a long one holds the machine: ways to let it in, really run."""

import json
import os
import shlex
import shutil
import time
from dataclasses import dataclass
from statistics import median, quantiles


class UrgentError(Exception):
    """A job that did not do what it was to; one sentence."""


CELLS = 96, 96, 64
CASE = f"mpdata run --case gaussian --grid {' '.join(map(str, CELLS))} --every 5"
WAYS = {
    "rigid": "waits for its end",
    "malleable": "takes one of its cores",
    "checkpoint": "stops it; it restarts from its checkpoint",
}
FEWEST, MOST = 3, 6
"""Rounds: as many as separate the waits from those beside a rigid neighbour, in these limits."""


@dataclass(frozen=True)
class Plan:
    """The sizes of the jobs.

    Attributes:
        cores: nodes, of one core each.
        steps, urgent_steps: of the long job and of the urgent one.
        ways: which of :data:`WAYS`.
        round_s: expected time of a round.
        until_s: a round after the first begins only if it ends before this (``time.monotonic``),
            should it take as long as the one before.
        rounds: how many; None for as many as separate the waits.
    """

    cores: int
    steps: int
    urgent_steps: int
    ways: tuple = tuple(WAYS)
    round_s: float = 60.0
    until_s: float = float("inf")
    rounds: int | None = None


def urgent_job(folder, plan, progress, listen=""):
    """Run both jobs in all ways by turns; print the waits; return whether what is shown holds.

    Args:
        folder: of jobs and daemons.
        plan: the sizes.
        progress: prints lines and what runs (``progress.Progress``).
        listen: address of the daemons, for the live page.
    """
    rows = {way: [] for way in plan.ways}
    most = plan.rounds or MOST
    for number in range(1, most + 1):
        begun = time.monotonic()
        for way in plan.ways:
            what = f"round {number}, {way} neighbour"
            with progress.doing(what, plan.round_s / len(plan.ways)):
                rows[way].append(_run(folder / way, way, plan, progress, listen))
        late = 2 * time.monotonic() - begun > plan.until_s
        enough = plan.rounds is None and number >= FEWEST and separate(rows)
        if number < most and (enough or late):
            break
    return shown(rows, progress, folder)


def separate(rows):
    """Return whether waits beside a rigid neighbour and others differ by more than they vary.

    The ranges do not overlap, and the middle half of each is narrower than the difference of the
    medians, so that one run that others disturbed does not decide.
    """
    waits = {way: [row["wait_s"] for row in of] for way, of in rows.items()}
    widest_s = max(map(middle_half_s, waits.values()))
    rigid = waits.pop("rigid")
    return all(
        min(rigid) > max(own) and median(rigid) - median(own) > widest_s for own in waits.values()
    )


def middle_half_s(waits):
    """Return the difference of the quartiles."""
    low, _, high = quantiles(waits, n=4, method="inclusive") if len(waits) > 1 else (0.0, 0.0, 0.0)
    return high - low


def shown(rows, say, folder):
    """Print the waits; return whether they differ by more than their ranges, with equal bits."""
    number = len(rows["rigid"])
    say(f"   {'neighbour':11s} {'the urgent job':42s} {'its wait':>20s}   n = {number}")
    for way, of in rows.items():
        waits = sorted(row["wait_s"] for row in of)
        cell = f"{median(waits):.1f} s"
        if number > 1:
            cell += f" ({waits[0]:.1f}-{waits[-1]:.1f})"
        say(f"   {way:11s} {WAYS[way]:42s} {cell:>20s}")
    runs = [row for of in rows.values() for row in of]
    same = all(len({run["answers"][name] for run in runs}) == 1 for name in ("long", "urgent"))
    apart = separate(rows)
    text = "The ranges do not overlap, and differ by more than the middle half of each."
    if not apart:
        text = "The waits do NOT differ by more than they vary."
    say(f"   {text if number > 1 else 'One run of each: there was no time for more.'}")
    bits = "the same bits" if same else "DIFFERENT BITS"
    say(f"   Results of both jobs: {bits} in all {len(runs)} runs.")
    (folder / "urgent.json").write_text(json.dumps(rows, indent=1))
    resized = all(row["resizes"] >= 1 for row in rows["malleable"])
    return same and apart and resized


def _run(folder, way, plan, progress, listen):
    """Run both jobs one way; return the urgent one's wait (s), and what came of the other."""
    from rms.studies.embedded import embedded_daemon

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kept = shlex.quote(str(folder / "checkpoints"))
    every = max(1, plan.steps // 10)
    more = f"--checkpoint-every {every} --checkpoint-dir {kept}" if way == "checkpoint" else ""
    options = ["--engine", "local", "--nodes", str(plan.cores)]
    sizes = (1 if way == "malleable" else plan.cores), plan.cores
    lengths = plan.steps, plan.urgent_steps
    most = dict(zip(("long", "urgent"), lengths, strict=True))

    def report(rows):
        steps = {row.name: row.step for row in rows}
        words = [f"{name} job at step {step} of {most[name]}" for name, step in steps.items()]
        progress.detail = ", ".join(words)

    with embedded_daemon(options, folder, local=True, listen=listen) as server:
        _, urgent, last = let_in(server, folder, lengths, sizes, more, report=report)
    return {
        "wait_s": urgent.start_s - urgent.submit_s,
        "during": urgent.start_s < last.end_s,
        "resizes": len(last.resizes),
        "answers": {
            name: json.loads((folder / f"{name}.json").read_text())["sha256"]
            for name in ("long", "urgent")
        },
    }


def let_in(server, folder, lengths, sizes, more="", launches="node", report=lambda rows: None):
    """Run a long job, and an urgent one of one node after a fifth of it; return their rows.

    Args:
        lengths: steps of the long job and of the urgent one.
        sizes: nodes of the long job, at least and at most.
        more: options of its program; with some it is stopped, and restarted from its checkpoint.
        launches: of both, see :func:`submit`.
        report: called now and then with the rows of all jobs.

    Raises:
        UrgentError: a job did not end well.
    """
    from rms.client.commands import jobs
    from rms.client.connection import ask
    from rms.studies.embedded import wait_until_over
    from rms.wire.users import JobIds

    steps, urgent_steps = lengths
    first = submit(server, folder, "long", sizes, steps, more, launches)
    while (row := jobs(server, first)[0]).step < steps // 5:
        report([row])
        if row.end_s is not None:
            raise UrgentError(f"the long job ended early: {row.state} {row.reason}")
        time.sleep(0.05)
    second, last = submit(server, folder, "urgent", (1, 1), urgent_steps, "", launches), first
    if more:
        ask(JobIds, server, "POST", "/cancel", {"id": first})
        last = submit(server, folder, "long", sizes, steps, f"{more} --restart", launches)
    rows = {row.id: row for row in wait_until_over(server, report)}
    states = {rows[second].state, rows[last].state}
    if states != {"COMPLETED"}:
        raise UrgentError(f"expected both jobs COMPLETED, got {states} (see {folder})")
    return rows[first], rows[second], rows[last]


def submit(server, folder, name, sizes, steps, more="", launches="node", mode=None):
    """Submit a run of mpdata; return its id.

    Args:
        sizes: its nodes, at least and at most: malleable where they differ.
        launches: ``node``: each node's ranks are a launch of their own, so that one can be let go
            without a new world; ``one``: all ranks are one.
        mode: of the job; None for that of its sizes.
    """
    from rms.client import commands
    from rms.wire.users import Options

    line = f"{CASE} --steps {steps} --json {name}.json {more}"
    text = commands.script_of(["mpirun", *shlex.split(line)])
    options = Options(mode=mode or ("fixed" if sizes[0] == sizes[1] else "malleable"), nodes=sizes)
    environment = os.environ | ({"DMR_LAUNCHES": "node"} if launches == "node" else {})
    return commands.submit(server, text, name, options, environment, folder).ids[0]
