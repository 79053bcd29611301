"""Kernels that tests run on another node: functions of a module, as that takes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rms.kernels import place


def fill(data: dict[str, Any]) -> None:
    """Change arrays, numbers and items; tell who did."""
    where = place()
    assert where is not None
    data["u"][1:] += 1.0
    data["new"] = data["u"][::2].copy()
    data["by"] = os.getpid(), where.device, sorted(os.sched_getaffinity(0))


def steps(data: dict[str, Any]) -> Iterator[None]:
    """Count until there is the file ``go``; leave a word that it has begun."""
    where = place()
    assert where is not None
    with Path(data["log"]).open("a") as log:
        log.write(f"{where.device} {os.getpid()}\n")
    while not Path(data["go"]).exists():
        time.sleep(0.01)
        data["at"] += 1
        yield


def fails(data: dict[str, Any]) -> None:
    """Raise."""
    raise KeyError(data["u"].size)


def dies(data: dict[str, Any]) -> None:
    """End its process."""
    os._exit(3)


def unsendable(data: dict[str, Any]) -> None:
    """Leave what cannot be sent back."""
    data["new"] = lambda: 0
