"""``rms profile``: time, power and energy of a command by size, kept for planning."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from rms.cli.options import add_engine, check_engine, local_nodes
from rms.client.connection import ServerError, ask, server_address
from rms.client.launch import strip_options
from rms.formats import profiles
from rms.formats.config import read_cluster
from rms.formats.profiles import MALLEABLE, SEPARATE, WAYS, Point, Profile, ProfileError, Program
from rms.launch.local import hardware
from rms.power import frequency
from rms.power.choice import MeterChoice
from rms.power.frequency import FrequencyError
from rms.power.meter import MeterError
from rms.studies import bandwidth
from rms.studies import profile as study
from rms.wire.files import state_folder
from rms.wire.mpiexec import LAUNCHERS
from rms.wire.terminal import (
    CommandError,
    at_least,
    check_writable,
    columns,
    positive,
    publish,
    refuse_on,
    say,
)
from rms.wire.users import AcctAnswer


def add_profile(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Run a command on 1, 2, 4, ... nodes, always of a fresh embedded RMS, after one run that "
        "is counted nowhere, and keep time, power and energy by size for rms submit, rms simulate "
        "(speedup = {profile = NAME}) and the policies. A profile holds for the same "
        "words, the same program file and the same machine (see rms submit --help). With --mode "
        "malleable the program (one on dmr) runs once and is resized from size to size."
    )
    add = command.add_argument
    add("name", nargs="?", metavar="NAME", help="with --show: a profile, or its file")
    add("--nodes", metavar="1,2,4", help="sizes (default: doublings, and all nodes there are)")
    add("--repeat", type=at_least(1), default=1, metavar="K", help="runs at every size (default 1)")
    add("--mode", choices=WAYS, default=SEPARATE, help="how it is measured (default: separate)")
    add(
        "--bandwidth",
        action="store_true",
        help="measure too what memory bandwidth one process asks for: copies of the command side "
        "by side, one a core of this machine, and beside probes of memory bandwidth, in five "
        "rounds (or --repeat, if more)",
    )
    add("--window", type=positive, default=5.0, metavar="S", help="at a size of a malleable run")
    add("--show", action="store_true", help="print kept profiles, run nothing")
    add(
        "--job",
        metavar="ID",
        help="print the energy of a step of this job at each of its sizes, by the books of the "
        "daemon (--server): beside other jobs, run nothing",
    )
    add("--slowdown", type=positive, default=1.1, metavar="X", help="bound of an operating point")
    add_engine(add)
    add("--cluster", type=Path, metavar="FILE.toml", help="nodes of rms serve, GPUs for instance")
    add("--meters", default="auto", metavar="NAMES", help="as of rms serve")
    add("--meter-command", metavar="CMD", help="as of rms serve")
    add("--meter-limit", type=positive, metavar="W", help="as of rms serve")
    add(
        "--mhz",
        default="auto",
        metavar="auto|none|F[,F...]",
        help="clocks of separate runs beside the present ones: auto takes lowest, middle and "
        "highest, where this user may set them",
    )
    add("--save-as", metavar="NAME", help="how the profile is called (default: as the program)")
    add("--out", type=Path, metavar="FILE.json", help="keep it there instead")
    add("--figure", type=Path, metavar="FILE.png", help="draw time and energy over nodes")
    add("--folder", type=Path, default=Path("profile"), metavar="D", help="output of the runs")


def profile(arguments: argparse.Namespace) -> int:
    """``rms profile -- COMMAND``: measure, keep and print; ``--show``: print."""
    base = profiles.folder(os.environ, state_folder(os.environ))
    if arguments.job is not None:
        return _of_job(arguments)
    if arguments.window < 0.5:
        raise CommandError(f"expected --window of at least 0.5, got {arguments.window:g}")
    if arguments.slowdown < 1.0:
        raise CommandError(f"expected --slowdown of at least 1, got {arguments.slowdown:g}")
    for target, option in ((arguments.out, "--out"), (arguments.figure, "--figure")):
        problem = check_writable(target, option, regular=option == "--out")
        if problem is not None:
            raise CommandError(problem)
    if arguments.show and arguments.name is None and not arguments.command_line:
        return _list(arguments, base)
    shown = _kept(arguments, base) if arguments.show else _measure(arguments, base)
    if arguments.figure is not None:
        study.draw(shown, arguments.figure)
    slowdown = arguments.slowdown
    lines = study.lines_of(shown, slowdown)
    publish(arguments.json, study.as_json(shown, slowdown), lines)
    return 0


def _of_job(arguments: argparse.Namespace) -> int:
    if arguments.command_line or arguments.name is not None or arguments.show:
        raise CommandError("expected --job ID alone, got a command, a name or --show with it")
    server, path = server_address(arguments.server, os.environ), f"/acct?id={quote(arguments.job)}"
    answer = ask(AcctAnswer, server, "GET", path)
    if len(answer.jobs) != 1:
        raise CommandError(f"expected the id of one job, got {arguments.job!r} of several")
    (row,) = answer.jobs
    steps = study.steps_of_job(row, answer.rows)
    if not steps:
        got = "none yet" if row.end_s is None else "none"
        raise CommandError(f"expected a job that reports steps, got {got} of job {row.id}", 1)
    publish(arguments.json, {"job": row.id, "steps": steps}, study.job_lines(steps))
    return 0


def _measure(arguments: argparse.Namespace, base: Path | None) -> Profile:
    program = _program(arguments)
    if arguments.name is not None:
        raise CommandError(f"expected -- COMMAND, got {arguments.name!r} before it")
    kept = profiles.find(base, program, hardware)
    default = profiles.name_of(program.words) if kept is None else kept.name
    name = profiles.check_name(arguments.save_as or default)
    target = arguments.out
    if target is None:
        if base is None:
            raise CommandError("expected a folder in RMS_PROFILES, or --out FILE.json, got neither")
        target = profiles.path_of(base, name, program, hardware())
    old = profiles.read(target) if target.exists() else None
    setup = _setup(arguments, program)
    shared = None
    with refuse_on(FrequencyError, ServerError, exit_code=1):
        points, steps = _points_of(setup, arguments)
        if arguments.bandwidth:  # one copy on every core, without energy
            options = ["--meters", "none"]
            copies = replace(setup, sizes=(local_nodes(None),), serve=options, metered=False)
            shared = bandwidth.measure(copies)
    date = time.strftime("%Y-%m-%d %H:%M")
    new = Profile(name, program, hardware(), tuple(points), steps, date)
    merged = profiles.merged(old, profiles.with_bandwidth(new, shared))
    profiles.write(target, merged)
    return merged


def _setup(arguments: argparse.Namespace, program: Program) -> study.ProfilingSetup:
    check_engine(arguments.engine)
    if arguments.bandwidth and (arguments.engine != "local" or arguments.cluster is not None):
        got = "--cluster" if arguments.engine == "local" else f"--engine {arguments.engine}"
        raise CommandError(f"expected --bandwidth with the cores of this machine, got {got}")
    serve = ["--meters", arguments.meters]
    if arguments.meter_command is not None:
        serve += ["--meter-command", arguments.meter_command]
    if arguments.meter_limit is not None:
        serve += ["--meter-limit", str(arguments.meter_limit)]
    nodes = None
    with refuse_on(MeterError):
        meters = MeterChoice.parse(arguments.meters, arguments.meter_command, arguments.meter_limit)
        if arguments.engine == "local":
            meters.check_command()
        if arguments.cluster is not None:
            serve += ["--cluster", str(arguments.cluster.absolute())]
            nodes = len(read_cluster(arguments.cluster).nodes)
    if nodes is None and arguments.engine == "local":
        nodes = local_nodes(None)
    return study.ProfilingSetup(
        command=program.words,
        sizes=_sizes(arguments.nodes, nodes),
        repeat=arguments.repeat,
        engine=arguments.engine,
        serve=serve,
        folder=arguments.folder,
        env=os.environ,
        window_s=arguments.window,
        say=say if arguments.verbose else lambda _: None,
        metered=meters.worth_starting(os.environ),
    )


def _points_of(
    setup: study.ProfilingSetup, arguments: argparse.Namespace
) -> tuple[list[Point], int]:
    """Measure; return the points, and the number of steps of a malleable program, else 0."""
    if arguments.mode == MALLEABLE:
        return study.malleable(setup)
    domains, clocks = _clocks(arguments, setup.say)
    study.warm_up(setup)
    points = study.separate(setup)
    for mhz in clocks:
        with contextlib.ExitStack() as held:
            for domain in domains:
                held.enter_context(frequency.locked(domain, mhz))
            points += study.separate(setup, float(mhz))
    return points, 0


def _clocks(
    arguments: argparse.Namespace, tell: Callable[[str], None]
) -> tuple[list[frequency.Domain], list[int]]:
    """Return the devices and their clocks: GPUs where the nodes have any, else processors."""
    wanted = arguments.mhz
    if wanted == "none":
        return [], []
    gpus = arguments.cluster is not None and any(read_cluster(arguments.cluster).gpus)
    domains = [d for d in frequency.available() if d.name.startswith("gpu") == gpus]
    refused = [f"{d.name}: {d.reason}" for d in domains if not d.settable]
    common = sorted(set[int].intersection(*(set(d.mhz) for d in domains))) if domains else []
    if refused or not common:
        reason = "; ".join(refused) or "nothing here has clocks that can be set"
        if wanted != "auto":
            raise CommandError(f"expected --mhz none here, got {wanted!r}: {reason}")
        tell(f"clocks as they are ({reason})")
        return [], []
    if wanted == "auto":
        return domains, sorted({common[0], common[len(common) // 2], common[-1]})
    chosen = [int(part) if part.isdecimal() else -1 for part in wanted.split(",")]
    if not set(chosen) <= set(common):
        choices = ", ".join(map(str, common))
        raise CommandError(f"expected --mhz auto, none or some of {choices}, got {wanted!r}")
    return domains, chosen


def _program(arguments: argparse.Namespace) -> Program:
    words = arguments.command_line
    if words and words[0] in LAUNCHERS:  # the RMS decides itself
        words = strip_options(words[1:])[0]
    if not words:
        raise CommandError("expected -- COMMAND, got none")
    program = Program.find(words, Path.cwd(), os.environ.get("PATH", os.defpath))
    if program is None:
        raise CommandError(f"expected a command that can be run, got {words[0]!r}")
    return program


def _sizes(text: str | None, nodes: int | None) -> tuple[int, ...]:
    """Read ``1,2,4``; by default doublings up to all nodes, None with Slurm, and all nodes."""
    if text is None:
        if nodes is None:
            raise CommandError("expected --nodes with an engine of Slurm, got none")
        return tuple(sorted({nodes, *(1 << k for k in range(nodes.bit_length()))}))
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 10**6 for part in parts):
        raise CommandError(f"expected --nodes as sizes like 1,2,4, got {text!r}")
    sizes = tuple(sorted({int(part) for part in parts}))
    if nodes is not None and sizes[-1] > nodes:
        raise CommandError(
            f"expected --nodes of 1 to {nodes}, as there are, got {sizes[-1]}: an oversubscribed "
            "timing is no result"
        )
    return sizes


def _kept(arguments: argparse.Namespace, base: Path | None) -> Profile:
    """Return a profile by its name, file or program."""
    name = arguments.name
    if name is not None:
        return profiles.read(Path(name)) if name.endswith(".json") else profiles.named(base, name)
    program = _program(arguments)
    kept = profiles.find(base, program, hardware)
    if kept is None:
        raise ProfileError(
            "expected a command that was profiled on this machine, with the same words and the "
            f"same program file, got {' '.join(program.words)}"
        )
    return kept


def _list(arguments: argparse.Namespace, base: Path | None) -> int:
    rows, result = [], []
    for path in sorted(base.glob("*.json")) if base is not None else []:
        shown = profiles.read(path)
        sizes = ",".join(str(n) for n in sorted({point.nodes for point in shown.points}))
        words = " ".join(shown.program.words)
        rows.append([path.stem, sizes, shown.measured, str(shown.machine), words])
        result.append({"name": path.stem, **msgspec.to_builtins(shown)})
    publish(arguments.json, result, columns(["NAME", "NODES", "DATE", "MACHINE", "COMMAND"], rows))
    return 0
