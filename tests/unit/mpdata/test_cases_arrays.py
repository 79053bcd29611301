"""The user's own arrays, .npz and .h5."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence
from whole_grids import evaluate, filled

from mpdata.cases import Setup, array_case
from mpdata.cases.setup import open_mesh
from mpdata.errors import InputError
from mpdata.flow.faces import max_courant
from mpdata.grid import Geometry
from mpdata.options import parse_boundaries
from mpdata.solver import Solver

Arrays = dict[str, npt.NDArray[np.generic]]

GRID = (5, 4, 3)
SUFFIXES = [".npz", ".h5", ".hdf5"]


def arrays() -> Arrays:
    """Return rough fields and a weak uniform flow on a small grid."""
    rng = np.random.default_rng(5)
    faces = {
        f"c{a + 1}": np.full([n + (a == b) for b, n in enumerate(GRID)], 0.1 * (a + 1))
        for a in range(3)
    }
    return {"psi": rng.uniform(0.5, 2, GRID), "h": rng.uniform(0.8, 1.2, GRID), **faces}


def save(path: Path, held: Arrays) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **held)
    else:
        with h5py.File(path, "w") as file:
            for name, values in held.items():
                file[name] = values
    return path


def case_of(path: Path, boundaries: str = "periodic") -> Setup:
    return array_case(path, parse_boundaries(boundaries), 3)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_are_read_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    held = arrays()
    setup = case_of(save(tmp_path / f"mine{suffix}", held))
    whole = evaluate(setup)
    assert (setup.grid, setup.steps, setup.courant) == (GRID, 3, None)
    found = {"psi": whole.psi, "h": whole.h}
    found |= {f"c{a + 1}": whole.c[a] for a in range(3)}
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: values.tobytes() for name, values in held.items()
    }


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["f4", "i4", "u1", ">f8"])
def test_other_number_types_are_converted(tmp_path: Path, suffix: str, dtype: str) -> None:
    held = {**arrays(), "psi": np.arange(60).reshape(GRID).astype(dtype)}
    psi = evaluate(case_of(save(tmp_path / f"mine{suffix}", held))).psi
    assert psi.ravel().tolist() == list(range(60))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_density_is_one_where_none_is_given(tmp_path: Path, suffix: str) -> None:
    held = arrays()
    del held["h"]
    assert (evaluate(case_of(save(tmp_path / f"mine{suffix}", held))).h == 1).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_faces_of_a_single_cell_need_not_be_given(tmp_path: Path, suffix: str) -> None:
    held = {name: values[:, :, :1] for name, values in arrays().items() if name != "c3"}
    solver = Solver(case_of(save(tmp_path / f"mine{suffix}", held)), backend="numpy")
    solver.advance(1)
    assert solver.psi.shape == (5, 4, 1)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setup, Setup]:
    folder = tmp_path_factory.mktemp("arrays")
    rough = {
        name: np.random.default_rng(len(name)).uniform(0.1, 1, values.shape)
        for name, values in arrays().items()
    }
    npz, h5 = (save(folder / f"mine{suffix}", rough) for suffix in (".npz", ".h5"))
    return case_of(npz), case_of(h5)


@st.composite
def blocks(draw: st.DrawFn) -> Geometry:
    ends = [
        sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in GRID
    ]
    start, stop = (tuple(end[at] for end in ends) for at in range(2))
    kinds = draw(st.tuples(*[st.sampled_from(["periodic", "open", "wall"])] * 3))
    boundaries = parse_boundaries(",".join(kinds))
    return Geometry(GRID, start, stop, draw(st.integers(1, 5)), boundaries)  # type: ignore[arg-type]


@given(geo=blocks(), axis=st.integers(0, 2))
def test_a_block_read_from_hdf5_is_the_block_of_the_npz(
    both: tuple[Setup, Setup], geo: Geometry, axis: int
) -> None:
    cells, faces = (
        open_mesh(*index) for index in (geo.global_cells(), geo.global_faces(axis, extends=False))
    )
    found = [
        [
            filled(values, geo.shape).tobytes()
            for values in (setup.initial(*cells), setup.density(*cells), setup.face(axis, *faces))
        ]
        for setup in both
    ]
    assert found[0] == found[1]


@given(geo=blocks())
def test_a_block_of_the_arrays_is_picked_from_the_whole(
    both: tuple[Setup, Setup], geo: Geometry
) -> None:
    index = geo.global_cells()
    found = filled(both[1].density(*open_mesh(*index)), geo.shape)
    assert found.tobytes() == evaluate(both[0]).h[np.ix_(*index)].tobytes()


def put(name: str, value: float) -> Callable[[Arrays], None]:
    def change(held: Arrays) -> None:
        held[name] = held[name].copy()
        held[name][1, 2, 1] = value

    return change


def reshaped(name: str, shape: tuple[int, ...], dtype: str = "f8") -> Callable[[Arrays], None]:
    def change(held: Arrays) -> None:
        held[name] = np.zeros(shape, dtype)

    return change


def without(name: str) -> Callable[[Arrays], None]:
    def change(held: Arrays) -> None:
        del held[name]

    return change


def unequal(name: str) -> Callable[[Arrays], None]:
    def change(held: Arrays) -> None:
        held[name] = held[name].copy()
        held[name][-1, -1, -1] += 1e-9

    return change


def no_cells(held: Arrays) -> None:
    for name, values in held.items():
        held[name] = values[:, 1:1] if name != "c2" else values[:, :1]


SPOILERS = {
    "no-psi": without("psi"),
    "no-c1": without("c1"),
    "no-c3": without("c3"),
    "flat-psi": reshaped("psi", (5, 4)),
    "psi-shape": reshaped("psi", (5, 4, 4)),
    "h-shape": reshaped("h", (5, 4, 1)),
    "c1-like-psi": reshaped("c1", GRID),
    "c2-shape": reshaped("c2", (6, 4, 3)),
    "complex": reshaped("psi", GRID, "c16"),
    "text": reshaped("psi", GRID, "S3"),
    "no-cells": no_cells,
    "psi-nan": put("psi", np.nan),
    "psi-inf": put("psi", np.inf),
    "c2-nan": put("c2", np.nan),
    "h-nan": put("h", np.nan),
    "h-zero": put("h", 0.0),
    "h-negative": put("h", -1.0),
    "c1-not-periodic": unequal("c1"),
    "c3-not-periodic": unequal("c3"),
}


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_arrays_that_cannot_be_run_are_refused_in_one_sentence(
    tmp_path: Path, suffix: str, spoil: Callable[[Arrays], None]
) -> None:
    held = arrays()
    spoil(held)
    path = save(tmp_path / f"mine{suffix}", held)
    with one_sentence(InputError):
        Solver(case_of(path), backend="numpy")


def test_faces_may_differ_where_the_axis_is_not_periodic(tmp_path: Path) -> None:
    held = arrays()
    unequal("c1")(held)
    setup = case_of(save(tmp_path / "mine.npz", held), "open,periodic,periodic")
    assert evaluate(setup).c[0][-1, -1, -1] == 0.1 + 1e-9


def test_a_bad_value_is_named_by_its_global_cell(tmp_path: Path) -> None:
    held = arrays()
    put("h", -2.0)(held)
    setup = case_of(save(tmp_path / "mine.h5", held))
    geo = Geometry(GRID, (1, 1, 1), (3, 4, 3), 1, setup.boundaries)
    with one_sentence(InputError, "got -2 at (1, 2, 1)"):
        max_courant(setup, geo)


@pytest.mark.parametrize("name", ["mine.npy", "mine.nc", "mine", "mine.NPZ.txt"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    with one_sentence(InputError, "ending in .npz or .h5"):
        case_of(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_files_are_refused(tmp_path: Path, suffix: str) -> None:
    with one_sentence(InputError, "does not exist"):
        case_of(tmp_path / f"none{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_folders_are_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"mine{suffix}").mkdir()
    with one_sentence(InputError):
        case_of(tmp_path / f"mine{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content", [b"", b"not a file of arrays", b"PK\x03\x04 torn"], ids=["empty", "text", "zip"]
)
def test_files_of_something_else_are_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"mine{suffix}").write_bytes(content)
    with one_sentence(InputError):
        case_of(tmp_path / f"mine{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = save(tmp_path / f"mine{suffix}", arrays())
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with one_sentence(InputError):
        case_of(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_cannot_be_read_is_closed_again(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"mine{suffix}", arrays())
    path.write_bytes(path.read_bytes()[:1000])
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        with pytest.raises(InputError):
            case_of(path)
        gc.collect()
    assert [str(warning.message) for warning in left_open] == []


def test_a_single_array_named_npz_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, arrays()["psi"])
    with one_sentence(InputError):
        case_of(tmp_path / "mine.npz")


def test_damaged_compressed_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **arrays())
    data = bytearray(path.read_bytes())
    # Past the names and sizes of the first member, into its compressed bytes.
    for at in range(60, 90):
        data[at] ^= 0xFF
    path.write_bytes(data)
    with one_sentence(InputError):
        case_of(path)


def test_damaged_hdf5_arrays_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "mine.h5", {k: v for k, v in arrays().items() if k != "psi"})
    with h5py.File(path, "r+") as file:
        psi = file.create_dataset("psi", data=arrays()["psi"], chunks=GRID, fletcher32=True)
        at = psi.id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[at + 20] ^= 0xFF
    path.write_bytes(data)
    with one_sentence(InputError):
        Solver(case_of(path), backend="numpy")
