"""``--exclusive`` of sbatch was taken for ``--exclude``, ``--wrap`` for ``--wait``."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from routed import SCRIPT, routed
from terminals import Terminal

from rms.core.model.cluster import Cluster
from rms.core.model.contention import Processors, SharedNode


def test_wrap_is_a_script_of_one_line(terminal: Terminal) -> None:
    line = 'echo a; echo "$HOME" | wc'
    assert terminal.lines("submit", "-t", "1", "--wrap", line) == [["1"]]
    script = terminal.server.daemon.launcher.state / "jobs" / "1" / "script"
    assert script.read_text() == f"#!/bin/sh\n{line}\n"
    assert terminal.lines("queue", "--noheader", "--format", "%j") == [["wrap"]]
    assert "--wrap without a SCRIPT" in terminal.refused(2, "submit", "--wrap", "true", "good.sh")
    assert "--wrap without a SCRIPT" in terminal.refused(2, "submit", "--wrap", "a", "--", "true")
    assert "got none" in terminal.refused(2, "submit", "--wrap", "")


def test_exclusive_has_no_effect_on_whole_nodes(terminal: Terminal) -> None:
    assert terminal.lines("submit", "--exclusive", "good.sh") == [["1"]] and not terminal.err
    Path("exclusive.sh").write_text("#!/bin/sh\n#SBATCH --exclusive\ntrue\n")
    assert terminal.lines("submit", "exclusive.sh") == [["2"]] and not terminal.err


def test_exclusive_is_refused_where_jobs_share_nodes(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        scheduler = server.daemon.context.scheduler
        nodes = (SharedNode(math.inf, (Processors(2),)),)
        slots, power = (("cpu:0",), ("cpu:1",)), scheduler.cluster.power
        scheduler.cluster = Cluster(("n1/0", "n1/1"), slots, power, shared=nodes)
        text = "#!/bin/sh\n#SBATCH --exclusive\ntrue\n"
        status, answer = server.ask("POST", "/jobs", SCRIPT | {"text": text})
    assert status == 400 and "expected no --exclusive, as jobs share nodes here" in answer["error"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--mail-type=END"], "; --mail-type: an option of sbatch, not of rms submit"),
        (["--qos", "long"], "; --qos: an option of sbatch, not of rms submit"),
        (["--exclud", "n1"], "; did you mean --exclude?"),
    ],
)
def test_options_that_only_sbatch_has(terminal: Terminal, words: list[str], sentence: str) -> None:
    assert terminal.refused(2, "submit", *words, "good.sh").endswith(sentence)
