"""``scripts/mutate``: which changes it draws, and which tests it runs on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loaded import SCRIPTS, script

for package in ("coverage", "mutmut"):
    pytest.importorskip(package)

FOLDER = "parts"
SOURCE = '''
"""A page of text."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["parts"]
log = logging.getLogger(__name__)
WAIT_S = 5.0
PARTS: int | None = 1


def parts(total: int, size: int, places: list[int | str]) -> list[int]:
    """Cut a total into 2 parts."""
    if total < 0 and size < 1:
        raise ValueError(f"expected {size + 1}, got " + str(total + 1))
    log.info("%d parts", total + 1)
    with open("lock"):
        places.append(size)
    for place in places:
        if place == 3:
            continue
    return divmod(total, size)
'''


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import mutations

    return mutations


def usable(mutations: Any, source: str) -> set[tuple[int, str]]:
    every = [mutations.mutated(source, one) for one in mutations.mutations_of("a.py", source)]
    return {(one.mutation.line, one.words) for one in every if one is not None}


def test_operators_are_those_of_mutmut_and_our_own(mutations: Any) -> None:
    names = {name for _, name, _ in mutations._operators()}
    theirs = {name.replace("_", " ") for name in mutations.FROM_MUTMUT}
    assert names == theirs | {name for _, name, _ in mutations.OWN}


def test_changes_of_a_source(mutations: Any) -> None:
    lines = SOURCE.splitlines()
    by_text: dict[str, set[str]] = {}
    for line, words in usable(mutations, SOURCE):
        by_text.setdefault(lines[line - 1].strip(), set()).add(words)
    assert by_text == {
        "PARTS: int | None = 1": {"1 -> 2"},
        "if total < 0 and size < 1:": {
            "if total < 0 and size < 1 -> if not (total < 0 and size < 1)",
            "total < 0 and size < 1 -> total < 0 or size < 1",
            "< 0 -> <= 0",
            "0 -> 1",
            "< 1 -> <= 1",
            "1 -> 2",
        },
        'raise ValueError(f"expected {size + 1}, got " + str(total + 1))': {
            'raise ValueError(f"expected {size + 1}, got " + str(total... -> pass'
        },
        'with open("lock"):': {'with open("lock") -> if True'},
        "places.append(size)": {"places.append(size) -> pass"},
        "if place == 3:": {"== 3 -> != 3", "3 -> 4", "3 -> 0"},
        "continue": {"continue -> break"},
        "return divmod(total, size)": {
            "divmod(total, size) -> divmod(size, total)",
            "return divmod(total, size) -> return None",
        },
    }


@pytest.mark.parametrize(
    "source",
    [
        '"""Has 1 word."""\n',
        "def size(one: 'int | 1') -> 'int | 2':\n    '''Has 1 word.'''\n    pass\n",
        "__all__ = [name for name in [] if not name]\n",
        "if TYPE_CHECKING:\n    A = 1\n",
        "class A:\n    def __repr__(self):\n        return 1\n",
        "log.info('%d', 1 + 1)\n",
        "LIMIT_S = 2.5\nREADY_S, LEAVE_S = 1.0, 2.0\n",
        "Row = dict(strict=True)\n",
        "A = int | str\n",
        "from a import b\nassert 1 < 2\n",
    ],
)
def test_what_no_test_is_to_notice_is_not_changed(mutations: Any, source: str) -> None:
    assert not usable(mutations, source)


def test_a_mutant_that_changes_nothing_is_not_drawn(
    mutations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def f(a):\n    return a + 1\n"
    same = (mutations.cst.Integer, "same", lambda node: [node.with_changes(value="0x1")])
    broken = (mutations.cst.Integer, "broken", lambda node: [node.with_changes(value="1_0")])
    monkeypatch.setattr(mutations, "_operators", lambda: [same, broken])
    mutations._collected.cache_clear()
    rows = mutations.mutations_of("a.py", source)
    assert [row.kind for row in rows] == ["same", "broken"]
    chosen = mutations.sample({"": rows}, {"a.py": source}, 5, 1)
    assert [one.mutation.kind for one in chosen] == ["broken"]
    mutations._collected.cache_clear()


def test_the_sample_depends_on_the_seed_only(mutations: Any) -> None:
    sources = {"a/a.py": SOURCE, "b/b.py": SOURCE}
    rows = {name[0]: mutations.mutations_of(name, text) for name, text in sources.items()}

    def drawn(size: int, seed: int) -> list[Any]:
        return [one.mutation for one in mutations.sample(rows, sources, size, seed)]

    assert drawn(6, 1) == drawn(6, 1)
    assert drawn(6, 1) != drawn(6, 2)
    assert set(drawn(6, 1)) < set(drawn(10, 1))
    assert [one.file for one in drawn(6, 1)] == ["a/a.py"] * 3 + ["b/b.py"] * 3


def test_a_change_elsewhere_in_a_file_leaves_the_sample_as_it_is(mutations: Any) -> None:
    longer = SOURCE.replace("    places.append(size)", "    size += 5\n    places.append(size)")

    def drawn(source: str) -> set[tuple[str, str]]:
        rows = mutations.mutations_of("a.py", source)
        chosen = mutations.sample({"": rows}, {"a.py": source}, 9, 1)
        return {(one.mutation.key, one.words) for one in chosen}

    assert len(drawn(longer) - drawn(SOURCE)) <= 3


CODE = """
def larger(a, b):
    return a if a > b else b


def smaller(a, b):
    return a if a < b else b


def unused(a):
    return a + 1


def waits(go_on):
    while not go_on:
        pass
"""
TESTS = """
import subprocess
import sys

from parts import sizes


def test_larger():
    assert sizes.larger(1, 2) == 2


def test_smaller():
    program = "from parts import sizes; print(sizes.smaller(3, 2))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "2\\n"


def test_waits():
    sizes.waits(True)
"""


EQUIVALENT = """
[[mutant]]
file = "parts/sizes.py"
line = "return a if a > b else b"
mutation = "> b -> >= b"
reason = "the larger of equals is either"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path]:
    """Return the script with the table of a tiny project, and that project."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mutate, root = script("mutate"), tmp_path / "project"
    monkeypatch.setattr(mutate, "FOLDERS", (FOLDER,))
    monkeypatch.setattr(mutate, "COVERED", ("tests",))
    monkeypatch.setattr(mutate, "KEYED", (FOLDER,))
    monkeypatch.setattr(mutate, "GRACE_S", 3.0)
    monkeypatch.setattr(mutate, "FACTOR", 1)
    for name, text in (("parts/sizes.py", CODE), ("tests/test_sizes.py", TESTS)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return mutate, root


def verdicts(mutate: Any, root: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    """Return the verdicts on some mutants."""
    file, of_line = "parts/sizes.py", mutate.drawn
    lines = (root / file).read_text().splitlines()
    wanted = ("> b -> >= b", "< b -> <= b", "a + 1 -> a - 1", "not go_on -> go_on")
    every = [
        one
        for line in range(1, len(lines) + 1)
        for one in of_line(root, [FOLDER], 1, 1, f"{file}:{line}")
    ]
    chosen = [
        one
        for one in every
        if one.words in wanted or ("True" in one.words and "a < b" in one.before)
    ]
    monkeypatch.setattr(mutate, "drawn", lambda *_: chosen)
    table = str(root / "verdicts.json")
    words = ("--paths", FOLDER, "--at-once", "1", "--table", "--json", table, *words)
    monkeypatch.setattr(sys, "argv", ["mutate", *words])
    assert mutate.main(root) == 0
    monkeypatch.setattr(mutate, "drawn", of_line)
    found: list[Any] = json.loads(Path(table).read_text())
    return found


def noticed(rows: list[Any]) -> dict[tuple[int, str], str]:
    return {(row["line"], row["words"]): row["by"] or row["note"] for row in rows}


def test_caught_and_surviving_mutants_of_a_project(
    project: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mutate, root = project
    file = "parts/sizes.py"
    (root / "tests" / "mutations_equivalent.toml").write_text(EQUIVALENT)
    rows = verdicts(mutate, root, monkeypatch)
    assert noticed(rows) == {
        (3, "> b -> >= b"): "the larger of equals is either",
        # A test that runs a process of its own executes this line there.
        (7, "< b -> <= b"): "1 of 1 recorded tests",
        (
            7,
            "a if a < b else b -> a if (a < b) or True else b",
        ): "tests/test_sizes.py::test_smaller",
        (11, "a + 1 -> a - 1"): "not executed",
        (15, "not go_on -> go_on"): "timeout",
    }
    share = "parts               2 of    5 caught, 1 equivalent, 50 %"
    assert share in capfd.readouterr().out
    page = (root / "tests" / "mutations.md").read_text()
    assert "| parts/sizes.py:11 | `a + 1 -> a - 1` | SURVIVED (not executed) |" in page
    assert "| `> b -> >= b` | equivalent (the larger of equals is either) |" in page
    assert (root / file).read_text() == CODE


MORE_TESTS = """
from parts import sizes


def test_unused():
    assert sizes.unused(1) == 2
"""


def test_a_later_run_keeps_what_was_caught_and_records_new_tests_only(
    project: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate, root = project
    verdicts(mutate, root, monkeypatch)
    file = root / "verdicts.json"
    earlier = json.loads(file.read_text())
    for row in earlier:
        row["by"] = "an earlier test" if row["by"] else ""
    file.write_text(json.dumps(earlier))
    (root / "parts" / "sizes.py").write_text("\n" + CODE)
    (root / "tests" / "test_new.py").write_text(MORE_TESTS)
    (root / "tests" / "test_sizes.py").touch()

    recorded, run = [], mutate.Checkout.run

    def counted(self: Any, words: list[str], *more: Any, **options: Any) -> Any:
        recorded.extend(word for word in words if "map" in words and word.startswith("tests/"))
        return run(self, words, *more, **options)

    monkeypatch.setattr(mutate.Checkout, "run", counted)
    found = verdicts(mutate, root, monkeypatch, "--after", str(file))
    assert recorded == ["tests/test_new.py"]
    assert "its survivors ran again" in (root / "tests" / "mutations.md").read_text()
    assert noticed(found) == {
        (4, "> b -> >= b"): "1 of 1 recorded tests",
        (8, "< b -> <= b"): "1 of 1 recorded tests",
        (8, "a if a < b else b -> a if (a < b) or True else b"): "an earlier test",
        (12, "a + 1 -> a - 1"): "tests/test_new.py::test_unused",
        (16, "not go_on -> go_on"): "an earlier test",
    }


def test_the_list_of_equivalent_mutants_is_of_lines_that_are_there(
    project: tuple[Any, Path],
) -> None:
    mutate, root = project
    (root / mutate.EQUIVALENT).write_text(EQUIVALENT.replace("a > b", "a >= b"))
    with pytest.raises(SystemExit, match=r"parts/sizes.py has no line 'return a if a >= b else b'"):
        mutate.equivalents(root)
    assert mutate.equivalents(SCRIPTS.parent)


def test_lines_of_other_code_are_those_of_the_same_text(project: tuple[Any, Path]) -> None:
    known = {1: {"a"}, 2: {"b"}, 3: {"c"}}
    moved = project[0].moved
    assert moved(known, "x\ny\nz\n", "x\ny\nz\n") == known
    assert moved(known, "x\ny\nz\n", "x\nz\n") == {1: {"a"}, 2: {"c"}}
    assert moved(known, "x\ny\nz\n", "x\nY\nz\n") == known
    more = {1: {"a"}, 2: {"a", "b"}, 3: {"b"}, 4: {"c"}}
    assert moved(known, "x\ny\nz\n", "x\nnew\ny\nz\n") == more
    assert moved(known, "", "x\n") == {1: {"a"}}


@pytest.mark.parametrize(
    ("status", "output", "by"),
    [
        (0, "1 passed", ""),
        (None, "", "timeout"),
        (124, "..", "timeout"),
        (1, "FAILED tests/a.py::test_b[c - d] - E: x\n", "tests/a.py::test_b[c - d]"),
        (2, "ERROR tests/a.py - ImportError\nERROR tests/b.py\n", "tests/a.py"),
        (139, "Segmentation fault", "pytest (ends with status 139)"),
    ],
)
def test_the_test_that_fails_is_that_of_the_output(
    project: tuple[Any, Path], status: int | None, output: str, by: str
) -> None:
    assert project[0].failing(status, output) == by
