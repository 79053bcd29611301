"""A resize with one fault at any point: both worlds agree on who has the job."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

from interleavings import Channel, executions

from dmr.errors import RolledBackError
from dmr.plan import Deadlines
from dmr.resize.replace import NewWorld, OldWorld, commit_new, commit_old, header_new, header_old
from dmr.state.progress import Progress, encode
from dmr.wire.channel import Header


class Alone:
    """RankMessages of a world of one rank."""

    is_root = True

    def send_all(self, message: Any) -> None: ...

    def collect(self, check: Any = None) -> list[Any]:
        return []


class Lock:
    """The right to write checkpoints, which the old world has at the start."""

    held = True

    def acquire(self) -> bool:
        self.held = True
        return True

    def release(self) -> None:
        self.held = False


def run_of() -> Any:
    progress = Progress()
    internal = SimpleNamespace(sigterm=[], checkpoint_lock=Lock(), per_rank={})
    runtime = SimpleNamespace(clock=time.monotonic, run_of_job=None)
    return SimpleNamespace(
        world=SimpleNamespace(size=1, rank=0),
        fields={},
        runtime=runtime,
        internal=internal,
        progress=progress,
        step=0,
    )


def old_world(channel: Channel) -> str:
    old: Any = OldWorld.__new__(OldWorld)
    old.messages, old.deadlines, old.channels, old.phase = Alone(), Deadlines(), [channel], ""
    old._early, old.run, old.inter = {}, run_of(), None
    old.plan = SimpleNamespace(options={}, checkpoint=None)
    old.wanted = SimpleNamespace(ranks=1, strategy="warm", launches=(), request=1)
    old.encoded, old.begun, old.from_ranks = encode(old.run.progress), 0.0, 1
    old.meet_s, old.phases_s = 0.0, {}
    try:
        header_old(old)
        answered = commit_old(old, None, 0)
    except RolledBackError:
        return "goes on" if old.run.internal.checkpoint_lock.held else "cannot write checkpoints"
    assert not old.run.internal.checkpoint_lock.held
    return "left" if answered else "ends"


def new_world(channel: Channel) -> str:
    new: Any = NewWorld.__new__(NewWorld)
    new.messages, new.deadlines, new.channels, new.phase = Alone(), Deadlines(), [channel], ""
    new._early, new.run, new.constants, new.receivers = {}, run_of(), {}, ()
    new.plan = SimpleNamespace(options={}, checkpoint=None)
    new.app = SimpleNamespace(backends=())
    try:
        header = new.on_root(lambda: new.expect(Header)[0])
        header_new(new, header)
        commit_new(new, None, 0.0, 0.0)
    except RolledBackError:
        return "left"
    return "has it"


def test_one_world_at_most_has_the_job() -> None:
    found = Counter(executions({"old": old_world, "new": new_world}))
    assert found["", ("left", "has it")] and len(found) > 8
    for (fault, (old, new)), number in sorted(found.items()):
        case = f"{number} executions: fault {fault!r}, the old world {old}, the new {new}"
        assert (old, new) != ("goes on", "has it"), case
        assert old in ("goes on", "left", "ends", "dead"), case
        if "dies" not in fault and old != "ends":
            assert (old == "goes on") != (new == "has it"), case
        if old == "ends":
            assert fault in ("old late", "cut"), case
