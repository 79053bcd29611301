"""Lists of nodes in Slurm's bracket form."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentences import one_sentence

from rms.formats.config import FileError, read_cluster
from rms.formats.values import ScriptError, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n7", "n7"),
        ("n[1-3,7]", "n1 n2 n3 n7"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[2]-ib", "n2-ib"),
        ("gpu2,n[1-2],a", "gpu2 n1 n2 a"),  # in the order they are written
        ("[3-4]", "3 4"),
    ],
)
def test_names(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    "text",
    ["", ",", "n1,", "n[", "n]", "n[]", "n[1-]", "n[-3]", "n[3-1]", "n[1-2-3]", "n[a]", "n[1][2]"],
)
def test_what_does_not_parse_is_refused_in_one_sentence(text: str) -> None:
    with one_sentence(ScriptError, "expected"):
        expand(text)


@pytest.mark.parametrize("name", ["n[1-2-3]", "n[3-1]", "n["])
def test_a_cluster_file_with_such_a_name_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'name = "x"\n[[nodes]]\nname = "{name}"\n')
    with one_sentence(FileError, "expected"):
        read_cluster(file)
