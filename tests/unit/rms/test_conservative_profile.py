"""The profile of free nodes over time that conservative backfilling plans on."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from rms.core.model.jobs import Site
from rms.core.policies.admission import NodeProfile
from rms.core.policies.placement import Lowest
from rms.core.state import State


def profile(steps: list[tuple[int, int]]) -> NodeProfile:
    state = State(Site(8), counted=True)
    made = NodeProfile(state, Lowest(state))
    made.at_s, made.free = [0.0], [steps[0][1]]
    for length, free in steps[1:]:
        made.at_s.append(made.at_s[-1] + length)
        made.free.append(free)
    return made


def fits(made: NodeProfile, at_s: float, size: int, span_s: float) -> bool:
    ends = [*made.at_s[1:], inf]
    return all(
        free >= size
        for since, until, free in zip(made.at_s, ends, made.free, strict=True)
        if (since < at_s + span_s and until > at_s) or since <= at_s < until
    )


@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 8)), min_size=1, max_size=12),
    size=st.integers(1, 8),
    span_s=st.integers(0, 20),
)
def test_the_earliest_time_is_the_first_step_at_which_it_fits(
    steps: list[tuple[int, int]], size: int, span_s: int
) -> None:
    made = profile(steps)
    expected = next((at for at in made.at_s if fits(made, at, size, span_s)), inf)
    assert made.earliest(size, span_s) == expected
