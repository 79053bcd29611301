"""The folder of checkpoints of a run on one rank: which are kept, which one is read, who may write.

What is in a checkpoint is in ``test_checkpoint_pieces.py``.
"""

from __future__ import annotations

import io
import os
import socket
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import dmr
from dmr.checkpoint import format as stored
from dmr.checkpoint import store
from dmr.data.field import Field
from dmr.errors import LostRunError, UsageError
from dmr.plan import Schedule
from dmr.state.progress import Progress
from dmr.world import World

CELLS = np.arange(12.0)
NAMES = Path("/proc/self/fd")


def world() -> World:
    return World(MPI.COMM_SELF, MPI.COMM_SELF, 0, {})


def field(value: float = 0.0) -> Field:
    spec = dmr.FieldSpec((12,), "f8", lambda box: CELLS[box.slices()] + value)
    block = spec.block(spec.decompose((1,)), 0)
    assert isinstance(block, Field)
    block.initialise()
    return block


def written(folder: Path, step: int, lock: store.Lock | None = None) -> tuple[Path | None, str]:
    """Write a checkpoint whose cells are those of its step; return its path, and what is said."""
    log, fields = io.StringIO(), {"a": field(step)}
    schedule = Schedule(folder, 1)
    path = store.write(schedule, world(), fields, Progress(step=step), {"k": 1}, log, lock)
    return path, log.getvalue()


def restored(folder: Path, **options: int) -> tuple[Progress | None, Any, str]:
    """Return the progress, the cells, and what is said."""
    log, block = io.StringIO(), field()
    options = options or {"k": 1}
    found = store.restore(Schedule(folder, 1), world(), {"a": block}, options, log)
    return found, block.interior - CELLS, log.getvalue()


def there(folder: Path) -> list[str]:
    """Return the names of indices, and of folders of parts without what tells them apart."""
    return sorted(path.name.rpartition("-")[0] or path.name for path in folder.glob("*.parts")) + (
        sorted(path.stem for path in folder.glob("*.h5"))
    )


def name(step: int) -> str:
    return f"checkpoint-{step:010d}"


def test_the_newest_two_are_kept_with_their_parts(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        assert written(tmp_path, step) == (store.path_of(tmp_path, step), "")
    assert there(tmp_path) == [name(3), name(4)] * 2
    progress, cells, said = restored(tmp_path)
    assert progress is not None and progress.step == 4 and (cells == 4).all()
    assert said == f"restarted from {store.path_of(tmp_path, 4)} at step 4\n"


def test_one_that_is_written_again_replaces_its_parts(tmp_path: Path) -> None:
    for step in (1, 2, 2):
        before = set(tmp_path.glob("*2-*.parts"))
        written(tmp_path, step)
    assert there(tmp_path) == [name(1), name(2)] * 2
    assert len(before) == 1 and before.isdisjoint(tmp_path.glob("*2-*.parts"))
    assert restored(tmp_path)[0] is not None


def test_those_ahead_of_a_run_that_was_restarted_before_them_go(tmp_path: Path) -> None:
    for step in (3, 5, 4):
        written(tmp_path, step)
    assert there(tmp_path) == [name(3), name(4)] * 2


def test_names_of_others_stay(tmp_path: Path) -> None:
    others = {"notes.txt", "checkpoint-1.h5", "checkpoint-0000000001-mine.parts"}
    for other in others:
        (tmp_path / other).touch()
    for step in (1, 2, 3):
        written(tmp_path, step)
    assert others <= {path.name for path in tmp_path.iterdir()}


def test_one_that_cannot_be_written_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 1)
    before = set(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr(store, "write_part", lambda *_: ("no space", {}))
        assert written(tmp_path, 2) == (
            None,
            "warning: checkpoint at step 2 not written: no space\n",
        )
    with monkeypatch.context() as patched:

        def fails(*_: Any) -> None:
            raise RuntimeError("no space for the index")

        patched.setattr(stored, "_link", fails)
        path, said = written(tmp_path, 2)
    assert path is None and said.endswith("not written: no space for the index\n")
    (tmp_path / "file").touch()
    path, said = written(tmp_path / "file", 2)
    assert path is None and said.startswith("warning: checkpoint at step 2 not written: ")
    (tmp_path / "file").unlink()
    assert set(tmp_path.rglob("*")) == before


def test_hosts_that_do_not_see_the_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "of another host" / f"{name(1)}-00000000.parts"
    monkeypatch.setattr(store, "_new_folder", lambda _: (None, folder))
    path, said = written(tmp_path, 1)
    expected = f"expected {folder.parent} on all nodes, got none on {socket.gethostname()}"
    assert path is None and said.endswith(f"not written: {expected}\n")


def test_of_several_the_newest_whole_one_is_read(tmp_path: Path) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    (part,) = tmp_path.glob(f"{name(2)}-*/0.h5")
    part.unlink()
    progress, cells, said = restored(tmp_path)
    assert progress is not None and progress.step == 1 and (cells == 1).all()
    newest, before = store.path_of(tmp_path, 2), store.path_of(tmp_path, 1)
    assert said.startswith(f"warning: {newest} is not whole (part 0.h5: No such file")
    assert said.endswith(f"trying the one before it\nrestarted from {before} at step 1\n")


def test_where_none_is_whole_nothing_begins_anew(tmp_path: Path) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    for part in tmp_path.rglob("0.h5"):
        part.unlink()
    with pytest.raises(UsageError, match=f"expected a whole .*{name(2)}.*{name(1)}.h5: part 0.h5"):
        restored(tmp_path)


def test_without_one_a_run_begins(tmp_path: Path) -> None:
    progress, cells, said = restored(tmp_path / "none")
    assert progress is None and (cells == 0).all()
    assert said == f"no checkpoint in {tmp_path / 'none'}: starting from the beginning\n"


def test_a_halo_that_is_wider_on_one_side_comes_back(tmp_path: Path) -> None:
    """The cells at the edge of the domain are stored with the others."""

    def padded(cells: Any) -> dict[str, Any]:
        spec = replace(dmr.adapt(cells, (12,), halo=((1, 2),)), edges=((1, 2),))
        return {"u": spec.block(spec.decompose((1,)), 0)}

    before, after = np.arange(15.0), np.zeros(15)
    fields = padded(before)
    schedule, log = Schedule(tmp_path, 1), io.StringIO()
    assert store.write(schedule, world(), fields, Progress(step=1), {}, log) is not None
    fields = padded(after)
    assert store.restore(schedule, world(), fields, {}, log) is not None
    assert np.array_equal(fields["u"].padded, before)


def test_one_of_other_options_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 1)
    with pytest.raises(UsageError, match="expected k 2, got a checkpoint of k 1"):
        restored(tmp_path, k=2)


