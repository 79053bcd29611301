"""What a run says of its fields: figures, hashes, files, its JSON. All of it is collective."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

import dmr
from dmr.data.gather import slabs
from dmr.errors import words_of
from mpdata.errors import InputError
from mpdata.parallel.config import RunConfig
from mpdata.parallel.diagnostics import Diagnostics, FinalWriter
from rms.wire.files import OutputError
from rms.wire.terminal import emit_json

if TYPE_CHECKING:
    from dmr.checkpoint.files import WriteBehindFile

DURATIONS = 1000
"""Durations of steps that are kept: the last so many."""


def note_duration(run: dmr.Run, seconds: float) -> None:
    """Keep the duration of a step; they travel with the job, so only the last are kept.

    The first two steps of a run count only where there are no others.
    """
    kept = run.state["step_s"]
    if run.step == 2:
        kept.clear()
    kept.append(seconds)
    del kept[:-DURATIONS]


def ns_per_cell_step(config: RunConfig, durations: list[float]) -> float | None:
    """Return the median of the kept steps per cell, step and tracer, in nanoseconds."""
    n, m, el = config.setup.grid
    work = n * m * el * len(config.setup.tracers)
    return median(durations) * 1e9 / work if durations else None


def diagnose(config: RunConfig, run: dmr.Run, *, final: bool = False) -> list[Diagnostics]:
    """Return the figures of every tracer, on rank 0; write the final field where that is asked.

    Raises:
        dmr.CollectiveError: a tracer is not finite (at the start that is a UsageError), or the
            final field could not be written.
    """
    setup, first = config.setup, run.world.rank == 0
    names = list(setup.tracers)
    writer, sink = None, None
    if final and config.final is not None:
        path = config.final.resolve()  # a link stays
        sink = _opened(run, path.with_name(path.name + ".part"))
        if sink is not None:
            writer = FinalWriter(sink, setup.grid, config.dtype, len(names))
    # The answer is known of the first tracer alone.
    found = [Diagnostics(setup, compare=final and name == "psi") for name in names]
    for number, name in enumerate(names):
        for box, values in slabs(run.world.internal_comm, run.fields[name]):
            if values is not None:
                found[number].add(box.start[0], values)
                if writer is not None:
                    writer.add(box.start[0], values, number)
    problem = _not_finite(names, found, "end" if final else "start") if first else None
    if sink is not None and config.final is not None:
        problem = _settle(sink, config.final, problem)
    problem = run.world.comm.bcast(problem)
    if problem is not None:
        raise dmr.CollectiveError(problem) if final else dmr.UsageError(problem)
    return found


def _not_finite(names: list[str], found: list[Diagnostics], when: str) -> str | None:
    for name, one in zip(names, found, strict=True):
        if one.wrong:
            return (
                f"expected finite values at the {when}, got NaN or inf in {one.wrong} cells "
                f"of {name}"
            )
        if not isfinite(one.mass):
            return f"expected a finite mass at the {when}, got {one.mass} for {name}"
    return None


def _opened(run: dmr.Run, path: Path) -> WriteBehindFile | None:
    """Open a new file, on rank 0.

    Raises:
        dmr.CollectiveError: it cannot be had.
    """
    from dmr.checkpoint.files import WriteBehindFile

    sink, problem = None, None
    if run.world.rank == 0:
        try:
            sink = WriteBehindFile(path)
        except OSError as error:
            problem = f"cannot write {path}: {words_of(error)}"
    _raise_of_root(run, problem)
    return sink


def _raise_of_root(run: dmr.Run, problem: str | None) -> None:
    """Raise the problem of rank 0 on all ranks, if it has one (collective)."""
    problem = run.world.comm.bcast(problem)
    if problem is not None:
        raise dmr.CollectiveError(problem)


def write_json(target: str | None, run: dmr.Run, stated: dict[str, Any] | None) -> None:
    """Write the JSON of a run to a file, if there is one, from rank 0 (collective).

    Raises:
        dmr.CollectiveError: it cannot be written.
    """
    problem = None
    if target is not None and run.world.rank == 0:
        try:
            emit_json(target, stated)
        except OutputError as error:
            problem = str(error)
    _raise_of_root(run, problem)


def _settle(sink: WriteBehindFile, path: Path, problem: str | None) -> str | None:
    """Put the final field in its place, or throw it away; return what is wrong."""
    part = Path(sink.name)
    sink.close()
    if problem is None and sink.problem is not None:
        problem = f"cannot write {path}: {words_of(sink.problem)}"
    try:
        if problem is None:
            part.replace(path.resolve())
        else:
            part.unlink()
    except OSError as error:
        problem = problem or f"cannot write {path}: {words_of(error)}"
    return problem


def write_frame(config: RunConfig, run: dmr.Run, step: int, *, first: bool = False) -> None:
    """Add the fields to the output file, if there is one; ``first`` starts it anew.

    Raises:
        dmr.UsageError: the file cannot be opened for that.
        dmr.CollectiveError: there is no room for the frame; those before it are whole.
    """
    named = config.output
    if named is None or not config.output_every:
        return
    from dmr.checkpoint.files import WriteBehindFile
    from mpdata.parallel import output

    path = named.resolve()  # a link stays
    frame, sink, problem, new = None, None, None, False
    if run.world.rank == 0:
        try:
            new = first or not path.exists()
            if new:
                path.parent.mkdir(parents=True, exist_ok=True)
                sink = WriteBehindFile(path)
                output.create(sink, config.setup, config.dtype)
                sink.close()
            if sink is None or sink.problem is None:
                sink = WriteBehindFile(path, "r+")
                frame = output.Frame(sink, step, step * run.state["scale"])
        except InputError as error:
            problem = str(error)
        except OSError as error:
            problem = f"cannot write {named}: {words_of(error)}"
    dmr.raise_on_all(run.world.comm, problem)
    for name in config.setup.tracers:
        for box, values in slabs(run.world.internal_comm, run.fields[name]):
            if frame is not None and values is not None:
                frame.add(box.start[0], values, name)
    if frame is not None:
        frame.close()
    if sink is not None:
        sink.close()
        if sink.problem is not None:
            problem = f"cannot write step {step} to {named}: {words_of(sink.problem)}"
            if new:  # without a whole frame nothing can be read from it
                path.unlink(missing_ok=True)
        else:
            problem = _describe(path)
    _raise_of_root(run, problem)


def _describe(path: Path) -> str | None:
    """Write what is in the output file for ParaView; return what is wrong."""
    try:
        from mpdata.parallel import output

        output.write_xdmf(path)
    except OSError as error:
        return f"cannot write {path.with_suffix('.xmf')}: {words_of(error)}"
    return None


def result(
    config: RunConfig, run: dmr.Run, found: list[Diagnostics], bytes_used: int
) -> dict[str, Any]:
    """Return the JSON of ``mpdata run`` (CLI.md); the keys on top are about ``psi``."""
    setup = config.setup
    grid, psi = setup.grid, found[0]
    ns = ns_per_cell_step(config, run.state["step_s"])
    stated = {
        "case": setup.case,
        "grid": list(grid),
        "steps": run.step,
        "dtype": f"f{config.dtype.itemsize}",
        "backend": config.backend,
        "options": {
            **config.options,
            "backend": config.backend,
            "threads": config.threads,
            "halo": config.scheme.halo,
            "overlap": config.overlap,
        },
        "ranks": run.world.size,
        "seconds": run.elapsed_s,
        "ns_per_cell_step": ns,
        "gcells_per_s": 1 / ns if ns else None,
        "mass_initial": run.state["mass_initial"][0],
        "mass_final": psi.mass,
        "min": psi.min,
        "max": psi.max,
        "errors": psi.errors,
        "sha256": psi.sha256,
        "resizes": msgspec.to_builtins(run.resizes),
        "energy_j": None,
        "energy_source": None,
        "bytes_per_cell": bytes_used / (grid[0] * grid[1] * grid[2]),
    }
    if len(found) > 1:
        stated["tracers"] = [
            {
                "name": name,
                "mass_initial": mass,
                "mass_final": one.mass,
                "min": one.min,
                "max": one.max,
                "sha256": one.sha256,
            }
            for name, mass, one in zip(setup.tracers, run.state["mass_initial"], found, strict=True)
        ]
    return stated
