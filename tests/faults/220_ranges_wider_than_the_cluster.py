"""A range of sizes whose MAX the cluster lacks was refused, though it has MIN."""

from __future__ import annotations

from typing import Any

import pytest
from routed import SCRIPT, Routed

from rms.core.model.jobs import JobId, JobSpec


def spec(server: Routed, job: str) -> JobSpec:
    entry = server.daemon.context.state.job(JobId(job))
    assert entry is not None
    return entry.spec


@pytest.mark.parametrize("mode", [None, "fixed", "moldable", "malleable", "flexible"])
@pytest.mark.parametrize("more", [{}, {"array": "0-2"}])
def test_its_size_is_the_largest_that_the_cluster_has(
    server: Routed, mode: str | None, more: dict[str, Any]
) -> None:
    job = server.submit(nodes=[1, 9], mode=mode, **more)
    entry = spec(server, job)
    assert (entry.nodes_min, entry.preferred, entry.nodes_max) == (1, 2, 9)
    (row, *_) = server.ask("GET", f"/jobs?id={job}")[1]
    assert row["size"] == 2 and row["state"] in ("CONFIGURING", "RUNNING")


def test_with_a_list_of_nodes_the_largest_that_this_has(server: Routed) -> None:
    assert spec(server, server.submit(nodes=[1, 9], nodelist="n2")).preferred == 1
    assert spec(server, server.submit(nodes=[1, 9], exclude="n2")).preferred == 1


def test_a_power_limit_is_that_of_a_size_which_the_cluster_has(server: Routed) -> None:
    job = server.submit(nodes=[1, 9], power_w=10.0, power_limit_w=20.0)
    assert spec(server, job).preferred == 2


@pytest.mark.parametrize("mode", ["moldable", "flexible"])
def test_a_preferred_size_is_not_needed_to_start(server: Routed, mode: str) -> None:
    assert spec(server, server.submit(nodes=[1, 9], preferred=9, mode=mode)).preferred == 9


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": [1, 9], "preferred": 9},
        {"nodes": [1, 9], "preferred": 3, "mode": "malleable"},
        {"nodes": [1, 9], "preferred": 2, "nodelist": "n2"},
        {"nodes": [3, 9]},
        {"nodes": [2, 9], "nodelist": "n2"},
    ],
)
def test_sizes_that_do_not_fit_are_refused(server: Routed, options: dict[str, Any]) -> None:
    assert server.ask("POST", "/jobs", SCRIPT | {"options": options})[0] == 400


def test_it_is_not_resized_to_more_than_the_cluster_has(server: Routed) -> None:
    job = server.submit(nodes=[1, 9], mode="malleable")
    status, answer = server.ask("POST", "/resize", {"id": job, "nodes": 5})
    expected = {"decision": "Never", "reason": "expected a size of 1 to 2 nodes, got 5"}
    assert (status, answer) == (200, expected)


def test_a_job_that_waits_for_nodes_waits_for_all_of_them(server: Routed) -> None:
    assert spec(server, server.submit(nodes=[1, 9], wait_for_nodes=True)).preferred == 9
