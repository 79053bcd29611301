"""``mpdata run``: from arguments to a run under dmr, and from its end to a report."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpdata.backends import BACKENDS, choose_backend
from mpdata.cases import Request, Setup, array_case, make_setup, with_velocities
from mpdata.errors import InputError
from mpdata.options import Scheme, parse_boundaries
from mpdata.parallel.config import OVERLAP, RunConfig
from rms.wire.terminal import check_writable, emit_json

NO_MPI = (
    "no MPI library could be loaded; expected MPICH or Open MPI "
    "(pip install 'malleable-mpi[mpich]' brings one)"
)


def run_command(arguments: argparse.Namespace) -> int:
    """Run a case under whatever launched this process; return the exit status."""
    beside = Path(sys.executable).parent
    if shutil.which("mpiexec") is None and (beside / "mpiexec").exists():
        # A process started without mpirun looks for mpiexec on PATH when it is to spawn.
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(f"{NO_MPI}: {' '.join(str(error).split())}") from None
    import dmr

    try:
        runtime = dmr.Runtime.here(MPI.COMM_WORLD)
    except dmr.UsageError as error:  # the same on all ranks: they have one environment
        if MPI.COMM_WORLD.rank == 0:
            print(f"mpdata: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    if arguments.completion is not None:
        runtime = replace(runtime, completion=arguments.completion)
    to_stdout = arguments.json == "-"
    if to_stdout:
        runtime = replace(runtime, log=sys.stderr, output=sys.stderr)
    try:
        runtime.forget_completion()
        return _run(arguments, runtime, None if to_stdout else sys.stdout)
    except dmr.CollectiveError as error:
        runtime.refuse(str(error))
        if runtime.comm.rank == 0:
            print(f"mpdata: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _run(arguments: argparse.Namespace, runtime: Any, terminal: IO[str] | None) -> int:
    import dmr
    from mpdata.parallel.app import Advection

    config: RunConfig | None = None
    problem: str | None = None
    try:
        setup = _setup(arguments, os.environ)
        # A rank whose slot is a core leaves the node's GPUs to others.
        wanted = _wanted_backend(arguments.backend, runtime)
        on_core = wanted == "auto" and runtime.slot_kind in ("cpu", "core")
        plan = _plan(arguments)
        config = RunConfig(
            setup=setup,
            scheme=_scheme(arguments),
            dtype=_dtype(arguments.dtype),
            backend=choose_backend("numba" if on_core else wanted),
            threads=_positive(arguments.threads, "thread", "--threads"),
            final=arguments.final,
            output=arguments.output,
            output_every=_output_every(arguments),
            json=None if arguments.json == "-" else arguments.json,
            terminal=terminal if runtime.comm.size == 1 else None,
            overlap=_overlap(arguments.overlap),
            every=plan.every,
            resizes=frozenset(plan.resizes),
        )
    except InputError as error:
        problem = str(error)
    dmr.raise_on_all(runtime.comm, problem)
    if config is None:
        raise RuntimeError("expected a configuration or an error")
    config = replace(config, backend=_common_backend(runtime.comm, config.backend))
    if config.backend == "cupy":
        from mpdata.numerics.cuda.tuning import store_path

        config = replace(config, tuned=store_path(os.environ))
    if arguments.backend == "auto" and runtime.manager is None:
        # The next world computes as this one does; where an RMS places it, its slots decide.
        runtime.command += ("--backend", config.backend)
    app = Advection(config)
    if config.backend == "cupy":
        _take_device(app, runtime.comm, share=arguments.share_gpu)
    dmr.run(app, runtime, replace(plan, options=config.options))
    if app.result is not None:
        if arguments.json == "-":
            emit_json(arguments.json, app.result)
        else:
            if not (arguments.case or arguments.winds or arguments.input):
                print("using the default case sphere; mpdata cases lists all cases")
            print(_summary(app.result), flush=True)
    return 0


def _summary(result: Mapping[str, Any]) -> str:
    """Return the lines of a result for a terminal."""
    mass = result["mass_initial"]
    change = (result["mass_final"] - mass) / mass if mass else result["mass_final"]
    speed = result["ns_per_cell_step"]
    tracers = result.get("tracers", [])
    of_tracer = ", tracer" if tracers else ""
    lines = [
        f"case {result['case']}, grid {' x '.join(map(str, result['grid']))}, "
        f"{result['steps']} steps, {result['dtype']}, {result['backend']}, "
        f"{result['ranks']} ranks at the end",
        f"loop {result['seconds']:.3f} s"
        + (f", {speed:.2f} ns per cell{of_tracer} and step" if speed else "")
        + f", {result['bytes_per_cell']:.0f} bytes per cell",
        f"min {result['min']:.9g}, max {result['max']:.9g}, mass {result['mass_final']:.12g} "
        f"(relative change {change:.2e})",
    ]
    if result["errors"]:
        norms = ", ".join(f"{name} {value:.6g}" for name, value in result["errors"].items())
        lines.append(f"error {norms}")
    lines.append(f"sha256 {result['sha256']}")
    for tracer in tracers[1:]:
        lines.append(
            f"{tracer['name']}: min {tracer['min']:.9g}, max {tracer['max']:.9g}, "
            f"mass {tracer['mass_final']:.12g}, sha256 {tracer['sha256']}"
        )
    return "\n".join(lines)


def _wanted_backend(text: str, runtime: Any) -> str:
    """Return the backend meant by ``NAME`` or, one for cores and one for GPUs, ``NAME,NAME``."""
    names = text.split(",")
    if len(names) > 2 or (len(names) == 2 and not set(names) <= set(BACKENDS)):
        raise InputError(f"expected a backend, or one for cores and one for GPUs, got {text!r}")
    found: str = runtime.backend_of(names[0], names[-1])
    return found


def _common_backend(comm: Any, name: str) -> str:
    """Return the backend of all ranks (collective): ``auto`` may find GPUs on some nodes only."""
    found = set(comm.allgather(name))
    return name if len(found) == 1 else choose_backend("numba")


def _take_device(app: Any, comm: Any, *, share: bool) -> None:
    """Give every rank its GPU (collective).

    Raises:
        dmr.UsageError: more ranks than GPUs, or too little memory.
    """
    import dmr
    from mpdata.parallel.devices import take_device

    try:
        needed = app.device_bytes(comm.size, comm.rank)
    except dmr.UsageError:
        needed = 0  # dmr.run says so, on all ranks
    dmr.raise_on_all(comm, take_device(comm, needed, share=share))


def _setup(arguments: argparse.Namespace, env: Mapping[str, str]) -> Setup:
    _positive(arguments.tracers, "tracer", "--tracers")
    for option in ("courant", "days"):
        if arguments.velocities is not None and getattr(arguments, option) is not None:
            raise InputError(
                f"--velocities brings its own face values; expected no --{option} with it, got "
                f"{getattr(arguments, option):g}"
            )
    setup = _input_setup(arguments) if arguments.input is not None else _case(arguments, env)
    return setup if arguments.velocities is None else with_velocities(setup, arguments.velocities)


def _case(arguments: argparse.Namespace, env: Mapping[str, str]) -> Setup:
    boundaries = None if arguments.boundary is None else parse_boundaries(arguments.boundary)
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"expected at least 1 step, got {arguments.steps}")
    name = arguments.case or ("winds" if arguments.winds else "sphere")
    if arguments.winds and name != "winds":
        raise InputError(f"expected case winds with --winds, got {name!r}")
    if arguments.days is not None and name != "winds":
        raise InputError(f"expected case winds with --days, got {name!r}")
    winds = arguments.winds or (_usual_winds(env) if name == "winds" else None)
    return make_setup(
        name,
        Request(
            grid=tuple(arguments.grid) if arguments.grid else None,
            boundaries=boundaries,
            steps=arguments.steps,
            courant=arguments.courant,
            angle=arguments.angle,
            seed=arguments.seed,
            winds=tuple(winds) if winds else None,
            month=arguments.month,
            days=arguments.days,
            tracers=arguments.tracers,
        ),
    )


def _input_setup(arguments: argparse.Namespace) -> Setup:
    for option in ("case", "winds", "grid", "courant", "angle", "days"):
        if getattr(arguments, option) is not None:
            raise InputError(
                f"--input brings its own grid and face values; expected no --{option} with it"
            )
    if arguments.steps is None:
        raise InputError("expected --steps K with --input, got none")
    _positive(arguments.steps, "step", "--steps")
    return array_case(
        arguments.input,
        parse_boundaries(arguments.boundary or "periodic"),
        arguments.steps,
        arguments.tracers,
        flow=arguments.velocities is None,
    )


def _usual_winds(env: Mapping[str, str]) -> tuple[Path, Path] | None:
    """Return the wind files of the folder MPDATA_WINDS, or of the demo where it has been run."""
    for folder in (env.get("MPDATA_WINDS"), "demo/winds"):
        if folder is not None:
            pair = Path(folder) / "uwnd_mean.nc", Path(folder) / "vwnd_mean.nc"
            if all(path.is_file() for path in pair):
                return pair
    return None


def _scheme(arguments: argparse.Namespace) -> Scheme:
    if arguments.gauge not in ("standard", "infinite"):
        raise InputError(f"expected a gauge of standard, infinite, got {arguments.gauge!r}")
    return Scheme(
        arguments.iterations,
        arguments.limiter,
        arguments.gauge == "infinite",
        arguments.third_order,
        arguments.divergent_flow,
    )


def _dtype(name: str) -> np.dtype[Any]:
    if name not in ("f8", "f4"):
        raise InputError(f"expected a dtype of f8, f4, got {name!r}")
    return np.dtype(name)


def _positive(value: int, what: str, option: str) -> int:
    if value < 1:
        raise InputError(f"expected at least 1 {what} in {option}, got {value}")
    return value


def _overlap(name: str) -> str:
    if name not in OVERLAP:
        raise InputError(f"expected an overlap of {', '.join(OVERLAP)}, got {name!r}")
    return name


def _output_every(arguments: argparse.Namespace) -> int:
    if arguments.output_every < 0 or (arguments.output_every > 0) != (arguments.output is not None):
        raise InputError(
            "expected --output FILE.h5 and --output-every S (at least 1) together, got "
            f"--output {arguments.output} and --output-every {arguments.output_every}"
        )
    return int(arguments.output_every)


def _plan(arguments: argparse.Namespace) -> Any:
    import dmr

    for target, option, regular in (
        (arguments.json, "--json", False),
        (arguments.final, "--final", True),
        (arguments.output, "--output", True),
        (arguments.completion, "--completion", False),
    ):
        problem = check_writable(target, option, regular=regular)
        if problem is not None:
            raise InputError(problem)
    every, folder = arguments.checkpoint_every, arguments.checkpoint_dir
    if every < 0:
        raise InputError(f"expected at least 0 steps in --checkpoint-every, got {every}")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"expected a folder in --checkpoint-dir, got {folder}, which is a file")
    if folder is None and (every or arguments.restart):
        raise InputError("expected --checkpoint-dir D with --checkpoint-every or --restart")
    resizes, backends = parse_resizes(arguments.resize_at or "")
    return dmr.Plan(
        every=_positive(arguments.every, "step", "--every"),
        resizes=resizes,
        backends=backends,
        strategy=arguments.strategy,
        cooldown_s=arguments.cooldown,
        checkpoint=None if folder is None else dmr.Schedule(folder, every),
        restart=arguments.restart,
    )


def parse_resizes(text: str) -> tuple[dict[int, int], dict[int, str]]:
    """Read ``STEP:RANKS[@BACKEND][,...]``, steps rising: ranks and backends by step.

    Raises:
        InputError: anything else.
    """
    from dmr.plan import parse_resizes as parse

    try:
        return parse(text, "--resize-at ")
    except ValueError as error:
        raise InputError(str(error)) from None