def pickled(folder: Path) -> Path:
    """Write a checkpoint with a value that travels as a pickle; return its path."""
    progress = Progress(step=1, values={"third": Fraction(1, 3)})
    schedule, fields = Schedule(folder, 1), {"a": field()}
    path = store.write(schedule, world(), fields, progress, {"k": 1}, io.StringIO())
    assert path is not None
    return path


@pytest.mark.parametrize(
    ("mode", "others", "is_read"),
    [(0o600, False, True), (0o664, False, True), (0o602, False, False), (0o600, True, False)],
)
def test_pickles_are_read_where_nobody_else_can_have_written_them(
    mode: int, others: bool, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle runs code; the members of a group share their files on purpose."""
    path = pickled(tmp_path)
    path.chmod(mode)
    me = path.stat().st_uid
    monkeypatch.setattr(stored.os, "geteuid", lambda: me + others)
    if is_read:
        progress = restored(tmp_path)[0]
        assert progress is not None and progress.values == {"third": Fraction(1, 3)}
        return
    with pytest.raises(UsageError, match="expected a file of this user's that others cannot write"):
        restored(tmp_path)


def test_the_order_of_options_is_not_in_a_checkpoint(tmp_path: Path) -> None:
    found = []
    for options in ({"k": 1, "b": "x"}, {"b": "x", "k": 1}):
        path = store.write(
            Schedule(tmp_path, 1), world(), {}, Progress(step=1), options, io.StringIO()
        )
        with h5py.File(path) as file:
            found.append(file.attrs["options"])
    assert found == ['{"b": "x", "k": 1}'] * 2


def test_a_run_that_does_not_continue_refuses_a_folder_with_checkpoints(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path, 1)
    store.refuse_others(Schedule(tmp_path / "none", 1), world())
    (tmp_path / "checkpoint-1.h5").touch()  # the name of no checkpoint
    store.refuse_others(schedule, world())
    for step in (1, 2):
        written(tmp_path, step)
    with pytest.raises(UsageError, match=r"expected no checkpoints in .*--restart .* got 2$"):
        store.refuse_others(schedule, world())


def test_parts_that_cannot_be_removed_do_not_end_the_run(tmp_path: Path) -> None:
    """Here one of their names is a file's; elsewhere the folder may be another user's."""
    stuck = tmp_path / f"{name(0)}-01234567.parts"
    stuck.touch()
    assert written(tmp_path, 1) == (store.path_of(tmp_path, 1), "")
    assert stuck.exists()


@pytest.mark.skipif(not NAMES.exists(), reason="nobody says which file a handle is of")
def test_an_index_gets_its_name_when_all_else_is_on_the_disk_and_the_name_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash there is a whole checkpoint or none of this step."""
    flushed, fsync, index = list[tuple[str, bool]](), os.fsync, store.path_of(tmp_path, 1)

    def noted(handle: int) -> None:
        flushed.append(((NAMES / str(handle)).readlink().name, index.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    written(tmp_path, 1)
    (parts,) = tmp_path.glob("*.parts")
    assert flushed == [
        ("0.h5", False),
        (parts.name, False),
        (f"{name(1)}.part", False),
        (tmp_path.name, True),
    ]


class OfRank1:
    """The communicator of rank 1 of two, to which rank 0 has sent its results."""

    rank, size = 1, 2

    def __init__(self, *results: Any) -> None:
        self.results, self.gathered = list(results), list[Any]()

    def bcast(self, own: Any) -> Any:
        return self.results.pop(0)

    def gather(self, own: Any) -> None:
        self.gathered.append(own)


def test_rank_0_alone_makes_the_folder_into_which_all_ranks_write(tmp_path: Path) -> None:
    folder = tmp_path / f"{name(1)}-01234567.parts"
    folder.mkdir()
    comm: Any = OfRank1((None, folder), None)
    log, there_too = io.StringIO(), World(comm, comm, 0, {})
    path = store.write(Schedule(tmp_path, 1), there_too, {"a": field()}, Progress(step=1), {}, log)
    assert path == store.path_of(tmp_path, 1) and log.getvalue() == ""
    assert sorted(tmp_path.rglob("*")) == [folder, folder / "1.h5"]
    ((problem, parts),) = comm.gathered
    assert problem is None and parts["a"].file == "1.h5"


def test_requests_are_counted_anew(tmp_path: Path) -> None:
    fields = {"a": field()}
    progress = Progress(step=1, answered_request=7)
    store.write(Schedule(tmp_path, 1), world(), fields, progress, {"k": 1}, io.StringIO())
    found = restored(tmp_path)[0]
    assert found is not None and found.answered_request == 0


# --- the lock ------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - fewer files


def test_one_run_at_a_time_has_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    first, second = store.Lock(folder), store.Lock(folder)
    assert first.acquire() is True and first.acquire() is True
    before = open_files()
    assert second.acquire() is False and second.acquire() is False
    assert open_files() == before
    first.release()
    assert second.acquire() is True
    second.release()
    assert open_files() == before - 1
    assert not first.is_lost() and list(folder.iterdir()) == []


def test_a_later_run_of_the_job_takes_it_over(tmp_path: Path) -> None:
    earlier, later = store.Lock(tmp_path, ("rms:1", 0)), store.Lock(tmp_path, ("rms:1", 1))
    assert earlier.acquire() is True
    assert not store.Lock(tmp_path, ("rms:2", 9)).acquire()
    assert not store.Lock(tmp_path, ("rms:1", 0)).acquire()
    assert not earlier.is_lost()
    assert later.acquire() is True and earlier.is_lost() and not later.is_lost()
    assert not store.Lock(tmp_path, ("rms:1", 0)).acquire()
    earlier.release()  # which leaves the name of the later run
    assert not later.is_lost()
    later.release()
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_an_earlier_run_that_is_gone_is_replaced(tmp_path: Path) -> None:
    gone = store.Lock(tmp_path, ("rms:2", 5))
    assert gone.acquire()
    gone._unlock()  # as its process has ended
    assert store.Lock(tmp_path, ("rms:1", 0)).acquire() is True


def test_who_has_lost_the_folder_writes_no_checkpoint(tmp_path: Path) -> None:
    earlier, later = store.Lock(tmp_path, ("rms:1", 0)), store.Lock(tmp_path, ("rms:1", 1))
    assert earlier.acquire() and written(tmp_path, 1, earlier)[0] is not None
    assert later.acquire()
    with pytest.raises(LostRunError, match="checkpoint at step 2 not written: a later run"):
        written(tmp_path, 2, earlier)
    assert there(tmp_path) == [name(1)] * 2
    assert written(tmp_path, 2, later)[0] is not None
