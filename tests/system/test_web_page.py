"""The live page in a browser, of a real daemon with real jobs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from browser import browsing, live, opened, page_of, show
from daemon import Rms, served
from processes import ROOT, program

from rms.web.views import relative
from rms.wire.terminal import hms

NAME = "<b onclick=x>bold</b>"
PACED = " ".join([*program("paced"), str(ROOT / "mpdata" / "__main__.py")])
JOB = f"""PACE_S=0.05 mpirun {PACED} run --case random --grid 24 20 8 --backend numpy --every 2 \
--steps 100000"""
VIEWS = (
    *("view=overview", "view=jobs", "view=jobs&jobs=over", "view=power", "view=nodes"),
    *("view=job&id=1", "view=array&id=2", "view=users", "view=malleability"),
)


@pytest.fixture
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.mark.wide
@pytest.mark.promise("web-browser")
def test_jobs_are_seen_resized_and_cancelled_and_nothing_is_missed(browser: Any) -> None:
    with served(3, "--policy", "fifo") as rms, page_of(rms) as address:
        page = opened(browser, address)
        begun = rms.post("/live", {})["seq"]
        job = rms.submit(JOB, "--nodes", "1-3", "--preferred", "1", "--mode", "flexible",
                         "--job-name", NAME)  # fmt: skip
        array = rms.submit("sleep 600", "--array", "1-4")
        row = page.locator(f"tr[data-job='{job}']")
        row.get_by_text("Running").wait_for()
        assert row.locator("td").first.text_content() == NAME
        rms.running(job)

        row.get_by_role("button", name="Resize").click()
        page.locator("#confirm-input").fill("9")
        page.locator("#confirm-yes").click()
        page.locator("#confirm-error", has_text="expected a size of 1 to 3 nodes, got 9").wait_for()
        rms.rms("cancel", f"{array}_1", f"{array}_2")
        rms.until(lambda: rms.row(f"{array}_1")["state"] == "CANCELLED", "nodes")
        rms.rms("cancel", f"{array}_[3-4]")
        page.locator("#confirm-input").fill("3")
        resize_when_free(rms, page)
        page.locator("#news li", has_text=f"job {job} resized from 1 to 3 ranks").wait_for()
        page.locator(".lanes svg.mark").first.wait_for(state="attached")
        row.locator("td", has_text="3").first.wait_for()

        daemon_comes_back(rms, page)
        cancel_by_keyboard(page, row)
        rms.over(job)
        page.locator("#news li", has_text=f"job {job} CANCELLED").wait_for()
        for each in rms.post("/live", {"after": begun})["news"]:
            page.locator("#news li", has_text=each["words"]).first.wait_for()
        page.close()
        accessible(browser, address)


@pytest.mark.promise("web-browser")
def test_the_page_keeps_its_theme_and_its_times_and_is_used_by_keys(browser: Any) -> None:
    with served(3, "--policy", "fifo") as rms, page_of(rms) as address:
        job = rms.submit("sleep 600", "--nodes", "2", "--time", "30")
        page = opened(browser, address, width=390)
        for ahead_s in (0, -4, -59, -61, 3599, -7200, -200_000):
            words = page.evaluate(f"behind = 0; relative(now() + {ahead_s} + 0.1)")
            assert words == relative(1000.1 + ahead_s, 1000.0)
        assert page.evaluate("hms(3725)") == hms(3725)

        theme = page.get_by_role("button", name="Dark")
        colours = []
        for pressed in ("false", "true", "true", "false"):
            assert theme.get_attribute("aria-pressed") == pressed
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            if len(colours) == 2:
                page.reload()  # the choice stays
                live(page)
            else:
                theme.click()
        assert colours[0] == colours[3] != colours[1] == colours[2]

        row = page.locator(f"tr[data-job='{job}']")
        ran = row.locator("[data-since]")
        first = ran.text_content()
        assert re.fullmatch(r"0:0\d:\d\d", first)
        rms.until(lambda: ran.text_content() != first, "later time")
        page.locator("[data-bars]").focus()
        page.keyboard.press("ArrowRight")
        page.locator(".readout", has_text=f"job {job}: 2 nodes (n1 to n2) from").wait_for()
        page.keyboard.press("Enter")
        page.locator("h2", has_text=f"Job {job}").wait_for()
        submitted = page.locator("time[data-at]").first
        assert re.fullmatch(r"now|\d+ (s|min) ago", submitted.text_content())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", submitted.get_attribute("title"))


@pytest.mark.promise("web-browser")
def test_the_page_is_read_without_javascript(browser: Any) -> None:
    with served(2, "--policy", "fifo") as rms, page_of(rms) as address:
        job = rms.submit("sleep 600", "--nodes", "2", "--job-name", NAME)
        rms.until(lambda: rms.row(job)["state"] == "RUNNING", "start")
        home, token = address.split("#token=")
        context = browser.new_context(
            java_script_enabled=False,
            viewport={"width": 390, "height": 800},
            http_credentials={"username": "me", "password": token},
        )
        page = context.new_page()
        page.goto(home)
        page.get_by_role("link", name="read").click()
        page.locator(f"tr[data-job='{job}']", has_text=NAME).wait_for()
        assert page.locator("svg.block .fill").count() == 1
        page.get_by_role("link", name="Energy").click()
        page.locator("h2", has_text="Power over time").wait_for()
        assert page.locator("script, button").count() == 0
        context.close()


def resize_when_free(rms: Rms, page: Any) -> None:
    """Confirm a resize, again while the nodes are not free yet."""

    def resized() -> bool:
        if page.locator("#confirm").is_visible():
            page.locator("#confirm-yes").click()
            page.wait_for_timeout(200)
        return not page.locator("#confirm").is_visible()

    rms.until(resized, "resize")


def daemon_comes_back(rms: Rms, page: Any) -> None:
    """Kill the daemon and start it again: the page says so, goes on, and tells what came since."""
    rms.end(signal.SIGKILL)
    page.locator("#connection", has_text="Waiting for the daemon").wait_for()
    rms.start()
    late = rms.submit("true", "--nodes", "1", "--job-name", "late")
    live(page)
    page.locator("#news li", has_text="daemon started").first.wait_for()
    page.locator("#news li", has_text=f"job {late} submitted").wait_for()


def cancel_by_keyboard(page: Any, row: Any) -> None:
    """Cancel a job without a mouse."""
    row.locator("a").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#confirm-say", has_text=f"({NAME})").wait_for()
    page.keyboard.press("Enter")
    page.locator("#confirm").wait_for(state="hidden")


def accessible(browser: Any, address: str) -> None:
    """No violation of axe's rules in any view, and none wider than a phone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    wrong = []
    for scheme, width in (("light", 1200), ("dark", 360)):
        page = opened(browser, address, scheme=scheme, width=width)
        for view in VIEWS:
            show(page, view)
            found = axe.run(page)
            if found.violations_count:
                wrong.append((view, scheme, found.generate_report()))
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                wrong.append((view, scheme, f"{wide} px wide"))
    assert not wrong, wrong
