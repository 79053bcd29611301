"""Run tests of one copy of the checkout for ``scripts/mutate``: all with their lines, or some.

Usage: python scripts/mutation_run.py map FILE PYTEST_WORD ...     which test executes which line
       python scripts/mutation_run.py chosen FILE PYTEST_WORD ...  the tests of a list, in its order
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

CONTEXT = "MUTATE_TEST"
"""Environment variable with the test that runs; coverage of its subprocesses has it as context."""

TIMEOUT = 124
"""Status of a run with a test that exceeds its time."""


class Mapped:
    """Gives each test a context of coverage; keeps durations, and which tests pass."""

    def __init__(self, coverage):
        self.coverage = coverage
        self.seconds, self.bad = {}, set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        os.environ[CONTEXT] = item.nodeid
        self.coverage.switch_context(item.nodeid)
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.monotonic() - begun, 3)

    def pytest_runtest_logreport(self, report):
        if report.outcome != "passed":
            self.bad.add(report.nodeid)


class Chosen:
    """Runs the listed tests only, in the list's order; one that exceeds its time ends all.

    Args:
        limits: seconds by test.
        now: file of the test that runs, for the case that this process ends in it.
    """

    def __init__(self, limits, now):
        self.now = now
        self.place = {test: n for n, test in enumerate(limits)}
        self.limits = limits

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.now.write_text(item.nodeid)
        timer = threading.Timer(self.limits[item.nodeid], os._exit, [TIMEOUT])
        timer.daemon = True
        timer.start()
        try:
            return (yield)
        finally:
            timer.cancel()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        left = [item for item in items if item.nodeid not in self.place]
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place),
            key=lambda item: self.place[item.nodeid],
        )
        config.hook.pytest_deselected(items=left)


def main(mode, file, *words):
    """Run pytest; return its status."""
    sys.path[0] = ""  # as `python -m pytest` has it
    if mode == "chosen":
        now, limits = Path(file).with_suffix(".now"), json.loads(Path(file).read_text())
        return pytest.main([*words], plugins=[Chosen(limits, now)])
    import coverage  # it is in the environment of developers only

    # Subprocesses begin by themselves to measure where this variable is set.
    measured = coverage.Coverage(config_file=os.environ["COVERAGE_PROCESS_START"])
    measured.start()
    plugin = Mapped(measured)
    try:
        return pytest.main([*words], plugins=[plugin])
    finally:
        measured.stop()
        measured.save()
        tests = {test: s for test, s in plugin.seconds.items() if test not in plugin.bad}
        Path(file).write_text(json.dumps({"seconds": tests, "bad": sorted(plugin.bad)}))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
