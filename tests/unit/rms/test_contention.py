"""Bandwidth that processes share: the worked example, work as the integral of rates, bad input."""

from __future__ import annotations

from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.core.model.contention import Pools, Processors, SharedNode, parts
from rms.core.model.speedup import dynamic_power
from rms.sim.contended import Contention, Part

LEVELS = ((0.9, 0.7), (2.0, 0.8), (4.0, 1.0))
GPU = (Processors(6), Processors(32, 3.0, 4.0))
PLAIN = (Processors(10),)


def ends(contention: Contention) -> dict[str, float]:
    """Let everything end; return when each job did."""
    found = {}
    while (at_s := contention.next_s) < inf:
        job = contention.finish()
        if job is not None:
            found[job] = at_s
    return found


def test_worked_example_of_section_3c() -> None:
    """Eight processes on the GPU ask for 10.7 GB/s of 4; two beside it wait for nothing."""
    pools = Pools([SharedNode(18.0, GPU)])
    plain, gpu = pools.slowdowns(0, [2 * 4.0, 8 * 4.0 / 3.0])
    assert plain == 1.0
    assert gpu == pytest.approx(32.0 / 3.0 / 4.0)  # 10/4 with the paper's rounding
    contention = Contention(pools)
    contention.start("1", [Part(0, 2, 100.0, 4.0), Part(1, 8, 100.0, 4.0)], 0.0)
    assert ends(contention) == {"1": pytest.approx(3 * 100.0 * gpu)}


def test_a_socket_of_a_ninth_as_the_text_has_it() -> None:
    """18 GB/s over 9 is 2, not the 4 that the example counts with."""
    node = SharedNode(18.0, (Processors(6), Processors(32, 3.0, 18.0 / 9.0)))
    plain, gpu = Pools([node]).slowdowns(0, [8.0, 32.0 / 3.0])
    assert plain == 1.0 and gpu == pytest.approx(16.0 / 3.0)


def test_whole_demand_as_time_added() -> None:
    node = SharedNode(10.0, PLAIN, whole_demand=True)
    assert Pools([node]).slowdowns(0, [10.0]) == [1.0]
    assert Pools([node]).slowdowns(0, [20.0]) == [3.0]


def test_half_the_frequency_asks_for_half_and_takes_twice() -> None:
    contention = Contention(Pools([SharedNode(10.0, PLAIN)]))
    power = dynamic_power(LEVELS, 0.5)
    contention.start("1", [Part(0, 2, 100.0, 10.0, 0.5, power)], 0.0)
    assert ends(contention) == {"1": 200.0}
    assert contention.energy == pytest.approx(2 * 200.0 * 0.8**2 * 0.5)


def test_slots_are_counted_by_pool_and_frequency() -> None:
    pools = Pools([SharedNode(64.0, GPU), SharedNode(64.0, PLAIN)])
    assert [slots.start for slots in pools.slots] == [0, 6, 38]
    assert pools.by_speed == [0, 2, 1]
    assert parts(pools, (5, 6, 7, 38), ()) == {(0, 1.0): 1, (1, 1.0): 2, (2, 1.0): 1}
    assert parts(pools, (5, 6, 7), (0.5, 1.0, 1.0)) == {(0, 0.5): 1, (1, 1.0): 2}


JOBS = st.lists(
    st.tuples(
        st.floats(0.0, 50.0),  # when it comes
        st.floats(1.0, 100.0),  # work, s
        st.sampled_from([1.0, 2.0, 8.0, 16.0, 64.0]),  # GB/s
        st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),  # processes by pool
        st.sampled_from([0.225, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(JOBS)
def test_work_is_the_integral_of_the_rate(
    jobs: list[tuple[float, float, float, list[int], float]],
) -> None:
    """A second reckoning, with every process on its own and rates worked out at every change."""
    pools = Pools([SharedNode(20.0, GPU), SharedNode(20.0, PLAIN)])
    contention, found = Contention(pools), {}
    running: dict[tuple[str, int], list[float]] = {}  # work left, asked, speed
    slow, now = {}, 0.0

    def integrate(until_s: float) -> None:
        nonlocal now
        demands = [sum(v[1] for k, v in running.items() if k[1] == pool) for pool in range(3)]
        rates = [*pools.slowdowns(0, demands[:2]), *pools.slowdowns(1, demands[2:])]
        for (_, pool), values in running.items():
            values[0] -= (until_s - now) * values[2] / rates[pool]
        now = until_s

    def end_until(until_s: float) -> None:
        while (at_s := contention.next_s) <= until_s and at_s < inf:
            integrate(at_s)
            over = contention.finish()
            done = min(running, key=lambda key: running[key][0])
            assert abs(running.pop(done)[0]) < 1e-6  # nobody ends before or after its work is done
            if over is not None:
                found[over] = at_s
        if until_s < inf:
            integrate(until_s)

    for number, (at_s, work_s, gb_s, counts, share) in enumerate(sorted(jobs)):
        end_until(at_s)
        own = [Part(p, n, work_s, gb_s, share) for p, n in enumerate(counts) if n]
        for part in own:
            speed = share / pools.factor[part.pool]
            running[str(number), part.pool] = [work_s, part.processes * gb_s * speed, speed]
        slow[str(number)] = at_s + max(work_s * pools.factor[part.pool] / share for part in own)
        contention.start(str(number), own, at_s)
    end_until(inf)
    assert not running and set(found) == set(slow)
    for job, alone_s in slow.items():  # bandwidth costs time and never saves any
        assert found[job] >= alone_s or isclose(found[job], alone_s, rel_tol=1e-9)
