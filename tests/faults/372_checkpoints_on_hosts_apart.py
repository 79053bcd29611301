"""A run whose hosts share no folder ran to its end, and only warned at each checkpoint.

Real hosts are in ``tests/slurm/test_across_hosts.py``; here the second rank sees another folder.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from dmr.checkpoint import store
from dmr.errors import UsageError
from dmr.plan import Schedule
from dmr.world import World


class Pair:
    """Two ranks, as threads."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.values: list[Any] = [None, None]

    def all(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait(30)
        found = list(self.values)
        self.barrier.wait(30)
        return found


class Rank:
    """As much of a world, and of its communicator, as the lock uses."""

    size = 2

    def __init__(self, pair: Pair, rank: int) -> None:
        self.pair, self.rank, self.internal_comm = pair, rank, self

    def bcast(self, value: Any) -> Any:
        return self.pair.all(self.rank, value)[0]

    def allgather(self, value: Any) -> list[Any]:
        return self.pair.all(self.rank, value)


@pytest.mark.parametrize("shared", [True, False])
def test_it_is_refused_at_its_start(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "saved"
    exists, unlink = Path.exists, Path.unlink

    def apart() -> bool:
        return threading.current_thread().name == "1" and not shared

    def removed(path: Path, **more: Any) -> None:
        if not apart():
            unlink(path, **more)

    monkeypatch.setattr(Path, "exists", lambda path, **more: exists(path, **more) and not apart())
    monkeypatch.setattr(Path, "unlink", removed)
    pair, results = Pair(), dict[str, str]()

    def locked(rank: int) -> None:
        try:
            store.lock(Schedule(saved), cast(World, Rank(pair, rank))).release()
            results[str(rank)] = ""
        except UsageError as error:
            results[str(rank)] = str(error)

    threads = [threading.Thread(target=locked, args=(rank,), name=str(rank)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results.keys() == {"0", "1"} and list(saved.iterdir()) == []
    assert store.Lock(saved).acquire()  # nobody has it
    for said in results.values():
        expected = f"expected {saved} in a file system that all hosts of this run share"
        assert said.startswith(expected) if not shared else said == ""
