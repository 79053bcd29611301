"""``Typing :: Typed`` was stated, and no package had the marker that type checkers look for.

``tests/system/test_package.py`` checks the types of an installed wheel.
"""

from __future__ import annotations

import tomllib

from processes import ROOT


def test_each_package_is_marked_as_typed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "Typing :: Typed" in pyproject["project"]["classifiers"]
    packages = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["dmr", "mpdata", "rms"]
    assert all((ROOT / package / "py.typed").is_file() for package in packages)
