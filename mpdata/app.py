"""MPDATA as a malleable program: the only place where mpdata meets dmr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import msgspec
import numpy as np

import dmr
from dmr.gather import slabs
from mpdata import output
from mpdata.backends import make_stepper
from mpdata.cases import Setup
from mpdata.cases.setup import open_mesh
from mpdata.diagnostics import Diagnostics, FinalWriter
from mpdata.errors import InputError
from mpdata.flow import Sample, sample, scale_for, scaled, steps_for, unstable
from mpdata.geometry import Geometry
from mpdata.halo import HaloExchange
from mpdata.options import Scheme
from mpdata.report import Ticker
from rms.commandline import emit_json


@dataclass(frozen=True)
class RunConfig:
    """What ``mpdata run`` was asked for, checked."""

    setup: Setup
    scheme: Scheme
    dtype: np.dtype[Any]
    backend: str
    threads: int = 1
    final: Path | None = None
    output: Path | None = None
    output_every: int = 0
    json: str | None = None
    terminal: IO[str] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide the answer, for reports and for checkpoints."""
        return {
            "case": self.setup.case,
            "iterations": self.scheme.iterations,
            "limiter": self.scheme.limiter,
            "gauge": "infinite" if self.scheme.infinite_gauge else "standard",
            "third_order": self.scheme.third_order,
            "divergent_flow": self.scheme.divergent_flow,
            "boundary": ",".join(str(b) for b in self.setup.boundaries),
            "backend": self.backend,
            **dict(self.setup.identity),
        }


