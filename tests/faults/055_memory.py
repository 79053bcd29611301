"""A daemon that reached its memory limit answered 500, or crashed, where it should answer 503."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from routed import SCRIPT, Routed

from rms.daemon.ask import views
from rms.daemon.jobs import submit


def test_jobs_for_which_the_limit_leaves_no_memory_are_refused_for_now(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limits(_: int) -> tuple[int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (50 << 20)
        return limit, limit

    monkeypatch.setattr(resource, "getrlimit", limits)
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {"array": "0-9999"}})
    assert status == 503 and "MiB of memory left to the daemon for 10000 jobs" in answer["error"]
    assert server.submit() == "1"


def test_a_request_that_runs_out_of_memory_is_refused_for_now(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise MemoryError

    server.submit()
    monkeypatch.setattr(views, "rows", none_left)
    assert server.ask("GET", "/jobs") == (
        503,
        {"error": "the daemon has no memory left for this now"},
    )


def test_a_limit_is_not_checked_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    monkeypatch.setattr(submit, "Path", lambda name: Path(name.replace("/proc/", "/no-proc/")))
    submit._check_memory(1)
