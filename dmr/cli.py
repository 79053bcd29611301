"""The command ``dmr``: its parsers and its output."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from dmr.errors import UsageError
from dmr.plan import AUTO, check_rate
from rms.wire.files import regular_file
from rms.wire.messages import STRATEGIES, ProtocolError, read_completion
from rms.wire.mpiexec import find_mpiexec
from rms.wire.terminal import (
    CommandError,
    Parser,
    add_common,
    at_least,
    extra_installed,
    parser,
    positive,
    publish,
    refuse_on,
    run_command,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    words, top = sys.argv[1:] if argv is None else argv, _parser()
    if not words:
        top.print_help()
        return 0
    arguments = top.parse_args(words)
    return run_command("dmr", arguments, arguments.call)


def _parser() -> Parser:
    top = parser("dmr", "Malleable MPI programs.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    completion = commands.add_parser(
        "completion",
        allow_abbrev=False,
        help="say how a job ended (mpirun's own exit status cannot, after a resize)",
    )
    completion.add_argument("file", type=Path, metavar="FILE", help="its completion record")
    completion.set_defaults(call=_completion)
    add_common(completion)
    probe = commands.add_parser("probe", allow_abbrev=False, help="what MPI can do here, tried")
    probe.set_defaults(call=_probe)
    add_common(probe)
    check = commands.add_parser(
        "check",
        allow_abbrev=False,
        help="run a program plain, rehearsed and resized; print what differs",
        description="Runs a program as it is, with a rehearsal (resizes into as many fresh ranks, "
        "which must leave every bit), then with resizes to other sizes; compares what it prints "
        "and all that it has declared, and prints the usual cause of what differs. What differs "
        "between plain runs on other numbers of ranks as well has status 0.",
    )
    check.add_argument("--resize", default="2,3,1,2", metavar="RANKS,...", help="default 2,3,1,2")
    check.add_argument(
        "--compare", type=Path, metavar="FILE", help="a file it writes, compared too"
    )
    check.add_argument(
        "--tolerance",
        type=positive,
        default=0.0,
        metavar="T",
        help="relative difference of numbers that counts as none; default: every bit",
    )
    check.add_argument("words", nargs="+", metavar="-- COMMAND", help="mpirun -n 2 python mine.py")
    check.set_defaults(call=_check)
    add_common(check)
    run = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run a program that goes on without a rank or a host that dies",
        description="Runs mpiexec, and on each host a keeper of copies in memory. When a rank dies "
        "or a host is silent, a world starts on the hosts that are left, from the newest copy.",
    )
    run.add_argument("-n", dest="ranks", type=int, default=1, metavar="RANKS", help="default 1")
    run.add_argument(
        "--hosts", default="", metavar="HOST[:RANKS],...", help="default: this host alone"
    )
    run.add_argument(
        "--spare", default="", metavar="HOST[:RANKS],...", help="hosts that take lost ones' places"
    )
    run.add_argument(
        "--least", type=int, default=1, metavar="RANKS", help="end with fewer; default 1"
    )
    run.add_argument(
        "--every", type=_interval, metavar="S|auto", help="seconds between copies; auto: by --mtbf"
    )
    run.add_argument(
        "--rate", type=_rate, metavar="GB_S", help="of a rank that sends a copy, at most, GB/s"
    )
    run.add_argument(
        "--mtbf", type=positive, metavar="H", help="hours between failures, a host; default 8760"
    )
    run.add_argument(
        "--silent", type=positive, default=5.0, metavar="S", help="until a host is lost; default 5"
    )
    run.add_argument("--rsh", default="ssh", metavar="COMMAND", help="remote shell; default ssh")
    run.add_argument("words", nargs="+", metavar="-- COMMAND", help="python mine.py")
    run.set_defaults(call=_run)
    add_common(run)
    plan = commands.add_parser(
        "plan",
        allow_abbrev=False,
        help="how often to copy a job into memory and to disk",
        description="Prints the intervals at which copies and lost work cost least (Daly, 2006). "
        "A rate that is not given is measured here.",
    )
    add = plan.add_argument
    add("--mib", type=positive, required=True, metavar="M", help="fields of a rank")
    add("--mtbf", type=positive, required=True, metavar="H", help="hours between failures, a node")
    add("--nodes", type=at_least(1), default=1, metavar="N", help="default 1")
    add("--ranks-per-node", type=at_least(1), default=1, metavar="R", help="default 1")
    add("--partners", type=at_least(0), default=1, metavar="P", help="nodes with a copy; default 1")
    add("--memory-gb-s", type=positive, metavar="G", help="copy of a rank into shared memory")
    add("--network-gb-s", type=positive, default=1.0, metavar="G", help="of a node; default 1")
    add("--disk-gb-s", type=positive, metavar="G", help="checkpoints of the whole job")
    add("--directory", type=Path, metavar="DIR", help="measure the disk by a file there")
    add("--back", type=positive, default=7.0, metavar="S", help="until it goes on; default 7")
    add("--restart", type=positive, default=120.0, metavar="S", help="from disk; default 120")
    plan.set_defaults(call=_plan)
    add_common(plan)
    bench = commands.add_parser("bench", allow_abbrev=False, help="measure a resize")
    bench.add_argument("--from", dest="old", type=int, default=1, metavar="RANKS", help="default 1")
    bench.add_argument("--to", dest="new", type=int, default=2, metavar="RANKS", help="default 2")
    bench.add_argument("--mib", type=int, default=64, metavar="M", help="size of the field")
    bench.add_argument(
        "--strategy",
        metavar="NAME",
        help=f"{', '.join(STRATEGIES)}; default warm, without the extra rms spawn",
    )
    bench.set_defaults(call=_bench)
    add_common(bench)
    return top


def _interval(text: str) -> float | str:
    """Read seconds between copies, or auto."""
    return text if text == AUTO else positive(text)


def _rate(text: str) -> float:
    """Read a rate of copies."""
    try:
        return check_rate(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _probe(arguments: argparse.Namespace) -> int:
    """Print the abilities of MPI here; exit 0 if it starts at all."""
    from dmr.boot.probe import probe, table

    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise CommandError("expected mpiexec on PATH, got none", 1)
    result = probe(mpiexec, os.environ)
    publish(arguments.json, result, table(result))
    return 0 if result["launches"] else 1


def _check(arguments: argparse.Namespace) -> int:
    """Check a program; exit 1 if anything differs."""
    from dmr.check.check import CheckError, NoProgramError, check

    try:
        sizes = [int(size) for size in arguments.resize.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise CommandError(f"expected --resize RANKS[,RANKS...], got {arguments.resize!r}")

    compared = arguments.compare
    if compared is not None and (compared.is_dir() or regular_file(compared) is None):
        raise CommandError(f"expected a regular file for --compare, got {compared}")

    def say(line: str) -> None:
        if arguments.json != "-":
            print(line, flush=True)

    with refuse_on(CheckError, exit_code=1), refuse_on(NoProgramError):
        result = check(arguments.words, sizes, arguments.compare, say, arguments.tolerance)
    publish(arguments.json, result, [])
    return 0 if result["right"] else 1


def _run(arguments: argparse.Namespace) -> int:
    """Run a program under a supervisor; exit as the job does."""
    from dmr.memory.supervise import Settings, SuperviseError, parse_hosts, supervise

    for option, ranks in (("-n", arguments.ranks), ("--least", arguments.least)):
        if ranks < 1:
            raise CommandError(f"expected {option} of at least 1, got {ranks}")
    if arguments.json == "-":
        raise CommandError("expected a file for --json, got -, where the program prints")
    if arguments.least > arguments.ranks:
        raise CommandError(
            f"expected --least of at most -n {arguments.ranks}, got {arguments.least}"
        )
    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise CommandError("expected mpiexec on PATH, got none", 1)
    words, shell = tuple(arguments.words), shutil.which(arguments.rsh)
    if shutil.which(words[0]) is None:
        raise CommandError(f"expected a command that can be run, got {words[0]}")
    if arguments.hosts and shell is None:
        raise CommandError(f"expected a remote shell, got {arguments.rsh}")
    if arguments.spare and not arguments.hosts:
        raise CommandError("expected --spare with --hosts, got no --hosts")
    with refuse_on(ValueError):
        hosts = parse_hosts(arguments.hosts) if arguments.hosts else ()
        spares = parse_hosts(arguments.spare, "--spare") if arguments.spare else ()
    both = sorted({name for name, _ in hosts} & {name for name, _ in spares})
    if both:
        raise CommandError(f"expected spares that are not in --hosts, got {both[0]}")
    room = sum(count for _, count in hosts)
    if hosts and all(count for _, count in hosts) and room < arguments.ranks:
        raise CommandError(f"expected --hosts with room for {arguments.ranks} ranks, got {room}")
    settings = Settings(
        arguments.ranks,
        words,
        mpiexec,
        hosts,
        arguments.least,
        arguments.every,
        arguments.rate,
        arguments.mtbf,
        arguments.silent,
        shell or arguments.rsh,
        spares,
    )

    def say(line: str) -> None:
        print(f"dmr: {line}", file=sys.stderr, flush=True)

    with refuse_on(SuperviseError, exit_code=1):
        report = supervise(settings, os.environ, say)
    publish(arguments.json, msgspec.to_builtins(report), [])
    return report.exit_code


def _plan(arguments: argparse.Namespace) -> int:
    """Print how often to copy."""
    from dmr.memory.interval import Site, disk_rate, levels, memory_rate, table

    nodes, partners = arguments.nodes, arguments.partners
    if partners and partners >= nodes > 1:
        raise CommandError(f"expected fewer partners than the {nodes} nodes, got {partners}")
    if arguments.directory is not None and arguments.disk_gb_s is not None:
        raise CommandError("expected either --directory or --disk-gb-s, got both")
    nbytes = arguments.mib * 2**20
    disk = None if arguments.disk_gb_s is None else 1e9 * arguments.disk_gb_s
    if arguments.directory is not None:
        try:
            disk = disk_rate(arguments.directory, nbytes)
        except OSError as error:
            raise CommandError(
                f"expected a folder for --directory, got {arguments.directory}: {error.strerror}"
            ) from None
    memory = arguments.memory_gb_s
    site = Site(
        nodes=nodes,
        ranks=arguments.ranks_per_node,
        bytes=nbytes,
        mtbf_s=3600.0 * arguments.mtbf,
        partners=partners,
        memory_bytes_s=memory_rate(nbytes) if memory is None else 1e9 * memory,
        network_bytes_s=1e9 * arguments.network_gb_s,
        disk_bytes_s=disk,
        memory_back_s=arguments.back,
        disk_back_s=arguments.restart,
    )
    found = levels(site)
    if not found:
        raise CommandError("expected --directory or --disk-gb-s where no other node has a copy")
    result = {"site": asdict(site), "levels": [asdict(level) for level in found]}
    publish(arguments.json, result, table(site, found))
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from dmr.bench.bench import BenchError, bench

    if arguments.strategy is None:
        arguments.strategy = "warm"
        if not extra_installed("rms"):
            arguments.strategy = "spawn"
            words = "warm needs pip install 'malleable-mpi[rms]'; measuring spawn"
            print(f"dmr: note: {words}", file=sys.stderr)
    if arguments.strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES)
        raise CommandError(f"expected a strategy of {names}, got {arguments.strategy!r}")
    sizes = {"--from": arguments.old, "--to": arguments.new, "--mib": arguments.mib}
    for option, size in sizes.items():
        if size < 1:
            raise CommandError(f"expected {option} of at least 1, got {size}")
    with refuse_on(BenchError, exit_code=1):
        result = bench(
            arguments.old, arguments.new, arguments.mib, arguments.strategy, find_mpiexec(None)
        )
    done = result["strategy"]
    if done != arguments.strategy:
        words = f"{arguments.strategy} cannot be had for this resize here; measured {done}"
        print(f"dmr: note: {words}", file=sys.stderr)
    lines = [
        f"{name:14s} {value:.6g}" if isinstance(value, float) else f"{name:14s} {value}"
        for name, value in result.items()
    ]
    publish(arguments.json, result, lines)
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    """Print a completion record; exit as the job should have: 0 only if it is COMPLETED."""
    try:
        record = read_completion(arguments.file)
    except FileNotFoundError:
        raise CommandError(
            f"expected a completion record, got no {arguments.file}: "
            "the job has not ended, or was killed before it could write one",
            1,
        ) from None
    except OSError as error:
        raise CommandError(
            f"expected a completion record, got {arguments.file}: {error.strerror}"
        ) from None
    except ProtocolError as error:
        raise CommandError(str(error)) from None
    line = (
        f"{record.state} at step {record.step} in world {record.generation} of "
        f"{record.ranks} ranks{': ' if record.message else ''}{record.message}"
    )
    publish(arguments.json, msgspec.to_builtins(record), [line])
    return record.exit_code
