"""``rms serve`` ignored options of another engine, and ``--nodes`` beside ``--cluster``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import called

from rms.cli.main import main


@pytest.mark.parametrize(
    ("words", "engines"),
    [
        ("--ntasks-per-node 2", "slurm-pilot or slurm or --reach ssh"),
        ("--partition debug", "slurm"),
        ("--margin 30", "slurm-pilot or --reach ssh"),
        ("--engine slurm --margin 30", "slurm-pilot or --reach ssh"),
        ("--engine slurm-pilot --partition debug", "slurm"),
    ],
)
def test_options_of_another_engine_are_refused(
    refusal: Callable[[str], str], words: str, engines: str
) -> None:
    option = words[words.rindex("--") :]
    engine = words.split()[1] if "--engine" in words else "local"
    assert refusal(f"rms serve {words}") == (
        f"rms: error: expected --engine {engines} for {option.split()[0]}, got --engine {engine}\n"
    )


def test_a_remote_shell_needs_hosts(refusal: Callable[[str], str]) -> None:
    expected = "rms: error: expected --cluster FILE.toml with --reach, got none\n"
    assert refusal("rms serve --reach ssh") == expected


def test_the_first_nodes_of_a_cluster_file_are_served(
    tmp_path: Path, refusal: Callable[[str], str]
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('name = "c"\n[[nodes]]\nname = "n[1-4]"\n')
    words = ("serve", "--check", "--cluster", str(file), "--state", str(tmp_path / "s"))
    done = called(main, *words, "--nodes", "3", "--json", "-")
    assert json.loads(done.stdout)["nodes"] == 3
    assert "expected 1 to 4 nodes, got 5" in refusal(f"rms {' '.join(words)} --nodes 5")
