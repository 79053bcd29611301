"""Pages of the site about rms: those made of the code, and figures of hand-written ones."""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType

import msgspec
import pytest
from processes import ROOT

from rms.core.policies.compose import PARTS, POLICIES
from rms.studies import experiment

FIGURES = [
    ("iserte-rojek", "k80 flexible time_s", "1,568 s"),
    ("chiesi", "abstract PR", "23.2 %"),
    ("chiesi", "abstract T", "17.3 %"),
    ("chauhan", "saved", "23.1 %"),
    ("guim", "bsld lc-pa blue mem 10", "2,120"),
    ("guim", "LC-PA slows less than EASY-REG, least error", "2 of 12"),
    ("varysched", "table 1 VarySched system_j", "20,174 J"),
    ("cirrus", "moldable, ends-first mean_wait_100s", "135.47"),
    ("cirrus", "moldable, ends-first starts_as_published", "8,348"),
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "rms_pages", raising=False)
    return importlib.import_module("rms_pages")


def test_each_policy_has_a_page_with_its_file_and_its_values(made: ModuleType) -> None:
    pages: dict[str, str] = made.pages()
    assert {name for name in pages if name.startswith("rms/policies/")} == {
        f"rms/policies/{name}.md" for name in POLICIES
    }
    cap = next(line for line in pages["rms/policies/p-bff.md"].splitlines() if "`cap_w`" in line)
    assert cap == "| `cap_w` | number | required | `850` | power that no node (or rack) may pass. |"


def test_the_table_has_each_parameter_of_each_part_with_its_meaning(made: ModuleType) -> None:
    sections = re.split(r"^### ", made.parameters(), flags=re.MULTILINE)[1:]
    text = {section.splitlines()[0]: section for section in sections}
    for kind, parts in PARTS.items():
        for name, part in parts.items():
            rows = re.findall(
                r"^\| `(\w+)` \|.*\| (\S.*) \|$", text[f"{kind}: `{name}`"], re.MULTILINE
            )
            fields = [field.name for field in msgspec.structs.fields(part)]
            assert [row[0] for row in rows] == fields


def test_a_parameter_without_a_meaning_is_refused(made: ModuleType) -> None:
    class Silent(msgspec.Struct):
        """A part."""

        keep: int = 0

    with pytest.raises(ValueError, match=r"expected Attributes for .*keep.* of Silent"):
        made.described(Silent)


@pytest.mark.parametrize("study", experiment.studies())
def test_the_page_of_a_study_has_its_counts(study: str) -> None:
    text = " ".join((ROOT / "docs" / "experiments" / f"{study}.md").read_text().split())
    rows = experiment.statements(study)
    stated = re.search(r"(\d+) statements: (.*?): \[all of them\]", text)
    assert stated is not None and int(stated[1]) == len(rows)
    plain = re.sub(r" \([^)]*\)", "", stated[2])
    counts = experiment.counts(rows)
    assert plain == ", ".join(f"{number} {status}" for status, number in counts.items())


@pytest.mark.parametrize(("study", "key", "figure"), FIGURES)
def test_a_figure_of_a_page_is_the_recorded_one(study: str, key: str, figure: str) -> None:
    ours = next(row.ours for row in experiment.statements(study) if row.key == key)
    number = float(re.sub(r"[^\d.].*", "", figure.replace(",", "")))
    digits = len(figure.partition(".")[2].rstrip(" %sJ"))
    assert ours is not None and round(ours, digits) == number
    assert figure in (ROOT / "docs" / "experiments" / f"{study}.md").read_text()
