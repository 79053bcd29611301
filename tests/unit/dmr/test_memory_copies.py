"""Copies in memory: any ranks to any ranks, torn pieces, lost hosts, too little memory."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from decompositions import arrays, everything, halos
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keepers import TERMS, Fields, HostHere, hosts, ranks_of, restored
from processes import until
from stand_in import DeviceModule

import dmr
from dmr.memory import piece as pieces
from dmr.memory.copies import own_place
from dmr.memory.keeper import (
    PREFIX,
    RECEIVED,
    Done,
    Keeper,
    KeeperError,
    KeeperGoneError,
    Pace,
    Place,
    Put,
    _send,
    base_folder,
    listed,
    make_folder,
    places_of,
    sweep,
)
from dmr.memory.piece import (
    HEAD_BYTES,
    BrokenPieceError,
    Generation,
    NoRoomError,
    Piece,
    PieceFile,
    new_memory,
    partner_shifts,
    read_description,
    whole,
)
from dmr.plan import check_rate, check_schedules
from dmr.world import World

SHAPE = (13, 5, 3)
WHOLE = np.random.default_rng(1).random(SHAPE)


def blocks(ranks: int, values: np.ndarray[Any, Any] = WHOLE, **options: Any) -> list[Fields]:
    """Return the fields of every rank: one that is cut, one that all have, a list."""
    cut = dmr.FieldSpec(SHAPE, "f8", lambda box: values[box.slices()], **options)
    every = dmr.FieldSpec((4,), "i8", lambda box: np.arange(4) * 3, split=())
    items = np.arange(23) * 7

    def owner(items: Any, cut: Any) -> Any:
        return items % cut.size

    many = dmr.ListSpec((9,), "i8", lambda box: items[:0], owner=owner)
    result: list[Fields] = []
    for rank in range(ranks):
        fields = {
            "cut": cut.block(cut.decompose((ranks, 1)), rank),
            "every": every.block(every.decompose((), ranks), rank),
            "many": many.block(many.decompose((ranks,)), rank),
        }
        result.append(fields)
    return result


def filled(ranks: int, **options: Any) -> list[Fields]:
    fields = blocks(ranks, **options)
    for rank, own in enumerate(fields):
        own["cut"].initialise()
        own["every"].initialise()
        own["many"].items = np.arange(23)[rank::ranks] * 7  # type: ignore[attr-defined]
    return fields


def check(fields: Sequence[Fields]) -> None:
    """Assert that all ranks have the values of :func:`filled`."""
    for rank, own in enumerate(fields):
        assert np.array_equal(own["cut"].interior, WHOLE[own["cut"].box.slices()])  # type: ignore[attr-defined]
        assert np.array_equal(own["every"].interior, np.arange(4) * 3)  # type: ignore[attr-defined]
        mine = [item for item in np.arange(23) * 7 if item % len(fields) == rank]
        assert sorted(own["many"].items.tolist()) == mine  # type: ignore[attr-defined]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[HostHere]]:
    with hosts(tmp_path, 2) as started:
        yield started


def places(started: Sequence[HostHere]) -> list[Place]:
    return [host.place for host in started]


# --- any ranks to any ranks ---------------------------------------------------------------------


@pytest.mark.parametrize("lost", [None, 0, 1])
@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 2), (4, 1), (3, 4)])
def test_every_cell_comes_back_also_without_a_host(
    two: list[HostHere], old: int, new: int, lost: int | None
) -> None:
    with ranks_of(places(two), filled(old)) as ranks:
        ranks.take(40)
        (line,) = ranks.notes
        assert line.startswith(
            "copies in memory: 0.0 MiB a rank and generation; 2 on its host, 2 at each"
        )
    left = places(two)
    if lost is not None:
        two[lost].die()
        del left[lost]
    fields = blocks(new)
    for one in restored(left, fields):
        assert one.progress is not None and one.progress.step == 40 and not one.lost
        assert one.generation == Generation(0, 40, 0, 0)
    check(fields)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_array_over_any_ranks(data: st.DataObject) -> None:
    """Chunks of 64 bytes: no box begins with one. The halo at the edge comes back, too."""
    shape, split = data.draw(arrays(5))
    halo = data.draw(halos(len(shape), 2))
    edge, dtype = (
        data.draw(st.booleans()),
        data.draw(st.sampled_from(["f8", "i2", "M8[s]", "u1,f4"])),
    )
    spec = dmr.FieldSpec(
        shape, dtype, lambda box: 0, halo, split=split, edge=edge, thinnest=1,
        order=tuple(data.draw(st.permutations(range(len(shape))))),
    )  # fmt: skip
    sides = []
    for _ in range(2):
        grid = tuple(data.draw(st.integers(1, min(3, shape[axis]))) for axis in split)
        cut = spec.decompose(grid)
        agreed = spec.agreed("a", cut, [spec.halos] * cut.size)
        sides.append([agreed.block(cut, rank) for rank in range(cut.size)])
    old, new = sides
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    wide = tuple(n + low + high for n, (low, high) in zip(shape, spec.halos, strict=True))
    values = random.integers(0, 200, (*wide, spec.block(cut, 0).dtype.itemsize), dtype=np.uint8)
    values[..., -1] = 0  # NaN compares with nothing
    values = values.reshape(*wide[:-1], -1).view(spec.block(cut, 0).dtype)
    for block in old:
        block.padded[...] = values[window(block)]
    usual, pieces.CHUNK_BYTES = pieces.CHUNK_BYTES, 64
    try:
        with tempfile.TemporaryDirectory() as base, hosts(Path(base), 2) as started:
            with ranks_of(places(started), [{"a": block} for block in old]) as ranks:
                ranks.take(3)
            started[data.draw(st.integers(0, 1))].die()
            for one in restored(places(started), [{"a": block} for block in new]):
                assert one.progress is not None
    finally:
        pieces.CHUNK_BYTES = usual
    for block in new:
        carried = block.carried()
        wanted = values[window(block)]
        slices = carried.memory_layout.interior_slices()
        assert np.array_equal(carried.padded[slices].tobytes(), wanted[slices].tobytes())
    assert everything(shape).size == sum(block.box.size for block in new)


def window(block: Any) -> tuple[slice, ...]:
    """Return where a block with its halo lies in an array with the halo of the domain."""
    return tuple(
        slice(a, b + low + high)
        for a, b, (low, high) in zip(block.box.start, block.box.stop, block.spec.halos, strict=True)
    )


def test_arrays_on_a_device_come_back(two: list[HostHere]) -> None:
    with ranks_of(places(two), filled(2, xp=DeviceModule())) as ranks:
        ranks.take(1)
    fields = blocks(3)
    restored(places(two), fields)
    check(fields)


def test_constant_fields_are_not_copied(two: list[HostHere]) -> None:
    spec = dmr.FieldSpec(SHAPE, "f8", lambda box: WHOLE[box.slices()], constant=True)
    fields = [{"c": spec.block(spec.decompose((1, 1)), 0)}]
    with ranks_of(places(two), fields) as ranks:
        ranks.take(1)
        assert ranks.copies[0].nbytes < 2000


# --- generations ----------------------------------------------------------------------------------


def test_the_newest_whole_generation_counts_and_older_ones_go(two: list[HostHere]) -> None:
    with ranks_of(places(two), filled(2)) as ranks:
        for step in (10, 20, 30):
            ranks.take(step)
        held = listed(places(two)).held
        steps = sorted((one.piece.rank, one.piece.generation.step) for one in held)
        both = [(0, 20), (0, 30), (1, 20), (1, 30)]
        assert steps == sorted(both + both), "a rank and its partner keep two"
        kept = until(lambda: listed(places(two)).kept)
        assert kept == Generation(0, 30, 0, 0)


@pytest.mark.parametrize("at", [0, -20, None])
def test_a_torn_piece_is_none_and_the_generation_before_counts(
    two: list[HostHere], at: int | None
) -> None:
    """In the head, in the description, or cut short: rank 1's own and that at the partner."""
    with ranks_of(places(two), filled(2)) as ranks:
        ranks.take(10)
        ranks.take(20)
    newest = [one for one in listed(places(two)).held if one.piece.generation.step == 20]
    for one in newest:
        if one.piece.rank == 1:
            path = one.place.folder / one.name
            end = read_description(path)[1]
            with path.open("r+b") as file:
                if at is None:
                    file.truncate(200)
                else:
                    file.seek(at % end)
                    file.write(b"\xff" * 8)
    left = [one for one in listed(places(two)).held if one.piece.generation.step == 20]
    assert len(newest) == 4 and {one.piece.rank for one in left} == {0}
    fields = blocks(3)
    for result in restored(places(two), fields):
        assert result.progress is not None and result.progress.step == 10
    check(fields)


