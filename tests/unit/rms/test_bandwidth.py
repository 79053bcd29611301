"""Memory bandwidth out of copies and probes that ran side by side: by the model they follow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rms.core.model.contention import Pools, Processors, SharedNode
from rms.formats import profiles
from rms.formats.profiles import Bandwidth, Machine, Point, Profile, Program
from rms.studies import bandwidth
from rms.studies.bandwidth import Round, cases, estimate
from rms.studies.profile import lines_of


def rounds_of(
    node_gb_s: float, probe_gb_s: float, process_gb_s: float, cores: int, noise: Sequence[float]
) -> list[Round]:
    """Return rounds as the contention model has them, each time and rate off by some noise."""
    pools = Pools([SharedNode(node_gb_s, (Processors(cores),))])
    draw = random.Random(1)
    rounds: list[Round] = []
    for off in noise:
        found = {}
        for copies, probes in cases(cores):
            asked = copies * process_gb_s + probes * probe_gb_s
            slow = pools.slowdowns(0, [asked])[0] * (1.0 + draw.gauss(0.0, off))
            found[copies, probes] = (
                10.0 * slow * bool(copies),
                probe_gb_s / slow * bool(probes),
                1.0,
            )
        rounds.append(found)
    return rounds


EXACT = (0.0,) * 5


@given(
    node=st.floats(10.0, 500.0),
    probe=st.floats(0.05, 1.0),
    process=st.floats(0.0, 1.0),
    cores=st.integers(1, 64),
)
@example(297.18023659023345, 0.5156797345091654, 0.9485580880261031, 57)  # the bound rounds down
def test_what_a_process_asks_for_is_found_where_contention_shows(
    node: float, probe: float, process: float, cores: int
) -> None:
    """Else a bound that it keeps; a process asks for no more than a probe does."""
    probe_gb_s, process_gb_s = probe * node, process * probe * node
    found = estimate(rounds_of(node, probe_gb_s, process_gb_s, cores, EXACT))
    if found.process_at_most:
        assert process_gb_s <= found.process_gb_s + 1e-9 * node
        assert found.process_gb_s <= probe_gb_s + 1e-9 * node
    else:
        assert found.process_gb_s == pytest.approx(process_gb_s, rel=1e-6)
    if cores * probe > 1.05:
        assert found.node_gb_s == pytest.approx(node) and not found.node_at_least
    elif cores * probe < 1.0:
        assert found.node_gb_s == pytest.approx(cores * probe_gb_s) and found.node_at_least
    if cores * probe > 1.05 and cores * process * probe > 1.05:
        assert not found.process_at_most


def test_a_bandwidth_bound_copy_and_a_compute_bound_one_are_within_their_errors() -> None:
    """With noise of 2 % a run, 18 times in 20 at least within twice the standard error."""
    hits = 0
    for number in range(20):
        noise = (0.02 + number * 1e-9,) * 5
        bound = estimate(rounds_of(60.0, 20.0, 18.0, 16, noise))
        assert not bound.process_at_most
        hits += abs(bound.process_gb_s - 18.0) <= 2 * bound.process_error_gb_s + 0.02 * 18.0
        none = estimate(rounds_of(60.0, 20.0, 0.0, 16, noise))
        assert none.process_at_most and none.process_gb_s < 3.0
    assert hits >= 18


def test_two_cores_that_do_not_slow_one_another_tell_a_bound_only() -> None:
    found = estimate(rounds_of(60.0, 20.0, 18.0, 2, EXACT))
    assert found.process_at_most and found.process_gb_s == pytest.approx(20.0)
    assert found.node_at_least and found.node_gb_s == pytest.approx(40.0)
    assert any("no contention can be seen" in note for note in found.notes)
    assert "at most 20 GB/s" in said(found) and "at least 40 +- 0 GB/s" in said(found)


def test_what_slows_copies_alone_is_no_bandwidth() -> None:
    """Threads of one core, say: two copies take twice as long, a probe beside one does not."""
    rounds = [{**each, (2, 0): (20.0, 0.0, 1.0)} for each in rounds_of(30.0, 20.0, 1.0, 2, EXACT)]
    found = estimate(rounds)
    assert found.process_at_most and found.process_gb_s == pytest.approx(10.0)
    assert any("caches or cores are shared" in note for note in found.notes)


def test_cores_that_others_use_are_said() -> None:
    rounds = rounds_of(60.0, 20.0, 18.0, 2, EXACT)
    busy = [{case: (*ran[:2], 0.5) for case, ran in each.items()} for each in rounds]
    assert "probes had 50 % of theirs" in " ".join(estimate(busy).notes)
    assert "probes had" not in " ".join(estimate(rounds).notes)


def said(found: Bandwidth) -> str:
    return "\n".join(lines_of(profile_with(found), 1.1))


def profile_with(found: Bandwidth | None) -> Profile:
    point = Point(1, "separate", (10.0,), (100.0,), "model")
    program = Program(("prog",), "f" * 64)
    plain = Profile("prog", program, Machine("a processor", 8), (point,), measured="2026-01-01")
    return profiles.with_bandwidth(plain, found)


def test_it_is_kept_in_the_profile_and_by_a_measurement_without_it(tmp_path: Path) -> None:
    found = estimate(rounds_of(60.0, 20.0, 18.0, 16, EXACT))
    kept = profile_with(found)
    assert kept.memory_bandwidth_gb_s == pytest.approx(18.0)
    assert kept.node_bandwidth_gb_s == pytest.approx(60.0)
    profiles.write(tmp_path / "p.json", kept)
    assert profiles.read(tmp_path / "p.json") == kept
    assert profiles.merged(kept, profile_with(None)).bandwidth == found
    assert "a process asks for 18 +- " in said(found)
    only_bound = estimate(rounds_of(60.0, 20.0, 18.0, 2, EXACT))
    assert profiles.merged(kept, profile_with(only_bound)).memory_bandwidth_gb_s is None


# --- the probe -----------------------------------------------------------------------------------


def test_a_probes_rate_is_that_of_its_processor_time() -> None:
    lines = "1.0 0.5 1000000000\n2.0 1.0 2000000000\n3.0 1.5 4000000000\n4.0 2.0 90"
    assert bandwidth.rate(lines, 1.0, 3.5) == pytest.approx((3.0, 0.5))
    assert bandwidth.rate(lines, 2.5, 9.0) is None


def test_caches_of_the_last_level_are_counted_once(tmp_path: Path) -> None:
    for cpu, (level, size, shared) in enumerate(
        [(3, "32768K", "0-1"), (3, "32768K", "0-1"), (3, "32M", "2-3"), (2, "2M", "3")]
    ):
        cache = tmp_path / f"cpu{cpu}" / "cache" / "index0"
        cache.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (cache / name).write_text(f"{text}\n")
    assert bandwidth.last_level_mib(tmp_path) == 64.0
    assert bandwidth.last_level_mib(tmp_path / "nothing") == 0.0
