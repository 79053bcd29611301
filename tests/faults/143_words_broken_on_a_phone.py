"""At a width of 360 px the page broke words in tables, as in Rank|s and war|m."""

from __future__ import annotations

import re
from typing import Any

from browser import opened, page_of, show
from daemon import served
from processes import ROOT

BROKEN = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll("th, td, dt, button, nav a, .choices a")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/[\\w,.]+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (tops.size > 1 && word[0].length < 20) broken.push(word[0]);
      }
    }
  }
  return broken;
}"""

RESIZED = """<table><thead><tr><th>At</th><th>Ranks</th><th>How</th><th class="n">Stopped</th>
<th class="n">Moved</th></tr></thead><tbody><tr><td class=s>16:20:31</td><td>2 to 4</td>
<td>warm</td><td class="n">1031 ms</td><td class="n">1204.5 MB</td></tr></tbody></table>"""


def test_cells_are_not_broken_within_words() -> None:
    style = (ROOT / "rms" / "web" / "static" / "page.css").read_text()
    (cells,) = re.findall(r"\nth, td {([^}]*)}", style)
    assert "overflow-wrap: break-word" in cells


def test_no_word_of_a_table_is_broken_at_360_px(browser: Any) -> None:
    with served(2) as rms, page_of(rms) as address:
        job = rms.submit("sleep 600", "--nodes", "1-2", "--mode", "malleable", "--job-name", "wide")
        rms.submit("sleep 600", "--array", "1-8", "--nodes", "2")
        page = opened(browser, address, width=360)
        views = ("overview", "jobs", "power", "nodes", f"job&id={job}", "array&id=2")
        for view in views:
            show(page, f"view={view}")
            if view.startswith("job&"):
                page.evaluate(
                    "(html) => { document.querySelector('.wide').innerHTML = html }", RESIZED
                )
            assert page.locator("td, dt").count() > 0, view
            assert page.evaluate(BROKEN) == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