def test_a_changed_byte_is_seen_and_the_other_copy_read(two: list[HostHere]) -> None:
    with ranks_of(places(two), filled(2)) as ranks:
        ranks.take(10)
        for number, host in enumerate(two):  # of both hosts' own pieces
            for path in host.place.folder.glob(f"{number}-*"):
                if path.stat().st_size > HEAD_BYTES:
                    with path.open("r+b") as file:
                        file.seek(HEAD_BYTES + 8)
                        file.write(b"\x55\xaa")
        fields = blocks(2)
        assert all(one.progress is not None for one in restored(places(two), fields))
        check(fields)


def test_both_copies_gone_is_reported(tmp_path: Path) -> None:
    with hosts(tmp_path, 3) as three:
        with ranks_of(places(three), filled(3)) as ranks:
            ranks.take(10)
            until(lambda: listed(places(three)).kept)
        three[0].die()
        three[1].die()  # the partner of the first
        (one,) = restored(places(three), blocks(1))
        assert one.progress is None and one.generation is None and one.lost
        assert one.silent == "the keeper of b has ended"
        (one,) = restored(places(three)[2:], blocks(1))  # the supervisor has noticed
        assert one.lost and not one.silent


def test_a_run_without_a_complete_copy_is_not_lost(two: list[HostHere]) -> None:
    (one,) = restored(places(two), blocks(1))
    assert one.progress is None and not one.lost


