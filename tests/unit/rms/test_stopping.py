"""A daemon that is told to stop: once, twice, and while every look at its processes fails."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faults import Fault
from said import Said

from rms.daemon import serve
from rms.daemon.heart import Daemon
from rms.daemon.serve import Collector, Notifier


class Stuck:
    """A daemon one of whose jobs never ends, and whose looks fail as they are told to."""

    def __init__(self, *faults: Exception) -> None:
        self.said, self.told, self._faults = Said(), list[str](), list(faults)
        self.idle = False
        self.launcher = SimpleNamespace(nodes=SimpleNamespace(shutdown_reason=lambda: ""))
        self.context = SimpleNamespace(state=SimpleNamespace(running={"7": None}))
        self.scripts = SimpleNamespace(starting=False)
        self.stopping = serve._Stopping()

    def tick(self) -> None:
        if self._faults:
            raise self._faults.pop()
        self.stopping.signal()

    async def flush(self) -> None:
        pass

    def stop(self) -> None:
        self.told.append("stop")

    def hurry(self) -> None:
        self.told.append("hurry")

    def run(self) -> None:
        daemon, collector = cast("Daemon", cast("Any", self)), Collector(inf)
        watching = serve._run(daemon, self.stopping, None, Notifier({}), collector)
        asyncio.run(asyncio.wait_for(watching, 120.0))


def test_told_twice_it_leaves_to_the_next_what_cannot_be_ended(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(serve, "HURRY_S", 0.0)
    stuck = Stuck()
    stuck.run()
    assert stuck.told == ["stop", "hurry"]
    assert stuck.said == ["second stop signal: left to the next daemon: 7"]
    fault("SIGTERM twice while Slurm is away", "ends; the next daemon goes on with the job")


def test_a_look_that_fails_is_said_once_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HURRY_S", 0.0)
    stuck = Stuck(
        KeyError("x"), OSError(24, "Too many open files"), OSError(24, "Too many open files")
    )
    stuck.run()
    assert stuck.said[:2] == [
        "looking at processes: OSError: [Errno 24] Too many open files",
        "looking at processes: KeyError: 'x'",
    ]
    assert len(stuck.said) == 3
