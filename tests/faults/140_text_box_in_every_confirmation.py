"""Each confirmation of the page showed an empty text box, also where no value is needed."""

from __future__ import annotations

import re
from typing import Any

from browser import opened, page_of
from daemon import served
from processes import ROOT

STATIC = ROOT / "rms" / "web" / "static"


def test_no_rule_shows_an_element_that_is_hidden() -> None:
    style = (STATIC / "page.css").read_text()
    (hidden,) = [rule for rule in re.findall(r"[^{}]+{[^{}]*}", style) if "[hidden] {" in rule]
    assert "display: none !important" in hidden


def test_the_text_box_is_seen_only_where_a_value_is_needed(browser: Any) -> None:
    with served(2) as rms, page_of(rms) as address:
        rms.submit("sleep 600", "--nodes", "1-2", "--preferred", "1", "--mode", "malleable")
        page = opened(browser, address)
        for name, is_seen in (("Cancel job", False), ("Requeue", False), ("Resize", True)):
            page.get_by_role("button", name=name).first.click()
            assert page.locator("#confirm-input").is_visible() == is_seen, name
            page.get_by_role("button", name="Keep").click()
            page.locator("#confirm").wait_for(state="hidden")
