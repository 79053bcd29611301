"""Keepers of copies in this process, and the ranks of a world one after another."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from processes import until

from dmr.data.distributed import Distributed
from dmr.memory import keeper
from dmr.memory.copies import Copies, Restored, Terms, restore
from dmr.memory.keeper import Place, Server, make_folder
from dmr.plan import Schedule
from dmr.state.progress import Progress
from dmr.wire.channel import LOOPBACK, ControlChannel, Listener
from dmr.world import World

TERMS = Terms(Schedule(every_s=1.0), 1, {"k": 1}, (1, None), ())


class RecordingListener(Listener):
    """A listener that knows the connections that it has accepted."""

    def __init__(self) -> None:
        super().__init__(LOOPBACK)
        self.channels: list[ControlChannel] = []

    def accept(self, deadline_s: float) -> ControlChannel:
        self.channels.append(super().accept(deadline_s))
        return self.channels[-1]


@dataclass
class HostHere:
    """A keeper that runs in a thread of this process, as if on a host of its own."""

    place: Place
    server: Server
    handle: int
    listener: RecordingListener
    thread: threading.Thread

    def die(self) -> None:
        """End it, with all that it holds, as a host does."""
        self.server.orphan_s = -1.0
        self.thread.join(10)
        self.listener.close()
        for channel in self.listener.channels:
            channel.shut()
        for path in self.place.folder.iterdir():
            path.unlink()


@contextlib.contextmanager
def hosts(base: Path, count: int, orphan_s: float = 300.0) -> Iterator[list[HostHere]]:
    """Start keepers of hosts a, b, ...; end them."""
    started = []
    keeper.LOOK_S = 0.02
    for number in range(count):
        folder, handle = make_folder(base)
        listener = RecordingListener()
        server = Server(folder, listener, orphan_s)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        place = Place("abcdefgh"[number], listener.address, folder)
        started.append(HostHere(place, server, handle, listener, thread))
    try:
        yield started
    finally:
        for host in started:
            host.server.orphan_s = -1.0
        for host in started:
            host.thread.join(10)
            host.listener.close()
            os.close(host.handle)


@dataclass
class Comm:
    """The communicator of one rank; ranks run one after another, rank 0 first."""

    rank: int
    size: int
    board: list[Any]
    at: int = 0

    def bcast(self, value: Any) -> Any:
        if self.rank == 0:
            self.board.append(value)
        self.at += 1
        return self.board[self.at - 1]

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def worlds(ranks: int) -> list[World]:
    """Return the world of every rank."""
    board: list[Any] = []
    comms = [Comm(rank, ranks, board) for rank in range(ranks)]
    made = [SimpleNamespace(rank=c.rank, size=ranks, internal_comm=c) for c in comms]
    return [cast(World, one) for one in made]


Fields = Mapping[str, Distributed]


@dataclass
class Ranks:
    """The copies of all ranks of a world; ranks are dealt to hosts in blocks."""

    places: Sequence[Place]
    fields: Sequence[Fields]
    life: int = 0
    generation: int = 0
    terms: Terms = TERMS
    notes: list[str] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    copies: list[Copies] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = len(self.fields)
        for world in worlds(ranks):
            host = world.rank * len(self.places) // ranks
            note = self.notes.append if world.rank == 0 else (lambda _: None)
            one = Copies(self.places, host, self.life, 0, self.terms, self.clock, note)
            one.enter(world, self.generation, self.fields[world.rank])
            self.copies.append(one)

    def take(self, step: int, *, waits: bool = True) -> None:
        """Take a copy of all ranks; wait until they have agreed that it is complete."""
        until(lambda: not any(one.state[0] for one in self.copies), deadline_s=30)
        for one, fields in zip(self.copies, self.fields, strict=True):
            one.take(fields, Progress(step=step, generation=self.generation))
        if waits:
            self.finish()

    def finish(self) -> None:
        """Wait for the threads of all ranks, and let these agree."""
        until(lambda: not any(one.state[0] for one in self.copies), deadline_s=30)
        problem = max(one.state[1] for one in self.copies)
        for one in self.copies:
            assert not one.agreed(0, 0, problem)

    def close(self) -> None:
        for one in self.copies:
            one.close()


@contextlib.contextmanager
def ranks_of(
    places: Sequence[Place], fields: Sequence[Fields], life: int = 0, **options: Any
) -> Iterator[Ranks]:
    """Enter a world of so many ranks, and close its copies."""
    ranks = Ranks(places, fields, life, **options)
    try:
        yield ranks
    finally:
        ranks.close()


def restored(
    places: Sequence[Place], fields: Sequence[Fields], options: Mapping[str, Any] | None = None
) -> list[Restored]:
    """Restore on so many ranks, dealt to the hosts in blocks."""
    ranks = len(fields)
    return [
        restore(
            places,
            places[world.rank * len(places) // ranks],
            0,
            world,
            fields[world.rank],
            {"k": 1} if options is None else options,
        )
        for world in worlds(ranks)
    ]
