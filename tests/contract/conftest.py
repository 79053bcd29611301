"""The covering array of options: chosen, or all of them, and printed at the end."""

from __future__ import annotations

import pytest
from combinations import covering, every


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-combinations",
        action="store_true",
        help="every combination of options instead of rows that cover all pairs",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "combination" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-combinations")
        rows = list(every()) if everything else covering()
        metafunc.parametrize("combination", rows, ids=str)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    ran = any(
        "test_combinations.py" in report.nodeid
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    )
    if ran and not config.getoption("--all-combinations"):
        rows = covering()
        terminalreporter.section(f"covering array: {len(rows)} rows show every pair of values")
        for row in rows:
            terminalreporter.line(str(row))
