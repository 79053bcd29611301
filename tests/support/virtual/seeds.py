"""Worlds by the thousand: seeds are played, and the acts of one that fails are made few.

``scripts/simulate-faults`` runs it. Printed are the hours, jobs and faults of all worlds, and how
many in a minute. A seed that fails is printed with the fewest acts that still fail, as a test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from virtual import acts
from virtual.world import World, played

HOURS = 2.0
SHRINK_S = 120.0
"""Time to make a failing sequence shorter."""
NOTHING = "nothing is wrong"
MOST_SHOWN = 3
"""Failing seeds that are made shorter."""


@dataclass
class Outcome:
    """What has come of a seed.

    Attributes:
        hours: of cluster time.
        jobs: submitted ones.
        counted: faults, requests and ends of jobs by kind.
        wrong: what must not be.
    """

    seed: int
    hours: float
    jobs: int
    counted: Counter[str]
    wrong: list[str]


Made = Callable[[int, float], tuple[acts.Setup, list[acts.Act]]]


def outcome(seed: int, hours: float, folder: str, made: Made = acts.made) -> Outcome:
    """Play a seed, with its files in a folder."""
    setup, sequence = made(seed, hours)
    try:
        world = played(sequence, setup, seed, folder)
    except Exception as error:  # of the daemon, or of the world itself
        return Outcome(seed, 0.0, 0, Counter(), [f"{type(error).__name__}: {error}"])
    return Outcome(seed, world.loop.time() / 3600.0, len(world.plans), world.counted, world.wrong)


def outcomes(
    seeds: Sequence[int], hours: float, processes: int, made: Made = acts.made
) -> Iterator[Outcome]:
    """Yield what has come of seeds, as they are over.

    What is left half-way is ended, and its files are removed.
    """
    with tempfile.TemporaryDirectory(prefix="seeds-", dir=memory_folder()) as folder:
        if processes == 1:
            for seed in seeds:
                yield outcome(seed, hours, folder, made)
            return
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        try:
            left = iter(seeds)
            some = islice(left, processes)
            running = {pool.submit(outcome, seed, hours, folder, made) for seed in some}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for seed in islice(left, len(done)):
                    running.add(pool.submit(outcome, seed, hours, folder, made))
                for one in done:
                    yield one.result()
        finally:
            for process in multiprocessing.active_children():
                process.kill()
            pool.shutdown()


def memory_folder() -> str | None:
    """Return a folder in memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# --- a failing seed -------------------------------------------------------------------------------


def kind(sentence: str) -> str:
    """Return a sentence without its numbers, names and times."""
    return re.sub(r"\d+", "N", sentence.partition("\n")[0])


