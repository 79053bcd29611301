"""An engine driven by hand: starts begin at once, resizes take no time. Streams for simulations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace
from specs import job_spec

from rms.core.model.events import (
    Decision,
    Event,
    Resize,
    ResizeBegun,
    Resized,
    Start,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Speedup
from rms.core.policies import Policy, named
from rms.core.scheduler.engine import Engine
from rms.sim.simulator import Simulation

FIXED, MOLDABLE, MALLEABLE, FLEXIBLE = Mode


def job(
    number: int,
    sizes: tuple[int, ...],
    mode: Mode = FIXED,
    *,
    run_s: float = 100.0,
    at_s: float = 0.0,
    limit_s: float | None = None,
    every_s: float | None = 10.0,
    price_s: float = 0.0,
    **array: Any,
) -> JobSpec:
    """A job of ``(min, preferred, max)`` nodes, or of one size; ``run_s`` at the preferred one."""
    low, preferred, high = sizes if len(sizes) == 3 else sizes * 3
    return job_spec(
        number,
        (low, preferred, high),
        mode,
        at_s,
        speedup=Speedup(law=(run_s * preferred, 0.0)),
        limit_s=limit_s,
        resize_every_s=every_s,
        resize_price_s=price_s,
        **array,
    )


class Driven:
    """An engine whose starts begin at once, and whose resizes take no time unless held."""

    def __init__(
        self, nodes: int, policy: str | Policy = "backfill-share", *, prompt: bool = True
    ) -> None:
        self.engine = Engine(nodes, named(policy) if isinstance(policy, str) else policy)
        self.prompt = prompt

    def happen(self, *events: Event) -> list[tuple[str, int]]:
        """Return who was started or resized, and at which size."""
        found: list[tuple[str, int]] = []
        for event in events:
            found += self._follow(event.at_s, self.engine.handle(event))
        return found

    def submit(self, *specs: JobSpec) -> list[tuple[str, int]]:
        at_s = max(specs[0].submit_s, self.engine.state.now_s)
        return self.happen(Submitted(at_s, specs))

    def _follow(self, at_s: float, decisions: list[Decision]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for each in decisions:
            if isinstance(each, Start):
                found.append((str(each.job), each.size))
                self.engine.handle(Started(at_s, each.job))
            elif isinstance(each, Resize):
                found.append((str(each.job), each.size))
                if self.prompt:
                    found += self.happen(ResizeBegun(at_s, each.job), Resized(at_s, each.job))
        return found

    def why(self, number: int) -> str:
        later = self.engine.explain(JobId(str(number)))
        assert later is not None
        return later.reason


@dataclass(frozen=True)
class Kind:
    """What the jobs of a stream may be.

    Attributes:
        longer: how many times its run time at the preferred size a job requests; None for no limit.
        laws: whether a speedup is stated; else only the run time at the preferred size is known.
        prices, points: of their resizes, in s.
        arrays: names and limits of their arrays.
        accounts, priorities: of their users.
        most: so many jobs at most.
        nodes: of the cluster.
        low: the least size of those that have several, or None for any.
    """

    modes: tuple[Mode, ...] = tuple(Mode)
    longer: tuple[float | None, ...] = (None, 1.0, 1.5, 4.0)
    laws: tuple[bool, ...] = (False, True)
    prices: tuple[float, ...] = (0.0,)
    points: tuple[float | None, ...] = (1.0, 7.0)
    arrays: tuple[tuple[str | None, int | None], ...] = ((None, None),)
    accounts: tuple[str, ...] = ("",)
    priorities: tuple[int, ...] = (0,)
    most: int = 25
    nodes: int = 8
    low: int | None = None


@st.composite
def streams(draw: st.DrawFn, kind: Kind) -> list[JobSpec]:
    """Jobs of a kind, several of them at one instant."""
    specs, at_s = [], 0.0
    for number in range(draw(st.integers(2, kind.most))):
        at_s += draw(st.sampled_from([0.0, 0.0, 1.0, 5.0, 30.0]))
        low, preferred, high = sorted(draw(st.tuples(*[st.integers(1, kind.nodes)] * 3)))
        speedup = Speedup(law=(float(draw(st.integers(1, 200))), draw(st.sampled_from([0.0, 3.0]))))
        run_s = speedup.time(preferred)
        longer = draw(st.sampled_from(kind.longer))
        array, limit = draw(st.sampled_from(kind.arrays))
        spec = job(
            number,
            (low if kind.low is None else kind.low, preferred, high),
            draw(st.sampled_from(kind.modes)),
            at_s=at_s,
            limit_s=None if longer is None else longer * run_s,
            every_s=draw(st.sampled_from(kind.points)),
            price_s=draw(st.sampled_from(kind.prices)),
            array=array,
            array_limit=limit,
        )
        law = draw(st.sampled_from(kind.laws))
        specs.append(
            replace(
                spec,
                speedup=speedup if law else None,
                run_s=None if law else run_s,
                account=draw(st.sampled_from(kind.accounts)),
                priority=draw(st.sampled_from(kind.priorities)),
            )
        )
    return specs


def rigid(spec: JobSpec) -> JobSpec:
    """Return a job as EASY has it: at its preferred size, with its run time and request there."""
    size = spec.preferred
    limit_s, run_s = spec.expected_s(size), spec.time_s(size)
    times = {"run_s": run_s, "limit_s": limit_s}
    return replace(spec, nodes_min=size, nodes_max=size, mode=FIXED, speedup=None, **times)


def starts(simulation: Simulation) -> dict[str, float | None]:
    """Return when each job of a simulation that is over has started."""
    return {str(job_id): each.start_s for job_id, each in simulation.engine.state.ended.items()}
