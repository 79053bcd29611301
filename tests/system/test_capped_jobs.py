"""A power cap for real: who starts, waits or is narrowed, by what is expected and measured."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import LocalRms, closing
from powercap import Counters
from processes import ROOT, program

from rms.core.model.cluster import Cluster
from rms.core.model.events import PowerCapSet, PowerMeasured
from rms.core.policies import named
from rms.core.rules.powercap import expected_w
from rms.core.scheduler.scheduler import Scheduler
from rms.daemon.store.journal import Journal, Opened, Seen

PACED = " ".join([*program("paced"), str(ROOT / "mpdata" / "__main__.py")])
FLEXIBLE = f"""#SBATCH --nodes=1-3
#RMS --mode=flexible
PACE_S=0.1 mpirun {PACED} run --case random --grid 24 20 8 --backend numpy --every 2 --steps 300"""
IDLE_W, ADDED_W = 9.0, 9.0
"""Of three nodes of 3 W idle, and what a job adds to each: 12 W busy."""


class Metered(LocalRms):
    """Three nodes whose only package a stand-in for the kernel's counters says the power of."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.powercap = folder
        super().__init__(3, *options)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "RMS_POWERCAP": str(self.powercap)}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A powercap folder without any package."""
    (tmp_path / "powercap").mkdir()
    yield tmp_path / "powercap"


def never_passed(rms: LocalRms) -> list[float | None]:
    """Feed the journal of a daemon that has ended to a scheduler; return the caps that held.

    Expected power rises above no cap: where one was lowered it only falls until it is below.
    """
    caps: list[float | None] = []
    with Journal.open(rms.state / "journal.sqlite") as journal:
        scheduler, before_w = None, 0.0
        for entry in journal.read():
            if isinstance(entry, Opened) and scheduler is None:
                cluster = Cluster.recorded(entry.nodes, entry.power, entry.widths)
                scheduler = Scheduler(cluster, named(entry.policy))
            if not isinstance(entry, Seen):
                continue
            assert scheduler is not None
            scheduler.feed(entry.event)
            state = scheduler.engine.state
            if isinstance(entry.event, PowerCapSet):
                caps.append(entry.event.watts)
            if state.power_cap_w is not None:
                assert expected_w(state) <= max(state.power_cap_w, before_w) + 1e-6
            before_w = expected_w(state)
    return caps


def yields(rms: LocalRms, job: str) -> list[str]:
    """Return why a job was told to yield, each time."""
    found = [row for row in rms.ask("explain", job) if row["kind"] == "resize"]
    return [row["reason"] for row in found if row["code"] == "PowerCap"]


def drawn_w(reason: str) -> float:
    """Return the power, by the meters, that a reason states, 0 where it states none."""
    found = re.search(r"; ([0-9]+) W are drawn, by the meters", reason)
    return float(found[1]) if found else 0.0


@pytest.mark.promise("power-cap")
def test_the_cap_holds_on_running_jobs(folder: Path) -> None:
    cap_w = IDLE_W + 2 * ADDED_W + 4.0
    with closing(Metered(folder)) as rms:
        rms.ask("power-cap", f"{cap_w:g}")
        wide = rms.submit(FLEXIBLE)
        assert rms.running(wide)["size"] == 2  # though a third node is idle
        refused = rms.rms("resize", wide, "3")
        assert refused.returncode == 1
        assert "not resized: PowerCap: takes 9 W more, 4 W are left" in refused.stderr
        assert rms.ask("power-cap") == {
            "cap_w": cap_w,
            "expected_w": IDLE_W + 2 * ADDED_W,
            "idle_w": IDLE_W,
            "measured_w": None,
        }
        lower = rms.ask("power-cap", f"{cap_w - ADDED_W:g}")
        assert lower["cap_w"] == cap_w - ADDED_W
        rms.until(lambda: rms.resizes(wide) == [(2, 1)], "a job that yields")
        assert yields(rms, wide) == ["PowerCap: yields, 27 W are expected; the cap is 22 W"]
        small = rms.submit("sleep 0.1", "--nodes", "1", "--mode", "fixed")
        why = "PowerCap: needs 9 W on 1 node, 4 W are left of 22 W"
        rms.until(lambda: rms.row(small)["reason"] == why, "a word of the cap")
        rms.end(signal.SIGKILL)
        rms.start()
        assert "power cap: 22 W, as before" in rms.said()
        assert rms.row(small)["state"] == "PENDING"
        rms.hurry()
        assert rms.over(wide, small) == ["COMPLETED"] * 2
        first, second = rms.row(wide), rms.row(small)
        assert second["start_s"] >= first["end_s"] and rms.resizes(wide) == [(2, 1)]
        rms.books_balance()
        assert rms.end() == 0
        assert never_passed(rms) == [cap_w, cap_w - ADDED_W]
        rms.replays()


@pytest.mark.promise("power-cap")
def test_what_meters_say_holds_too(folder: Path) -> None:
    options = ("--power-cap", "60", "--policy", "easy")  # resizes for the cap only
    serving = (Counters(folder, 30.0), closing(Metered(folder, *options)))
    with serving[0] as counters, serving[1] as rms:
        wide = rms.submit(FLEXIBLE)
        assert rms.running(wide)["size"] == 3  # 36 W are expected
        counters.watts[0] = 66.0  # above the cap by less than a node draws
        rms.until(lambda: yields(rms, wide), "a job that yields")
        counters.watts[0] = 45.0  # before it is done, as reports are a second apart
        small = rms.submit("sleep 0.1", "--nodes", "1", "--mode", "fixed", "--power", "30")
        rms.until(
            lambda: 42 < drawn_w(rms.row(small)["reason"]) < 48,
            "a job that waits for what is measured",
        )
        assert rms.row(small)["reason"].startswith("PowerCap: needs 30 W on 1 node, ")
        counters.watts[0] = 20.0  # less than the 27 W that are expected
        assert rms.over(small) == ["COMPLETED"]
        rms.hurry()
        assert rms.over(wide) == ["COMPLETED"]
        assert rms.resizes(wide) == [(3, 2)]
        rms.until(lambda: 15 < rms.ask("power-cap")["measured_w"] < 25, "what meters say now")
        rms.ask("acct")  # which refuses books that do not balance
        assert rms.end() == 0
        never_passed(rms)
        rms.replays()
        with Journal.open(rms.state / "journal.sqlite") as journal:
            seen = [entry.event for entry in journal.read() if isinstance(entry, Seen)]
        measured = sum(isinstance(event, PowerMeasured) for event in seen)
        assert 2 <= measured <= max(12, (seen[-1].at_s - seen[0].at_s) / 2)  # reports: 1 a second
