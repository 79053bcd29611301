"""A real Slurm on this machine, brought up once per kind of node selection; see scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_bed import NODES, Slurm, brought_up


@pytest.fixture(scope="session")
def asked(request: pytest.FixtureRequest) -> None:
    """Skip what starts a real Slurm unless that is wanted."""
    if not request.config.getoption("--slurm"):
        pytest.skip("starts a real Slurm on this machine: expected --slurm")


@pytest.fixture(scope="session", params=["linear", "cons_tres"])
def session_slurm(asked: None, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    with brought_up("--hosts", str(NODES), "--select", request.param) as slurm:
        yield slurm


@pytest.fixture
def slurm(session_slurm: Slurm) -> Iterator[Slurm]:
    """A Slurm whose nodes are all idle; no job of the test outlives it."""
    session_slurm.clear()
    yield session_slurm
    session_slurm.clear()
