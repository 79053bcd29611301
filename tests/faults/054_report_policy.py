"""The page of a report had no Content-Security-Policy."""

from __future__ import annotations

import base64
import hashlib
import re

from rms.client.report import Report, page


def test_a_report_permits_its_own_script_and_style_only() -> None:
    report = Report("<title>")
    report.say("<script>alert(1)</script>")
    text = page(report.title, report.parts)
    (rules,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert text.index("Content-Security-Policy") < text.index("<style>")
    assert "default-src 'none'" in rules and "unsafe" not in rules
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in rules
    assert not re.search(r'\s(style|on\w+)="', text)
