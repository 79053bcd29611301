"""An urgent job arrives while a long one holds the machine: three ways to let it in, really run."""

import json
import os
import shlex
import shutil
import time


class UrgentError(Exception):
    """A job that did not do what it was to; one sentence."""


CASE = "mpdata run --case gaussian --grid 96 96 64 --every 5"
WAYS = {
    "rigid": "waits for its end",
    "checkpoint": "stops it; restarts it from its checkpoint",
    "malleable": "takes a core of it",
}
COLUMNS = "{:11s} {:42s} {:>11s} {:>11s} {:>11s}"


def urgent_job(folder, cores, say, *, steps=5500, urgent_steps=500, every=500, listen=""):
    """Run all three ways and print the table; return whether all jobs gave the same answers.

    Args:
        folder: of jobs and daemons.
        cores: nodes, of one core each.
        say: called with each line.
        steps, urgent_steps: of the long and of the urgent job.
        every: steps between checkpoints of the long one.
        listen: address of the daemons, for the live page.
    """
    more = cores, every, listen
    _run(folder / "warm-up", "malleable", (1500, 20), *more)  # code and files into the caches
    rows = {way: _run(folder / way, way, (steps, urgent_steps), *more) for way in WAYS}
    say("   " + COLUMNS.format("neighbour", "the urgent job", "its wait", "its end", "neighbour's"))
    alone = rows["rigid"]["long_s"]
    for way, words in WAYS.items():
        row = rows[way]
        cost = f"{row['long_s'] - alone:+.1f} s" if way != "rigid" else f"{alone:.1f} s"
        wait, end = f"{row['wait_s']:.1f} s", f"{row['urgent_s']:.1f} s"
        say("   " + COLUMNS.format(way, words, wait, end, cost))
    answers = {name: {row["answers"][name] for row in rows.values()} for name in ("long", "urgent")}
    same = all(len(each) == 1 for each in answers.values())
    say(f"   All three ways: {'the same bits' if same else 'DIFFERENT BITS'} of both jobs.")
    (folder / "urgent.json").write_text(json.dumps(rows, indent=1))
    return same and rows["malleable"]["resizes"] >= 1


def _run(folder, way, lengths, cores, every, listen):
    """Run both jobs one way; return seconds since their submission, and answers.

    Args:
        lengths: steps of the long job and of the urgent one.
    """
    from rms.studies.embedded import embedded_daemon

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kept = shlex.quote(str(folder / "checkpoints"))
    more = f"--checkpoint-every {every} --checkpoint-dir {kept}" if way == "checkpoint" else ""
    options = ["--engine", "local", "--nodes", str(cores)]
    least = 1 if way == "malleable" else cores
    with embedded_daemon(options, folder, local=True, listen=listen) as server:
        first, urgent, last = let_in(server, folder, lengths, (least, cores), more)
    return {
        "wait_s": urgent.start_s - urgent.submit_s,
        "urgent_s": urgent.end_s - urgent.submit_s,
        "long_s": last.end_s - first.submit_s,
        "resizes": len(last.resizes),
        "answers": {
            name: json.loads((folder / f"{name}.json").read_text())["sha256"]
            for name in ("long", "urgent")
        },
    }


def let_in(server, folder, lengths, sizes, more="", launches="node"):
    """Run a long job, and an urgent one of one node after a fifth of it; return their rows.

    Args:
        lengths: steps of the long job and of the urgent one.
        sizes: nodes of the long job, at least and at most.
        more: options of its program; with some it is stopped, and restarted from its checkpoint.
        launches: of both, see :func:`submit`.

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
        if row.end_s is not None:
            raise UrgentError(f"the long job ended early: {row.state} {row.reason}")
        time.sleep(0.05)
    second, last = submit(server, folder, "urgent", (1, 1), urgent_steps, "", launches), first
    if more:
        ask(JobIds, server, "POST", "/cancel", {"id": first})
        last = submit(server, folder, "long", sizes, steps, f"{more} --restart", launches)
    rows = {row.id: row for row in wait_until_over(server)}
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
