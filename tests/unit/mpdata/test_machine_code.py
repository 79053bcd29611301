"""Kernels kept as machine code: loaded without Numba, the same bits, never half a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from mpdata.cases import Request, make_setup
from mpdata.numerics.numba import machine_code
from mpdata.options import Scheme
from mpdata.solver import Solver

RUN = """
import sys
from mpdata import Request, Scheme, Solver, make_setup
solver = Solver(make_setup("random", Request(grid=(6, 5, 4))), Scheme(1), backend="numba")
solver.advance(2)
print(solver.psi.tobytes().hex(), "numba" in sys.modules)
"""


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    machine_code._kernel.cache_clear()
    yield
    machine_code._kernel.cache_clear()


def run(folder: Path) -> tuple[str, bool]:
    """Return the bits of a run in a process of its own, and whether it has imported Numba."""
    env = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    bits, numba = done.stdout.split()
    return bits, numba == "True"


def advanced() -> bytes:
    solver = Solver(make_setup("random", Request(grid=(6, 5, 4))), Scheme(1), backend="numba")
    solver.advance(2)
    return solver.psi.tobytes()


def test_a_second_process_needs_no_numba_and_has_the_same_bits(tmp_path: Path) -> None:
    cold, compiled = run(tmp_path)
    warm, imported = run(tmp_path)
    assert (compiled, imported) == (True, False)
    assert cold == warm == advanced().hex()


@pytest.mark.covering(0)
@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    good, _ = run(tmp_path)
    (file,) = tmp_path.glob("*.o")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes({"cut": data[:100], "empty": b"", "flipped": bytes(data)}[damage])
    assert run(tmp_path) == (good, True)
    assert run(tmp_path) == (good, False)


@pytest.mark.wide
def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(blocked / "in-a-file")[1]


@pytest.mark.wide
def test_a_numba_of_another_inside_runs_by_its_own_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    usual = advanced()

    def changed(name: str, codes: machine_code.Codes) -> NoReturn:
        raise AttributeError("serialize_using_object_code")

    monkeypatch.setattr(machine_code, "_compiled", changed)
    monkeypatch.setattr(machine_code, "_read", lambda path: None)
    machine_code._kernel.cache_clear()
    assert advanced() == usual


def test_kernels_are_told_apart_by_the_types_of_their_arguments() -> None:
    doubles, singles = np.zeros(3), np.zeros(3, np.float32)
    given = (doubles, singles, None, 0, np.uint64(0), 0.5, np.float32(0.5))
    codes = tuple(machine_code._code(one) for one in given)
    assert codes == ("<f8", "<f4", "", "int64", "uint64", "float64", "float32")


def test_another_source_or_machine_is_another_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = machine_code._stamp("cpu", "+avx")
    assert stamp != machine_code._stamp("cpu", "-avx")
    other = tmp_path / "numba_kernels.py"
    other.write_bytes(machine_code.KERNELS.read_bytes() + b"\n")
    monkeypatch.setattr(machine_code, "KERNELS", other)
    assert stamp != machine_code._stamp("cpu", "+avx")
