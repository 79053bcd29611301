"""Snapshots in the journal: a start from any of them is a start from the first event."""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from killed import bench as opened

from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    Resize,
    ResizeAsked,
    Resized,
    ResizePoint,
    Start,
    Started,
    Submitted,
    TasksHold,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower, Speedup
from rms.core.policies import named
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze, thaw
from rms.daemon.restart.recover import replayed, restored
from rms.daemon.store.archive import Packing
from rms.daemon.store.journal import Journal, JournalFullError
from rms.daemon.store.sandbox import fork

NAMES = ("a", "b", "c", "d")
CLUSTER = Cluster(NAMES, tuple((f"{n}/",) for n in NAMES), (NodePower(5.0, 10.0),) * 4)
POLICY = "backfill-share"


@dataclass
class Life:
    """A scheduler and its journal, driven by a stream of malleable jobs."""

    path: Path
    journal: Journal = field(init=False)
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(CLUSTER, named(POLICY)))

    def __post_init__(self) -> None:
        self.journal = Journal.open(self.path)
        self.journal.header(CLUSTER, POLICY)

    def happen(self, event: Event) -> None:
        number = self.journal.append(event)
        decisions = self.scheduler.feed(event)
        self.journal.decided(number, decisions)
        for each in decisions:
            if isinstance(each, Start):
                self.happen(Started(event.at_s, each.job))
                self.happen(ResizePoint(event.at_s, each.job))
            elif isinstance(each, Resize):
                self.happen(Resized(event.at_s, each.job))

    def live(self, jobs: int, every: int, keep: int | None = None, seed: int = 1) -> None:
        """Let so many jobs come and go, with a snapshot after so many."""
        rng, state = random.Random(seed), self.scheduler.engine.state
        for _ in range(jobs):
            at_s, number = state.now_s + rng.uniform(0.0, 9.0), state.submitted + 1
            if state.running and rng.random() < 0.6:
                ended = rng.choice(list(state.running))
                self.happen(Ended(at_s, ended, "COMPLETED"))
            sizes = sorted(rng.choices(range(1, 5), k=3))
            law = Speedup(law=(rng.uniform(1.0, 99.0), 0.5))
            ident = JobId(str(number))
            low, preferred, high = sizes
            spec = JobSpec(ident, at_s, low, high, preferred, Mode.FLEXIBLE, law, limit_s=60.0)
            self.happen(Submitted(at_s, (spec,)))
            if every and number % every == 0:
                self.journal.save(freeze(self.scheduler), keep)

    def again(self) -> Journal:
        """Open the journal again, its daemon having been killed."""
        self.journal.close()
        self.journal = Journal.open(self.path)
        return self.journal


def image(scheduler: Scheduler) -> Any:
    return msgspec.msgpack.decode(zlib.decompress(freeze(scheduler)))


@pytest.mark.promise("snapshots")
def test_a_start_goes_on_from_the_newest_snapshot_that_is_whole(tmp_path: Path) -> None:
    life = Life(tmp_path / "journal.sqlite")
    life.live(40, every=7)
    known = image(life.scheduler)
    followed = [restored(life.again()).events]
    while known_seqs := life.journal.snapshots():
        newest = known_seqs[0]
        life.journal._run("UPDATE snapshots SET body = ? WHERE seq = ?", b"zeroed", newest)
        journal = life.again()
        found = restored(journal)
        assert image(found.scheduler) == known
        assert f"the snapshot after entry {newest} is damaged" in journal.damage
        followed.append(found.events)
    assert followed == sorted(followed) and len(followed) > 2
    assert followed[-1] == life.journal.last - 1  # all but the header


def test_a_snapshot_that_no_version_can_read_is_passed_over(tmp_path: Path) -> None:
    life = Life(tmp_path / "journal.sqlite")
    life.live(12, every=5)
    known = image(life.scheduler)
    life.journal.save(zlib.compress(b"of another world"), None)
    journal = life.again()
    assert image(restored(journal).scheduler) == known
    assert [each for each in journal.damage if "expected a snapshot" in each]


def tasks_hold(at_s: float, *nodes: int) -> TasksHold:
    """Return the event that tasks hold these nodes and no others."""
    return TasksHold(at_s, tuple(map(Node, nodes)), ("task:a[1]",) * len(nodes))


def decisions(scheduler: Scheduler, *events: Event) -> list[Decision]:
    return [each for event in events for each in scheduler.feed(event)]


