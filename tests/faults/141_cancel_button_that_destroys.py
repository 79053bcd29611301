"""The page's button that cancels a job was named "Cancel", which elsewhere means to do nothing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from processes import ROOT
from routed import routed

from rms.web.views import PageQuery, content, query
from rms.wire.live import Live


def test_buttons_name_what_they_do_and_the_other_one_is_keep(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job = server.submit(nodes=[1, 2], mode="flexible")
        array = server.submit(array="1-3").partition("_")[0]
        names = set[str]()
        for view in (PageQuery("overview"), PageQuery("job", job), PageQuery("array", array)):
            body = msgspec.to_builtins(query(view, 0, 0.0, server.clock[0]))
            live = msgspec.convert(server.ask("POST", "/live", body)[1], Live)
            parts = content(view, live).parts.values()
            names.update(re.findall(r">([^<>]*)</button>", "".join(parts)))
    assert "Cancel" not in names and {"Cancel job", "Cancel array", "Resize"} <= names
    page = (ROOT / "rms" / "web" / "static" / "page.html").read_text()
    dialog = page[page.index("<dialog") :]
    assert re.findall(r"<button[^>]*>([^<]*)</button>", dialog) == ["Keep", ""]