class Advection(dmr.Application):
    """The application: one field, one flow, one step."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.result: dict[str, Any] | None = None

    def fields(self) -> Mapping[str, dmr.FieldSpec]:
        """State psi: an axis of one cell has no halo; face arrays share its shape (Geometry)."""
        setup, halo = self.config.setup, self.config.scheme.halo
        sides = tuple((halo, halo + 1) if n > 1 else (0, 0) for n in setup.grid)
        return {
            "psi": dmr.FieldSpec(
                setup.grid, self.config.dtype, self._initial, halo=sides, thinnest=halo
            )
        }

    def _initial(self, box: dmr.Box) -> Any:
        return self.config.setup.initial(*_mesh(box))

    def build(self, run: dmr.Run) -> None:
        """Evaluate the flow on this world's block and set up scratch and communication."""
        config, psi, comm = self.config, run.fields["psi"], run.world.comm
        setup, scheme = config.setup, config.scheme
        self.geometry = Geometry(
            setup.grid, _three(psi.box.start), _three(psi.box.stop), scheme.halo, setup.boundaries
        )
        raw = self._sample(run)
        if "scale" not in run.values:
            peak = max(comm.allgather(raw.peak), key=lambda p: p.value)
            run.values["scale"] = scale_for(setup, peak)
            problem = unstable(peak, run.values["scale"])
            if problem is not None:
                raise dmr.UsageError(problem)
            self._check_sign(run)
        self.flow = scaled(raw, self.geometry, run.values["scale"], config.dtype, psi.scratch)
        self.stepper = make_stepper(
            config.backend, self.geometry, scheme, self.flow, psi.scratch, config.threads
        )
        self.stepper.warm()
        self.halo = HaloExchange(comm, self.geometry, self._neighbours(run), psi.padded)
        self.ticker = Ticker(run, self.steps(run), config.terminal)
        if "mass_initial" not in run.values:
            run.values["mass_initial"] = self._diagnose(run).mass
            run.values["step_s"] = []
            self._output(run, 0, first=True)

    def steps(self, run: dmr.Run) -> int:
        """Return the case's steps, or as many as make up its duration."""
        return steps_for(self.config.setup, run.values["scale"])

    def step(self, run: dmr.Run) -> None:
        """Fill the halo and advance by one step."""
        clock, psi = run.runtime.clock, run.fields["psi"]
        begun = clock()
        self.halo.fill(psi.padded)
        self.stepper.advance(psi.padded, psi.spare, self.flow.C)
        psi.flip()
        run.values["step_s"].append(clock() - begun)
        done = run.step + 1
        self.ticker.tick(done)
        every = self.config.output_every
        if every and done % every == 0:
            self._output(run, done)

    def finish(self, run: dmr.Run) -> None:
        """Report on the answer, from the last world."""
        self.ticker.close()
        found = self._diagnose(run, final=True)
        bytes_here = self._bytes(run)
        used = run.world.comm.allreduce(bytes_here)
        if run.world.rank == 0:
            self.result = self._result(run, found, used)
            run.values["answer"] = found.sha256  # goes into the completion record
            if self.config.json is not None:
                emit_json(self.config.json, self.result)

    def _sample(self, run: dmr.Run) -> Sample:
        """Evaluate the flow; what one rank finds wrong, all ranks raise."""
        raw, problem = None, None
        try:
            raw = sample(self.config.setup, self.geometry)
        except InputError as error:
            problem = str(error)
        dmr.agree(run.world.comm, problem)
        if raw is None:
            raise RuntimeError("expected a flow or an error")
        return raw

    def _check_sign(self, run: dmr.Run) -> None:
        """The ratios of the standard gauge need a psi of one sign."""
        inside = run.fields["psi"].interior
        ends = run.world.comm.allgather((float(inside.min()), float(inside.max())))
        outside = [b.value for b in self.config.setup.boundaries if b.kind == "fixed"]
        low = min([low for low, _ in ends] + outside)
        high = max([high for _, high in ends] + outside)
        if low < 0 < high and not self.config.scheme.any_sign:
            raise dmr.UsageError(
                "expected psi of one sign (or --gauge infinite, or --iterations 1), got values "
                f"from {low:g} to {high:g}"
            )

    def _neighbours(self, run: dmr.Run) -> dict[int, tuple[int | None, int | None]]:
        layout, rank = run.fields["psi"].layout, run.world.rank
        found = {}
        for axis in layout.split:
            if layout.parts_along(axis) > 1:
                around = self.config.setup.boundaries[axis].kind == "periodic"
                found[axis] = (
                    layout.neighbour(rank, axis, -1, periodic=around),
                    layout.neighbour(rank, axis, +1, periodic=around),
                )
        return found

    def _slabs(self, run: dmr.Run) -> Iterator[tuple[int, Any]]:
        for box, values in slabs(run.world.comm, run.fields["psi"]):
            if values is not None:
                yield box.start[0], values

    def _diagnose(self, run: dmr.Run, *, final: bool = False) -> Diagnostics:
        found = Diagnostics(self.config.setup, compare=final)
        writer = None
        if final and self.config.final is not None and run.world.rank == 0:
            writer = FinalWriter(self.config.final, self.config.setup.grid, self.config.dtype)
        for start, values in self._slabs(run):
            found.add(start, values)
            if writer is not None:
                writer.add(start, values)
        if writer is not None:
            writer.close()
        return found

    def _output(self, run: dmr.Run, step: int, *, first: bool = False) -> None:
        path, every = self.config.output, self.config.output_every
        if path is None or not every:
            return
        frame, problem = None, None
        if run.world.rank == 0:
            try:
                if first or not path.exists():
                    output.create(path, self.config.setup, self.config.dtype)
                frame = output.Frame(path, step, step * run.values["scale"])
            except InputError as error:
                problem = str(error)
        dmr.agree(run.world.comm, problem)
        for start, values in self._slabs(run):
            if frame is not None:
                frame.add(start, values)
        if frame is not None:
            frame.close()

    def _bytes(self, run: dmr.Run) -> int:
        psi = run.fields["psi"]
        return int(psi.storage.nbytes + psi.spare.nbytes) + sum(
            part.nbytes for part in (self.flow, self.stepper, self.halo)
        )

    def _result(self, run: dmr.Run, found: Diagnostics, used: int) -> dict[str, Any]:
        """Return the JSON of ``mpdata run`` (CLI.md)."""
        grid = self.config.setup.grid
        cells = grid[0] * grid[1] * grid[2]
        steady = run.values["step_s"][2:] or run.values["step_s"]
        ns = median(steady) * 1e9 / cells if steady else None
        return {
            "case": self.config.setup.case,
            "grid": list(grid),
            "steps": run.step,
            "dtype": f"f{self.config.dtype.itemsize}",
            "backend": self.config.backend,
            "options": {
                **self.config.options,
                "threads": self.config.threads,
                "halo": self.config.scheme.halo,
            },
            "ranks": run.world.size,
            "seconds": run.elapsed_s,
            "ns_per_cell_step": ns,
            "gcells_per_s": 1 / ns if ns else None,
            "mass_initial": run.values["mass_initial"],
            "mass_final": found.mass,
            "min": found.min,
            "max": found.max,
            "errors": found.errors,
            "sha256": found.sha256,
            "resizes": msgspec.to_builtins(run.resizes),
            "energy_j": None,
            "energy_source": None,
            "bytes_per_cell": used / cells,
        }


def _mesh(box: dmr.Box) -> Any:
    i, j, k = (np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True))
    return open_mesh(i, j, k)


def _three(values: tuple[int, ...]) -> tuple[int, int, int]:
    a, b, c = values
    return a, b, c