def shrunk(
    sequence: Sequence[acts.Act], fails: Callable[[Sequence[acts.Act]], bool], until_s: float
) -> list[acts.Act]:
    """Return fewer acts that fail as well (Zeller and Hildebrandt, IEEE TSE 28(2), 2002: ddmin).

    Args:
        until_s: the monotonic clock at which it has to be over.
    """
    left, parts = list(sequence), 2
    while len(left) > 1 and time.monotonic() < until_s:
        size = -(-len(left) // parts)
        for first in range(0, len(left), size):
            rest = left[:first] + left[first + size :]
            if time.monotonic() < until_s and fails(rest):
                left, parts = rest, max(2, parts - 1)
                break
        else:
            if parts >= len(left):
                break
            parts = min(len(left), 2 * parts)
    return left


def report(seed: int, hours: float, seconds: float = SHRINK_S, made: Made = acts.made) -> str:
    """Return a failing seed as a test, as short as can be had in so many seconds."""
    setup, sequence = made(seed, hours)
    kinds: set[str] = set()
    last: list[World] = []

    def fails(some: Sequence[acts.Act]) -> bool:
        world = played(some, setup, seed, memory_folder())
        now = {kind(words) for words in world.wrong}
        if not kinds:
            kinds.update(now)
        if kinds & now:
            last[:] = [world]
        return bool(kinds & now)

    if not fails(sequence):
        return f"seed {seed}: {NOTHING}"
    short = shrunk(sequence, fails, time.monotonic() + seconds)
    (world,) = last
    lines = [f"seed {seed}, {len(short)} of {len(sequence)} acts:", *world.wrong[:8], ""]
    lines += ["    the daemon's log:", *[f"    {line}" for line in world.logged[-25:]], ""]
    lines += [f"def test_seed_{seed}() -> None:", "    sequence: list[acts.Act] = ["]
    lines += [f"        {source(act)}," for act in short]
    lines += ["    ]", f"    assert not played(sequence, {source(setup)}, {seed}).wrong"]
    return "\n".join(lines)


def source(value: object) -> str:
    """Return the Python source of an act or a setup."""
    return re.sub(r"\b([A-Z]\w+\()", r"acts.\1", repr(value)).replace("=inf", "=math.inf")


# --- the command ----------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Play seeds; return 1 if one of them fails."""
    options = argparse.ArgumentParser(prog="scripts/simulate-faults", description=__doc__)
    options.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (100)")
    options.add_argument("--first", type=int, metavar="SEED", help="the first one (random)")
    options.add_argument(
        "--hours", type=float, default=HOURS, metavar="H", help=f"each ({HOURS:g})"
    )
    options.add_argument("--seconds", type=float, metavar="S", help="begin no seed after that")
    options.add_argument("--replay", type=int, metavar="SEED", help="play one and print its test")
    options.add_argument("--processes", type=int, metavar="N", help="at a time (the cores here)")
    options.add_argument("--until-failure", action="store_true", help="end at the first that fails")
    options.add_argument("--survivors", action="store_true", help="jobs with copies in memory")
    options.add_argument("--broken", action="store_true", help="put faults into the program first")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the counts to a file")
    args = options.parse_args(words)
    for name in ("seeds", "hours", "seconds", "processes"):
        if (number := getattr(args, name)) is not None and number <= 0:
            options.error(f"expected --{name} above 0, got {number:g}")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        options.error(f"expected --json in a folder that exists, got {args.json}")
    made = acts.survivors if args.survivors else acts.made
    if args.replay is not None:
        words_of_it = report(args.replay, args.hours, made=made)
        print(words_of_it)
        return 0 if words_of_it.endswith(NOTHING) else 1
    first = secrets.randbelow(1 << 30) if args.first is None else args.first
    processes = args.processes or len(os.sched_getaffinity(0))
    if args.broken:
        from virtual.broken import table

        return table(args.seeds, args.hours, processes)
    begun, played_seeds, hours, jobs = time.monotonic(), 0, 0.0, 0
    counted, failed = Counter[str](), list[Outcome]()
    print(f"seeds {first} to {first + args.seeds - 1}, {args.hours:g} h of users and faults each")
    for one in outcomes(range(first, first + args.seeds), args.hours, processes, made):
        played_seeds, hours, jobs = played_seeds + 1, hours + one.hours, jobs + one.jobs
        counted.update(one.counted)
        if one.wrong:
            failed.append(one)
            print(f"seed {one.seed}: {one.wrong[0]}", flush=True)
        if args.until_failure and failed:
            break
        if args.seconds is not None and time.monotonic() > begun + args.seconds:
            break
    took_s = time.monotonic() - begun
    for name, number in sorted(counted.items()):
        print(f"{number:9d}  {name}")
    print(
        f"{played_seeds} seeds, {hours:.0f} h of cluster time, {jobs} jobs in {took_s:.0f} s: "
        f"{hours * 60 / took_s:.0f} h and {jobs * 60 / took_s:.0f} jobs a minute; "
        f"{len(failed)} seeds fail"
    )
    if args.json:
        sizes = {"seeds": played_seeds, "hours": hours, "jobs": jobs, "seconds": took_s}
        wrong = [{"seed": one.seed, "wrong": one.wrong} for one in failed]
        found = {**sizes, "counted": counted, "failed": wrong}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for one in failed[: 0 if args.until_failure else MOST_SHOWN]:
        print(f"\n{report(one.seed, args.hours, made=made)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    # An exit by an exception ends the processes that play seeds.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(130))
    sys.exit(main())
