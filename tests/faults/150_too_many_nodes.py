"""A job of more nodes than the cluster has was accepted and cancelled without a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from routed import SCRIPT, Routed, routed
from terminals import Terminal


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": [9, 9]},
        {"nodes": [3, 9], "mode": "flexible"},
        {"nodes": [1, 4], "preferred": 4},
        {"nodes": [3, 3], "array": "0-3"},
        {"ntasks": 3},
    ],
)
def test_it_is_refused(server: Routed, options: dict[str, Any]) -> None:
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": options})
    assert status == 400 and "expected a job of at most 2 nodes, as the cluster has" in str(answer)
    assert not server.daemon.jobs and server.submit() == "1"


def test_nodes_that_are_drained_count(server: Routed) -> None:
    server.ask("POST", "/drain", {"node": "n[1-2]"})
    job = server.submit(nodes=[2, 2])
    assert server.ask("GET", f"/jobs?id={job}")[1][0]["state"] == "PENDING"


def test_it_waits_with_wait_for_nodes(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job = server.submit(nodes=[9, 9], wait_for_nodes=True)
        (row,) = server.ask("GET", f"/jobs?id={job}")[1]
        assert row["state"] == "PENDING"
        assert row["reason"] == "TooWide: needs 9 nodes, the cluster has 2 nodes"
        held = server.submit(nodes=[9, 9], wait_for_nodes=True, hold=True)
        assert server.ask("POST", "/release", {"id": held}) == (200, {"ids": [held]})
        array = server.submit(nodes=[5, 5], wait_for_nodes=True, array="0-1").partition("_")[0]
        assert server.submit() == "4"
        assert server.ask("GET", "/jobs?id=4")[1][0]["state"] != "PENDING"  # no job waits behind it
    with routed(tmp_path) as server:  # a restarted daemon has them
        for each in (job, held, f"{array}_0", f"{array}_1"):
            (row,) = server.ask("GET", f"/jobs?id={each}")[1]
            assert row["state"] == "PENDING" and row["reason"].startswith("TooWide: needs")
        assert server.ask("POST", "/cancel", {"id": f"{job},{array}"})[0] == 200
        assert server.ask("GET", f"/jobs?id={job}")[1][0]["state"] == "CANCELLED"


def test_wait_reports_a_job_that_never_ran(terminal: Terminal) -> None:
    terminal.run("submit", "--nodes", "9", "--wait-for-nodes", "--array", "1-2", "good.sh")
    assert terminal.run("cancel", "1") == 0
    assert terminal.run("wait", "1") == 1 and "job 1_[1-2] CANCELLED" in terminal.err
