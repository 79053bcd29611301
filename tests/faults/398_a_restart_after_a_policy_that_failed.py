"""A restart decided otherwise after a user's policy had failed.

The policy in its place decided on that event with state that the failed one had left; a replay,
which takes the recorded decisions, did not have it. Found by ``scripts/simulate-faults``.
"""

from __future__ import annotations

import random

import pytest

from rms.core.model.cluster import Cluster
from rms.core.model.events import Ended, Event, ResizePoint, Start, Started, Submitted
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.core.policies import Policy, named
from rms.core.scheduler.scheduler import Scheduler
from rms.core.state import State
from rms.daemon.restart.recover import replay
from rms.daemon.store.journal import Entry, Opened, PolicySet, Seen
from rms.daemon.store.sandbox import stand_ins

NAMES, POWER = ("n1", "n2", "n3", "n4"), (NodePower(5.0, 10.0),) * 4
FAILS_AT = 3


def order(state: State) -> object:
    """Return the queue, and fail once it is long."""
    if len(state.pending) >= FAILS_AT:
        raise ZeroDivisionError
    return state.pending.values()


def users() -> Policy:
    return named(
        f'{{"order": {{"part": "{__name__}:order"}}, "admission": {{"part": "in-order"}}}}'
    )


@pytest.mark.parametrize("seed", [60, 72, 91, 124])
def test_a_replay_decides_the_same(seed: int) -> None:
    rng, now_s, number, entries = random.Random(seed), 1000.0, 0, list[Entry]()
    cluster = Cluster(NAMES, tuple((f"cpu:{n}",) for n in range(4)), POWER)
    scheduler = Scheduler(cluster, users())
    scheduler.stand_ins = stand_ins(cluster)
    entries.append(Opened(NAMES, users().key, POWER))

    def feed(event: Event) -> None:
        decisions = scheduler.feed(event)
        entries.append(Seen(len(entries), event, tuple(decisions)))
        if scheduler.failure:
            policy = scheduler.engine.policy.key
            entries.append(PolicySet(event.at_s, policy, scheduler.failure))
        for decision in decisions:
            if isinstance(decision, Start):
                feed(Started(event.at_s, decision.job))

    for _ in range(120):
        now_s += rng.choice((0.0, 1.0, 20.0, 90.0))
        running = list(scheduler.engine.state.running)
        what = rng.random()
        if what < 0.55 or not running:
            number += 1
            most = rng.randint(1, 4)
            mode = rng.choice((Mode.FIXED, Mode.MOLDABLE, Mode.FLEXIBLE))
            sizes = (most, most, most) if mode is Mode.FIXED else (rng.randint(1, most), most, most)
            limit_s = rng.choice((None, 60.0, 3600.0))
            spec = JobSpec(JobId(f"{number}"), now_s, *sizes, mode, limit_s=limit_s)
            feed(Submitted(now_s, (spec,)))
        elif what < 0.7:
            feed(ResizePoint(now_s, rng.choice(running)))
        else:
            feed(Ended(now_s, rng.choice(running), "COMPLETED"))
    replaced = [entry for entry in entries if isinstance(entry, PolicySet)]
    assert [entry.policy for entry in replaced] == [stand_ins(cluster)[0].key]
    result = replay(entries)
    assert not result.differing and not result.refused and not result.missing
