"""What ``dmr check`` compares, and what it makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.check import check
from dmr.check.check import CheckError, Outcome, differing_lines, rehearsal_script, resizes_script
from dmr.check.digests import Digests
from dmr.plan import parse_resizes


def outcome(script: str = "", output: str = "sum 3\n", **end: object) -> Outcome:
    found = Digests(2, 30, [], {"u": "a", "v": "b"}, [], {"k": "c"})
    for name, value in end.items():
        setattr(found, name, value)
    return Outcome(script, output.encode(), found, 1.0)


@given(st.integers(2, 500), st.integers(1, 9))
def test_rehearsals_come_after_an_odd_and_an_even_step(steps: int, ranks: int) -> None:
    resizes, _ = parse_resizes(rehearsal_script(steps, ranks))
    assert set(resizes.values()) == {ranks} and all(0 < step < steps for step in resizes)
    assert {step % 2 for step in resizes} == ({0, 1} if steps > 2 else {1})


@given(st.integers(2, 500), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_resizes_come_in_order_within_the_run(steps: int, sizes: list[int]) -> None:
    resizes, _ = parse_resizes(resizes_script(steps, sizes))
    assert list(resizes.values()) == sizes[: len(resizes)] and max(resizes) < steps


def test_too_short_a_program_is_said() -> None:
    with pytest.raises(CheckError, match="expected a program of at least 2 steps to check, got 1"):
        rehearsal_script(1, 2)


def test_what_every_world_prints_again_is_no_difference() -> None:
    assert differing_lines(b"begin\nsum 3\n", b"begin\nbegin\nsum 3\n") == []
    assert differing_lines(b"begin\nsum 3\n", b"begin\nsum 4\n") == ["- sum 3", "+ sum 4"]


@pytest.mark.parametrize(
    ("plain", "other", "rehearsal", "says"),
    [
        (outcome(), outcome("3:2"), True, ""),
        (outcome(unchanged=["u"]), outcome("3:2", fields={"u": "z", "v": "b"}), True, "rebind("),
        (outcome(), outcome("3:2", state={"k": "z"}), True, "did not travel"),
        (outcome(), outcome("3:2", "sum 4\n"), True, "another variable"),
        (outcome(), outcome("3:1,4:3", "sum 4\n"), False, "on 1 and on 3 ranks without"),
    ],
)
def test_the_usual_cause_is_named(
    plain: Outcome, other: Outcome, rehearsal: bool, says: str
) -> None:
    found = check.compare(plain, other, text=True)
    check.explain(plain, found, rehearsal=rehearsal)
    assert found.none == (not says) and says in " ".join(found.causes)


def test_files_are_compared_to_the_byte() -> None:
    found = check.compare(outcome(output="ab"), outcome("3:2", "ax"), text=False)
    assert found.lines == ["the file differs from byte 1 on"]