def test_a_generation_that_a_world_starts_from_is_the_only_one_left(two: list[HostHere]) -> None:
    with ranks_of(places(two), filled(2)) as ranks:
        ranks.take(10)
        ranks.take(20)
        with Keeper(two[0].place) as keeper:
            keeper.keep(Generation(0, 10, 0, 0), only=True)
            entries = keeper.list().entries
        assert {entry.piece.generation.step for entry in entries} == {10}


def test_other_fields_or_options_are_refused(two: list[HostHere]) -> None:
    with ranks_of(places(two), filled(1)) as ranks:
        ranks.take(10)
    fewer = {name: part for name, part in blocks(1)[0].items() if name != "many"}
    with pytest.raises(dmr.UsageError, match="copies in memory: expected field many of"):
        restored(places(two), [fewer])
    with pytest.raises(dmr.UsageError, match="copies in memory: expected k 2, got a checkpoint"):
        restored(places(two), blocks(1), {"k": 2})


def test_whole_needs_every_rank() -> None:
    old, new = Generation(0, 5, 0, 0), Generation(0, 7, 0, 1)
    made = [Piece(new, 1, 2, {}), *(Piece(old, rank, 3, {}) for rank in (2, 0, 1, 1))]
    assert whole(made) == [old]
    assert whole([*made, Piece(new, 0, 2, {})]) == [new, old]


# --- memory -------------------------------------------------------------------------------------


def test_too_little_memory_is_reported_once_and_the_run_goes_on(
    two: list[HostHere], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "room", lambda folder: 100)
    with ranks_of(places(two), filled(2)) as ranks:
        ranks.take(10)
        (line,) = ranks.notes
        assert line.startswith("note: no copies in memory: expected room for 0.0 MiB a rank")
        assert not any(one.is_due(1000) or one.agreed(1, 0, 0) for one in ranks.copies)
    assert not list(two[0].place.folder.glob("*")), "what was begun is removed"


def test_too_little_memory_at_the_partner(two: list[HostHere], monkeypatch: Any) -> None:
    usual = pieces.room
    other = two[1].place.folder
    monkeypatch.setattr(pieces, "room", lambda folder: 100 if folder == other else usual(folder))
    with ranks_of(places(two), filled(1)) as ranks:
        ranks.take(10)
        assert len(ranks.notes) == 1 and "no copies in memory" in ranks.notes[0]


