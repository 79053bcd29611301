"""A list of ids read a whole archived array again for each task that it names."""

from __future__ import annotations

from time import process_time

from msgspec.structs import replace
from routed import Routed

from rms.core.model.jobs import JobId
from rms.daemon.ask import views
from rms.daemon.store.journal import Archived

TASKS = 2_000
ARRAY = "8"
IDS = ",".join(f"{ARRAY}_{index}" for index in range(TASKS))
ENOUGH_S = 5.0


def archive(server: Routed) -> None:
    """Archive an array, and two tasks of another one."""
    job = server.daemon.context.state.job(JobId(server.submit()))
    assert job is not None
    (row,) = views.rows(server.daemon.context, [job])
    names = [*IDS.split(","), "80_1", "80_2"]
    done = [Archived(replace(row, id=name, state="COMPLETED")) for name in names]
    server.daemon.journal.archive(done, [])


def test_each_task_is_read_once(server: Routed) -> None:
    archive(server)
    begun_s = process_time()
    status, answer = server.ask("POST", "/wait", {"id": IDS, "hold_s": 0.0})
    assert (status, answer) == (200, {"left": 0})
    assert server.ask("POST", "/cancel", {"id": IDS}) == (200, {"ids": []})
    status, rows = server.ask("GET", f"/jobs?id={IDS}")
    assert status == 200 and [row["id"] for row in rows] == IDS.split(",")
    assert process_time() - begun_s < ENOUGH_S


def test_ids_of_tasks_and_of_arrays_select_the_archived_jobs_that_they_name(server: Routed) -> None:
    archive(server)
    for ids, expected in {
        "80": ["80_1", "80_2"],
        "80_2,80_[0-1]": ["80_1", "80_2"],
        "8_7,80_1,80": ["8_7", "80_1", "80_2"],
    }.items():
        status, rows = server.ask("GET", f"/jobs?id={ids}")
        assert status == 200 and [row["id"] for row in rows] == expected
    for ids in ("80_3", "80_[3-9]", "800", "80,8_2000"):
        assert server.ask("GET", f"/jobs?id={ids}")[0] == 404
