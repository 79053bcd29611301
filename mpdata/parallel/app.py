"""MPDATA as a malleable program: with answer.py the only place where mpdata meets dmr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np

import dmr
from dmr.data.decomposition import ALIGNMENT_BYTES
from dmr.data.exchange import Boundary as Ends
from dmr.data.exchange import End
from dmr.world import grid_for
from mpdata.backends import (
    BACKENDS,
    StepperResources,
    array_module,
    make_stepper,
    make_stopwatch,
    scratch_arrays,
)
from mpdata.cases.setup import open_mesh
from mpdata.errors import InputError
from mpdata.flow.faces import (
    MaxCourant,
    fill_faces,
    largest,
    make_flow,
    scale_for,
    steps_for,
    unstable,
)
from mpdata.flow.velocities import make_velocities, max_courant_over_time, scales_later
from mpdata.grid import Geometry, fill_pole
from mpdata.options import LATITUDE, Boundaries, Boundary, polar
from mpdata.parallel import answer
from mpdata.parallel.config import RunConfig
from mpdata.parallel.progress import Ticker

__all__ = ["Advection", "RunConfig"]

T = TypeVar("T")

CACHE_LINE_BYTES = 64
"""What rows are padded to on the host: more would be fetched and not used."""


class Advection(dmr.Application):
    """The application: some tracers, one flow, one step."""

    backends = BACKENDS

    def __init__(self, config: RunConfig) -> None:
        self.config, self.xp = config, array_module(config.backend)
        self.result: dict[str, Any] | None = None
        self._set_up_for: dmr.Box | None = None
        self._held: float | None = None

    def fields(self) -> Mapping[str, dmr.FieldSpec]:
        """Return every tracer, with the layer more that face arrays have (Geometry)."""
        setup, halo = self.config.setup, self.config.scheme.halo
        sides = tuple((halo, halo) if n > 1 else (0, 0) for n in setup.grid)
        # Beyond a pole lies the other half of the circle: no rank has only a part of one.
        split = (LATITUDE,) if polar(setup.grid, setup.boundaries) else (0, 1)
        return {
            name: dmr.FieldSpec(
                setup.grid,
                self.config.dtype,
                partial(_on_box, initial),
                halo=sides,
                extra=1,
                split=split,
                xp=self.xp,
                thinnest=halo,
                alignment=CACHE_LINE_BYTES if self.xp is np else ALIGNMENT_BYTES,
            )
            for name, initial in setup.tracers.items()
        }

    def device_bytes(self, ranks: int, rank: int) -> int:
        """Return the device memory that a rank of a world needs, 0 for a backend on the host.

        Raises:
            dmr.UsageError: no process grid of so many ranks.
        """
        if self.xp is np:
            return 0
        specs = self.fields()
        spec, setup = specs["psi"], self.config.setup
        interior = spec.decompose(grid_for(ranks, list(specs.values()))).box(rank).shape
        active = sum(n > 1 for n in setup.grid)
        faces = active if setup.time_levels is None else 3 * active
        scratch = scratch_arrays(self.config.backend, self.config.scheme, active)
        arrays = 2 * len(specs) + 1 + faces + scratch
        # One field more, on its way from the host into the first.
        on_its_way = prod(interior) * self.config.dtype.itemsize
        return arrays * spec.memory_layout(interior).allocation_bytes + on_its_way

    def prepare(self, run: dmr.Run) -> None:
        """Do early what needs no data: the flow on this block, scratch, compiled kernels.

        The scale of the flow travels with the data. A steady flow is evaluated here all the same:
        unscaled where that is as good, else with a scale found out anew.
        """
        self._set_up(run)
        setup, dtype, flow = self.config.setup, self.config.dtype, self.flow
        if setup.time_levels is None and setup.face_at is None:
            scale = 1.0 if scales_later(setup, dtype) else scale_for(setup, self._max_courant(run))
            _together(run, lambda: fill_faces(flow.C, setup, self.geometry, scale, flow.xp))
            self._held = scale

    def _set_up(self, run: dmr.Run) -> None:
        config, psi = self.config, run.fields["psi"]
        # A rank that stays has no room for what it built for the world before.
        for name in ("flow", "stepper", "velocities", "geometry"):
            self.__dict__.pop(name, None)
        self.geometry = geometry = Geometry(
            config.setup.grid,
            _three(psi.box.start),
            _three(psi.box.stop),
            config.scheme.halo,
            config.setup.boundaries,
        )
        self.flow = _together(
            run, lambda: make_flow(config.setup, geometry, config.dtype, psi.scratch, self.xp)
        )
        self.stepper = make_stepper(
            config.backend,
            geometry,
            config.scheme,
            self.flow,
            psi.scratch,
            StepperResources(config.threads, config.tuned),
        )
        self.stepper.warm()
        self._set_up_for, self._held = psi.box, None

    def build(self, run: dmr.Run) -> None:
        """Evaluate the flow on this world's block, and set up scratch and the order of a step."""
        config, psi, setup = self.config, run.fields["psi"], self.config.setup
        if self._set_up_for != psi.box:
            self._set_up(run)
        self._set_up_for = None
        geometry = self.geometry
        if "scale" not in run.state:
            self._check(run)
        scale = run.state["scale"]
        self.velocities = _together(
            run, lambda: make_velocities(setup, geometry, self.flow, scale, psi.scratch, self._held)
        )
        self.watch = make_stopwatch(config.backend, run.runtime.clock)
        self.ends = ends_of(setup.boundaries)
        low, high = self.ready = psi.ready(self.ends)
        # On a CPU every part of a split step computes planes again that the others have: more
        # than a message takes. On a device the parts cost nothing and the copies do.
        wanted = config.overlap == "on" or (config.overlap == "auto" and self.xp is not np)
        self.overlaps = wanted and self.stepper.splits and 0 < high - low < geometry.interior[0]
        self.ticker = Ticker(run, self.steps(run), config.terminal if run.world.rank == 0 else None)
        if "mass_initial" not in run.state:
            run.state["mass_initial"] = [one.mass for one in answer.diagnose(config, run)]
            run.state["step_s"] = []
            answer.write_frame(config, run, 0, first=True)
        self.watch.settle()

    def steps(self, run: dmr.Run) -> int:
        """Return the case's steps, or as many as make up its duration."""
        return steps_for(self.config.setup, run.state["scale"])

    def step(self, run: dmr.Run) -> None:
        """Set the flow of this step, then fill the halo of every tracer and advance it."""
        self.watch.start()
        if self.velocities.may_fail(run.step):
            _together(run, lambda: self.velocities.move_to(run.step))
        else:
            self.velocities.move_to(run.step)
        for psi in run.fields.values():
            self._advance(psi)
        self.watch.stop()
        done = run.step + 1
        if self.config.pauses(done, self.steps(run)):
            for seconds in self.watch.taken():
                answer.note_duration(run, seconds)
        self.ticker.tick(done)
        every = self.config.output_every
        if every and (done % every == 0 or done == self.steps(run)):
            answer.write_frame(self.config, run, done)

    def finish(self, run: dmr.Run) -> None:
        """Report on the answer, from the last world."""
        self.ticker.close()
        found = answer.diagnose(self.config, run, final=True)
        used = run.world.comm.allreduce(self._bytes(run))
        if run.world.rank == 0:
            self.result = answer.result(self.config, run, found, used)
            run.state["answer"] = found[0].sha256  # goes into the completion record
        answer.write_json(self.config.json, run, self.result)

    def _advance(self, psi: dmr.Field) -> None:
        before, after, C = psi.padded, psi.spare, self.flow.C
        # What overflows is counted and said at the end, not by a warning in every step.
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.overlaps:
                psi.exchange(self.ends)
                fill_pole(before, self.geometry)
                self.stepper.advance(before, after, C)
            else:
                low, high = self.ready
                psi.start_exchange(self.ends)
                self.stepper.advance(before, after, C, (low, high))
                psi.finish_exchange()
                for layers in ((0, low), (high, self.geometry.interior[0])):
                    if layers[0] < layers[1]:
                        self.stepper.advance(before, after, C, layers)
        psi.flip()

    def _check(self, run: dmr.Run) -> None:
        """Look at the whole flow and every tracer before the first step; settle the scale."""
        config, comm, highest = self.config, run.world.comm, self._max_courant(run)
        run.state["scale"] = scale_for(config.setup, highest)
        problem = unstable(highest, run.state["scale"])
        for name, block in run.fields.items():
            inside = block.interior
            ends = np.array(comm.allgather((float(inside.min()), float(inside.max()))))
            low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
            problem = problem or config.refusal(name, low, high)
        if problem is not None:
            raise dmr.UsageError(problem)

    def _max_courant(self, run: dmr.Run) -> MaxCourant:
        """Return the largest outgoing sum over all blocks (collective)."""
        mine = _together(run, lambda: max_courant_over_time(self.config.setup, self.geometry))
        return largest(run.world.comm.allgather(mine))

    def _bytes(self, run: dmr.Run) -> int:
        """Return the bytes of all arrays that this rank holds."""
        fields: int = sum(field.nbytes for field in run.fields.values())
        return fields + self.flow.nbytes + self.velocities.nbytes + self.stepper.nbytes


def ends_of(boundaries: Boundaries) -> tuple[Ends, ...]:
    """Return what lies beyond the grid along each axis, as :meth:`dmr.Field.exchange` takes it.

    The exchange leaves the halo beyond a pole to :func:`mpdata.grid.fill_pole`.
    """

    def outside(end: Boundary) -> End:
        if end.kind == "fixed":
            return end.value
        return None if end.kind == "pole" else "edge"

    return tuple(
        "periodic" if pair.periodic else (outside(pair.low), outside(pair.high))
        for pair in boundaries
    )


def _together(run: dmr.Run, work: Callable[[], T]) -> T:
    """Return what ``work`` returns; what one rank finds wrong, all ranks raise."""
    done: list[T] = []
    problem = None
    try:
        done.append(work())
    except InputError as error:
        problem = str(error)
    dmr.raise_on_all(run.world.comm, problem)
    return done[0]


def _on_box(initial: Callable[..., Any], box: dmr.Box) -> Any:
    i, j, k = (np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True))
    return initial(*open_mesh(i, j, k))


def _three(values: tuple[int, ...]) -> tuple[int, int, int]:
    a, b, c = values
    return a, b, c
