"""A checkpoint whose path led elsewhere by then was trusted, and its pickles ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest

from dmr.checkpoint import format as checkpoint_format
from dmr.errors import UsageError
from dmr.state.progress import Progress
from dmr.state.values import ValuesError

RAN: list[str] = []


class Runs:
    """What runs code where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RAN.append, ("code",)


def test_the_file_that_is_read_is_the_one_whose_owner_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint_format.path_of(tmp_path, 7)
    writer = checkpoint_format.Writer(path, Progress(values={"x": Runs()}), {})
    assert writer.finish() is None
    strangers, link = path.rename(tmp_path / "strangers"), path
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
    for read in (
        lambda: checkpoint_format.verify(link, {}, {}),
        lambda: checkpoint_format.read(link, {}),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(strangers)
        with pytest.raises((UsageError, ValuesError), match="source that is not trusted"):
            read()
        assert RAN == []
