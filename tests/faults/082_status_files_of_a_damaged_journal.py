"""After a WAL was cut, tasks that had completed ran again although their exit status was kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from killed import Bench, Outliving, bench
from submissions import hand_in

from rms.core.model.events import HeldByUser
from rms.core.model.jobs import JobId, JobSpec, JobState, Mode
from rms.daemon.store.record import REQUEUED


def look(opened: Bench) -> None:
    for _ in range(3):
        opened.now_s += 0.1
        opened.daemon.tick()


def cut(opened: Bench, size: int) -> None:
    """Kill a daemon, and cut its journal's log."""
    base, log = opened.folder / "journal", opened.folder / "journal-wal"
    kept = base.read_bytes(), log.read_bytes()[:size]
    opened.close()  # which would write the log back
    base.write_bytes(kept[0])
    log.write_bytes(kept[1])


@pytest.mark.parametrize("requeue", [True, False])
def test_jobs_that_ran_do_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeue: bool
) -> None:
    names = ("1", "2", "3", "4", "5")
    with bench(tmp_path) as opened:
        monkeypatch.setattr(Outliving, "jobs", lambda self: {job for job, *_ in live.values()})
        live = opened.machine.live
        for name in names:
            spec = JobSpec(JobId(name), opened.now_s, 4, 4, 4, Mode.FIXED)
            hand_in(opened.daemon, [spec], requeue=requeue)
        opened.journal.flush()
        size = (tmp_path / "journal-wal").stat().st_size
        for name, status in zip(names[:3], (0, 0, 3), strict=True):
            opened.machine.end(name, None, status)
            look(opened)
        assert opened.machine.of("4")
        cut(opened, size)
        opened.start()
        look(opened)
        state = opened.daemon.context.state
        ends = [JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED]
        assert [state.ended[JobId(name)].state for name in names[:3]] == ends
        assert opened.daemon.jobs[JobId("3")].exit_code == 3
        begun = [opened.machine.begun.count((name, None)) for name in names]
        if requeue:
            assert begun == [1, 1, 1, 2, 0] and len(opened.machine.of("4")) == 1
        else:
            assert begun == [1, 1, 1, 1, 1]
            assert state.ended[JobId("4")].state is JobState.FAILED
        lines = [line for line in opened.said if "when it ran is missing" in line]
        fourth = "job 4" if requeue else "job 4 FAILED"
        assert [line.split(":")[0] for line in lines] == [
            *("job 2 COMPLETED", "job 3 FAILED", fourth)
        ]


def test_a_job_that_was_requeued_has_no_status_and_runs_again(tmp_path: Path) -> None:
    one = JobId("1")
    with bench(tmp_path) as opened:
        spec = JobSpec(one, opened.now_s, 4, 4, 4, Mode.FIXED, hold=True)
        hand_in(opened.daemon, [spec], requeue=True)
        opened.journal.flush()
        size = (tmp_path / "journal-wal").stat().st_size
        opened.daemon.handle(HeldByUser(opened.now_s, (one,), False))
        look(opened)
        opened.daemon.scripts.cancel(opened.daemon.jobs[one], REQUEUED)
        opened.machine.end("1", None, 143)
        look(opened)
        assert opened.machine.begun == [("1", None)] * 2
        opened.launcher.kill("1")
        cut(opened, size)
        opened.start()
        look(opened)
        state = opened.daemon.context.state
        assert one in state.held, opened.said
        opened.daemon.handle(HeldByUser(opened.now_s, (one,), False))
        look(opened)
        assert opened.machine.of("1")
