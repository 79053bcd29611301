"""Which jobs are meant: criteria on a command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.formats.config import FileError, parse_criteria

ALICE = {"user": "alice", "account": "ocean", "partition": "main", "name": "wrf_42"}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("user=alice", True),
        ("user=bob", False),
        ("user=bob,user=al*", True),
        ("user=alice,name=mpas*", False),
        ("name=wrf_[0-9]*, account=ocean", True),
        ("partition=gpu", False),
        ("nodes=8", True),
        ("nodes=4-64,hours=1-", True),
        ("nodes=-7", False),
        ("hours=0-0.5,hours=2-", True),
        ("hours=2.1-", False),
    ],
)
def test_a_job_of_two_hours_on_eight_nodes(text: str, meant: bool) -> None:
    assert parse_criteria(text).match(8, 7200.0, ALICE) is meant


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_ranges_hold_their_ends(low: int, more: int, nodes: int) -> None:
    criteria = parse_criteria(f"nodes={low}-{low + more}")
    assert criteria.match(nodes, 1.0, {}) is (low <= nodes <= low + more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "user, account, partition or name = PATTERN"),
        ("user", "got 'user'"),
        ("queue=main", "got 'queue=main'"),
        ("nodes=many", "a range like 4-64, 4- or -64, got 'nodes=many'"),
        ("nodes=8-4", "a range from less to more, got 'nodes=8-4'"),
        ("hours=nan", "a range from less to more"),
    ],
)
def test_what_does_not_parse(text: str, expected: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_criteria(text)
    assert expected in str(caught.value)
