"""Policies with a window in which half of the nodes are off: one that is open, and one to come."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

TEXT = """order = {{ part = "smallest" }}
sizing = {{ part = "backfill-share" }}
admission = {{ part = "planned" }}
node_power = {{ part = "windows", off = ["00:00-23:59"], share = 0.5, days = ["{}"], zone = "{}" }}
"""


def write_policies(folder: Path) -> tuple[Path, Path]:
    """Write the files of the policies; return that of the open window, and the other."""
    # Where it is about noon, so that the window lasts for hours.
    zone = f"Etc/GMT{time.gmtime().tm_hour - 12:+d}"
    today = datetime.now(ZoneInfo(zone))
    files = folder / "now.toml", folder / "later.toml"
    for file, day in zip(files, (today, today + timedelta(days=3)), strict=True):
        file.write_text(TEXT.format(f"{day:%a}".lower(), zone))
    return files
