"""Fields of dates, text, raw bytes and objects were accepted, and the job died at a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from checkpoints import write
from processes import ROOT
from sentences import one_sentence
from simulated_ranks import Network, run_all

import dmr
from dmr.checkpoint import format as checkpoint_format
from dmr.checkpoint.format import read_checkpoint, write_part
from dmr.data.field import Field
from dmr.data.particles import ListSpec

CELLS = 29
KINDS = ("spec", "adapt", "list")


def table() -> Iterator[tuple[str, str, str]]:
    """Yield each dtype of the table in docs/concepts/what-travels.md, and its two other columns."""
    text = (ROOT / "docs" / "concepts" / "what-travels.md").read_text()
    _, _, rows = text.partition("| dtype | moves | checkpoint |\n|---|---|---|\n")
    for row in rows.partition("\n\n")[0].splitlines():
        dtypes, moves, stored = row.strip("| ").split(" | ")
        for dtype in re.findall(r"`([^`]+)`", dtypes):
            if dtype != "np.longdouble":
                yield dtype, moves, stored


ROWS = list(table())


def values_of(dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return items whose bytes are of all values, padding and invalid ones included."""
    kind = np.dtype(dtype)
    values = 2 if kind.kind == "b" else 256
    raw = np.random.default_rng(kind.itemsize).integers(0, values, CELLS * kind.itemsize, "u1")
    return raw.view(kind)


def blocks(kind: str, dtype: Any, ranks: int, values: npt.NDArray[Any] | None) -> list[Field]:
    """Return the blocks of so many ranks, with these values."""
    fields: list[Field] = []
    for rank in range(ranks):
        begin, end = dmr.split_range(CELLS, ranks, rank)
        mine = np.zeros(end - begin, dtype)
        if values is not None:
            mine = values[begin:end].copy()
        spec: dmr.FieldSpec
        if kind == "spec":
            spec = dmr.FieldSpec((CELLS,), dtype, lambda box, mine=mine: mine, halo=1)  # type: ignore[misc]
        elif kind == "adapt":
            spec = dmr.adapt(mine, (CELLS,))
        else:

            def owner(items: Any, cut: Any) -> Any:
                first = items.view(np.uint8).reshape(len(items), -1)[:, 0].astype(int)
                return first % cut.size

            spec = dmr.adapt_list(mine, (CELLS,), owner)
        block = spec.block(spec.decompose((ranks,)), rank)
        if values is None:
            block.prefault() if kind != "list" else None
        else:
            block.initialise()
        fields.append(block)
    return fields


def whole(kind: str, fields: list[Field]) -> list[bytes]:
    """Return the bytes of each item; of lists, which have no order, sorted."""
    parts = [np.ascontiguousarray(b.storage if kind == "list" else b.interior) for b in fields]
    items = [item.tobytes() for part in parts for item in part]
    return sorted(items) if kind == "list" else items


def moved(old: list[Field], new: list[Field]) -> None:
    network = Network((len(old), len(new)))
    sends = [
        one.sending(comm, new[0].decomposition, on_host=True)
        for one, comm in zip(old, network.comms(0), strict=True)
    ]
    takes = [
        one.receiving(comm, old[0].decomposition, on_host=True)
        for one, comm in zip(new, network.comms(1), strict=True)
    ]
    assert all(run_all([*sends, *takes])[len(sends) :])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [dtype for dtype, moves, _ in ROWS if moves == "yes"])
def test_dtypes_that_the_guide_lists_as_moved_are_moved(dtype: str, kind: str) -> None:
    values = values_of(dtype)
    old, new = blocks(kind, dtype, 2, values), blocks(kind, dtype, 3, None)
    moved(old, new)
    assert whole(kind, new) == whole(kind, old)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "stored"), [(dtype, stored) for dtype, _, stored in ROWS if stored != "refused"]
)
def test_dtypes_that_the_guide_lists_as_stored_are_restored(
    tmp_path: Path, dtype: str, stored: str, kind: str
) -> None:
    values = values_of(dtype)
    for ranks in (1, 2):
        path = write(tmp_path, blocks(kind, dtype, ranks, values), ranks)
        with h5py.File(path) as file:
            opaque = file["fields/a"].id.get_type().get_class() == h5py.h5t.OPAQUE
            assert stored == ("opaque" if opaque else "HDF5 type")
            assert file["fields/a"].dtype == np.dtype(dtype)
        for others in (1, 3):
            fields = blocks(kind, dtype, others, None)
            for block in fields:
                read_checkpoint(path, {"a": block}, {})
            expected = [item.tobytes() for item in values]
            assert whole(kind, fields) == (sorted(expected) if kind == "list" else expected)


@pytest.mark.parametrize("dtype", [dtype for dtype, moves, _ in ROWS if moves == "refused"])
def test_dtypes_that_the_guide_lists_as_refused_are_refused_at_declaration(dtype: str) -> None:
    kind = np.dtype(dtype)
    with one_sentence(ValueError):
        dmr.FieldSpec((4,), dtype, lambda box: 0)
    with one_sentence(ValueError):
        ListSpec((4,), dtype, lambda box: 0, owner=lambda items, cut: [])
    array = np.zeros(4, kind)
    if array.dtype == kind:  # NumPy makes no arrays of some dtypes
        with one_sentence(ValueError):
            dmr.adapt(array, (4,))
        with one_sentence(ValueError):
            dmr.adapt_list(array, (4,), lambda items, cut: [])


def test_the_table_lists_every_kind_of_dtype() -> None:
    assert {np.dtype(dtype).kind for dtype, *_ in ROWS} == set("biufcSUMmVOT")
    assert {(moves, stored) for _, moves, stored in ROWS} == {
        ("yes", "HDF5 type"),
        ("yes", "opaque"),
        ("refused", "refused"),
    }


def test_a_masked_array_is_refused_as_its_mask_would_not_move() -> None:
    masked = np.ma.MaskedArray(np.zeros(4), [True, False, False, True])
    with one_sentence(ValueError):
        dmr.adapt(masked, (4,))
    with one_sentence(ValueError):
        dmr.adapt_list(masked, (4,), lambda items, cut: [])
    (block,) = blocks("adapt", "f8", 1, np.zeros(CELLS))
    with one_sentence(ValueError):
        block.rebind(np.ma.MaskedArray(np.zeros(CELLS)))


def test_dtypes_of_other_packages_are_opaque(tmp_path: Path) -> None:
    from numpy._core._rational_tests import rational  # type: ignore[import-not-found]

    dtype = np.dtype(rational)
    values = np.array([rational(n, n + 1) for n in range(CELLS)], dtype)
    for kind in ("spec", "adapt"):
        old, new = blocks(kind, dtype, 2, values), blocks(kind, dtype, 3, None)
        moved(old, new)
        assert whole(kind, new) == whole(kind, old)
    for ranks in (1, 2):
        path = write(tmp_path, blocks("adapt", dtype, ranks, values), ranks)
        fields = blocks("adapt", dtype, 3, None)
        for block in fields:
            read_checkpoint(path, {"a": block}, {})
        assert whole("adapt", fields) == [item.tobytes() for item in values]


def test_a_dtype_that_a_file_cannot_hold_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_format, "stored_type", lambda dtype: dtype)
    (block,) = blocks("adapt", "M8[s]", 1, values_of("M8[s]"))
    problem, _ = write_part(tmp_path, 0, {"a": block})
    assert "No conversion path" in str(problem)
