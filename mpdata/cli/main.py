"""The command ``mpdata``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mpdata.errors import InputError
from rms.wire.mpiexec import find_mpiexec
from rms.wire.terminal import (
    Parser,
    add_common,
    check_writable,
    emit_json,
    is_first_rank,
    parser,
    positive,
    publish,
    refuse_on,
    run_command,
    seconds,
)

BOUNDARY_HELP = (
    "periodic, open, wall, fixed:VALUE, pole (axis 1); LOW/HIGH for the two ends of an axis"
)
BACKEND_HELP = "auto (cupy where a GPU answers, else numba), numpy, numba, cupy"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    words, top = sys.argv[1:] if argv is None else argv, _parser()
    if not words:
        if is_first_rank(os.environ):
            top.print_help()
        return 0
    return run_command("mpdata", top.parse_args(words), _call)


def _call(arguments: argparse.Namespace) -> int:
    with refuse_on(InputError):
        status: int = arguments.call(arguments)
        return status


def _parser() -> Parser:
    top = parser("mpdata", "3D MPDATA advection, malleable under MPI.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="advect a field (also under mpirun)", allow_abbrev=False)
    _add_run(run)
    cases = commands.add_parser("cases", help="list the cases", allow_abbrev=False)
    cases.set_defaults(call=_cases)
    verify = commands.add_parser(
        "verify", help="run the published cases, measure orders", allow_abbrev=False
    )
    verify.add_argument("--case", metavar="NAME", help="only this case (orders: the orders)")
    verify.add_argument("--backend", default="auto", help=BACKEND_HELP)
    verify.set_defaults(call=_verify)
    plot = commands.add_parser("plot", help="draw a field output file", allow_abbrev=False)
    plot.add_argument(
        "file", type=Path, metavar="FILE.h5", help="output file of mpdata run --output"
    )
    plot.add_argument(
        "--out", type=Path, metavar="FILE", help="default: FILE.png (or .gif) beside it"
    )
    plot.add_argument(
        "--frames", type=int, nargs="+", metavar="I", help="default: first and last (or all)"
    )
    plot.add_argument(
        "--animate", action="store_true", help="an animation: .gif, or .mp4 where ffmpeg is"
    )
    plot.add_argument(
        "--winds",
        type=Path,
        nargs=2,
        metavar=("U.nc", "V.nc"),
        help="draw these winds under the plume",
    )
    plot.add_argument(
        "--month", type=int, default=1, metavar="K", help="month of --winds (default 1)"
    )
    plot.set_defaults(call=_plot)
    bench = commands.add_parser("bench", help="time per cell and step here", allow_abbrev=False)
    _add_bench(bench)
    for command in (run, cases, verify, plot, bench):
        add_common(command)
    return top


def _add_run(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("--case", metavar="NAME", help="a case of `mpdata cases` (default sphere)")
    add("--winds", type=Path, nargs=2, metavar=("U.nc", "V.nc"), help="CF wind files (case winds)")
    add("--month", type=int, default=1, metavar="K", help="month of the wind files (default 1)")
    add("--days", type=positive, metavar="D", help="case winds: days to cover (default 10)")
    add("--input", type=Path, metavar="FILE", help="your arrays, .npz or .h5, instead of a case")
    add("--velocities", type=Path, metavar="FILE.h5", help="face values that change in time")
    add("--tracers", type=int, default=1, metavar="K", help="fields on the one flow (default 1)")
    add("--grid", type=int, nargs=3, metavar=("N", "M", "L"), help="cells")
    add("--steps", type=int, metavar="K", help="time steps")
    add(
        "--courant",
        type=positive,
        metavar="C",
        help="Courant number, where the case leaves it free",
    )
    add("--angle", type=float, metavar="A", help="case bell: degrees of tilt (default 90)")
    add("--iterations", type=int, default=2, metavar="1..3", help="donor-cell passes (default 2)")
    add(
        "--limiter",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the non-oscillatory option",
    )
    add(
        "--gauge", default="standard", metavar="standard|infinite", help="infinite: psi of any sign"
    )
    add("--third-order", action="store_true", help="third-order terms in the corrective pass")
    add("--divergent-flow", action="store_true", help="a term for flows that diverge")
    add("--boundary", metavar="B[,B,B]", help=BOUNDARY_HELP)
    add("--dtype", default="f8", metavar="f8|f4", help="type of all fields (default f8)")
    add("--backend", default="auto", metavar="NAME", help=f"{BACKEND_HELP}; or CORES,GPUS")
    add("--share-gpu", action="store_true", help="let several ranks of a node have one GPU")
    add("--threads", type=int, default=1, metavar="T", help="CPU threads per rank (default 1)")
    add(
        "--overlap",
        default="auto",
        metavar="auto|on|off",
        help="advance inner layers while messages are under way",
    )
    add("--every", type=int, default=10, metavar="S", help="steps between resize points")
    add("--resize-at", metavar="STEP:RANKS[@BACKEND][,...]", help="scripted resizes")
    add("--strategy", default="auto", metavar="NAME", help="auto, spawn, merge, restart, warm")
    add("--cooldown", type=seconds, default=0.0, metavar="S", help="from one resize to the next")
    add("--checkpoint-every", type=int, default=0, metavar="S", help="steps between checkpoints")
    add("--checkpoint-dir", type=Path, metavar="D", help="folder of checkpoints")
    add("--restart", action="store_true", help="continue from the newest whole checkpoint")
    add("--output", type=Path, metavar="FILE.h5", help="field output")
    add("--output-every", type=int, default=0, metavar="S", help="steps between outputs")
    add("--final", type=Path, metavar="FILE.npy", help="the final field (N, M, L)")
    add("--seed", type=int, default=1, metavar="X", help="seed of case random")
    add("--completion", type=Path, metavar="FILE", help="write the completion record here")
    run.set_defaults(call=_run)


def _add_bench(bench: argparse.ArgumentParser) -> None:
    add = bench.add_argument
    add("--grid", type=int, nargs=3, default=[128, 128, 128], metavar=("N", "M", "L"), help="cells")
    add("--backend", default="auto", metavar="NAME", help=BACKEND_HELP)
    add("--threads", type=int, default=1, metavar="T", help="CPU threads (default 1)")
    add("--rounds", type=int, default=10, metavar="R", help="default 10")
    add("--ranks", type=int, default=1, metavar="P", help="also 1 and P ranks under mpiexec")
    add("--no-peer", action="store_true", help="leave out PyMPDATA where it is installed")
    bench.set_defaults(call=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from mpdata.backends import choose_backend
    from mpdata.cases import check_grid
    from mpdata.study.bench import bench

    for value, option in (
        (arguments.threads, "--threads"),
        (arguments.rounds, "--rounds"),
        (arguments.ranks, "--ranks"),
    ):
        if value < 1:
            raise InputError(f"expected at least 1 in {option}, got {value}")
    n, m, el = arguments.grid
    check_grid((n, m, el))
    silent = arguments.json == "-"
    result = bench(
        (n, m, el),
        choose_backend(arguments.backend),
        os.environ,
        say=(lambda line: None) if silent else (lambda line: print(line, flush=True)),
        threads=arguments.threads,
        rounds=arguments.rounds,
        ranks=arguments.ranks,
        mpiexec=find_mpiexec(None),
        peer=not arguments.no_peer,
    )
    if arguments.json is not None:
        emit_json(arguments.json, result)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from mpdata.cli.run import run_command

    return run_command(arguments)


def _cases(arguments: argparse.Namespace) -> int:
    from mpdata.cases import CASES

    rows = [
        {
            "name": c.name,
            "grid": list(c.grid),
            "boundary": c.boundaries,
            "summary": c.summary,
            "source": c.source,
        }
        for c in CASES.values()
    ]
    lines = [
        f"{c.name:15s} {' x '.join(map(str, c.grid)):13s} {c.summary} ({c.source})"
        for c in CASES.values()
    ]
    publish(arguments.json, rows, lines)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from mpdata.backends import choose_backend
    from mpdata.study.convergence import Order
    from mpdata.study.verify import verify

    backend = choose_backend(arguments.backend)
    good, heading = True, ""
    published: list[object] = []
    orders: list[object] = []
    for found in verify(arguments.case, backend):
        good &= found.ok
        (orders if isinstance(found, Order) else published).append(found.record())
        if arguments.json != "-":
            if found.heading != heading:
                heading = found.heading
                print(heading)
            print(found.line(), flush=True)
    if arguments.json is not None:
        emit_json(
            arguments.json, {"backend": backend, "ok": good, "checks": published, "orders": orders}
        )
    return 0 if good else 1


def _plot(arguments: argparse.Namespace) -> int:
    from mpdata.cli.plot import Underlay, plot_file

    animate = arguments.animate
    out = arguments.out or arguments.file.with_suffix(".gif" if animate else ".png")
    problem = check_writable(out, "--out")
    if problem is not None:
        raise InputError(problem)
    winds = Underlay(tuple(arguments.winds), arguments.month) if arguments.winds else None
    frames = plot_file(arguments.file, out, arguments.frames, winds, animate=animate)
    picture = {"gif" if animate else "png": str(out), "frames": frames}
    publish(arguments.json, picture, [f"wrote {out}"])
    return 0
