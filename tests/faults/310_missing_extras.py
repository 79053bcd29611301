"""A module of an optional part that was not installed ended a command in a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import DEADLINE_S, called

from dmr.cli import main as dmr
from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms

Without = Callable[[str], None]

START = """
import sys
sys.modules["prometheus_client"] = None
from rms.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Return a function after which a module cannot be imported."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("command", ["serve", "pilot", "replay x"])
def test_commands_of_the_daemon(command: str) -> None:
    words = [sys.executable, "-c", START, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rms: error: expected the module prometheus_client, got none; "
        "pip install 'malleable-mpi[rms]'\n"
    )


def test_a_private_daemon(without: Without, tmp_path: Path) -> None:
    without("uvicorn")
    done = called(dmr, "bench", "--strategy", "warm", "--json", str(tmp_path / "out.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("uvicorn, got none; pip install 'malleable-mpi[rms]'\n")


def test_figures_are_refused_before_the_simulation(without: Without, tmp_path: Path) -> None:
    without("matplotlib")
    done = called(rms, "reproduce", "iserte-rojek", "--figures", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("matplotlib, got none; pip install 'malleable-mpi[rms]'\n")


def test_completion(without: Without) -> None:
    without("shtab")
    for main in (dmr, mpdata, rms):
        done = called(main, "--print-completion", "bash")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith("shtab, got none; pip install 'malleable-mpi[rms]'\n")


@pytest.mark.parametrize("backend", ["auto", "numpy", "numba"])
def test_backends_on_processors(without: Without, backend: str) -> None:
    without("numba")
    without("cupy")
    done = called(mpdata, "run", "--case", "cone", "--backend", backend)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("expected Numba, got none; pip install 'malleable-mpi[mpdata]'\n")


def test_plots(without: Without, tmp_path: Path) -> None:
    file = tmp_path / "cone.h5"
    words = ["--steps", "2", "--output", str(file), "--output-every", "2"]
    assert called(mpdata, "run", "--case", "cone", *words).returncode == 0
    without("matplotlib")
    done = called(mpdata, "plot", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "mpdata: error: expected the module matplotlib, got none; "
        "pip install 'malleable-mpi[mpdata]'\n"
    )
