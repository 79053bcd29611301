"""What benches have in common; its import puts this checkout first on the path of imports."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parents[1]
if str(ROOT) not in sys.path[:1]:
    sys.path.insert(0, str(ROOT))

BIN = Path(sys.executable).parent
"""The folder of mpiexec and of this project's commands."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every rank compiles all that it imports
TRACES = Path(os.environ.get("RMS_TRACES", ROOT.parent / "shared" / "data" / "traces"))
DEADLINE_S = 60.0


class BenchError(Exception):
    """A failed measurement; one sentence."""


def parser(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring and knows ``--json FILE``."""
    kind = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        description=doc, formatter_class=kind, allow_abbrev=False, **options
    )
    made.add_argument("--json", metavar="FILE", help="write the figures there, too")
    return made


def keep(arguments: argparse.Namespace, figures: Any) -> None:
    """Write figures as JSON, if ``--json`` names a file, with command, date and machine.

    In ``results/`` the page *Performance* of the site shows them.
    """
    from rms.wire.terminal import emit_json

    if arguments.json is None:
        return
    words = [f"scripts/bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    stated = {"command": shlex.join(words), "date": today, "machine": machine()}
    emit_json(arguments.json, {**stated, "figures": figures})


def machine() -> str:
    """Return the processor, the number of its cores that are used here, and the system."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = platform.python_version()
    return f"{model}, {cores} cores, {platform.system()}, Python {python}"


def holds(good: bool) -> str:
    """Return whether a bound holds, as text."""
    return "holds" if good else "DOES NOT HOLD"


def until(what: str, ready: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds.

    Raises:
        BenchError: the time is up.
    """
    end = time.monotonic() + deadline_s
    while not ready():
        if time.monotonic() > end:
            raise BenchError(f"expected {what} within {deadline_s:g} s, got none")
        time.sleep(0.05)


@contextlib.contextmanager
def served(*options: str, cluster: str = "") -> Iterator[tuple[str, Path]]:
    """Run a daemon whose jobs run on this machine; yield its address and a folder for jobs."""
    from rms.studies.embedded import embedded_daemon

    with tempfile.TemporaryDirectory(prefix="rms-", dir="/tmp") as name:
        folder = Path(name)
        words = list(options)
        if cluster:
            (folder / "cluster.toml").write_text(cluster)
            words += ["--cluster", str(folder / "cluster.toml")]
        with embedded_daemon(words, folder, local=True) as server:
            yield server, folder


def run(main: Callable[[], Any], name: str) -> None:
    """End this program with the status that ``main`` returns, or one sentence."""
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(1)
