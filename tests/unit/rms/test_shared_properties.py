"""Whatever happens in whatever order on hosts that jobs share, with frequencies and moves."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import structs
from test_engine_properties import Cluster, powers, specs_of

from rms.core.books.ledger import Ledger
from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import Reopened, Submitted
from rms.core.model.jobs import JobId, Site
from rms.core.model.speedup import OperatingPoint
from rms.core.policies import adjusted, named
from rms.core.scheduler.engine import Engine

MEMORY = (OperatingPoint(1.0, 1.25, 0.4), OperatingPoint(2.0, 1.0, 1.0))
OFF = {"part": "off-when-idle"}


def policies() -> list[str]:
    """Placements on shared slots, of fixed and of resized jobs, that set frequencies or not."""
    return [
        adjusted(named(name), placement=placement, node_power=power, frequency=frequency).key
        for name in ("easy", "backfill-share")
        for frequency in ({"part": "nominal"}, {"part": "optimal-operating-point"})
        for placement, power in (
            ({"part": "consolidate", "narrow": name == "easy"}, OFF),
            ({"part": "first-fit-shared"}, OFF | {"ahead": True, "delay_s": 2.0, "at_most": 2}),
            ({"part": "less-consume"}, {"part": "always-on"}),
        )
    ]


def site(hosts: int = 3) -> Site:
    nodes = tuple(SharedNode(inf, (Processors(2 + n % 2),)) for n in range(hosts))
    slots = sum(2 + n % 2 for n in range(hosts))
    return Site(slots, powers(hosts), shared=nodes, levels=((1.0, 0.5), (2.0, 1.0)))


class Shared(Cluster):
    """Seven slots of three hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(site().power, site().host, site().levels)

    def fresh(self) -> Engine:
        return Engine(site(), named(policies()[0]))

    @rule(data=st.data(), count=st.integers(1, 4))
    def submit(self, data: st.DataObject, count: int) -> None:
        at_s = self.now(data)
        self.number += count
        specs = [data.draw(specs_of(n, at_s)) for n in range(self.number - count, self.number)]
        points = data.draw(st.sampled_from([(), MEMORY]))
        self.happen(
            Submitted(at_s, tuple(structs.replace(s, operating_points=points) for s in specs))
        )

    @rule(name=st.sampled_from(policies()))
    def swap(self, name: str) -> None:
        self.engine.policy = named(name)
        self.events.append((self.engine.policy.key, None))

    @rule(data=st.data(), nodes=st.integers(1, 4))
    def reopen(self, data: st.DataObject, nodes: int) -> None:
        state, at_s, there = self.engine.state, self.now(data), site(nodes)
        self.ledger.follow(state)
        failed = tuple(JobId(job) for job in sorted(state.running) if data.draw(st.booleans()))
        down = state.host_slots[0] if data.draw(st.booleans()) else ()
        self.ledger.reopen(state, there, at_s)
        names = tuple(f"n{n}" for n in range(there.nodes))
        self.happen(
            Reopened(at_s, "x", names, there.power, (), down, failed, there.shared, there.levels)
        )
        assert all(job.least <= there.nodes for job in state.pending.values())

    @invariant()
    def hosts_are_whole(self) -> None:
        """A host is off, booting or down as a whole; its frequency is the highest asked for."""
        state = self.engine.state
        for slots in state.host_slots:
            for kind in (state.off, state.booting.keys(), state.down):
                assert len(kind & set(slots)) in (0, len(slots))
        free = [0] * len(state.pool_free)
        assert state.pools is not None
        for node, vacant in enumerate(state.vacant):
            free[state.pools.of_slot[node]] += vacant
        assert state.pool_free == free
        asked: dict[int, float] = {}
        for job in state.running.values():
            for node, share in zip(
                job.nodes, job.requested_frequencies or (1.0,) * job.size, strict=True
            ):
                at = state.site.host[node]
                asked[at] = max(asked.get(at, 0.0), share)
        for job in state.running.values():
            shares = tuple(asked[state.site.host[node]] for node in job.nodes)
            assert (job.frequencies or (1.0,) * job.size) == shares
            slow = job.spec.operating_points and min(shares) == 0.5
            assert job.stretch == (1.25 if slow else 1.0)


del Cluster
TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=20, stateful_step_count=30)
