"""The energy books with meters: whatever is reported, however it arrives, they balance."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from said import Said
from specs import job_spec

from rms.core.books.ledger import Ledger
from rms.core.books.measured import ReplacedAgentError
from rms.core.books.spans import IDLE, MODEL
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Ended,
    Event,
    Reopened,
    Requeued,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Started,
    Submitted,
    TasksHold,
    WorkLost,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import named
from rms.core.scheduler.engine import Engine
from rms.core.scheduler.snapshot import freeze
from rms.core.state import State, is_task
from rms.daemon.nodes.energy import Meters
from rms.daemon.restart.recover import restore
from rms.daemon.store.archive import energy_rows
from rms.daemon.store.context import Context, Settings
from rms.daemon.store.journal import Journal
from rms.launch.local import LocalLauncher
from rms.wire.messages import Activity, DeviceEnergy, MeterAnswer, Metered
from rms.wire.users import LostWork

POWER = NodePower(idle_w=10.0, static_w=100.0)
CORES = Cluster(("n1", "n2", "g1"), (("cpu:0",), ("cpu:1",), ("gpu:0",)), (POWER,) * 3)
ONE, TWO = JobId("1"), JobId("2")


def job(name: JobId = ONE, low: int = 1, high: int = 3, size: int = 1) -> JobSpec:
    law = Speedup(law=(100.0, 5.0))
    return job_spec(name, (low, size, high), Mode.FLEXIBLE, speedup=law, resize_every_s=None)


@dataclass
class Daemon:
    """What of a daemon keeps the books: killed and started again by :meth:`killed`."""

    folder: Path
    cluster: Cluster = CORES
    now_s: float = 0.0
    said: Said = field(default_factory=Said)
    journal: Journal = field(init=False)
    context: Context = field(init=False)
    meters: Meters = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.journal = Journal.open(self.folder / "journal")
        cluster, launcher = self.cluster, LocalLauncher(self.folder, "instance", "unix:none")
        self.journal.header(cluster, "easy", where := "an allocation")
        settings = Settings(policy="easy", now=lambda: self.now_s, where=where)
        self.context = restore(cluster, self.journal, launcher, settings)
        self.context.scheduler.cluster = cluster  # the journal has no names of slots
        self.meters = Meters(self.context, lambda report: None)

    def killed(self) -> None:
        self.journal.close()
        self.start()

    def happen(self, *events: Event) -> None:
        for event in events:
            number = self.journal.append(event)
            self.journal.decided(number, self.context.scheduler.feed(event))

    def report(
        self, node: str, number: int, *devices: DeviceEnergy, agent: str = "a"
    ) -> MeterAnswer:
        return self.meters.take_report(
            Metered(node, agent, number, self.now_s, "boot", list(devices))
        )

    def owners(self) -> dict[str, float]:
        """Return the energy of all owners."""
        energy, state = self.context.scheduler.energy, self.context.state
        jobs = (*state.running, *state.pending, *state.ended)
        jobs += tuple(each for each in energy.ledger.busy_j if is_task(each))
        found = {str(name): energy.job_j(name, self.now_s) for name in jobs}
        return {**found, IDLE: energy.books(self.now_s).idle_j}

    @property
    def cluster_j(self) -> float:
        return self.context.scheduler.books(self.now_s).cluster_j

    def balances(self) -> None:
        energy = self.context.scheduler.energy
        energy.check(self.now_s)
        books, owners = energy.books(self.now_s), self.owners()
        assert sum(owners.values()) == pytest.approx(books.cluster_j, rel=1e-9, abs=1e-6)
        assert sum(part.joules for part in books.sources) == pytest.approx(books.cluster_j)
        for name, joules in owners.items():
            parts = energy.parts(JobId(name), joules)
            assert sum(part.joules for part in parts) == pytest.approx(joules, abs=1e-6)
            assert all(part.joules > -1e-6 for part in parts)
        rows = energy_rows(self.context)  # written or not
        assert sum(row.joules for row in rows) == pytest.approx(books.cluster_j, abs=1e-6)
        for name in owners.keys() - {IDLE}:
            own = [row for row in rows if row.owner == name]
            assert energy_rows(self.context, [name]) == own

    def rows_add_up(self) -> None:
        """What is in the file is what is in the books."""
        self.meters.write_all()
        rows = self.journal.energy()
        by_owner: dict[str, float] = defaultdict(float)
        for row in rows:
            by_owner[row.owner] += row.joules
        assert sum(by_owner.values()) == pytest.approx(self.cluster_j, rel=1e-9, abs=1e-6), rows
        for owner, joules in self.owners().items():
            assert by_owner[owner] == pytest.approx(joules, rel=1e-9, abs=1e-6), (owner, rows)
        for host in self.context.scheduler.energy.measured.hosts.values():
            for name, device in host.devices.items():
                of_it = [
                    r.joules
                    for r in rows
                    if r.device == name and r.node in host.nodes and r.source != MODEL
                ]
                assert sum(of_it) == pytest.approx(device.booked_j, rel=1e-12, abs=1e-9)
        spans = sorted((r.node, r.begin_s, r.end_s) for r in rows if r.source == MODEL)
        for (node, _, end_s), (other, begin_s, _) in pairwise(spans):
            assert node != other or begin_s >= end_s


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def rapl(joules: float, unseen_s: float = 0.0, error_j: float = 0.0) -> DeviceEnergy:
    return DeviceEnergy("package-0", "rapl", joules, unseen_s, error_j)


def gpu(joules: float, unseen_s: float = 0.0) -> DeviceEnergy:
    return DeviceEnergy("gpu-0", "nvml-counter", joules, unseen_s)


# --- one thing at a time -------------------------------------------------------------------------


def test_a_measurement_takes_the_place_of_the_model(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 0)
    daemon.report("n1", 1, rapl(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(600.0, error_j=6.0))
    assert daemon.owners() == {"1": 600.0, IDLE: 200.0}
    daemon.now_s = 11.0  # nothing is known yet of this second
    assert daemon.owners() == {"1": 700.0, IDLE: 220.0}
    daemon.now_s = 12.0
    daemon.report("n1", 3, rapl(700.0, error_j=7.0))
    assert daemon.owners() == {"1": 700.0, IDLE: 240.0}
    parts = daemon.context.scheduler.energy.parts(ONE, 700.0)
    assert [(p.source, p.joules, p.uncertainty_j, p.estimate) for p in parts] == [
        ("rapl", 700.0, 7.0, False)
    ]
    assert (
        daemon.context.scheduler.energy.measured.node_w.get("n1") == 50.0
        and daemon.context.scheduler.energy.measured.node_w.get("n2") is None
    )
    assert daemon.context.scheduler.energy.power_w == 50.0 + 20.0
    daemon.balances()
    daemon.rows_add_up()


def test_a_lost_report_loses_nothing_and_a_repeated_one_counts_once(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 0)
    daemon.now_s = 2.0  # the first report, which brought 0 J, is lost
    daemon.report("n1", 2, rapl(300.0))
    daemon.now_s = 5.0
    for number in (4, 4, 2, 1):
        daemon.report("n1", number, rapl(500.0))
    daemon.report("n1", 3, rapl(400.0))
    assert daemon.owners()["1"] == 500.0
    daemon.now_s = 6.0  # the next report counts from the newest one, not from a late one
    daemon.report("n1", 5, rapl(600.0))
    assert daemon.owners()["1"] == 600.0
    daemon.rows_add_up()


def test_two_jobs_share_a_report_by_what_the_model_says_of_each(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 1, rapl(0.0))
    daemon.happen(Ended(5.0, ONE, "COMPLETED"))  # 5 s at 100 W, then 10 s at 10 W
    daemon.now_s = 15.0
    daemon.report("n1", 2, rapl(1200.0))
    assert daemon.owners() == {"1": pytest.approx(1000.0), IDLE: pytest.approx(200.0 + 300.0)}
    daemon.balances()


def test_what_was_not_seen_is_the_models(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 1, rapl(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(300.0, unseen_s=4.0))
    assert daemon.owners()["1"] == pytest.approx(300.0 + 4.0 * 100.0)
    assert daemon.context.scheduler.energy.measured.node_w.get("n1") == 50.0
    parts = daemon.context.scheduler.energy.parts(ONE, daemon.owners()["1"])
    assert {part.source for part in parts} == {"rapl", MODEL}
    daemon.rows_add_up()


def test_of_two_devices_one_was_not_seen(daemon: Daemon) -> None:
    """The model goes on speaking for its share of all that was measured."""
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 1, rapl(0.0), gpu(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(100.0), gpu(300.0))
    assert daemon.owners()["1"] == pytest.approx(400.0)
    daemon.now_s = 20.0
    daemon.report("n1", 3, rapl(200.0), gpu(300.0, unseen_s=10.0))
    assert daemon.owners()["1"] == pytest.approx(500.0 + 10 * 100.0 * 300 / 500)
    daemon.balances()


def test_a_count_that_begins_anew_leaves_the_time_to_the_model(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 1, rapl(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(500.0))
    daemon.now_s = 20.0
    daemon.report("n1", 3, rapl(3.0))
    assert daemon.owners()["1"] == pytest.approx(500.0 + 1000.0)
    daemon.now_s = 30.0
    daemon.report("n1", 4, rapl(203.0))
    assert daemon.owners()["1"] == pytest.approx(500.0 + 1000.0 + 200.0)
    daemon.rows_add_up()


def test_devices_of_this_machine_are_those_of_its_nodes(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("", 1, rapl(0.0), gpu(0.0), DeviceEnergy("gpu-7", "nvml-counter", 0.0))
    daemon.now_s = 10.0
    daemon.report("", 2, rapl(220.0), gpu(50.0), DeviceEnergy("gpu-7", "nvml-counter", 99.0))
    # Of two cores one is busy at 100 W, one idle at 10 W.
    assert daemon.owners() == {"1": pytest.approx(200.0), IDLE: pytest.approx(20.0 + 50.0)}
    (part,) = daemon.context.scheduler.energy.parts(ONE, daemon.owners()["1"])
    assert part.estimate
    estimates = {row.device: row.estimate for row in daemon.journal.energy()}
    assert estimates == {"package-0": True, "gpu-0": False, "node": False}
    daemon.rows_add_up()


def test_an_agent_asks_and_the_one_before_is_told_to_end(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    assert daemon.report("n1", 0) == MeterAnswer()
    daemon.report("n1", 1, rapl(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(500.0))
    daemon.killed()
    daemon.now_s = 20.0
    answer = daemon.report("n1", 0, agent="b")
    assert (answer.known, answer.boot, answer.at_s) == ([rapl(500.0)], "boot", 10.0)
    with pytest.raises(ReplacedAgentError, match="of agent b, got a"):
        daemon.report("n1", 3, rapl(900.0))
    with pytest.raises(ReplacedAgentError):
        daemon.report("n1", 0)
    daemon.report("n1", 1, rapl(1100.0), agent="b")  # the counter went on meanwhile
    assert daemon.owners()["1"] == 1100.0
    assert len([row for row in daemon.journal.energy() if row.source == "rapl"]) == 1
    daemon.rows_add_up()


def test_nothing_is_booked_before_the_books_begin(daemon: Daemon) -> None:
    daemon.report("n1", 1, rapl(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(500.0))
    daemon.happen(Submitted(14.0, (job(),)), Started(14.0, ONE))
    daemon.now_s = 15.0
    daemon.report("n1", 3, rapl(1000.0))
    assert daemon.owners()["1"] == pytest.approx(100.0)  # 500 J in 5 s, of which 1 s is booked
    daemon.rows_add_up()


def test_the_books_of_the_last_jobs_end_are_settled_by_later_reports(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    for node in ("n1", "n2"):
        daemon.report(node, 1, rapl(0.0))
    daemon.happen(Ended(10.0, ONE, "COMPLETED"))
    daemon.now_s = 20.0
    daemon.report("n1", 2, rapl(550.0))  # 500 J of the job's, 50 J after it
    daemon.report("n2", 2, rapl(100.0))
    closed = daemon.context.scheduler.closed
    assert closed is not None
    assert (closed.busy_j, closed.idle_j) == (pytest.approx(500.0), pytest.approx(50.0 + 100.0))
    assert closed.cluster_j == pytest.approx(650.0)
    before = closed
    daemon.killed()
    after = daemon.context.scheduler.closed
    assert after is not None and after.cluster_j == pytest.approx(before.cluster_j)
    assert after.busy_j == pytest.approx(before.busy_j)


def growth() -> tuple[Event, ...]:
    """Return the events of a job that goes from one node to two, and stands from 20 to 30 s."""
    return (
        Submitted(0.0, (job(),)),
        Started(0.0, ONE),
        ResizePoint(10.0, ONE),
        ResizeAsked(10.0, ONE, 2),
        ResizeBegun(20.0, ONE),
        Resized(30.0, ONE),
    )


def test_the_energy_of_a_resize(daemon: Daemon) -> None:
    daemon.happen(*growth())
    energy = daemon.context.scheduler.energy
    assert energy.resize_j(ONE, 1) == pytest.approx(2 * 10 * 100.0)
    found = energy.resizes[ONE, 1]
    left = 1.0 - 20.0 / 105.0
    assert found.saved_j == pytest.approx(left * (105.0 * 100.0 - 55.0 * 2 * 100.0))
    daemon.report("n1", 1, rapl(0.0))  # of the future: this clock stands at 0
    daemon.killed()
    daemon.now_s = 30.0
    energy = daemon.context.scheduler.energy
    assert energy.resize_j(ONE, 1) == pytest.approx(2000.0)
    assert energy.resize_j(ONE, 2) is None


@pytest.mark.parametrize("counted", [True, False])
def test_both_worlds_draw_during_a_resize_whether_nodes_are_counted_or_placed(
    counted: bool,
) -> None:
    state, ledger = State(Site(3, (POWER,) * 3), counted), Ledger((POWER,) * 3)
    engine = Engine(3, named("fifo"))
    engine.state = state
    for event in (*growth(), Ended(40.0, ONE, "COMPLETED")):
        ledger.advance(state, event.at_s)
        engine.handle(event)
    ledger.advance(state, 40.0)
    assert ledger.busy_j[ONE] == pytest.approx(100.0 * (20.0 + 2 * 20.0))


def test_the_measured_energy_of_a_resize(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    for node in ("n1", "n2"):
        daemon.report(node, 1, rapl(0.0))
    daemon.happen(ResizePoint(10.0, ONE), ResizeAsked(10.0, ONE, 2), ResizeBegun(20.0, ONE))
    daemon.now_s = 20.0
    for node in ("n1", "n2"):
        daemon.report(node, 2, rapl(200.0))
    daemon.happen(Resized(30.0, ONE))
    daemon.now_s = 30.0
    for node in ("n1", "n2"):
        daemon.report(node, 3, rapl(500.0))
    assert daemon.context.scheduler.energy.resize_j(ONE, 1) == pytest.approx(600.0)
    rows = [row for row in daemon.journal.energy("1") if row.source == "rapl"]
    assert sum(row.joules for row in rows if row.resize == 1) == pytest.approx(600.0)
    for _ in range(2):
        (part,) = daemon.context.scheduler.energy.resize_parts(ONE, 1, 600.0)
        assert (part.source, part.joules) == ("rapl", pytest.approx(600.0))
        daemon.killed()
    assert daemon.context.scheduler.energy.resize_j(ONE, 1) == pytest.approx(600.0)
    daemon.rows_add_up()


def lost(daemon: Daemon) -> LostWork:
    """Return what the only job has lost, in the books too, to the digits that are compared."""
    own, all_of_it = daemon.context.scheduler.energy.lost(ONE), daemon.context.scheduler.books(0.0)
    assert own is not None and own == all_of_it.lost
    return LostWork(*[round(value, 6) for value in msgspec.structs.astuple(own)])


def restarts(daemon: Daemon) -> None:
    """From the first event, and from a snapshot."""
    daemon.killed()
    daemon.meters.tick()
    daemon.journal.save(freeze(daemon.context.scheduler), None)
    daemon.killed()


def test_the_energy_of_lost_work(daemon: Daemon) -> None:
    """100 W on one node until 20 s, then on two."""
    daemon.happen(*growth(), WorkLost(50.0, ONE, 10.0, 40.0, 7, "node n3 is lost"))
    daemon.now_s = 50.0
    assert lost(daemon) == LostWork(1, 7, 40.0, 1000.0 + 4000.0, 2000.0)
    daemon.happen(WorkLost(60.0, ONE, 45.0, 55.0, 2))  # of which 5 s are lost already
    assert lost(daemon) == LostWork(2, 9, 50.0, 6000.0, 3000.0)
    daemon.happen(WorkLost(60.0, ONE, -5.0, 58.0, 1))  # it started at 0 s
    whole = LostWork(3, 10, 60.0, 7000.0, 3000.0)
    assert lost(daemon) == whole
    daemon.balances()
    assert daemon.context.scheduler.history[ONE][-1].reason == "node n3 is lost"
    restarts(daemon)
    daemon.now_s = 60.0
    assert lost(daemon) == whole and daemon.owners()["1"] == 10_000.0
    daemon.happen(Ended(60.0, ONE, "COMPLETED"))
    closed = daemon.context.scheduler.closed
    assert closed is not None and closed.lost == daemon.context.scheduler.books(60.0).lost
    daemon.context.scheduler.forget([ONE])
    assert daemon.context.scheduler.energy.lost(ONE) is None
    daemon.journal.save(freeze(daemon.context.scheduler), None)
    daemon.killed()
    assert daemon.context.scheduler.books(60.0).lost == whole


def test_the_measured_energy_of_lost_work(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 1, rapl(0.0))
    daemon.now_s = 10.0
    daemon.report("n1", 2, rapl(500.0))
    daemon.happen(WorkLost(10.0, ONE, 4.0, 8.0, 1))
    assert lost(daemon) == LostWork(1, 1, 6.0, 200.0, 100.0)
    daemon.happen(WorkLost(20.0, ONE, 14.0, 18.0, 1))
    assert lost(daemon) == LostWork(2, 2, 12.0, 600.0, 300.0)  # by the model, until a report
    daemon.now_s = 20.0
    daemon.report("n1", 3, rapl(1100.0))
    measured = LostWork(2, 2, 12.0, 440.0, 220.0)
    assert lost(daemon) == measured
    daemon.now_s = 30.0
    daemon.report("n1", 4, rapl(9999.0))  # what it draws later is not lost
    assert lost(daemon) == measured
    daemon.balances()
    restarts(daemon)
    assert lost(daemon) == measured
    daemon.rows_add_up()


def test_measurements_of_earlier_worlds_are_known_when_their_work_is_lost(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    measured = daemon.context.scheduler.energy.measured
    daemon.report("n1", 1, rapl(0.0))
    for number, joules in ((2, 300.0), (3, 1000.0)):
        measured.spans.launched(daemon.now_s, ONE, {"n1": number})
        daemon.now_s += 10.0
        daemon.report("n1", number, rapl(joules))
    measured.spans.forget(measured.kept_s)
    daemon.happen(WorkLost(20.0, ONE, 5.0, 20.0, 1))
    assert lost(daemon) == LostWork(1, 1, 15.0, 150.0 + 700.0, 0.0)
    restarts(daemon)
    assert lost(daemon) == LostWork(1, 1, 15.0, 150.0 + 700.0, 0.0)
    daemon.happen(Ended(20.0, ONE, "COMPLETED"))
    daemon.meters.tick()
    measured = daemon.context.scheduler.energy.measured
    measured.spans.forget(measured.kept_s)
    assert {span.owner for span in measured.spans.on("n1")} == {IDLE}
    assert lost(daemon) == LostWork(1, 1, 15.0, 150.0 + 700.0, 0.0)


def test_spans_between_two_starts_of_a_job_are_kept_with_the_first(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    daemon.report("n1", 1, rapl(0.0))
    for number, event in ((2, Requeued(10.0, ONE)), (3, Started(20.0, ONE))):
        daemon.now_s = event.at_s
        daemon.report("n1", number, rapl(300.0 * number))
        daemon.happen(event)
        daemon.meters.tick()
    measured = daemon.context.scheduler.energy.measured
    measured.spans.forget(measured.kept_s)
    assert [span.owner for span in measured.spans.on("n1")] == ["1", IDLE, "1"]
    before = daemon.owners()
    daemon.journal.save(freeze(daemon.context.scheduler), None)
    daemon.killed()
    assert daemon.owners() == pytest.approx(before)


def test_which_world_a_joule_belongs_to(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(size=2),)), Started(0.0, ONE))
    spans = daemon.context.scheduler.energy.measured.spans
    spans.launched(1.0, ONE, {"n1": 0, "n2": 0})  # what its script did before is this world's too
    spans.launched(10.0, ONE, {"n2": 1})
    daemon.now_s = 15.0
    daemon.rows_add_up()
    rows = {(row.node, row.world, row.begin_s): row.joules for row in daemon.journal.energy("1")}
    assert {key: round(joules) for key, joules in rows.items()} == {
        ("n1", 0, 0.0): 1500,
        ("n2", 0, 0.0): 1000,
        ("n2", 1, 10.0): 500,
    }
    daemon.killed()
    daemon.now_s = 20.0
    daemon.rows_add_up()
    worlds = {(row.node, row.world) for row in daemon.journal.energy("1")}
    assert worlds == {("n1", 0), ("n2", 0), ("n2", 1)}


@pytest.mark.promise("books-measured")
def test_rows_are_as_many_as_changes_of_hands(daemon: Daemon) -> None:
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))
    for number in range(1, 200):
        daemon.now_s = float(number)
        daemon.report("n1", number, rapl(50.0 * number))
        daemon.meters.tick()
    assert len(daemon.journal.energy()) == 2  # the model's and the meter's
    assert len(daemon.context.scheduler.energy.measured.spans.pieces("n1", 0.0, 200.0)) == 1


# --- anything in any order -----------------------------------------------------------------------


Word = tuple[str, int, float, float, float, float, tuple[Activity, ...]]


@dataclass
class Meter:
    """A node's devices and their agent: one that counts by itself, one that has to be watched.

    ``work`` is the activity that the agent has read, by owner.
    """

    node: str
    counted_j: float = 0.0
    watched_j: float = 0.0
    unseen_s: float = 0.0
    first_j: float = 0.0
    agent: int = 0
    number: int = -1
    reports: list[Word] = field(default_factory=list)
    work: dict[str, Activity] = field(default_factory=dict)

    def word(self, at_s: float) -> Word:
        self.number += 1
        name = f"{self.node}-{self.agent}"
        seen = self.counted_j, self.watched_j, self.unseen_s
        self.reports.append((name, self.number, at_s, *seen, tuple(self.work.values())))
        return self.reports[-1]

    def works(self, owner: str, cpu_s: float, per_s: float | None) -> None:
        """Add activity, with a number of instructions per second of a processor if counted."""
        before = self.work.get(owner, Activity(owner, 0.0, 0.0, 0.0, 0.0))
        if per_s is None or before.instructions is None:
            self.work[owner] = Activity(owner, before.cpu_s + cpu_s)
            return
        counters = before.instructions, before.cycles or 0.0, before.misses or 0.0
        more = cpu_s * per_s, cpu_s * 2e9, cpu_s * per_s / 100.0
        sums = [a + b for a, b in zip(counters, more, strict=True)]
        self.work[owner] = Activity(owner, before.cpu_s + cpu_s, *sums)


class Books(RuleBasedStateMachine):
    """Jobs, reports and kills at random: lost, repeated, late, of agents that are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="books-"))

    def teardown(self) -> None:
        self.daemon.rows_add_up()
        self.daemon.journal.close()
        shutil.rmtree(self.folder)

    @initialize(local=st.booleans(), power=st.sampled_from([POWER, NodePower(0.0, 50.0)]))
    def begin(self, local: bool, power: NodePower) -> None:
        self.daemon = Daemon(self.folder, Cluster(CORES.names, CORES.slots, (power,) * 3))
        self.state = lambda: self.daemon.context.state
        self.meters = [Meter("")] if local else [Meter("n1"), Meter("n2")]
        self.jobs, self.reopened = 0, False
        self.booked: dict[tuple[str, str], float] = {}
        self.daemon.happen(Submitted(0.0, (job(ONE, 1, 3, 2),)), Started(0.0, ONE))
        for meter in self.meters:
            self.send(meter, *meter.word(0.0))
            self.send(meter, *meter.word(0.0))

    def send(
        self,
        meter: Meter,
        agent: str,
        number: int,
        at_s: float,
        counted_j: float,
        watched_j: float,
        unseen_s: float,
        work: tuple[Activity, ...],
    ) -> MeterAnswer | None:
        devices = (
            []
            if number == 0
            else [
                DeviceEnergy("package-0", "rapl", counted_j, 0.0, counted_j / 100),
                DeviceEnergy("gpu-0", "nvml-power", watched_j, unseen_s),
            ]
        )
        try:
            return self.daemon.meters.take_report(
                Metered(meter.node, agent, number, at_s, "b", devices, "", list(work))
            )
        except ReplacedAgentError:
            assert agent != f"{meter.node}-{meter.agent}"
            return None
        except ValueError:
            assert meter.node not in ("", *self.daemon.context.cluster.names)
            return None

    # --- time and jobs ---------------------------------------------------------------------------

    @rule(
        span_s=st.sampled_from([0.0, 0.25, 1.0, 30.0]),
        watts=st.sampled_from([0.0, 40.0, 333.3]),
        seen=st.booleans(),
        load=st.sampled_from([None, 0.0, 0.5, 1.0]),
        per_s=st.sampled_from([None, 1e8, 4e9]),
    )
    def time_goes_by(
        self,
        span_s: float,
        watts: float,
        seen: bool,
        load: float | None = None,
        per_s: float | None = None,
    ) -> None:
        self.daemon.now_s += span_s
        for meter in self.meters:
            for at, owner in enumerate(["", *self.state().running] if load is not None else []):
                meter.works(owner, (load or 0.0) * span_s * (at or 9), per_s)
            meter.counted_j += watts * span_s
            meter.watched_j += 2.0 * watts * span_s if seen else 0.0
            meter.unseen_s += 0.0 if seen else span_s

    def when(self) -> float:
        return max(self.daemon.now_s, self.state().now_s)

    @rule(size=st.integers(1, 3))
    def submit(self, size: int) -> None:
        self.jobs += 1
        name = JobId(str(self.jobs + 1))
        self.daemon.happen(Submitted(self.when(), (job(name, 1, 3, size),)))

    def starting(self) -> list[Job]:
        return [each for each in self.state().running.values() if each.start_s is None]

    @precondition(lambda self: self.starting())
    @rule()
    def start(self) -> None:
        self.daemon.happen(Started(self.when(), self.starting()[0].spec.id))

    def computing(self, *, resizing: bool) -> list[Job]:
        return [
            each
            for each in self.state().running.values()
            if each.start_s is not None and (each.requested_size is not None) is resizing
        ]

    @precondition(lambda self: self.computing(resizing=False))
    @rule(data=st.data(), size=st.integers(1, 3))
    def ask(self, data: st.DataObject, size: int) -> None:
        found = data.draw(st.sampled_from(self.computing(resizing=False))).spec.id
        at_s = self.when()
        self.daemon.happen(ResizePoint(at_s, found), ResizeAsked(at_s, found, size))

    @precondition(lambda self: self.computing(resizing=True))
    @rule(data=st.data(), good=st.booleans())
    def resize(self, data: st.DataObject, good: bool) -> None:
        found = data.draw(st.sampled_from(self.computing(resizing=True)))
        name, at_s = found.spec.id, self.when()
        if not found.resize_begun:
            self.daemon.happen(ResizeBegun(at_s, name))
            spans = self.daemon.context.scheduler.energy.measured.spans
            spans.launched(at_s, name, {"n1": self.jobs, "g1": self.jobs + 1})
        else:
            over = Resized(at_s, name) if good else ResizeRolledBack(at_s, name)
            self.daemon.happen(over)

    @precondition(lambda self: self.state().running)
    @rule(data=st.data(), again=st.booleans(), ago_s=st.sampled_from([0.0, 0.0, 2.0]))
    def end(self, data: st.DataObject, again: bool, ago_s: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.state().running)))
        at_s = max(self.when() - ago_s, self.state().now_s)
        self.daemon.happen(Requeued(at_s, name) if again else Ended(at_s, name, "COMPLETED"))

    @precondition(lambda self: self.computing(resizing=False))
    @rule(data=st.data(), ago_s=st.sampled_from([0.0, 1.0, 50.0]))
    def lose(self, data: st.DataObject, ago_s: float) -> None:
        name = data.draw(st.sampled_from(self.computing(resizing=False))).spec.id
        at_s = self.when()
        self.daemon.happen(WorkLost(at_s, name, at_s - ago_s, at_s - ago_s / 4.0, 1))

    @rule(data=st.data())
    def hold_for_tasks(self, data: st.DataObject) -> None:
        able = sorted(self.state().lent.keys() | self.state().free)
        held = sorted(data.draw(st.sets(st.sampled_from(able)))) if able else []
        owners = [data.draw(st.sampled_from(["", "task:a[1]", "task:b[2]"])) for _ in held]
        self.daemon.happen(TasksHold(self.when(), tuple(held), tuple(owners)))

    @rule(after_s=st.sampled_from([0.0, 5.0]), gone=st.booleans(), fails=st.booleans())
    def reopen(self, after_s: float, gone: bool, fails: bool) -> None:
        """Go on with other nodes, perhaps of the same names; some of before may be gone."""
        self.daemon.now_s, self.reopened = self.when() + after_s, True
        names = ("n1", "g1", "m1") if gone else CORES.names
        failed = tuple(sorted(self.state().running)) if fails else ()
        power = (NodePower(7.0, 70.0),) * 3
        where = f"{self.daemon.now_s}"
        self.daemon.happen(
            Reopened(self.daemon.now_s, where, names, power, (1, 1, 1), failed=failed)
        )
        self.daemon.cluster = self.daemon.context.scheduler.cluster

    # --- meters and daemons ----------------------------------------------------------------------

    @rule(data=st.data(), fate=st.sampled_from(["arrives", "arrives", "is lost", "is repeated"]))
    def report(self, data: st.DataObject, fate: str) -> None:
        meter = data.draw(st.sampled_from(self.meters))
        word = meter.word(self.daemon.now_s)
        if fate != "is lost":
            self.send(meter, *word)
        if fate == "is repeated":
            self.send(meter, *word)

    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        """An old report comes late, perhaps of an agent that is gone."""
        meter = data.draw(st.sampled_from(self.meters))
        before = self.daemon.owners()
        last = self.daemon.context.scheduler.energy.measured.hosts[meter.node].number
        word = data.draw(st.sampled_from(meter.reports))
        mine = word[0] == f"{meter.node}-{meter.agent}"
        self.send(meter, *word)
        assert (mine and word[1] > last) or self.daemon.owners() == before

    @rule(data=st.data())
    def new_agent(self, data: st.DataObject) -> None:
        meter = data.draw(st.sampled_from(self.meters))
        if meter.node not in ("", *self.daemon.context.cluster.names):
            return
        meter.agent, meter.number = meter.agent + 1, -1
        meter.work.clear()
        answer = self.send(meter, *meter.word(self.daemon.now_s))
        assert answer is not None
        known = {device.device: device for device in answer.known}
        meter.watched_j = known["gpu-0"].joules
        gap_s = max(0.0, self.daemon.now_s - answer.at_s)
        meter.unseen_s = known["gpu-0"].unseen_s + gap_s
        assert known["package-0"].joules <= meter.counted_j

    @rule()
    def save(self) -> None:
        self.daemon.meters.tick()

    @rule(forgets=st.booleans())
    def snapshot(self, forgets: bool) -> None:
        """The next daemon goes on from here, not from the first event."""
        if forgets:
            measured = self.daemon.context.scheduler.energy.measured
            measured.spans.forget(measured.kept_s)
        self.daemon.journal.save(freeze(self.daemon.context.scheduler), None)

    @rule(wait_s=st.sampled_from([0.0, 1.0]))
    def kill(self, wait_s: float) -> None:
        before = self.daemon.owners(), self.daemon.cluster_j
        energy = self.daemon.context.scheduler.energy
        closed, resizes = energy.closed, {key: energy.resize_j(*key) for key in energy.resizes}
        self.daemon.killed()
        energy = self.daemon.context.scheduler.energy
        assert self.daemon.owners() == pytest.approx(before[0], rel=1e-9, abs=1e-6)
        assert self.daemon.cluster_j == pytest.approx(before[1], rel=1e-9, abs=1e-6)
        assert {key: energy.resize_j(*key) for key in energy.resizes} == pytest.approx(
            resizes, rel=1e-9, abs=1e-6
        )
        for name, lost_j in self.lost_by_rows().items():
            own = energy.lost(name)
            assert own is not None and own.energy_j == pytest.approx(lost_j, rel=1e-9, abs=1e-6)
            assert -1e-6 <= lost_j <= energy.job_j(name, self.when()) * (1.0 + 1e-9) + 1e-6
        if closed is not None and energy.closed is not None:
            assert energy.closed.busy_j == pytest.approx(closed.busy_j, rel=1e-9, abs=1e-6)
            assert energy.closed.idle_j == pytest.approx(closed.idle_j, rel=1e-9, abs=1e-6)
        self.time_goes_by(wait_s, 40.0, False)

    def lost_by_rows(self) -> dict[JobId, float]:
        """Return the lost energy of jobs by the rows of their times."""
        energy = self.daemon.context.scheduler.energy
        found = {}
        for name, times in energy.ledger.lost_times.items():
            found[name] = energy.ledger.lost[name].energy_j
            rows = energy_rows(self.daemon.context, [name])
            for key in {(row.node, row.begin_s) for row in rows}:
                own = [row for row in rows if (row.node, row.begin_s) == key]
                booked_s = energy.measured.booked_s.get(key[0], 0.0)
                begin_s, end_s = key[1], min(booked_s, *(row.end_s for row in own))
                more_j = sum(-r.replaced_j if r.source == MODEL else r.joules for r in own)
                seconds = [min(t.end_s, end_s) - max(t.begin_s, begin_s) for t in times]
                if end_s > begin_s:
                    found[name] += more_j * sum(s for s in seconds if s > 0.0) / (end_s - begin_s)
        return found

    @rule()
    def look_at_rows(self) -> None:
        self.daemon.rows_add_up()

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "daemon"):
            return
        self.daemon.balances()
        for host in self.daemon.context.scheduler.energy.measured.hosts.values():
            for device in host.devices.values():  # from its first word on, it was in the books
                whole_j = pytest.approx(device.energy.joules, rel=1e-9, abs=1e-9)
                assert device.booked_j == whole_j or self.reopened
                assert device.booked_j <= device.energy.joules * (1.0 + 1e-9)

    @invariant()
    def the_last_books_balance(self) -> None:
        closed = self.daemon.context.scheduler.closed if hasattr(self, "daemon") else None
        if closed is not None:
            parts = closed.busy_j + closed.tasks_j + closed.idle_j
            assert parts == pytest.approx(closed.cluster_j, rel=1e-9, abs=1e-6)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


@pytest.mark.promise("books-tasks")
def test_tasks_are_owners_beside_jobs(daemon: Daemon) -> None:
    one, other = "task:mine.py[7]", "task:other[8]"
    daemon.happen(Submitted(0.0, (job(),)), Started(0.0, ONE))  # on the first node
    daemon.happen(TasksHold(0.0, (Node(1), Node(2)), (one, one)))
    daemon.happen(TasksHold(4.0, (Node(1), Node(2)), (one, other)))
    daemon.happen(TasksHold(6.0, (Node(1), Node(2)), ("", other)))  # held, and nobody's
    daemon.happen(TasksHold(9.0, (), ()))
    daemon.now_s = 10.0
    for _ in range(2):
        idle_j = 10.0 * (4.0 + 1.0)  # of the second node from 6 s on, of the third from 9 s on
        assert daemon.owners() == {"1": 1000.0, one: 1000.0, other: 500.0, IDLE: idle_j}
        books = daemon.context.scheduler.books(10.0)
        assert (books.busy_j, books.tasks_j, books.cluster_j) == (1000.0, 1500.0, 2550.0)
        daemon.balances()
        daemon.killed()
    daemon.rows_add_up()
