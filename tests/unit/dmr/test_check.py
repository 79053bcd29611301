"""What ``dmr check`` compares, and what it makes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

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
        (outcome(unchanged=["u"]), outcome("3:2", fields={"u": "z", "v": "b"}), True, r"rebind\("),
        (outcome(), outcome("3:2", state={"k": "z"}), True, "did not travel"),
        (
            outcome(unchanged_state=["k"]),
            outcome("3:2", "sum 4\n"),
            True,
            "state k: the value that it began with. .* set run.state.k in save= of",
        ),
        (outcome(), outcome("3:2", "sum 4\n"), True, "another variable"),
        (
            outcome(variables=[{"x": "a", "y": "b"}, {"x": "a", "y": "b"}]),
            outcome("3:2", "sum 4\n", variables=[{"x": "a", "y": "b"}, {"x": "c"}]),
            True,
            "^x, y: not declared, and not the same at the end: declare those",
        ),
        (outcome(), outcome("3:1,4:3", "sum 4\n"), False, "on 1 and on 3 ranks without"),
        (outcome(), outcome("3:2", "", stopped=True, step=101), True, "step 101, .* after 30: its"),
    ],
)
def test_the_usual_cause_is_named(
    plain: Outcome, other: Outcome, rehearsal: bool, says: str
) -> None:
    found = check.compare(plain, other)
    check.explain(plain, found, rehearsal=rehearsal)
    assert found.none == (not says)
    assert not says or any(re.search(says, cause) for cause in found.causes)


def test_files_are_compared_to_the_byte_beside_the_lines() -> None:
    one, two = (replace(outcome(), file=data) for data in (b"ab", b"ax"))
    found = check.compare(one, two)
    assert found.file == ["the file differs from byte 1 on"] and not found.lines
    two = replace(outcome("3:2", "sum 4\n"), file=b"ab")
    assert check.compare(one, two).lines == ["- sum 3", "+ sum 4"]
    assert check.differing_bytes(b"a 1.0\nb", b"a 1.1\nb", 0.2) == []
    assert check.differing_bytes(b"\xff\xfe1", b"\xff\xfe2", 0.9) == [
        "the file differs from byte 2 on"
    ]


@pytest.mark.parametrize(
    ("words", "on_3"),
    [
        ("mpirun -n 2 python x.py -n 4", "mpirun -n 3 python x.py -n 4"),
        ("/usr/bin/mpiexec -l -np 2 python x.py", "/usr/bin/mpiexec -l -np 3 python x.py"),
        ("srun --ntasks=2 ./x", "srun --ntasks=3 ./x"),
        ("mpirun -n2 ./x", "mpirun -n3 ./x"),
        ("mpirun ./x", None),
        ("python x.py -n 2", None),
    ],
)
def test_the_command_on_another_number_of_ranks(words: str, on_3: str | None) -> None:
    assert check.command_on(words.split(), 3) == (on_3.split() if on_3 else None)


# --- the course of a check, with runs that are made up --------------------------------------------


def checked(
    monkeypatch: pytest.MonkeyPatch, runs: dict[str, Outcome], words: str = "mpirun -n 2 ./x"
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the result of a check, its lines, and its runs: resizes or ranks, "" for plain."""
    done: list[str] = []

    def run_once(command: list[str], script: str, *_: Any) -> Outcome:
        ranks = command[2] if command[2] != "2" else ""
        name = "rehearsal" if ":2" in script else "resizes" if script else f"plain {ranks}".strip()
        if name == "plain" and done:
            name = "again"
        done.append(name)
        return replace(runs.get(name, outcome()), script=script)

    monkeypatch.setattr(check, "run_once", run_once)
    lines: list[str] = []
    return check.check(words.split(), [3, 1], None, lines.append), lines, done


def test_what_is_the_same_takes_three_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    result, lines, done = checked(monkeypatch, {})
    assert done == ["plain", "rehearsal", "resizes"]
    assert result["same"] and result["right"] and lines[-1] == check.SAME


def test_sums_that_depend_on_the_ranks_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {
        "resizes": outcome("", "sum 4\n", fields={"u": "z", "v": "b"}),
        "plain 3": outcome("", "sum 5\n"),
        "plain 1": outcome("", "sum 3\n", fields={"u": "y", "v": "b"}),
    }
    result, lines, done = checked(monkeypatch, runs)
    assert done == ["plain", "rehearsal", "resizes", "again", "plain 3", "plain 1"]
    assert not result["same"] and result["right"] and result["verdict"] == check.RIGHT
    assert any("the same differs on 3 and 1 ranks" in line for line in lines)


def test_what_does_not_differ_on_other_ranks_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {
        "resizes": outcome("", "sum 4\n", fields={"u": "z", "v": "b"}),
        "plain 3": outcome("", "sum 5\n"),
    }
    result, lines, _ = checked(monkeypatch, runs)
    assert not result["right"] and lines[-1] == check.DIFFERENT
    assert any("field u: the same on 3 and 1 ranks without any resize" in line for line in lines)


def test_a_program_that_is_not_the_same_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"u": "z", "v": "b"}
    runs = {
        "rehearsal": outcome("", "sum 4\n", fields=other),
        "resizes": outcome("", "sum 5\n"),
        "again": outcome("", "sum 6\n", fields=other),
    }
    result, lines, done = checked(monkeypatch, runs)
    assert done == ["plain", "rehearsal", "again", "resizes"]
    assert result["same"] and result["not_compared"] == ["u"]
    assert any("not the same in two plain runs" in line and "field u" in line for line in lines)


def test_state_that_never_changes_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    result, lines, _ = checked(monkeypatch, {"plain": outcome(unchanged_state=["k"])})
    assert result["same"] and "note: run.state never changes here: k" in lines
