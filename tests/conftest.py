"""Which tests run, and which promises of the README they have proven; see README.md beside this."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType

import pytest
from faults import Fault, entering, rows_of, table
from hypothesis import HealthCheck, Phase, settings
from promises import enter, promises, proven_by
from selection import covering_rows

# The assertions of shared code show their values, as those of tests do.
pytest.register_assert_rewrite(
    *(
        path.stem
        for path in Path(__file__).with_name("support").glob("*.py")
        if path.stem not in sys.modules
    )
)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # So it is where a shell runs tests in its background; what they start is to hear of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# This machine's own packages are in no test: what a daemon books is the model's, or a stand-in's.
os.environ.setdefault("RMS_POWERCAP", os.devnull)

EXAMPLES, EXAMPLES_OF_ALL = 30, 80
"""Of a property, where its test asks for no other number."""


def pytest_configure(config: pytest.Config) -> None:
    """Let a run try the same examples every time, and one with ``--random`` others each time.

    The machine's speed decides nothing, and no failure costs minutes: it is reported unshrunk. To
    shrink it, run that test with ``--hypothesis-profile default``.
    """
    wide = config.getoption("--all")
    settings.register_profile(
        "chosen",
        derandomize=not config.getoption("--random"),
        max_examples=EXAMPLES_OF_ALL if wide else EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.target],
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    if not config.getoption("--hypothesis-profile", default=None):  # with or without its plugin
        settings.load_profile("chosen")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a run that timeout(1) ends leave no daemon, mpiexec or spinning rank: fixtures end them.

    What is interrupted may be a command called in this process, which answers by its status.
    """

    def end(number: int, frame: FrameType | None) -> None:
        session.shouldstop = "ended by SIGTERM"
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="wide products, soaks and long faults too")
    parser.addoption("--random", action="store_true", help="other examples of properties each time")
    parser.addoption("--slurm", action="store_true", help="start a real Slurm on this machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is wide to ``--all``; note on each test what it proves."""
    known = promises()
    for item in items:
        for mark in item.iter_markers("promise"):
            if unknown := set(mark.args) - set(known):
                raise pytest.UsageError(f"{item.nodeid}: not in tests/README.md: {unknown}")
            item.user_properties += [("promise", name) for name in mark.args]
    everything = config.getoption("--all")
    left = [] if everything else [item for item in items if item.get_closest_marker("wide")]
    groups: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("covering")
        if mark is None or not isinstance(item, pytest.Function) or item in left:
            continue
        strength = mark.kwargs.get("in_all") if everything else mark.args[0]
        if strength is not None:
            groups[item.nodeid.partition("[")[0], strength].append(item)
    for (_, strength), rows in groups.items():
        chosen = set(covering_rows([values_of(item) for item in rows], strength))
        left += [item for n, item in enumerate(rows) if n not in chosen]
    gone = set(left)
    if gone:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in gone]


def values_of(item: pytest.Function) -> dict[str, str]:
    """Return the parameters of a test as text."""
    return {name: str(value) for name, value in item.callspec.params.items()}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Enter what a test has proven, or why it could not."""
    if report.when == "call" or report.outcome != "passed":
        names = [str(value) for key, value in report.user_properties if key == "promise"]
        enter(report.outcome, names, reason(report))


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """What enters a row in the table of faults."""
    return entering(request.node)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of faults that daemons were put through."""
    passed = [r for r in terminalreporter.stats.get("passed", []) if r.when == "call"]
    found = rows_of(passed)
    if found:
        terminalreporter.section("faults")
        for line in table(found):
            terminalreporter.write_line(line)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Enter why a file that is skipped as a whole proves nothing here."""
    if report.skipped:
        enter("skipped", proven_by(report.nodeid.removeprefix("tests/")), reason(report))


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return in one line why something was skipped."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
    return ""
