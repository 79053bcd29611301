"""A browser without a screen, and the live page of a daemon in it; where both are installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from daemon import Rms
from processes import RMS, started

WAIT_MS = 120_000


def chromium() -> str | None:
    """Return the browser's program."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Start the browser; the test is skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="expected Playwright (pip install .[browser]), which is not"
    )
    program = chromium()
    if program is None:
        pytest.skip("expected Chromium (Debian: apt install chromium), which is not installed")
    with playwright.sync_playwright() as started_playwright:
        browser = started_playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=WAIT_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def page_of(rms: Rms) -> Iterator[str]:
    """Serve the page of a daemon; yield its address."""
    with started(
        [*RMS, "web"], cwd=rms.work, env=rms.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def opened(browser: Any, address: str, *, scheme: str = "light", width: int = 1200) -> Any:
    """Open the page, and wait until it is live."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(address)
    live(page)
    return page


def live(page: Any) -> None:
    """Wait until the page follows its daemon."""
    page.locator("#connection", has_text="Live").wait_for()


def show(page: Any, view: str) -> None:
    """Go to a view, and wait until it is there."""
    page.evaluate("(view) => { location.hash = view }", view)
    page.locator(f"main[data-view='{view}'] h2").first.wait_for()