@pytest.mark.promise("snapshots")
def test_a_snapshot_has_waiting_resizes_lent_nodes_and_past_owners_of_nodes() -> None:
    one, two = JobId("1"), JobId("2")
    specs = JobSpec(one, 0.0, 1, 1, 1, Mode.FIXED), JobSpec(two, 0.0, 1, 3, 1, Mode.MALLEABLE)
    scheduler = Scheduler(CLUSTER, named("fifo"))
    decisions(scheduler, Submitted(0.0, specs), Started(0.0, one), Started(0.0, two))
    decisions(scheduler, Ended(5.0, one, "COMPLETED"), tasks_hold(6.0, 3))
    decisions(scheduler, ResizeAsked(7.0, two, 2, holds=True))
    thawed = thaw(freeze(scheduler), lambda key, cluster: named(key))
    assert thawed.engine.state == scheduler.engine.state
    assert [span.job for span in thawed.timeline.past] == [one]
    assert thawed.timeline.past == scheduler.timeline.past
    (resize,) = decisions(thawed, ResizePoint(8.0, two))
    assert isinstance(resize, Resize) and resize.size == 2
    decisions(thawed, Resized(9.0, two), Ended(10.0, two, "COMPLETED"))
    wide = JobSpec(JobId("3"), 11.0, 4, 4, 4, Mode.FIXED)
    assert decisions(thawed, Submitted(11.0, (wide,))) == []
    (start,) = decisions(thawed, tasks_hold(12.0))
    assert isinstance(start, Start) and len(start.nodes) == 4


@pytest.mark.promise("snapshots")
def test_what_is_left_after_pruning_begins_at_a_snapshot(tmp_path: Path) -> None:
    life, keep, most = Life(tmp_path / "journal.sqlite"), 60, 0
    for seed in range(12):
        life.live(10, every=5, keep=keep, seed=seed)
        while life.journal.prune(keep):
            pass
        most = max(most, life.journal._run("SELECT count(*) FROM entries")[0][0][0])
        assert len(life.journal.snapshots()) <= 8
    known, last = image(life.scheduler), life.journal.last
    journal = life.again()
    begins = journal.begins()
    assert 0 < begins <= last - keep and most < 3 * keep < last
    assert image(restored(journal).scheduler) == known and journal.damage == []
    found = replayed(journal)
    assert found.differing == [] and found.events == last - begins >= keep
    assert image(found.scheduler) == known
    assert journal.began is not None and journal.began.nodes == NAMES
    for seq in journal.snapshots():
        journal._run("UPDATE snapshots SET body = ? WHERE seq = ?", b"zeroed", seq)
    journal = life.again()
    assert restored(journal).scheduler.engine.state.now_s == life.scheduler.engine.state.now_s
    assert f"entries 2 to {begins} are missing" in journal.damage


def jobs(scheduler: Scheduler) -> list[tuple[JobId, str, tuple[int, ...]]]:
    state = scheduler.engine.state
    return [
        (job_id, job.state, job.nodes)
        for group in (state.running, state.pending)
        for job_id, job in group.items()
    ]


def packed(packing: Packing) -> bytes | None:
    """Return what a fork packs, None if it fails."""
    with packing.into:
        while (body := packing.result()) is None:
            time.sleep(0.005)
        return body or None


@pytest.mark.promise("snapshots")
def test_what_a_fork_packs_is_the_scheduler_as_it_was(tmp_path: Path) -> None:
    life = Life(tmp_path / "journal.sqlite")
    life.live(20, every=0)
    before, after = freeze(life.scheduler), life.journal.last
    packing = Packing.begin(life.scheduler, after)
    life.live(20, every=0, seed=2)
    body = packed(packing)
    assert body == before != freeze(life.scheduler)
    life.journal.save(body, None, packing.after)
    known, last = image(life.scheduler), life.journal.last
    journal = life.again()
    assert journal.snapshots() == [after] and after < last
    found = restored(journal)
    assert image(found.scheduler) == known and found.events == last - after


@pytest.mark.parametrize("fault", ["raises", "is killed", "never ends"])
def test_a_fork_that_fails_packs_nothing(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_: object) -> bytes:
        if fault == "raises":
            raise MemoryError
        if fault == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60.0)
        raise AssertionError

    monkeypatch.setattr("rms.daemon.store.archive.freeze", work)
    monkeypatch.setattr("rms.daemon.store.archive.LIMIT_S", 0.2 if fault == "never ends" else 60.0)
    packing = Packing.begin(Scheduler(CLUSTER, named(POLICY)), 1)
    assert packed(packing) is None
    with pytest.raises(ProcessLookupError):
        os.kill(packing.pid, 0)


