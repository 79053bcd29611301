"""``mpdata run`` whose first resize goes wrong: faulty_resize.py FAULT run ...

The faults of the new world strike in the world booted for wish 1 only, so that a later resize can
show that the job is as good as before.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import dmr
from dmr.checkpoint import store
from dmr.data import streams
from dmr.resize import replace
from dmr.wire.channel import Committed, TakenOver
from mpdata.cli.main import main
from mpdata.parallel.app import Advection

FAULT = sys.argv[1]
JOINS = os.environ.get("DMR_JOIN")
PAUSE_S = 2.5


def strike() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Have ``act`` called with the arguments first."""
    true = getattr(owner, name)

    def patched(*arguments: Any, **options: Any) -> Any:
        act(*arguments, **options)
        return true(*arguments, **options)

    setattr(owner, name, patched)


def last(target: Any, *_: Any, **__: Any) -> None:
    if target.run.world.rank == target.run.world.size - 1:
        strike()


def late(target: Any, *_: Any) -> None:
    """Strike once the old world is in MPI_Comm_connect: see docs/concepts/when-ranks-die.md."""
    if target.run.world.rank == target.run.world.size - 1:
        time.sleep(0.5)
        strike()


def on(kind: type) -> Callable[..., None]:
    """Strike when a message of this kind is awaited or about to be said."""

    def act(target: Any, what: Any) -> None:
        if what is kind or isinstance(what, kind):
            strike()

    return act


def half_way(true: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Die when the first part of a transfer has gone through."""

    def cut(*arguments: Any, **options: Any) -> Iterator[Any]:
        steps = true(*arguments, **options)
        yield from islice(steps, 2)
        next(steps, None)
        strike()

    return cut


def short_of_memory(true: Callable[..., Iterator[Any]], rank: int) -> Callable[..., Iterator[Any]]:
    """Find no memory on a rank when the first part of a transfer has gone through, once."""
    struck: list[bool] = []

    def cut(comm: Any, block: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        steps = true(comm, block, *arguments, **options)
        if block.rank != rank or struck:
            return (yield from steps)
        struck.append(True)
        yield from islice(steps, 2)
        next(steps, None)
        raise MemoryError("expected to be found out")

    return cut


def small_files(*_: Any, **__: Any) -> None:
    """Let files grow so far only, once there are two checkpoints."""
    if len(list(Path(sys.argv[sys.argv.index("--checkpoint-dir") + 1]).glob("*.h5"))) == 2:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))


def no_velocities(stays: bool) -> Callable[..., None]:
    """Find something wrong while building for the world of two, once."""
    found: list[int] = []

    def act(run: Any, *_: Any) -> None:
        found.extend([1] * (run.world.size == 2))
        mine = JOINS is None if stays else JOINS == "1"
        dmr.raise_on_all(
            run.world.comm,
            f"no velocities on rank {run.world.rank}"
            if mine and run.world.size == 2 and len(found) == 1
            else None,
        )

    return act


def old_rank() -> int:
    """Return a rank of the running world, which has left its number."""
    return int(Path("old-rank").read_text())


def dawdle(_: Advection, run: dmr.Run) -> None:
    """Take time over every step, the second half most, until the file ``go`` exists."""
    if JOINS is None and not Path("old-rank").exists():
        Path("old-rank").write_text(str(os.getpid()))
    until = time.monotonic() + (0.1 if run.step < 100 else 1.5)
    while not Path("go").exists() and time.monotonic() < until:
        time.sleep(0.05)


def install() -> None:
    new, first = replace.NewWorld, JOINS == "1"
    before(Advection, "step", dawdle)
    if FAULT == "files limited at a checkpoint":
        before(store, "write", small_files)
    if FAULT.endswith("rank cannot build"):
        act = no_velocities(stays=FAULT.startswith("old"))
        before(Advection, "build", lambda app, run: act(run))
    if FAULT == "old rank killed while the new world boots" and JOINS == "1":
        before(replace, "start_new", lambda *_: os.kill(old_rank(), signal.SIGKILL))
    if FAULT == "old rank killed in the middle of the move" and JOINS is None:
        streams.sending = half_way(streams.sending)
    if FAULT == "old rank short of memory" and JOINS is None:
        streams.sending = short_of_memory(streams.sending, 0)
    if not first:
        return
    if FAULT == "new rank killed at boot":
        before(replace, "start_new", last)
    elif FAULT == "new rank killed at connect":
        before(replace, "connect_new", late)
    elif FAULT == "new rank killed in the middle of the move":
        streams.receiving = half_way(streams.receiving)
    elif FAULT == "new rank short of memory":
        streams.receiving = short_of_memory(streams.receiving, 1)
    elif FAULT == "new rank killed before acknowledging":
        before(replace, "commit_new", last)
    elif FAULT == "new rank killed after acknowledging":
        before(new, "expect", on(Committed))
    elif FAULT == "new rank killed when it has the job":
        before(new, "say", on(TakenOver))
    elif FAULT == "new world says no word":
        before(replace, "start_new", lambda *_: time.sleep(1000))
    elif FAULT == "new world cannot build":
        before(replace, "build_new", lambda *_: sys.exit(3))
    elif FAULT == "RMS killed while booting":
        before(replace, "start_new", lambda *_: time.sleep(PAUSE_S))
    elif FAULT == "RMS killed while moving":
        before(replace, "commit_new", lambda *_: time.sleep(PAUSE_S))


if __name__ == "__main__":
    install()
    sys.exit(main(sys.argv[2:]))
