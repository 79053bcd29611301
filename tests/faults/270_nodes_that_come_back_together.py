"""A job started on the first nodes of several that came back together, and not on all of them."""

from __future__ import annotations

from routed import Routed


def test_a_job_starts_on_all_nodes_that_come_back_together(server: Routed) -> None:
    server.ask("POST", "/drain", {"node": "n[1-2],n2"})
    job = server.submit(mode="flexible", nodes=[1, 2])
    assert server.ask("GET", f"/jobs?id={job}")[1][0]["state"] == "PENDING"
    server.ask("POST", "/resume", {"node": "n1,n[1-2]"})
    assert server.ask("GET", f"/jobs?id={job}")[1][0]["state"] == "RUNNING"
    history = server.ask("GET", f"/history/{job}")[1]
    assert [row["size"] for row in history if row["kind"] == "start"] == [2]
