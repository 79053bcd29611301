"""Loops of any shape, interrupted anywhere: every innermost step is done once, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dmr.loop.driver import Position
from dmr.state.progress import Progress, decode, encode

Loops = Sequence[tuple[int, int, Any]]
"""Loops one after another: steps, the step before which each is left, and what is in it."""

LOOPS: st.SearchStrategy[Loops] = st.recursive(
    st.just(()),
    lambda inner: st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), inner), max_size=3),
    max_leaves=6,
)


class Interrupted(Exception):  # noqa: N818 - an event, as SystemExit is
    """This world is replaced."""


def loop(progress: Progress, position: Position, steps: int, stop: int | None) -> Iterator[int]:
    """Yield the steps of a loop as the driver does; stop where so many are done in all."""
    depth = position.open_loop()
    if depth is None:
        return
    while True:
        if progress.step == stop:
            raise Interrupted
        if position.open_steps[depth] >= steps:
            break
        yield position.open_steps[depth]
        progress.step += 1
        position.count_step()
    position.close_loop(depth)


def go(progress: Progress, loops: Loops, stop: int | None) -> list[str]:
    """Run a program from its first line; return its innermost steps."""
    position, done = Position(progress), []

    def body(inner: Loops, path: str) -> None:
        for number, (steps, leave_at, more) in enumerate(inner):
            for step in loop(progress, position, steps, stop):
                if step == leave_at:
                    position.close_loop(path.count("/"))
                    break
                where = f"{path}/{number}:{step}"
                if not more:
                    done.append(where)
                body(more, where)

    with contextlib.suppress(Interrupted):
        body(loops, "")
    return done


@given(LOOPS, st.lists(st.integers(0, 60), max_size=4))
def test_every_step_is_done_once_whatever_interrupts_it(loops: Loops, stops: list[int]) -> None:
    whole = go(Progress(), loops, None)
    progress, found = Progress(), []
    for stop in [*sorted(set(stops)), None]:
        found += go(progress, loops, stop)
        progress = decode(encode(progress))
    assert found == whole
