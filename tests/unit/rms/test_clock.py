"""The daemon's clock: what happens when the time of day is set, over restarts and boots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults import Fault
from routed import routed
from said import Said

from rms.core.model.jobs import JobId
from rms.daemon.ask import views
from rms.daemon.store.context import BootClock
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import ClockNote
from rms.power.meter import boot_id, boottime
from rms.wire.messages import DeviceEnergy, Metered

DAY_S = 86_400.0


@dataclass
class Machine:
    """Its time of day, its uptime and this boot's id."""

    of_day_s: float = 1_000_000.0
    up_s: float = 50.0
    boot: str = "one"
    said: Said = field(default_factory=Said)

    def passes(self, seconds: float) -> None:
        self.of_day_s += seconds
        self.up_s += seconds

    def clock(self, journal: Journal) -> BootClock:
        return BootClock(
            journal,
            uptime=lambda: self.up_s,
            of_day=lambda: self.of_day_s,
            boot=self.boot,
        )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal") as opened:
        yield opened


def test_it_tells_the_time_of_day_until_that_is_set(journal: Journal) -> None:
    machine = Machine()
    clock = machine.clock(journal)
    assert (clock(), clock.skew_s) == (1_000_000.0, 0.0)
    machine.passes(10.0)
    assert (clock(), clock.skew_s, machine.said) == (1_000_010.0, 0.0, [])
    for step_s, skew_s in ((2 * DAY_S, 2 * DAY_S), (-3 * DAY_S, -DAY_S)):
        machine.of_day_s += step_s
        assert (clock(), clock.skew_s) == (1_000_010.0, skew_s)
    assert machine.said == [
        "the time of day was set by +172800.0 s; times here go on as before, 172800.0 s behind it",
        "the time of day was set by -259200.0 s; times here go on as before, 86400.0 s ahead of it",
    ]
    machine.passes(1.0)
    assert (clock.skew_s, len(machine.said)) == (-DAY_S, 2)


def test_a_restart_goes_on_with_it_and_another_boot_begins_anew(journal: Journal) -> None:
    machine = Machine()
    machine.clock(journal)
    machine.passes(10.0)
    machine.of_day_s += 2 * DAY_S
    again = machine.clock(journal)
    assert (again(), again.skew_s) == (1_000_010.0, 2 * DAY_S)
    machine.boot, machine.up_s = "two", 5.0
    booted = machine.clock(journal)
    assert (booted(), booted.skew_s) == (machine.of_day_s, 0.0)
    machine.boot, machine.of_day_s = "three", 7.0  # no battery: it begins before what was entered
    early = machine.clock(journal)
    early.not_before(1_000_010.0)
    early.not_before(5.0)
    machine.passes(1.0)
    assert early() == 1_000_011.0
    assert machine.clock(journal)() == 1_000_011.0


def test_this_machine_has_one(journal: Journal) -> None:
    clock = BootClock(journal)
    assert clock() <= clock() and clock.skew_s == 0.0 and boottime() > 0.0
    assert journal.noted(ClockNote).boot == boot_id()


@pytest.mark.promise("faults-contained")
def test_limits_grace_and_energy_do_not_follow_it(tmp_path: Path, fault: Fault) -> None:
    with routed(tmp_path / "state") as server:
        machine, daemon = Machine(1000.0), server.daemon
        clock = machine.clock(daemon.journal)
        for name in ("now", "clock"):
            object.__setattr__(daemon.context.settings, name, clock)
        job = server.submit(nodes=[2, 2], time_s=3600.0)

        def report(number: int, joules: float) -> None:
            device = DeviceEnergy("package-0", "rapl", joules)
            said = Metered("n1", "agent", number, machine.of_day_s, "boot", [device])
            daemon.meters.take_report(said)

        report(1, 0.0)
        for number, step_s in enumerate((0.0, 2 * DAY_S, -4 * DAY_S), 2):
            machine.passes(10.0)
            machine.of_day_s += step_s
            report(number, 100.0 * (number - 1))
            assert daemon.context.now() == 1000.0 + 10.0 * (number - 1)
            assert daemon.scheduler.energy.measured.node_w["n1"] == pytest.approx(10.0)
        running = daemon.context.state.running[JobId(job)]
        assert running.start_s == 1000.0 and daemon.jobs[JobId(job)].ending is None
        (row,) = views.jobs(daemon.context)
        assert row.energy_j == pytest.approx(300.0 + 30.0 * 5.0)  # the other node by the model
    fault("time of day set two days forward and back", "limits, grace and energy as before")