@pytest.mark.promise("snapshots")
@pytest.mark.parametrize("fault", ["", "no process", "it fails"])
def test_of_many_jobs_a_daemon_has_a_fork_pack_it(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rms.daemon.store.archive.PACKED_AT_ONCE", 3)
    monkeypatch.setattr("rms.daemon.store.archive.EVERY", 5)
    forks = list[int]()

    def forked(work: Callable[[], object], only: int | None = None) -> int:
        if fault == "no process":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        forks.append(fork(work if not fault else lambda: os._exit(3), only))
        return forks[-1]

    monkeypatch.setattr("rms.daemon.store.archive.fork", forked)
    with opened(tmp_path) as bench:
        journal, snapshots = bench.journal, bench.daemon.snapshots
        for number in range(1, 9):
            bench.submit(str(number), (1, 1, 1), Mode.FIXED)
        taken, until = journal.last, time.monotonic() + 20.0
        snapshots.tick()
        while not journal.snapshots() and time.monotonic() < until:
            bench.submit(str(number := number + 1), (1, 1, 1), Mode.FIXED)
            snapshots.tick()
            time.sleep(0.005)
        if not fault:
            assert journal.snapshots() == [taken] and taken < journal.last
        assert len(forks) == (0 if fault == "no process" else 1)
        said = [each for each in bench.said if "snapshots are made while all wait" in each]
        assert len(said) == (1 if fault else 0)
        known = jobs(bench.daemon.scheduler)
        bench.start()
        assert jobs(bench.daemon.scheduler) == known and len(known) == number
        found = replayed(bench.journal)
        assert (found.differing, found.refused) == ([], [])


def test_a_snapshot_for_which_there_is_no_room_changes_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path / "journal.sqlite")
    life.live(12, every=5, keep=10)
    known, last = life.journal.snapshots(), life.journal.last
    life.journal._run("PRAGMA max_page_count = 1")
    with pytest.raises(JournalFullError):
        life.journal.save(b"x" * 100_000, 10)
    assert (life.journal.snapshots(), life.journal.last) == (known, last)


def torn(before: bytes, after: bytes, drawn: random.Random, size: int) -> bytes:
    """Return what a disk may have of a file of which some blocks were being written."""
    data = bytearray(before.ljust(len(after), b"\0")[: len(after)])
    for at in range(0, len(data), size):
        if drawn.random() < 0.5:
            data[at : at + size] = after[at : at + size]
    return bytes(data)


class Disk:
    """What a power cut may leave of a journal's file and log after some of its statements.

    SQLite flushes the log before it copies pages of it to the file, the file before the log begins
    anew, and then the log's header before what follows; a log that began anew has another salt.

    Attributes:
        left: file, log, and the last entry that had been flushed.
    """

    HEADER = 32
    SALT = slice(16, 24)

    def __init__(self, journal: Journal, drawn: random.Random) -> None:
        self._journal, self._drawn, self._run = journal, drawn, journal._run
        self._now = self._lasting = self._files()
        self.left: list[tuple[bytes, bytes, int]] = []
        self.flushed = self.begun_anew = self.copied = 0
        journal._run = self.run  # type: ignore[method-assign]

    def _files(self) -> tuple[bytes, bytes]:
        path = self._journal.path
        return path.read_bytes(), path.with_name(f"{path.name}-wal").read_bytes()

    def flush(self) -> None:
        self._journal.flush()
        self._lasting, self.flushed = self._files(), self._journal.last

    def run(self, statement: str, *values: Any, many: bool = False) -> Any:
        found = self._run(statement, *values, many=many)
        if self._journal._db.in_transaction or statement.startswith("SELECT"):
            return found
        (file, log), (lasting_file, lasting_log) = self._now, self._lasting
        self._now = new_file, new_log = self._files()
        if new_log[self.SALT] != log[self.SALT]:
            self.begun_anew += 1
            lasting_file, lasting_log = file, new_log[: self.HEADER] + log[self.HEADER :]
            self._lasting = lasting_file, lasting_log
        if self._drawn.random() < 0.2:
            end = torn(lasting_log, new_log, self._drawn, 512)
            if new_log[self.SALT] != log[self.SALT]:
                end = new_log[: self.HEADER] + end[self.HEADER :]
            self.left.append((lasting_file, end, self.flushed))
        if new_file != file:
            self.copied += 1
            half = torn(file, new_file, self._drawn, 4096)
            self.left.append((half, new_log, self.flushed))
            self._lasting = self._now
        return found


@pytest.mark.wide
@pytest.mark.promise("snapshots")
def test_after_a_power_cut_a_start_is_the_same_with_snapshots_and_pruning(tmp_path: Path) -> None:
    life, drawn, images = Life(tmp_path / "journal.sqlite"), random.Random(17), dict[int, Any]()
    life.journal._run("PRAGMA wal_autocheckpoint = 12")
    disk, feed = Disk(life.journal, drawn), life.scheduler.feed

    def fed(event: Event) -> Any:
        decisions = feed(event)
        images[life.journal.last] = image(life.scheduler)
        return decisions

    life.scheduler.feed = fed  # type: ignore[method-assign]
    disk.flush()
    for part in range(14):
        life.live(3, every=4, keep=30, seed=part)
        if part % 3 == 2:
            life.journal.prune(30)
        if part % 2:
            disk.flush()
    life.journal.close()
    assert disk.begun_anew > 3 and disk.copied > 3 and len(disk.left) > 40
    for file, log, flushed in disk.left:
        life.path.write_bytes(file)
        life.path.with_name("journal.sqlite-wal").write_bytes(log)
        life.path.with_suffix(".count").unlink(missing_ok=True)
        with Journal.open(life.path) as journal:
            assert journal.damage == [] and journal.last >= flushed
            assert journal.last == 1 or image(restored(journal).scheduler) == images[journal.last]
    with Journal.open(life.path) as journal:
        assert journal.begins() > 0
