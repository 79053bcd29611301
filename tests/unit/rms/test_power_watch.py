"""What meters say under a power cap: which readings become events, and which do not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from rms.core.books.measured import MeteredHost
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    PowerCapSet,
    PowerMeasured,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.core.policies import named
from rms.core.scheduler.scheduler import Scheduler
from rms.daemon.nodes.energy import CAP_STALE_S, LAG_S, CapWatch, restore_energy
from rms.daemon.store.context import Context
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import MeterNote, Note
from rms.wire.messages import DeviceEnergy, Metered
from rms.wire.users import EnergyRow

NAMES = ("n1", "n2", "n3", "n4")


class Watched:
    """A scheduler with a malleable job on four nodes of 10 W idle and 60 W busy; cap 300 W."""

    def __init__(self, every_s: float = 1.0) -> None:
        cluster = Cluster(NAMES, (("cpu:0",),) * 4, (NodePower(10.0, 60.0),) * 4)
        self.scheduler = Scheduler(cluster, named("easy"))
        self.now_s, self.every_s = 1000.0, every_s
        self.events: list[Event] = []
        context = SimpleNamespace(
            state=self.scheduler.engine.state,
            scheduler=self.scheduler,
            now=lambda: self.now_s,
            time=lambda: self.now_s,
        )
        self.watch = CapWatch(cast("Context", context), self.handle)
        self.handle(PowerCapSet(self.now_s, 300.0))
        spec = JobSpec(JobId("1"), self.now_s, 1, 4, 4, Mode.MALLEABLE)
        for decision in self.handle(Submitted(self.now_s, (spec,))):
            assert isinstance(decision, Start)
            self.handle(Started(self.now_s, decision.job))
        self.handle(ResizePoint(self.now_s, spec.id))

    def handle(self, event: Event, notes: Sequence[Note] = ()) -> list[Decision]:
        decided = self.scheduler.feed(event)
        self.watch.on_event(event)
        self.events.append(event)
        return decided

    def read(self, watts: float) -> list[float]:
        """Let all nodes report this power together; return what became events of it."""
        self.now_s += self.every_s
        for name in NAMES:
            self.scheduler.energy.measured.node_w[name] = watts / 4
            devices = [DeviceEnergy("node", "command", 0.0)]
            self.watch.on_report(Metered(name, "a", 1, self.now_s, "b", devices))
        return self.look()

    def look(self) -> list[float]:
        before = len(self.events)
        self.watch.tick()
        return [e.watts for e in self.events[before:] if isinstance(e, PowerMeasured)]

    @property
    def size_wanted(self) -> int | None:
        return self.scheduler.engine.state.running[JobId("1")].requested_size


def test_what_is_as_expected_or_changes_little_is_no_event() -> None:
    watched = Watched()
    assert [watched.read(watts) for watts in (100.0, 240.0, 244.0)] == [[], [], []]
    assert [watched.read(watts) for watts in (250.0, 254.0, 246.0)] == [[250.0], [], []]
    assert [watched.read(watts) for watts in (299.0, 301.0, 300.5)] == [[299.0], [301.0], []]
    assert watched.size_wanted == 3


def test_a_reading_of_before_a_shrink_does_not_count() -> None:
    watched = Watched()
    watched.read(240.0)
    assert watched.read(340.0) == [340.0] and watched.size_wanted == 3
    watched.now_s += 0.5
    watched.handle(Resized(watched.now_s, JobId("1")))
    watched.now_s -= 0.5
    assert watched.read(320.0) == []  # half of its second is of before
    assert watched.read(290.0) == [290.0]
    assert watched.size_wanted is None


def test_a_reading_of_before_a_resize_was_rolled_back_does_not_count() -> None:
    """The nodes that were held for it draw less."""
    watched = Watched()
    watched.read(240.0)
    assert watched.read(340.0) == [340.0]
    watched.now_s += 0.5
    watched.handle(ResizeRolledBack(watched.now_s, JobId("1")))
    watched.now_s -= 0.5
    assert watched.read(320.0) == [] and watched.read(290.0) == [290.0]


def test_readings_count_that_are_always_in_part_of_before() -> None:
    """Jobs end all the time: the cap holds all the same, if not at once."""
    watched = Watched()
    watched.read(240.0)
    found: list[tuple[float, list[float]]] = []
    for number in range(2, 20):
        spec = JobSpec(JobId(str(number)), watched.now_s, 1, 1, 1, Mode.FIXED)
        watched.handle(Submitted(watched.now_s, (spec,)))
        watched.handle(Ended(watched.now_s + 0.5, spec.id, "CANCELLED"))
        if events := watched.read(340.0):
            found.append((watched.now_s - 1001.0, events))
    assert found == [(LAG_S, [340.0])] and watched.size_wanted == 3


def test_meters_that_fall_silent_say_nothing_any_more() -> None:
    watched = Watched()
    watched.read(240.0)
    assert watched.read(280.0) == [280.0]
    watched.now_s += CAP_STALE_S - 1.0
    assert watched.look() == []
    watched.now_s += 2.0
    assert watched.look() == [240.0]  # what is expected
    assert watched.scheduler.engine.state.running[JobId("1")].above_w == 0.0


def test_after_a_restart_the_last_reading_holds_until_there_is_another() -> None:
    watched = Watched()
    watched.handle(PowerMeasured(watched.now_s, 280.0))
    watched.now_s += CAP_STALE_S / 2
    assert watched.look() == []
    watched.now_s += CAP_STALE_S
    assert watched.look() == [240.0]


def test_without_a_cap_nothing_is_entered() -> None:
    watched = Watched()
    watched.handle(PowerCapSet(watched.now_s, None))
    assert watched.read(999.0) == watched.read(999.0) == []


def test_a_restart_reads_all_rows_that_late_reports_may_still_change() -> None:
    hosts = {
        name: MeteredHost("agent", 1, heard_s, nodes={name: heard_s})
        for name, heard_s in (("n1", 5000.0), ("n2", 3000.0), ("n3", 4000.0))
    }
    asked = list[float]()

    def newest_energy(since_s: float) -> list[EnergyRow]:
        asked.append(since_s)
        return []

    journal = SimpleNamespace(
        notes=lambda _: {name: MeterNote(host=host) for name, host in hosts.items()},
        energy_sums=lambda _: [],
        newest_energy=newest_energy,
    )
    watched = Watched()
    restore_energy(watched.scheduler, cast("Journal", journal))
    assert asked == [min(watched.scheduler.energy.measured.kept_s.values())] == [3000.0]
