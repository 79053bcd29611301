"""The journal on real SQLite: what goes in comes out, in order, also after kill -9."""

from __future__ import annotations

import math
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentences import one_sentence
from specs import job_spec
from submissions import filler

from rms.core.model.cluster import Cluster
from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import (
    Decision,
    Event,
    HourlyPrices,
    Later,
    Start,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.model.speedup import OperatingPoint
from rms.core.policies import POLICIES, PolicyError, named
from rms.core.scheduler.engine import Engine
from rms.daemon.restart.recover import replay
from rms.daemon.store.file import FORMAT, checksum
from rms.daemon.store.journal import (
    Journal,
    JournalError,
    JournalFullError,
    Opened,
    PolicySet,
    Seen,
)
from rms.daemon.store.notes import (
    EndingNote,
    MarkNote,
    NextNote,
    ScriptNote,
    StepNote,
    StepsNote,
    SubmissionNote,
)
from rms.formats.values import SignalRequest
from rms.sim.simulator import Simulation
from rms.wire.users import EnergyRow

NODES = ("a", "b", "c", "d")


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a type, so that new events and fields are covered by themselves."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, NewType):
        return values(hint.__supertype__)
    if hint is JobSpec:
        return st.tuples(records(JobSpec, {"nodes_min", "nodes_max", "preferred"}), SIZES).map(
            lambda drawn: JobSpec(**drawn[0], **drawn[1])
        )
    if hint is Speedup:
        return records(Speedup).map(lambda drawn: Speedup(**drawn))
    if hint in (NodePower, SharedNode, Processors, OperatingPoint, HourlyPrices):
        return structs(hint)
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is int:
        return st.integers(0, 2**40)
    if origin in (Union, UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    return st.from_type(hint)


SIZES = st.lists(st.integers(1, 99), min_size=3, max_size=3).map(
    lambda n: dict(zip(("nodes_min", "preferred", "nodes_max"), sorted(n), strict=True))
)


def records(kind: type, without: set[str] = frozenset()) -> st.SearchStrategy[dict[str, Any]]:
    hints = get_type_hints(kind)
    own = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    return st.fixed_dictionaries({n: values(h) for n, h in own.items() if n not in without})


def structs(kind: type) -> st.SearchStrategy[Any]:
    return records(kind).map(lambda drawn: kind(**drawn))


def job(number: int, submit_s: float = 0.0, mode: Mode = Mode.FLEXIBLE) -> JobSpec:
    more = {"array": "a", "resize_every_s": 5.0, "resize_price_s": 1.0}
    return job_spec(number, (1, 4, 4), mode, submit_s, speedup=Speedup(law=(100.0, 5.0)), **more)


def begun(path: Path, policy: str = "fifo") -> Journal:
    journal = Journal.open(path)
    journal.header(Cluster.recorded(NODES), policy)
    return journal


# --- round trip ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_an_event_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    events = data.draw(st.lists(structs(kind), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        with begun(path) as journal:
            numbers = [journal.append(event) for event in events]
        with Journal.open(path) as journal:
            seen = list(journal.read())[1:]
    wanted = [Seen(n, event, None) for n, event in zip(numbers, events, strict=True)]
    assert seen == wanted
    # The same types too: a string equals a StrEnum, an integer equals a float.
    assert repr(seen) == repr(wanted)


@pytest.mark.parametrize("kind", get_args(Decision), ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_decisions_come_back_as_they_were(kind: type, data: st.DataObject) -> None:
    others = [structs(other) for other in get_args(Decision)]
    decisions = [data.draw(structs(kind)), *data.draw(st.lists(st.one_of(others), max_size=3))]
    with tempfile.TemporaryDirectory() as folder, begun(Path(folder, "journal")) as journal:
        seq = journal.append(Started(0.0, JobId("1")))
        journal.decided(seq, decisions)
        *_, seen = journal.read()
    assert repr(seen) == repr(Seen(seq, Started(0.0, JobId("1")), tuple(decisions)))


def test_headers_and_policies_have_their_place_among_the_events(tmp_path: Path) -> None:
    path, event = tmp_path / "journal", Started(1.5, JobId("1"))
    with begun(path) as journal:
        first = journal.append(event)
        journal.policy("easy", 2.0)
    with begun(path, "array-share") as journal:
        last = journal.append(event)
        assert list(journal.read()) == [
            Opened(NODES, "fifo", widths=(1,) * 4),
            Seen(first, event, None),
            PolicySet(2.0, "easy"),
            Opened(NODES, "array-share", widths=(1,) * 4),
            Seen(last, event, None),
        ]
    with sqlite3.connect(path) as db:
        kinds = [kind for (kind,) in db.execute("SELECT kind FROM entries ORDER BY seq")]
    db.close()
    assert kinds == ["Opened", "Started", "PolicySet", "Opened", "Started"]


def test_reading_goes_on_over_pages_and_while_entries_are_added(tmp_path: Path) -> None:
    with begun(tmp_path / "journal") as journal:
        journal._db.execute("BEGIN")  # one flush, not thousands
        numbers = [journal.append(Started(float(n), JobId("1"))) for n in range(2500)]
        journal._db.execute("COMMIT")
        reader = journal.read()
        next(reader)
        numbers.append(journal.append(Started(9999.0, JobId("1"))))
        assert [entry.seq for entry in reader if isinstance(entry, Seen)] == numbers


def test_notes_are_replaced_and_found_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    two = SubmissionNote("2", cwd="/odd \udcff name", signal=SignalRequest(10))
    steps = StepsNote(
        "2", steps=[StepNote(pids={3: 4}, current=(3,), strategy="warm", has_polled=True)]
    )
    with begun(path) as journal:
        journal.note(SubmissionNote("2", cwd="/"))
        journal.note(two, SubmissionNote("10"), steps)
    with Journal.open(path) as journal:
        assert journal.notes(SubmissionNote) == {"10": SubmissionNote("10"), "2": two}
        assert journal.noted(SubmissionNote, "2") == two
        assert journal.noted(StepsNote, "2") == steps
        assert journal.noted(StepsNote, "1") == StepsNote("1")
        with pytest.raises(ValueError, match="JSON"):
            journal.note(EndingNote("2", "TIMEOUT", math.inf))


# --- what is refused -------------------------------------------------------------------------


def test_entries_out_of_place_are_refused(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as journal:
        with one_sentence(JournalError, "expected a header first, got Started"):
            journal.append(Started(0.0, JobId("1")))
        with pytest.raises(PolicyError, match="expected a policy"):
            journal.header(Cluster.recorded(NODES), "best")
        journal.header(Cluster.recorded(NODES), "fifo")
        with one_sentence(JournalError, "expected the nodes a b c d, got a b"):
            journal.header(Cluster.recorded(("a", "b")), "fifo")
        with pytest.raises(PolicyError, match="expected a policy"):
            journal.policy("best", 0.0)
        seq = journal.append(Started(0.0, JobId("1")))
        journal.decided(seq, [Later(JobId("1"), "first")])
        for wrong in (seq, seq - 1, seq + 1):  # decided already, a header, nothing
            with one_sentence(JournalError, f"got entry {wrong}"):
                journal.decided(wrong, [])
        assert [*journal.read()][1:] == [
            Seen(seq, Started(0.0, JobId("1")), (Later(JobId("1"), "first"),))
        ]
    with one_sentence(JournalError, "closed"):
        journal.append(Started(0.0, JobId("1")))


def test_a_second_opener_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal.open(path), one_sentence(JournalError, "in use"):
        Journal.open(path)
    with begun(path) as journal:
        half_read = journal.read()
        next(half_read)
    with Journal.open(path) as journal:
        assert len(list(journal.read())) == 1


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    begun(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    db.close()
    with one_sentence(JournalError, f"of format {FORMAT}, got format {FORMAT + 1}"):
        Journal.open(path)


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE entries (seq)")
    db.close()
    before = path.read_bytes()
    with one_sentence(JournalError, "another program's database"):
        Journal.open(path)
    assert path.read_bytes() == before


def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("[cluster]\nnodes = 4\n" * 100)
    before = path.read_bytes()
    for wrong in (path, tmp_path, tmp_path / "no folder" / "journal"):
        with one_sentence(JournalError, str(wrong)):
            Journal.open(wrong)
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "journal"
    with begun(path) as journal:
        journal._db.execute("BEGIN")
        for n in range(300):
            journal.append(Submitted(float(n), (job(n),)))
        journal._db.execute("COMMIT")
    return path


@pytest.mark.parametrize("page", [0, 1, 2, 3, 4, 9])
def test_an_overwritten_page_is_refused(whole: Path, tmp_path: Path, page: int) -> None:
    data = bytearray(whole.read_bytes())
    data[4096 * page : 4096 * (page + 1)] = b"\xa5" * 4096
    path = tmp_path / "journal"
    path.write_bytes(data)
    with one_sentence(JournalError, str(path)), Journal.open(path) as journal:
        list(journal.read())
        journal.notes(ScriptNote)


def harmed(path: Path, statement: str, *values: object) -> None:
    """Change a journal's file behind its back."""
    with sqlite3.connect(path) as db:
        db.create_function("checksum", -1, checksum)
        db.execute(statement, values)
    db.close()


def test_damaged_records_are_set_aside_and_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with begun(path) as journal:
        first, second, third = (journal.append(Started(0.0, JobId(str(n)))) for n in range(3))
        journal.decided(third, [Later(JobId("2"), "why")])
        journal.note(ScriptNote("1", 1), ScriptNote("2", 2))
    harmed(path, "UPDATE entries SET body = substr(body, 1, 9) WHERE seq = ?", second)
    harmed(path, "UPDATE decisions SET body = x'90' WHERE seq = ?", third)
    harmed(path, "UPDATE notes SET value = replace(value, '1', '7') WHERE key = 'script/1'")
    for opening in range(2):
        with Journal.open(path) as journal:
            found = [*journal.read()][1:]
            assert found == [Seen(n, Started(0.0, JobId(str(n - 2))), None) for n in (first, third)]
            assert journal.notes(ScriptNote) == {"2": ScriptNote("2", 2)}
            gap = f"entry {second} is missing"
            set_aside = f"entry {second}", f"the decisions on entry {third}", "note script/1"
            said = [f"{what} is damaged" for what in set_aside]
            assert journal.damage == [*([] if opening else said), gap]
            if opening:  # decided anew
                journal.decided(third, [])


def test_an_entry_that_this_version_cannot_have_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with begun(path) as journal:
        first = journal.append(Started(0.0, JobId("1")))
        journal.append(Started(1.0, JobId("1")))
    harmed(path, "UPDATE entries SET body = substr(body, 1, 9) WHERE seq = ?", first)
    harmed(path, "UPDATE entries SET sum = checksum(seq, kind, body)")
    with Journal.open(path) as journal:
        assert len([*journal.read()]) == 2
        (named_it,) = journal.damage
    assert named_it.startswith(f"entry {first} is damaged: ")


def test_without_its_first_header_the_next_one_serves(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with begun(path, "easy") as journal:
        journal.decided(journal.append(Submitted(0.0, (job(1),))), [])
    begun(path, "fifo").close()
    harmed(path, "DELETE FROM entries WHERE seq = 1")
    with Journal.open(path) as journal:
        assert journal.began is not None and journal.began.nodes == NODES
        found = replay(journal.read())
        assert journal.damage == ["entry 1 is missing"]
    assert [*found.engine.state.pending, *found.engine.state.running] == ["1"]


OLDER = "it is damaged, or an older journal was restored"


def test_a_tail_that_is_gone_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with begun(path) as journal:
        journal.note(MarkNote(mark="m"), NextNote(id=8))
        for n in range(5):
            journal.append(Started(float(n), JobId("1")))
        journal.flush()
    harmed(path, "DELETE FROM entries WHERE seq > 3")
    with Journal.open(path) as journal:
        assert journal.damage == [f"entries 4 to 6 are missing: {OLDER}"]
        assert journal.append(Started(9.0, JobId("1"))) == 4
        journal.flush()
    with Journal.open(path) as journal:
        assert journal.damage == []
    path.unlink()
    with Journal.open(path) as journal:
        assert journal.damage == [f"entries 1 to 4 are missing: {OLDER}"]
        assert journal.counted is not None
        assert (journal.counted.mark, journal.counted.next) == (MarkNote(mark="m"), NextNote(id=8))
    path.unlink()
    path.with_suffix(".count").write_bytes(b"\0" * 512)
    with Journal.open(path) as journal:
        assert (journal.damage, journal.counted) == ([], None)


@pytest.mark.promise("damaged-journal")
def test_after_a_power_cut_all_that_was_flushed_is_there(tmp_path: Path) -> None:
    path, drawn = tmp_path / "journal", random.Random(17)
    log = tmp_path / "journal-wal"
    flushed: list[tuple[int, int]] = []
    with begun(path) as journal:
        for number in range(1, 13):
            journal.append(Started(float(number), JobId("1")))
            journal.note(filler(number, 500 * number))
            if number % 3 == 0:
                journal.flush()
                flushed.append((number, log.stat().st_size))
        whole, written = path.read_bytes(), log.read_bytes()
    for number, size in flushed:
        for _ in range(4):  # of what was written later, any sectors may have reached the disk
            data = bytearray(written[: drawn.randint(size, len(written))])
            for sector in range(-(-size // 512) * 512, len(data), 512):
                if drawn.random() < 0.5:
                    data[sector : sector + 512] = bytes(len(data[sector : sector + 512]))
            path.write_bytes(whole)
            log.write_bytes(data)
            path.with_suffix(".count").unlink(missing_ok=True)
            with Journal.open(path) as journal:
                found = [entry.event for entry in journal.read() if isinstance(entry, Seen)]
                assert found[:number] == [
                    Started(float(n), JobId("1")) for n in range(1, number + 1)
                ]
                assert journal.damage == [] and len(journal.notes(SubmissionNote)) >= number


@pytest.mark.promise("damaged-journal")
def test_a_row_of_energy_that_is_not_what_was_written_counts_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rows = [
        EnergyRow(owner, None, 0, "a", "node", source, 0, 1, 5, 0.5, True, 0.25)
        for owner, source in (("1", "rapl"), ("2", "rapl"), ("3", "model"))
    ]
    with begun(path) as journal:
        journal.book(rows)
        assert journal.energy() == rows and len(journal.energy_sums(0.0)) == 3
    harmed(path, "UPDATE energy SET joules = 6.0 WHERE owner = '2'")
    with begun(path) as journal:
        assert journal.energy() == [rows[0], rows[2]] and journal.energy("2") == []
        assert [row.owner for row in journal.energy_sums(0.0)] == ["1", "3"]
        assert [row.owner for row in journal.newest_energy(0.0)] == ["1", "3"]
        journal.book(rows[1:2])
        assert journal.energy() == rows


# --- a full disk -----------------------------------------------------------------------------


def room(journal: Journal, pages: int) -> None:
    """Let a journal have no more pages than this, as on a full disk."""
    journal._db.execute(f"PRAGMA max_page_count = {pages}")


def filled(journal: Journal) -> list[int]:
    """Leave no room, and enter events until one has not fitted."""
    room(journal, 1)  # as many as there are
    numbers = list[int]()
    while not journal._late:
        numbers.append(journal.append(Submitted(0.0, (job(len(numbers)),))))
    return numbers


@pytest.mark.promise("full-disk")
def test_what_does_not_fit_on_a_full_disk_is_written_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with begun(path) as journal:
        numbers = filled(journal)
        journal.decided(numbers[-1], [Later(JobId("1"), "why")])
        for pid in range(3):
            journal.note(filler(1, 9000 + pid))
        last = journal.append(Started(1.0, JobId("1")))
        for _ in range(2):
            with one_sentence(JournalFullError, "database or disk is full"):
                journal.flush()
            with pytest.raises(JournalFullError), journal.whole():
                raise AssertionError("this is not to be tried")
        before = len([*journal.read()]) - 1
        assert before < len(numbers)
        room(journal, 10_000)
        journal.flush()
        assert journal.noted(SubmissionNote, "filler-1") == filler(1, 9002)
    with Journal.open(path) as journal:
        found = [entry for entry in journal.read() if isinstance(entry, Seen)]
        assert [entry.seq for entry in found] == [*numbers, last]
        assert found[-2].decisions == (Later(JobId("1"), "why"),)
        assert journal.damage == []


def test_all_or_nothing_of_a_whole_is_written(tmp_path: Path) -> None:
    with begun(tmp_path / "journal") as journal:
        room(journal, 1)
        with pytest.raises(JournalFullError), journal.whole():
            journal.note(ScriptNote("1", 1))
            seq = journal.append(Started(0.0, JobId("1")))
            journal.note(filler(2, 100_000))
        room(journal, 10_000)
        journal.flush()
        assert journal.notes(ScriptNote) == {} and len([*journal.read()]) == 1
        assert journal.append(Started(1.0, JobId("1"))) == seq


# --- replay ----------------------------------------------------------------------------------


class Journalling(Engine):
    """An engine that journals as a daemon does: the event, then what was decided."""

    def __init__(self, journal: Journal, engine: Engine, policies: dict[int, str]) -> None:
        super().__init__(Site(engine.state.nodes, names=NODES), engine.policy)
        self.journal, self.policies, self.handled = journal, policies, 0
        self._within = False

    def handle(self, event: Event) -> list[Decision]:
        seq = self._journalled(event)
        self._within = True
        decisions = super().handle(event)
        self._within = False
        self.journal.decided(seq, decisions)
        return decisions

    def apply(self, event: Event) -> None:
        """Take in an event by itself too: a start, on which nothing is decided."""
        if not self._within:
            self.journal.decided(self._journalled(event), [])
        super().apply(event)

    def _journalled(self, event: Event) -> int:
        if self.handled in self.policies:
            self.policy = named(self.policies[self.handled])
            self.journal.policy(self.policy.name, event.at_s)
        self.handled += 1
        return self.journal.append(event)


def simulated(path: Path, policy: str, policies: dict[int, str]) -> Engine:
    modes = list(Mode)
    specs = [job(n, 7.0 * (n // 3), modes[n % 4]) for n in range(16)]
    simulation = Simulation(specs, [NodePower()] * len(NODES), named(policy))
    with begun(path, policy) as journal:
        simulation.engine = Journalling(journal, simulation.engine, policies)
        simulation._state = simulation.engine.state
        simulation.run()
    return simulation.engine


@pytest.mark.parametrize("policies", [{}, {5: "array-share", 9: "easy", 20: "array-share"}])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_decides_the_same(tmp_path: Path, policy: str, policies: dict[int, str]) -> None:
    path = tmp_path / "journal"
    engine = simulated(path, policy, policies)
    with begun(path, "fifo") as journal:  # a restart
        found = replay(journal.read())
    assert isinstance(engine, Journalling)
    assert (found.differing, found.unrecorded, found.refused) == ([], {}, [])
    assert found.events == engine.handled > 30
    assert len(found.engine.state.ended) == 16
    assert found.engine.state == engine.state
    assert found.engine.policy is named("fifo")


def test_decisions_that_differ_are_reported_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    simulated(path, "array-share", {})
    with Journal.open(path) as journal:
        entries = list(journal.read())
    starts = [
        at
        for at, entry in enumerate(entries)
        if isinstance(entry, Seen) and any(isinstance(d, Start) for d in entry.decisions or ())
    ]
    first, second = entries[starts[0]], entries[starts[1]]
    assert isinstance(first, Seen)
    assert isinstance(second, Seen)
    another = Start(JobId("0"), (Node(3),), "tampered")
    entries[starts[0]] = Seen(first.seq, first.event, (another, *(first.decisions or ())[1:]))
    entries[starts[1]] = Seen(second.seq, second.event, (*(second.decisions or ()), another))
    found = replay(entries)
    one, two = found.differing
    assert one.startswith(f"event {first.seq} (Submitted): expected {another} as recorded, got ")
    assert str((first.decisions or ())[0]) in one
    assert two.startswith(f"event {second.seq} (")
    assert two.endswith(f"expected {another} as recorded, got None")


def test_an_event_without_recorded_decisions_is_replayed_but_does_not_differ(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    with begun(path) as journal:
        seq = journal.append(Submitted(0.0, (job(1),)))
    with begun(path, "easy") as journal:
        found = replay(journal.read())
        wanted = [Start(JobId("1"), (Node(0), Node(1), Node(2), Node(3)), "fits")]
        assert (found.differing, found.unrecorded) == ([], {seq: wanted})
        assert list(found.engine.state.running) == ["1"]
        journal.decided(seq, found.unrecorded[seq])
        assert replay(journal.read()).unrecorded == {}


def test_an_event_that_the_engine_refuses_does_not_stop_a_replay(tmp_path: Path) -> None:
    with begun(tmp_path / "journal") as journal:
        early = journal.append(Started(0.0, JobId("1")))
        late = journal.append(Started(1.0, JobId("1")))
        journal.decided(late, [])
        journal.append(Submitted(2.0, (job(1),)))
        found = replay(journal.read())
    (refused,), (differing,) = found.refused, found.differing
    assert refused.startswith(f"event {early} (Started): expected one that the engine takes, got:")
    assert differing.startswith(f"event {late} (Started): expected")
    assert list(found.engine.state.running) == ["1"]


def test_a_journal_without_a_header_cannot_be_replayed() -> None:
    for entries in ([], [Seen(1, Started(0.0, JobId("1")), None)]):
        with one_sentence(JournalError, "expected a header as first entry, got"):
            replay(entries)


# --- kill -9 ---------------------------------------------------------------------------------

APPENDS = """
import sys
from itertools import count
from pathlib import Path
from rms.core.model.cluster import Cluster
from rms.core.model.events import Ended, Submitted
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.core.scheduler.engine import Engine
from rms.daemon.store.journal import Journal
from rms.core.policies import named

journal = Journal.open(Path(sys.argv[1]))
journal.header(Cluster.recorded(("a", "b", "c", "d")), "fifo")
engine = Engine(4, named("fifo"))
for n in count():
    spec = JobSpec(JobId(str(n)), float(n), 1, 4, 4, Mode.FIXED)
    for event in (Submitted(float(n), (spec,)), Ended(float(n), spec.id, "COMPLETED")):
        seq = journal.append(event)
        print("seen", seq, flush=True)
        journal.decided(seq, engine.handle(event))
        print("decided", seq, flush=True)
"""


@dataclass
class Killed:
    path: Path
    seen: list[int]
    decided: list[int]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    path = tmp_path_factory.mktemp("killed") / "journal"
    command = [sys.executable, "-c", APPENDS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(80)]
            with one_sentence(JournalError, "in use"):
                Journal.open(path)
        finally:
            child.kill()
        lines += child.stdout.readlines()
    acknowledged = [line.split() for line in lines if line.endswith("\n")]
    yield Killed(
        path,
        [int(seq) for what, seq in acknowledged if what == "seen"],
        [int(seq) for what, seq in acknowledged if what == "decided"],
    )


def copy(killed: Killed, folder: Path) -> tuple[Path, Path]:
    log = killed.path.with_name("journal-wal")
    return Path(shutil.copy(killed.path, folder)), Path(shutil.copy(log, folder))


def test_nothing_acknowledged_is_lost_by_a_kill(killed: Killed, tmp_path: Path) -> None:
    path, _ = copy(killed, tmp_path)
    with Journal.open(path) as journal:
        entries = [entry for entry in journal.read() if isinstance(entry, Seen)]
        found = replay(journal.read())
    assert len(killed.seen) >= 40
    seen = [entry.seq for entry in entries]
    # At most one more than was said: the one whose line was cut off.
    assert seen[: len(killed.seen)] == killed.seen
    assert len(seen) <= len(killed.seen) + 1
    assert {entry.seq for entry in entries if entry.decisions is not None} >= set(killed.decided)
    assert (found.differing, found.refused) == ([], [])
    assert len(found.unrecorded) <= 1


@pytest.mark.parametrize("harm", ["cut", "flipped"])
@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.8, 0.999])
def test_a_torn_tail_leaves_what_was_before_it(
    killed: Killed, tmp_path: Path, harm: str, part: float
) -> None:
    path, log = copy(killed, tmp_path)
    data = bytearray(log.read_bytes())
    at = int(part * len(data))
    if harm == "cut":
        del data[at:]
    else:
        data[at] ^= 0xFF
    log.write_bytes(data)
    for opening in range(2):  # what is entered after a torn tail follows on what was left
        with begun(path) as journal:
            entries = list(journal.read())
            found = replay(entries)
        seen = [entry.seq for entry in entries if isinstance(entry, Seen)]
        # One more than was said: SQLite had moved the log into the file before the kill.
        assert seen[: len(killed.seen)] == killed.seen[: len(seen)]
        assert len(seen) <= len(killed.seen) + 1
        assert found.differing == []
        assert sum(isinstance(entry, Opened) for entry in entries) >= opening + 1
