"""Strategy restart under bare mpirun started all new ranks on the host of rank 0."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

from dmr.boot import spawn
from dmr.boot.environment import Runtime
from dmr.plan import NextWorld
from dmr.wire.channel import ChannelError
from rms.wire.mpiexec import host_options


@pytest.fixture
def mpiexec(tmp_path: Path) -> Path:
    """A launcher that writes down its words and ends."""
    made = tmp_path / "mpiexec"
    made.write_text(f'#!/bin/sh\nprintf "%s " "$@" > {tmp_path}/words\nexit 3\n')
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("hosts", "variable", "wanted"),
    [
        (["n1", "n2"], "", ["-hosts", "n1:1,n2:1"]),
        (["n1", "n1", "n2"], "", ["-hosts", "n1:2,n2:1"]),
        (["n1", "n1"], "", []),
        (["n1", "n2"], "HYDRA_HOST_FILE", []),
        (["n1", "n2"], "SLURM_JOB_ID", []),
    ],
)
def test_they_are_named_to_mpiexec(
    mpiexec: Path,
    hosts: list[str],
    variable: str,
    wanted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in spawn.HOSTS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    runtime = Runtime.here(MPI.COMM_SELF, {})
    runtime.mpiexec, runtime.command = str(mpiexec), (sys.executable, "program.py")
    next_world = NextWorld(4, "restart")
    with contextlib.ExitStack() as stack, pytest.raises(ChannelError, match="ended with 3"):
        spawn.start_mpiexec(runtime, next_world, stack, 30.0, hosts)
    words = (mpiexec.parent / "words").read_text().split()
    assert words == [*wanted, "-n", "4", sys.executable, "program.py"]


def test_open_mpi_fills_no_host_first_and_has_the_variables(mpiexec: Path) -> None:
    (mpiexec.parent / "ompi_info").touch()
    options = host_options(str(mpiexec), ["n1", "n2"], ["DMR_LISTENER", "BASH_FUNC_x%%"])
    assert options == [
        "--host",
        "n1:1,n2:1",
        "--map-by",
        "node:oversubscribe",
        "-x",
        "DMR_LISTENER",
    ]
