"""What a quick run takes of a product covers what it has to; every promise has a test."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from promises import LIST, Proof, marks, promises, proven_by, with_proofs
from selection import all_wide_but, choices, covering_rows

TESTS = Path(__file__).parents[2]
ROWS = [
    dict(zip("abc", values, strict=True))
    for values in product(("1", "2", "3"), ("x", "y"), ("p", "q", "r", "s"))
]


@pytest.mark.parametrize(("strength", "most"), [(0, 1), (1, 4), (2, 14), (3, 24)])
def test_rows_have_every_choice_of_values(strength: int, most: int) -> None:
    chosen = covering_rows(ROWS, strength)
    assert chosen == covering_rows(ROWS, strength)
    assert len(chosen) <= most
    wanted = set().union(*(choices(row, strength) for row in ROWS))
    assert set().union(*(choices(ROWS[n], strength) for n in chosen)) == wanted


def test_one_parameter_keeps_all_its_values() -> None:
    assert covering_rows([{"a": str(n)} for n in range(5)], 2) == [0, 1, 2, 3, 4]
    assert covering_rows([], 1) == []


def test_values_that_wait_for_all_are_marked() -> None:
    one, two, pair = all_wide_but(["one", "two", ("three", 3)], "two")
    assert two == "two"
    assert one.values == ("one",) and pair.values == ("three", 3)  # type: ignore[attr-defined]
    assert [mark.name for mark in one.marks] == ["wide"]  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        all_wide_but(["one"], "four")


def test_every_promise_has_a_test_and_the_list_names_its_files() -> None:
    listed = promises()
    assert len(listed) > 40 and {run for _, run in listed.values()} >= {"quick", "all", "slurm"}
    assert {name for names in marks().values() for name in names} == set(listed)
    text = LIST.read_text()
    assert with_proofs(text) == text


def test_a_promise_is_kept_by_a_passing_test_and_by_no_failing_one(tmp_path: Path) -> None:
    file = tmp_path / "promises"
    names = [name for name, (_, run) in promises().items() if run == "quick"]
    kept, broken, skipped, *rest = names
    lines = [f"passed\t{kept}\t", f"passed\t{broken}\t", f"failed\t{broken}\t"]
    file.write_text("\n".join([*lines, f"skipped\t{skipped}\tno trace", ""]))
    proof = Proof.read(file, ["quick"])
    assert proof.kept == {kept}
    assert proof.impossible == {skipped: "no trace"}
    assert proof.missing == [broken, *rest]
    said = proof.report().splitlines()
    assert said[0] == f"promises of the README: 1 of {len(names)} proven"
    assert said[1].endswith("(no trace)") and len(said) == 1 + 1 + len(proof.missing)
    assert Proof.read(tmp_path / "none", ["slurm"]).kept == set()


def test_a_file_that_is_skipped_names_its_promises() -> None:
    assert proven_by("gpu/test_run.py") == ["gpu"]
    assert set(proven_by("slurm/test_pilot.py")) == {"slurm-bits", "slurm-pilot"}
    assert proven_by("gpu/test_nothing.py") == []


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []  # pytest takes one of them
