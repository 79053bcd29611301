"""``--gres=gpu:0`` was a request for GPUs, and ``--gres=nic:1`` was refused as one."""

from __future__ import annotations

import pytest
from terminals import Terminal

from rms.formats.jobscript import Options, ScriptError, nodes_with_gpus

NODES = {"n1": ("cpu:0",)}


@pytest.mark.parametrize(
    "word",
    [
        *("--gres=gpu:0", "--gres=gpu:a100:0", "--gres=gres/gpu:0", "--gres=none", "--gpus=0"),
        *("-G0", "--gpus-per-node=0", "--gpus-per-task=a100:0"),
    ],
)
def test_none_are_requested(word: str) -> None:
    assert nodes_with_gpus(Options(), [word], NODES) == (Options(), [])


@pytest.mark.parametrize("word", ["--gres=nic:1", "--gres=nic", "--gres=nic:0,gpu:1"])
def test_other_resources(word: str) -> None:
    with pytest.raises(
        ScriptError,
        match=r"^expected --gres=gpu:N, as GPUs are the only generic resource here, got --gres=",
    ):
        nodes_with_gpus(Options(), [word], NODES)


def test_at_the_command_line(terminal: Terminal) -> None:
    assert terminal.lines("submit", "--gres=gpu:0", "good.sh") == [["1"]] and not terminal.err
    assert "--gres=nic:1" in terminal.refused(2, "submit", "--gres=nic:1", "good.sh")
