"""A daemon in this process, for the tests that ask one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from routed import Routed, routed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Routed]:
    """Open a daemon of two nodes, which starts nothing; its folder is ``tmp_path``."""
    with routed(tmp_path) as opened:
        yield opened
