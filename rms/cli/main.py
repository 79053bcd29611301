"""The command ``rms``."""

from __future__ import annotations

import argparse
import getpass
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rms.wire.terminal import Parser, add_common, check_writable, emit_json, parser

if TYPE_CHECKING:
    from rms.launch.base import Engine

ENGINES = ("local", "slurm-pilot", "slurm")

HANDLERS = dict.fromkeys(
    (
        "submit",
        "launch",
        "queue",
        "nodes",
        "show",
        "cancel",
        "wait",
        "acct",
        "resize",
        "policy",
        "shutdown",
        "explain",
        "drain",
        "resume",
    ),
    "rms.client.commands",
) | dict.fromkeys(("top", "report"), "rms.client.monitor")
"""Which module has the function of a command; loaded only when it is used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, command_line = _split_command(words)
    arguments = _parser().parse_args(words)
    arguments.command_line = command_line
    problem = check_writable(arguments.json, "--json")
    if problem is not None:
        return _fail(problem)
    try:
        return _call(arguments)
    except KeyboardInterrupt:
        return 130


def _call(arguments: argparse.Namespace) -> int:
    from rms.client.commands import ServerError
    from rms.formats.jobscript import ScriptError

    try:
        name = arguments.command
        if name in HANDLERS:
            call: Callable[[argparse.Namespace], int] = getattr(
                importlib.import_module(HANDLERS[name]), name
            )
        else:
            call = {
                "serve": _serve,
                "simulate": _simulate,
                "replay": _replay,
                "compare": _compare,
                "reproduce": _reproduce,
            }[name]
        return call(arguments)
    except ServerError as error:
        print(f"rms: error: {error}", file=sys.stderr)
        return error.exit_code
    except ScriptError as error:
        print(f"rms: error: {error}", file=sys.stderr)
        return 2


def _split_command(words: list[str]) -> tuple[list[str], list[str]]:
    """Split ``submit ... -- COMMAND`` and ``launch ... -- COMMAND`` at the first ``--``."""
    if words[:1] in (["submit"], ["launch"]) and "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []


def _parser() -> Parser:
    top = parser("rms", "Resource manager for malleable jobs.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *, client: bool = True) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=text, allow_abbrev=False)
        add_common(command)
        if client:
            command.add_argument("--server", metavar="ADDRESS", help="default: RMS_SERVER")
        return command

    serve = add("serve", "run the daemon", client=False)
    serve.add_argument("--cluster", type=Path, metavar="FILE.toml")
    serve.add_argument("--nodes", type=int, metavar="N", help="only the first N nodes there are")
    serve.add_argument("--engine", default="local", metavar="|".join(ENGINES))
    serve.add_argument("--check", action="store_true", help="say what this site's Slurm allows")
    serve.add_argument(
        "--reach", default="slurm", metavar="NAME", help="how mpiexec reaches nodes (-launcher)"
    )
    serve.add_argument(
        "--partition", default="", metavar="NAME", help="of engine slurm (default: Slurm's own)"
    )
    serve.add_argument(
        "--ntasks-per-node", type=int, metavar="N", help="slots of a node (default: its CPUs)"
    )
    serve.add_argument("--policy", default="array-share", metavar="NAME|FILE.toml")
    serve.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="S",
        help="from SIGTERM to SIGKILL of a job (default 10)",
    )
    serve.add_argument(
        "--margin",
        type=float,
        metavar="S",
        help="of a pilot: from the end of its jobs to that of its allocation (default grace + 30)",
    )
    serve.add_argument(
        "--boot-deadline",
        type=float,
        default=60.0,
        metavar="S",
        help="for a world that boots beside a running one (default 60)",
    )
    serve.add_argument("--with-parent", action="store_true", help="end when the parent ends")
    serve.add_argument("--state", type=Path, metavar="DIR")
    serve.add_argument("--listen", metavar="unix:PATH|tcp:HOST:PORT")
    submit = add("submit", "hand in a job script or a command")
    submit.add_argument("script", type=Path, nargs="?", metavar="SCRIPT")
    for option in ("--array", "--nodes", "--mode", "--time", "--job-name", "--output"):
        submit.add_argument(option)
    submit.add_argument("--preferred", type=int)
    submit.add_argument("--cooldown", metavar="S", help="from one resize to the next, at least")
    submit.add_argument("--wait", action="store_true")
    launch = add("launch", "what a job script's launcher line becomes")
    launch.add_argument("--as", dest="launcher", metavar="NAME")
    add("queue", "jobs that wait or run").add_argument("id", nargs="?")
    add("nodes", "nodes and who is on them")
    add("show", "all that is known of a job").add_argument("id")
    add("cancel", "end jobs").add_argument("id")
    add("wait", "wait for jobs").add_argument("id")
    add("acct", "times and energy of jobs").add_argument("id", nargs="?")
    resize = add("resize", "change the size of a running job")
    resize.add_argument("id")
    resize.add_argument("nodes", type=int)
    resize.add_argument("--strategy", metavar="NAME", help="instead of the job's own")
    resize.add_argument("--on", metavar="NODE,...", help="go over to these nodes, by their names")
    add("policy", "show or swap the policy").add_argument("name", nargs="?")
    add("shutdown", "end all jobs at checkpoints, then the daemon")
    add("explain", "why a job is where it is").add_argument("id")
    add("top", "a live view of the daemon")
    add("report", "a page about all jobs, with figures").add_argument(
        "folder", type=Path, metavar="DIR"
    )
    add("drain", "give nodes to no more jobs").add_argument("node", metavar="NODE")
    add("resume", "give drained nodes to jobs again").add_argument("node", metavar="NODE")
    simulate = add("simulate", "run a workload on a virtual clock", client=False)
    simulate.add_argument("--workload", type=Path, metavar="FILE.toml")
    simulate.add_argument("--trace", type=Path, metavar="FILE.swf[.gz]")
    simulate.add_argument("--cluster", type=Path, metavar="FILE.toml")
    simulate.add_argument("--processors", type=int, metavar="P", help="default: the trace's")
    simulate.add_argument("--policy", default="array-share", metavar="NAME|FILE.toml")
    simulate.add_argument("--mode", metavar="MODE")
    simulate.add_argument(
        "--order", choices=("fcfs", "sjbf"), help="of the jobs behind the first waiting one"
    )
    simulate.add_argument("--estimates", choices=("requested", "exact"))
    simulate.add_argument("--passes", choices=("per-event", "per-timestamp"), default="per-event")
    simulate.add_argument("--per-job", type=Path, metavar="OUT.csv")
    simulate.add_argument(
        "--malleable", metavar="PCT[,PCT...]", help="make these shares of a trace's jobs malleable"
    )
    simulate.add_argument(
        "--serial", type=float, default=0.05, metavar="F", help="their share that is not parallel"
    )
    simulate.add_argument("--mtbf", type=float, metavar="H", help="each node fails that often")
    simulate.add_argument(
        "--repair", type=float, default=1.0, metavar="H", help="and is back after"
    )
    simulate.add_argument("--seed", type=int, default=1, metavar="X", help="of the failures")
    simulate.add_argument("--figure", type=Path, metavar="FILE.png", help="of --malleable")
    simulate.add_argument("--out", type=Path, metavar="OUT.swf", help="the schedule as a trace")
    reproduce = add("reproduce", "a published experiment, paper against ours", client=False)
    reproduce.add_argument("name", metavar="iserte-rojek|chiesi")
    reproduce.add_argument("--figures", type=Path, metavar="DIR", help="draw its figures there")
    compare = add("compare", "run scripts for real, once per mode", client=False)
    compare.add_argument("scripts", type=Path, nargs="+", metavar="SCRIPT")
    compare.add_argument("--modes", default="fixed,moldable,malleable,flexible")
    compare.add_argument("--engine", default="local", metavar="|".join(ENGINES))
    compare.add_argument("--nodes", type=int, metavar="N", help="default: all there are")
    compare.add_argument("--delay", type=float, default=2.0, metavar="S")
    compare.add_argument("--policy", default="array-share", metavar="NAME")
    compare.add_argument("--folder", type=Path, default=Path("compare"), metavar="D")
    compare.add_argument("--figure", type=Path, metavar="FILE.png")
    add("replay", "run a journal through the engine again", client=False).add_argument(
        "journal", type=Path
    )
    return top


def _fail(sentence: object) -> int:
    print(f"rms: error: {sentence}", file=sys.stderr)
    return 2


def _serve(arguments: argparse.Namespace) -> int:
    from rms.client.commands import state_folder
    from rms.core.policies import PolicyError, placing
    from rms.daemon import serve
    from rms.daemon.journal import JournalError
    from rms.daemon.server import ServeError
    from rms.formats.config import FileError
    from rms.launch.slurm.commands import SlurmError

    if arguments.engine not in ENGINES:
        return _fail(f"expected an engine of {', '.join(ENGINES)}, got {arguments.engine!r}")
    if arguments.check:
        return _check(arguments)
    state = (arguments.state or state_folder(os.environ)).absolute()
    try:
        placing(arguments.policy)
        engine = _engine(arguments)
        listen = arguments.listen or f"unix:{state / 'socket'}"
        serve.run_daemon(
            state,
            engine,
            arguments.policy,
            listen,
            serve.to_stderr,
            grace_s=arguments.grace,
            parent=os.getppid() if arguments.with_parent else None,
            boot_s=arguments.boot_deadline,
        )
    except (FileError, PolicyError, JournalError, ServeError, SlurmError, OSError) as error:
        return _fail(error)
    return 0


def _engine(arguments: argparse.Namespace) -> Engine:
    """Return the nodes of an engine and who starts processes there."""
    from rms.launch import machine
    from rms.launch.slurm import engines

    if arguments.engine != "local":
        kind = (
            partial(engines.site, partition=arguments.partition)
            if arguments.engine == "slurm"
            else partial(engines.pilot, margin_s=arguments.margin)
        )
        return kind(
            os.environ,
            getpass.getuser(),
            arguments.reach,
            grace_s=arguments.grace,
            tasks=arguments.ntasks_per_node,
            file=arguments.cluster,
        ).first(arguments.nodes)
    if arguments.cluster is None:
        return machine.local_engine(machine.this_machine(_nodes(arguments.nodes)))
    return machine.local_engine(machine.from_file(arguments.cluster))


def _check(arguments: argparse.Namespace) -> int:
    """Say what this site's Slurm allows; exit 1 where the engine asked for cannot work."""
    from rms.launch.slurm.commands import Slurm, SlurmError
    from rms.launch.slurm.site import as_json, in_words, look, serves, try_it

    if arguments.engine == "local":
        return _fail("expected --check with --engine slurm or slurm-pilot, got the engine local")
    slurm = Slurm(os.environ, getpass.getuser())
    try:
        site = look(slurm)
        tried = try_it(slurm, f"rms-check-{os.getpid()}", time.monotonic)
    except SlurmError as error:
        _fail(error)
        return 1
    if arguments.json is not None:
        emit_json(arguments.json, as_json(site, tried))
    if arguments.json != "-":
        print("\n".join(in_words(site, tried)))
    return 0 if serves(arguments.engine, site) else 1


