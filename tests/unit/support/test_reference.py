"""Pages of the reference that are made of the code, or are compared with it."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from processes import ROOT

sys.path.append(str(ROOT / "docs"))
import figures
import generated
import messages

REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.promise("messages")
def test_the_page_of_variables_names_all_of_the_code_and_no_other() -> None:
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    ours = {name for name in named if generated.VARIABLE.fullmatch(name)}
    of_jobs = {f"RMS_{name}" for name in ("JOB_NUM_NODES", "ARRAY_JOB_ID", "ARRAY_TASK_ID")}
    assert ours == generated.variables() | of_jobs


@pytest.mark.promise("messages")
def test_messages_have_a_topic_a_status_and_an_anchor_of_their_own() -> None:
    rows = messages.messages(ROOT)
    assert len(rows) > 700
    assert len({row.anchor for row in rows}) == len(rows)
    text = messages.page(ROOT)
    assert text.count('<a id="m-') == len(rows)
    assert "expected a strategy of {names}, got {strategy}" in text
    assert {row.status for row in rows} == {"1", "2", "rollback", "reason", "internal"}


@pytest.mark.promise("messages")
def test_every_command_has_its_help() -> None:
    text = generated.commands()
    for name in ("dmr probe", "mpdata run", "rms submit", "rms replay"):
        assert f"### {name}\n" in text and f"usage: {name} " in text


def test_every_table_of_figures_names_command_date_and_machine() -> None:
    text = figures.performance(ROOT / "scripts" / "bench" / "results")
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 20
    for section in sections:
        lines = section.splitlines()
        assert re.match(r"`(scripts/|mpdata |mpirun ).*`", lines[2]), lines[0]
        assert any(line.startswith("| --- |") for line in lines), lines[0]


def test_links_to_missing_files_and_anchors_are_listed(tmp_path: Path) -> None:
    scripts = runpy.run_path(str(ROOT / "scripts" / "docs"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.html").write_text('<h1 id="here">B</h1> <a href="../a.html">a</a>')
    (tmp_path / "a.html").write_text(
        '<a href="sub/b.html#here">b</a> <a href="sub/b.html#gone">b</a> <img src="none.png"> '
        '<a class="x" href="https://example.org/none">elsewhere</a> <a href="#top">up</a>'
    )
    assert sorted(scripts["broken_links"](tmp_path)) == [
        "a.html: expected a file of the site, got none.png",
        "a.html: expected an anchor, got #top",
        "a.html: expected an anchor, got sub/b.html#gone",
    ]


def test_pages_are_listed_with_their_words() -> None:
    lines = runpy.run_path(str(ROOT / "scripts" / "docs"))["words_of_pages"]()
    assert any(line.endswith("  mpdata/scheme.md") for line in lines)
    total = sum(int(line.split()[0]) for line in lines[:-1])
    assert lines[-1] == f"{total:7d}  in {len(lines) - 1} pages"


def test_every_remedy_is_of_a_message() -> None:
    sentences = [row.sentence for row in messages.messages(ROOT)]
    for words, text in messages.REMEDIES:
        assert any(re.search(words, sentence) for sentence in sentences), text