def test_memory_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "a.piece"
    file = PieceFile(path, new_memory(path))
    first = file.reserve(5000)
    first[4000] = 7
    assert file.reserve(4096)[4000] == 7
    larger = file.reserve(3 * 2**20)
    assert larger[4000] == 7 and len(larger) >= 3 * 2**20
    with pytest.raises(NoRoomError, match="MiB of free memory on a host, got"):
        file.reserve(2**60)
    file.close(unlink=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BrokenPieceError, match="closed"):
        file.seal(100, b"")


def test_a_partner_uses_memory_again(two: list[HostHere]) -> None:
    def files() -> set[int]:
        return {path.stat().st_ino for path in two[1].place.folder.iterdir()}

    with ranks_of(places(two), filled(1)) as ranks:
        ranks.take(10)
        ranks.take(20)
        before = files()
        ranks.take(30)
        ranks.take(40)
        assert files() == before and len(before) == 2
    for result in restored(places(two)[1:], blocks(1)):
        assert result.progress is not None and result.progress.step == 40


@pytest.mark.parametrize("alive", [False, True])
def test_a_new_world_uses_the_memory_of_the_dead_one(two: list[HostHere], alive: bool) -> None:
    """Not while a rank of the dead world still has its connection, and may still write."""

    host, rank = two[0], filled(1)
    with ranks_of(places(two), rank) as ranks:
        ranks.take(10)
        ranks.take(20)
        before = {path.stat().st_ino: path.name for path in host.place.folder.iterdir()}
    with contextlib.ExitStack() as stack:
        for life in (0, 1) if alive else (1,):
            channel = Keeper(host.place)
            thread = threading.Thread(target=channel.hold, args=(life,))
            thread.start()
            stack.callback(channel.close)
            stack.callback(thread.join)
            stack.callback(channel.shut)
        until(lambda: len(host.server._ranks) == 1 + alive)
        with Keeper(host.place) as keeper:
            keeper.keep(Generation(0, 20, 0, 0), only=True)
            for name in ("0-1-0-0-0.piece", "0-1-0-0-1.piece"):
                keeper.make(name)
            first, second = (host.place.folder / f"0-1-0-0-{turn}.piece" for turn in range(2))
            assert (first.stat().st_ino in before) is not alive
            assert second.stat().st_ino not in before, "the other generation is in use"
            names = [entry.name for entry in keeper.list().entries]
            assert names == ["0-0-0-0-1.piece"], "what was there is no piece any more"


