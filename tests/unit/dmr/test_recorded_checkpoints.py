"""A checkpoint of each recorded version: this one reads it with the same bits, or refuses it.

``tests/upgrade/record`` makes the records, from three ranks of :mod:`recorded_heat`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import recorded_heat
from mpi4py import MPI
from mpi_runs import runtime_on
from recorded_heat import EVERY, OPTIONS, STEPS, N
from sentences import one_sentence
from upgrade import FOLDER, versions

import dmr
from dmr.checkpoint.format import FORMAT, read_checkpoint
from dmr.checkpoint.store import path_of
from dmr.data.particles import Items

pytestmark = pytest.mark.promise("upgrade")
each_version = pytest.mark.parametrize("version", versions())


def copied(version: str, folder: Path) -> Path:
    """Return the index in a copy of a recorded folder."""
    return path_of(shutil.copytree(FOLDER / version / "checkpoints", folder / "checkpoints"), EVERY)


def readable(version: str, folder: Path) -> Path:
    """Return the same; skip the test where the format is another."""
    path = copied(version, folder)
    if (number := format_of(path)) != FORMAT:
        pytest.skip(f"format {number} of {version} is refused")
    return path


def format_of(path: Path) -> int:
    with h5py.File(path) as file:
        return int(file.attrs["format"])


def same(state: dict[str, Any], steps: int) -> bool:
    """Return whether a state is that of so many steps, with the same types and bits."""
    wanted = recorded_heat.values_after(steps)
    table, scalar = state["nested"].pop("table"), state.pop("scalar")
    known_table, known_scalar = wanted["nested"].pop("table"), wanted.pop("scalar")
    return (
        state == wanted
        and isinstance(state["pair"], tuple)
        and (table.dtype, table.tobytes()) == (known_table.dtype, known_table.tobytes())
        and (type(scalar), scalar) == (type(known_scalar), known_scalar)
    )


@each_version
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_checkpoint_has_the_same_bits_on_any_number_of_ranks(
    version: str, ranks: int, tmp_path: Path
) -> None:
    path, specs = readable(version, tmp_path), recorded_heat.fields()
    rows, items = [], []
    for rank in range(ranks):
        t, p = (spec.block(spec.decompose((ranks,)), rank) for spec in specs.values())
        progress = read_checkpoint(path, {"t": t, "p": p}, OPTIONS)
        assert isinstance(t, dmr.Field) and isinstance(p, Items)
        assert progress.step == EVERY and same(progress.values, EVERY)
        rows.append(t.interior)
        items.append(p.items)
    assert np.concatenate(rows).tobytes() == recorded_heat.plate_after(EVERY).tobytes()
    assert np.concatenate(items).tobytes() == recorded_heat.particles(0, N).tobytes()


def test_a_format_that_no_version_has_written_is_in_the_changelog() -> None:
    """Users are told that their checkpoints will be refused."""
    recorded = {format_of(path_of(FOLDER / one / "checkpoints", EVERY)) for one in versions()}
    words = (FOLDER.parents[1] / "CHANGELOG.md").read_text()
    assert FORMAT in recorded or f"checkpoint format {FORMAT}" in words


@each_version
def test_a_run_goes_on_from_the_checkpoint(version: str, tmp_path: Path) -> None:
    path = readable(version, tmp_path)
    app, runtime = recorded_heat.Heat(), runtime_on(MPI.COMM_SELF)
    dmr.run(app, runtime, recorded_heat.plan(path.parent, restart=True))
    assert f"restarted from {path} at step {EVERY}" in runtime.log.getvalue()  # type: ignore[attr-defined]
    assert app.plate.tobytes() == recorded_heat.plate_after(STEPS).tobytes()
    assert app.particles.tobytes() == recorded_heat.particles(0, N).tobytes()
    assert same(app.state, STEPS)


@each_version
@pytest.mark.parametrize("further", [-1, 1])
def test_another_format_is_refused_in_one_sentence_that_names_both(
    version: str, further: int, tmp_path: Path
) -> None:
    path = copied(version, tmp_path)
    if (number := format_of(path)) == FORMAT:
        number += further
        with h5py.File(path, "r+") as file:
            file.attrs["format"] = number
    message = f"{path}: expected checkpoint format {FORMAT}, got {number}"
    with one_sentence(dmr.UsageError, message):
        plan = recorded_heat.plan(path.parent, restart=True)
        dmr.run(recorded_heat.Heat(), runtime_on(MPI.COMM_SELF), plan)
