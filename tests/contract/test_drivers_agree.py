"""One sequence of events, two drivers: the daemon decides what the simulator decides."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs
from specs import job_spec
from submissions import hand_in

from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    PowerOff,
    PowerOn,
    Reason,
    Resize,
    Start,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobSpec, Mode, NodePower, Speedup
from rms.core.policies import POLICIES, adjusted, named
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import replay, resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal, Seen
from rms.launch.base import ManagedProcess
from rms.launch.local import LocalLauncher
from rms.sim.simulator import Simulation

ALIKE = NodePower(1.0, 2.0, 3.0)


class NoProcesses(LocalLauncher):
    """A launcher that starts nothing: events come from the recorded sequence alone."""

    def __init__(self, state: Path) -> None:
        super().__init__(state, "none", "")

    def start_script(self, *_: Any) -> ManagedProcess:
        return ManagedProcess(0)


def spec(number: int, at: float, size: int, array: str | None) -> JobSpec:
    law = Speedup(law=(60.0 + number, 2.0))
    more = {"array": array, "resize_every_s": 3.0, "resize_price_s": 1.0}
    return job_spec(number, (1, size, size), Mode.FLEXIBLE, at, speedup=law, **more)


def stream(jobs: int = 32) -> list[JobSpec]:
    """Jobs of all modes, with and without a limit, a speedup, resize points and a price."""
    found = []
    for number in range(1, jobs + 1):
        low, mode = 1 + number % 3, Mode(list(Mode)[number * 7 % 4])
        law = Speedup(law=(30.0 + 11.0 * (number % 5), 2.0)) if number % 6 else None
        found.append(
            job_spec(
                number,
                (low, low + number % 4 // 2, low + number % 4),
                mode,
                4.0 * (number - number % 3),
                speedup=law,
                limit_s=60.0 + number if number % 4 else None,
                resize_every_s=3.0 if number % 5 else None,
                resize_price_s=0.5 * (number % 2),
                run_s=None if law else 40.0,
            )
        )
    return found


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"p-fifo", "p-bff"}))
@pytest.mark.promise("simulate")
def test_live_and_simulated_driver_decide_alike(tmp_path: Path, policy: str) -> None:
    wide = spec(1, 0.0, 6, None)
    decisions = agree(tmp_path, policy, [wide, *(spec(n, 7.0, 4, "a") for n in range(2, 9))])
    resizes = sum(isinstance(d, Resize) for _, d in decisions)
    widens = "share" in policy or policy == "cheap-hours"
    assert resizes >= 2 if widens else resizes == 0


@pytest.mark.parametrize("policy", ["easy", "array-share", "backfill-share"])
@pytest.mark.promise("simulate")
def test_on_a_stream_of_jobs_of_all_modes_too(tmp_path: Path, policy: str) -> None:
    decisions = agree(tmp_path, policy, stream())
    reasons = {d.reason for _, d in decisions if isinstance(d, Resize)}
    if policy == "backfill-share":
        assert reasons == {"makes room for waiting jobs", "takes idle nodes"}


@pytest.mark.parametrize(
    ("policy", "when"),
    [
        ("easy", {"delay_s": 5.0, "ahead": True, "at_most": 2}),
        ("array-share", {}),
        ("backfill-share", {"ahead": True}),
    ],
)
@pytest.mark.promise("node-power")
def test_with_nodes_that_go_off_and_come_back(
    tmp_path: Path, policy: str, when: dict[str, Any]
) -> None:
    """The second half comes when all nodes have been off for a while."""
    late = [structs.replace(s, submit_s=s.submit_s + 999.0 * (int(s.id) > 16)) for s in stream()]
    off = adjusted(POLICIES[policy], node_power={"part": "off-when-idle", **when}).key
    decisions = agree(tmp_path, off, late, NodePower(1.0, 2.0, 3.0, 0.1, 4.0, 6.0))
    for kind in (PowerOff, PowerOn):
        assert len({node for _, d in decisions if isinstance(d, kind) for node in d.nodes}) == 6


@pytest.mark.parametrize("part", ["first-fit-shared", "less-consume"])
@pytest.mark.parametrize("node_power", ["always-on", "off-when-idle"])
@pytest.mark.covering(1)
@pytest.mark.promise("shared-nodes")
def test_on_nodes_that_jobs_share(tmp_path: Path, part: str, node_power: str) -> None:
    """Six nodes of two slots; the second half of the jobs comes when all nodes could be off."""
    specs = [
        structs.replace(
            s,
            submit_s=s.submit_s + 999.0 * (int(s.id) > 16),
            mode=Mode.FIXED,
            limit_s=s.limit_s or 100.0,
            bandwidth_gb_s=float(1 + 4 * (int(s.id) % 3)),
        )
        for s in stream()
    ]
    policy = adjusted(
        POLICIES["easy"], placement={"part": part}, node_power={"part": node_power}
    ).key
    decisions = agree(tmp_path, policy, specs, NodePower(1.0, 2.0, 3.0, 0.1, 4.0, 6.0), gb_s=8.0)
    starts = [d for _, d in decisions if isinstance(d, Start)]
    assert len(starts) == len(specs)
    if part == "less-consume":
        assert any(start.slowdown > 1.0 for start in starts)
    off = {node for _, d in decisions if isinstance(d, PowerOff) for node in d.nodes}
    assert len(off) == (12 if node_power == "off-when-idle" else 0)


@pytest.mark.parametrize("part", ["first-fit-shared", "less-consume"])
@pytest.mark.covering(0)
@pytest.mark.promise("shared-nodes")
def test_on_shared_nodes_with_jobs_that_are_resized(tmp_path: Path, part: str) -> None:
    """What a job has done by a resize point is in the event, so the daemon counts with the same."""
    specs = [structs.replace(s, bandwidth_gb_s=float(2 * (int(s.id) % 4))) for s in stream(64)]
    policy = adjusted(POLICIES["backfill-share"], placement={"part": part}).key
    decisions = agree(tmp_path, policy, specs, gb_s=8.0)
    assert sum(isinstance(d, Resize) for _, d in decisions) > 10


@pytest.mark.promise("consolidate")
def test_with_jobs_that_are_moved_so_that_nodes_go_off(tmp_path: Path) -> None:
    """Six nodes of two slots; jobs of all modes, half of them of one size that may be moved."""
    specs = [
        structs.replace(
            s,
            mode=Mode.MALLEABLE if int(s.id) % 2 else s.mode,
            nodes_max=s.preferred if int(s.id) % 2 else s.nodes_max,
            nodes_min=s.preferred if int(s.id) % 2 else s.nodes_min,
            limit_s=5.0 * (s.limit_s or 60.0),
            resize_every_s=3.0,
        )
        for s in stream()
    ]
    policy = adjusted(
        POLICIES["easy"],
        placement={"part": "consolidate", "narrow": True},
        node_power={"part": "off-when-idle"},
    ).key
    model = NodePower(10.0, 20.0, 3.0, 0.1, 4.0, 6.0)
    decisions = agree(tmp_path, policy, specs, model, gb_s=inf)
    moved = [d for _, d in decisions if isinstance(d, Resize)]
    assert {d.code for d in moved} == {Reason.CONSOLIDATES}
    assert any(isinstance(d, PowerOff) for _, d in decisions)


def agree(
    tmp_path: Path,
    policy: str,
    specs: list[JobSpec],
    model: NodePower = ALIKE,
    gb_s: float | None = None,
) -> list[tuple[float, Decision]]:
    """Return what was decided in a simulation, once a daemon told the same decided the same.

    Args:
        gb_s: memory bandwidth of nodes of two slots that jobs share; None for whole nodes.
    """
    power = (model,) * 6
    names = tuple(f"n{n}" for n in range(6))
    cluster = Cluster(names, tuple((f"cpu:{n}",) for n in range(6)), power)
    if gb_s is not None:
        cluster = Cluster(names, (("cpu:0", "cpu:1"),) * 6, power, (gb_s,) * 6).split()
    simulation = Simulation(specs, cluster.site, named(policy))
    simulation.run()
    clock = [0.0]
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        settings = Settings(policy=policy, now=lambda: clock[0])
        # A daemon looks at its idle nodes as it starts; a simulation begins with the first job.
        with mock.patch.object(Daemon, "look_at_idle_nodes"):
            daemon = resume(cluster, journal, NoProcesses(tmp_path), settings)
        for event in simulation.events:
            clock[0] = event.at_s
            if isinstance(event, Submitted):
                hand_in(daemon, event.specs)
            elif not isinstance(event, Started):  # the daemon reports its own starts
                daemon.handle(event)
        seen = [entry for entry in journal.read() if isinstance(entry, Seen)]
        assert [entry.event for entry in seen] == simulation.events
        lived = [(e.event.at_s, d) for e in seen for d in e.decisions or ()]
        assert lived == simulation.decisions
        assert replay(journal.read()).differing == []
    state = daemon.context.state
    if state.pools is not None and not state.off:
        assert state.pool_free == state.pools.number and not any(state.pool_gb_s)
    ledger = daemon.scheduler.ledger
    assert ledger.busy_j == simulation.ledger.busy_j
    for got_j, expected_j in (
        (ledger.off_j, simulation.ledger.off_j),
        (ledger.boot_j, simulation.ledger.boot_j),
    ):
        assert got_j == pytest.approx(expected_j)
    daemon.scheduler.energy.check(clock[0])
    return simulation.decisions
