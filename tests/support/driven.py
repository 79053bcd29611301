"""An engine driven by hand: starts begin at once, resizes take no time."""

from __future__ import annotations

from rms.core.engine import Engine
from rms.core.events import Decision, Event, Resize, ResizeBegun, Resized, Start, Started, Submitted
from rms.core.model import JobId, JobSpec, Mode, Speedup
from rms.core.policies import named

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
    array: str | None = None,
    array_limit: int | None = None,
) -> JobSpec:
    """A job of ``(min, preferred, max)`` nodes, or of one size; ``run_s`` at the preferred one."""
    low, preferred, high = sizes if len(sizes) == 3 else sizes * 3
    return JobSpec(
        JobId(str(number)),
        at_s,
        low,
        high,
        preferred,
        mode,
        Speedup(law=(run_s * preferred, 0.0)),
        limit_s=limit_s,
        resize_every_s=every_s,
        resize_price_s=price_s,
        array=array,
        array_limit=array_limit,
    )


class Driven:
    """An engine whose starts begin at once, and whose resizes take no time unless held."""

    def __init__(self, nodes: int, policy: str = "backfill-share", *, prompt: bool = True) -> None:
        self.engine = Engine(nodes, named(policy))
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
