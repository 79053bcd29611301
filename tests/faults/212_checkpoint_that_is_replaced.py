"""A checkpoint whose path led elsewhere by then was trusted, and its pickles ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest

from dmr.checkpoint.format import Index, read_checkpoint, write_index
from dmr.errors import UsageError
from dmr.state.progress import Progress

RAN: list[str] = []


class Runs:
    """What runs code where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RAN.append, ("code",)


def test_the_file_that_is_read_is_the_one_whose_owner_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "checkpoint-0000000007.h5"
    strangers = tmp_path / "strangers"
    (tmp_path / "parts").mkdir()
    index = Index("parts", {}, {})
    assert write_index(strangers, index, {}, Progress(values={"x": Runs()}), {}) is None
    strangers.chmod(0o666)  # anybody can have written it
    own = tmp_path / "own"
    own.touch(mode=0o600)
    opened = h5py.File

    def opened_and_replaced(*words: Any, **options: Any) -> h5py.File:
        file = opened(*words, **options)
        link.unlink()
        link.symlink_to(own)
        return file

    monkeypatch.setattr(h5py, "File", opened_and_replaced)
    link.symlink_to(strangers)
    with pytest.raises(UsageError, match="source that is not trusted"):
        read_checkpoint(link, {}, {})
    assert RAN == []