def test_a_killed_keeper_leaves_no_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dmr.memory.keeper", "127.0.0.1", "--silent", "30"]
    with subprocess.Popen(
        [*command, "--base", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            (place,) = places_of(process.stdout.readline())
            with Keeper(place) as keeper:
                keeper.make("0-0-0-0-0.piece")
                keeper.put("1-0-0-0-0.piece", memoryview(bytes(1000)), b"{}")
            assert len(list(place.folder.glob("*.piece"))) == 2
        finally:
            process.kill()
    left = list(place.folder.iterdir())
    assert len(left) == 2 and all(path.is_symlink() and not path.exists() for path in left)
    assert sweep(tmp_path) == [place.folder]


def test_a_piece_that_is_sent_again_replaces_the_torn_one(two: list[HostHere]) -> None:
    """The first connection ends in the middle of a piece, after a whole one of that name."""
    place, data = two[1].place, memoryview(bytes(1000))
    description = msgspec.json.encode(Piece(Generation(0, 1, 0, 0), 0, 1, {}))
    name = "0-0-0-0-0.piece"
    with Keeper(place) as keeper:
        keeper.put(name, data, description)
        _send(keeper._channel, Put(name, len(data), description))
        keeper._answer(Done, 5.0)
        keeper._channel.write(data[:100])
        assert not keeper_names(place)
        with Keeper(place) as other:
            other.put(name, data, description)
    until(lambda: not list(place.folder.glob("*.part")))
    assert keeper_names(place) == [RECEIVED + name]


def keeper_names(place: Place) -> list[str]:
    return [one.name for one in listed([place]).held]


def test_what_is_sent_is_spread_over_time() -> None:
    """At 100 bytes per second; time that nothing was sent in is not made up for."""
    now, slept = [5.0], list[float]()

    def sleep(wait_s: float) -> None:
        slept.append(wait_s)
        now[0] += wait_s

    pace = Pace(100.0, lambda: now[0], sleep)
    for nbytes in (50, 200, 100):
        pace.wait(nbytes)
    assert slept == [0.5, 2.0] and now == [7.5]
    now[0] = 60.0
    pace.wait(100)
    now[0] += 0.75
    pace.wait(100)
    assert slept == [0.5, 2.0, 0.25]
    endless = Pace(math.inf, lambda: now[0], sleep)
    endless.wait(2**40)
    endless.wait(2**40)
    assert len(slept) == 3


def test_a_copy_is_sent_at_the_rate_of_the_plan(
    two: list[HostHere], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[float, int]] = []
    monkeypatch.setattr(Pace, "wait", lambda self, nbytes: sent.append((self.bytes_s, nbytes)))
    monkeypatch.setattr("dmr.memory.keeper.SEND_BYTES", 100)
    with ranks_of(places(two), filled(1), terms=replace(TERMS, partner_bytes_s=5e8)) as ranks:
        ranks.take(10)
    assert {rate for rate, _ in sent} == {5e8} and max(count for _, count in sent) == 100
    assert sum(count for _, count in sent) > WHOLE.nbytes


def test_a_copy_of_a_world_that_has_ended_is_not_sent_on(
    two: list[HostHere], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, ended = threading.Event(), threading.Event()
    sent: list[int] = []

    def wait(self: Pace, nbytes: int) -> None:
        sent.append(nbytes)
        waits.set()
        assert ended.wait(10)

    monkeypatch.setattr(Pace, "wait", wait)
    monkeypatch.setattr("dmr.memory.keeper.SEND_BYTES", 100)
    fields = filled(1)
    with ranks_of(places(two), fields) as ranks:
        ranks.take(10, waits=False)
        assert waits.wait(10)
        (one,) = ranks.copies
        one.enter(cast(World, one._world), 1, fields[0])
        ended.set()
        until(lambda: not one.state[0], deadline_s=30)
        assert sent == [100] and not one.state[1]
        until(lambda: not list(two[1].place.folder.glob("*.part")), deadline_s=30)
        ranks.take(20)
        assert ranks.notes[0].startswith("copies in memory")


@pytest.mark.parametrize("rate", ["0", "0.0009", "inf", "nan", "fast"])
def test_a_wrong_rate_is_refused(rate: str) -> None:
    with pytest.raises(dmr.UsageError, match=r"a rate of copies of at least 0\.001 GB/s, got"):
        check_rate(rate)
    assert check_rate("0.5") == check_rate(0.5) == 0.5


def test_a_partner_that_is_gone_leaves_the_generation_before(two: list[HostHere]) -> None:
    with ranks_of(places(two), filled(2)) as ranks:
        ranks.take(10)
        two[1].die()
        ranks.take(20)
        assert any("a copy in memory is not complete" in line for line in ranks.notes)
        ranks.take(30)  # into the file of 20: 10 is the newest that all have
        steps = {
            one.piece.generation.step for one in listed(places(two)).held if not one.piece.rank
        }
        assert steps == {10, 30}


# --- keepers --------------------------------------------------------------------------------------


def test_partners_are_half_a_ring_ahead_and_never_the_same_host() -> None:
    assert [list(partner_shifts(count, 1)) for count in range(5)] == [[], [], [1], [1], [2]]
    assert list(partner_shifts(4, 2)) == [2, 3] and len(partner_shifts(3, 9)) == 2


def test_a_rank_has_the_keeper_of_its_name_else_of_its_folder(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    both = [Place("a", "a:1:t", away), Place("b", "b:1:t", here), Place("c", "c:1:t", here)]
    assert places_of(" ".join(map(str, both))) == both
    assert [own_place(both, name) for name in ("a", "b", "c", "x")] == [1, 1, 2, 1]
    assert own_place(both[:1], "a") is None
    with pytest.raises(ValueError, match="expected HOST=ADDRESS=FOLDER of a keeper, got 'a=b'"):
        places_of("a=b")


def test_folders_of_killed_keepers_are_removed(tmp_path: Path) -> None:
    living, handle = make_folder(tmp_path)
    left = tmp_path / f"{PREFIX}0"
    left.mkdir()
    (left / "0-0-0-0-0.piece").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    assert sweep(tmp_path) == [left]
    assert sorted(tmp_path.iterdir()) == sorted([living, tmp_path / "other"])
    os.close(handle)
    assert sweep(tmp_path) == [living]


def test_keepers_that_start_together_do_not_sweep_one_another(tmp_path: Path) -> None:
    made: list[tuple[Path, int]] = []

    def start() -> None:
        for _ in range(20):
            made.append(make_folder(tmp_path))
            sweep(tmp_path)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 80 and all(folder.is_dir() for folder, _ in made)
    for _, handle in made:
        os.close(handle)


def test_a_keeper_refuses_names_outside_its_folder(two: list[HostHere]) -> None:
    for name in ("../x.piece", "/etc/passwd", "x"):
        with (
            Keeper(two[0].place) as keeper,
            pytest.raises(KeeperError, match="expected the name of a piece, got"),
        ):
            keeper.get(name, 0, 10)


def test_a_process_without_the_token_is_refused(two: list[HostHere]) -> None:
    host, port, _ = two[0].place.address.split(":")
    with pytest.raises(KeeperError):
        Keeper(Place("a", f"{host}:{port}:wrong", two[0].place.folder), 2.0)
    with Keeper(two[0].place) as keeper:
        assert keeper.list().entries == []


def test_ranks_of_a_world_that_was_given_up_are_ended(two: list[HostHere]) -> None:
    ended: list[int] = []

    def rank(keeper: Keeper, life: int) -> None:
        keeper.hold(life)
        ended.append(life)
        keeper.close()

    place = two[0].place
    with Keeper(place) as supervisor:
        assert not supervisor.beat(0, 5.0).entered
        threads = []
        for life in (0, 1):
            thread = threading.Thread(target=rank, args=(Keeper(place), life))
            thread.start()
            threads.append(thread)
            until(lambda life=life: supervisor.beat(life, 5.0).entered, deadline_s=30)
        threads[0].join(10)
        assert ended == [0]
        late = Keeper(place)  # a rank of the first world that comes late
        rank(late, 0)
        supervisor.beat(2, 5.0)
        threads[1].join(10)
        assert ended == [0, 0, 1]


@pytest.mark.parametrize(
    ("checkpoint", "memory", "partners", "why"),
    [
        (dmr.Schedule(every=2), None, 1, "checkpoints with a folder and an interval in steps, got"),
        (dmr.Schedule(Path("a"), every_s=2), None, 1, "an interval in steps, got 2 seconds"),
        (None, dmr.Schedule(Path("a"), 2), 1, "copies in memory without a folder, got a"),
        (None, dmr.Schedule(), 1, "an interval of copies of more than 0 seconds, got 0"),
        (None, dmr.Schedule(every_s=-1), 1, "an interval of copies of more than 0 seconds, got -1"),
        (None, dmr.Schedule(every=1), -1, "0 or more partners, got -1"),
    ],
)
def test_wrong_schedules_are_refused(
    checkpoint: dmr.Schedule | None, memory: dmr.Schedule | None, partners: int, why: str
) -> None:
    with pytest.raises(dmr.UsageError, match=why):
        check_schedules(checkpoint, memory, partners)
    check_schedules(dmr.Schedule(Path("a")), dmr.Schedule(every=3), 0)


def test_the_process_ends_without_its_supervisor_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dmr.memory.keeper", "127.0.0.1", "--silent", "1"]
    with subprocess.Popen(
        [*command, "--base", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            (place,) = places_of(process.stdout.readline())
            with Keeper(place) as keeper:
                assert not keeper.beat(0, 5.0).entered
            assert place.folder.is_dir() and place.folder.parent == tmp_path
            assert process.wait(30) == 0
            assert not list(tmp_path.iterdir())
        finally:
            process.kill()
    with pytest.raises(KeeperGoneError, match=r"the keeper of 127\.0\.0\.1 has ended"):
        Keeper(place)
    assert base_folder().is_dir()


def test_keeper_and_supervisor_load_no_mpi() -> None:
    code = "import sys, dmr.memory.keeper, dmr.memory.supervise; print('mpi4py.MPI' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n", done.stderr
