"""Where data of published studies are: MALLEABLE_DATA, else a folder beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "external"


def external(name: str) -> Path:
    """Return the folder of the data if it has that file, else skip the test."""
    folder = Path(os.environ.get("MALLEABLE_DATA", BESIDE))
    if not (folder / name).is_file():
        pytest.skip(f"no {name} in {folder}: set MALLEABLE_DATA to a folder that has it")
    return folder
