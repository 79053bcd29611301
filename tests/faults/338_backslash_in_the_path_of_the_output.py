"""A job failed if the path of its output had a backslash, which turns off sbatch's replacements."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from rms.launch.slurm.commands import literal_path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/a b/%j.out", "/a b/%%j.out"),
        (r"/a\b/50%.out", r"/a\\b/50%.out"),
        ("/plain.out", "/plain.out"),
    ],
)
def test_a_path_that_sbatch_takes_as_it_is(path: str, words: str) -> None:
    assert literal_path(PurePath(path)) == words
