"""The documentation names files of ``jobs/``, which an installed wheel did not have."""

from __future__ import annotations

import re
import tomllib

from processes import ROOT

PAGES = ("README.md", "rms/README.md")
COPY = (
    """cp -r "$(python -c 'import sysconfig; print(sysconfig.get_path("data"))')"""
    """/share/malleable-mpi/jobs" ."""
)


def test_the_wheel_has_the_folder_jobs_where_the_documentation_says() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"]["shared-data"] == {"jobs": "share/malleable-mpi/jobs"}
    for page in PAGES:
        assert f"    {COPY}\n" in (ROOT / page).read_text(), page


def test_each_file_of_jobs_that_the_documentation_names_is_there() -> None:
    named = re.compile(r"(?<![\w/])jobs/[\w/-]+\.(?:py|sh|toml|json|service)\b")
    pages = (*PAGES, "dmr/README.md", "mpdata/README.md")
    names = {(page, name) for page in pages for name in named.findall((ROOT / page).read_text())}
    assert {page for page, _ in names} >= set(PAGES)
    assert not [(page, name) for page, name in names if not (ROOT / name).is_file()]
