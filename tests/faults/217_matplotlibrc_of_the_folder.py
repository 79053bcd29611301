"""A matplotlibrc in the working folder named programs that rms report and mpdata plot ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import matplotlib as mpl
import numpy as np
import pytest

from mpdata.cases import Request, make_setup
from mpdata.cli.plot import plot_file
from mpdata.errors import InputError
from mpdata.parallel.output import Frame, create
from rms.plots import History, power_over_time
from rms.wire.files import csv_text


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the file that the programs of a matplotlibrc make; there are none on PATH."""
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\n: > {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with mpl.rc_context():
        mpl.rcParams.update({"text.usetex": True, "animation.ffmpeg_path": str(program)})
        yield ran


def test_an_animation_runs_only_what_is_on_the_path(ran: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    create(path, make_setup("gaussian", Request(grid=(6, 5, 4))), "f8")
    for number in range(2):
        frame = Frame(path, number, float(number))
        frame.add(0, np.ones((6, 5, 4)))
        frame.close()
    with pytest.raises(InputError, match="needs ffmpeg on PATH"):
        plot_file(path, tmp_path / "out.mp4", animate=True)
    assert not ran.exists()
    mpl.rcParams["text.usetex"] = True
    assert plot_file(path, tmp_path / "out.png") == [0, 1]
    with h5py.File(path) as file:
        assert len(file["psi"]) == 2


def test_a_report_is_drawn_without_tex(ran: Path, tmp_path: Path) -> None:
    history = History(["n1"], [], [(0.0, 1.0), (1.0, 2.0)], 1.0)
    power_over_time({"a": history}, tmp_path / "power.png", "power")
    assert (tmp_path / "power.png").exists() and not ran.exists()


@pytest.mark.parametrize("sign", "＝＋－＠")
def test_signs_of_full_width_begin_no_formula(sign: str) -> None:
    assert csv_text([[f"{sign}1+1"]]) == f"'{sign}1+1\r\n"