def _nodes(asked: int | None) -> int:
    """Return how many cores serve as nodes: never more than there are."""
    from rms.formats.config import FileError
    from rms.launch.machine import this_machine

    most = len(this_machine().names)
    if asked is not None and not 1 <= asked <= most:
        raise FileError(
            f"expected 1 to {most} nodes, as this machine has cores, got {asked}: an "
            "oversubscribed timing is no result"
        )
    return most if asked is None else asked


def _compare(arguments: argparse.Namespace) -> int:
    from rms.core.model import Mode
    from rms.core.policies import PolicyError, named
    from rms.daemon.serve import to_stderr
    from rms.formats.config import FileError
    from rms.launch.slurm.commands import Slurm, SlurmError
    from rms.studies.compare import CompareError, compare, draw, problems, table

    try:
        named(arguments.policy)
        if arguments.engine not in ENGINES:
            raise FileError(f"expected an engine of {', '.join(ENGINES)}, got {arguments.engine!r}")
        local = arguments.engine == "local"
        nodes = _nodes(arguments.nodes) if local else arguments.nodes
        modes = []
        for name in arguments.modes.split(","):
            if name not in list(Mode):
                raise FileError(f"expected modes of {', '.join(Mode)}, got {name!r}")
            modes.append(Mode(name))
        result = compare(
            [path.absolute() for path in arguments.scripts],
            modes,
            engine=arguments.engine,
            nodes=nodes,
            policy=arguments.policy,
            delay_s=arguments.delay,
            folder=arguments.folder.absolute(),
            env=os.environ,
            say=to_stderr if arguments.verbose else lambda _: None,
        )
        if not local:
            result["oversubscribed"] = Slurm(os.environ, getpass.getuser()).oversubscribed()
    except (FileError, PolicyError) as error:
        return _fail(error)
    except (CompareError, SlurmError) as error:
        _fail(error)
        return 1
    if arguments.figure is not None:
        draw(result, arguments.figure)
    if arguments.json is not None:
        emit_json(arguments.json, result)
    wrong = problems(result)
    if arguments.json != "-":
        print("\n".join([*table(result), *wrong]))
    return 1 if wrong else 0


def _replay(arguments: argparse.Namespace) -> int:
    from rms.daemon.journal import Journal, JournalError, replay

    if not arguments.journal.is_file():
        return _fail(f"expected a journal, got {arguments.journal}, which does not exist")
    try:
        with Journal.open(arguments.journal) as journal:
            found = replay(journal.read())
    except JournalError as error:
        return _fail(error)
    if arguments.json is not None:
        emit_json(arguments.json, {"events": found.events, "differing": found.differing})
    if arguments.json != "-":
        print(f"{found.events} events, {len(found.differing)} decided otherwise")
        print("\n".join(found.differing), end="\n" if found.differing else "")
    return 1 if found.differing else 0


def _simulate(arguments: argparse.Namespace) -> int:
    from rms.core.policies import PolicyError
    from rms.formats.config import FileError
    from rms.sim.run import command

    try:
        return command(arguments)
    except (FileError, PolicyError) as error:
        return _fail(error)


def _reproduce(arguments: argparse.Namespace) -> int:
    from rms.formats.config import FileError
    from rms.studies.iserte_rojek import command

    try:
        return command(arguments)
    except FileError as error:
        return _fail(error)
