"""State that cannot be pickled was reported only when the next set of ranks had booted."""

from __future__ import annotations

import io
from typing import Any

import pytest
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr


@pytest.mark.parametrize("value", [lambda: 0, [{"deep": (x for x in "a")}]])
@pytest.mark.parametrize("own", [False, True])
def test_it_is_refused_at_entry(value: Any, own: bool) -> None:
    per_rank = dmr.PerRank(value, lambda values: values, lambda values, ranks: values)
    state = {"fine": 1, "bad": per_rank if own else value}
    message = r"run.state\['bad'\] cannot be pickled: \w+Error: "
    with (
        pytest.raises(dmr.UsageError, match=message),
        dmr.malleable(runtime_on(MPI.COMM_SELF), state=state),
    ):
        raise AssertionError("entered")


def test_names_that_are_not_text_are_refused() -> None:
    with (
        pytest.raises(dmr.UsageError, match=r"expected names of run.state to be text, got 1"),
        dmr.malleable(runtime_on(MPI.COMM_SELF), state={1: "one"}),  # type: ignore[dict-item]
    ):
        raise AssertionError("entered")


def test_a_value_that_is_added_later_is_reported_before_ranks_boot() -> None:
    runtime = runtime_on(MPI.COMM_SELF)
    with dmr.malleable(runtime, plan=dmr.Plan(resizes={2: 3}, strategy="spawn")) as run:
        for _ in run.loop(4):
            run.state.late = lambda: 0
    log = runtime.log
    assert isinstance(log, io.StringIO)
    (line,) = (line for line in log.getvalue().splitlines() if "rolled back" in line)
    assert "rolled back: run.state['late'] cannot be pickled: " in line and run.resizes == []
    assert "(while" not in line  # it has no phase yet: nothing has been started
