"""``--gres`` on the command line was refused beside that of the script, or cut a comment in two."""

from __future__ import annotations

from argparse import Namespace

import pytest

from rms.cli.submit import _with_slurm_options
from rms.client.commands import launcher_words
from rms.formats.jobscript import Options, ScriptError, nodes_with_gpus, parse_text

NODES = {"g1": ("gpu:0",), "g2": ("gpu:0", "gpu:1")}
OTHER_LINE_ENDS = "\x0b\x0c\x1c\x85\u2028"


def test_the_last_of_an_option_that_is_repeated_counts() -> None:
    for words in (["--gres=gpu:2", "--gres=gpu:1"], ["--gpus-per-node=7", "--gpus-per-node=1"]):
        assert nodes_with_gpus(Options(), words, NODES)[0].nodelist == "g1"
    assert nodes_with_gpus(Options(), ["--gpus=9", "-G2", "--gres=gpu:2"], NODES)[0].nodelist == (
        "g2"
    )
    assert nodes_with_gpus(Options(), ["--gres=gpu:2", "--gres=none"], NODES) == (Options(), [])
    with pytest.raises(ScriptError, match="--gres=gpu:2 --gpus-per-node=1"):
        nodes_with_gpus(Options(), ["--gres=gpu:2", "--gpus-per-node=1"], NODES)


@pytest.mark.parametrize("end", OTHER_LINE_ENDS)
def test_only_a_line_feed_ends_a_line_of_a_script(end: str) -> None:
    text = f"#!/bin/sh\n# a{end}mpirun b\n#SBATCH --gres=gpu:2\nmpirun c\n"
    given = Namespace(partition=None, cpus_per_task=None, gres="gpu:1", gpus=None, exclusive=None)
    script = _with_slurm_options(text, given)
    assert script == text.replace("mpirun c", "#SBATCH --gres=gpu:1\nmpirun c")
    assert list(parse_text(script, "x").slurm_options) == ["--gres=gpu:2", "--gres=gpu:1"]
    assert launcher_words(text) == ["c"]
