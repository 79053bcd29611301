"""Kernels kept as machine code: loaded without Numba, the same bits, never half a file."""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numba
import numpy as np
import pytest

from mpdata.cases import Request, make_setup
from mpdata.numerics.numba import kernel_cache
from mpdata.numerics.numba.kernel_arguments import Strides
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
    kernel_cache._kernel.cache_clear()
    yield
    kernel_cache._kernel.cache_clear()


def run(folder: Path) -> tuple[str, bool]:
    """Return the bits of a run in a process of its own, and whether it has imported Numba."""
    with begun(folder) as process:
        return ended(process)


def begun(folder: Path) -> subprocess.Popen[str]:
    env = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", RUN], env=env, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[str, bool]:
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    bits, numba = said.split()
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


def test_of_processes_that_start_together_one_compiles_and_the_others_wait(
    tmp_path: Path,
) -> None:
    # One waits from before any of them can have compiled: they are let go together.
    with (tmp_path / "compiling.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [begun(tmp_path) for _ in range(3)]
        for process in processes:
            assert process.poll() is None
    found = [ended(process) for process in processes]
    assert len({bits for bits, _ in found}) == 1
    assert sum(compiled for _, compiled in found) == 1
    assert len(list(tmp_path.glob("*.o"))) == 1


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

    def changed(name: str, codes: kernel_cache.Codes) -> NoReturn:
        raise AttributeError("serialize_using_object_code")

    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)

    monkeypatch.setattr(kernel_cache, "_compiled", changed)
    monkeypatch.setattr(kernel_cache, "_read", lambda path: None)
    kernel_cache._kernel.cache_clear()
    assert advanced() == usual


def test_kernels_are_told_apart_by_the_types_of_their_arguments() -> None:
    doubles, singles = np.zeros(3), np.zeros(3, np.float32)
    strides = Strides(np.uint64(0), np.uint64(1), np.uint64(2))
    given = (doubles, singles, None, 0, np.uint64(0), 0.5, np.float32(0.5), strides, (singles,))
    codes = tuple(kernel_cache._code(one) for one in given)
    assert codes[:7] == ("<f8", "<f4", "", "int64", "uint64", "float64", "float32")
    assert codes[7:] == (("Strides", "uint64", "uint64", "uint64"), ("tuple", "<f4"))


def test_what_is_compiled_serves_every_environment_with_the_same_numba(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = kernel_cache._stamp("cpu", "+avx")
    there = Path(numba.__file__).with_name("_version.py").read_bytes()
    other = tmp_path / "numba" / "__init__.py"
    other.parent.mkdir()
    other.touch()
    os.utime(other, (0, 0))
    found = SimpleNamespace(origin=str(other))
    monkeypatch.setattr(kernel_cache, "find_spec", lambda name: found)
    version = other.with_name("_version.py")
    version.write_bytes(there)
    assert kernel_cache._stamp("cpu", "+avx") == stamp
    version.write_bytes(there + b"1")
    assert kernel_cache._stamp("cpu", "+avx") != stamp


def test_another_source_or_machine_is_another_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = kernel_cache._stamp("cpu", "+avx")
    assert stamp != kernel_cache._stamp("cpu", "-avx")
    for number, source in enumerate(kernel_cache.SOURCES):
        other = tmp_path / source.name
        other.write_bytes(source.read_bytes() + b"\n")
        sources = list(kernel_cache.SOURCES)
        sources[number] = other
        with monkeypatch.context() as patch:
            patch.setattr(kernel_cache, "SOURCES", tuple(sources))
            assert stamp != kernel_cache._stamp("cpu", "+avx")
    assert stamp == kernel_cache._stamp("cpu", "+avx")


def test_vectors_of_512_bits_are_for_processors_that_keep_their_frequency() -> None:
    old, new = "+avx512f,+avx512dq", "+avx512f,+avx512vbmi2"
    assert kernel_cache.widened(old) == old and kernel_cache.widened("") == ""
    assert kernel_cache.widened(new) == f"{new},-prefer-256-bit"
    assert kernel_cache.widened("+avx512f,-avx512vbmi2") == "+avx512f,-avx512vbmi2"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of an x86 processor")
def test_numbas_own_choice_of_a_processor_is_heeded_and_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    monkeypatch.setenv("NUMBA_CPU_NAME", "x86-64-v2")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")
    bits, compiled = run(tmp_path)
    assert compiled and len(list(tmp_path.glob("*.o"))) == 2
    assert run(tmp_path) == (bits, False)
