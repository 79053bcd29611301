"""State that cannot be pickled was reported only when the next set of ranks had booted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
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


@pytest.mark.parametrize("make", [lambda m: m, lambda m: [{"deep": m[1:]}], np.asarray])
def test_arrays_that_are_mapped_from_a_file_are_refused_at_entry(tmp_path: Path, make: Any) -> None:
    mapped = make(np.memmap(tmp_path / "mapped", "f8", "w+", shape=(4,)))
    message = r"^run.state\['m'\] cannot be pickled: expected an array in memory, got a memmap of "
    with (
        pytest.raises(dmr.UsageError, match=message),
        dmr.malleable(runtime_on(MPI.COMM_SELF), state={"m": mapped}),
    ):
        pass


class Unreadable:
    """An object that can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_what_cannot_be_unpickled_is_refused_at_entry() -> None:
    message = r"^run.state\['x'\] cannot be unpickled: ValueError: "
    with (
        pytest.raises(dmr.UsageError, match=message),
        dmr.malleable(runtime_on(MPI.COMM_SELF), state={"x": [Unreadable()]}),
    ):
        pass


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
