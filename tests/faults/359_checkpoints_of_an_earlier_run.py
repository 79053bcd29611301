"""A rank on a host that came back wrote checkpoints into the folder of its job's next run.

The next run was refused the folder instead where the paused rank still held its lock.
"""

from __future__ import annotations

from pathlib import Path

from dmr.checkpoint.store import Lock


def test_a_later_run_of_the_job_takes_the_folder_over(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    earlier, later = Lock(folder, ("rms:1", 0)), Lock(folder, ("rms:1", 1))
    assert earlier.acquire() and not earlier.is_lost()
    assert later.acquire() and not later.is_lost()
    assert earlier.is_lost()
    earlier.release()
    assert not later.is_lost()
    assert not earlier.acquire()  # though there is no lock of a process any more
    later.release()
    assert later.is_lost()
    assert list(folder.iterdir()) == []


def test_others_are_refused_as_before(tmp_path: Path) -> None:
    first = Lock(tmp_path, ("rms:1", 3))
    assert first.acquire()
    for other in (None, ("rms:2", 9), ("rms:1", 3), ("rms:1", 2)):
        assert not Lock(tmp_path, other).acquire()
    assert not first.is_lost()


def test_the_next_world_of_a_run_takes_it_over(tmp_path: Path) -> None:
    old, new = Lock(tmp_path, ("rms:1", 0)), Lock(tmp_path, ("rms:1", 0))
    assert old.acquire()
    old.release()
    assert new.acquire()
    assert old.is_lost() and not new.is_lost()


def test_a_run_without_an_rms_leaves_no_file(tmp_path: Path) -> None:
    bare = Lock(tmp_path)
    assert bare.acquire() and not bare.is_lost()
    assert list(tmp_path.iterdir()) == []
