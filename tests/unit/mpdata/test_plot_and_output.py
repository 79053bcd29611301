"""Field output files and the pictures of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
import wind_files as wf
from PIL import Image
from sentences import one_sentence
from whole_grids import evaluate

from mpdata.cases import Request, Setup, make_setup
from mpdata.cli.plot import COASTLINE, Underlay, plot_file
from mpdata.errors import InputError
from mpdata.parallel.output import Frame, create, write_xdmf
from rms.wire.files import OutputError

PNG = b"\x89PNG\r\n\x1a\n"


def small(grid: tuple[int, int, int] = (6, 5, 4)) -> Setup:
    return make_setup("gaussian", Request(grid=grid))


def written(path: Path, setup: Setup, frames: int = 3) -> Path:
    """Write frames number 0, 1, 2, ... of steps 0, 10, 20, ..."""
    create(path, setup, "f8")
    psi = evaluate(setup).psi
    for number in range(frames):
        add_frame(path, number, psi + number)
    return path


def add_frame(path: Path, number: int, psi: np.ndarray) -> None:
    frame = Frame(path, 10 * number, 2.5 * number)
    for start in range(0, len(psi), 2):
        frame.add(start, psi[start : start + 2])
    frame.close()


def test_frames_are_kept_with_their_steps_and_times(tmp_path: Path) -> None:
    setup = small()
    with h5py.File(written(tmp_path / "out.h5", setup)) as file:
        assert file["psi"].shape == (3, 6, 5, 4)
        assert file["step"][:].tolist() == [0, 10, 20]
        assert file["time"][:].tolist() == [0.0, 2.5, 5.0]
        assert file["psi"][2].tobytes() == (evaluate(setup).psi + 2).tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_file_has_the_type_of_the_run(tmp_path: Path, dtype: str) -> None:
    create(tmp_path / "out.h5", small(), dtype)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["psi"].dtype == np.dtype(dtype)
        assert file["psi"].shape == (0, 6, 5, 4)


def test_coordinates_come_with_names_and_units(tmp_path: Path) -> None:
    setup = small()
    with h5py.File(written(tmp_path / "out.h5", setup)) as file:
        scales = [file["psi"].dims[axis][0] for axis in range(4)]
        assert [scale.name for scale in scales] == ["/time", "/x", "/y", "/z"]
        assert all("units" in scale.attrs for scale in scales)
        assert scales[1][:] == pytest.approx([i / 6 for i in range(6)])


def test_xarray_reads_fields_times_and_coordinates(tmp_path: Path, winds: wf.Pair) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    setup = make_setup("winds", Request(grid=(12, 10, 4), winds=winds))
    path = written(tmp_path / "out.h5", setup, 2)
    with xarray.open_dataset(path, engine="h5netcdf") as found:
        assert found["psi"].dims == ("time", "longitude", "latitude", "relative_height")
        assert (
            found["psi"].sel(time="2000-01-01T00:00:02.5").values.tobytes()
            == (evaluate(setup).psi + 1).tobytes()
        )
        assert found["longitude"].attrs["standard_name"] == "longitude"
        assert found["relative_height"].attrs["positive"] == "up"
        assert found["step"].dims == ("time",) and found["step"].values.tolist() == [0, 10]


def test_a_case_without_coordinates_has_the_numbers_of_cells(tmp_path: Path) -> None:
    create(tmp_path / "out.h5", make_setup("random", Request(grid=(4, 3, 2))), "f8")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["psi"].dims[2][0].name == "/y" and file["y"][:].tolist() == [0, 1, 2]


def test_paraview_is_told_where_each_frame_of_each_tracer_is(tmp_path: Path) -> None:
    setup = make_setup("random", Request(grid=(4, 3, 2), tracers=2))
    create(tmp_path / "out.h5", setup, "f4")
    for number in range(3):
        add_frame(tmp_path / "out.h5", number, np.full((4, 3, 2), number))
        write_xdmf(tmp_path / "out.h5")
    grids = ElementTree.parse(tmp_path / "out.xmf").findall("Domain/Grid/Grid")
    assert [grid.find("Time").attrib["Value"] for grid in grids] == ["0.0", "2.5", "5.0"]
    for number, grid in enumerate(grids):
        assert grid.find("Topology").attrib["Dimensions"] == "4 3 2"
        axes = [item.text for item in grid.findall("Geometry/DataItem")]
        assert axes == ["out.h5:/z", "out.h5:/y", "out.h5:/x"]
        assert [field.attrib["Name"] for field in grid.findall("Attribute")] == ["psi", "psi2"]
        slab, stored = grid.findall("Attribute/DataItem/DataItem")[2:]
        assert slab.text == f"{number} 0 0 0 1 1 1 1 1 4 3 2"
        assert (stored.text, stored.attrib["Precision"]) == ("out.h5:/psi2", "4")
        assert stored.attrib["Dimensions"] == "3 4 3 2"
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".h5", ".xmf"]


def test_vtk_reads_what_was_written(tmp_path: Path) -> None:
    vtk = pytest.importorskip("vtkmodules.vtkIOXdmf2")
    arrays = pytest.importorskip("vtkmodules.util.numpy_support")
    setup = small()
    path = written(tmp_path / "out.h5", setup, 1)
    write_xdmf(path)
    reader = vtk.vtkXdmfReader()
    reader.SetFileName(str(path.with_suffix(".xmf")))
    reader.Update()
    found = arrays.vtk_to_numpy(reader.GetOutputDataObject(0).GetPointData().GetArray("psi"))
    assert found.reshape(6, 5, 4).tobytes() == evaluate(setup).psi.tobytes()


def test_the_frames_of_an_interrupted_run_are_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "out.h5", small())
    again = np.full((6, 5, 4), 7.0)
    add_frame(path, 1, again)
    with h5py.File(path) as file:
        assert file["psi"].shape[0] == file["step"].size == file["time"].size == 2
        assert (file["psi"][1] == 7.0).all()


def test_a_new_run_starts_a_new_file(tmp_path: Path) -> None:
    path = written(tmp_path / "out.h5", small())
    create(path, small((4, 4, 4)), "f8")
    with h5py.File(path) as file:
        assert file["psi"].shape == (0, 4, 4, 4)


def test_output_makes_its_folder(tmp_path: Path) -> None:
    create(tmp_path / "new" / "out.h5", small(), "f8")
    assert (tmp_path / "new" / "out.h5").is_file()


def test_output_over_a_folder_is_refused(tmp_path: Path) -> None:
    with one_sentence(InputError):
        create(tmp_path, small(), "f8")


@pytest.fixture(scope="module")
def winds(tmp_path_factory: pytest.TempPathFactory) -> wf.Pair:
    return wf.write_winds(tmp_path_factory.mktemp("winds"))


@pytest.mark.parametrize("grid", [(6, 5, 4), (6, 5, 1), (6, 1, 1), (1, 6, 5)], ids=str)
def test_slices_of_any_grid_are_drawn(tmp_path: Path, grid: tuple[int, int, int]) -> None:
    path = written(tmp_path / "out.h5", small(grid))
    assert plot_file(path, tmp_path / "out.png") == [0, 2]
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_a_map_is_drawn_over_the_winds(tmp_path: Path, winds: wf.Pair) -> None:
    setup = make_setup("winds", Request(grid=(12, 10, 4), winds=winds))
    path = written(tmp_path / "out.h5", setup)
    plot_file(path, tmp_path / "bare.png", frames=[1])
    plot_file(path, tmp_path / "winds.png", frames=[1], winds=Underlay(winds, 2))
    bare, over = ((tmp_path / name).read_bytes() for name in ("bare.png", "winds.png"))
    assert bare.startswith(PNG)
    assert over.startswith(PNG)
    assert bare != over


@pytest.mark.parametrize(("wanted", "drawn"), [([1], [1]), ([-1], [2]), ([2, 0], [2, 0])])
def test_frames_may_be_chosen_also_from_the_end(
    tmp_path: Path, wanted: list[int], drawn: list[int]
) -> None:
    path = written(tmp_path / "out.h5", small())
    assert plot_file(path, tmp_path / "out.png", frames=wanted) == drawn


def test_a_single_frame_is_drawn_once(tmp_path: Path) -> None:
    assert plot_file(written(tmp_path / "out.h5", small(), 1), tmp_path / "out.png") == [0]


@pytest.mark.parametrize("frame", [3, -4, 100])
def test_frames_that_are_not_there_are_refused(tmp_path: Path, frame: int) -> None:
    path = written(tmp_path / "out.h5", small())
    with one_sentence(InputError, f"expected a frame from 0 to 2, got {frame}"):
        plot_file(path, tmp_path / "out.png", frames=[frame])


def missing(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def not_hdf5(path: Path) -> None:
    path.write_bytes(b"a table of numbers\n" * 100)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def without_psi(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["psi"]


def flat_psi(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["psi"] = np.zeros((3, 4))


def grouped_psi(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("psi")


def without_steps(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["step"]


def without_frames(path: Path) -> None:
    create(path, small(), "f8")


@pytest.mark.parametrize(
    "spoil",
    [
        missing,
        a_folder,
        not_hdf5,
        truncated,
        without_psi,
        flat_psi,
        grouped_psi,
        without_steps,
        without_frames,
    ],
)
def test_files_that_are_no_field_output_are_refused_in_one_sentence(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = written(tmp_path / "out.h5", small())
    spoil(path)
    with one_sentence(InputError):
        plot_file(path, tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "out.h5", small())
    with pytest.raises(OutputError, match=r"^cannot write .*/out.png: No such file"):
        plot_file(path, tmp_path / "nowhere" / "out.png")


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "out.h5", small())
    with one_sentence(InputError):
        plot_file(path, tmp_path / "out.docx")


def test_an_animation_has_all_frames(tmp_path: Path, winds: wf.Pair) -> None:
    setup = make_setup("winds", Request(grid=(12, 10, 4), winds=winds))
    path = written(tmp_path / "out.h5", setup)
    assert plot_file(path, tmp_path / "out.gif", animate=True) == [0, 1, 2]
    with Image.open(tmp_path / "out.gif") as film:
        assert film.n_frames == 3


@pytest.mark.parametrize(
    ("name", "says"), [("out.avi", "expected an animation"), ("out.mp4", "needs ffmpeg")]
)
def test_an_animation_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = written(tmp_path / "out.h5", small())
    with one_sentence(InputError, says):
        plot_file(path, tmp_path / name, animate=True)
    assert not (tmp_path / name).exists()


def test_coasts_lie_on_the_globe() -> None:
    lines = json.loads(COASTLINE.read_text())["lines"]
    points = np.concatenate([np.array(line) for line in lines])
    assert len(points) > 5000 and (abs(points) <= (180, 90)).all()
    # No line goes around the other way: it would cross the whole map.
    assert max(abs(np.diff(np.array(line)[:, 0])).max() for line in lines) < 30.0


def test_bad_winds_under_a_map_are_refused(tmp_path: Path, winds: wf.Pair) -> None:
    setup = make_setup("winds", Request(grid=(12, 10, 4), winds=winds))
    path = written(tmp_path / "out.h5", setup, 1)
    with one_sentence(InputError, "expected a wind file"):
        plot_file(path, tmp_path / "out.png", winds=Underlay((tmp_path / "none.nc", winds[1])))
