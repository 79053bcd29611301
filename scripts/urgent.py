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
        say: told each line.
        steps, urgent_steps: of the long and of the urgent job.
        every: steps between checkpoints of the long one.
        listen: address of the daemons, for the live page.
    """
    given = cores, every, listen
    _run(folder / "warm-up", "malleable", (1500, 20), *given)  # code and files into the caches
    found = {way: _run(folder / way, way, (steps, urgent_steps), *given) for way in WAYS}
    say("   " + COLUMNS.format("neighbour", "the urgent job", "its wait", "its end", "neighbour's"))
    alone = found["rigid"]["long_s"]
    for way, words in WAYS.items():
        row = found[way]
        cost = f"{row['long_s'] - alone:+.1f} s" if way != "rigid" else f"{alone:.1f} s"
        wait, end = f"{row['wait_s']:.1f} s", f"{row['urgent_s']:.1f} s"
        say("   " + COLUMNS.format(way, words, wait, end, cost))
    answers = {
        name: {row["answers"][name] for row in found.values()} for name in ("long", "urgent")
    }
    same = all(len(each) == 1 for each in answers.values())
    say(f"   All three ways: {'the same bits' if same else 'DIFFERENT BITS'} of both jobs.")
    (folder / "urgent.json").write_text(json.dumps(found, indent=1))
    return same and found["malleable"]["resizes"] >= 1


def _run(folder, way, lengths, cores, every, listen):
    """Run both jobs one way; return seconds since their submission, and answers.

    Args:
        lengths: steps of the long job and of the urgent one.
    """
    steps, urgent_steps = lengths
    from rms.client.commands import jobs
    from rms.client.connection import ask
    from rms.studies.embedded import embedded_daemon, wait_until_over
    from rms.wire.users import JobIds, Options

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kept = shlex.quote(str(folder / "checkpoints"))
    more = f"--checkpoint-every {every} --checkpoint-dir {kept}" if way == "checkpoint" else ""
    mode = "malleable" if way == "malleable" else "fixed"
    long = Options(mode=mode, nodes=(1 if mode == "malleable" else cores, cores))
    with embedded_daemon(
        ["--engine", "local", "--nodes", str(cores)], folder, local=True, listen=listen
    ) as server:
        first = _submit(server, folder, "long", long, steps, more)
        while (row := jobs(server, first)[0]).step < steps // 5:
            if row.end_s is not None:
                raise UrgentError(f"the long job ended early: {row.state} {row.reason}")
            time.sleep(0.05)
        second = _submit(
            server, folder, "urgent", Options(mode="fixed", nodes=(1, 1)), urgent_steps
        )
        again = first
        if way == "checkpoint":
            ask(JobIds, server, "POST", "/cancel", {"id": first})
            again = _submit(server, folder, "long", long, steps, f"{more} --restart")
        rows = {row.id: row for row in wait_until_over(server)}
    urgent, last = rows[second], rows[again]
    states = {row.state for row in (urgent, last)}
    if states != {"COMPLETED"}:
        raise UrgentError(f"expected both jobs COMPLETED, got {states} (see {folder})")
    return {
        "wait_s": urgent.start_s - urgent.submit_s,
        "urgent_s": urgent.end_s - urgent.submit_s,
        "long_s": last.end_s - rows[first].submit_s,
        "resizes": len(last.resizes),
        "answers": {name: _answer(folder / f"{name}.json") for name in ("long", "urgent")},
    }


def _submit(server, folder, name, options, steps, more=""):
    from rms.client.commands import script_of, submit

    line = f"{CASE} --steps {steps} --json {name}.json {more}"
    text = script_of(["mpirun", *shlex.split(line)])
    # Each node's ranks are a launch of their own, so that one can be let go without a new world.
    environment = {**os.environ, "DMR_LAUNCHES": "node"}
    return submit(server, text, name, options, environment, folder).ids[0]


def _answer(path):
    return json.loads(path.read_text())["sha256"]
