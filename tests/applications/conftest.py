"""Applications of others, as installed from PyPI, with the lines of ``jobs/applications``.

A file of tests names the package that it needs: ``PACKAGE = "veros"``. Where that is missing its
tests are skipped; ``scripts/test applications`` makes an environment that has the packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from daemon import Rms, lent, served
from run_fixtures import run

__all__ = ["run"]

NODES = 3


@pytest.fixture(scope="module", autouse=True)
def package(request: pytest.FixtureRequest) -> str:
    """The package of a file of tests."""
    name: str = request.module.PACKAGE
    if find_spec(name) is None:
        pytest.skip(f"no {name} in this environment; scripts/test applications makes one for it")
    return name


@pytest.fixture(scope="module")
def daemon(package: str) -> Iterator[Rms]:
    """A daemon that resizes jobs on request only."""
    with served(NODES, "--policy", "fifo") as found:
        yield found


@pytest.fixture
def rms(daemon: Rms) -> Iterator[Rms]:
    """The daemon for one test."""
    with lent(daemon) as found:
        yield found
