"""``dmr run``: hosts, the place of ranks on them, and the size of the next world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.memory.keeper import Place
from dmr.memory.steps import Steps, StepsFile, forget, steps_of
from dmr.memory.supervise import Hosts, Settings, parse_hosts, placed


def test_hosts_are_names_with_or_without_room() -> None:
    assert parse_hosts("a,b:3") == (("a", 0), ("b", 3))
    for wrong in ("", "a,", "a:x", "a:0", "-o:1", "a b", "a=b", "a:1:2"):
        with pytest.raises(ValueError, match=r"expected --hosts HOST\[:RANKS\]"):
            parse_hosts(wrong)
    with pytest.raises(ValueError, match="each host once in --hosts, got a twice"):
        parse_hosts("a:1,b,a")


@pytest.mark.parametrize(
    ("ranks", "hosts", "names"),
    [
        (4, [("a", 0), ("b", 0)], "aabb"),
        (5, [("a", 0), ("b", 0)], "aaabb"),
        (1, [("a", 0), ("b", 0)], "a"),
        (4, [("a", 1), ("b", 3)], "abbb"),
        (5, [("a", 1), ("b", 2)], "aabbb"),
        (4, [("a", 1), ("b", 0)], "abb" + "a"),
    ],
)
def test_ranks_are_placed_in_blocks(ranks: int, hosts: Any, names: str) -> None:
    assert placed(ranks, hosts) == sorted(names)


@given(st.integers(1, 20), st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_every_rank_has_a_host_and_none_more_than_its_room(ranks: int, room: list[int]) -> None:
    hosts = [(f"h{at}", count) for at, count in enumerate(room)]
    names = placed(ranks, hosts)
    assert len(names) == ranks and names == sorted(names)
    if all(room) and sum(room) >= ranks:
        assert all(names.count(name) <= count for name, count in hosts)
    if not any(room):
        assert max(map(names.count, names)) <= -(-ranks // len(hosts))


@pytest.mark.parametrize(
    ("text", "lost", "ranks", "room"),
    [
        ("", 0, 3, 3),
        ("a,b,c", 0, 4, 4),
        ("a,b,c", 1, 6, 4),
        ("a,b,c", 1, 4, 4),
        ("a,b,c", 2, 4, 2),
        ("a:4,b:2", 1, 6, 2),
        ("a:4,b:2", 0, 9, 6),
    ],
)
def test_the_hosts_left_have_room_for_some_ranks(
    text: str, lost: int, ranks: int, room: int
) -> None:
    settings = Settings(ranks, ("x",), "mpiexec", parse_hosts(text) if text else ())
    hosts = Hosts(settings, {})
    names = [name for name, _ in settings.hosts] or ["127.0.0.1"]
    hosts._watches = {name: Place(name, "", Path()) for name in names[lost:]}  # type: ignore[misc]
    assert hosts.room(ranks) == room


def test_a_spare_takes_the_place_of_a_lost_host() -> None:
    settings = Settings(4, ("x",), "mpiexec", parse_hosts("a,b,c,d"), spares=parse_hosts("e:2,f"))
    hosts: Any = Hosts(settings, {})
    hosts._watches = {name: Place(name, "", Path()) for name in "abcd"}
    hosts._spares = {name: Place(name, "", Path()) for name in "ef"}
    assert hosts.room(4) == hosts.room(4, spares=True) == 4
    del hosts._watches["b"]
    hosts._slots[1] = None
    assert (hosts.room(4), hosts.room(4, spares=True)) == (3, 5)
    hosts.fill()
    assert [*hosts._watches] == ["a", "e", "c", "d"] and [*hosts._spares] == ["f"]
    assert hosts.room(4) == hosts.room(4, spares=True) == 5


def test_the_steps_of_a_world_are_those_of_its_farthest_rank(tmp_path: Path) -> None:
    now = [10.0]
    one = StepsFile(tmp_path, 3, lambda: now[0])
    assert steps_of(tmp_path, 3) is None
    one.begins(7)
    now[0] = 12.0
    assert steps_of(tmp_path, 3, lambda: now[0]) == Steps(7, 2.0, None)
    one.begins(7)  # the same step once more, as after a rollback
    one.begins(8)
    now[0] = 13.0
    one.begins(9)
    assert steps_of(tmp_path, 3, lambda: now[0]) == Steps(9, 3.0, 1.0)
    assert steps_of(tmp_path, 2) is None
    forget(tmp_path, 3)
    assert steps_of(tmp_path, 3) is not None
    forget(tmp_path, 4)
    assert not list(tmp_path.iterdir())
