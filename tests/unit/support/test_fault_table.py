"""Each file of ``tests/faults`` has a number and a sentence, and is in the table of the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from processes import ROOT
from test_words import prose, report

sys.path.append(str(ROOT / "docs"))
import fault_table

FOLDER = ROOT / "tests" / "faults"
FAULTS = fault_table.faults(FOLDER)
CODE = re.compile(r"``.*?``|`.*?`|\".*?\"")
IRREGULAR = (
    "was were did had became began bound broke brought built came chose cost could cut drew fell "
    "felt gave got grew held hid hung hurt kept led left let lost made meant might overran put ran "
    "read rose saw sent set shrank shut slept split spoke spread stood stuck threw took went won "
    "would wrote"
)
PAST = re.compile(rf"\b({IRREGULAR.replace(' ', '|')}|\w+ed)\b")


def test_each_file_has_a_number_of_its_own() -> None:
    files = {path.name for path in FOLDER.glob("*.py")} - {"conftest.py"}
    assert {fault.file for fault in FAULTS} == files
    numbers = [fault.number for fault in FAULTS]
    assert not sorted({number for number in numbers if numbers.count(number) > 1})


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.number)
def test_the_first_line_of_a_docstring_is_one_sentence_in_the_past_tense(
    fault: fault_table.Fault,
) -> None:
    words = CODE.sub("X", fault.sentence)
    assert words.endswith(".") and not re.search(r"[.!?] +[A-Z]", words), fault.sentence
    assert PAST.search(words), f"{fault.file}: expected the fault in the past tense"


def test_the_page_has_a_row_for_each_fault_in_plain_words() -> None:
    page = fault_table.page(FOLDER)
    rows = re.findall(r"^\| ([0-9]{3}) \| .* \| \[([^]]+)\]\(\.\./\.\./([^)]+)\) \|$", page, re.M)
    assert [(number, file) for number, file, _ in rows] == [(f.number, f.file) for f in FAULTS]
    assert all((ROOT / target).is_file() for _, _, target in rows)
    assert {fault.part for fault in FAULTS} == set(fault_table.ABOUT)
    wrong = report("docs/project/corrected-faults.md", prose(page))
    assert not wrong, "\n".join(wrong)


def test_a_stated_part_is_that_of_a_file_whose_imports_are_of_another_part() -> None:
    of_imports = {
        fault.number: fault_table.part_of((FOLDER / fault.file).read_text(encoding="utf-8"))
        for fault in FAULTS
    }
    wrong = [n for n, part in fault_table.STATED.items() if of_imports.get(n, part) == part]
    assert not wrong


def test_signs_of_markdown_are_text_beside_code(tmp_path: Path) -> None:
    sentence = "A ``a|b`` of 2**25 <names> was ``$(x)``."
    source = f'"""{sentence}\n\nMore.\n"""\n\nfrom rms.daemon import heart\n'
    (tmp_path / "999_a_name.py").write_text(source)
    row = "| 999 | A ``a\\|b`` of 2\\*\\*25 \\<names> was ``$(x)``. | daemon | [999_a_name.py]"
    assert row in fault_table.page(tmp_path)
