"""Pages of the reference that are made of the code, or are compared with it."""

from __future__ import annotations

import re
import sys

from processes import ROOT

sys.path.append(str(ROOT / "docs"))
import figures
import generated
import messages

REFERENCE = ROOT / "docs" / "reference"


def test_the_page_of_variables_names_all_of_the_code_and_no_other() -> None:
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    ours = {name for name in named if generated.VARIABLE.fullmatch(name)}
    of_jobs = {f"RMS_{name}" for name in ("JOB_NUM_NODES", "ARRAY_JOB_ID", "ARRAY_TASK_ID")}
    assert ours == generated.variables() | of_jobs


def test_messages_have_a_topic_a_status_and_an_anchor_of_their_own() -> None:
    rows = messages.messages(ROOT)
    assert len(rows) > 700
    assert len({row.anchor for row in rows}) == len(rows)
    text = messages.page(ROOT)
    assert text.count('<a id="m-') == len(rows)
    assert "expected a strategy of {names}, got {strategy}" in text
    assert {row.status for row in rows} == {"1", "2", "rollback", "reason", "internal"}


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
