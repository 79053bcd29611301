"""What surrounds a program so that it cannot be malleable is said before anything waits."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from mpi4py.futures import _core

import dmr


def test_who_runs_the_program_on_rank_0_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "SharedPool", object())
    said = r"expected every rank to run the program, got python -m mpi4py.futures, .* start it with"
    with pytest.raises(dmr.UsageError, match=said), dmr.malleable(MPI.COMM_WORLD):
        pass


def test_a_session_without_mpi_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmr.api.MPI", type("MPI", (), {"Is_initialized": lambda: False}))
    said = "expected MPI to be initialised, got a session only: leave mpi4py.rc.initialize"
    with pytest.raises(dmr.UsageError, match=said), dmr.malleable(MPI.COMM_SELF):
        pass
